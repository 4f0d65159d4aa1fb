"""The repair of a mirror: rows that are replaced by those of the source, in one transaction.

The transaction locks the pipeline's progress, and does nothing if that is another one than when the mirror was read.
Whoever else writes to the table waits. So the rows of a key are those of the version at which the table is, and what
the pipeline commits next is applied to them.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from typing_extensions import override

from tailer.errors import SinkFenced, SinkRejected
from tailer.sink import MirrorRepair
from tailer_sinks.sql.adoption.fit import held
from tailer_sinks.sql.bad_values.policy import Place
from tailer_sinks.sql.databases.dialect import Connection, UniqueViolationError, quoted
from tailer_sinks.sql.databases.texts import cast_or_kept
from tailer_sinks.sql.mirror import Mirror
from tailer_sinks.sql.records import Entry, TableRecord
from tailer_sinks.sql.segments import create_waiting
from tailer_sinks.sql.stream import Stream
from tailer_sinks.sql.verification.folded_log import Fold

__all__ = ["MirrorState", "SqlRepair", "conformed"]

_REMOVED: Final = "lake_tailer_removed"
_ADDED: Final = "lake_tailer_added"


@dataclass(frozen=True, slots=True)
class MirrorState:
    """One state of a table: its version, and the progress of the stream that filled it last.

    `target`: of a mirror; `fold`: of a log.
    """

    record: TableRecord
    version: int
    progress: Entry | None
    target: Mirror | None = None
    fold: Fold | None = None


class SqlRepair(MirrorRepair):
    """A `tailer.sink.MirrorRepair` of the mirror that was read as `state`. Its `rows` wait in temporary tables.

    `release`: ends the transaction that reads the mirror. A change of the columns waits for that, with the lock for
    which `commit` waits. `time_us`: of the version; None: not known, so that of the repair takes its place.
    """

    def __init__(
        self,
        stream: Stream,
        state: MirrorState,
        rows: pa.Schema,
        connection: Connection,
        release: Callable[[], None],
        time_us: int | None,
    ) -> None:
        self._stream = stream
        self._time_us = time_us or time.time_ns() // 1000
        self._state = state
        self._connection = connection
        self._release = release
        self._rows = rows
        self._keys = pa.schema([self._rows.field(column) for column in state.record.key])
        create_waiting(connection, stream.dialect, _REMOVED, self._keys, stays=False)
        create_waiting(connection, stream.dialect, _ADDED, self._rows, stays=False)

    @override
    def remove(self, keys: pa.RecordBatch) -> None:
        self._connection.load_texts(quoted(_REMOVED), pa.record_batch(keys.columns, self._keys.names), self._keys)

    @override
    def add(self, rows: pa.RecordBatch) -> None:
        key = self._keys.names
        place = Place(connection=self._connection, table=quoted(_ADDED), schema=self._rows, key=key)
        self._stream.bad_values.load_compared(place, conformed(rows, self._rows))

    @override
    def commit(self) -> bool:
        connection, dialect, record = self._connection, self._stream.dialect, self._state.record
        self._release()
        for table in (_REMOVED, _ADDED):
            dialect.analyze(connection, quoted(table), self._keys.names)
        try:
            with self._stream.limited(connection), connection.transaction():
                self._stream.records.hold(connection, record.app_id, self._state.progress)
                connection.lock(dialect.name_of(record.table))
                if self._has_moved():
                    return False
                self._replace()
        except SinkFenced:
            return False
        except UniqueViolationError as error:
            reason = f"the source has a key twice; the key of {record.table} is {', '.join(record.key)}"
            remedy = "Set key to columns whose values are unique in the source, and run "
            raise SinkRejected(self._stream.name, reason, f"{remedy}`tailer resnapshot PIPELINE`.") from error
        return True

    def _has_moved(self) -> bool:
        """Return whether the table is another one, or at another version, whatever the progress is."""
        records, record = self._stream.records, self._state.record
        record_now = records.table(self._connection, record.table)
        return record_now != record or records.version(self._connection, record.table) != self._state.version

    def _replace(self) -> None:
        target = self._state.target
        assert target is not None, "a log has no key"
        stream, table, tables = self._stream, target.table, (quoted(_REMOVED), quoted(_ADDED))
        with held(stream.name, self._connection, stream.dialect, table, target.existing, (), is_new=False):
            target.repair(self._connection, *tables, self._rows.names, self._state.version, self._time_us)


def conformed(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of `schema` of `rows` of the source, with its types, where these have all values.

    A column that the source has no longer is null.
    """
    names = set(rows.schema.names)
    columns = [rows.column(field.name) if field.name in names else pa.nulls(len(rows), field.type) for field in schema]
    return pa.record_batch(list(map(cast_or_kept, columns, schema.types)), schema.names)
