"""Dead letters: rows with a value that the database cannot hold, as JSON in the table `lake_tailer_dead_letters`.

They are written in the transaction that would have written the rows. Those of a log stay. Those of a mirror are the
rows of the source that the mirror lacks: as a row leaves the source, or gets values that fit, its letter goes.

Rows wait with four columns more: the text of the key, and what a dead letter has. A version deletes a key at most once,
and inserts it at most once, after that. So a delete is that of a dead letter if the change of its key before is one,
or else if the table of letters has its key. Mirrors merge what is left. Until there is a letter, rows need no text of
their key.
"""

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from tailer.events import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION
from tailer_sinks.sql.databases.dialect import (
    Connection,
    Dialect,
    UniqueViolationError,
    column_list,
    quoted,
)
from tailer_sinks.sql.target import insert

__all__ = ["DeadLetters", "with_letters"]

TABLE: Final = "lake_tailer_dead_letters"
KEY, COLUMN, REASON, ROW = (f"lake_tailer_{name}" for name in ("key", "column", "reason", "letter"))
_LETTER_FIELDS: Final = tuple(pa.field(name, pa.string()) for name in (KEY, COLUMN, REASON, ROW))
_COLUMNS: Final = (
    "table_name TEXT NOT NULL, row_key TEXT NOT NULL, version BIGINT NOT NULL, column_name TEXT NOT NULL, "
    "reason TEXT NOT NULL, row_json TEXT NOT NULL"
)
_NAMES: Final = ("table_name", "row_key", "version", "column_name", "reason", "row_json")
_IDENTITY: Final = ("table_name", "row_key")
_END: Final = ""  # the letter of a delete that ends one


def with_letters(staging: pa.Schema) -> pa.Schema:
    """Return the schema of rows that wait, with the columns for dead letters."""
    return pa.schema([*staging, *_LETTER_FIELDS])


