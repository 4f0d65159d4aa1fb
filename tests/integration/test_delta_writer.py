"""A Delta table written by executors: the same rows, columns and progress as from the `delta` sink alone."""

import json
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing, nullcontext
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path

import anyio
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

import tailer
from tailer.changelog.rules import PairingRules
from tailer.engine.local import LocalEngine
from tailer.errors import (
    CommitUnknown,
    ConfigError,
    FileVacuumed,
    SchemaChanged,
    SinkFenced,
    SinkRejected,
    TableReplaced,
)
from tailer.pipeline.policy import OnDataLoss, OnSchemaChange, Policy
from tailer.plan import Position, output_schema
from tailer.sink import Append, Progress
from tailer.spark.native import comparing
from tailer.spark.write.delta.pipeline import delta_pipeline
from tailer.start import Start, StartKind
from tailer.stores.wakeup import TimerWake
from tailer_sinks.delta.sink import DeltaSink
from tailer_sinks.memory import MemorySink
from tests.support.histories.long_history import LongHistory
from tests.support.oracle import rows as answers
from tests.support.oracle.rows import assert_same
from tests.support.spark.executor_writes import OLD_FILES, Delivering, Interrupted, rows_of
from tests.support.spark.session import new_sessions_with
from tests.support.tables.handwritten import HandwrittenTable

LATEST = Start(StartKind.LATEST)
SNAPSHOT = Start(StartKind.SNAPSHOT)
PATIENCE_S = 120


@pytest.fixture
def history(tmp_path: Path) -> LongHistory:
    """A busy table."""
    made = LongHistory(tmp_path / "source", seed=7, length=60)
    made.publish(59)
    return made


@pytest.fixture
def delivering(history: LongHistory, tmp_path: Path) -> Delivering:
    """A pipeline to a target that does not exist yet."""
    return Delivering(history.path, tmp_path / "target")


def same_as_driver(delivering: Delivering, ends: Sequence[int | None] = (None,)) -> None:
    """Check that the target equals that of the driver."""
    beside = delivering.into(delivering.target.with_name("beside"))
    for end in ends:
        beside.by_driver(end)
    assert rows_of(delivering.target) == rows_of(beside.target)
    ours, theirs = DeltaTable(delivering.target), DeltaTable(beside.target)
    assert {field.name: field for field in ours.schema().fields} == {f.name: f for f in theirs.schema().fields}
    assert ours.protocol() == theirs.protocol()
    assert ours.metadata().partition_columns == theirs.metadata().partition_columns
    assert delivering.progress() == beside.progress()
    assert ours.transaction_version("orders/#delivered") == 1


def commits(target: Path) -> int:
    """Return the number of commits of the target."""
    return DeltaTable(target).version() + 1


def test_a_backlog_is_one_commit(delivering: Delivering, spark: SparkSession) -> None:
    delivering.by_executors(spark)
    same_as_driver(delivering)
    # The table, the begin of the stream, the rows, and the mark that the pipeline has delivered.
    assert commits(delivering.target) == 4
    delivering.by_executors(spark)
    assert commits(delivering.target) == 4


def test_chosen_rows_and_columns(delivering: Delivering, spark: SparkSession) -> None:
    """The driver and executors take turns: the target has what `tailer.changes` gives."""
    policy = Policy(where="id % 3 <> 1", select="id, id * 2 AS twice, sha2(CAST(id AS string), 256) AS mask")
    chosen = replace(delivering, policy=policy)
    chosen.by_executors(spark, 30)
    chosen.by_driver(40)
    chosen.by_executors(spark)
    same_as_driver(chosen)
    found = pa.table(DeltaTable(chosen.target).scan())
    wanted = pa.Table.from_batches(tailer.changes(chosen.source, where=policy.where, select=policy.select))
    assert_same(answers.rows_of(found.select(wanted.column_names)), answers.rows_of(wanted), "target")


@pytest.mark.nightly
def test_driver_and_executors_go_on_where_the_other_stopped(delivering: Delivering, spark: SparkSession) -> None:
    delivering.by_driver(15)
    delivering.by_executors(spark, 30)
    delivering.by_driver(40)
    delivering.by_executors(spark)
    same_as_driver(delivering)


