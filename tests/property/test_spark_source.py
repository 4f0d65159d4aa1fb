"""Queries on the data source over histories with schema changes, compared with `LocalEngine` and Spark's own feed.

No Spark runs here: `tests.support.spark.queries` makes Spark's calls in its order, with random kills.
"""

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tailer.errors import ConfigError, SchemaChanged, TableReplaced, VersionAhead
from tailer.events import CHANGE_TYPE, COMMIT_VERSION
from tailer.plan import SNAPSHOT_TASKS, Regime
from tests.support.follow import Followed, follow, snapshot
from tests.support.oracle.column_identity import Schema, restate
from tests.support.oracle.recorded import HISTORIES, RecordedTable, read
from tests.support.oracle.rows import COME, METADATA, Rows, assert_same, rows_of, type_name
from tests.support.seeds import seeds
from tests.support.spark.batches import placed, places_of
from tests.support.spark.queries import Checkpoint, Crash, Query, Trigger, read_batch, rows_of_all
from tests.support.tables.mapped import MappedTable, Rewriting

pytestmark = pytest.mark.long

WRITTEN: Final = sorted(HISTORIES.glob("*.tar.xz"))
# Rows deleted by a version that changes the type of their column, or that ends column mapping (02): not even that
# version's own columns hold them.
RETYPED: Final = {"00": [27], "02": [28], "03": [5], "07": [2, 25], "09": [28], "10": [19]}
FOLLOWED: Final = [archive for archive in WRITTEN if archive.name[:2] not in RETYPED]
histories = pytest.mark.parametrize(
    "archive",
    [*WRITTEN[:4], *(pytest.param(archive, marks=pytest.mark.nightly) for archive in WRITTEN[4:])],
    ids=lambda archive: archive.name[:2],
)


def restated(recorded: RecordedTable, version: Followed, columns: Schema) -> Rows:
    """Return the change rows of a version in the columns of another one."""
    at = version.plan.version
    old, new = recorded.schemas.get(at - 1, recorded.schemas[at]), recorded.schemas[at]
    found = Rows()
    for table in version.tables:
        come = pc.is_in(table.column(CHANGE_TYPE), pa.array(COME))
        gone = new if version.plan.regime is Regime.CDC else old
        for rows, schema in ((table.filter(come), new), (table.filter(pc.invert(come)), gone)):
            found += restate(rows_of(rows), schema, columns, keep=frozenset(METADATA))
    return found


@histories
def test_every_version_as_a_batch(archive: Path, tmp_path: Path) -> None:
    """Each in the columns and types of the version; and all of them, or the newest ones, in those of the last."""
    recorded = read(archive, tmp_path)
    refused = []
    versions = {version.plan.version: version for version in follow(recorded.path, recorded.first)}
    for at, version in versions.items():
        try:
            found = read_batch(path=recorded.path, startingVersion=at, endingVersion=at, carryovers="keep")
        except SchemaChanged:
            refused.append(at)
            continue
        types = [(field.name, type_name(field.type)) for field in found.schema][:-3]
        assert types == [(field.name, type_name(field.type)) for field in recorded.answers[at].snapshot.schema]
        assert_same(rows_of(found), restated(recorded, version, recorded.schemas[at]), recorded.where(at, "batch"))
    assert refused == RETYPED.get(archive.name[:2], [])


class Unfolding:
    """A history whose versions appear one after the other."""

    def __init__(self, recorded: RecordedTable) -> None:
        self.recorded = recorded
        self.version = recorded.first
        self._log = recorded.path / "_delta_log"
        self._aside = recorded.path.parent / "aside"
        self._aside.mkdir()
        for file in list(self._log.iterdir()):
            if file.is_file() and not file.name[:20].isdigit():
                file.unlink()
            elif file.is_file() and int(file.name[:20]) > self.version:
                file.rename(self._aside / file.name)

    @property
    def is_whole(self) -> bool:
        """Return whether all versions have appeared."""
        return self.version == self.recorded.last

    def go_on(self) -> None:
        """Let the next version appear."""
        self.version = min(self.version + 1, self.recorded.last)
        for file in sorted(self._aside.iterdir()):
            if int(file.name[:20]) <= self.version:
                file.rename(self._log / file.name)


