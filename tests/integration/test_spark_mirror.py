"""A mirror in Delta that executors merge: the same rows and progress as from the driver alone."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from anyio import to_thread
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from tailer.engine.local import LocalEngine
from tailer.errors import CommitUnknown, ConfigError, SinkFenced, SinkRejected
from tailer.pipeline.policy import OnDataLoss, Policy
from tailer.pipeline.status import PipelineStatus
from tailer.pipeline.verification.comparison import verify
from tailer.plan import Position
from tailer.sink import Append, Merge
from tailer.spark.write.delta.pipeline import delta_pipeline
from tailer.start import Start, StartKind
from tailer.stores.wakeup import TimerWake
from tailer_sinks.delta.mirror.sink import DeltaMirror
from tailer_sinks.delta.options import read
from tailer_sinks.memory import MemorySink
from tests.support.histories.long_history import LongHistory
from tests.support.spark.executor_writes import LIMITS, OLD_FILES, Delivering, InterruptedMirror, rows_of
from tests.support.spark.session import new_sessions_with
from tests.support.tables.handwritten import HandwrittenTable

MIRROR: Mapping[str, Any] = {"mode": "mirror", "key": ["id"]}
KEY_NUMBER = 9100170826253435838


@pytest.fixture
def history(tmp_path: Path) -> LongHistory:
    """A busy table, whose updates change keys."""
    made = LongHistory(tmp_path / "source", seed=7, length=60)
    made.publish(59)
    return made


@pytest.fixture
def delivering(history: LongHistory, tmp_path: Path) -> Delivering:
    """A pipeline to a mirror that does not exist yet."""
    return Delivering(history.path, tmp_path / "target", options=MIRROR)


def operations(target: Path) -> list[str]:
    """Return what each commit of the target is."""
    return [each["operation"] for each in reversed(DeltaTable(target).history())]


def same_as_driver(delivering: Delivering) -> None:
    """Check that the target equals that of the driver, and the source."""
    beside = delivering.into(delivering.target.with_name("beside"))
    beside.by_driver()
    assert rows_of(delivering.target) == rows_of(beside.target)
    ours, theirs = DeltaTable(delivering.target), DeltaTable(beside.target)
    assert ours.schema() == theirs.schema()
    assert ours.protocol() == theirs.protocol()
    assert ours.metadata().partition_columns == theirs.metadata().partition_columns
    assert ours.metadata().configuration == theirs.metadata().configuration
    assert delivering.progress() == beside.progress() == delivering.latest
    for name in ("orders/#delivered", "orders/#key"):
        assert ours.transaction_version(name) == theirs.transaction_version(name) is not None
    assert anyio.run(is_equal, delivering)


async def is_equal(delivering: Delivering) -> bool:
    """Return whether `tailer verify` finds the target equal to the source."""
    sink = delivering.sink()
    opened = sink.open_mirror(delivering.name)
    assert opened is not None
    async with opened as mirror:
        found = await verify(mirror, delivering.log(), LocalEngine(), delivering.policy, 10)
    return found.is_equal


def test_a_backlog_is_one_merge(delivering: Delivering, spark: SparkSession) -> None:
    delivering.by_executors(spark)
    assert operations(delivering.target)[-1] == "MERGE"
    assert DeltaTable(delivering.target).version() == 2  # its creation, the driver's first commit, and one MERGE
    same_as_driver(delivering)
    delivering.by_executors(spark)
    assert DeltaTable(delivering.target).version() == 2
    actions = [
        json.loads(line) for line in (delivering.target / "_delta_log" / f"{2:020d}.json").read_text().splitlines()
    ]
    assert "Spark" in actions[0]["commitInfo"]["engineInfo"]
    # Either writer reads the progress, in this and in later releases.
    (txn,) = [action["txn"] for action in actions if "txn" in action]
    assert (txn["appId"], txn["version"]) == ("orders/11111111-2222-3333-4444-555555555555", delivering.latest)
    table = DeltaTable(delivering.target)
    assert table.transaction_version("orders/#delivered") == 1
    assert table.transaction_version("orders/#key") == KEY_NUMBER


@pytest.mark.nightly
def test_driver_and_executors_go_on_where_the_other_stopped(delivering: Delivering, spark: SparkSession) -> None:
    delivering.by_driver(15)
    delivering.by_executors(spark, 30)
    delivering.by_driver(40)
    delivering.by_executors(spark)
    same_as_driver(delivering)


def table_of(path: Path, **columns: Any) -> pa.Table:
    """Append rows with an `id` to a table, which may be new. Return them."""
    rows = pa.table({name: pa.array(values, pa.int64() if name == "id" else None) for name, values in columns.items()})
    write_deltalake(path, rows, mode="append")
    return rows


def test_of_a_key_that_changes_in_several_versions_the_last_change_counts(tmp_path: Path, spark: SparkSession) -> None:
    source = tmp_path / "source"
    table_of(source, id=[1, 2, 3], v=["a", "b", "c"])
    delivering = Delivering(source, tmp_path / "target", options=MIRROR)
    delivering.by_driver()
    table = DeltaTable(source)
    table.update({"v": "'x'"}, predicate="id = 1")
    table.update({"v": "'y'"}, predicate="id = 1")
    table.delete("id = 2")
    table_of(source, id=[2, 4], v=["again", "new"])
    table = DeltaTable(source)
    table.delete("id = 4")
    table_of(source, id=[5], v=["once"])
    DeltaTable(source).update({"id": "6"}, predicate="id = 5")
    delivering.by_executors(spark)
    assert {dict(row)["id"]: dict(row)["v"] for row in rows_of(delivering.target)} == {
        "1": "'y'",
        "2": "'again'",
        "3": "'c'",
        "6": "'once'",
    }
    assert DeltaTable(delivering.target).version() == 2
    # Nothing is left of these changes but the progress.
    table_of(source, id=[7], v=["short"])
    DeltaTable(source).delete("id = 7")
    delivering.by_executors(spark)
    assert DeltaTable(delivering.target).version() == 3
    same_as_driver(delivering)


def delete_a_row_that_is_gone(delivering: Delivering) -> None:
    """Delete a row of the source that somebody else has deleted in the target."""
    for path in (delivering.target, delivering.source):
        DeltaTable(path).delete("id = 2")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda each: table_of(each.source, id=[None]), "is null in version 2"),
        (lambda each: table_of(each.source, id=[3, 3]), "version 2 inserts or deletes a key twice"),
        (lambda each: table_of(each.source, id=[1]), "up to version 2 insert a key that is there"),
        (delete_a_row_that_is_gone, "delete a key that is not"),
    ],
    ids=["null", "twice", "there", "not there"],
)
def test_contradictions_stop_a_mirror(
    tmp_path: Path, spark: SparkSession, spoil: Callable[[Delivering], object], reason: str
) -> None:
    """The versions before are delivered, and nothing of that one: as by the driver, with the same text."""
    delivering = Delivering(tmp_path / "source", tmp_path / "target", options=MIRROR)
    table_of(delivering.source, id=[1, 2])
    delivering.by_driver()
    table_of(delivering.source, id=[10])
    spoil(delivering)
    table_of(delivering.source, id=[11])
    with pytest.raises(SinkRejected, match=reason) as ours:
        delivering.by_executors(spark)
    assert delivering.progress() == 1
    rows, version = rows_of(delivering.target), DeltaTable(delivering.target).version()
    assert "10" in {dict(row)["id"] for row in rows}
    with pytest.raises(SinkRejected) as theirs:
        delivering.by_driver()
    assert (str(ours.value), ours.value.hint) == (str(theirs.value), theirs.value.hint)
    assert (rows_of(delivering.target), DeltaTable(delivering.target).version()) == (rows, version)


def test_columns_come_go_and_are_renamed(tmp_path: Path, spark: SparkSession) -> None:
    """The driver follows the versions that change columns, executors the others."""
    source = tmp_path / "source"
    properties = "'delta.columnMapping.mode'='name','delta.enableTypeWidening'='true'"
    for statement in (
        f"CREATE TABLE delta.`{source}` (id INT, b STRING, c INT) USING delta TBLPROPERTIES ({properties})",
        f"INSERT INTO delta.`{source}` VALUES (1, 'one', 1), (2, 'two', 2)",
        f"UPDATE delta.`{source}` SET c = 3 WHERE id = 1",
        f"ALTER TABLE delta.`{source}` ADD COLUMNS (d DOUBLE)",
        f"INSERT INTO delta.`{source}` VALUES (3, 'three', 3, 0.5)",
        f"ALTER TABLE delta.`{source}` RENAME COLUMN b TO bb",
        f"UPDATE delta.`{source}` SET bb = 'drei' WHERE id = 3",
        f"ALTER TABLE delta.`{source}` ALTER COLUMN c TYPE BIGINT",
        f"INSERT INTO delta.`{source}` VALUES (4, 'four', 4, 1.5)",
        f"ALTER TABLE delta.`{source}` DROP COLUMN d",
        # The same name and type, but another column: what was there is gone.
        f"ALTER TABLE delta.`{source}` ADD COLUMNS (d DOUBLE)",
        f"DELETE FROM delta.`{source}` WHERE id = 1",
    ):
        spark.sql(statement)
    delivering = Delivering(source, tmp_path / "target", options=MIRROR)
    delivering.by_executors(spark)
    assert "MERGE" in operations(delivering.target)
    same_as_driver(delivering)


def test_a_table_that_becomes_another_one(tmp_path: Path, spark: SparkSession) -> None:
    source = HandwrittenTable(tmp_path / "source")
    source.commit(source.add(source.data("a.parquet", [1, 2])))
    replaced = {"metaData": {**source.metadata, "id": "22222222-3333-4444-5555-666666666666"}}
    source.commit(replaced, source.remove("a.parquet"), source.add(source.data("b.parquet", [3])))
    source.commit(source.add(source.data("c.parquet", [4])))
    delivering = Delivering(source.path, tmp_path / "target", options=MIRROR)
    delivering.by_executors(spark, 2)
    assert delivering.progress(source.metadata["id"]) == 1
    source.commit(source.add(source.data("d.parquet", [5])))
    delivering.by_executors(spark)
    assert delivering.progress(source.metadata["id"]) == 1
    same_as_driver(delivering)


def test_nothing_but_empty_versions(tmp_path: Path, spark: SparkSession) -> None:
    source = HandwrittenTable(tmp_path / "source")
    for _ in range(3):
        source.commit({"commitInfo": {"operation": "SET TBLPROPERTIES"}})
    delivering = Delivering(source.path, tmp_path / "target", options=MIRROR)
    delivering.by_executors(spark)
    same_as_driver(delivering)


def test_a_later_start_is_a_snapshot(delivering: Delivering, spark: SparkSession) -> None:
    for start in (Start(StartKind.SNAPSHOT), Start(StartKind.VERSION, 30)):
        later = replace(delivering, start=start, target=delivering.target.with_name(start.kind.value))
        later.by_executors(spark)
        assert anyio.run(is_equal, later)
        assert later.progress() == later.latest


def test_a_snapshot_is_ordered(delivering: Delivering, spark: SparkSession) -> None:
    """In place of the versions that are due, and while nothing is due."""
    delivering.by_driver(40)
    DeltaTable(delivering.target).delete()
    status = PipelineStatus(delivering.name, counts_rows=False)
    parts = delivering.settings, delivering.log(), delivering.sink(), lambda: spark, LocalEngine(), TimerWake()
    pipeline = delta_pipeline(*parts, LIMITS, status=status)
    status.order = OnDataLoss.RESNAPSHOT

    async def run() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(pipeline.run)
            with anyio.fail_after(120):
                while operations(delivering.target)[-1] != "WRITE":  # noqa: ASYNC110 - the target tells
                    await anyio.sleep(0.05)
                await to_thread.run_sync(partial(table_of, delivering.source, id=[10**6]))
                while operations(delivering.target)[-1] != "MERGE":  # noqa: ASYNC110
                    await anyio.sleep(0.05)
                DeltaTable(delivering.target).delete()
                status.order = OnDataLoss.RESNAPSHOT
                while status.order is not None or operations(delivering.target)[-1] != "WRITE":  # noqa: ASYNC110
                    await anyio.sleep(0.05)
            pipeline.stop()

    anyio.run(run)
    same_as_driver(delivering)


MOMENT = datetime(1850, 3, 1, 12, 30, 15, 123456, tzinfo=UTC)
PAIR = pa.struct([pa.field("x", pa.int32()), pa.field("t", pa.timestamp("us", tz="UTC"))])
VALUES: Mapping[str, pa.Array] = {
    "flag": pa.array([True, None]),
    "tiny": pa.array([-128, None], pa.int8()),
    "small": pa.array([2**15 - 1, None], pa.int16()),
    "number": pa.array([-(2**31), None], pa.int32()),
    "large": pa.array([2**63 - 1, None], pa.int64()),
    "single": pa.array([float("nan"), None], pa.float32()),
    "double": pa.array([float("-inf"), -0.0]),
    "money": pa.array([Decimal("-12345678901234567890.12"), None], pa.decimal128(38, 2)),
    "text": pa.array(["\u0000\U0001f600", ""]),
    "bytes": pa.array([b"\x00\xff", b""]),
    "day": pa.array([date(1, 1, 1), date(9999, 12, 31)]),
    "moment": pa.array([MOMENT, datetime(9999, 1, 1, tzinfo=UTC)], pa.timestamp("us", tz="UTC")),
    "local": pa.array([MOMENT.replace(tzinfo=None), None], pa.timestamp("us")),
    "pair": pa.array([{"x": 1, "t": MOMENT}, None], PAIR),
    "list": pa.array([[None, {"x": 2, "t": None}], []], pa.list_(PAIR)),
    "map": pa.array([[("a", None), ("b", 1)], []], pa.map_(pa.string(), pa.int64())),
    "odd `name`": pa.array([1, None]),
}


@pytest.mark.parametrize("key", ["id", "text", "moment"])
@pytest.mark.parametrize("partitions", [None, ["day", "flag"]])
@pytest.mark.sampled(3)
def test_values_of_every_type_are_what_they_were(
    tmp_path: Path, spark: SparkSession, key: str, partitions: Sequence[str] | None
) -> None:
    """Also where the driver merges into what executors have written, and the other way round."""
    source = tmp_path / "source"
    write_deltalake(source, pa.table({"id": pa.array([1, 2], pa.int64()), **VALUES}))
    table = DeltaTable(source)
    table.update({"id": "id + 10"}, predicate="id = 1")
    table.delete("id = 2")
    table.update({"number": "7"}, predicate="id = 11")
    write_deltalake(
        source, pa.table({"id": pa.array([3], pa.int64()), **{n: v[1:] for n, v in VALUES.items()}}), mode="append"
    )
    if key != "moment":  # which this row does not have
        write_deltalake(source, pa.table({"id": pa.array([4]), "text": ["other"]}), mode="append", schema_mode="merge")
    options = {"mode": "mirror", "key": [key], **({"partition_by": partitions} if partitions else {})}
    delivering = Delivering(source, tmp_path / "target", options=options)
    zone = spark.conf.get("spark.sql.session.timeZone", "UTC") or "UTC"
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        delivering.by_driver(0)
        delivering.by_executors(spark, 1)
        delivering.by_driver(2)
        delivering.by_executors(spark)
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    same_as_driver(delivering)
    (moment,) = {
        pq.read_schema(file.removeprefix("file://")).field("moment").type
        for file in DeltaTable(delivering.target).file_uris()
    }
    assert moment == pa.timestamp("us", tz="UTC")


def test_old_dates_are_what_they_were_whatever_calendar_spark_is_set_to(tmp_path: Path, spark: SparkSession) -> None:
    source = tmp_path / "source"
    days = [date(1, 1, 1), date(1400, 3, 1)]
    moments = [datetime(1500, 2, 28, tzinfo=UTC), MOMENT]
    table_of(source, id=[1, 2], day=days, moment=moments)
    delivering = Delivering(source, tmp_path / "target", options=MIRROR)
    delivering.by_driver()
    table_of(source, id=[3, 4], day=days, moment=moments)
    DeltaTable(source).update({"id": "5"}, predicate="id = 1")
    with new_sessions_with(spark, OLD_FILES):
        delivering.by_executors(spark)
    same_as_driver(delivering)


@pytest.mark.parametrize("name", ["lake_tailer_twice", "Lake_Tailer_Version"])
def test_columns_with_names_of_our_own_stay_with_the_driver(tmp_path: Path, spark: SparkSession, name: str) -> None:
    source = tmp_path / "source"
    table_of(source, id=[1], **{name: ["a"]})
    table_of(source, id=[2], **{name: ["b"]})
    DeltaTable(source).update({name: "'c'"}, predicate="id = 1")
    delivering = Delivering(source, tmp_path / "target", options=MIRROR)
    delivering.by_executors(spark)
    assert "Spark" not in str(DeltaTable(delivering.target).history())
    same_as_driver(delivering)


def test_partitions_beyond_ascii_stay_with_the_driver(tmp_path: Path, spark: SparkSession) -> None:
    """delta-rs cannot remove the files that Spark writes there, and says so once Spark has written the table again."""
    source = tmp_path / "source"
    table_of(source, id=[1], town=["Ulm"])
    delivering = Delivering(source, tmp_path / "target", options={**MIRROR, "partition_by": ["town"]})
    delivering.by_driver()
    table_of(source, id=[2, 3], town=["K\u00f6ln", "Ulm"])
    delivering.by_executors(spark)
    DeltaTable(source).update({"id": "id + 10"}, predicate="id = 2")
    delivering.by_driver()
    same_as_driver(delivering)
    table_of(source, id=[4], town=["K\u00f6ln"])
    delivering.by_driver()
    rows = rows_of(delivering.target)
    spark.sql(f"OPTIMIZE delta.`{delivering.target}`")
    DeltaTable(source).delete("id = 4")
    with pytest.raises(SinkRejected, match="delta-rs cannot remove files that Spark has written"):
        delivering.by_driver()
    assert rows_of(delivering.target) == rows


def test_the_change_feed_of_a_mirror_is_right(delivering: Delivering, spark: SparkSession) -> None:
    delivering.by_driver(5)
    target = delivering.target
    spark.sql(f"ALTER TABLE delta.`{target}` SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')")
    first = DeltaTable(target).version()
    before = rows_of(target)
    delivering.by_executors(spark)
    feed = (
        spark.read.option("readChangeFeed", "true")
        .option("startingVersion", first + 1)
        .format("delta")
        .load(str(target))
    )
    for row in feed.collect():
        at = (("id", repr(row["id"])),)
        before[at] += 1 if row["_change_type"] in ("insert", "update_postimage") else -1
    assert +before == rows_of(target)


def make_interrupted(delivering: Delivering, then: Callable[[Merge], Merge]) -> InterruptedMirror:
    """Make a sink at which `then` happens."""
    sink = InterruptedMirror(delivering.name, read(delivering.name, delivering.settings.sink_options))
    sink.then = then
    return sink


def optimize(delivering: Delivering) -> None:
    """Write the files of the target again, as one."""
    DeltaTable(delivering.target).optimize.compact()


def at_once(act: Callable[[], None], merge: Merge) -> Merge:
    """Act after the sink has read the target."""
    act()
    return merge


def check_then_act(check: Callable[[], None], act: Callable[[], None]) -> None:
    """Check that the MERGE is due, then act: Spark's transaction is open. Runs in a task of the job."""
    check()
    act()