class DeadLetters:
    """The dead letters of the table called `table`. All methods block, and work in the open transaction."""

    def __init__(self, dialect: Dialect, table: str) -> None:
        self._dialect = dialect
        self._table = table
        self._letters = dialect.name_of(TABLE)
        self._own = f"table_name = {_literal(table)}"

    def exist(self, connection: Connection) -> bool:
        """Return whether there are letters."""
        query = f"SELECT 1 FROM {self._letters} WHERE {self._own} LIMIT 1"
        return self._dialect.has_table(connection, TABLE) and bool(connection.query(query))

    def wait_in(self, connection: Connection, stored: str) -> bool:
        """Return whether there are letters among rows that wait in a table that stays."""
        query = f"SELECT 1 FROM {self._dialect.name_of(stored)} WHERE {quoted(ROW)} IS NOT NULL LIMIT 1"
        return bool(connection.query(query))

    def add_columns(self, connection: Connection, stored: str) -> None:
        """Let rows that wait in a table that stays have letters."""
        for field in _LETTER_FIELDS:
            connection.execute(f"ALTER TABLE {self._dialect.name_of(stored)} ADD COLUMN {quoted(field.name)} TEXT")

    def clear(self, connection: Connection) -> None:
        """Remove all letters: all rows of the table follow."""
        if self._dialect.has_table(connection, TABLE):
            connection.execute(f"DELETE FROM {self._letters} WHERE {self._own}")

    def take(self, connection: Connection, waiting: str, *, is_mirror: bool, has_times: bool) -> str:
        """Take the letters out of rows that wait, and what ends letters. Return the source of the other rows.

        `has_times`: whether one of the rows of a version has its time, which stays.
        Raises `UniqueViolationError` for a key that has a letter already, or gets a row beside it.
        """
        key, row, version, is_insert = map(quoted, (KEY, ROW, COMMIT_VERSION, CHANGE_TYPE))
        if not connection.query(f"SELECT 1 FROM {waiting} WHERE {key} IS NOT NULL LIMIT 1"):
            return waiting
        if not self._dialect.has_table(connection, TABLE):
            unique = f", PRIMARY KEY ({', '.join(_IDENTITY)})" if self._dialect.enforces_keys else ""
            connection.execute(f"CREATE TABLE {self._letters} ({_COLUMNS}{unique})")
        if not is_mirror:
            self._insert(connection, waiting, f"{row} IS NOT NULL")
            return _others(waiting)
        window = f"OVER (PARTITION BY {key} ORDER BY {version}, {is_insert})"
        changes = (
            f"(SELECT {key}, {version}, {is_insert}, {row}, lag({is_insert}) {window} AS before, "
            f"lag({row}) {window} AS letter_before, lead({is_insert}) {window} AS after FROM {waiting} "
            f"WHERE {key} IS NOT NULL) AS changes"
        )
        letters = f"SELECT row_key FROM {self._letters} WHERE {self._own}"
        ends = f"letter_before IS NOT NULL OR (before IS NULL AND {key} IN ({letters}))"
        ended = f"SELECT {key}, {version} FROM {changes} WHERE {is_insert} = 0 AND ({ends})"
        connection.execute(
            f"UPDATE {waiting} SET {row} = '{_END}' WHERE {is_insert} = 0 AND ({key}, {version}) IN ({ended})"
        )
        gone = f"SELECT {key} FROM {waiting} WHERE {row} = '{_END}'"
        connection.execute(f"DELETE FROM {self._letters} WHERE {self._own} AND row_key IN ({gone})")
        last = f"({key}, {version}) IN (SELECT {key}, {version} FROM {changes} WHERE {is_insert} = 1 AND after IS NULL)"
        self._insert(connection, waiting, f"{row} <> '{_END}' AND {last}")
        inserted = f"SELECT {key} FROM {waiting} WHERE {is_insert} = 1 AND {row} IS NULL AND {last}"
        if connection.query(f"SELECT 1 FROM {self._letters} WHERE {self._own} AND row_key IN ({inserted}) LIMIT 1"):
            raise UniqueViolationError
        if has_times:
            moment = quoted(COMMIT_TIMESTAMP)
            times = f"SELECT {version} AS timed_version, max({moment}) AS moment FROM {waiting} GROUP BY {version}"
            connection.execute(
                f"UPDATE {waiting} SET {moment} = times.moment FROM ({times}) AS times "
                f"WHERE {version} = times.timed_version AND {row} IS NULL"
            )
        return _others(waiting)

    def have_rows(self, connection: Connection, waiting: str, key: Sequence[str], rows: str) -> bool:
        """Return whether a letter that was taken has the key of one of the `rows` of the mirror, after their merge."""
        keys, row = column_list(key), quoted(ROW)
        taken = f"SELECT {quoted(KEY)} FROM {waiting} WHERE {row} <> '{_END}'"
        live = f"SELECT row_key FROM {self._letters} WHERE {self._own} AND row_key IN ({taken})"
        lettered = f"SELECT {keys} FROM {waiting} WHERE {row} <> '{_END}' AND {quoted(KEY)} IN ({live})"
        return bool(connection.query(f"SELECT 1 FROM {rows} WHERE ({keys}) IN ({lettered}) LIMIT 1"))

    def _insert(self, connection: Connection, waiting: str, chosen: str) -> None:
        names = (KEY, COMMIT_VERSION, COLUMN, REASON, ROW)
        values = ", ".join(f"{quoted(name)} AS {to}" for name, to in zip(names, _NAMES[1:], strict=True))
        source = f"(SELECT {_literal(self._table)} AS table_name, {values} FROM {waiting} WHERE {chosen}) AS letters"
        insert(connection, self._dialect, TABLE, _NAMES, _IDENTITY, source)


def _others(waiting: str) -> str:
    return f"(SELECT * FROM {waiting} WHERE {quoted(ROW)} IS NULL) AS others"


def _literal(text: str) -> str:
    doubled = text.replace("'", "''")
    return f"'{doubled}'"
