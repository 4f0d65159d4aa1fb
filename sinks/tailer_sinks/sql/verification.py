"""A mirror or a log as `tailer verify` reads it: its rows, rows of the source as it would hold them, and its repair.

Rows of the source are loaded into a temporary table with the columns of the mirror, as the sink loads all rows, and
read back by the same query. So whatever the database makes of a value happens on both sides.
"""

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from typing_extensions import override

from tailer.errors import SinkFenced, SinkRejected
from tailer.events import CHANGE_TYPE, COMMIT_VERSION, METADATA_FIELDS, ChangeType
from tailer.plan import BACKFILLS, SNAPSHOT_TASKS, TASKS
from tailer.sink import MirrorRepair, MirrorRows
from tailer_sinks.encoding.typed import GAP
from tailer_sinks.mirrors import comparable_json, time_us_of
from tailer_sinks.sql.adoption import held
from tailer_sinks.sql.append import ROW, TABLE_ID, TASK, ChangeLog, gap_task
from tailer_sinks.sql.bad_values.policy import Place
from tailer_sinks.sql.databases.dialect import Connection, UniqueViolationError, column_list, limited, quoted
from tailer_sinks.sql.databases.texts import cast_or_kept, holds_json
from tailer_sinks.sql.mirror import Mirror
from tailer_sinks.sql.records import Entry, TableRecord
from tailer_sinks.sql.segments import create_waiting
from tailer_sinks.sql.stream import Stream

__all__ = ["mirror_rows"]

_INSERTS: Final = (ChangeType.INSERT, ChangeType.UPDATE_POSTIMAGE)
_DELETES: Final = (ChangeType.DELETE, ChangeType.UPDATE_PREIMAGE)
_SNAPSHOT: Final = (
    f"({TASK} >= {SNAPSHOT_TASKS} AND NOT {TASK} BETWEEN {SNAPSHOT_TASKS + TASKS} "
    f"AND {SNAPSHOT_TASKS + (1 + BACKFILLS) * TASKS - 1})"
)
_LOSS: Final = f"{CHANGE_TYPE} = '{GAP}' AND {TASK} = -1"
_ANNOUNCED: Final = f"{CHANGE_TYPE} = '{GAP}' AND {TASK} < -1"  # before the snapshot of a command; nothing is lost
_REMOVED: Final = "lake_tailer_removed"
_ADDED: Final = "lake_tailer_added"
_COMPARED: Final = "lake_tailer_compared"
_KEYS: Final = "lake_tailer_keys"
_NUMBER: Final = "lake_tailer_number"
_LOG_COLUMNS: Final = frozenset([*(each.name for each in METADATA_FIELDS), TABLE_ID, TASK, ROW])  # not the source's


@dataclass(frozen=True, slots=True)
class _Fold:
    """The fold of a log of changes: the rows that it inserted, without those that it deleted.

    These are their conditions. Where the pipeline has delivered a snapshot, the fold begins with the last one, and
    where changes are lost, after them. A snapshot that `tailer resnapshot` asked for has the task numbers of a
    backfill, and a gap announces it. Other backfills repeat rows, so they are left out. So is what the log has of a
    version, or of a snapshot, that is not complete yet.
    """

    inserted: str
    deleted: str


