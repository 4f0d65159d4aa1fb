"""Delivery in shards, without Spark: an exchange in this process, into memory."""

from collections import Counter
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from anyio import to_thread

from tailer.changelog.engine import ChangelogEngine, ChangelogReport
from tailer.changelog.rules import Carryovers, PairingRules
from tailer.config.pipelines import PipelineSettings
from tailer.config.shapes import Writers
from tailer.config.tables import TableRef
from tailer.engine.local import LocalEngine
from tailer.errors import SinkRejected
from tailer.events import ChangeBatch, SchemaChange
from tailer.pipeline.loop import Pipeline
from tailer.pipeline.policy import Policy
from tailer.pipeline.status import PipelineStatus
from tailer.plan import Position
from tailer.read.data_files import DataFile, DataFiles
from tailer.sink import Demands, Progress, shard_name
from tailer.spark.write import shard_delivery
from tailer.start import Start, StartKind
from tailer.stores.wakeup import TimerWake
from tailer_sinks.memory import MemoryDestination, MemorySink
from tests.support.follow import follow, snapshot
from tests.support.kafka.history import TABLE_ID, History
from tests.support.kafka.shards import LocalExchange
from tests.support.tables.log_files import add, metadata, parquet, protocol, remove, schema_string, write_commit

pytestmark = pytest.mark.anyio

SHARDS: Final = 4
BY_ID: Final = PairingRules(compute_updates=True, key=("id",), null_keys=True)


class Shared(MemorySink):
    """A sink that several processes may write. `ends`: the positions of all its transactions, by app id."""

    distributes = True

    def __init__(self, destination: MemoryDestination, demands: Demands, splits: bool, refused: object) -> None:
        super().__init__("memory", destination)
        self._demands = demands
        self.splits_versions = splits  # type: ignore[misc]
        self._refused = refused

    @property
    def demands(self) -> Demands:
        return self._demands

    def commit(self, token: object, items: list[Any], progress: Progress) -> None:
        for item in items:
            if isinstance(item, ChangeBatch) and self._refused in item.rows.column(0).to_pylist():
                raise SinkRejected(self.name, "this row")
        super().commit(token, items, progress)
        self.destination.ends.setdefault(progress.app_id, []).append(progress.position)  # type: ignore[attr-defined]


class Ended(MemoryDestination):
    """A destination with the positions of all transactions, by app id."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: dict[str, list[Position]] = {}


class Place:
    """A pipeline in shards over the table at `path`, into one destination."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.there = Ended()
        self.demands = Demands(key=("id",))
        self.splits = True
        self.refused: object = object()
        self.start = "earliest"
        self.rules = BY_ID
        self.types: frozenset[str] = frozenset()
        self.status = PipelineStatus("p")
        monkeypatch.setattr(PipelineSettings, "make_sink", lambda _: self.sink())

    def sink(self) -> Shared:
        return Shared(self.there, self.demands, self.splits, self.refused)

    def pipeline(self, last: int) -> Pipeline:
        start, until = Start.parse(self.start), Start(StartKind.VERSION, last)
        policy = Policy(types=self.types)
        table = TableRef(str(self.path))
        settings = PipelineSettings(
            name="p",
            source=table,
            start=start,
            policy=policy,
            pairing=self.rules,
            poll_interval_s=0.01,
            sink_kind="memory",
            sink_options={},
            write=Writers.EXECUTORS,
            shards=SHARDS,
        )
        exchange, wake = LocalExchange(), TimerWake()
        return shard_delivery.sharded_pipeline(
            settings, settings.open_table(), self.sink(), exchange, wake, until=until, status=self.status
        )

    async def deliver(self, last: int) -> None:
        await self.pipeline(last).run()

    def app_ids(self, table_id: str = TABLE_ID) -> list[str]:
        return [f"{shard_name('p', shard, SHARDS)}/{table_id}" for shard in range(SHARDS)]

    def places(self, table_id: str = TABLE_ID) -> list[Position]:
        return [self.there.progress[app_id].position for app_id in self.app_ids(table_id)]

    def rows(self) -> Counter[str]:
        return Counter(str(row) for app_id in self.there.log for row in self.there.rows(app_id))

    def announced(self, table_id: str = TABLE_ID) -> list[list[tuple[int, int]]]:
        """Return the changes of columns that each shard was told of: the version, and how many columns there are."""
        found = [self.there.events(app_id) for app_id in self.app_ids(table_id)]
        return [
            [(event.version, len(event.after) - 3) for event in events if isinstance(event, SchemaChange)]
            for events in found
        ]


