"""The rows of a mirror, rows of the source as it would hold them, to compare the two, and the repair of the mirror.

A version of a Delta table stays as it is, so the pipeline may go on meanwhile.
"""

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from typing_extensions import override

from tailer.changelog.spill import open_database, scratch_folder
from tailer.errors import SinkFenced, SinkRejected, SinkUnavailable, TailerError
from tailer.sink import MirrorRepair, MirrorRows, app_id_of, main_app_id, pipeline_of, stream_name
from tailer_sinks.delta.folder import TargetFolder
from tailer_sinks.delta.mirror.changes import Changes, Contradiction
from tailer_sinks.delta.mirror.keys import columns_name, key_in, key_name, known_from_name
from tailer_sinks.delta.mirror.past import STATES
from tailer_sinks.delta.mirror.stored_rows import StoredRows
from tailer_sinks.delta.mirror.table import MirrorStep, MirrorTable, all_valid
from tailer_sinks.delta.schema import partition_refusal
from tailer_sinks.delta.table import Anchor
from tailer_sinks.delta.target import delivered_name
from tailer_sinks.delta.txns import position_in
from tailer_sinks.delta.writes import rows_schema_of
from tailer_sinks.encoding.typed import conform
from tailer_sinks.mirrors import RESNAPSHOT, time_us_of

__all__ = ["check_goes_on", "open_rows"]

_Convert = Callable[[pa.RecordBatch], pa.RecordBatch]

_FIND: Final = "SELECT place, number FROM given JOIN removed ON {equal} ORDER BY place"