def test_the_start_at_the_newest_version_is_kept(
    delivering: Delivering, history: LongHistory, spark: SparkSession
) -> None:
    later = Delivering(history.path, delivering.target, start=LATEST)
    later.by_executors(spark)
    assert later.progress() == history.last
    ids = iter(range(10**6, 10**6 + 2))
    # Commits before the first delivery are not left out.
    write_deltalake(history.path, pa.table({"id": pa.array([next(ids)], pa.int64())}), mode="append")
    later.by_executors(spark)
    assert [dict(row)["id"] for row in rows_of(later.target)] == [str(10**6)]
    assert later.progress() == history.last + 1


def test_a_snapshot_is_one_commit(delivering: Delivering, spark: SparkSession) -> None:
    whole = replace(delivering, start=SNAPSHOT)
    whole.by_executors(spark)
    same_as_driver(whole)
    assert commits(whole.target) == 4


def test_a_snapshot_that_the_driver_began_is_finished(delivering: Delivering, spark: SparkSession) -> None:
    whole = replace(delivering, start=SNAPSHOT)
    anyio.run(_begin_snapshot, whole)
    assert rows_of(whole.target).total() == 1
    whole.by_executors(spark)
    same_as_driver(whole)


async def _begin_snapshot(whole: Delivering) -> None:
    """Deliver the first row of a snapshot only."""
    log, sink = whole.log(), whole.sink()
    app_id = f"orders/{await log.table_id()}"
    async with aclosing(log.snapshot_plans(await log.latest())) as pages:
        plan = await anext(pages)
    async with LocalEngine().run(plan) as batches:
        first = (await anext(batches)).slice(0, 1)
        async with sink.begin(app_id, output_schema(plan.schema)) as transaction:
            await transaction.write(first)
            await transaction.commit(Progress(app_id, Position(first.version, first.task, first.last_row)))


def test_nothing_but_empty_versions(tmp_path: Path, spark: SparkSession) -> None:
    source = HandwrittenTable(tmp_path / "source")
    for _ in range(3):
        source.commit({"commitInfo": {"operation": "SET TBLPROPERTIES"}})
    delivering = Delivering(source.path, tmp_path / "target")
    delivering.by_executors(spark)
    same_as_driver(delivering)


def test_columns_come_go_and_are_renamed(tmp_path: Path, spark: SparkSession) -> None:
    source = tmp_path / "source"
    properties = "'delta.columnMapping.mode'='name'"
    for statement in (
        f"CREATE TABLE delta.`{source}` (a INT, b STRING, s STRUCT<x: INT>) USING delta TBLPROPERTIES ({properties})",
        f"INSERT INTO delta.`{source}` VALUES (1, 'one', struct(1)), (2, 'two', struct(2))",
        f"ALTER TABLE delta.`{source}` ADD COLUMNS (c DOUBLE, s.y STRING)",
        f"INSERT INTO delta.`{source}` VALUES (3, 'three', struct(3, 'y'), 0.5)",
        f"ALTER TABLE delta.`{source}` RENAME COLUMN b TO bb",
        f"UPDATE delta.`{source}` SET bb = 'drei' WHERE a = 3",
        f"ALTER TABLE delta.`{source}` DROP COLUMN c",
    ):
        spark.sql(statement)
    # One version deletes rows with the old columns and inserts rows with new ones.
    new = spark.sql("SELECT 9 AS a, current_date() AS d")
    new.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(str(source))
    spark.sql(f"INSERT INTO delta.`{source}` VALUES (10, DATE'2026-03-01')")
    delivering = Delivering(source, tmp_path / "target")
    delivering.by_executors(spark)
    same_as_driver(delivering)


def test_a_table_that_becomes_another_one(tmp_path: Path, spark: SparkSession) -> None:
    source = HandwrittenTable(tmp_path / "source")
    source.commit(source.add(source.data("a.parquet", [1, 2])))
    replaced = {"metaData": {**source.metadata, "id": "22222222-3333-4444-5555-666666666666"}}
    source.commit(replaced, source.remove("a.parquet"), source.add(source.data("b.parquet", [3])))
    source.commit(source.add(source.data("c.parquet", [4])))
    delivering = Delivering(source.path, tmp_path / "target")
    delivering.by_executors(spark, 2)
    assert delivering.progress(source.metadata["id"]) == 1
    delivering.by_executors(spark)
    same_as_driver(delivering)


