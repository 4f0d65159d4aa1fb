"""Tables in S3 read by Spark, from a real server: batches, streams, the daemon's engine and its executors."""

import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import anyio
import pyarrow as pa
import pytest
from deltalake.exceptions import TableNotFoundError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import tailer.spark
from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.rules import PairingRules
from tailer.config.tables import open_files, open_table
from tailer.engine.local import LocalEngine
from tailer.engine.port import Engine
from tailer.events import COMMIT_TIMESTAMP
from tailer.plan import ChangePlan
from tailer.spark.engine.engine import SparkEngine
from tailer.spark.engine.executors import Executors
from tailer.start import Start
from tailer.stores.s3 import S3Options
from tailer.stores.stores import Stores
from tests.support.daemon.commands import Orders, background
from tests.support.follow import plans, run_plan
from tests.support.oracle.recorded import CASES_DATA, HISTORIES, read
from tests.support.oracle.rows import assert_same, rows_of
from tests.support.servers.s3 import S3Server
from tests.support.spark.batches import Placed, placed
from tests.support.spark.queries import read_batch
from tests.support.spark.session import delta_jars

pytestmark = pytest.mark.spark

KEYS: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_EC2_METADATA_DISABLED")
WAIT_S: Final = 120.0
HISTORY: Final = min(HISTORIES.glob("*.tar.xz"))
TABLES: Final = (
    CASES_DATA / "vectors_on_a_file_with_many_row_groups.1.tar.xz",
    CASES_DATA / "partition_values_that_need_escapes.1.tar.xz",
)


@dataclass
class Lake:
    """A bucket of a server, and how Spark reaches it."""

    server: S3Server
    bucket: str

    @property
    def options(self) -> dict[str, str]:
        """The options of the data source."""
        return {"endpoint": self.server.endpoint, "region": "us-east-1"}

    @property
    def stores(self) -> Stores:
        """The same as a configuration has it."""
        return Stores(((f"s3://{self.bucket}", S3Options(self.server.endpoint, "us-east-1")),))

    def put(self, folder: Path, name: str) -> str:
        """Copy a table and return its location."""
        for file in sorted(each for each in folder.rglob("*") if each.is_file()):
            key = f"{name}/{file.relative_to(folder).as_posix()}"
            self.server.client.put_object(Bucket=self.bucket, Key=key, Body=file.read_bytes())
        return f"s3://{self.bucket}/{name}"


@pytest.fixture
def lake(spark: SparkSession, s3proxy: S3Server, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """A bucket. The driver and the executors have the keys in their environment, and no endpoint."""
    for name in KEYS:
        monkeypatch.setenv(name, s3proxy.environment[name])
        monkeypatch.setitem(spark.sparkContext.environment, name, s3proxy.environment[name])
    tailer.spark.register(spark)
    return Lake(s3proxy, s3proxy.new_bucket())


@pytest.fixture
def executors(spark: SparkSession) -> Iterator[Executors]:
    """The executors of the session."""
    opened = Executors(spark)
    yield opened
    opened.close()


async def all_plans(location: str, stores: Stores) -> list[ChangePlan]:
    """Return the plans of all versions of a table."""
    table = open_table(location, stores)
    await table.seek((await table.resolve(Start.parse("earliest"))).version)
    found: list[ChangePlan] = []
    while (plan := await table.next_plan()) is not None:
        found.append(plan)
    return found


def placed_rows(plan: ChangePlan, engine: Engine) -> list[Placed]:
    """Return the rows of a plan with their positions, in order."""
    return list(placed(run_plan(plan, engine).batches))


def copied(orders: Orders, target: Path) -> bool:
    """Return whether every change is in the target."""
    try:
        return orders.copied_to(target) == sorted(orders.changes)
    except TableNotFoundError:
        return False


def until(holds: Callable[[], bool]) -> None:
    """Wait for an effect of another process."""
    end = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.1)


def stream(spark: SparkSession, folder: Path, location: str, **options: Any) -> pa.Table:
    """Return the rows of a query with small batches."""
    found: list[pa.Table] = []

    def take(rows: DataFrame, _number: int) -> None:
        found.append(rows.toArrow())

    frame = spark.readStream.format("tailer").options(maxFilesPerTrigger=3, **options).load(location)
    query = frame.writeStream.option("checkpointLocation", str(folder)).foreachBatch(take)
    query.trigger(availableNow=True).start().awaitTermination()
    return pa.concat_tables(found)


def timeless(rows: pa.Table) -> pa.Table:
    """Leave out the times of commits: copies of a table have times of their own."""
    return rows.drop_columns([COMMIT_TIMESTAMP])


def shown(frame: DataFrame, checkpoint: Path) -> str:
    """Return the plans of a batch, and all that a query has recorded."""
    plans_text: str = frame._jdf.queryExecution().toString()  # type: ignore[operator]
    files = [file.read_bytes() for file in checkpoint.rglob("*") if file.is_file()]
    assert files
    return plans_text + "".join(each.decode("latin-1") for each in files)


