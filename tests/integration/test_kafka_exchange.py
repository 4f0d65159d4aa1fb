"""Ranges of versions of the daemon into Kafka, read once and brought to their shards by Spark's exchange.

Messages are those of one process. Wherever a range ended early, the next one goes on.

On every landing: every change once, a version in part, different places, cancellation and damage, in this module.
"""

import json
import math
import random
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Final

import anyio
import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from anyio import create_task_group, fail_after, to_thread
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession

from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.rules import Carryovers, PairingRules, concerns
from tailer.engine.local import LocalEngine
from tailer.errors import DataCorrupt, EngineUnavailable, FileVacuumed, SinkFenced
from tailer.pipeline.policy import Policy
from tailer.plan import END, Position
from tailer.shards.worker import ShardReport, ShardWork
from tailer.spark.native import comparing
from tailer.spark.splits import DiffSplit, Split
from tailer.spark.write import exchange
from tailer.spark.write.exchange import ShardExchange, deliver_exchanged
from tailer.spark.write.shard_rows import ShardRows
from tests.support.follow import follow, plans
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.history import History
from tests.support.kafka.lanes import FORMS
from tests.support.kafka.sharded_delivery import ShardedDelivery
from tests.support.kafka.topics import Record, unique_name
from tests.support.oracle.recorded import HISTORIES, read
from tests.support.seeds import seeds
from tests.support.tables.log_files import add, metadata, parquet, protocol, remove, schema_string, write_commit
from tests.support.tables.mapped import Rewriting
from tests.support.tables.schema_changes import Reshaped

SHARDS = 3
COMMITS: Final = 12  # after the first version of a history
ENDS_S = 60.0


class Noted(ShardExchange):
    """An exchange through Spark that notes the last versions of its ranges, and the reports of their shards.

    `fails_at`: a version behind whose range the driver fails, once. `before`: called before each range.
    """

    def __init__(self, spark: SparkSession) -> None:
        super().__init__(lambda: spark)
        self.lasts: list[int] = []
        self.reports: list[ShardReport] = []
        self.fails_at: int | None = None
        self.before: Callable[[], Awaitable[None]] | None = None

    async def deliver(self, splits: Sequence[Split], work: ShardWork, key: Sequence[str]) -> list[ShardReport]:
        if self.before is not None:
            await self.before()
        found = await super().deliver(splits, work, key)
        self.lasts.append(work.through.version)
        self.reports += found
        if self.fails_at is not None and work.through.version >= self.fails_at:
            self.fails_at = None
            raise EngineUnavailable("Spark", "the driver fails")
        return found


