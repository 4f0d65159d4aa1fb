"""Versions of the daemon into Kafka that all executors compare together (`tailer.spark.write.shared_versions`).

Messages are those of shards that compare by themselves, and these go on wherever a shared version ended.
"""

import json
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
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

from tailer.changelog.carryovers import concerns
from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.rules import Carryovers, PairingRules
from tailer.config.pipelines import PipelineSettings
from tailer.engine.local import LocalEngine
from tailer.errors import DataCorrupt, EngineUnavailable, SinkFenced
from tailer.pipeline.policy import Policy
from tailer.plan import ChangePlan, Position
from tailer.read.data_files import LOCAL
from tailer.shards.worker import ShardReport
from tailer.spark.native import comparing
from tailer.spark.write import shared_versions
from tailer.spark.write.exchange import deliver_exchanged
from tailer.spark.write.shard_rows import ShardRows
from tailer.spark.write.shared_versions import SharedVersions
from tests.support.follow import follow, plans
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.history import History
from tests.support.kafka.lanes import FORMS
from tests.support.kafka.sharded_delivery import ShardedDelivery
from tests.support.kafka.topics import unique_name
from tests.support.oracle.recorded import HISTORIES, read
from tests.support.seeds import seeds
from tests.support.tables.log_files import add, metadata, parquet, protocol, remove, schema_string, write_commit
from tests.support.tables.mapped import Rewriting
from tests.support.tables.schema_changes import Reshaped

SHARDS = 3
ENDS_S = 60.0


@dataclass
class Notes:
    """Versions that `Noted` delivered, with the reports of their shards.

    `fails_at`: a version behind which the driver fails, once. `began`: set when the next one begins.
    """

    versions: list[int] = field(default_factory=list)
    reports: list[ShardReport] = field(default_factory=list)
    fails_at: int | None = None
    began: anyio.Event | None = None


class Noted(SharedVersions):
    """See `Notes`."""

    def __init__(self, notes: Notes, settings: PipelineSettings, session: Callable[[], SparkSession]) -> None:
        super().__init__(settings, session, LOCAL)
        self._notes = notes

    async def deliver(self, plan: ChangePlan) -> list[ShardReport] | None:
        if self._notes.began is not None:
            self._notes.began.set()
        found = await super().deliver(plan)
        self._notes.versions.append(plan.version)
        self._notes.reports += found or []
        if self._notes.fails_at == plan.version:
            self._notes.fails_at = None
            raise EngineUnavailable("Spark", "the driver fails")
        return found


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Notes:
    """Executors share all comparisons. A table of any size is worth it."""
    monkeypatch.setattr(comparing, "SHARED_BYTES", 0)
    return Notes()


@pytest.fixture(params=FORMS)
def place(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path, notes: Notes, request: pytest.FixtureRequest
) -> ShardedDelivery:
    history = History(tmp_path / "table", seed=6, length=22, large=900, large_every=9)
    return sharing(spark, ShardedDelivery(kafka, history, request.param), notes)


def sharing(spark: SparkSession, place: ShardedDelivery, notes: Notes) -> ShardedDelivery:
    """Have executors share the comparisons of a delivery."""
    place.whole = lambda settings: Noted(notes, settings, lambda: spark)
    return place


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


@pytest.mark.sampled(2)
def test_every_change_once_in_order(place: ShardedDelivery, notes: Notes) -> None:
    for commits in (11, 10):
        published(place, commits)
        place.deliver(SHARDS)
    check(place)
    assert notes.versions == compared(place)
    assert len(notes.versions) >= (9 if place.lane.form == "keyed" else 1)
    engine = ChangelogEngine(LocalEngine(), place.settings(SHARDS).pairing)
    expected = Counter(
        kind
        for found in follow(place.table_path, engine=engine)
        if found.plan.version in notes.versions
        for batch in found.batches
        for kind in batch.rows.column("_change_type").to_pylist()
    )
    assert sum((report.rows for report in notes.reports), Counter()) == expected


@pytest.mark.nightly
@pytest.mark.parametrize("place", ["keyed"], indirect=True)
def test_the_driver_fails_behind_a_version(place: ShardedDelivery, notes: Notes) -> None:
    """It was delivered, and is not delivered again."""
    published(place, 21)
    notes.fails_at = compared(place)[2]
    place.deliver(SHARDS)
    check(place)