@pytest.fixture
def history(tmp_path: Path) -> History:
    history = History(tmp_path / "table", seed=3, length=25, large=300, large_every=8)
    history.publish(history.length)
    return history


@pytest.fixture
def place(history: History, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(history.path, monkeypatch)


def expected(path: Path, rules: PairingRules = BY_ID) -> Counter[str]:
    engine = ChangelogEngine(LocalEngine(), rules)
    return Counter(
        str(row) for each in follow(path, engine=engine) for batch in each.batches for row in batch.rows.to_pylist()
    )


async def test_rows_are_those_of_one_process(place: Place, history: History) -> None:
    await place.deliver(11)
    await place.deliver(history.last)
    assert place.rows() == await to_thread.run_sync(expected, place.path)
    assert place.places() == [Position.end(history.last)] * SHARDS


async def test_each_file_is_opened_once(place: Place, history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    """As often as one process opens it, whatever the number of shards.

    Of change files, one process decodes both tasks at once, and executors do not.
    """
    opened: Counter[str] = Counter()
    made = DataFiles.open

    def noted(files: DataFiles, uri: str, needed_bytes: int = 0) -> DataFile:
        opened[uri] += 1
        return made(files, uri, needed_bytes)

    monkeypatch.setattr(DataFiles, "open", noted)
    assert await to_thread.run_sync(expected, place.path)
    alone = opened.copy()
    opened.clear()
    await place.deliver(history.last)
    changes = {uri for uri in opened if "/_change_data/" in uri}
    assert {uri: opened[uri] for uri in opened.keys() - changes} == {uri: alone[uri] for uri in alone.keys() - changes}
    assert opened.keys() == alone.keys()
    assert Counter(opened.values()).most_common(1)[0][0] == 1


async def test_whole_versions(place: Place, history: History) -> None:
    place.splits, place.demands = False, Demands(("id",), max_rows=1)
    await place.deliver(history.last)
    assert place.rows() == await to_thread.run_sync(expected, place.path)
    for app_id in place.app_ids():
        assert all(end.closes_version for end in place.there.ends[app_id])
        assert len(place.there.ends[app_id]) > history.length / 2


async def test_small_transactions(place: Place, history: History) -> None:
    place.demands = Demands(("id",), max_rows=1)
    await place.deliver(history.last)
    assert place.rows() == await to_thread.run_sync(expected, place.path)
    assert any(end.is_inside for app_id in place.app_ids() for end in place.there.ends[app_id])


async def test_changes_of_some_types(place: Place, history: History) -> None:
    """Also where transactions end inside versions."""
    place.types, place.demands = frozenset({"update_preimage", "update_postimage"}), Demands(("id",), max_rows=1)
    await place.deliver(11)
    await place.deliver(history.last)
    everything = await to_thread.run_sync(expected, place.path)
    wanted = Counter({row: count for row, count in everything.items() if "'update_" in row})
    assert place.rows() == wanted
    assert 0 < wanted.total() < everything.total()
    assert place.places() == [Position.end(history.last)] * SHARDS


async def test_a_row_that_is_refused(place: Place, history: History) -> None:
    """All versions before it are delivered."""
    wanted = [row for each in await to_thread.run_sync(follow, place.path) for row in each.table.to_pylist()]
    first = next(row for row in wanted if row["_commit_version"] == 17)
    place.refused = first["id"]
    at = min(row["_commit_version"] for row in wanted if row["id"] == first["id"])
    with pytest.raises(SinkRejected):
        await place.deliver(history.last)
    assert min(place.places()) == Position.end(at - 1)
    place.refused = object()
    await place.deliver(history.last)
    assert place.rows() == await to_thread.run_sync(expected, place.path)


async def test_a_snapshot_in_parts(place: Place, history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped after each part, it goes on where it was."""
    monkeypatch.setattr(shard_delivery, "RANGE_BYTES", 1)
    place.start = "snapshot"
    made = shard_delivery.ShardSession._deliver
    parts = 0
    running: list[Pipeline] = []

    async def stopping(session: shard_delivery.ShardSession, *arguments: Any) -> None:
        nonlocal parts
        parts += 1
        running[-1].stop()
        await made(session, *arguments)

    monkeypatch.setattr(shard_delivery.ShardSession, "_deliver", stopping)
    inside = 0
    while not place.there.progress or min(place.places()) < Position.end(history.last):
        running.append(place.pipeline(history.last))
        await running[-1].run()
        inside += min(place.places()).in_snapshot
    assert parts > 2
    assert inside == parts - 1
    found = await to_thread.run_sync(snapshot, place.path)
    wanted = Counter(str(row) for batch in found.batches for row in batch.rows.to_pylist())
    assert place.rows() == wanted


def rows_of(table: Path, name: str, **columns: list[int]) -> Any:
    return add(name, size=parquet(table / name, pa.table(columns)).stat().st_size)


def changing(table: Path) -> None:
    """Write versions that add a column: with deletes and inserts, with inserts only, and without rows."""
    one, two = schema_string(id="long"), schema_string(id="long", n="long")
    three, four = schema_string(id="long", n="long", m="long"), schema_string(id="long", n="long", m="long", o="long")
    write_commit(table, 0, protocol(), metadata(one, table_id=TABLE_ID), rows_of(table, "0", id=list(range(20))))
    new = rows_of(table, "1", id=list(range(30)), n=[1] * 30)
    write_commit(table, 1, metadata(two, table_id=TABLE_ID), remove("0"), new)
    write_commit(table, 2, metadata(three, table_id=TABLE_ID))
    write_commit(table, 3, metadata(four, table_id=TABLE_ID), rows_of(table, "3", id=[7], n=[1], m=[2], o=[3]))
    write_commit(table, 4, rows_of(table, "4", id=[8], n=[1], m=[2], o=[3]))


CHANGES: Final = [(1, 2), (2, 3), (3, 4)]


@pytest.mark.parametrize("max_rows", [1, 1000])
async def test_each_shard_hears_once_of_columns_that_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_rows: int
) -> None:
    changing(tmp_path / "table")
    place = Place(tmp_path / "table", monkeypatch)
    place.demands, place.rules = Demands(max_rows=max_rows), PairingRules()
    await place.deliver(4)
    assert place.announced() == [CHANGES] * SHARDS
    assert place.rows() == await to_thread.run_sync(expected, place.path, place.rules)


@pytest.mark.parametrize(
    ("at", "rest"),
    [
        (Position(1, 0, 5), CHANGES),  # among the deletes, which have the columns before
        (Position(1, 1, 5), CHANGES[1:]),
        (Position.end(1), CHANGES[1:]),
        (Position.end(2), CHANGES[2:]),
        (Position.end(3), []),
    ],
)
async def test_what_a_shard_was_told_of_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: Position, rest: list[tuple[int, int]]
) -> None:
    """The others have everything."""
    changing(tmp_path / "table")
    place = Place(tmp_path / "table", monkeypatch)
    place.demands, place.rules = Demands(), PairingRules(Carryovers.KEEP)
    await place.deliver(4)
    assert place.rows() == await to_thread.run_sync(expected, place.path, place.rules)
    told = place.announced()
    first = place.app_ids()[0]
    place.there.progress[first] = Progress(first, at)
    place.there.log[first].clear()
    await place.deliver(4)
    assert place.announced() == [rest, *told[1:]]
    assert place.places() == [Position.end(4)] * SHARDS


async def test_a_table_that_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, schema = tmp_path / "table", schema_string(id="long")
    write_commit(table, 0, protocol(), metadata(schema, table_id="one"), rows_of(table, "0", id=[1, 2, 3]))
    write_commit(table, 1, metadata(schema, table_id="other"), rows_of(table, "1", id=[4]))
    write_commit(table, 2, rows_of(table, "2", id=[5]))
    place = Place(table, monkeypatch)
    await place.deliver(2)
    assert place.places("one") == [Position.end(0)] * SHARDS
    assert place.places("other") == [Position.end(2)] * SHARDS
    assert sum(place.rows().values()) == 5


async def test_comparisons_are_counted_once(place: Place, history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, Any]] = []
    monkeypatch.setattr(ChangelogReport, "note", lambda _, plan, counts: told.append((plan.version, counts)))
    await place.deliver(history.last)
    wanted: list[tuple[int, Any]] = []
    engine = ChangelogEngine(LocalEngine(), BY_ID, lambda plan, counts: wanted.append((plan.version, counts)))
    await to_thread.run_sync(lambda: follow(place.path, engine=engine))
    assert sorted(told, key=lambda each: each[0]) == wanted
    assert wanted