@pytest.mark.parametrize(
    "archive",
    [*FOLLOWED[:2], *(pytest.param(archive, marks=pytest.mark.nightly) for archive in FOLLOWED[2:])],
    ids=lambda archive: archive.name[:2],
)
def test_a_typed_stream_goes_on_after_each_restart(archive: Path, tmp_path: Path) -> None:
    """It reads versions as they come, and stops before a version that changes the columns."""
    recorded = read(archive, tmp_path)
    versions = {version.plan.version: version for version in follow(recorded.path, recorded.first)}
    table, checkpoint, at_load = Unfolding(recorded), Checkpoint(), dict[int, int]()
    first = recorded.first
    # Column types come with a version that exists when the query is loaded.
    while True:
        query, loaded = Query(checkpoint, path=recorded.path, startingVersion=first, carryovers="keep"), table.version
        begun = checkpoint.committed

        def grow(_: int) -> None:
            if not checkpoint.offsets or _is_end(checkpoint.place, table.version):
                table.go_on()

        stopped = query.run(between=grow)
        at_load |= dict.fromkeys(range(begun, checkpoint.committed), loaded)
        if stopped is None:
            break
        assert isinstance(stopped, SchemaChanged)
        assert "restart the query" in " ".join(stopped.__notes__)
        assert _is_end(checkpoint.place, table.version - 1)
        assert checkpoint.committed > begun or loaded < table.version
    assert table.is_whole
    found: Counter[int] = Counter()
    for number, rows in checkpoint.batches.items():
        columns = recorded.schemas[at_load[number]]
        for at in pc.unique(rows.column(COMMIT_VERSION)).to_pylist():
            own = rows_of(rows.filter(pc.equal(rows.column(COMMIT_VERSION), at)))
            assert_same(own, restated(recorded, versions[at], columns), recorded.where(at, "stream"))
            found[at] += 1
    assert found == Counter([at for at, version in versions.items() if version.tables])


def _is_end(place: dict[str, Any], version: int) -> bool:
    return bool(place["version"] == version and place["task"] > SNAPSHOT_TASKS * 2 - 2)


@pytest.mark.parametrize(
    "archive",
    [
        *FOLLOWED[1::4],
        *(pytest.param(each, marks=pytest.mark.nightly) for each in WRITTEN if each not in FOLLOWED),
    ],
    ids=lambda archive: archive.name[:2],
)
def test_an_envelope_goes_through_everything(archive: Path, tmp_path: Path) -> None:
    """Killed and cut anywhere: each row once, in its position, and an event for each schema change."""
    recorded, chance = read(archive, tmp_path), random.Random(archive.name)
    checkpoint = Checkpoint()
    options = {"path": recorded.path, "startingVersion": recorded.first, "carryovers": "keep", "schema": "envelope"}
    run_to_the_end(checkpoint, lambda: {**options, "maxRowsPerTrigger": chance.randint(1, 60)}, chance)
    rows = [row for table in checkpoint.tables for row in table.to_pylist()]
    events = [row for row in rows if row[CHANGE_TYPE] == "schema_change"]
    found = [(r[COMMIT_VERSION], r["_task"], r["_row"], r[CHANGE_TYPE]) for r in rows if r not in events]
    expected = [place[:4] for place in places_of(recorded.path, first=recorded.first).elements()]
    assert sorted(found) == sorted(expected)
    assert len({row["_event_id"] for row in rows}) == len(rows)
    changed = {event[COMMIT_VERSION] for event in events}
    at = range(recorded.first + 1, recorded.last + 1)
    assert len(changed) == len(events)
    assert {v for v in at if _columns(recorded, v) != _columns(recorded, v - 1)} <= changed
    assert changed <= {v for v in at if recorded.schemas[v] != recorded.schemas[v - 1]}
    for event in events:
        columns = [column["name"] for column in json.loads(event["value"])["columns"]]
        assert columns == [field["name"] for field in recorded.schemas[event[COMMIT_VERSION]]["fields"]]


def _columns(recorded: RecordedTable, version: int) -> list[tuple[str, Any]]:
    """Return names and types of columns, without fields of structs, whose form changes when mapping begins."""
    fields = recorded.schemas[version]["fields"]
    return [(field["name"], field["type"] if isinstance(field["type"], str) else None) for field in fields]


