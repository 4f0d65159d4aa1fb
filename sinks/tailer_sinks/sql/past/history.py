"""A history: each state of a row, with the version that began it and the one that ended it, and their times.

A state holds for the versions from the first one on, until before the second one. The open states, which have no end,
are the mirror. So the states that hold at a version are the rows of the source at that version, from the first version
on that the table knows: that of the last snapshot, or else the first one of all.

A column that is dropped stays, for the states from before. One that is renamed is renamed in all states.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa
from typing_extensions import override

from tailer.errors import SinkRejected
from tailer.events import COMMIT_VERSION
from tailer_sinks.mirrors import ANOTHER_TABLE, VALID_FROM, VALID_FROM_VERSION, VALID_TO, VALID_TO_VERSION
from tailer_sinks.sql.databases.dialect import Columns, Connection, UniqueViolationError, column_list, quoted
from tailer_sinks.sql.mirror import IS_INSERT
from tailer_sinks.sql.past.kept import AFTER, BEFORE, MOMENT, NEXT_TIME, NEXT_VERSION, TIME, KeptMirror, time_text
from tailer_sinks.sql.target import Rows, insert

__all__ = ["History"]

_DROPPED: Final = b"lake_tailer.dropped"  # in the metadata of a column that the source has no longer
_FROM: Final = quoted(VALID_FROM_VERSION)
_TO: Final = quoted(VALID_TO_VERSION)


class History(KeptMirror):
    """See the module and `KeptMirror`."""

    mode = "history"
    own = (
        pa.field(VALID_FROM_VERSION, pa.int64()),
        pa.field(VALID_FROM, MOMENT),
        pa.field(VALID_TO_VERSION, pa.int64()),
        pa.field(VALID_TO, MOMENT),
    )
    is_live = f"{_TO} IS NULL"

    @override
    def constraint(self) -> str:
        return f"PRIMARY KEY ({column_list([*self.key, VALID_FROM_VERSION])})"

    @override
    def index(self) -> str:
        return self.partial_index("open", self.is_live, "UNIQUE ")

    @override
    def change(self, shape: pa.Schema, after: pa.Schema, origins: Mapping[str, str] | None) -> Columns:
        change = super().change(shape, after, origins)
        dropped = [shape.field(name).with_metadata({_DROPPED: b""}) for name in change.dropped]
        dropped += [field for field in shape if _is_dropped(field)]
        folded = {self._dialect.folded(field.name) for field in dropped}
        if again := sorted(name for name in after.names if self._dialect.folded(name) in folded):
            reason = (
                f"{self.table} keeps columns {', '.join(again)}, which were dropped, and others have their names now"
            )
            raise SinkRejected(self._name, reason, ANOTHER_TABLE)
        return replace(change, after=pa.schema([*change.after, *dropped]), dropped=())

    @override
    def columns_of(self, shape: pa.Schema) -> pa.Schema:
        return pa.schema([field for field in super().columns_of(shape) if not _is_dropped(field)])

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
        table, key = self._dialect.name_of(self.table), column_list(self.key)
        differ = f"({key}) IN (SELECT {key} FROM {removed})"
        moment = self.moment(time_text(time_us))
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
        values = {VALID_FROM_VERSION: quoted(COMMIT_VERSION), VALID_FROM: TIME}
        ended, begun = f"{quoted(IS_INSERT)} = 0", f"{quoted(IS_INSERT)} = 1"
        if rows.several and rows.deletes:
            ended += f" AND {BEFORE} IS NULL"
            values |= {VALID_TO_VERSION: NEXT_VERSION, VALID_TO: NEXT_TIME}
            # A key that comes and goes must not have been open: its states here are none that an index compares.
            comes = f"{changes} WHERE {begun} AND {BEFORE} IS NULL AND {AFTER} IS NOT NULL"
            same = f"({key}) IN (SELECT {key} FROM {comes})"
            if connection.query(f"SELECT 1 FROM {table} WHERE {self.is_live} AND {same} LIMIT 1"):
                raise self.contradiction(self.there_already(rows))
        (gone,) = self.counts(connection, changes, rows, ended) if rows.deletes else (0,)
        if gone:
            done = self._end(connection, self.timed(waiting, f"{changes} WHERE {ended}", rows))
            if done != gone:
                raise self.contradiction(self.not_there(rows, gone, done))
        self._insert(connection, self.timed(waiting, f"{changes} WHERE {begun}", rows), columns.names, values, rows)

    def _end(self, connection: Connection, source: str) -> int:
        version = f"taken.{quoted(COMMIT_VERSION)}"
        return connection.execute(
            f"UPDATE {self._dialect.name_of(self.table)} AS kept SET {_TO} = {version}, {quoted(VALID_TO)} = "
            f"taken.{TIME} FROM (SELECT * FROM {source}) AS taken "
            f"WHERE kept.{self.is_live} AND kept.{_FROM} < {version} AND {self.same_key}"
        )

    def _insert(
        self, connection: Connection, source: str, names: list[str], values: Mapping[str, str], rows: Rows
    ) -> None:
        try:
            insert(connection, self._dialect, self.table, names, self.key, source, values=values, among=self.is_live)
        except UniqueViolationError as error:
            raise self.contradiction(self.there_already(rows)) from error

    @override
    def merge_snapshot(self, connection: Connection, source: str, columns: pa.Schema, rows: Rows, version: int) -> None:
        """Open states that the snapshot lacks, or that differ, end; new and different ones begin."""
        table, key = self._dialect.name_of(self.table), column_list(self.key)
        moment = self.snapshot_time(source, rows)
        begun = {VALID_FROM_VERSION: str(version), VALID_FROM: moment}
        if not connection.query(f"SELECT 1 FROM {table} LIMIT 1"):
            self._insert(connection, source, columns.names, begun, rows)
            return
        if connection.query(f"SELECT 1 FROM {table} WHERE {_FROM} > {version} OR {_TO} > {version} LIMIT 1"):
            reason = f"{self.table} has states of later versions than {version}, of which a snapshot is"
            raise SinkRejected(self._name, reason, ANOTHER_TABLE)
        if connection.query(f"SELECT 1 FROM {source} GROUP BY {key} HAVING count(*) > 1 LIMIT 1"):
            raise self.contradiction(self.there_already(rows))
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
        self._insert(connection, self._new(source), columns.names, begun, rows)

    def _new(self, source: str) -> str:
        """Return the rows of a source whose keys are not open, which follows FROM."""
        table = self._dialect.name_of(self.table)
        return (
            f"(SELECT taken.* FROM (SELECT * FROM {source}) AS taken LEFT JOIN {table} AS kept "
            f"ON {self.same_key} AND kept.{self.is_live} WHERE kept.{_FROM} IS NULL) AS fresh"
        )

    def _equal(self, column: pa.Field) -> str:
        """Return the condition that two states have the same value of a column: 0.0 is another one than -0.0."""
        ours, theirs = f"taken.{quoted(column.name)}", f"kept.{quoted(column.name)}"
        same = f"{ours} = {theirs}"
        if pa.types.is_floating(column.type):
            text = self._dialect.signed_text
            same += f" AND ({ours} <> 0 OR {text(ours)} = {text(theirs)})"
        return f"({same} OR ({ours} IS NULL AND {theirs} IS NULL))"


def _is_dropped(column: pa.Field) -> bool:
    return _DROPPED in (column.metadata or {})
