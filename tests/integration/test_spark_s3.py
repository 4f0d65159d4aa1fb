"""Tables in S3 read by Spark, from a real server: batches, streams, the daemon's engine and its executors."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import anyio
import pyarrow as pa
import pytest
from anyio import to_thread
from deltalake.exceptions import TableNotFoundError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import tailer.spark
from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.rules import PairingRules
from tailer.config.pipelines import Settings
from tailer.config.settings import load
from tailer.config.tables import open_files
from tailer.daemon.serve import serve
from tailer.engine import Engine
from tailer.engine.local import LocalEngine
from tailer.events import COMMIT_TIMESTAMP, COMMIT_VERSION
from tailer.plan import ChangePlan
from tailer.spark.engine.engine import SparkEngine
from tailer.spark.engine.executors import Executors
from tests.support.daemon.commands import Orders
from tests.support.follow import plans, run_plan
from tests.support.oracle.recorded import CASES_DATA, HISTORIES, read
from tests.support.oracle.rows import assert_same, rows_of
from tests.support.s3.server import S3Server
from tests.support.s3.tables import RemoteTable
from tests.support.spark.batches import Placed, placed
from tests.support.spark.queries import read_batch

KEYS: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_EC2_METADATA_DISABLED")
WAIT_S: Final = 200.0
HISTORY: Final = min(HISTORIES.glob("*.tar.xz"))
VECTORS: Final = CASES_DATA / "vectors_on_a_file_with_many_row_groups.1.tar.xz"


@pytest.fixture
def server(spark: SparkSession, versitygw: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """A server whose keys, but not its endpoint, the driver and the executors have in their environment."""
    for name in KEYS:
        monkeypatch.setenv(name, versitygw.environment[name])
        monkeypatch.setitem(spark.sparkContext.environment, name, versitygw.environment[name])
    tailer.spark.register(spark)
    return versitygw


@pytest.fixture
def executors(spark: SparkSession) -> Iterator[Executors]:
    """The executors of the session."""
    opened = Executors(spark)
    yield opened
    opened.close()


def copied(table: Path, server: S3Server) -> RemoteTable:
    """Copy a local table to a bucket of its own."""
    return RemoteTable.copied(table, server, server.new_bucket())


def options(server: S3Server) -> dict[str, str]:
    """Return the options of the data source that name the server."""
    return {"endpoint": server.endpoint, "region": "us-east-1"}


def stream(spark: SparkSession, checkpoint: Path, location: str, **given: Any) -> pa.Table:
    """Return the rows of a query with small batches."""
    found: list[pa.Table] = []

    def take(rows: DataFrame, _number: int) -> None:
        found.append(rows.toArrow())

    frame = spark.readStream.format("tailer").options(maxFilesPerTrigger=3, **given).load(location)
    query = frame.writeStream.option("checkpointLocation", str(checkpoint)).foreachBatch(take)
    query.trigger(availableNow=True).start().awaitTermination()
    return pa.concat_tables(found)


def timeless(rows: pa.Table) -> pa.Table:
    """Leave out the times of commits: copies of a table have times of their own."""
    return rows.drop_columns([COMMIT_TIMESTAMP])


def shown(frame: DataFrame, checkpoint: Path) -> str:
    """Return the plans of a batch, and all that a query has recorded."""
    logical_and_physical: str = frame._jdf.queryExecution().toString()
    recorded = [file.read_bytes() for file in checkpoint.rglob("*") if file.is_file()]
    assert recorded
    return logical_and_physical + "".join(each.decode("latin-1") for each in recorded)


def test_batch_and_stream_equal_the_local_table(spark: SparkSession, server: S3Server, tmp_path: Path) -> None:
    local = read(VECTORS, tmp_path / "table").path
    location, checkpoint = copied(local, server).location, tmp_path / "checkpoint"
    given = {"startingVersion": "0", **options(server)}
    frame = spark.read.format("tailer").options(**given).load(location.replace("s3:", "s3a:"))
    batch = frame.toArrow()
    assert_same(rows_of(timeless(batch)), rows_of(timeless(read_batch(path=local, startingVersion=0))), "local")
    assert_same(rows_of(stream(spark, checkpoint, location, **given)), rows_of(batch), "stream")
    text = shown(frame, checkpoint)
    assert server.secret not in text
    assert server.key not in text


def test_a_stream_goes_on_from_its_checkpoint(spark: SparkSession, server: S3Server, tmp_path: Path) -> None:
    """The first query ends between two versions, and commits are added before the second one reads the rest."""
    orders, bucket, checkpoint = Orders(tmp_path / "orders"), server.new_bucket(), tmp_path / "checkpoint"
    orders.insert(*range(50))
    orders.delete(3, 4)
    orders.insert(100, 101)
    location = RemoteTable.copied(orders.path, server, bucket).location
    given = {"startingVersion": "0", **options(server)}
    before = stream(spark, checkpoint, location, **given, endingVersion=1)
    orders.delete(100)
    orders.insert(200)
    RemoteTable.copied(orders.path, server, bucket)
    after = stream(spark, checkpoint, location, **given)
    assert [set(each.column(COMMIT_VERSION).to_pylist()) for each in (before, after)] == [{0, 1}, {2, 3, 4}]
    expected = timeless(read_batch(path=orders.path, startingVersion=0))
    assert_same(rows_of(timeless(pa.concat_tables([before, after]))), rows_of(expected), "local")


def placed_rows(plan: ChangePlan, engine: Engine) -> list[Placed]:
    """Return the rows of a plan with their positions, in order."""
    return list(placed(run_plan(plan, engine).batches))


def test_the_engine_on_executors_equals_the_local_one(server: S3Server, executors: Executors, tmp_path: Path) -> None:
    """The rows have the positions of the local table, too."""
    history = read(HISTORY, tmp_path / "table")
    remote, rules = copied(history.path, server), PairingRules(compute_updates=True)
    files = open_files(remote.stores)
    on_spark = ChangelogEngine(SparkEngine(lambda: executors, files), rules, files=files)
    local = ChangelogEngine(LocalEngine(), rules)
    expected, found = plans(history.path, history.first), [each.plan for each in remote.follow(history.first)]
    assert [plan.version for plan in found] == [plan.version for plan in expected]
    assert len(found) > 10
    for theirs, ours in zip(found[-6:], expected[-6:], strict=True):
        assert placed_rows(theirs, on_spark) == placed_rows(ours, local)


def test_a_refused_key_is_named_and_not_shown(
    spark: SparkSession, server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    location = copied(read(VECTORS, tmp_path / "table").path, server).location
    monkeypatch.setitem(spark.sparkContext.environment, "AWS_SECRET_ACCESS_KEY", "wrong/ButHush")
    tailer.spark.register(spark)
    reader = spark.read.format("tailer").options(startingVersion=0, **options(server))
    with pytest.raises(PySparkException) as failure:
        reader.load(location)
    assert "Check AWS_SECRET_ACCESS_KEY" in str(failure.value)
    for secret in ("wrong/ButHush", server.secret):
        assert secret not in str(failure.value)
    with pytest.raises(PySparkException, match="secretAccessKey: would be a secret") as refused:
        reader.option("secretaccesskey", server.secret).load(location)
    assert server.secret not in str(refused.value)


def is_copied(orders: Orders, target: Path) -> bool:
    """Return whether every change is in the target."""
    try:
        return orders.copied_to(target) == sorted(orders.changes)
    except TableNotFoundError:
        return False


async def serve_until(settings: Settings, is_done: Callable[[], bool]) -> None:
    """Run the daemon's pipelines in this process until `is_done`."""
    async with anyio.create_task_group() as group:
        group.start_soon(serve, settings)
        with anyio.fail_after(WAIT_S):
            while not await to_thread.run_sync(is_done):  # noqa: ASYNC110 - the effect is in files
                await anyio.sleep(0.1)
        group.cancel_scope.cancel()


def configured(server: S3Server, location: str, folder: Path) -> Settings:
    """Return a configuration with a pipeline whose rows executors read."""
    text = f"""
        engine = "spark"
        [stores.lake]
        prefix = "{location}"
        endpoint = "{server.endpoint}"
        [pipelines.orders]
        table = "{location}"
        poll_interval_s = 0.1
        [pipelines.orders.sink]
        kind = "delta"
        path = "target"
        """
    path = folder / "tailer.toml"
    path.write_text(text)
    return load(path)


def test_the_daemon_on_spark_delivers_what_is_in_the_store(
    spark: SparkSession,
    server: S3Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("tailer.spark.engine.executors.open_session", lambda _: spark)
    monkeypatch.setattr("tailer.spark.engine.executors.close_session", lambda _: None)
    caplog.set_level(logging.INFO)
    orders = Orders(tmp_path / "source")
    orders.insert(*range(200))
    orders.delete(3, 4)
    settings = configured(server, copied(orders.path, server).location, tmp_path)
    anyio.run(serve_until, settings, lambda: is_copied(orders, tmp_path / "target"))
    assert "running orders" in caplog.text
    assert server.secret not in caplog.text