class DeltaRepair(MirrorRepair):
    """A `tailer.sink.MirrorRepair` of the mirror that was read as `anchor`. `key`: its columns that identify a row.

    One commit replaces rows by those of the source. It is made on top of the version that was compared, and fails if
    there is any other one since, so it replaces just the rows that were found. It has the progress that the table has
    already. It is a MERGE, as those of the pipeline, unless the table has a key twice, or without a value: then all
    rows are written again, without these. Where the mirror keeps deleted rows, or each state, rows end in the version
    that was compared, at its time. Where the source has no rows, the time of the repair takes its place.

    `conformed` gives rows of the source the types of the table, and `as_texts` turns rows into what is compared.
    `time_us`: of the version; None: not known.
    """

    def __init__(
        self,
        table: MirrorTable,
        anchor: Anchor,
        key: tuple[str, ...],
        conformed: _Convert,
        as_texts: _Convert,
        time_us: int | None,
    ) -> None:
        self._table = table
        self._anchor = anchor
        self._key = key
        self._conformed = conformed
        self._as_texts = as_texts
        assert anchor.expected is not None
        self._position = anchor.expected
        self._changes = Changes(table.name, table.past)
        self._changes.times.note(self._position.version, time_us or time.time_ns() // 1000)
        self._names = [f"key_{number}" for number in range(len(key))]
        self._folder = str(scratch_folder())
        self._database = open_database(self._folder)
        columns = ", ".join(f"{name} VARCHAR" for name in self._names)
        self._count = 0
        try:
            self._query(f"CREATE TABLE removed (number BIGINT, {columns})")
        except TailerError:
            self.close()
            raise

    @override
    def remove(self, keys: pa.RecordBatch) -> None:
        numbers = pa.array(range(self._count, self._count + len(keys)), pa.int64())
        rows = pa.table([numbers, *keys.columns], ["number", *self._names])
        self._query("INSERT INTO removed SELECT * FROM given", rows)
        self._count += len(keys)

    @override
    def add(self, rows: pa.RecordBatch) -> None:
        kept = self._conformed(rows)
        if (refusal := partition_refusal(kept, self._anchor.partition_by)) is not None:
            raise SinkRejected(self._table.name, refusal, "Partition the target by another column.")
        self._take(kept, kept, inserted=True)

    @override
    def commit(self) -> bool:
        """Return False, too, if anybody else has changed the table since it was read."""
        table, anchor = self._table, self._anchor
        try:
            exact = self._find_removed()
            self._changes.reduce()
            table.apply(anchor, MirrorStep(position=self._position, key=self._key, exact=exact), self._changes)
        except Contradiction as twice:
            reason = f"the source has a key twice; the key of {table.path} is {', '.join(self._key)}"
            remedy = f"Set key to columns whose values are unique. {RESNAPSHOT}"
            raise SinkRejected(table.name, reason, remedy) from twice
        except SinkFenced:
            return False
        except SinkUnavailable:
            if table.is_newest(anchor):
                raise
            return False
        return True

    def close(self) -> None:
        """Release memory and files."""
        self._changes.close()
        self._database.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _find_removed(self) -> bool:
        """Delete the removed keys that the table has. Return whether it has each of them once, with a value."""
        exact, is_there = True, bytearray(self._count)
        equal = " AND ".join(f"given.{name} IS NOT DISTINCT FROM removed.{name}" for name in self._names)
        table = self._table
        for keys in table.rows(self._anchor, self._key, table.past.is_open()):
            places = pa.array(range(len(keys)), pa.int64())
            texts = pa.table([places, *self._as_texts(keys).columns], ["place", *self._names])
            first: list[int] = []
            for place, number in self._query(_FIND.format(equal=equal), texts):
                if not is_there[number]:
                    first.append(place)
                exact, is_there[number] = exact and not is_there[number], 1
            rows = keys.take(pa.array(first, pa.int64()))
            if any(column.null_count for column in rows.columns):
                exact = False
                rows = rows.filter(all_valid(rows))
            if len(rows):
                self._take(conform(rows, table.past.source(self._anchor.schema)), rows, inserted=False)
        return exact

    def _query(self, statement: str, given: pa.Table | None = None) -> list[tuple[Any, ...]]:
        if given is not None:
            self._database.register("given", given)
        try:
            return self._database.execute(statement).fetchall()
        except Exception as error:
            raise self._changes.failure(error) from error

    def _take(self, rows: pa.RecordBatch, keys: pa.RecordBatch, *, inserted: bool) -> None:
        version = pa.repeat(pa.scalar(self._position.version, pa.int64()), len(rows))
        self._changes.add(rows, [keys.column(column) for column in self._key], version, inserted=inserted)


class DeltaMirrorRows(MirrorRows):
    """A `tailer.sink.MirrorRows` of the state `anchor` of a table. `keys`: that of the options, and the source's.

    `version`: of a history, the rows as of this version; None: the newest. `columns` are those of all its versions.
    """

    def __init__(
        self, table: MirrorTable, anchor: Anchor, keys: tuple[Sequence[str], Sequence[str]], version: int | None
    ) -> None:
        assert anchor.expected is not None
        past, newest = table.past, anchor.expected.version
        schema = past.source(anchor.schema)
        known_from = table.number(anchor, known_from_name) if past is STATES else None
        self.app_id = anchor.app_id
        self.known_from = newest if known_from is None else known_from
        self.version = newest if version is None else version
        if not self.known_from <= self.version <= newest:
            reason = f"{table.path} has the history of versions {self.known_from} to {newest}, and not {self.version}"
            raise SinkRejected(table.name, reason, "Choose one of these versions.")
        self.columns = tuple(schema.names)
        self.columns_at = newest if past is STATES else None
        self.key = key_in(table.name, table.path, schema, *keys)
        table.check_same_key(anchor, self.key)
        self._table = table
        self._anchor = anchor
        self._repair: DeltaRepair | None = None
        self._time_us: int | None = None  # of the version of the source
        self._stored = StoredRows(table.name, table.path, schema, lacks_columns=past is STATES)
        self._condition = past.is_open() if version is None else past.holds_at(version)

    @override
    def rows(self) -> Iterator[pa.RecordBatch]:
        try:
            for rows in self._table.rows(self._anchor, self.columns, self._condition):
                yield self._stored.texts(rows)
        except SinkUnavailable as error:
            if not isinstance(error.__cause__, FileNotFoundError) and "not found" not in error.reason.lower():
                raise
            reason = f"files of {self._table.path} were removed while it was read, such as by VACUUM: {error.reason}"
            raise SinkRejected(self._table.name, reason, "Run `tailer verify` again.") from error

    def deleted_rows(self) -> Iterator[pa.RecordBatch]:
        """Yield nothing: rows that are deleted are no rows of the source."""
        return iter(())

    @override
    def as_stored(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Raises `SinkRejected` also where a column has another type in the table."""
        self._time_us = time_us_of(rows) or self._time_us
        yield self._stored(rows)

    @override
    def stored_keys(self, rows: pa.RecordBatch) -> pa.Table:
        """Raises `SinkRejected` for a null: no MERGE could repair that row."""
        keys = self._stored.conformed(rows).select(self.key)
        if nulls := [column for column in self.key if keys.column(column).null_count]:
            reason = f"the key column {nulls[0]} is null in the source"
            raise SinkRejected(self._table.name, reason, "Set key to columns that are never null.")
        return pa.Table.from_batches([self._stored.texts(keys)])

    @override
    def begin_repair(self) -> DeltaRepair:
        stored = self._stored
        self._repair = DeltaRepair(self._table, self._anchor, self.key, stored.conformed, stored.texts, self._time_us)
        return self._repair

    def close(self) -> None:
        """Release what a repair holds."""
        if self._repair is not None:
            self._repair.close()


def open_rows(
    table: MirrorTable, pipeline: str, keys: tuple[Sequence[str], Sequence[str]], version: int | None
) -> DeltaMirrorRows:
    """Open the newest version of the mirror of `pipeline`, or of a history, its rows as of `version`.

    Raises as entering `Sink.open_mirror` does.
    """
    folder = table.folder
    login = folder.login()
    delta_table, app_id = folder.open(login), None
    if delta_table is not None:
        with folder.reading():
            table.check_target(delta_table, app_id_of(pipeline, ""))
        app_id = _last_stream(folder, delta_table.version(), pipeline)
    position = None
    if delta_table is not None and app_id is not None:
        with folder.reading():
            table.check_target(delta_table, app_id)
            position = position_in(delta_table, app_id)
    if delta_table is None or app_id is None or position is None:
        remedy = "Wait until its pipeline has delivered one: see `tailer status`."
        folder.reject(f"the table {table.path} has no version yet", remedy)
    schema, columns = rows_schema_of(delta_table.schema()), delta_table.metadata().partition_columns
    anchor = Anchor(app_id, position, schema, columns, delta_table, delta_table.version(), login=login)
    return DeltaMirrorRows(table, anchor, keys, version)


def check_goes_on(table: MirrorTable, anchor: Anchor, first: int) -> None:
    """Refuse the first commit of a stream into a history that has the version `first`, with which the rows begin.

    An ordered snapshot may be one of the last version of the same table.
    """
    if anchor.table is None:
        return
    last = _last_stream(table.folder, anchor.table.version(), pipeline_of(main_app_id(anchor.app_id)))
    position = None if last is None else position_in(anchor.table, last)
    is_same = last == main_app_id(anchor.app_id)
    if position is not None and first < position.version + (not is_same):
        whose = "a history" if is_same else "the history of another table"
        reason = f"{table.path} has {whose} up to version {position.version}, and version {first} follows"
        raise SinkRejected(table.name, reason, "Choose a new path.")


def _last_stream(folder: TargetFolder, newest: int, pipeline: str) -> str | None:
    """Return the app id under which `pipeline` has committed last: its table may have had several ids."""
    ours = (
        stream_name(f"{pipeline}/"),
        *(name_of(pipeline) for name_of in (delivered_name, key_name, columns_name, known_from_name)),
    )
    for version in range(newest, -1, -1):
        names = folder.transactions(version)
        if names is None:
            reason = "its log no longer has the last commit of the pipeline, which says what it mirrors"
            folder.reject(reason, "Let the pipeline deliver a later version first.")
        for name in names:
            app_id = main_app_id(name)
            if pipeline_of(app_id) == pipeline and name not in ours:
                return app_id
    return None