def in_job(act: Callable[[], None], merge: Merge) -> Merge:
    """Act while executors read."""
    return replace(merge, check=partial(check_then_act, merge.check, act))


@pytest.mark.parametrize("when", [pytest.param(at_once, marks=pytest.mark.nightly), in_job])
def test_an_optimize_in_between_makes_the_transaction_fail(
    delivering: Delivering, spark: SparkSession, when: Callable[[Callable[[], None], Merge], Merge]
) -> None:
    for version in range(1, 6):
        delivering.by_driver(version)
    acts = [partial(optimize, delivering)]
    tried: list[int] = []

    def then(merge: Merge) -> Merge:
        tried.append(merge.version)
        return when(acts.pop(), merge) if acts else merge

    anyio.run(delivering.executors(lambda: spark, delivering.latest, make_interrupted(delivering, then)).run)
    assert len(tried) == 2
    assert operations(delivering.target)[-2:] == ["OPTIMIZE", "MERGE"]
    same_as_driver(delivering)


@pytest.mark.parametrize("when", [pytest.param(at_once, marks=pytest.mark.nightly), in_job])
def test_a_key_that_somebody_else_appends_in_between_is_found(
    tmp_path: Path, spark: SparkSession, when: Callable[[Callable[[], None], Merge], Merge]
) -> None:
    """Delta itself lets an append pass that has read nothing."""
    source = tmp_path / "source"
    table_of(source, id=[1])
    delivering = Delivering(source, tmp_path / "target", options=MIRROR)
    delivering.by_driver()
    table_of(source, id=[2])
    acts = [partial(append_blindly, delivering.target)]

    def then(merge: Merge) -> Merge:
        return when(acts.pop(), merge) if acts else merge

    pipeline = delivering.executors(lambda: spark, 1, make_interrupted(delivering, then))
    with pytest.raises(SinkRejected, match="insert a key that is there"):
        anyio.run(pipeline.run)
    assert delivering.progress() == 0


