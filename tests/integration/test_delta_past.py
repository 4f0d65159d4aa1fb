"""`deletes = "mark"` and `mode = "history"` of the `delta` sink by themselves: random changes of rows and columns.

After each transaction the table, read by delta-rs alone, has the rows of the source, those that were deleted with
their values, and the source as of every version that the history knows.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from anyio import to_thread
from deltalake import DeltaTable

from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.rules import PairingRules
from tailer.engine.local import LocalEngine
from tailer.errors import SinkRejected
from tailer.events import ChangeBatch, Gap, SchemaChange
from tailer.pipeline.policy import Policy
from tailer.pipeline.row_delivery import row_pipeline
from tailer.pipeline.verification.comparison import repair
from tailer.plan import SNAPSHOT_TASKS
from tailer.sink import app_id_of, backfill_name, table_of
from tailer.start import Start, StartKind
from tailer.stores.wakeup import TimerWake
from tailer_sinks.delta.mirror import table as mirror_table
from tailer_sinks.delta.mirror.sink import DeltaMirror
from tests.support.mirrors.delta import APP, batch, deliver, full, make_mirror, mirror_rows
from tests.support.mirrors.delta_planted import PLANTED, SUPERFLUOUS, plant
from tests.support.mirrors.planted import log_of, write

pytestmark = [pytest.mark.anyio, pytest.mark.long]

Row = dict[int, Any]  # values by the number of the column
Columns = dict[int, tuple[str, pa.DataType]]
Item = ChangeBatch | SchemaChange | Gap
WIDER: Final = {pa.int16(): pa.int32(), pa.int32(): pa.int64(), pa.int64(): pa.decimal128(20, 0)}
KEYS: Final = 15
STEPS: Final = 25
OPTIONS: Final = {"mark": {"deletes": "mark"}, "history": {"mode": "history"}}


@pytest.fixture(params=["merge", "rewrite"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The way of a transaction into the table: a MERGE, or all rows written again."""
    if request.param == "rewrite":
        monkeypatch.setattr(mirror_table, "_MERGE_BYTES", -1)
    return str(request.param)


def moment(version: int) -> datetime:
    """Return the time that `batch` gives a version."""
    return datetime(2026, 3, 1, second=version % 60, tzinfo=UTC)