def test_values_of_every_type_are_what_they_were(tmp_path: Path, spark: SparkSession) -> None:
    source = tmp_path / "source"
    moment = datetime(1850, 3, 1, 12, 30, 15, 123456, tzinfo=UTC)
    pair = pa.struct([pa.field("x", pa.int32()), pa.field("t", pa.timestamp("us", tz="UTC"))])
    columns: dict[str, pa.Array] = {
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
        "moment": pa.array([moment, None], pa.timestamp("us", tz="UTC")),
        "local": pa.array([moment.replace(tzinfo=None), None], pa.timestamp("us")),
        "pair": pa.array([{"x": 1, "t": moment}, None], pair),
        "list": pa.array([[None, {"x": 2, "t": None}], []], pa.list_(pair)),
        "map": pa.array([[("a", None), ("b", 1)], []], pa.map_(pa.string(), pa.int64())),
    }
    write_deltalake(source, pa.table(columns))
    delivering = Delivering(source, tmp_path / "target", options={"partition_by": ["day", "flag"]})
    with new_sessions_with(spark, {"spark.sql.session.timeZone": "America/New_York"}):
        delivering.by_executors(spark)
    same_as_driver(delivering)


def test_old_dates_are_what_they_were_whatever_spark_is_set_to_write(tmp_path: Path, spark: SparkSession) -> None:
    source = tmp_path / "source"
    moments = pa.array([datetime(1, 1, 1, tzinfo=UTC), datetime(1500, 2, 28, tzinfo=UTC)], pa.timestamp("us", tz="UTC"))
    write_deltalake(source, pa.table({"day": [date(1, 1, 1), date(1400, 3, 1)], "moment": moments}))
    delivering = Delivering(source, tmp_path / "target")
    with new_sessions_with(spark, OLD_FILES):
        delivering.by_executors(spark)
    same_as_driver(delivering)


def test_a_column_that_does_not_fit_stops_after_earlier_versions(tmp_path: Path, spark: SparkSession) -> None:
    source = tmp_path / "source"
    spark.sql(
        f"CREATE TABLE delta.`{source}` (a INT) USING delta "
        "TBLPROPERTIES ('delta.enableChangeDataFeed'='true','delta.enableTypeWidening'='true')"
    )
    spark.sql(f"INSERT INTO delta.`{source}` VALUES (1)")
    spark.sql(f"ALTER TABLE delta.`{source}` ALTER COLUMN a TYPE BIGINT")
    spark.sql(f"INSERT INTO delta.`{source}` VALUES (2)")
    delivering = Delivering(source, tmp_path / "target")
    with pytest.raises(SinkRejected, match="do not fit") as caught:
        delivering.by_executors(spark)
    assert delivering.progress() == 1
    # The hint's instruction is sufficient.
    spark.sql(caught.value.hint.partition("with Spark: ")[2])
    delivering.by_executors(spark)
    assert sorted(dict(row)["a"] for row in rows_of(delivering.target)) == ["1", "2"]
    assert delivering.progress() == 3


def test_a_row_that_does_not_fit_stops_after_earlier_versions(tmp_path: Path, spark: SparkSession) -> None:
    source = tmp_path / "source"
    for text in ("a", "b", "", "c"):
        write_deltalake(source, pa.table({"p": [text], "n": [1]}), mode="append")
    delivering = Delivering(source, tmp_path / "target", options={"partition_by": ["p"]})
    with pytest.raises(SinkRejected, match="an empty string"):
        delivering.by_executors(spark)
    assert delivering.progress() == 1
    assert DeltaTable(delivering.target).metadata().partition_columns == ["p"]
    assert sorted(dict(row)["p"] for row in rows_of(delivering.target)) == ["'a'", "'b'"]