def _fold_of(
    name: str, connection: Connection, table: str, record: TableRecord, version: int, commands: Collection[str]
) -> _Fold:
    """Return the fold of `table`, a quoted name, at `version`. `name`: the sink's in errors. Raises `SinkRejected`.

    `commands`: the ids of the backfills that are complete.
    """
    complete = f"{COMMIT_VERSION} <= {version}"
    listed = ", ".join(f"'{kind}'" for kind in (*_INSERTS, *_DELETES, GAP))
    if connection.query(f"SELECT 1 FROM {table} WHERE {complete} AND {CHANGE_TYPE} NOT IN ({listed}) LIMIT 1"):
        reason = f"{record.table} has rows of another change type than Delta defines, so it has no fold"
        raise SinkRejected(name, reason, "It cannot be verified.")
    # A table that took the place of another one has versions of its own. One that was replaced under the same log goes
    # on, and has no snapshot.
    table_id = record.app_id.rpartition("/")[2].replace("'", "''")
    scope = f"{TABLE_ID} = '{table_id}' AND {complete}"
    tasks = {gap_task(command) for command in commands}
    if _snapshot(connection, f"{table} WHERE {scope}", tasks) is None:
        scope = complete
    rows = f"{table} WHERE {scope}"
    begin, snapshot = _snapshot(connection, rows, tasks) or (-1, _SNAPSHOT)
    lost = _last(connection, rows, _LOSS)
    changes = f"{COMMIT_VERSION} > {max(begin, lost)} AND {TASK} < {SNAPSHOT_TASKS}"
    folded = f"{scope} AND (({changes}) OR ({lost} <= {begin} AND {COMMIT_VERSION} = {begin} AND {snapshot}))"
    inserted, deleted = (", ".join(f"'{kind}'" for kind in kinds) for kinds in (_INSERTS, _DELETES))
    return _Fold(f"{folded} AND {CHANGE_TYPE} IN ({inserted})", f"{folded} AND {CHANGE_TYPE} IN ({deleted})")


def _snapshot(connection: Connection, rows: str, tasks: Collection[int]) -> tuple[int, str] | None:
    """Return the version of the last snapshot among `rows`, and the condition of its rows; None: there is none.

    `tasks`: the task numbers of the gaps before snapshots that are complete.
    """
    usual = _last(connection, rows, _SNAPSHOT)
    gaps = connection.query(f"SELECT {COMMIT_VERSION}, {TASK} FROM {rows} AND {_ANNOUNCED}")
    ordered = max((int(version) for version, task in gaps if task in tasks), default=-1)
    if ordered <= usual:
        return None if usual < 0 else (usual, _SNAPSHOT)
    # A backfill of the same version, perhaps with a condition, has rows of the snapshot: the snapshot has the most.
    first = f"{TASK} - {TASK} % {TASKS}"
    ranges = connection.query(
        f"SELECT {first} FROM {rows} AND {COMMIT_VERSION} = {ordered} AND {TASK} >= {SNAPSHOT_TASKS} "
        f"GROUP BY {first} ORDER BY COUNT(*) DESC LIMIT 1"
    )
    begin = int(ranges[0][0]) if ranges else SNAPSHOT_TASKS  # the snapshot of an empty table has no rows
    return ordered, f"{TASK} BETWEEN {begin} AND {begin + TASKS - 1}"


def _last(connection: Connection, rows: str, condition: str) -> int:
    """Return the last version of the `rows` that fulfil a condition; -1: there are none."""
    ((version,),) = connection.query(f"SELECT max({COMMIT_VERSION}) FROM {rows} AND {condition}")
    return -1 if version is None else int(version)


@dataclass(frozen=True, slots=True)
class _MirrorState:
    """One state of a table: its version, and the progress of the stream that filled it last.

    `target`: of a mirror; `fold`: of a log.
    """

    record: TableRecord
    version: int
    progress: Entry | None
    target: Mirror | None = None
    fold: _Fold | None = None