@dataclass
class Source:
    """A source that changes at random. `states`: its columns and rows by version. `deleted`: the last row of a key."""

    chance: random.Random
    version: int = -1
    columns: Columns = field(default_factory=lambda: {0: ("id", pa.int64()), 1: ("n", pa.int16())})
    names: dict[int, str] = field(default_factory=dict)
    rows: dict[int, Row] = field(default_factory=dict)
    states: dict[int, tuple[list[int], dict[int, Row]]] = field(default_factory=dict)
    deleted: dict[int, tuple[int, Row]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._numbers = count(2)
        self._note_names()

    @property
    def schema(self) -> pa.Schema:
        """The columns as they are now."""
        return pa.schema(list(self.columns.values()))

    def change(self, *, renames: bool = True) -> list[Item]:
        """Change rows, and sometimes a column. Return what is delivered."""
        self.version += 1
        before, items = self.columns, list[Item]()
        gone = [key for key in self.rows if self.chance.random() < 0.25]
        if gone:
            items.append(self._batch("delete", gone))
        if self.version and self.chance.random() < 0.3:
            self._change_columns(renames=renames)
            items.append(self._column_change(before))
        for key in gone:
            self.deleted[key] = self.version, self.rows.pop(key)
        came = [key for key in range(KEYS) if key not in self.rows and self.chance.random() < 0.3]
        for key in came:
            self.rows[key] = {number: self._value(number, key) for number in self.columns}
            self.deleted.pop(key, None)
        if came:
            items.append(self._batch("insert", came))
        self.states[self.version] = list(self.columns), dict(self.rows)
        return items

    def lose(self) -> list[Item]:
        """Change several times without a word, and return a snapshot."""
        first, rows, deleted = self.version + 1, dict(self.rows), dict(self.deleted)
        for _ in range(self.chance.randrange(1, 4)):
            self.change(renames=False)  # a column that is renamed meanwhile is another one
        for key in set(rows) - set(self.rows):
            deleted[key] = self.version, rows[key]
        self.deleted = {key: last for key, last in deleted.items() if key not in self.rows}
        self.states = {self.version: self.states[self.version]}
        time_ms = int(moment(self.version).timestamp() * 1000)
        gap = Gap("t", first, self.version, time_ms, "lost", snapshot=True)
        keys, task = list(self.rows), SNAPSHOT_TASKS
        parts = [self._batch("insert", part, task) for part in (keys[::2], keys[1::2]) if part]
        return [gap, *parts]

    def _value(self, number: int, key: int) -> Any:
        """Return a value, which is often the same for a key."""
        kind = self.columns[number][1]
        small = 7 * number if self.chance.random() < 0.5 else self.chance.randrange(30)
        return key if number == 0 else None if small == 3 else f"\N{SNOWMAN}{small}" if kind == pa.string() else small

    def _batch(self, kind: str, keys: Sequence[int], task: int = 0) -> ChangeBatch:
        named = [
            {self.columns[number][0]: value for number, value in self.rows[key].items() if number in self.columns}
            for key in keys
        ]
        return batch(self.version, kind, self.schema, named, task)

    def _column_change(self, before: Columns) -> SchemaChange:
        origins = {name: before[number][0] for number, (name, _) in self.columns.items() if number in before}
        schemas = full(pa.schema(list(before.values()))), full(self.schema)
        return SchemaChange("t", self.version, 0, *schemas, ("it changed",), origins)

    def _change_columns(self, *, renames: bool) -> None:
        columns, number = dict(self.columns), next(self._numbers)
        one = self.chance.choice(list(columns))
        match self.chance.choice(["add", "drop", "rename", "widen"]):
            case "drop" if one:
                del columns[one]
            case "rename" if one and renames:
                columns[one] = f"c{number}", columns[one][1]
            case "widen" if columns[one][1] in WIDER:
                columns[one] = columns[one][0], WIDER[columns[one][1]]
            case _:
                columns[number] = f"c{number}", self.chance.choice([pa.string(), pa.int16()])
        self.columns = columns
        self._note_names()

    def _note_names(self) -> None:
        self.names |= {number: name for number, (name, _) in self.columns.items()}


def picked(numbers: Sequence[int], rows: dict[int, Row]) -> dict[int, list[Any]]:
    return {key: [row.get(number) for number in numbers] for key, row in rows.items()}


def by_key(source: Source, numbers: Sequence[int], rows: Sequence[dict[str, Any]]) -> dict[int, list[Any]]:
    values = {int(row["id"]): [row[source.names[number]] for number in numbers] for row in rows}
    assert len(values) == len(rows), "a key twice"
    return values


def check_marks(path: Path, source: Source) -> None:
    rows, numbers = mirror_rows(path).to_pylist(), list(source.columns)
    live = [row for row in rows if row["_deleted_version"] is None]
    marked = {int(row["id"]): row for row in rows if row["_deleted_version"] is not None}
    assert all(row["_deleted_at"] is None for row in live)
    assert by_key(source, numbers, live) == picked(numbers, source.rows)
    deleted = {key: row for key, (_, row) in source.deleted.items()}
    assert by_key(source, numbers, list(marked.values())) == picked(numbers, deleted)
    assert (
        set(rows[0]) == {*(name for name, _ in source.columns.values()), "_deleted_version", "_deleted_at"}
        if rows
        else True
    )
    for key, (version, _) in source.deleted.items():
        assert (marked[key]["_deleted_version"], marked[key]["_deleted_at"]) == (version, moment(version))


def check_history(path: Path, source: Source, delivered: int) -> None:
    rows = mirror_rows(path).to_pylist()
    for row in rows:
        began, ended = row["_valid_from_version"], row["_valid_to_version"]
        assert row["_valid_from"] == moment(began)
        assert ended is None or (began < ended and row["_valid_to"] == moment(ended))
    for version, (numbers, state) in source.states.items():
        if version <= delivered:
            held = [row for row in rows if holds(row, version)]
            assert by_key(source, numbers, held) == picked(numbers, state), f"as of {version}"


def holds(row: dict[str, Any], version: int) -> bool:
    ended = row["_valid_to_version"]
    return row["_valid_from_version"] <= version and (ended is None or version < ended)


async def ids_at(sink: DeltaMirror, version: int) -> tuple[int, list[int]]:
    async with sink.open_mirror("orders", version) as mirror:
        rows = await to_thread.run_sync(lambda: [row for part in mirror.rows() for row in part.to_pylist()])
        assert mirror.version == version
        return mirror.known_from, sorted(int(row["id"]) for row in rows)


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("mode", OPTIONS)
@pytest.mark.parametrize("seed", range(4))
async def test_random_changes(tmp_path: Path, mode: str, seed: int) -> None:
    chance = random.Random(seed)
    source, sink = Source(chance), make_mirror(tmp_path, **OPTIONS[mode])
    delivered = -1
    for _ in range(STEPS):
        items = source.lose() if delivered >= 0 and chance.random() < 0.2 else []
        schema = full(source.schema)
        for _ in range(chance.randrange(0 if items else 1, 4)):
            items += source.change()
        if not items:
            continue
        sink = make_mirror(tmp_path, **OPTIONS[mode]) if chance.random() < 0.3 else sink
        await deliver(sink, *items, schema=schema)
        delivered = items[-1].version
        if mode == "history":
            await to_thread.run_sync(check_history, tmp_path, source, delivered)
        elif delivered == source.version:
            await to_thread.run_sync(check_marks, tmp_path, source)
    if mode == "history":
        for version in range(min(source.states), delivered + 1):
            known_from, ids = await ids_at(sink, version)
            assert (known_from, ids) == (min(source.states), sorted(source.states[version][1]))
        for version in (min(source.states) - 1, delivered + 1):
            with pytest.raises(SinkRejected, match=f"of versions {min(source.states)} to {delivered}, and not"):
                await ids_at(sink, version)


SCHEMA: Final = pa.schema([("id", pa.int64()), ("name", pa.string())])


def rows_of(version: int, kind: str, *ids: int, task: int = 0, schema: pa.Schema = SCHEMA) -> ChangeBatch:
    rows: list[dict[str, Any]] = [{"id": one, "name": f"{one} at {version}"} for one in ids]
    return batch(version, kind, schema, [{name: row.get(name) for name in schema.names} for row in rows], task)


def gap(version: int) -> Gap:
    return Gap("t", version, version, int(moment(version).timestamp() * 1000), "lost", snapshot=True)


def states(path: Path) -> list[tuple[Any, ...]]:
    """Return key, value and versions of each row."""
    table = mirror_rows(path)
    versions = [name for name in table.column_names if name.endswith("_version")]
    return sorted((row["id"], row.get("name"), *(row[name] for name in versions)) for row in table.to_pylist())


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("mode", OPTIONS)
@pytest.mark.parametrize(
    ("items", "error"),
    [
        ([rows_of(3, "insert", 1)], "the changes up to version 3 insert a key that is there"),
        ([rows_of(3, "insert", 7, 1), rows_of(4, "delete", 1)], "insert a key that is there"),
        ([rows_of(3, "delete", 2)], "the changes up to version 3 delete a key that is not there"),
        ([rows_of(3, "delete", 2), rows_of(3, "insert", 2)], "delete a key that is not there"),
        ([rows_of(3, "delete", 9)], "delete a key that is not there"),
        ([rows_of(3, "insert", 2, 2)], "version 3 inserts or deletes a key twice"),
        ([rows_of(3, "delete", 1), rows_of(4, "delete", 1)], "version 4 inserts or deletes a key twice"),
    ],
)
async def test_contradictions_are_against_rows_that_are_live(
    tmp_path: Path, mode: str, items: list[ChangeBatch], error: str
) -> None:
    sink = make_mirror(tmp_path, **OPTIONS[mode])
    await deliver(sink, rows_of(1, "insert", 1, 2))
    await deliver(sink, rows_of(2, "delete", 2))
    before = states(tmp_path)
    with pytest.raises(SinkRejected, match=error):
        await deliver(sink, *items)
    assert states(tmp_path) == before
    await deliver(sink, rows_of(3, "insert", 2))
    again = (2, "2 at 3", None) if mode == "mark" else (2, "2 at 3", 3, None)
    assert again in states(tmp_path)
    assert len(states(tmp_path)) == (2 if mode == "mark" else 3)


@pytest.mark.parametrize("mode", OPTIONS)
async def test_a_snapshot_that_would_lose_rows_is_refused(tmp_path: Path, mode: str) -> None:
    sink = make_mirror(tmp_path, **OPTIONS[mode])
    await deliver(sink, rows_of(1, "insert", 1, 2), rows_of(2, "delete", 2))
    before = states(tmp_path)
    other = pa.schema([("id", pa.int64()), ("name", pa.int64())])
    with pytest.raises(SinkRejected, match="name is string there, and int64 in the rows") as refused:
        await deliver(sink, gap(5), schema=full(other))
    assert refused.value.hint == "Choose a new path."
    by_name: dict[str, Any] = {**OPTIONS[mode], "key": ["name"]}
    items: list[Item] = [gap(5), rows_of(5, "insert", 3, task=SNAPSHOT_TASKS)]
    with pytest.raises(SinkRejected, match="have another key than name") as refused:
        await deliver(make_mirror(tmp_path, **by_name), *items, schema=full(SCHEMA))
    assert "Choose a new path." in (refused.value.hint or "")
    for options in ({}, *(each for name, each in OPTIONS.items() if name != mode)):
        with pytest.raises(SinkRejected, match="was made with") as refused:
            await make_mirror(tmp_path, **options).progress("orders/5f0c6a1e")
        assert refused.value.hint == "Set that, or choose a new path."
    assert states(tmp_path) == before
    await deliver(sink, gap(5), schema=full(SCHEMA))  # all rows are gone
    assert [row[-1] for row in states(tmp_path)] == [5, 2]


@pytest.mark.parametrize("mode", OPTIONS)
async def test_a_source_that_has_our_columns_is_refused(tmp_path: Path, mode: str) -> None:
    name = {"mark": "_deleted_at", "history": "_Valid_To"}[mode]
    wide = pa.schema([*SCHEMA, (name, pa.string())])
    sink = make_mirror(tmp_path, **OPTIONS[mode])
    with pytest.raises(SinkRejected, match=f"cannot have a column {name} of the source"):
        await deliver(sink, rows_of(1, "insert", 1, schema=wide))
    await deliver(sink, rows_of(1, "insert", 1))
    change = SchemaChange("t", 2, 0, full(SCHEMA), full(wide), ("added",), {"id": "id", "name": "name"})
    with pytest.raises(SinkRejected, match=f"cannot have a column {name} of the source"):
        await deliver(sink, change)


async def test_a_dropped_column_of_a_history_comes_again_with_a_snapshot_alone(tmp_path: Path) -> None:
    narrow = pa.schema([("id", pa.int64())])
    sink = make_mirror(tmp_path, mode="history")
    await deliver(sink, rows_of(1, "insert", 1, 2))
    drop = SchemaChange("t", 2, 0, full(SCHEMA), full(narrow), ("dropped",), {"id": "id"})
    await deliver(sink, drop, rows_of(2, "insert", 3, schema=narrow))
    assert states(tmp_path) == [(1, "1 at 1", 1, None), (2, "2 at 1", 1, None), (3, None, 2, None)]
    for add in ({"id": "id"}, None):
        change = SchemaChange("t", 3, 0, full(narrow), full(SCHEMA), ("added",), add)
        with pytest.raises(SinkRejected, match="version 3 has another column name than earlier states") as refused:
            await deliver(sink, change)
        assert refused.value.hint == "Ask for a snapshot with `tailer resnapshot PIPELINE`."
    with pytest.raises(SinkRejected, match="has other columns now than those with which it has left"):
        await deliver(make_mirror(tmp_path, mode="history"), rows_of(3, "insert", 4))
    await deliver(sink, gap(4), rows_of(4, "insert", 1, task=SNAPSHOT_TASKS), schema=full(SCHEMA))
    ended = [(1, "1 at 1", 1, 4), (1, "1 at 4", 4, None), (2, "2 at 1", 1, 4), (3, None, 2, 4)]
    assert states(tmp_path) == ended


def ordered(number: int) -> str:
    """Return the app id of a snapshot that an operator asks for."""
    return app_id_of(backfill_name("orders", f"20260301T11500{number}-1f3a5c7e"), table_of(APP))


@pytest.mark.parametrize("mode", OPTIONS)
async def test_a_snapshot_of_the_newest_version(tmp_path: Path, mode: str) -> None:
    """An operator asks for it twice, and somebody has changed rows before."""
    sink = make_mirror(tmp_path, **OPTIONS[mode])
    await deliver(sink, rows_of(1, "insert", 1, 2, 3))
    await deliver(sink, rows_of(2, "delete", 2, 3), rows_of(2, "insert", 3, 4))
    before = states(tmp_path)
    await to_thread.run_sync(partial(DeltaTable(tmp_path).update, {"name": "'x'"}, predicate="name = '4 at 2'"))
    await to_thread.run_sync(DeltaTable(tmp_path).delete, "name = '3 at 2'")
    rows = [{"id": 1, "name": "1 at 1"}, {"id": 3, "name": "3 at 2"}, {"id": 4, "name": "4 at 2"}]
    for number in range(2):
        snapshot = batch(2, "insert", SCHEMA, rows, SNAPSHOT_TASKS)
        await deliver(sink, gap(2), snapshot, schema=full(SCHEMA), app_id=ordered(number))
        assert states(tmp_path) == before
    await deliver(sink, rows_of(3, "delete", 4), rows_of(3, "insert", 2))
    new = {(2, "2 at 3", None), (4, "4 at 2", 3)} if mode == "mark" else {(2, "2 at 3", 3, None), (4, "4 at 2", 2, 3)}
    assert new <= set(states(tmp_path))


async def test_a_snapshot_of_an_earlier_version_is_refused(tmp_path: Path) -> None:
    sink = make_mirror(tmp_path, mode="history")
    await deliver(sink, rows_of(3, "insert", 1))
    for app_id, version in ((ordered(0), 2), (ordered(0).replace("5f0c", "another"), 3)):
        with pytest.raises(SinkRejected, match=f"up to version 3, and version {version} follows"):
            await deliver(sink, gap(version), schema=full(SCHEMA), app_id=app_id)


async def test_a_history_does_not_go_back(tmp_path: Path) -> None:
    """Versions of a table that takes the place of another one may be lower."""
    sink = make_mirror(tmp_path, mode="history")
    await deliver(sink, rows_of(7, "insert", 1))
    with pytest.raises(SinkRejected, match="history of another table up to version 7, and version 3 follows"):
        await deliver(sink, rows_of(3, "delete", 1), app_id="orders/another")
    await deliver(sink, rows_of(8, "delete", 1), app_id="orders/another")
    assert states(tmp_path) == [(1, "1 at 7", 7, 8)]


async def test_a_merge_reads_no_file_whose_states_have_ended(tmp_path: Path) -> None:
    sink = make_mirror(tmp_path, mode="history")
    await deliver(sink, rows_of(1, "insert", *range(100)))
    for version in range(2, 12):  # all rows get new states
        changes = rows_of(version, "delete", *range(100)), rows_of(version, "insert", *range(100))
        await deliver(sink, *changes)
        metrics = DeltaTable(tmp_path).history(1)[0]["operationMetrics"]
        assert int(metrics["num_target_files_scanned"]) == 1, metrics
    assert len(states(tmp_path)) == 1100


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("mode", OPTIONS)
async def test_a_repair_ends_and_opens_rows(tmp_path: Path, mode: str) -> None:
    copy, source = tmp_path / "copy", tmp_path / "orders"
    await to_thread.run_sync(write, source)
    sink = make_mirror(copy, **OPTIONS[mode])
    engine = ChangelogEngine(LocalEngine(), PairingRules())
    first, last = Start(StartKind.EARLIEST), Start(StartKind.VERSION, 1)
    await row_pipeline("orders", log_of(source), sink, engine, TimerWake(), first, last).run()
    count = len(mirror_rows(copy))
    await to_thread.run_sync(plant, copy, PLANTED, SUPERFLUOUS)
    open_mirror = partial(sink.open_mirror, "orders")
    found = [each async for each in repair(open_mirror, log_of(source), LocalEngine(), Policy(), 100)]
    assert [each.is_equal for each in found] == [False, True]
    assert sum(found[0].counts.values()) == len(PLANTED) + 1
    rows = mirror_rows(copy).to_pylist()
    superfluous = [row for row in rows if row["id"] == 1000]
    end = "_deleted_version" if mode == "mark" else "_valid_to_version"
    assert [row[end] for row in superfluous] == [1]
    # Of each row that differed, a history has both states: the wrong one until the version that was compared.
    changed = len([one for one, change in PLANTED.items() if change is not None and one != 11])
    assert len(rows) == count + 1 + (changed if mode == "history" else 0)