def append_blindly(target: Path) -> None:
    """Append the row whose id is 2 as Spark's writer does, which says that it has read nothing."""
    table_of(target, id=[2])
    commit = max((target / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    for action in actions:
        if "commitInfo" in action:
            action["commitInfo"]["isBlindAppend"] = True
    commit.write_text("".join(f"{json.dumps(each)}\n" for each in actions))


@pytest.mark.parametrize("when", [at_once, in_job])
@pytest.mark.parametrize(("untils", "is_refused"), [((10, 12), True), ((10,), False), ((30,), False)])
@pytest.mark.sampled(3)
def test_of_two_instances_one_is_refused(
    delivering: Delivering,
    spark: SparkSession,
    untils: tuple[int, ...],
    is_refused: bool,
    when: Callable[[Callable[[], None], Merge], Merge],
) -> None:
    """A run that has just begun takes one delivery of another for the last request of an instance that is gone."""
    delivering.by_driver(5)
    left = list(untils)

    def then(merge: Merge) -> Merge:
        return when(partial(delivering.by_driver, left.pop(0)), merge) if left else merge

    with pytest.raises(SinkFenced) if is_refused else nullcontext():
        anyio.run(delivering.executors(lambda: spark, 30, make_interrupted(delivering, then)).run)
    assert delivering.progress() == (untils[-1] if is_refused else 30)
    delivering.by_executors(spark)
    same_as_driver(delivering)


class Forgetful(DeltaMirror):
    """A mirror that loses the answer to its first MERGE."""

    lost = 0

    async def confirm(self, append: Append, position: Position) -> bool:
        """Lose the answer."""
        self.lost += 1
        if self.lost == 1:
            raise CommitUnknown(self.name, "the answer was lost")
        return await super().confirm(append, position)


def test_an_answer_that_is_lost(delivering: Delivering, spark: SparkSession) -> None:
    delivering.by_driver(5)
    sink = Forgetful(delivering.name, read(delivering.name, delivering.settings.sink_options))
    anyio.run(delivering.executors(lambda: spark, delivering.latest, sink).run)
    assert sink.lost == 1
    same_as_driver(delivering)


def test_a_mirror_without_the_number_of_its_key_gets_it_from_the_driver(
    delivering: Delivering, spark: SparkSession
) -> None:
    """As one that an earlier release has made."""
    delivering.by_driver(5)
    for commit in sorted((delivering.target / "_delta_log").glob("*.json")):
        lines = [line for line in commit.read_text().splitlines() if "#key" not in line]
        commit.write_text("".join(f"{line}\n" for line in lines))
    delivering.by_executors(spark, 10)
    assert DeltaTable(delivering.target).transaction_version("orders/#key") == KEY_NUMBER
    delivering.by_executors(spark)
    same_as_driver(delivering)


def test_unsupported_configurations_are_refused_at_once(delivering: Delivering, spark: SparkSession) -> None:
    lossy = replace(delivering, policy=Policy(on_data_loss=OnDataLoss.SKIP))
    with pytest.raises(ConfigError, match="on_data_loss"):
        lossy.executors(lambda: spark)
    elsewhere = replace(delivering.settings, sink_kind="memory", sink_options={})
    with pytest.raises(ConfigError, match="memory sink"):
        delta_pipeline(elsewhere, delivering.log(), MemorySink("m"), lambda: spark, LocalEngine(), TimerWake())