@pytest.mark.parametrize("place", ["keyed"], indirect=True)
def test_shards_that_are_at_different_places(place: ShardedDelivery, notes: Notes) -> None:
    """As after a failure: one has the version, the others do not."""
    published(place, 21)
    versions = compared(place)
    place.deliver(SHARDS, until=versions[3] - 1)
    assert place.attempt(1, SHARDS, versions[3]).error is None
    place.deliver(SHARDS)
    check(place)
    assert versions[3] in notes.versions


@pytest.mark.parametrize("place", ["keyed"], indirect=True)
@pytest.mark.parametrize(
    "error",
    [OSError("the job fails"), EngineUnavailable("Spark", "the driver fails")],
    ids=["each by itself", "together again"],
)
@pytest.mark.sampled(2)
def test_a_version_delivered_in_part(
    place: ShardedDelivery, notes: Notes, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """All shards are inside of it when the job ends."""
    published(place, 21)
    engine = ChangelogEngine(LocalEngine(), place.settings(SHARDS).pairing)
    found = max(
        (each for each in follow(place.table_path, engine=engine) if each.plan.version in compared(place)),
        key=lambda each: len(each.positions),
    )
    inside, made = found.positions[len(found.positions) // 2], deliver_exchanged
    begun: list[Position] = []

    def half(rows: DataFrame, work: ShardRows) -> list[ShardReport]:
        if begun or work.through.version != inside.version:
            return made(rows, work)
        some = rows.where(f"_task < {inside.task} OR (_task = {inside.task} AND _row <= {inside.row})")
        assert not any(report.error for report in made(some, replace(work, through=inside)))
        begun.extend(place.places(SHARDS))
        raise error

    monkeypatch.setattr(shared_versions, "deliver_exchanged", half)
    place.deliver(SHARDS)
    check(place)
    assert all(at.is_inside and at.version == inside.version for at in begun)
    assert notes.versions == compared(place)


@pytest.mark.parametrize("place", ["keyed"], indirect=True)
def test_executors_that_cannot_compare(place: ShardedDelivery, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each shard compares by itself then."""

    def broken(*_: object) -> None:
        raise OSError("no disk")

    monkeypatch.setattr(shared_versions, "compared", broken)
    published(place, 21)
    place.deliver(SHARDS)
    check(place)


def rewritten(table: Path, version: int, rows: Sequence[dict[str, int]], schema: pa.Schema) -> None:
    """Commit a version that rewrites the file of the one before."""
    size = parquet(table / f"{version}.parquet", pa.Table.from_pylist(list(rows), schema)).stat().st_size
    changed = [] if version % 2 else [metadata(schema_string(**dict.fromkeys(schema.names, "long")))]
    write_commit(table, version, *changed, remove(f"{version - 1}.parquet"), add(f"{version}.parquet", size=size))


@pytest.mark.nightly
def test_changes_of_columns_are_announced(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path, notes: Notes
) -> None:
    """Shards compare such versions by themselves, also where the daemon begins with one."""
    schema, path = pa.schema([("id", pa.int64())]), tmp_path / "table"
    rows = [{"id": key} for key in range(6)]
    first = add("0.parquet", size=parquet(path / "0.parquet", pa.Table.from_pylist(rows, schema)).stat().st_size)
    write_commit(path, 0, protocol(), metadata(schema_string(id="long")), first)
    place = sharing(spark, ShardedDelivery(kafka, path, schema_topic=unique_name("schema")), notes)
    place.deliver(SHARDS)
    for version in range(1, 6):
        if version % 2 == 0:
            schema = schema.append(pa.field(f"n{version}", pa.int64()))
        rows = [row | dict.fromkeys(schema.names[1:], version) for row in rows[1:]]
        rewritten(path, version, rows, schema)
        if version != 4:
            place.deliver(SHARDS)
    messages = [json.loads(record.value or b"") for record in place.read("schema")]
    assert sorted((each["_commit_version"], each["shard"]) for each in messages) == [
        (version, shard) for version in (2, 4) for shard in range(SHARDS)
    ]
    assert notes.versions == [1, 3, 5]
    found = [json.loads(record.value or b"null") for record in place.read("rows")]
    deleted = Counter(each["source"]["commit_version"] for each in found if each and each["op"] == "d")
    assert deleted == Counter(range(1, 6))


@pytest.mark.parametrize("place", ["keyed"], indirect=True)
@pytest.mark.nightly
def test_a_version_begun_by_other_rules(place: ShardedDelivery) -> None:
    """The shards refuse it, with their own words."""
    published(place, 21)
    plan = next(plan for plan in plans(place.table_path) if plan.version == compared(place)[-1])
    whole = SharedVersions(place.settings(SHARDS), lambda: pytest.fail("no session is needed"), LOCAL)
    assert not whole.takes(plan, [Position(plan.version, plan.tasks[0].index, 0)])


@pytest.mark.parametrize("place", ["keyed"], indirect=True)
def test_cancelled_in_the_middle(spark: SparkSession, place: ShardedDelivery, notes: Notes) -> None:
    """Its jobs end with it. The next instance delivers the rest."""
    published(place, 21)

    async def cancelled(after_s: float) -> None:
        notes.began = anyio.Event()
        with fail_after(ENDS_S):
            async with create_task_group() as group:
                group.start_soon(place.pipeline(SHARDS, place.last).run)
                await notes.began.wait()
                await anyio.sleep(after_s)
                group.cancel_scope.cancel()
        notes.began = None

    for after_s in (0.0, 0.5, 1.2):
        anyio.run(cancelled, after_s)
        assert not spark.sparkContext.statusTracker().getActiveJobsIds()
    place.deliver(SHARDS)
    check(place)


@pytest.mark.nightly
def test_whole_versions_in_one_transaction(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path, notes: Notes
) -> None:
    """Shards deliver these by themselves."""
    history = History(tmp_path / "table", seed=6, length=12)
    history.publish(11)
    place = sharing(spark, ShardedDelivery(kafka, history, boundary="version"), notes)
    place.deliver(SHARDS)
    check(place)
    assert notes.versions == []


BY_KEY: Final = PairingRules(compute_updates=True, key=("k",), skip_unchanged=True)


# The first without row tracking, the second with it.
@pytest.mark.parametrize("name", ["08", "11"])
@pytest.mark.nightly
def test_recorded_histories(spark: SparkSession, kafka: KafkaCluster, tmp_path: Path, notes: Notes, name: str) -> None:
    """Messages are those of shards that compare by themselves. With row ids, where rows are tracked."""
    recorded = read(HISTORIES / f"{name}.tar.xz", tmp_path)
    path, first = recorded.path, recorded.first
    tracked = any(task.tracking for plan in plans(path, first) for task in plan.tasks)
    rules, policy = PairingRules(compute_updates=tracked), Policy(row_ids=tracked)
    check_messages(spark, kafka, notes, path, rules, policy, first)
    assert len(notes.versions) > 1


@pytest.mark.parametrize("seed", seeds(1))
@pytest.mark.nightly
def test_columns_that_change_while_files_are_rewritten(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path, notes: Notes, seed: int
) -> None:
    path = Reshaped(tmp_path, random.Random(seed)).run(20).path
    check_messages(spark, kafka, notes, path, PairingRules())


@pytest.mark.nightly
def test_updates_by_a_key(spark: SparkSession, kafka: KafkaCluster, tmp_path: Path, notes: Notes) -> None:
    check_messages(spark, kafka, notes, Rewriting(tmp_path, 1).table.path, BY_KEY)
    assert len(notes.versions) > 5


LACKING: Final = {
    "nanoseconds": pa.array([1, 2], pa.timestamp("ns")),
    "seconds of a day": pa.array([1, 2], pa.time32("s")),
    "days in milliseconds": pa.array([86_400_000, 0], pa.date64()),
    "many digits": pa.array([Decimal(1), Decimal(2)], pa.decimal256(50, 2)),
}
KEPT: Final = PairingRules(Carryovers.KEEP, compute_updates=True, key=("id",))


@pytest.mark.parametrize("kind", LACKING)
@pytest.mark.nightly
def test_types_that_spark_lacks(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path, notes: Notes, kind: str
) -> None:
    """Each shard compares by itself."""
    written_and_updated(tmp_path, x=LACKING[kind])
    check_messages(spark, kafka, notes, tmp_path, KEPT, first=2)
    assert notes.versions == []


@pytest.mark.nightly
def test_names_that_spark_does_not_tell_apart(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path, notes: Notes
) -> None:
    written_and_updated(tmp_path, ID=pa.array([5, 6]))
    check_messages(spark, kafka, notes, tmp_path, KEPT, first=2)
    assert notes.versions == []


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


@pytest.mark.parametrize("key", [("r", "f"), ("t", "n")])
@pytest.mark.nightly
def test_values_that_two_machines_may_see_differently(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path, notes: Notes, key: tuple[str, ...]
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
        check_messages(spark, kafka, notes, tmp_path, PairingRules(compute_updates=True, key=key, null_keys=True))
    finally:
        spark.conf.set(ZONE, had)
    assert notes.versions == [1, 2]


def test_a_damaged_file(spark: SparkSession, kafka: KafkaCluster, tmp_path: Path, notes: Notes) -> None:
    """Only the key is compared. The shards that read the rows afterwards name the file."""
    for part in range(2):
        rows = {"id": range(1000), "x": [f"{part} {random.Random(at).random()}" for at in range(1000)]}
        write_deltalake(tmp_path, pa.table(rows), mode="overwrite")
    (name,) = (Path(file).name for file in DeltaTable(tmp_path).file_uris())
    damage(tmp_path / name, column=1)
    place = sharing(spark, ShardedDelivery(kafka, tmp_path, "flat"), notes)
    place.rules = KEPT
    with pytest.raises(DataCorrupt, match=name[:20]):
        place.deliver(SHARDS)
    assert notes.versions == [1]


def damage(file: Path, column: int) -> None:
    """Change the bytes of a column."""
    chunk, data = pq.read_metadata(file).row_group(0).column(column), bytearray(file.read_bytes())
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    for at in range(start, start + chunk.total_compressed_size):
        data[at] ^= 0x5A
    file.write_bytes(bytes(data))


def test_another_instance_divides_the_pipeline(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notes: Notes
) -> None:
    """The earlier instance ends, and does not take the pipeline back."""
    write_deltalake(tmp_path, pa.table({"id": range(100), "x": [0] * 100}))
    place = sharing(spark, ShardedDelivery(kafka, tmp_path), notes)
    place.deliver(SHARDS)
    write_deltalake(tmp_path, pa.table({"id": range(100), "x": [*[0] * 99, 1]}), mode="overwrite")
    made = SharedVersions.deliver

    async def late(whole: SharedVersions, plan: ChangePlan) -> list[ShardReport] | None:
        await to_thread.run_sync(place.settle, 2)
        return await made(whole, plan)

    monkeypatch.setattr(SharedVersions, "deliver", late)
    with pytest.raises(SinkFenced, match="delivered in 2 shards"):
        place.deliver(SHARDS)
    assert place.places(2) == [Position.end(0)] * 2
    monkeypatch.setattr(SharedVersions, "deliver", made)
    place.deliver(2)
    assert place.places(2) == [Position.end(1)] * 2


def check_messages(
    spark: SparkSession,
    kafka: KafkaCluster,
    notes: Notes,
    path: Path,
    rules: PairingRules,
    policy: Policy | None = None,
    first: int = 0,
) -> None:
    """Deliver the table in both ways, and compare the messages."""
    found = []
    is_lance = (path / "_versions").exists()
    last = lance.dataset(path).version if is_lance else plans(path, first)[-1].version
    for shares in (True, False):
        place = ShardedDelivery(kafka, path, "flat")
        place.rules, place.policy = rules, policy or Policy()
        (sharing(spark, place, notes) if shares else place).deliver(SHARDS, last, str(first))
        ends = [json.loads(record.value or b"") for record in place.read("ends")]
        found.append(
            Counter((record.key, record.value, record.headers) for record in place.read("rows"))
            + Counter((each["id"], each["shard"], each["event_count"]) for each in ends)
        )
    shared, apart = found
    assert not list((apart - shared).items())[:3], "missing"
    assert not list((shared - apart).items())[:3], "doubled or wrong"
    assert shared
