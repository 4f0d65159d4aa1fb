"""The rows of a mirror or a log, and rows of the source as it would hold them, to compare the two.

Rows of the source are loaded into a temporary table with the columns of the mirror, as the sink loads all rows, and
read back by the same query. So whatever the database makes of a value happens on both sides.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import pyarrow as pa
from typing_extensions import override

from tailer.errors import SinkRejected
from tailer.events import METADATA_FIELDS
from tailer.sink import MirrorRows
from tailer_sinks.mirrors import comparable_json, time_us_of
from tailer_sinks.sql.append import ROW, TABLE_ID, TASK, ChangeLog
from tailer_sinks.sql.bad_values.policy import Place
from tailer_sinks.sql.databases.dialect import Connection, column_list, quoted
from tailer_sinks.sql.databases.texts import holds_json
from tailer_sinks.sql.mirror import Mirror
from tailer_sinks.sql.segments import create_waiting
from tailer_sinks.sql.stream import Stream
from tailer_sinks.sql.verification.folded_log import fold_of
from tailer_sinks.sql.verification.repair import MirrorState, SqlRepair, conformed

__all__ = ["SqlMirrorRows", "mirror_rows"]

_COMPARED: Final = "lake_tailer_compared"
_KEYS: Final = "lake_tailer_keys"
_NUMBER: Final = "lake_tailer_number"
_LOG_COLUMNS: Final = frozenset([*(each.name for each in METADATA_FIELDS), TABLE_ID, TASK, ROW])  # not the source's


class SqlMirrorRows(MirrorRows):
    """A `tailer.sink.MirrorRows`, by two connections.

    `mirror` is in a transaction that reads one state, `state`, until `release`. `scratch` has temporary tables.
    """

    def __init__(
        self,
        stream: Stream,
        state: MirrorState,
        version: int,
        mirror: Connection,
        scratch: Connection,
        release: Callable[[], None],
    ) -> None:
        shape = state.record.schema if state.target is None else state.target.shape_now(state.record.schema)
        self.app_id = state.record.app_id
        self.version, known_from = version, state.record.known_from
        self.known_from = state.version if known_from is None else known_from
        self.columns_at = None if known_from is None else state.version
        own = _LOG_COLUMNS if state.target is None else {field.name for field in state.target.own}
        self.columns = tuple(name for name in shape.names if name not in own)
        self.key = state.record.key
        self._stream = stream
        self._dialect = stream.dialect
        self._state = state
        self._mirror = mirror
        self._scratch = scratch
        self._release = release
        self._time_us: int | None = None  # of the version of the source
        self._schema = pa.schema([pa.field(name, shape.field(name).type) for name in self.columns])
        self._keys = pa.schema([pa.field(_NUMBER, pa.int64()), *(self._schema.field(column) for column in self.key)])
        self._json = {column.name: comparable_json(column.type) for column in self._schema if holds_json(column.type)}
        create_waiting(scratch, self._dialect, _COMPARED, self._schema, stays=False)
        create_waiting(scratch, self._dialect, _KEYS, self._keys, stays=False)

    @override
    def rows(self) -> Iterator[pa.RecordBatch]:
        state = self._state
        if state.target is not None:
            is_newest = self.version == state.version
            yield from self._stored(state.target.rows_of(self.version, is_newest=is_newest))
        elif state.fold is not None:
            yield from self._stored(state.fold.inserted)

    @override
    def deleted_rows(self) -> Iterator[pa.RecordBatch]:
        if self._state.fold is not None:
            yield from self._stored(self._state.fold.deleted)

    @override
    def as_stored(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        self._time_us = time_us_of(rows) or self._time_us
        self._dialect.empty(self._scratch, quoted(_COMPARED))
        place = Place(connection=self._scratch, table=quoted(_COMPARED), schema=self._schema, key=self.key)
        self._stream.bad_values.load_compared(place, conformed(rows, self._schema))
        yield from self._texts(self._scratch, quoted(_COMPARED))

    @override
    def stored_keys(self, rows: pa.RecordBatch) -> pa.Table:
        numbers = pa.array(range(len(rows)), pa.int64())
        numbered = pa.record_batch([numbers, *map(rows.column, self.key)], [_NUMBER, *self.key])
        self._dialect.empty(self._scratch, quoted(_KEYS))
        # A key that the database cannot hold is null here, and no row has it.
        place = Place(connection=self._scratch, table=quoted(_KEYS), schema=self._keys)
        self._stream.bad_values.load(place, conformed(numbered, self._keys))
        keys = self._keys.remove(0)
        query = f"SELECT {column_list(self.key)} FROM {quoted(_KEYS)} ORDER BY {_NUMBER}"
        return pa.Table.from_batches(self._scratch.texts(query, keys))

    @override
    def begin_repair(self) -> SqlRepair:
        if self.version != self._state.version:
            reason = f"version {self.version} of {self._state.record.table} is one of the past, which no repair changes"
            raise SinkRejected(self._stream.name, reason, "Repair the newest version.")
        return SqlRepair(self._stream, self._state, self._schema, self._scratch, self._release, self._time_us)

    def _stored(self, condition: str) -> Iterator[pa.RecordBatch]:
        table = self._dialect.name_of(self._state.record.table)
        yield from self._texts(self._mirror, table, condition)

    def _texts(self, connection: Connection, table: str, condition: str = "1 = 1") -> Iterator[pa.RecordBatch]:
        # With the table's name: SQLite takes the name of a column that is not there for a text.
        columns = ", ".join(f"compared.{quoted(column)}" for column in self.columns)
        query = f"SELECT {columns} FROM {table} AS compared WHERE {condition}"
        for batch in connection.texts(query, self._schema):
            texts = [
                self._json[name](column) if name in self._json else column
                for name, column in zip(self.columns, batch.columns, strict=True)
            ]
            yield pa.record_batch(texts, list(self.columns))


@contextmanager
def mirror_rows(
    stream: Stream, target: ChangeLog | Mirror, pipeline: str, version: int | None
) -> Iterator[SqlMirrorRows]:
    """Open the rows of the table that `pipeline` fills at a version. Raises as entering `Sink.open_mirror` does."""
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
        newest, progress = records.version(mirror, target.table), records.progress(mirror, record.app_id)
        first = newest if record.known_from is None else record.known_from
        if version is not None and not first <= version <= newest:
            reason = f"{target.table} has the rows of versions {first} to {newest}, not of version {version}"
            raise SinkRejected(stream.name, reason, "Name one of these.")
        if isinstance(target, Mirror):
            target.key = record.key
            state = MirrorState(record, newest, progress, target)
        else:
            commands = records.complete_backfills(mirror, pipeline)
            fold = fold_of(stream.name, mirror, dialect.name_of(target.table), record, newest, commands)
            state = MirrorState(record, newest, progress, fold=fold)
        yield SqlMirrorRows(stream, state, newest if version is None else version, mirror, scratch, reading.close)
