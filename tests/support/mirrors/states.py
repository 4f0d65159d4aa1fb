"""A table whose rows and columns change, and what is planted in its history: gaps, overlaps, wrong ends, other values.

Each row that is changed has a key of its own, so all differences are planted at once, and each is known by its key.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
from deltalake import write_deltalake

from tests.support.mirrors.databases import Database, PostgresDatabase, SqliteDatabase
from tests.support.mirrors.delta import mirror_rows
from tests.support.tables.mapped import MappedTable

__all__ = ["NEWEST", "PLANTED", "SNAPSHOT_AT", "Found", "Story", "expected", "plant", "plant_in_delta"]

NEWEST: Final = 14
SNAPSHOT_AT: Final = 4

Found = tuple[int, str, int]  # the version, the kind of the difference, and the key


class Story:
    """The table at `path`. Its keys are in groups, by what happens to them.

    1xx: nothing. 2xx: an update at 4. 3xx: a delete at 8. 4xx: updates at 13 and 14. 5xx: an insert at 13. 6xx: a
    delete at 2, an insert at 8. 7xx: an update at 5. Columns are renamed at 3, 9 and 11, added at 5 and 10, dropped at
    6 and 12, and widened at 7.
    """

    def __init__(self, path: Path) -> None:
        self.table = MappedTable(path, feed=False, id="long", a="integer", b="string", c="string")
        self._files: dict[int, str] = {}

    def tell(self, last: int = NEWEST) -> None:
        """Make the versions up to `last`."""
        table = self.table
        steps: list[Callable[[], object]] = [
            lambda: self._change(come=(1, 2, 3, 4, 6, 7)),
            lambda: self._change(gone=(6,)),
            lambda: table.rename("a", "amount"),
            lambda: self._change(gone=(2,), come=(2,)),
            lambda: self._add_column("d", "string", gone=7),
            lambda: table.drop("c"),
            lambda: table.retype("amount", "long"),
            lambda: self._change(gone=(3,), come=(6,)),
            lambda: table.rename("b", "note"),
            lambda: table.add_column("g", "integer"),
            lambda: table.rename("d", "e"),
            lambda: table.drop("e"),
            lambda: self._change(gone=(4,), come=(4, 5)),
            lambda: self._change(gone=(4,), come=(4,)),
        ]
        for step in steps[table.version : last]:
            step()
        assert table.version == last

    def update(self) -> None:
        """Make one more version, which changes every row."""
        self._change(gone=tuple(self._files), come=tuple(self._files))

    def _change(self, gone: tuple[int, ...] = (), come: tuple[int, ...] = ()) -> None:
        removed = [self.table.take(self._files.pop(group)) for group in gone]
        self.table.commit(*removed, *[self._put(group) for group in come])

    def _add_column(self, name: str, kind: str, gone: int) -> None:
        self.table.columns.append((name, f"{name}-{self.table.version + 1}", kind))
        removed = self.table.take(self._files.pop(gone))
        self.table.commit(self.table.metadata(), removed, self._put(gone))

    def _put(self, group: int) -> dict[str, Any]:
        keys, version = range(group * 100, group * 100 + 20), self.table.version + 1
        values: dict[str, list[Any]] = {"id": list(keys)}
        for name, _, kind in self.table.columns[1:]:
            values[name] = [key * 100 + version if kind != "string" else f"{name} {key} {version}" for key in keys]
        action = self.table.put(None, **values)
        self._files[group] = action["add"]["path"]
        return action


def _first(key: int, change: str) -> str:
    """Change the first state of a key."""
    return f"UPDATE orders SET {change} WHERE id = {key} AND {{begin}} < 3"


def _copied(key: int, begin: int, end: str, note: str = "note") -> str:
    """Add a state of a key, as its first one but for what is given."""
    columns = "id, amount, {begin}, {end}, note"
    return (
        f"INSERT INTO orders ({columns}) SELECT id, amount, {begin}, {end}, {note} FROM orders "
        f"WHERE id = {key} AND {{begin}} = (SELECT min({{begin}}) FROM orders WHERE id = {key})"
    )


def _at(first: int, last: int = NEWEST, kind: str = "missing") -> list[tuple[int, str]]:
    return [(version, kind) for version in range(first, last + 1)]


def _both(key: int, other: int, first: int, last: int) -> dict[int, list[tuple[int, str]]]:
    return {key: _at(first, last), other: _at(first, last, "unexpected")}


# What is done to the history, and the versions and kinds of the differences that must be found, by key.
PLANTED: Final[list[tuple[str, str, Mapping[int, list[tuple[int, str]]]]]] = [
    ("an open row is closed", "UPDATE orders SET {end} = 14 WHERE id = 101", {101: _at(14)}),
    ("an open row is closed long ago", "UPDATE orders SET {end} = 3 WHERE id = 102", {102: _at(3)}),
    ("an open row is lost", "DELETE FROM orders WHERE id = 103", {103: _at(1)}),
    ("a value", "UPDATE orders SET note = 'x' WHERE id = 104", {104: _at(1, kind="different")}),
    ("null", "UPDATE orders SET amount = NULL WHERE id = 105", {105: _at(1, kind="different")}),
    ("a beginning too late", "UPDATE orders SET {begin} = 5 WHERE id = 106", {106: _at(1, 4)}),
    ("another key", "UPDATE orders SET id = 1108 WHERE id = 108", _both(108, 1108, 1, NEWEST)),
    (
        "two rows are swapped",
        "UPDATE orders SET note = CASE id WHEN 109 THEN 'b 110 1' ELSE 'b 109 1' END WHERE id IN (109, 110)",
        {109: _at(1, kind="different"), 110: _at(1, kind="different")},
    ),
    ("a value of a new column", "UPDATE orders SET g = 7 WHERE id = 111", {111: _at(1, kind="different")}),
    ("two open rows of a key", _copied(112, 2, "NULL"), {112: _at(2, kind="unexpected")}),
    ("a gap", _first(201, "{end} = 3"), {201: _at(3, 3)}),
    ("an overlap", _first(202, "{end} = 6"), {202: _at(4, 5, "unexpected")}),
    (
        "a second state too early",
        "UPDATE orders SET {begin} = 3 WHERE id = 203 AND {begin} = 4",
        {203: _at(3, 3, "unexpected")},
    ),
    ("a second state too late", "UPDATE orders SET {begin} = 6 WHERE id = 204 AND {begin} = 4", {204: _at(4, 5)}),
    ("a first state is lost", "DELETE FROM orders WHERE id = 205 AND {begin} = 1", {205: _at(1, 3)}),
    ("a last state is lost", "DELETE FROM orders WHERE id = 206 AND {begin} = 4", {206: _at(4)}),
    ("a value of the past", _first(207, "note = 'x'"), {207: _at(1, 3, "different")}),
    (
        "the values of two states are swapped",
        "UPDATE orders SET amount = CASE {begin} WHEN 1 THEN 20804 ELSE 20801 END WHERE id = 208",
        {208: _at(1, kind="different")},
    ),
    ("another key in the past", _first(209, "id = 1209"), _both(209, 1209, 1, 3)),
    ("all states are lost", "DELETE FROM orders WHERE id = 210", {210: _at(1)}),
    ("an end is lost", _first(211, "{end} = NULL"), {211: _at(4, kind="unexpected")}),
    ("a value from before its column", _first(212, "g = 7"), {212: _at(1, 3, "different")}),
    ("a state within another one", _copied(213, 2, "3", "'x'"), {213: _at(2, 2, "unexpected")}),
    ("an end too late", _first(301, "{end} = 9"), {301: _at(8, 8, "unexpected")}),
    ("an end too early", _first(302, "{end} = 6"), {302: _at(6, 7)}),
    ("no end", _first(303, "{end} = NULL"), {303: _at(8, kind="unexpected")}),
    ("a deleted row is lost", "DELETE FROM orders WHERE id = 304", {304: _at(1, 7)}),
    ("a value of a dropped column", _first(305, "c = 'x'"), {305: _at(1, 5, "different")}),
    ("a state between two is lost", "DELETE FROM orders WHERE id = 401 AND {begin} = 13", {401: _at(13, 13)}),
    ("a state without a version", "UPDATE orders SET {end} = 13 WHERE id = 402 AND {begin} = 13", {402: _at(13, 13)}),
    ("an end before its beginning", "UPDATE orders SET {end} = 2 WHERE id = 403 AND {begin} = 13", {403: _at(13, 13)}),
    ("an overlap with the last but one", _first(404, "{end} = 14"), {404: _at(13, 13, "unexpected")}),
    ("a gap before the last but one", _first(405, "{end} = 12"), {405: _at(12, 12)}),
    (
        "a value of the newest version",
        "UPDATE orders SET note = 'x' WHERE id = 406 AND {begin} = 14",
        {406: _at(14, 14, "different")},
    ),
    ("a row comes too early", "UPDATE orders SET {begin} = 12 WHERE id = 501", {501: _at(12, 12, "unexpected")}),
    ("a row comes too late", "UPDATE orders SET {begin} = 14 WHERE id = 502", {502: _at(13, 13)}),
    ("a row of before it came", _copied(503, 2, "3"), {503: _at(2, 2, "unexpected")}),
    ("a row that was not there in between", _first(601, "{end} = 8"), {601: _at(2, 7, "unexpected")}),
    (
        "a row comes back too early",
        "UPDATE orders SET {begin} = 6 WHERE id = 602 AND {begin} = 8",
        {602: _at(6, 7, "unexpected")},
    ),
    ("a row that came back was never there", "DELETE FROM orders WHERE id = 603 AND {begin} = 1", {603: _at(1, 1)}),
    (
        "a value of a column that was renamed and dropped",
        "UPDATE orders SET e = 'x' WHERE id = 701 AND {begin} = 5",
        {701: _at(5, 11, "different")},
    ),
    (
        "a state of nothing",
        "INSERT INTO orders (id, {begin}, {end}) VALUES (999, 5, 6)",
        {999: _at(5, 5, "unexpected")},
    ),
]


def expected() -> set[Found]:
    """Return the differences that must be found."""
    return {
        (version, kind, key) for _, _, by_key in PLANTED for key, places in by_key.items() for version, kind in places
    }


def plant(database: Database) -> None:
    """Plant all differences in the history in a database."""
    for statement in (*_index_drops(database), *_statements()):
        database.query(statement)


def plant_in_delta(path: Path) -> None:
    """Plant all differences in the history in the Delta table at `path`."""
    rows = mirror_rows(path)
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE orders AS SELECT * FROM rows")
        for statement in _statements():
            connection.execute(statement)
        changed: pa.Table = connection.sql("SELECT * FROM orders").to_arrow_table()
    write_deltalake(path, changed.cast(rows.schema), mode="overwrite")


def _statements() -> Iterator[str]:
    for _, statement, _ in PLANTED:
        yield statement.format(begin="_valid_from_version", end="_valid_to_version")


def _index_drops(database: Database) -> Iterator[str]:
    """Yield what lets a key have several open rows."""
    if isinstance(database, SqliteDatabase):
        named = "SELECT name FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
    elif isinstance(database, PostgresDatabase):
        named = f"SELECT indexname FROM pg_indexes WHERE schemaname = '{database.schema}' AND indexname LIKE '%_open_%'"
    else:
        return
    for (name,) in database.query(named):
        yield f'DROP INDEX "{name}"'
