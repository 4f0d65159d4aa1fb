"""Versions of the daemon into Kafka that all executors compare together (`tailer.spark.write.shared_versions`).

Shards that compare by themselves, queries with `into_kafka` and shared versions take turns, also inside a version.
"""

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio
import pyarrow as pa
import pytest
from anyio import create_task_group, fail_after
from pyspark.sql import SparkSession

from tailer.changelog.carryovers import concerns
from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.rules import PairingRules
from tailer.config.pipelines import PipelineSettings
from tailer.engine.local import LocalEngine
from tailer.errors import EngineUnavailable
from tailer.pipeline.policy import Policy
from tailer.plan import ChangePlan, Position
from tailer.read.data_files import LOCAL
from tailer.shards.worker import ShardReport
from tailer.spark.native import comparing
from tailer.spark.write import shared_versions
from tailer.spark.write.shared_versions import SharedVersions
from tests.support.follow import follow, plans
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.history import History
from tests.support.kafka.lanes import FORMS
from tests.support.kafka.sharded_delivery import ShardedDelivery
from tests.support.kafka.topics import unique_name
from tests.support.oracle.recorded import HISTORIES, read
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

    for after_s in (0.0, 0.2, 0.6, 1.2):
        anyio.run(cancelled, after_s)
        assert not spark.sparkContext.statusTracker().getActiveJobsIds()
    place.deliver(SHARDS)
    check(place)


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


BY_KEY = PairingRules(compute_updates=True, key=("k",), skip_unchanged=True)


# Two without row tracking, and two with it.
@pytest.mark.parametrize("name", ["05", "08", "01", "11"])
def test_recorded_histories(spark: SparkSession, kafka: KafkaCluster, tmp_path: Path, notes: Notes, name: str) -> None:
    """Messages are those of shards that compare by themselves. With row ids, where rows are tracked."""
    recorded = read(HISTORIES / f"{name}.tar.xz", tmp_path)
    path, first = recorded.path, recorded.first
    tracked = any(task.tracking for plan in plans(path, first) for task in plan.tasks)
    rules, policy = PairingRules(compute_updates=tracked), Policy(row_ids=tracked)
    check_messages(spark, kafka, notes, path, rules, policy, first)
    assert len(notes.versions) > 1


@pytest.mark.parametrize("seed", range(2))
def test_columns_that_change_while_files_are_rewritten(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path, notes: Notes, seed: int
) -> None:
    path = Reshaped(tmp_path, random.Random(seed)).run(20).path
    check_messages(spark, kafka, notes, path, PairingRules())


def test_updates_by_a_key(spark: SparkSession, kafka: KafkaCluster, tmp_path: Path, notes: Notes) -> None:
    check_messages(spark, kafka, notes, Rewriting(tmp_path, 1).table.path, BY_KEY)
    assert len(notes.versions) > 5


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
    for shares in (True, False):
        place = ShardedDelivery(kafka, path, "flat")
        place.rules, place.policy = rules, policy or Policy()
        (sharing(spark, place, notes) if shares else place).deliver(SHARDS, plans(path, first)[-1].version, str(first))
        ends = [json.loads(record.value or b"") for record in place.read("ends")]
        found.append(
            Counter((record.key, record.value, record.headers) for record in place.read("rows"))
            + Counter((each["id"], each["shard"], each["event_count"]) for each in ends)
        )
    shared, apart = found
    assert not list((apart - shared).items())[:3], "missing"
    assert not list((shared - apart).items())[:3], "doubled or wrong"
    assert shared