@pytest.fixture(params=[0, comparing.SHARED_BYTES], ids=["all compare", "one compares"])
def versions(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> list[int]:
    """Return a list of the versions that all executors compare: all there are to compare, or none."""
    monkeypatch.setattr(comparing, "SHARED_BYTES", request.param)
    found: list[int] = []
    made = comparing.compared

    def compared(spark: SparkSession, split: DiffSplit, kept: ExitStack | None = None) -> comparing.Compared:
        found.append(split.plan.version)
        return made(spark, split, kept)

    monkeypatch.setattr(comparing, "compared", compared)
    return found


@pytest.fixture(params=FORMS)
def place(spark: SparkSession, kafka: KafkaCluster, tmp_path: Path, request: pytest.FixtureRequest) -> ShardedDelivery:
    history = History(tmp_path / "table", seed=6, length=COMMITS + 1, large=900, large_every=5)
    return noting(spark, ShardedDelivery(kafka, history, request.param))


def noting(spark: SparkSession, place: ShardedDelivery) -> ShardedDelivery:
    place.exchange = Noted(spark)
    return place


ALL_COMPARE: Final = pytest.mark.parametrize("versions", [0], indirect=True, ids=["all compare"])


def notes(place: ShardedDelivery) -> Noted:
    assert isinstance(place.exchange, Noted)
    return place.exchange


def published(place: ShardedDelivery, commits: int) -> None:
    assert isinstance(place.history, History)
    place.history.publish(commits)


def check(place: ShardedDelivery) -> None:
    """Compare all that was delivered with the history."""
    figures = place.figures(SHARDS)
    if place.lane.form == "flat":  # without a key shards have no common order
        figures = replace(figures, disordered=0)
    assert figures.all_zero, figures
    assert place.places(SHARDS) == [Position.end(place.last)] * SHARDS


def compared(place: ShardedDelivery) -> list[int]:
    """Return the versions whose rows must be compared."""
    rules = place.settings(SHARDS).pairing
    return [plan.version for plan in plans(place.table_path) if concerns(plan, rules)]


@pytest.mark.sampled(4)
def test_every_change_once_in_order(place: ShardedDelivery, versions: list[int]) -> None:
    for commits in (COMMITS // 2, COMMITS - COMMITS // 2):
        published(place, commits)
        place.deliver(SHARDS)
    check(place)
    assert notes(place).lasts == [COMMITS // 2, COMMITS]
    assert versions == ([] if comparing.SHARED_BYTES else compared(place))
    engine = ChangelogEngine(LocalEngine(), place.settings(SHARDS).pairing)
    expected = Counter(
        kind
        for found in follow(place.table_path, engine=engine)
        for batch in found.batches
        for kind in batch.rows.column("_change_type").to_pylist()
    )
    reports = notes(place).reports
    assert sum((report.rows for report in reports), Counter()) == expected
    assert sorted(plan.version for report in reports for plan, _ in report.compared) == compared(place)


@ALL_COMPARE
def test_chosen_rows_in_topics_of_their_own(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path, versions: list[int]
) -> None:
    """Every change of the filtered table once, with the columns that leave, in the topic that one of them names."""
    history = History(tmp_path / "table", seed=6, length=COMMITS + 1, large=900, large_every=5)
    place = noting(spark, ShardedDelivery(kafka, history, routed=True, chosen=True))
    published(place, COMMITS)
    place.deliver(SHARDS)
    check(place)
    assert len({record.topic for record in place.read("rows")}) == 2
    assert versions == compared(place)


@ALL_COMPARE
@pytest.mark.usefixtures("versions")
@pytest.mark.nightly
def test_masked_rows(spark: SparkSession, kafka: KafkaCluster, tmp_path: Path) -> None:
    history = History(tmp_path / "table", seed=6, length=12, large=400, large_every=9)
    history.publish(11)
    policy = Policy(where="n % 5 <> 0", select="id, sha2(note, 256) AS note, n")
    for record in check_messages(spark, kafka, history.path, PairingRules(), policy):
        assert re.fullmatch("[0-9a-f]{64}", json.loads(record.value or b"")["note"])


@pytest.mark.nightly
@pytest.mark.parametrize("place", ["keyed"], indirect=True)
def test_the_driver_fails_behind_a_range(place: ShardedDelivery) -> None:
    """It was delivered, and is not delivered again."""
    published(place, COMMITS)
    notes(place).fails_at = COMMITS
    place.deliver(SHARDS)
    check(place)


@ALL_COMPARE
@pytest.mark.parametrize("place", ["keyed"], indirect=True)
def test_shards_that_are_at_different_places(place: ShardedDelivery, versions: list[int]) -> None:
    """As after a failure: one has a version, the others do not."""
    published(place, COMMITS)
    found = compared(place)
    place.deliver(SHARDS, until=found[3] - 1)
    assert place.attempt(1, SHARDS, found[3]).error is None
    place.deliver(SHARDS)
    check(place)
    assert found[3] in versions


@ALL_COMPARE
def test_a_version_delivered_in_part(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path, versions: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All shards are inside of it when the job ends."""
    history = History(tmp_path / "table", seed=6, length=22, large=900, large_every=9)
    place = noting(spark, ShardedDelivery(kafka, history, "keyed"))
    published(place, 21)
    engine = ChangelogEngine(LocalEngine(), place.settings(SHARDS).pairing)
    found = max(
        (each for each in follow(place.table_path, engine=engine) if each.plan.version in compared(place)),
        key=lambda each: len({at.task for at in each.positions}),
    )
    tasks = sorted({at.task for at in found.positions})
    assert len(tasks) > 1
    inside, made = Position(found.plan.version, tasks[len(tasks) // 2 - 1], END), deliver_exchanged
    begun: list[Position] = []

    def half(rows: DataFrame, delivered: ShardRows) -> list[ShardReport]:
        if begun:
            return made(rows, delivered)
        some = rows.where(f"_version < {inside.version} OR (_version = {inside.version} AND _task <= {inside.task})")
        work = replace(delivered.work, through=inside)
        assert not any(report.error for report in made(some, replace(delivered, work=work)))
        begun.extend(place.places(SHARDS))
        raise OSError("the job fails")

    monkeypatch.setattr(exchange, "deliver_exchanged", half)
    place.deliver(SHARDS)
    check(place)
    assert begun == [inside] * SHARDS
    assert set(versions) == set(compared(place))


@ALL_COMPARE
@pytest.mark.parametrize("place", ["keyed"], indirect=True)
def test_executors_that_cannot_compare(
    place: ShardedDelivery, versions: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them compares each version then."""

    def broken(*_: object) -> None:
        raise OSError("no disk")

    monkeypatch.setattr(comparing, "compared", broken)
    published(place, COMMITS)
    place.deliver(SHARDS)
    check(place)
    assert versions == []


def rewritten(table: Path, version: int, rows: Sequence[dict[str, int]], schema: pa.Schema) -> None:
    """Commit a version that rewrites the file of the one before."""
    size = parquet(table / f"{version}.parquet", pa.Table.from_pylist(list(rows), schema)).stat().st_size
    changed = [] if version % 2 else [metadata(schema_string(**dict.fromkeys(schema.names, "long")))]
    write_commit(table, version, *changed, remove(f"{version - 1}.parquet"), add(f"{version}.parquet", size=size))


@ALL_COMPARE
def test_changes_of_columns_are_announced(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path, versions: list[int]
) -> None:
    """A range ends before each, and executors compare also such a version."""
    schema, path = pa.schema([("id", pa.int64())]), tmp_path / "table"
    rows = [{"id": key} for key in range(6)]
    first = add("0.parquet", size=parquet(path / "0.parquet", pa.Table.from_pylist(rows, schema)).stat().st_size)
    write_commit(path, 0, protocol(), metadata(schema_string(id="long")), first)
    place = ShardedDelivery(kafka, path, schema_topic=unique_name("schema"))
    place.exchange = Noted(spark)
    for version in range(1, 6):
        if version % 2 == 0:
            schema = schema.append(pa.field(f"n{version}", pa.int64()))
        rows = [row | dict.fromkeys(schema.names[1:], version) for row in rows[1:]]
        rewritten(path, version, rows, schema)
    place.deliver(SHARDS)
    assert notes(place).lasts == [1, 3, 5]
    messages = [json.loads(record.value or b"") for record in place.read("schema")]
    assert sorted((each["_commit_version"], each["shard"]) for each in messages) == [
        (version, shard) for version in (2, 4) for shard in range(SHARDS)
    ]
    # Rows of versions that change the columns have other columns before and after.
    assert versions == [1, 3, 5]
    found = [json.loads(record.value or b"null") for record in place.read("rows")]
    deleted = Counter(each["source"]["commit_version"] for each in found if each and each["op"] == "d")
    assert deleted == Counter(range(1, 6))


@ALL_COMPARE
@pytest.mark.usefixtures("versions")
@pytest.mark.parametrize("place", ["keyed"], indirect=True)
def test_cancelled_in_the_middle(spark: SparkSession, place: ShardedDelivery) -> None:
    """Its jobs end with it. The next instance delivers the rest."""
    published(place, COMMITS)

    async def cancelled(after_s: float) -> None:
        began = anyio.Event()

        async def begin() -> None:
            began.set()

        notes(place).before = begin
        with fail_after(ENDS_S):
            async with create_task_group() as group:
                group.start_soon(place.run, SHARDS, place.last)
                await began.wait()
                await anyio.sleep(after_s)
                group.cancel_scope.cancel()

    for after_s in (0.0, 0.5, 1.2):
        anyio.run(cancelled, after_s)
        assert not spark.sparkContext.statusTracker().getActiveJobsIds()
    notes(place).before = None
    place.deliver(SHARDS)
    check(place)


def test_whole_versions_in_one_transaction(spark: SparkSession, kafka: KafkaCluster, tmp_path: Path) -> None:
    history = History(tmp_path / "table", seed=6, length=12)
    history.publish(11)
    place = ShardedDelivery(kafka, history, boundary="version")
    place.exchange = Noted(spark)
    place.deliver(SHARDS)
    check(place)


BY_KEY: Final = PairingRules(compute_updates=True, key=("k",), skip_unchanged=True)


# The first without row tracking, the second with it.
@ALL_COMPARE
@pytest.mark.parametrize("name", ["08", "11"])
@pytest.mark.nightly
def test_recorded_histories(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path, versions: list[int], name: str
) -> None:
    """With row ids, where rows are tracked."""
    recorded = read(HISTORIES / f"{name}.tar.xz", tmp_path)
    path, first = recorded.path, recorded.first
    tracked = any(task.tracking for plan in plans(path, first) for task in plan.tasks)
    rules, policy = PairingRules(compute_updates=tracked), Policy(row_ids=tracked)
    check_messages(spark, kafka, path, rules, policy, first)
    assert len(versions) > 1


@pytest.mark.usefixtures("versions")
@pytest.mark.parametrize("seed", seeds(1))
@pytest.mark.nightly
def test_columns_that_change_while_files_are_rewritten(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path, seed: int
) -> None:
    path = Reshaped(tmp_path, random.Random(seed)).run(20).path
    check_messages(spark, kafka, path, PairingRules())


@ALL_COMPARE
@pytest.mark.nightly
def test_updates_by_a_key(spark: SparkSession, kafka: KafkaCluster, tmp_path: Path, versions: list[int]) -> None:
    check_messages(spark, kafka, Rewriting(tmp_path, 1).table.path, BY_KEY)
    assert len(versions) > 5


LACKING: Final = {
    "nanoseconds": pa.array([1, 2], pa.timestamp("ns")),
    "seconds of a day": pa.array([1, 2], pa.time32("s")),
    "days in milliseconds": pa.array([86_400_000, 0], pa.date64()),
    "a dictionary": pa.array(["a", "b"]).dictionary_encode(),
    "many digits": pa.array([Decimal(1), Decimal(2)], pa.decimal256(50, 2)),
}
KEPT: Final = PairingRules(Carryovers.KEEP, compute_updates=True, key=("id",))


@ALL_COMPARE
@pytest.mark.parametrize("kind", LACKING)
@pytest.mark.nightly
def test_types_that_spark_lacks(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path, versions: list[int], kind: str
) -> None:
    written_and_updated(tmp_path, x=LACKING[kind])
    check_messages(spark, kafka, tmp_path, KEPT, first=2)
    assert versions == [2]


@ALL_COMPARE
def test_names_that_spark_does_not_tell_apart(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path, versions: list[int]
) -> None:
    """And the names of our own columns in the exchange."""
    written_and_updated(tmp_path, ID=pa.array([5, 6]), _shard=pa.array([7, 8]), _Row=pa.array([1, 2]))
    check_messages(spark, kafka, tmp_path, KEPT, first=2)
    assert versions == [2]


def written_and_updated(path: Path, **column: pa.Array) -> None:
    """Write a Lance dataset with a column more, and update a row."""
    lance.write_dataset(pa.table({"id": [1, 2], **column}), path)
    lance.dataset(path).update({"id": "id + 10"}, where="id = 1")


ZONE: Final = "spark.sql.session.timeZone"
VALUES: Final = pa.schema(
    [
        ("r", pa.float64()),
        ("f", pa.float32()),
        ("t", pa.timestamp("us", "UTC")),
        ("n", pa.timestamp("us")),
        ("v", pa.int64()),
    ]
)


@ALL_COMPARE
@pytest.mark.parametrize("key", [("r", "f"), ("t", "n")])
@pytest.mark.nightly
def test_values_that_two_machines_may_see_differently(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path, versions: list[int], key: tuple[str, ...]
) -> None:
    """As keys and as values: zeros, NaN, old times, and times that a zone leaves out."""
    chance = random.Random(7)
    for part in range(3):
        rows = [
            {
                "r": chance.choice((0.0, -0.0, math.nan, 1.5, None)),
                "f": chance.choice((0.0, -0.0, math.nan, None)),
                "t": chance.choice((datetime(1, 3, 10, 2, 30, tzinfo=UTC), datetime(2024, 3, 10, 2, 30, tzinfo=UTC))),
                "n": chance.choice((datetime(1850, 3, 10, 2, 30), datetime(2024, 3, 10, 2, 30), None)),  # noqa: DTZ001
                "v": part if chance.random() < 0.3 else 0,
            }
            for _ in range(40)
        ]
        write_deltalake(tmp_path, pa.Table.from_pylist(rows, VALUES), mode="overwrite")
    had = str(spark.conf.get(ZONE))
    spark.conf.set(ZONE, "America/New_York")
    try:
        check_messages(spark, kafka, tmp_path, PairingRules(compute_updates=True, key=key, null_keys=True))
    finally:
        spark.conf.set(ZONE, had)
    assert versions == [1, 2]


@pytest.mark.usefixtures("versions")
@pytest.mark.sampled(2)
def test_a_damaged_file(spark: SparkSession, kafka: KafkaCluster, tmp_path: Path) -> None:
    """The error names the file. The versions before it are delivered."""
    for part in range(2):
        rows = {"id": range(1000), "x": [f"{part} {random.Random(at).random()}" for at in range(1000)]}
        write_deltalake(tmp_path, pa.table(rows), mode="overwrite")
    (name,) = (Path(file).name for file in DeltaTable(tmp_path).file_uris())
    damage(tmp_path / name, column=1)
    place = ShardedDelivery(kafka, tmp_path, "flat")
    place.exchange, place.rules = Noted(spark), KEPT
    with pytest.raises(DataCorrupt, match=name[:20]):
        place.deliver(SHARDS)
    assert place.places(SHARDS) == [Position.end(0)] * SHARDS


def damage(file: Path, column: int) -> None:
    """Change the bytes of a column."""
    chunk, data = pq.read_metadata(file).row_group(0).column(column), bytearray(file.read_bytes())
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    for at in range(start, start + chunk.total_compressed_size):
        data[at] ^= 0x5A
    file.write_bytes(bytes(data))


def test_a_missing_file(spark: SparkSession, kafka: KafkaCluster, tmp_path: Path) -> None:
    for part in range(3):
        write_deltalake(tmp_path, pa.table({"id": [part]}), mode="append")
    files = {pq.read_table(file)["id"][0].as_py(): Path(file) for file in DeltaTable(tmp_path).file_uris()}
    files[1].unlink()
    place = ShardedDelivery(kafka, tmp_path, "flat")
    place.exchange = Noted(spark)
    with pytest.raises(FileVacuumed, match=files[1].name[:20]):
        place.deliver(SHARDS)
    assert place.places(SHARDS) == [Position.end(0)] * SHARDS


def test_another_instance_divides_the_pipeline(spark: SparkSession, kafka: KafkaCluster, tmp_path: Path) -> None:
    """The earlier instance ends, and does not take the pipeline back."""
    write_deltalake(tmp_path, pa.table({"id": range(100), "x": [0] * 100}))
    place = ShardedDelivery(kafka, tmp_path)
    place.exchange = noted = Noted(spark)
    place.deliver(SHARDS)
    write_deltalake(tmp_path, pa.table({"id": range(100), "x": [*[0] * 99, 1]}), mode="overwrite")

    async def divided() -> None:
        await to_thread.run_sync(place.settle, 2)

    noted.before = divided
    with pytest.raises(SinkFenced):
        place.deliver(SHARDS)
    assert place.places(2) == [Position.end(0)] * 2
    noted.before = None
    place.deliver(2)
    assert place.places(2) == [Position.end(1)] * 2


def check_messages(
    spark: SparkSession,
    kafka: KafkaCluster,
    path: Path,
    rules: PairingRules,
    policy: Policy | None = None,
    first: int = 0,
) -> list[Record]:
    """Deliver the table by executors and by one process, compare the messages, and return them."""
    found = []
    is_lance = (path / "_versions").exists()
    last = lance.dataset(path).version if is_lance else plans(path, first)[-1].version
    for by_executors in (True, False):
        place = ShardedDelivery(kafka, path, "flat")
        place.rules, place.policy = rules, policy or Policy()
        if by_executors:
            place.exchange = Noted(spark)
            place.deliver(SHARDS, last, str(first))
        else:
            place.deliver_undivided(last, str(first))
        found.append(place.read("rows"))
    executed, alone = (Counter((record.key, record.value, record.headers) for record in each) for each in found)
    assert not list((alone - executed).items())[:3], "missing"
    assert not list((executed - alone).items())[:3], "doubled or wrong"
    assert executed
    return found[0]
