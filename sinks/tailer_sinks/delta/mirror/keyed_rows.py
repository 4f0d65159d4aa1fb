"""Change rows as a mirror takes them: rows with their key, that are inserted or deleted."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from tailer.errors import SinkRejected
from tailer.events import COMMIT_VERSION
from tailer_sinks.delta.schema import partition_refusal
from tailer_sinks.encoding.typed import Misfit, conform
from tailer_sinks.mirrors import check_never_null, deleted_and_inserted

__all__ = ["KeyedRows"]


@dataclass(frozen=True, slots=True)
class KeyedRows:
    """A converter of change rows to rows of the mirror at `path`. Survives pickle.

    `name`: the sink's. `schema`, `partition_by`, `key`: of the mirror.
    """

    name: str
    path: str
    schema: pa.Schema
    partition_by: tuple[str, ...]
    key: tuple[str, ...]

    def parts(self, rows: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, pa.Array, bool]]:
        """Yield the deleted and the inserted ones of `rows` with `schema`, their versions, and whether they come in.

        Deleted rows have nothing but their key. Raises `SinkRejected` for a key with a null, and for values that the
        mirror cannot have.
        """
        check_never_null(self.name, self.path, rows, self.key)
        deleted, inserted = deleted_and_inserted(self.name, rows)
        for chosen, is_insert in ((deleted, False), (inserted, True)):
            if len(part := rows.filter(chosen)):
                yield self._conformed(part, is_insert=is_insert), part.column(COMMIT_VERSION), is_insert

    def _conformed(self, rows: pa.RecordBatch, *, is_insert: bool) -> pa.RecordBatch:
        if is_insert and (reason := partition_refusal(rows, self.partition_by)):
            raise SinkRejected(self.name, reason, "Partition the target by another column.")
        try:
            return conform(rows if is_insert else rows.select(self.key), self.schema)
        except Misfit as misfit:
            raise SinkRejected(self.name, str(misfit), "Choose another form of the column with select.") from misfit