def run_to_the_end(
    checkpoint: Checkpoint,
    options: Callable[[], dict[str, Any]],
    chance: random.Random,
    between: Callable[[int], object] = bool,
) -> None:
    """Run a query that is killed at every fifth batch, and restarted with the same checkpoint."""
    while True:
        try:
            stopped = Query(checkpoint, **options()).run(between=between, crash=lambda _: chance.random() < 0.2)
        except Crash:
            continue
        assert stopped is None, str(stopped)
        return


@pytest.mark.parametrize("seed", seeds(2))
def test_a_snapshot_and_what_follows_have_no_gap_and_no_double(seed: int, tmp_path: Path) -> None:
    """The table gets new versions between load and start, and afterwards."""
    chance, table = random.Random(seed), MappedTable(tmp_path, a="long")
    for first in range(0, 60, 20):
        table.insert(a=range(first, first + 20), row_group_size=7)
    ids = iter(range(1000, 2000))

    def move(_: int = 0) -> None:
        if table.version < 20 and chance.random() < 0.6:
            table.insert(a=[next(ids) for _ in range(chance.randint(1, 9))])
            if chance.random() < 0.5:
                table.delete_oldest()

    def options() -> dict[str, Any]:
        limit = chance.choice(["maxRowsPerTrigger", "maxFilesPerTrigger", "maxBytesPerTrigger"])
        return {"path": tmp_path, limit: chance.randint(1, 9) * (500 if "Bytes" in limit else 1)}

    checkpoint = Checkpoint()
    Query(checkpoint, **options()).run(Trigger.AVAILABLE_NOW, between=lambda n: move() if n == 0 else None)
    run_to_the_end(checkpoint, options, chance, between=move)
    found: Counter[int] = Counter()
    for row in rows_of_all(checkpoint).to_pylist():
        found[row["a"]] += 1 if row[CHANGE_TYPE] == "insert" else -1
        assert found[row["a"]] in (0, 1)
    assert +found == Counter(a for values in table.files.values() for a in values["a"])
    begun = json.loads(checkpoint.offsets[0])["version"]
    before = {place[1:] for place in placed(snapshot(tmp_path, begun).batches)}
    assert sum(pc.equal(rows_of_all(checkpoint)[COMMIT_VERSION], begun).to_pylist()) == len(before)


def changes_in(rows: pa.Table) -> Counter[tuple[str, int, str]]:
    """Return the change rows of a `Rewriting`."""
    return Counter((row[CHANGE_TYPE], row["k"], row["v"]) for row in rows.to_pylist())


@pytest.mark.parametrize("seed", seeds(2))
def test_net_changes_of_batches_and_micro_batches(seed: int, tmp_path: Path) -> None:
    made, chance = Rewriting(tmp_path, seed), random.Random(seed)
    last = made.table.version
    for first in (1, chance.randint(2, last)):
        for updates in (True, False):
            options = {"path": tmp_path, "netChanges": True, "key": "k", "computeUpdates": updates}
            assert changes_in(read_batch(**options, startingVersion=first)) == made.changes(first - 1, last, updates)
    checkpoint = Checkpoint()
    given = {"path": tmp_path, "netChanges": True, "key": "K", "computeUpdates": True, "startingVersion": 0}
    run_to_the_end(checkpoint, lambda: {**given, "maxFilesPerTrigger": chance.randint(1, 9)}, chance)
    before = 0
    for number, rows in sorted(checkpoint.batches.items()):
        place = json.loads(checkpoint.offsets[number + 1])
        assert _is_end(place, place["version"])
        assert changes_in(rows) == made.changes(before, place["version"])
        before = place["version"]
    assert before == last


@pytest.mark.parametrize("seed", seeds(2))
def test_updates_and_columns(seed: int, tmp_path: Path) -> None:
    made, chance = Rewriting(tmp_path, seed), random.Random(seed)
    checkpoint = Checkpoint()
    options = {"path": tmp_path, "computeUpdates": True, "key": "k", "startingVersion": 0}
    run_to_the_end(checkpoint, lambda: {**options, "maxRowsPerTrigger": chance.randint(1, 20)}, chance)
    expected = sum((made.changes(at - 1, at) for at in range(1, made.table.version + 1)), Counter())
    assert changes_in(rows_of_all(checkpoint)) == expected
    for trigger in Trigger:
        checkpoint = Checkpoint()
        narrow = {"path": tmp_path, "startingVersion": 0, "columns": "K", "carryovers": "keep"}
        assert Query(checkpoint, **narrow, maxRowsPerTrigger=3).run(trigger) is None
        rows = rows_of_all(checkpoint)
        assert rows.schema.names == ["k", *METADATA]
        everything = read_batch(path=tmp_path, startingVersion=0, carryovers="keep").to_pylist()
        assert sorted(rows["k"].to_pylist()) == sorted(row["k"] for row in everything)


