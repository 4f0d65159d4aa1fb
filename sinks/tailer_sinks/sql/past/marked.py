"""A mirror that marks deleted rows: they stay, with their values, the version that deleted them, and its time.

A row whose key comes again takes the place of the marked one. A snapshot marks the live rows that it lacks.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa
from typing_extensions import override

from tailer.events import COMMIT_VERSION
from tailer_sinks.mirrors import DELETED_AT, DELETED_VERSION
from tailer_sinks.sql.databases.dialect import Connection, UniqueViolationError, column_list, quoted
from tailer_sinks.sql.mirror import IS_INSERT
from tailer_sinks.sql.past.kept import AFTER, BEFORE, MOMENT, NEXT_TIME, NEXT_VERSION, THIRD, TIME, KeptMirror
from tailer_sinks.sql.target import Rows, insert

__all__ = ["MarkedMirror"]

_IS_MARKED: Final = f"{quoted(DELETED_VERSION)} IS NOT NULL"


class MarkedMirror(KeptMirror):
    """See the module and `KeptMirror`."""

    mode = "mark"
    own = (pa.field(DELETED_VERSION, pa.int64()), pa.field(DELETED_AT, MOMENT))
    is_live = f"{quoted(DELETED_VERSION)} IS NULL"

    @override
    def index(self) -> str:
        return self.partial_index("marked", _IS_MARKED)

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
            deleted += f" AND {BEFORE} IS NULL"
            replaced, alone = f"{AFTER} IS NOT NULL", f"{AFTER} IS NULL"
            inserted += f" AND {THIRD} IS NULL"  # the last one, or one that only a delete follows
            marks = {DELETED_VERSION: NEXT_VERSION, DELETED_AT: NEXT_TIME}
        gone, come = self.counts(connection, changes, rows, deleted, inserted)
        if gone:
            done = self._remove(connection, self.is_live, f"{changes} WHERE {deleted} AND {replaced}") if come else 0
            if done < gone:
                done += self._mark(connection, self.timed(waiting, f"{changes} WHERE {deleted} AND {alone}", rows))
            if done != gone:
                raise self.contradiction(self.not_there(rows, gone, done))
        source = f"{changes} WHERE {inserted}"
        if rows.several and rows.deletes:
            source = self.timed(waiting, source, rows)
        if come:
            self._take_in(connection, source, columns.names, marks, rows)

    def _remove(self, connection: Connection, condition: str, source: str) -> int:
        """Delete the rows with a condition whose keys are those of a source."""
        table, key = self._dialect.name_of(self.table), column_list(self.key)
        return connection.execute(f"DELETE FROM {table} WHERE {condition} AND ({key}) IN (SELECT {key} FROM {source})")

    def _mark(self, connection: Connection, source: str) -> int:
        return connection.execute(
            f"UPDATE {self._dialect.name_of(self.table)} AS kept SET {quoted(DELETED_VERSION)} = "
            f"taken.{quoted(COMMIT_VERSION)}, {quoted(DELETED_AT)} = taken.{TIME} "
            f"FROM (SELECT * FROM {source}) AS taken WHERE kept.{self.is_live} AND {self.same_key}"
        )

    def _take_in(
        self, connection: Connection, source: str, names: Sequence[str], marks: Mapping[str, str], rows: Rows
    ) -> None:
        """Insert rows whose keys are marked, or not there."""
        if connection.query(f"SELECT 1 FROM {self._dialect.name_of(self.table)} WHERE {_IS_MARKED} LIMIT 1"):
            self._remove(connection, _IS_MARKED, source)
        try:
            insert(connection, self._dialect, self.table, names, self.key, source, values=marks)
        except UniqueViolationError as error:
            raise self.contradiction(self.there_already(rows)) from error

    @override
    def merge_snapshot(self, connection: Connection, source: str, columns: pa.Schema, rows: Rows, version: int) -> None:
        table, moment = self._dialect.name_of(self.table), self.snapshot_time(source, rows)
        self._remove(connection, "1 = 1", source)
        connection.execute(
            f"UPDATE {table} SET {quoted(DELETED_VERSION)} = {version}, {quoted(DELETED_AT)} = {moment} "
            f"WHERE {self.is_live}"
        )
        self._take_in(connection, source, columns.names, {}, rows)
