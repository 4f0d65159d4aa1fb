"""The rows of a mirror or a log, and rows of the source as it would hold them, to compare the two.

Rows of the source are loaded into a temporary table with the columns of the mirror, as the sink loads all rows, and
read back by the same query. So whatever the database makes of a value happens on both sides.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import pyarrow as pa

from tailer.errors import SinkRejected
from tailer.events import METADATA_FIELDS
from tailer_sinks.comparable_json import comparable_json
from tailer_sinks.sql.append import ROW, TABLE_ID, TASK, ChangeLog
from tailer_sinks.sql.databases.dialect import Connection, column_list, quoted
from tailer_sinks.sql.databases.texts import holds_json
from tailer_sinks.sql.segments import create_waiting
from tailer_sinks.sql.stream import Stream
from tailer_sinks.sql.target import Target
from tailer_sinks.sql.verification.folded_log import fold_of
from tailer_sinks.sql.verification.repair import MirrorState, SqlRepair, conformed

__all__ = ["SqlMirrorRows", "mirror_rows"]

_COMPARED: Final = "lake_tailer_compared"
_KEYS: Final = "lake_tailer_keys"
_NUMBER: Final = "lake_tailer_number"
_LOG_COLUMNS: Final = frozenset([*(each.name for each in METADATA_FIELDS), TABLE_ID, TASK, ROW])  # not the source's


class SqlMirrorRows:
    """A `tailer.sink.MirrorRows`, by two connections.

    `mirror` is in a transaction that reads one state, `state`, until `release`. `scratch` has temporary tables.
    """

    def __init__(
        self,
        stream: Stream,
        state: MirrorState,
        mirror: Connection,
        scratch: Connection,
        release: Callable[[], None],
    ) -> None:
        self.app_id = state.record.app_id
        self.version = state.version
        added = frozenset() if state.fold is None else _LOG_COLUMNS
        self.columns = tuple(each for each in state.record.schema.names if each not in added)
        self.key = state.record.key
        self._stream = stream
        self._dialect = stream.dialect
        self._state = state
        self._mirror = mirror
        self._scratch = scratch
        self._release = release
        self._schema = pa.schema([state.record.schema.field(each) for each in self.columns])
        self._keys = pa.schema([pa.field(_NUMBER, pa.int64()), *(self._schema.field(each) for each in self.key)])
        self._json = {each.name: comparable_json(each.type) for each in self._schema if holds_json(each.type)}
        create_waiting(scratch, self._dialect, _COMPARED, self._schema, stays=False)
        create_waiting(scratch, self._dialect, _KEYS, self._keys, stays=False)

    def rows(self) -> Iterator[pa.RecordBatch]:
        """See `MirrorRows.rows`."""
        yield from self._stored(None if self._state.fold is None else self._state.fold.inserted)

    def deleted_rows(self) -> Iterator[pa.RecordBatch]:
        """See `MirrorRows.deleted_rows`."""
        if self._state.fold is not None:
            yield from self._stored(self._state.fold.deleted)

    def as_stored(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """See `MirrorRows.as_stored`."""
        self._dialect.empty(self._scratch, quoted(_COMPARED))
        self._scratch.load(quoted(_COMPARED), conformed(rows, self._schema))
        yield from self._texts(self._scratch, quoted(_COMPARED))

    def stored_keys(self, rows: pa.RecordBatch) -> pa.Table:
        """See `MirrorRows.stored_keys`."""
        numbers = pa.array(range(len(rows)), pa.int64())
        numbered = pa.record_batch([numbers, *map(rows.column, self.key)], [_NUMBER, *self.key])
        self._dialect.empty(self._scratch, quoted(_KEYS))
        self._scratch.load(quoted(_KEYS), conformed(numbered, self._keys))
        keys = self._keys.remove(0)
        query = f"SELECT {column_list(self.key)} FROM {quoted(_KEYS)} ORDER BY {_NUMBER}"
        return pa.Table.from_batches(self._scratch.texts(query, keys))

    def begin_repair(self) -> SqlRepair:
        """See `MirrorRows.begin_repair`."""
        return SqlRepair(self._stream, self._state, self._scratch, self._release)

    def copy(self) -> None:
        """Return None: one transaction reads one state of the database."""

    def _stored(self, condition: str | None) -> Iterator[pa.RecordBatch]:
        yield from self._texts(self._mirror, self._dialect.name_of(self._state.record.table), condition)

    def _texts(self, connection: Connection, table: str, condition: str | None = None) -> Iterator[pa.RecordBatch]:
        # With the table's name: SQLite takes the name of a column that is not there for a text.
        columns = ", ".join(f"compared.{quoted(each)}" for each in self.columns)
        where = "" if condition is None else f" WHERE {condition}"
        for batch in connection.texts(f"SELECT {columns} FROM {table} AS compared{where}", self._schema):
            texts = [
                self._json[name](column) if name in self._json else column
                for name, column in zip(self.columns, batch.columns, strict=True)
            ]
            yield pa.record_batch(texts, list(self.columns))


@contextmanager
def mirror_rows(stream: Stream, target: Target, pipeline: str) -> Iterator[SqlMirrorRows]:
    """Open the rows of the table that `pipeline` fills. Raises as entering `Sink.open_mirror` does."""
    dialect, records = stream.dialect, stream.records
    nothing = SinkRejected(
        stream.name,
        f"the table {target.table} has no version yet",
        "Wait until its pipeline has delivered one: see `tailer status`.",
    )
    if not dialect.is_there():
        raise nothing
    with ExitStack() as opened:
        mirror = dialect.connect()
        opened.callback(mirror.close)
        if not dialect.has_table(mirror, target.table):
            raise nothing
        scratch = dialect.connect()
        opened.callback(scratch.close)
        reading = opened.enter_context(ExitStack())
        with stream.limited(mirror):  # it waits where columns are changed
            reading.enter_context(mirror.one_state(dialect.name_of(target.table)))
        record = stream.record(mirror, target, pipeline)
        if record is None:
            raise nothing
        version, progress = records.version(mirror, target.table), records.progress(mirror, record.app_id)
        fold = None
        if record.mode == ChangeLog.mode:
            fold = fold_of(stream.name, mirror, dialect.name_of(target.table), record, version)
        yield SqlMirrorRows(stream, MirrorState(record, version, progress, fold), mirror, scratch, reading.close)