def test_dropped_columns_are_left_out_on_request_after_a_restart(tmp_path: Path) -> None:
    """Rows with a column that is dropped by the time of the restart; `columns` or the envelope continue from there."""
    table = MappedTable(tmp_path, a="integer", b="string")
    table.insert(a=[1], b=["x"])
    checkpoint = Checkpoint()
    assert Query(checkpoint, path=tmp_path).run() is None
    table.rename("b", "c")
    table.retype("a", "long")
    table.add_column("d", "double", a=[2**40], c=["y"], d=[0.5])
    table.drop("d")
    table.add_column("e", "short", a=[3], c=["z"], e=[7])
    stopped = Query(checkpoint, path=tmp_path).run()
    assert isinstance(stopped, SchemaChanged)
    assert "give the option columns" in " ".join(stopped.__notes__)
    assert _is_end(checkpoint.place, 3)
    assert Query(checkpoint, path=tmp_path, columns="a, c, e").run() is None
    found = [row for rows in checkpoint.tables[1:] for row in rows.drop_columns(list(METADATA)).to_pylist()]
    assert sorted(found, key=str) == [{"a": 2**40, "c": "y", "e": None}, {"a": 3, "c": "z", "e": 7}]


@pytest.mark.parametrize("change", ["add", "rename", "widen", "drop"])
def test_columns_that_change_between_load_and_start(change: str, tmp_path: Path) -> None:
    table = MappedTable(tmp_path, a="integer", b="string")
    table.insert(a=[1], b=["x"])
    checkpoint = Checkpoint()
    query = Query(checkpoint, path=tmp_path)
    match change:
        case "add":
            table.add_column("c", "long", a=[2], b=["y"], c=[5])
        case "rename":
            table.rename("b", "c")
        case "widen":
            table.retype("a", "long")
        case "drop":
            table.drop("b")
    stopped = query.run()
    if stopped is not None:
        assert isinstance(stopped, SchemaChanged)
        assert not checkpoint.tables
        assert Query(checkpoint, path=tmp_path).run() is None
    assert sorted(rows_of_all(checkpoint)["a"].to_pylist()) == ([1, 2] if change == "add" else [1])


def test_another_table_in_the_place_of_one(tmp_path: Path) -> None:
    """After REPLACE TABLE a stream continues with the same columns; a table recreated in the folder stops it."""
    table = MappedTable(tmp_path / "t", a="long")
    table.insert(a=[1])
    checkpoint = Checkpoint()
    assert Query(checkpoint, path=table.path, startingVersion=0).run() is None
    table.table_id = "other"
    removed = table.take(next(iter(table.files)))
    table.commit(table.metadata(), removed, table.put(a=[2]))
    table.insert(a=[3])
    assert Query(checkpoint, path=table.path, startingVersion=0, maxFilesPerTrigger=1).run() is None
    kinds = [(row["a"], row[CHANGE_TYPE]) for row in rows_of_all(checkpoint).to_pylist()]
    assert sorted(kinds) == [(1, "delete"), (1, "insert"), (2, "insert"), (3, "insert")]
    assert checkpoint.place["tableId"] == "other"
    table.path.rename(tmp_path / "old")
    recreated = MappedTable(tmp_path / "t", table_id="new", a="long")
    for number in range(2):
        assert isinstance(Query(checkpoint, path=table.path, startingVersion=0).run(), VersionAhead)
        recreated.insert(a=[number])
    recreated.insert(a=[2])
    stopped = Query(checkpoint, path=table.path, startingVersion=0).run()
    assert isinstance(stopped, TableReplaced)
    assert "new checkpoint folder" in " ".join(stopped.__notes__)