def test_a_missing_file_stops_after_earlier_versions(
    delivering: Delivering, history: LongHistory, spark: SparkSession
) -> None:
    commit = json.loads((history.path / "_delta_log" / f"{20:020d}.json").read_text().splitlines()[0])
    (history.path / commit["add"]["path"]).unlink()
    beside = delivering.into(delivering.target.with_name("beside"))
    with pytest.raises(FileVacuumed) as theirs:
        beside.by_driver()
    with pytest.raises(FileVacuumed) as ours:
        delivering.by_executors(spark)
    assert ours.value.fields == theirs.value.fields
    assert delivering.progress() == beside.progress() == ours.value.version - 1
    assert rows_of(delivering.target) == rows_of(beside.target)


@pytest.mark.parametrize(
    "shared_bytes",
    [pytest.param(2**60, marks=pytest.mark.nightly), 0],
    ids=["one executor compares", "all executors compare"],
)
def test_rows_are_compared_by_the_pipelines_rules(
    tmp_path: Path, spark: SparkSession, shared_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparing, "SHARED_BYTES", shared_bytes)
    source = tmp_path / "source"
    rows = pa.table({"k": pa.array(range(20), pa.int64()), "v": [f"v{n}" for n in range(20)]})
    write_deltalake(source, rows)
    for low in (0, 5, 5):
        changed = pa.table({"k": rows["k"], "v": [f"w{n}" if low <= n < low + 5 else f"v{n}" for n in range(20)]})
        write_deltalake(source, changed, mode="overwrite")
    rules = PairingRules(compute_updates=True, key=("k",), skip_unchanged=True)
    delivering = Delivering(source, tmp_path / "target", pairing=rules, policy=Policy(columns=("v", "k")))
    delivering.by_executors(spark)
    same_as_driver(delivering)
    kinds = {dict(row)["_change_type"] for row in rows_of(delivering.target)}
    assert kinds == {"'insert'", "'update_preimage'", "'update_postimage'"}


def test_a_change_of_columns_may_be_refused(tmp_path: Path, spark: SparkSession) -> None:
    source = tmp_path / "source"
    write_deltalake(source, pa.table({"a": [1]}))
    write_deltalake(source, pa.table({"a": [2]}), mode="append")
    write_deltalake(source, pa.table({"a": [3], "b": [1]}), mode="append", schema_mode="merge")
    policy = Policy(on_schema_change=OnSchemaChange.FAIL)
    delivering = Delivering(source, tmp_path / "target", policy=policy)
    for _ in range(2):  # the second time, only the log has the old columns
        with pytest.raises(SchemaChanged, match="column b"):
            delivering.by_executors(spark)
        assert delivering.progress() == 1


def test_another_table_in_the_place_of_the_first(
    delivering: Delivering, history: LongHistory, spark: SparkSession
) -> None:
    delivering.by_executors(spark, 3)
    history.path.rename(history.path.with_name("old"))
    write_deltalake(history.path, pa.table({"id": [1]}))
    with pytest.raises(TableReplaced):
        delivering.by_executors(spark)


def interrupted(delivering: Delivering, then: Callable[[Append], Append]) -> Interrupted:
    """Make a sink at which `then` happens."""
    sink = Interrupted(delivering.name, **delivering.settings.sink_options)
    sink.then = then
    return sink


def other_delivers(delivering: Delivering, until: int, append: Append) -> Append:
    """Deliver with another instance."""
    delivering.by_driver(until)
    return append


def check_then_deliver(check: Callable[[], None], delivering: Delivering, until: int) -> None:
    """Check that the append is due, then let another instance be faster. Runs in a task of the job."""
    check()
    delivering.by_driver(until)


def other_delivers_in_job(delivering: Delivering, until: int, append: Append) -> Append:
    """Deliver with another instance while executors read."""
    return replace(append, check=partial(check_then_deliver, append.check, delivering, until))


@pytest.mark.parametrize("other", [other_delivers, other_delivers_in_job])
@pytest.mark.parametrize(("untils", "is_refused"), [((10, 12), True), ((10,), False), ((30,), False)])
@pytest.mark.sampled(6)
def test_of_two_instances_one_is_refused(
    delivering: Delivering,
    spark: SparkSession,
    untils: tuple[int, ...],
    is_refused: bool,
    other: Callable[[Delivering, int, Append], Append],
) -> None:
    """A run that has just begun takes one delivery of another for the last request of an instance that is gone."""
    delivering.by_driver(5)
    left = list(untils)
    sink = interrupted(delivering, lambda append: other(delivering, left.pop(0), append) if left else append)
    with pytest.raises(SinkFenced) if is_refused else nullcontext():
        anyio.run(delivering.executors(lambda: spark, 30, sink).run)
    assert delivering.progress() == (untils[-1] if is_refused else 30)
    delivering.by_executors(spark)
    same_as_driver(delivering)