@pytest.mark.parametrize("archive", TABLES, ids=lambda archive: archive.name[:20])
def test_batch_and_stream_equal_the_local_table(spark: SparkSession, lake: Lake, tmp_path: Path, archive: Path) -> None:
    local = read(archive, tmp_path / "table").path
    location, checkpoint = lake.put(local, "sales/orders 50%"), tmp_path / "checkpoint"
    given = {"startingVersion": "0", **lake.options}
    frame = spark.read.format("tailer").options(**given).load(location.replace("s3:", "s3a:"))
    batch = frame.toArrow()
    assert_same(rows_of(timeless(batch)), rows_of(timeless(read_batch(path=local, startingVersion=0))), "local")
    assert_same(rows_of(stream(spark, checkpoint, location, **given)), rows_of(batch), "stream")
    text = shown(frame, checkpoint)
    assert lake.server.secret not in text
    assert lake.server.key not in text


def test_the_engine_on_executors_equals_the_local_one(lake: Lake, executors: Executors, tmp_path: Path) -> None:
    """The rows have the positions of the local table, too."""
    history = read(HISTORY, tmp_path / "table")
    location, files, rules = lake.put(history.path, "t"), open_files(lake.stores), PairingRules(compute_updates=True)
    on_spark = ChangelogEngine(SparkEngine(lambda: executors, files), rules, files=files)
    in_process = ChangelogEngine(LocalEngine(files=files), rules, files=files)
    local = ChangelogEngine(LocalEngine(), rules)
    expected = plans(history.path, history.first)
    found = anyio.run(all_plans, location, lake.stores)
    assert len(found) == len(expected) > 5
    for theirs, ours in zip(found, expected, strict=True):
        rows = placed_rows(theirs, on_spark)
        assert rows == placed_rows(theirs, in_process)
        assert rows == placed_rows(ours, local)


def test_a_refused_key_is_named_and_not_shown(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    location = lake.put(read(TABLES[0], tmp_path / "table").path, "t")
    reader = spark.read.format("tailer").options(startingVersion=0, **lake.options)
    frame = reader.load(location)
    monkeypatch.setitem(spark.sparkContext.environment, "AWS_SECRET_ACCESS_KEY", "wrong/ButHush")
    tailer.spark.register(spark)
    with pytest.raises(PySparkException) as failure:
        reader.load(location).collect()
    assert "Check AWS_SECRET_ACCESS_KEY" in str(failure.value)
    for secret in ("wrong/ButHush", lake.server.secret):
        assert secret not in str(failure.value)
    with pytest.raises(PySparkException, match="secretAccessKey: would be a secret") as refused:
        reader.option("secretaccesskey", lake.server.secret).load(location)
    assert lake.server.secret not in str(refused.value)
    assert frame.columns


def test_the_daemon_on_spark_delivers_what_is_in_the_store(s3proxy: S3Server, tmp_path: Path) -> None:
    """The executors of one pipeline read, those of the other write."""
    lake, orders = Lake(s3proxy, s3proxy.new_bucket()), Orders(tmp_path / "source")
    orders.insert(*range(200))
    orders.delete(3, 4)
    lake.put(orders.path, "sales/orders")
    targets = [tmp_path / "target-driver", tmp_path / "target-executors"]
    variables = {name: s3proxy.environment[name] for name in KEYS}
    with background("run", configured(lake, tmp_path), SPARK_LOCAL_IP="127.0.0.1", **variables) as daemon:
        until(lambda: all(copied(orders, target) for target in targets))
        orders.insert(1000)
        orders.delete(1000, 5)
        lake.put(orders.path, "sales/orders")
        until(lambda: all(copied(orders, target) for target in targets))
        daemon.send_signal(signal.SIGTERM)
        said = "".join(daemon.communicate(timeout=WAIT_S))
        assert daemon.returncode == 0, said
    assert s3proxy.secret not in said


def configured(lake: Lake, folder: Path) -> Path:
    """Write a configuration with two pipelines of one table."""
    text = f"""
        engine = "spark"
        drain_s = 60
        [stores.lake]
        prefix = "s3://{lake.bucket}"
        endpoint = "{lake.server.endpoint}"
        [spark]
        master = "local[2]"
        [spark.conf]
        "spark.ui.enabled" = false
        "spark.driver.bindAddress" = "127.0.0.1"
        "spark.local.dir" = "{folder / "spark"}"
        "spark.jars" = "{",".join(map(str, delta_jars()))}"
        """
    for write in ("driver", "executors"):
        text += f"""
        [pipelines.{write}]
        table = "s3://{lake.bucket}/sales/orders"
        write = "{write}"
        poll_interval_s = 0.1
        [pipelines.{write}.sink]
        kind = "delta"
        path = "target-{write}"
        """
    path = folder / "tailer.toml"
    path.write_text(text)
    return path