@pytest.mark.parametrize("trigger", Trigger)
def test_starts_and_ends_of_streams(trigger: Trigger, tmp_path: Path) -> None:
    table = MappedTable(tmp_path, a="long")
    for number in range(1, 4):
        table.insert(a=[number])

    def delivered(**options: Any) -> list[int]:
        checkpoint = Checkpoint()
        assert Query(checkpoint, path=tmp_path, maxFilesPerTrigger=1, **options).run(trigger) is None
        assert Query(checkpoint, path=tmp_path, **options).run(trigger) is None  # no row comes twice
        return sorted(row["a"] for rows in checkpoint.tables for row in rows.to_pylist())

    assert delivered() == delivered(startingVersion="earliest") == [1, 2, 3]
    assert delivered(startingVersion="latest") == delivered(startingVersion=4) == []
    assert delivered(startingVersion=2, endingVersion=2) == [2]
    assert delivered(startingVersion=2, endingVersion=9) == [2, 3]
    table.insert(a=[4])
    checkpoint = Checkpoint()
    query = Query(checkpoint, path=tmp_path, startingVersion=3, endingVersion=5)
    assert (
        query.run(trigger, between=lambda _: table.insert(a=[table.version + 1]) if table.version < 7 else None) is None
    )
    while checkpoint.place["version"] < 5:
        assert Query(checkpoint, path=tmp_path, startingVersion=3, endingVersion=5).run(trigger) is None
    assert sorted(rows_of_all(checkpoint)["a"].to_pylist()) == [3, 4, 5]
    assert _is_end(checkpoint.place, 5)


@pytest.mark.parametrize("start", [{}, {"startingVersion": "latest"}, {"startingVersion": "earliest"}], ids=str)
@pytest.mark.parametrize("limit", [{}, {"maxRowsPerTrigger": 2}], ids=str)
def test_killed_in_the_first_batch(start: dict[str, str], limit: dict[str, int], tmp_path: Path) -> None:
    """Spark has not recorded the start of the stream yet, and the default start has moved."""
    table = MappedTable(tmp_path, a="long")
    table.insert(a=[1, 2, 3])
    checkpoint = Checkpoint()

    def more(_: int) -> None:
        if table.version < 2:
            table.insert(a=[4, 5])

    first = Query(checkpoint, path=tmp_path, **start, **limit)
    with pytest.raises(Crash):
        first.run(between=more if start.get("startingVersion") == "latest" else bool, crash=lambda _: True)
    more(0)
    table.insert(a=[6])
    assert Query(checkpoint, path=tmp_path, **start, **limit).run() is None
    wanted = [4, 5, 6] if start.get("startingVersion") == "latest" else [1, 2, 3, 4, 5, 6]
    assert sorted(rows_of_all(checkpoint)["a"].to_pylist()) == wanted


def test_other_offsets_are_refused_with_what_to_do(tmp_path: Path) -> None:
    table = MappedTable(tmp_path, a="long")
    table.insert(a=[1])
    checkpoint = Checkpoint()
    assert Query(checkpoint, path=tmp_path, startingVersion=0, appId="one").run() is None
    for other in ({"appId": "two"}, {}):
        stopped = Query(checkpoint, path=tmp_path, startingVersion=0, **other).run()
        assert isinstance(stopped, ConfigError)
        assert "Give the appId that the query began with" in " ".join(stopped.__notes__)
    foreign = '{"sourceVersion":1,"index":-1}'
    stopped = Query(Checkpoint([foreign, foreign], committed=1), path=tmp_path, startingVersion=0).run()
    assert isinstance(stopped, ConfigError)
    assert "a checkpoint folder of its own" in " ".join(stopped.__notes__)


def test_columns_are_chosen_by_what_they_are_not_by_what_they_are_called(tmp_path: Path) -> None:
    table = MappedTable(tmp_path, a="long", b="long")
    table.insert(a=[1], b=[10])
    table.rename("b", "c")
    table.insert(a=[2], c=[20])
    options = {"path": tmp_path, "startingVersion": 0, "schema": "envelope", "columns": "c"}
    found = read_batch(**options).to_pylist()
    values = [json.loads(row["value"]) for row in found if row["_change_type"] == "insert"]
    assert sorted(values, key=str) == [{"b": 10}, {"c": 20}]
    assert [json.loads(row["value"])["changes"] for row in found if row["_change_type"] == "schema_change"] == [
        ["column b was renamed to c"]
    ]