class Forgetful(DeltaSink):
    """A sink that loses the answer to its first commit."""

    lost = 0

    async def confirm(self, append: Append, position: Position) -> bool:
        """Lose the answer."""
        self.lost += 1
        if self.lost == 1:
            raise CommitUnknown(self.name, "the answer was lost")
        return await super().confirm(append, position)


def test_an_answer_that_is_lost(delivering: Delivering, spark: SparkSession) -> None:
    delivering.by_driver(5)
    sink = Forgetful(delivering.name, **delivering.settings.sink_options)
    anyio.run(delivering.executors(lambda: spark, 30, sink).run)
    assert sink.lost == 1
    delivering.by_executors(spark)
    same_as_driver(delivering)


def test_an_append_of_ours_that_counted_as_failed(delivering: Delivering, spark: SparkSession) -> None:
    """It commits after all, like a driver that goes on when the daemon has lost it."""
    delivering.by_driver(5)
    sink = DeltaSink(delivering.name, **delivering.settings.sink_options)
    late: list[Append] = []

    class Late(Interrupted):
        """A sink that commits a first append when the second one is requested."""

    slow = Late(delivering.name, **delivering.settings.sink_options)
    slow._instance = sink._instance

    def then(append: Append) -> Append:
        if not late:
            late.append(append)
            anyio.run(delivering.executors(lambda: spark, 10, sink).run)
        return append

    slow.then = then
    anyio.run(delivering.executors(lambda: spark, 30, slow).run)
    assert delivering.progress() == 30
    delivering.by_executors(spark)
    same_as_driver(delivering)


def wait_in_task(check: Callable[[], None], folder: Path) -> None:
    """Report that the job runs, and wait to be stopped."""
    check()
    (folder / "running").touch()
    deadline = time.monotonic() + PATIENCE_S
    while not (folder / "go").exists() and time.monotonic() < deadline:
        time.sleep(0.05)


def test_cancelled_it_stops_the_job_and_has_committed_nothing(
    delivering: Delivering, tmp_path: Path, spark: SparkSession
) -> None:
    delivering.by_driver(5)

    def then(append: Append) -> Append:
        return replace(append, check=partial(wait_in_task, append.check, tmp_path))

    pipeline = delivering.executors(lambda: spark, 30, interrupted(delivering, then))

    async def cancelled() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(pipeline.run)
            with anyio.fail_after(PATIENCE_S):
                while not (tmp_path / "running").exists():  # noqa: ASYNC110 - a file of another process tells
                    await anyio.sleep(0.05)
            group.cancel_scope.cancel()

    anyio.run(cancelled)
    assert not (tmp_path / "go").exists()
    assert delivering.progress() == 5
    (tmp_path / "go").touch()
    delivering.by_executors(spark)
    same_as_driver(delivering)


def test_a_stop_ends_after_the_current_range(delivering: Delivering, spark: SparkSession) -> None:
    def then(append: Append) -> Append:
        pipeline.stop()
        return append

    pipeline = delivering.executors(lambda: spark, None, interrupted(delivering, then))
    anyio.run(pipeline.run)
    same_as_driver(delivering)


def test_unsupported_configurations_are_refused_at_once(delivering: Delivering, spark: SparkSession) -> None:
    lossy = replace(delivering, policy=Policy(on_data_loss=OnDataLoss.SKIP))
    with pytest.raises(ConfigError, match="on_data_loss"):
        lossy.executors(lambda: spark)
    elsewhere = replace(delivering.settings, sink_kind="memory", sink_options={})
    with pytest.raises(ConfigError, match="memory sink"):
        delta_pipeline(elsewhere, delivering.log(), MemorySink("m"), lambda: spark, LocalEngine(), TimerWake())