class _SqlRepair(MirrorRepair):
    """A `tailer.sink.MirrorRepair` of the mirror that was read as `state`. Its `rows` wait in temporary tables.

    One transaction replaces rows by those of the source. It locks the pipeline's progress, and does nothing if that is
    another one than when the mirror was read. Whoever else writes to the table waits. So the rows of a key are those of
    the version at which the table is, and what the pipeline commits next is applied to them.

    `release`: ends the transaction that reads the mirror. A change of the columns waits for that, with the lock for
    which `commit` waits. `time_us`: of the version; None: not known, so that of the repair takes its place.
    """

    def __init__(
        self,
        stream: Stream,
        state: _MirrorState,
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
        self._stream.bad_values.load_compared(place, _conformed(rows, self._rows))

    @override
    def commit(self) -> bool:
        connection, stream, record, target = self._connection, self._stream, self._state.record, self._state.target
        records, removed, added = stream.records, quoted(_REMOVED), quoted(_ADDED)
        assert target is not None, "a log has no key"
        self._release()
        for table in (removed, added):
            stream.dialect.analyze(connection, table, self._keys.names)
        try:
            with limited(connection, stream.timeout_s), connection.transaction():
                records.hold(connection, record.app_id, self._state.progress)
                connection.lock(stream.dialect.name_of(record.table))
                # Whatever the progress is, the table may be another one, or at another version.
                is_same = records.table(connection, record.table) == record
                if not is_same or records.version(connection, record.table) != self._state.version:
                    return False
                with held(stream.name, connection, stream.dialect, target.table, target.existing, (), is_new=False):
                    version, time_us = self._state.version, self._time_us
                    target.repair(connection, removed, added, self._rows.names, version, time_us)
        except SinkFenced:
            return False
        except UniqueViolationError as error:
            reason = f"the source has a key twice; the key of {record.table} is {', '.join(record.key)}"
            remedy = "Set key to columns whose values are unique in the source, and run "
            raise SinkRejected(stream.name, reason, f"{remedy}`tailer resnapshot PIPELINE`.") from error
        return True


def _conformed(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of `schema` of `rows` of the source, with its types, where these have all values.

    A column that the source has no longer is null.
    """
    names = set(rows.schema.names)
    columns = [rows.column(field.name) if field.name in names else pa.nulls(len(rows), field.type) for field in schema]
    return pa.record_batch(list(map(cast_or_kept, columns, schema.types)), schema.names)


class SqlMirrorRows(MirrorRows):
    """A `tailer.sink.MirrorRows`, by two connections.

    `mirror` is in a transaction that reads one state, `state`, until `release`. `scratch` has temporary tables.
    """

    def __init__(
        self,
        stream: Stream,
        state: _MirrorState,
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
        self._scratch.execute(f"{self._dialect.emptying} {quoted(_COMPARED)}")
        place = Place(connection=self._scratch, table=quoted(_COMPARED), schema=self._schema, key=self.key)
        self._stream.bad_values.load_compared(place, _conformed(rows, self._schema))
        yield from self._texts(self._scratch, quoted(_COMPARED))

    @override
    def stored_keys(self, rows: pa.RecordBatch) -> pa.Table:
        numbers = pa.array(range(len(rows)), pa.int64())
        numbered = pa.record_batch([numbers, *map(rows.column, self.key)], [_NUMBER, *self.key])
        self._scratch.execute(f"{self._dialect.emptying} {quoted(_KEYS)}")
        # A key that the database cannot hold is null here, and no row has it.
        place = Place(connection=self._scratch, table=quoted(_KEYS), schema=self._keys)
        self._stream.bad_values.load(place, _conformed(numbered, self._keys))
        keys = self._keys.remove(0)
        query = f"SELECT {column_list(self.key)} FROM {quoted(_KEYS)} ORDER BY {_NUMBER}"
        return pa.Table.from_batches(self._scratch.texts(query, keys))

    @override
    def begin_repair(self) -> _SqlRepair:
        if self.version != self._state.version:
            reason = f"version {self.version} of {self._state.record.table} is one of the past, which no repair changes"
            raise SinkRejected(self._stream.name, reason, "Repair the newest version.")
        return _SqlRepair(self._stream, self._state, self._schema, self._scratch, self._release, self._time_us)

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
        with limited(mirror, stream.timeout_s):  # it waits where columns are changed
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
            state = _MirrorState(record, newest, progress, target)
        else:
            commands = records.complete_backfills(mirror, pipeline)
            fold = _fold_of(stream.name, mirror, dialect.name_of(target.table), record, newest, commands)
            state = _MirrorState(record, newest, progress, fold=fold)
        yield SqlMirrorRows(stream, state, newest if version is None else version, mirror, scratch, reading.close)
