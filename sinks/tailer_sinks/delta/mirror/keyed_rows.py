"""Change rows as a mirror takes them: rows with their key, that are inserted or deleted."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tailer.errors import SinkRejected
from tailer.events import CHANGE_TYPE, COMMIT_VERSION, ROW_ID, ChangeType
from tailer_sinks.delta.mirror.keys import no_key
from tailer_sinks.delta.schema import partition_refusal
from tailer_sinks.encoding.typed import Misfit, conform

__all__ = ["KeyedRows"]

_INSERTS: Final = pa.array([ChangeType.INSERT, ChangeType.UPDATE_POSTIMAGE], pa.string())
_DELETES: Final = pa.array([ChangeType.DELETE, ChangeType.UPDATE_PREIMAGE], pa.string())


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
        versions = rows.column(COMMIT_VERSION)
        for column in self.key:
            values = rows.column(column)
            if values.null_count:
                if column == ROW_ID:
                    raise no_key(self.name, self.path)
                version = versions.filter(values.is_null())[0]
                reason = f"the key column {column} of {self.path} is null in version {version}"
                raise SinkRejected(self.name, reason, "Set key to columns that are never null.")
        changes = rows.column(CHANGE_TYPE)
        inserted, deleted = pc.is_in(changes, _INSERTS), pc.is_in(changes, _DELETES)
        known = pc.or_(inserted, deleted)
        if not pc.all(known).as_py():
            version = versions.filter(pc.invert(known))[0]
            reason = f"version {version} has rows of another change type than Delta defines"
            raise SinkRejected(self.name, reason, 'Set mode = "append".')
        for chosen, is_insert in ((deleted, False), (inserted, True)):
            if len(found := rows.filter(chosen)):
                yield self._conformed(found, is_insert=is_insert), found.column(COMMIT_VERSION), is_insert

    def _conformed(self, rows: pa.RecordBatch, *, is_insert: bool) -> pa.RecordBatch:
        if is_insert and (reason := partition_refusal(rows, self.partition_by)):
            raise SinkRejected(self.name, reason, "Partition the target by another column.")
        try:
            return conform(rows if is_insert else rows.select(self.key), self.schema)
        except Misfit as misfit:
            raise SinkRejected(self.name, str(misfit), "Choose another form of the column with select.") from misfit
