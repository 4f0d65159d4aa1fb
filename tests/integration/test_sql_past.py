"""Mirrors in databases that keep rows of the past, against a list of what each version had.

Random versions insert, update, delete and delete again, rename, add, drop and widen columns, and are lost and replaced
by snapshots. After each transaction, of one version or several, or in parts, live rows equal those of the version,
deleted ones are marked as they were, and the states that hold at each earlier version are the rows of that version.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pytest

from tailer.errors import SinkRejected
from tailer.events import ChangeBatch, Gap, SchemaChange
from tailer.plan import SNAPSHOT_TASKS, Position
from tailer.sink import Progress, app_id_of, backfill_name, table_of
from tailer_sinks.sql.sink import SqlSink
from tests.support.mirrors.databases import APP, Database, batch, deliver, full, opened, rows_in

pytestmark = pytest.mark.anyio

MODES: Final = ({"deletes": "mark"}, {"mode": "history"})
SCHEMA: Final = pa.schema([("id", pa.int64()), ("name", pa.string()), ("n", pa.int32()), ("x", pa.float64())])
PLAIN: Final = pa.schema([("id", pa.int64()), ("name", pa.string())])
TEXTS: Final = ("", "a", "é", None)
NUMBERS: Final = (0.0, -0.0, float("nan"), 0.1, None)

Rows = dict[int, dict[str, Any]]


@dataclass
class Source:
    """A table that changes at random: `states` has the rows of each version, `schemas` their columns."""

    chance: random.Random
    schema: pa.Schema = SCHEMA
    rows: Rows = field(default_factory=dict)
    states: dict[int, Rows] = field(default_factory=dict)
    schemas: dict[int, pa.Schema] = field(default_factory=dict)
    deleted: dict[int, tuple[int, dict[str, Any]]] = field(default_factory=dict)
    version: int = -1
    made: int = 0
    names: dict[int, dict[str, str]] = field(default_factory=dict)  # of each version's columns, in the table

    def row(self, key: int) -> dict[str, Any]:
        values: dict[str, Any] = {"id": key}
        for column in self.schema:
            if pa.types.is_floating(column.type):
                values[column.name] = self.chance.choice(NUMBERS)
            elif pa.types.is_string(column.type):
                values[column.name] = self.chance.choice(TEXTS)
            elif column.name != "id":
                values[column.name] = self.chance.randrange(3)
        return values

    def commit(self) -> list[ChangeBatch]:
        """Change rows. Return the changes of the next version."""
        self.version += 1
        gone = [key for key in self.rows if self.chance.random() < 0.4]
        come = [key for key in gone if self.chance.random() < 0.5]
        come += [key for key in range(12) if key not in self.rows and self.chance.random() < 0.3]
        before = [self.rows.pop(key) for key in gone]
        self.deleted |= {row["id"]: (self.version, row) for row in before}
        after = [self.row(key) for key in come]
        self.rows |= {row["id"]: row for row in after}
        self._note()
        changes = [("delete", row) for row in before] + [("insert", row) for row in after]
        self.chance.shuffle(changes)
        kinds, rows = [kind for kind, _ in changes], [row for _, row in changes]
        cut = self.chance.randrange(len(rows) + 1)
        parts = (kinds[:cut], rows[:cut]), (kinds[cut:], rows[cut:])
        return [batch(self.version, *part, 0 if number == 0 else 1) for number, part in enumerate(self._typed(parts))]

    def _typed(self, parts: Any) -> Iterator[tuple[list[str], pa.Schema, list[dict[str, Any]]]]:
        for kinds, rows in parts:
            yield kinds, self.schema, rows

    def evolve(self) -> SchemaChange:
        """Change the columns, in a version without rows."""
        self.version += 1
        self.made += 1
        before, name = self.schema, f"c{self.made}"
        origins = {each: each for each in before.names}
        others = [each for each in before.names if each != "id"]
        match self.chance.randrange(4):
            case 0:
                self.schema = before.append(pa.field(name, pa.string()))
                self.rows = {key: {**row, name: None} for key, row in self.rows.items()}
            case 1 if others:
                old = self.chance.choice(before.names)
                if old == "id":
                    old = others[0]
                index = before.get_field_index(old)
                self.schema = before.set(index, before.field(index).with_name(name))
                origins = {name if each == old else each: each for each in before.names}
                self._rename(old, name)
            case 2 if others:
                old = self.chance.choice(others)
                self.schema = before.remove(before.get_field_index(old))
                del origins[old]
                self.rows = {key: {n: v for n, v in row.items() if n != old} for key, row in self.rows.items()}
                self.deleted = {k: (v, {n: x for n, x in r.items() if n != old}) for k, (v, r) in self.deleted.items()}
            case _:
                index = before.get_field_index("n")
                if index >= 0:
                    self.schema = before.set(index, pa.field("n", pa.int64()))
        self._note()
        self.deleted = {k: (v, {n: r.get(n) for n in self.schema.names}) for k, (v, r) in self.deleted.items()}
        return SchemaChange("t", self.version, 0, full(before), full(self.schema), ("columns",), origins)

    def _rename(self, old: str, new: str) -> None:
        for names in self.names.values():
            names |= {then: new for then, now in names.items() if now == old}
        self.rows = {key: {new if n == old else n: v for n, v in row.items()} for key, row in self.rows.items()}
        self.deleted = {
            key: (version, {new if n == old else n: v for n, v in row.items()})
            for key, (version, row) in self.deleted.items()
        }

    def lose(self) -> tuple[Gap, list[ChangeBatch]]:
        """Change rows in versions that are lost. Return the gap, and the snapshot."""
        first, earlier = self.version + 1, dict(self.rows)
        marked = dict(self.deleted)
        for _ in range(self.chance.randrange(1, 3)):
            self.commit()
        self.states = {self.version: dict(self.rows)}
        self.deleted = {key: at for key, at in marked.items() if key not in self.rows}
        self.deleted |= {key: (self.version, row) for key, row in earlier.items() if key not in self.rows}
        gap = Gap("t", first, self.version, 1_700_000_000_000, "lost", snapshot=True)
        rows = list(self.rows.values())
        return gap, [batch(self.version, "insert", self.schema, rows, SNAPSHOT_TASKS)] if rows else []

    def _note(self) -> None:
        self.rows = dict(self.rows)
        self.deleted = {key: at for key, at in self.deleted.items() if key not in self.rows}
        self.states[self.version], self.schemas[self.version] = dict(self.rows), self.schema
        self.names[self.version] = {name: name for name in self.schema.names}


async def rows_at(sink: SqlSink, version: int | None, source: Source) -> tuple[list[Any], list[Any]]:
    """Return the rows of a mirror at a version, and those of the source as the mirror holds them."""
    at = source.version if version is None else version
    async with sink.open_mirror("orders", version) as mirror:
        assert mirror.version == at
        names = source.names[at]
        wanted = pa.RecordBatch.from_pylist(list(source.states[at].values()), schema=source.schemas[at])
        wanted = wanted.rename_columns([names[name] for name in wanted.schema.names])
        return listed(names, mirror.rows()), listed(names, mirror.as_stored(wanted))


def listed(names: dict[str, str], batches: Iterator[pa.RecordBatch]) -> list[Any]:
    rows = [tuple(row[column] for column in names.values()) for each in batches for row in each.to_pylist()]
    return sorted(rows, key=str)


async def check(sink: SqlSink, database: Database, source: Source, *, is_history: bool, every: bool) -> None:
    """Check the newest version, and of a history earlier ones: `every`, or some."""
    found, wanted = await rows_at(sink, None, source)
    assert found == wanted, source.version
    if not is_history:
        check_marked(database, source)
        return
    for version in source.states if every else source.chance.sample(sorted(source.states), 1):
        found, wanted = await rows_at(sink, version, source)
        assert found == wanted, (version, source.version)
    with pytest.raises(SinkRejected, match=f"has the rows of versions {min(source.states)} to {source.version}, not"):
        async with sink.open_mirror("orders", min(source.states) - 1):
            pass


def check_marked(database: Database, source: Source) -> None:
    """Check that each deleted row has the values that it had, and says when it was deleted."""
    rows = {row["id"]: row for row in rows_in(database, "orders") if row["_deleted_version"] is not None}
    assert {key: row.pop("_deleted_version") for key, row in rows.items()} == {
        key: version for key, (version, _) in source.deleted.items()
    }
    times = [row.pop("_deleted_at") for row in rows.values()]
    assert all(time.startswith("2026-03-01T") for time in times), times
    assert str(rows) == str({key: flat(source.deleted[key][1], rows[key]) for key in rows}), source.version


def flat(row: dict[str, Any], order: dict[str, Any]) -> dict[str, Any]:
    """Return a row as JSON values, with the columns in this order."""
    return {name: "NaN" if str(row[name]) == "nan" else row[name] for name in order}


async def run(database: Database, options: dict[str, str], seed: int, steps: int = 25) -> None:
    source = Source(random.Random(seed))
    chance = source.chance
    items: list[Any] = []
    schema = full(source.schema)
    async with opened(database, **options) as sink:
        for step in range(steps):
            kind = chance.choice(["commit"] * 6 + ["evolve", "lose"]) if step else "commit"
            if kind == "evolve":
                items.append(source.evolve())
            elif kind == "lose":
                if items:
                    await send(sink, schema, items, Position.end(source.version))
                    schema, items = full(source.schema), []
                gap, rows = source.lose()
                items += [gap, *rows]
            else:
                items += source.commit()
            if step < steps - 1 and chance.random() < 0.5:
                continue
            if kind == "commit" and chance.random() < 0.3:
                await send(sink, schema, items[:-1], Position(source.version, 0, 100))
                schema, items = full(source.schema), items[-1:]
            await send(sink, schema, items, Position.end(source.version))
            schema, items = full(source.schema), []
            is_history, every = options.get("mode") == "history", step == steps - 1
            await check(sink, database, source, is_history=is_history, every=every)


async def send(sink: SqlSink, schema: pa.Schema, items: list[Any], at: Position) -> None:
    async with sink.begin(APP, schema) as transaction:
        for each in items:
            await (transaction.write(each) if isinstance(each, ChangeBatch) else transaction.announce(each))
        await transaction.commit(Progress(APP, at))


@pytest.mark.parametrize("options", MODES, ids=["mark", "history"])
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 12))])
async def test_random_versions(database: Database, options: dict[str, str], seed: int) -> None:
    await run(database, options, seed)


def rows_of(version: int, kind: str, *keys: int, schema: pa.Schema = PLAIN, task: int = 0) -> ChangeBatch:
    return batch(version, kind, schema, [{"id": key, "name": f"{key} at {version}"} for key in keys], task)


CONTRADICTIONS: Final[tuple[tuple[list[Any], str], ...]] = (
    ([rows_of(2, "insert", 5, 5)], "the changes of version 2 insert a key that t0 has, or insert it twice"),
    ([rows_of(2, "insert", 1)], "the changes of version 2 insert a key that t1 has, or insert it twice"),
    ([rows_of(2, "delete", 9)], "of 1 keys that the changes of version 2 delete, 0 are in t2"),
    ([rows_of(2, "delete", 3)], "of 1 keys that the changes of version 2 delete, 0 are in t3"),
    ([rows_of(2, "delete", 1, 1)], "of 2 keys that the changes of version 2 delete, 1 are in t4"),
    ([rows_of(2, "delete", 1), rows_of(2, "insert", 2)], "the changes of version 2 insert a key that t5 has"),
    ([rows_of(2, "delete", 1), rows_of(3, "delete", 1)], "versions 2 to 3 insert or delete a key twice"),
    ([rows_of(2, "insert", 1), rows_of(3, "delete", 1)], "versions 2 to 3 insert a key that t7 has"),
    ([rows_of(2, "insert", 3), rows_of(3, "insert", 3)], "versions 2 to 3 insert a key that t8 has"),
    ([batch(2, "insert", PLAIN, [{"name": "x"}])], "the key column id of t9 is null in version 2"),
    ([Gap("t", 2, 4, 0, "cleaned up", snapshot=False)], "versions 2 to 4 are lost"),
    ([Gap("t", 2, 4, 0, "lost", snapshot=True), rows_of(4, "insert", 5, 5, task=SNAPSHOT_TASKS)], "insert it twice"),
)


@pytest.mark.parametrize("options", MODES, ids=["mark", "history"])
async def test_contradictions_stop_them(database: Database, options: dict[str, str]) -> None:
    """Of deleted rows, such as the one with key 3, none is there."""
    for number, (items, error) in enumerate(CONTRADICTIONS):
        table, app_id = f"t{number}", f"p{number}/5f0c"
        async with opened(database, table=table, **options) as sink:
            await deliver(sink, rows_of(0, "insert", 1, 2, 3), app_id=app_id)
            await deliver(sink, rows_of(1, "delete", 3), app_id=app_id)
            before = rows_in(database, table)
            with pytest.raises(SinkRejected, match=error):
                await deliver(sink, *items, app_id=app_id)
            assert rows_in(database, table) == before


@pytest.mark.parametrize("options", MODES, ids=["mark", "history"])
async def test_what_a_table_has_no_room_for_is_refused(database: Database, options: dict[str, str]) -> None:
    """No snapshot makes it again: its rows of the past would be lost."""
    numbers = pa.schema([("id", pa.int64()), ("name", pa.int64())])
    async with opened(database, **options) as sink:
        await deliver(sink, rows_of(0, "insert", 1, 2))
        await deliver(sink, rows_of(1, "delete", 1))
        before = rows_in(database, "orders")
        snapshot = Gap("t", 2, 3, 0, "ordered", snapshot=True)
        with pytest.raises(SinkRejected, match="columns name of orders have another type, and it keeps") as refused:
            await send(sink, full(numbers), [snapshot], Position.end(3))
        assert "another table" in refused.value.remedy
        origins = {"id": "id", "name": "name"}
        change = SchemaChange("t", 2, 0, full(PLAIN), full(numbers), ("name is a number",), origins)
        with pytest.raises(SinkRejected, match="columns name of orders have another type"):
            await deliver(sink, change)
        own = next(name for name in before[0] if name.startswith("_")).upper()
        with pytest.raises(SinkRejected, match=f"column {own} has the name of a column that the sink adds"):
            await deliver(sink, SchemaChange("t", 2, 0, full(PLAIN), full(PLAIN.append(pa.field(own, pa.int64()))), ()))
    for others, error in (
        ({**options, "key": ["name"]}, "the key of orders is id, and another one is configured"),
        ({}, "the table orders was made with"),
        ({"mode": "append", "key": []}, "the table orders was made with"),
    ):
        async with opened(database, **others) as sink:
            with pytest.raises(SinkRejected, match=error):
                await send(sink, full(PLAIN), [snapshot, rows_of(3, "insert", 7, task=SNAPSHOT_TASKS)], Position.end(3))
    assert rows_in(database, "orders") == before


async def test_a_column_that_comes_again_stops_a_history(database: Database) -> None:
    before, after = full(PLAIN), full(PLAIN.remove(1))
    async with opened(database, mode="history") as sink:
        await deliver(sink, rows_of(0, "insert", 1))
        await deliver(sink, SchemaChange("t", 1, 0, before, after, ("name is gone",), {"id": "id"}))
        with pytest.raises(SinkRejected, match="orders keeps columns name, which were dropped") as refused:
            await deliver(sink, SchemaChange("t", 2, 0, after, before, ("another name",), {"id": "id"}))
        assert "another table" in refused.value.remedy
    assert [row["name"] for row in rows_in(database, "orders")] == ["1 at 0"]


async def test_a_name_in_another_case_is_that_of_the_dropped_column(database: Database) -> None:
    """To PostgreSQL it is another one."""
    gone, other = PLAIN.remove(1), pa.schema([PLAIN.field(0), pa.field("Name", pa.string())])
    came = SchemaChange("t", 2, 0, full(gone), full(other), ("another name",), {"id": "id"})
    rows = batch(2, "insert", other, [{"id": 2, "Name": "x"}])
    async with opened(database, mode="history") as sink:
        await deliver(sink, rows_of(0, "insert", 1))
        await deliver(sink, SchemaChange("t", 1, 0, full(PLAIN), full(gone), ("name is gone",), {"id": "id"}))
        if "schema" in database.options:
            await deliver(sink, came, rows)
            assert [(row["name"], row["Name"]) for row in rows_in(database, "orders")] == [
                ("1 at 0", None),
                (None, "x"),
            ]
            return
        with pytest.raises(SinkRejected, match="orders keeps columns Name, which were dropped") as refused:
            await deliver(sink, came, rows)
        assert "another table" in refused.value.remedy


async def test_the_states_of_a_row_and_a_snapshot(database: Database) -> None:
    """States that a snapshot of the same values has stay as they are; others end, or begin, at its version."""
    gap = Gap("t", 3, 6, 0, "lost", snapshot=True)
    null = {"id": 4, "name": None}
    kept = batch(6, "insert", PLAIN, [{"id": 1, "name": "1 at 2"}, {"id": 2, "name": "new"}, null], SNAPSHOT_TASKS)
    async with opened(database, mode="history") as sink:
        await deliver(sink, rows_of(0, "insert", 1, 2, 3), batch(0, "insert", PLAIN, [null], 1))
        await deliver(sink, rows_of(1, "delete", 1), rows_of(2, "insert", 1))
        await deliver(sink, gap, kept)
    table = {(row["id"], row["_valid_from_version"]): row for row in rows_in(database, "orders")}
    assert {key: (row["name"], row["_valid_to_version"]) for key, row in table.items()} == {
        (1, 0): ("1 at 0", 1),
        (1, 2): ("1 at 2", None),
        (2, 0): ("2 at 0", 6),
        (2, 6): ("new", None),
        (3, 0): ("3 at 0", 6),
        (4, 0): (None, None),
    }
    assert (table[2, 0]["_valid_from"], table[2, 0]["_valid_to"]) == (
        "2026-03-01T00:00:00.000000Z",
        "2026-03-01T00:00:06.000000Z",
    )
    ((keys,),) = database.query("SELECT key_columns FROM lake_tailer_mirrors")
    assert keys == '{"configured": ["id"], "columns": ["id"], "known_from": 6}'


@pytest.mark.parametrize("options", MODES, ids=["mark", "history"])
async def test_a_snapshot_of_the_newest_version(database: Database, options: dict[str, str]) -> None:
    """An operator asks for it twice, and somebody has changed rows before. The second one comes in parts."""
    names = [{"id": 1, "name": "1 at 0"}, {"id": 3, "name": "3 at 1"}, {"id": 4, "name": "4 at 1"}]
    async with opened(database, **options) as sink:
        await deliver(sink, rows_of(0, "insert", 1, 2, 3))
        await deliver(sink, rows_of(1, "delete", 2, 3), rows_of(1, "insert", 3, 4))
        before = sorted(map(str, rows_in(database, "orders")))
        database.query("UPDATE orders SET name = 'x' WHERE name = '4 at 1'")
        database.query("DELETE FROM orders WHERE name = '3 at 1'")
        for command in ("20260301T115001-1f3a5c7e", "20260301T115002-1f3a5c7e"):
            gap = Gap("t", 1, 1, 0, "ordered", snapshot=True, command=command)
            app_id = app_id_of(backfill_name("orders", command), table_of(APP))
            first, second = (batch(1, "insert", PLAIN, part, SNAPSHOT_TASKS) for part in (names[:2], names[2:]))
            if command.startswith("20260301T115002"):
                await deliver(sink, gap, first, at=Position(1, SNAPSHOT_TASKS, 1), app_id=app_id)
                await deliver(sink, second, at=Position.end(1), app_id=app_id)
            else:
                await deliver(sink, gap, first, second, app_id=app_id)
            assert sorted(map(str, rows_in(database, "orders"))) == before
        await deliver(sink, rows_of(2, "delete", 4), rows_of(2, "insert", 2))
    assert len(rows_in(database, "orders")) == (4 if "deletes" in options else len(before) + 1)


async def test_an_empty_snapshot_ends_all_rows(database: Database) -> None:
    async with opened(database, deletes="mark") as sink:
        await deliver(sink, rows_of(0, "insert", 1, 2))
        await send(
            sink, full(PLAIN), [Gap("t", 1, 3, 0, "lost", snapshot=True), rows_of(4, "insert", 2)], Position.end(4)
        )
    found = sorted((row["id"], row["name"], row["_deleted_version"]) for row in rows_in(database, "orders"))
    assert found == [(1, "1 at 0", 3), (2, "2 at 4", None)]
