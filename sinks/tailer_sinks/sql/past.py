"""Mirrors that keep rows of the past: deleted rows with a mark, or each state of a row.

Of the rows of a key, at most one is live: the live rows are the mirror, and changes are checked against them alone. The
table has columns of its own, which say until when a row was live. No snapshot makes it again, so what it has no room
for is refused.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from tailer.errors import SinkRejected
from tailer.events import COMMIT_TIMESTAMP, COMMIT_VERSION, ChangeBatch
from tailer_sinks.mirrors import (
    ANOTHER_TABLE,
    DELETED_AT,
    DELETED_VERSION,
    VALID_FROM,
    VALID_FROM_VERSION,
    VALID_TO,
    VALID_TO_VERSION,
)
from tailer_sinks.sql.databases.dialect import Columns, Connection, column_list, quoted
from tailer_sinks.sql.mirror import IS_INSERT, Mirror
from tailer_sinks.sql.target import Rows, insert

__all__ = ["History", "MarkedMirror"]

_MOMENT: Final = pa.timestamp("us", "UTC")
# Of a change among those of its key: the kinds of the one before, of the next one, and of the one after that.
_BEFORE: Final = "lake_tailer_before"
_AFTER: Final = "lake_tailer_after"
_THIRD: Final = "lake_tailer_third"
# The time of the version of a change, and the version of the next change of the key, and its time.
_TIME: Final = "lake_tailer_time"
_NEXT_VERSION: Final = "lake_tailer_next_version"
_NEXT_TIME: Final = "lake_tailer_next_time"
_IS_MARKED: Final = f"{quoted(DELETED_VERSION)} IS NOT NULL"
_DROPPED: Final = b"lake_tailer.dropped"  # in the metadata of a column that the source has no longer
_FROM: Final = quoted(VALID_FROM_VERSION)
_TO: Final = quoted(VALID_TO_VERSION)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FACTS: Final = (  # of rows that wait
    pa.field(COMMIT_TIMESTAMP, _MOMENT),
    pa.field(COMMIT_VERSION, pa.int64()),
    pa.field(IS_INSERT, pa.int16()),
)


class _KeptMirror(Mirror):
    """The base of these mirrors; see `Mirror`. `is_live`: the condition of a row that is live."""

    keeps_rows = True
    is_live: ClassVar[str]
    indexed: ClassVar[tuple[str, str, str]]  # the kind and the name of the index of keys, and the condition of its rows

    @property
    @override
    def rows_now(self) -> str:
        return f"(SELECT * FROM {super().rows_now} WHERE {self.is_live}) AS live"

    @override
    def faults(self, schema: pa.Schema) -> Iterator[SinkRejected]:
        yield from self._name_faults(schema)
        yield from super().faults(schema)

    @override
    def start(self, schema: pa.Schema) -> pa.Schema:
        return pa.schema([*super().start(schema), *self.own])

    @override
    def change(self, shape: pa.Schema, after: pa.Schema, origins: Mapping[str, str] | None) -> Columns:
        for fault in self._name_faults(after):
            raise fault
        self._plain(after)  # the next step for types and names is not another table
        try:
            change = super().change(self.columns_of(shape), after, origins)
        except SinkRejected as error:
            raise SinkRejected(self._name, error.reason, ANOTHER_TABLE) from error
        if change.emptied:
            reason = f"columns {', '.join(change.emptied)} of {self.table} have another type, and it keeps its rows"
            raise SinkRejected(self._name, reason, ANOTHER_TABLE)
        return replace(change, after=pa.schema([*change.after, *self.own]))

    def _name_faults(self, schema: pa.Schema) -> Iterator[SinkRejected]:
        own = {field.name for field in self.own}
        for name in schema.names:
            if name.lower() in own:
                reason = f"column {name} has the name of a column that the sink adds"
                yield SinkRejected(self._name, reason, "Give it another name with select.")

    @override
    def staging(self, shape: pa.Schema, schema: pa.Schema) -> pa.Schema:
        return pa.schema([*(field.remove_metadata() for field in self.columns_of(shape)), *_FACTS])

    @override
    def staged(self, batches: Sequence[ChangeBatch], staging: pa.Schema, rows: Rows) -> list[pa.RecordBatch]:
        """The first row of a version has its time, for all of them: it would be the dearest value of a row."""
        parts = []
        for part in super().staged(batches, staging, rows):  # in the order of versions
            versions, index = part.column(COMMIT_VERSION), part.schema.get_field_index(COMMIT_TIMESTAMP)
            is_other = pc.not_equal(versions.slice(1), versions.slice(0, len(part) - 1))
            begins = pa.concat_arrays([pa.array([True]), is_other])
            parts.append(part.filter(begins))
            if len(others := part.filter(pc.invert(begins))):
                parts.append(others.set_column(index, part.schema.field(index), pa.nulls(len(others), _MOMENT)))
        return parts

    @override
    def merge(self, connection: Connection, waiting: str, staging: pa.Schema, rows: Rows) -> None:
        """The rows of a snapshot come before all others, and are those of a version."""
        if rows.versions is None:
            return
        first, last = rows.versions
        columns = pa.schema(list(staging)[: -len(_FACTS)])
        if not rows.replace:
            self.merge_changes(connection, waiting, columns, rows)
            return
        version = quoted(COMMIT_VERSION)
        self.merge_snapshot(connection, f"{waiting} WHERE {version} = {first}", columns, rows, first)
        if first < last:
            later = f"(SELECT * FROM {waiting} WHERE {version} > {first}) AS later"
            self.merge_changes(connection, later, columns, Rows((first + 1, last), rows.deletes))

    @abstractmethod
    def merge_changes(self, connection: Connection, waiting: str, columns: pa.Schema, rows: Rows) -> None:
        """Bring changes into the table. `waiting`: what follows FROM; `columns`: those of the source."""

    @abstractmethod
    def merge_snapshot(self, connection: Connection, source: str, columns: pa.Schema, rows: Rows, version: int) -> None:
        """Bring all rows of `version` into the table. `source`: what follows FROM, up to a condition."""

    def columns_of(self, shape: pa.Schema) -> pa.Schema:
        """Return the columns of the source, of those of the table."""
        own = {field.name for field in self.own}
        return pa.schema([field for field in shape if field.name not in own])

    @override
    def index(self) -> str:
        kind, name, condition = self.indexed
        name = f"lake_tailer_{name}_{sha256(self.table.encode()).hexdigest()[:16]}"
        table, key = self._dialect.name_of(self.table), column_list(self.key)
        return f"CREATE {kind}INDEX {quoted(name)} ON {table} ({key}) WHERE {condition}"

    @property
    def same_key(self) -> str:
        """Return the condition that rows of the table, `kept`, and of others, `taken`, have the same key."""
        return " AND ".join(f"kept.{quoted(column)} = taken.{quoted(column)}" for column in self.key)

    def in_turn(self, waiting: str, rows: Rows) -> str:
        """Return changes that wait, if they are of several versions with what comes before and after each.

        That follows FROM, as `waiting` does.
        """
        if not (rows.several and rows.deletes):
            return waiting
        is_insert, version = quoted(IS_INSERT), quoted(COMMIT_VERSION)
        window = f"OVER (PARTITION BY {column_list(self.key)} ORDER BY {version}, {is_insert})"
        return (
            f"(SELECT *, lag({is_insert}) {window} AS {_BEFORE}, lead({is_insert}) {window} AS {_AFTER}, "
            f"lead({is_insert}, 2) {window} AS {_THIRD}, lead({version}) {window} AS {_NEXT_VERSION} "
            f"FROM {waiting}) AS changes"
        )

    def timed(self, waiting: str, changes: str, rows: Rows) -> str:
        """Return `changes` of those that are `waiting` with the times of their versions, and of the next ones."""
        version, moment = quoted(COMMIT_VERSION), f"max({quoted(COMMIT_TIMESTAMP)})"
        if not rows.several:
            return f"(SELECT *, (SELECT {moment} FROM {waiting}) AS {_TIME} FROM {changes}) AS timed"
        times = f"(SELECT {version} AS version, {moment} AS moment FROM {waiting} GROUP BY {version})"
        selected = f"plain.*, own.moment AS {_TIME}"
        joined = f"(SELECT * FROM {changes}) AS plain JOIN {times} AS own ON own.version = plain.{version}"
        if rows.deletes:
            selected += f", later.moment AS {_NEXT_TIME}"
            joined += f" LEFT JOIN {times} AS later ON later.version = plain.{_NEXT_VERSION}"
        return f"(SELECT {selected} FROM {joined}) AS timed"

    def snapshot_time(self, source: str, rows: Rows) -> str:
        """Return the time of the snapshot whose rows are `source`; without rows, that of the decision to take it."""
        _, moment_us = rows.began or (0, 0)
        return f"COALESCE((SELECT max({quoted(COMMIT_TIMESTAMP)}) FROM {source}), {self.moment(moment_us)})"

    def moment(self, moment_us: int) -> str:
        """Return the expression of a time, in microseconds since 1970."""
        moment = _EPOCH + timedelta(microseconds=moment_us)
        text = moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
        return f"CAST('{text}' AS {self._dialect.type_of(_MOMENT)})"


class MarkedMirror(_KeptMirror):
    """A mirror that marks deleted rows: they stay, with their values, the version that deleted them, and its time.

    A row whose key comes again takes the place of the marked one. A snapshot marks the live rows that it lacks.
    """

    mode = "mark"
    own = (pa.field(DELETED_VERSION, pa.int64()), pa.field(DELETED_AT, _MOMENT))
    is_live = f"{quoted(DELETED_VERSION)} IS NULL"
    indexed = "", "marked", _IS_MARKED

    @override
    def rows_of(self, version: int, *, is_newest: bool) -> str:
        return self.is_live

    @override
    def repair(
        self, connection: Connection, removed: str, added: str, names: Sequence[str], version: int, time_us: int
    ) -> None:
        """A row that is added takes the place of a marked one."""
        self._remove(connection, self.is_live, removed)
        self._remove(connection, _IS_MARKED, added)
        insert(connection, self._dialect, self.table, names, self.key, added)

    @override
    def merge_changes(self, connection: Connection, waiting: str, columns: pa.Schema, rows: Rows) -> None:
        """Rows that others replace are deleted, and those that only go are marked."""
        key, changes = column_list(self.key), self.in_turn(waiting, rows)
        deleted, inserted = f"{quoted(IS_INSERT)} = 0", f"{quoted(IS_INSERT)} = 1"
        replaced, alone = f"({key}) IN (SELECT {key} FROM {waiting} WHERE {inserted})", "1 = 1"
        marks = dict.fromkeys((field.name for field in self.own), "NULL")
        if rows.several and rows.deletes:
            deleted += f" AND {_BEFORE} IS NULL"
            replaced, alone = f"{_AFTER} IS NOT NULL", f"{_AFTER} IS NULL"
            inserted += f" AND {_THIRD} IS NULL"  # the last one, or one that only a delete follows
            marks = {DELETED_VERSION: _NEXT_VERSION, DELETED_AT: _NEXT_TIME}
        gone, come = self.counts(connection, changes, rows, deleted, inserted)
        if gone:
            done = self._remove(connection, self.is_live, f"{changes} WHERE {deleted} AND {replaced}") if come else 0
            if done < gone:
                source = self.timed(waiting, f"{changes} WHERE {deleted} AND {alone}", rows)
                done += connection.execute(
                    f"UPDATE {self._dialect.name_of(self.table)} AS kept SET {quoted(DELETED_VERSION)} = "
                    f"taken.{quoted(COMMIT_VERSION)}, {quoted(DELETED_AT)} = taken.{_TIME} "
                    f"FROM (SELECT * FROM {source}) AS taken WHERE kept.{self.is_live} AND {self.same_key}"
                )
            if done != gone:
                raise self.not_there(rows, gone, done)
        source = f"{changes} WHERE {inserted}"
        if rows.several and rows.deletes:
            source = self.timed(waiting, source, rows)
        if come:
            self._take_in(connection, source, columns.names, marks, rows)

    def _remove(self, connection: Connection, condition: str, source: str) -> int:
        """Delete the rows with a condition whose keys are those of a source."""
        table, key = self._dialect.name_of(self.table), column_list(self.key)
        return connection.execute(f"DELETE FROM {table} WHERE {condition} AND ({key}) IN (SELECT {key} FROM {source})")

    def _take_in(
        self, connection: Connection, source: str, names: Sequence[str], marks: Mapping[str, str], rows: Rows
    ) -> None:
        """Insert rows whose keys are marked, or not there."""
        if connection.query(f"SELECT 1 FROM {self._dialect.name_of(self.table)} WHERE {_IS_MARKED} LIMIT 1"):
            self._remove(connection, _IS_MARKED, source)
        self.insert(connection, source, names, rows, marks)

    @override
    def merge_snapshot(self, connection: Connection, source: str, columns: pa.Schema, rows: Rows, version: int) -> None:
        table, moment = self._dialect.name_of(self.table), self.snapshot_time(source, rows)
        self._remove(connection, "1 = 1", source)
        connection.execute(
            f"UPDATE {table} SET {quoted(DELETED_VERSION)} = {version}, {quoted(DELETED_AT)} = {moment} "
            f"WHERE {self.is_live}"
        )
        self._take_in(connection, source, columns.names, {}, rows)


class History(_KeptMirror):
    """Each state of a row, with the version that began it and the one that ended it, and their times.

    A state holds for the versions from the first one on, until before the second one. The open states, which have no
    end, are the mirror. So the states that hold at a version are the rows of the source at that version, from the first
    version on that the table knows: that of the last snapshot, or else the first one of all.

    A column that is dropped stays, for the states from before. One that is renamed is renamed in all states.
    """

    mode = "history"
    own = (
        pa.field(VALID_FROM_VERSION, pa.int64()),
        pa.field(VALID_FROM, _MOMENT),
        pa.field(VALID_TO_VERSION, pa.int64()),
        pa.field(VALID_TO, _MOMENT),
    )
    is_live = among = f"{_TO} IS NULL"
    indexed = "UNIQUE ", "open", is_live

    @override
    def constraint(self) -> str:
        return f"PRIMARY KEY ({column_list([*self.key, VALID_FROM_VERSION])})"

    @override
    def change(self, shape: pa.Schema, after: pa.Schema, origins: Mapping[str, str] | None) -> Columns:
        change = super().change(shape, after, origins)
        dropped = [shape.field(name).with_metadata({_DROPPED: b""}) for name in change.dropped]
        dropped += [field for field in shape if _DROPPED in (field.metadata or {})]
        folded = {self._dialect.folded(field.name) for field in dropped}
        if again := sorted(name for name in after.names if self._dialect.folded(name) in folded):
            reason = (
                f"{self.table} keeps columns {', '.join(again)}, which were dropped, and others have their names now"
            )
            raise SinkRejected(self._name, reason, ANOTHER_TABLE)
        return replace(change, after=pa.schema([*change.after, *dropped]), dropped=())

    @override
    def columns_of(self, shape: pa.Schema) -> pa.Schema:
        return pa.schema([field for field in super().columns_of(shape) if _DROPPED not in (field.metadata or {})])

    @override
    def rows_of(self, version: int, *, is_newest: bool) -> str:
        """Of the newest version, open states are its rows, whenever they began: whoever changed that is found out."""
        if is_newest:
            return f"({_TO} IS NULL OR ({_FROM} <= {version} AND {_TO} > {version}))"
        return f"{_FROM} <= {version} AND ({_TO} IS NULL OR {_TO} > {version})"

    @override
    def repair(
        self, connection: Connection, removed: str, added: str, names: Sequence[str], version: int, time_us: int
    ) -> None:
        """The states that hold end in this version, and others begin there: those of the past are as they were."""
        table, key, moment = self._dialect.name_of(self.table), column_list(self.key), self.moment(time_us)
        differ = f"({key}) IN (SELECT {key} FROM {removed})"
        connection.execute(f"DELETE FROM {table} WHERE {_FROM} >= {version} AND {differ}")
        connection.execute(
            f"UPDATE {table} SET {_TO} = {version}, {quoted(VALID_TO)} = {moment} "
            f"WHERE ({self.is_live} OR {_TO} > {version}) AND {differ}"
        )
        begun = {VALID_FROM_VERSION: str(version), VALID_FROM: moment}
        insert(connection, self._dialect, self.table, names, self.key, added, values=begun, among=self.is_live)

    @override
    def merge_changes(self, connection: Connection, waiting: str, columns: pa.Schema, rows: Rows) -> None:
        table, key, changes = self._dialect.name_of(self.table), column_list(self.key), self.in_turn(waiting, rows)
        values = {VALID_FROM_VERSION: quoted(COMMIT_VERSION), VALID_FROM: _TIME}
        ended, begun = f"{quoted(IS_INSERT)} = 0", f"{quoted(IS_INSERT)} = 1"
        if rows.several and rows.deletes:
            ended += f" AND {_BEFORE} IS NULL"
            values |= {VALID_TO_VERSION: _NEXT_VERSION, VALID_TO: _NEXT_TIME}
            # A key that comes and goes must not have been open: its states here are none that an index compares.
            comes = f"{changes} WHERE {begun} AND {_BEFORE} IS NULL AND {_AFTER} IS NOT NULL"
            same = f"({key}) IN (SELECT {key} FROM {comes})"
            if connection.query(f"SELECT 1 FROM {table} WHERE {self.is_live} AND {same} LIMIT 1"):
                raise self.there_already(rows)
        (gone,) = self.counts(connection, changes, rows, ended) if rows.deletes else (0,)
        if gone:
            source, version = self.timed(waiting, f"{changes} WHERE {ended}", rows), f"taken.{quoted(COMMIT_VERSION)}"
            done = connection.execute(
                f"UPDATE {table} AS kept SET {_TO} = {version}, {quoted(VALID_TO)} = "
                f"taken.{_TIME} FROM (SELECT * FROM {source}) AS taken "
                f"WHERE kept.{self.is_live} AND kept.{_FROM} < {version} AND {self.same_key}"
            )
            if done != gone:
                raise self.not_there(rows, gone, done)
        source = self.timed(waiting, f"{changes} WHERE {begun}", rows)
        self.insert(connection, source, columns.names, rows, values)

    @override
    def merge_snapshot(self, connection: Connection, source: str, columns: pa.Schema, rows: Rows, version: int) -> None:
        """Open states that the snapshot lacks, or that differ, end; new and different ones begin."""
        table, key, moment = self._dialect.name_of(self.table), column_list(self.key), self.snapshot_time(source, rows)
        begun = {VALID_FROM_VERSION: str(version), VALID_FROM: moment}
        if not connection.query(f"SELECT 1 FROM {table} LIMIT 1"):
            self.insert(connection, source, columns.names, rows, begun)
            return
        if connection.query(f"SELECT 1 FROM {table} WHERE {_FROM} > {version} OR {_TO} > {version} LIMIT 1"):
            reason = f"{self.table} has states of later versions than {version}, of which a snapshot is"
            raise SinkRejected(self._name, reason, ANOTHER_TABLE)
        if connection.query(f"SELECT 1 FROM {source} GROUP BY {key} HAVING count(*) > 1 LIMIT 1"):
            raise self.there_already(rows)
        equal = " AND ".join([self.same_key, *map(self._equal, columns)])
        kept_key = ", ".join(f"kept.{quoted(column)}" for column in self.key)
        ended = (
            f"{self.is_live} AND ({key}) IN (SELECT {kept_key} FROM {table} AS kept "
            f"LEFT JOIN (SELECT * FROM {source}) AS taken ON {equal} "
            f"WHERE kept.{self.is_live} AND taken.{quoted(COMMIT_VERSION)} IS NULL)"
        )
        # A state of this version itself, which somebody has changed, has never been.
        connection.execute(f"DELETE FROM {table} WHERE {_FROM} = {version} AND {ended}")
        connection.execute(f"UPDATE {table} SET {_TO} = {version}, {quoted(VALID_TO)} = {moment} WHERE {ended}")
        fresh = (
            f"(SELECT taken.* FROM (SELECT * FROM {source}) AS taken LEFT JOIN {table} AS kept "
            f"ON {self.same_key} AND kept.{self.is_live} WHERE kept.{_FROM} IS NULL) AS fresh"
        )
        self.insert(connection, fresh, columns.names, rows, begun)

    def _equal(self, column: pa.Field) -> str:
        """Return the condition that two states have the same value of a column: 0.0 is another one than -0.0."""
        ours, theirs = f"taken.{quoted(column.name)}", f"kept.{quoted(column.name)}"
        same = f"{ours} = {theirs}"
        if pa.types.is_floating(column.type):
            text = self._dialect.signed_text
            same += f" AND ({ours} <> 0 OR {text(ours)} = {text(theirs)})"
        return f"({same} OR ({ours} IS NULL AND {theirs} IS NULL))"
