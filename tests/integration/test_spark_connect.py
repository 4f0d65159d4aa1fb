"""Spark Connect: the same rows with Spark behind a server and only a client in this process.

`test_spark_executors` runs on it too. Needs an environment of its own: see the marker `spark_connect`.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

import anyio
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

import tailer.spark
from tailer.config.placement import SparkSettings
from tailer.engine.local import LocalEngine
from tailer.events import COMMIT_TIMESTAMP
from tailer.shards.shard_delivery import sharded_pipeline
from tailer.spark.engine.engine import SparkEngine
from tailer.spark.engine.executors import Executors
from tailer.spark.session import close_session, is_remote, open_session
from tailer.spark.write.delta_session import CATALOG, DELTA_CATALOG, DELTA_EXTENSION, EXTENSIONS
from tailer.start import Start, StartKind
from tailer.stores.wakeup import TimerWake
from tests.support.follow import plans, run_plan
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.history import History
from tests.support.kafka.sharded_delivery import ShardedDelivery
from tests.support.oracle.recorded import CASES_DATA, RecordedTable, read
from tests.support.oracle.rows import assert_same
from tests.support.oracle.rows import rows_of as rows
from tests.support.s3.server import S3Server
from tests.support.s3.tables import RemoteTable
from tests.support.spark.batches import placed
from tests.support.spark.cluster import ConnectServer
from tests.support.spark.executor_writes import Delivering, rows_of
from tests.support.spark.session import delta_jars

pytestmark = pytest.mark.spark_connect

CASE: Final = CASES_DATA / "unpaired_add_with_vector_via_restore.1.tar.xz"
KEYS: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_EC2_METADATA_DISABLED")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> RecordedTable:
    """A table with deletion vectors, and Spark's feed of it."""
    return read(CASE, tmp_path_factory.mktemp("recorded"))


def feed_of(recorded: RecordedTable) -> pa.Table:
    """Return all change rows, as Spark reads them."""
    return pa.concat_tables([answer.feed for answer in recorded.answers.values() if answer.feed])


@pytest.fixture(scope="module")
def event_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of Spark's event log."""
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory, event_log: Path, versitygw: S3Server) -> Iterator[SparkSession]:
    """A session with Delta that knows the data source. The server has keys for S3; this process has none."""
    conf = {EXTENSIONS: DELTA_EXTENSION, CATALOG: DELTA_CATALOG}
    log = {"enabled": "true", "dir": event_log.as_uri(), "compress": "false"}
    conf |= {f"spark.eventLog.{name}": value for name, value in log.items()}
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            for name in KEYS:
                patch.setenv(name, versitygw.environment[name])
            server = stack.enter_context(ConnectServer(tmp_path_factory.mktemp("connect"), conf, delta_jars()))
        found = open_session(SparkSettings(remote=server.remote))
        assert is_remote(found)
        tailer.spark.register(found)
        yield found
        close_session(found)


def test_a_batch_is_the_expected_feed(session: SparkSession, recorded: RecordedTable) -> None:
    frame = session.read.format("tailer").options(startingVersion=0, endingVersion=recorded.last)
    assert_same(rows(frame.load(str(recorded.path)).toArrow()), rows(feed_of(recorded)), recorded.title)


def test_sparks_own_reader_gives_the_expected_feed(session: SparkSession, recorded: RecordedTable) -> None:
    """Of files with vectors, beside rows that the server's executors compare."""
    found = tailer.spark.changes(session, recorded.path, end=recorded.last)
    assert_same(rows(found.toArrow()), rows(feed_of(recorded)), recorded.title)
    tracked = tailer.spark.changes(session, recorded.path, end=recorded.last, carryovers="keep")
    assert tracked.count() >= found.count()


def writing(folder: Path) -> Callable[[DataFrame, int], None]:
    """Write each batch to a folder of its own; a closure, because the server cannot import this module."""

    def write(changes: DataFrame, number: int) -> None:
        changes.write.mode("overwrite").parquet(f"{folder}/{number}")

    return write


def test_a_followed_table_is_the_expected_feed(session: SparkSession, recorded: RecordedTable, tmp_path: Path) -> None:
    """The server calls the function, with a session of its own."""
    query = tailer.spark.follow(
        session, recorded.path, writing(tmp_path / "out"), start=0, end=recorded.last, maxFilesPerTrigger=2
    )
    running = query.trigger(availableNow=True).option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    running.awaitTermination()
    assert running.exception() is None
    folders = list((tmp_path / "out").iterdir())
    assert len(folders) > 1
    schema = feed_of(recorded).schema
    found = pa.concat_tables([pq.read_table(folder).select(schema.names).cast(schema) for folder in folders])
    assert_same(rows(found), rows(feed_of(recorded)), recorded.title)


def test_a_stream_is_the_expected_feed(session: SparkSession, recorded: RecordedTable, tmp_path: Path) -> None:
    """In several micro-batches; another query continues with the second half."""
    for end in (2, recorded.last):
        frame = session.readStream.format("tailer").options(startingVersion=0, maxRowsPerTrigger=3)
        changes = frame.option("endingVersion", end).load(str(recorded.path))
        writer = changes.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start(str(tmp_path / "out"))
        query.awaitTermination()
        assert query.exception() is None
    found = pq.read_table(tmp_path / "out").cast(feed_of(recorded).schema)
    assert_same(rows(found), rows(feed_of(recorded)), recorded.title)


def test_a_table_in_s3(
    session: SparkSession, recorded: RecordedTable, versitygw: S3Server, event_log: Path, tmp_path: Path
) -> None:
    """A batch, and a stream whose second half another query reads; no record of Spark's holds a key."""
    location = RemoteTable.copied(recorded.path, versitygw, versitygw.new_bucket()).location
    options = {"startingVersion": "0", "endpoint": versitygw.endpoint, "region": "us-east-1"}
    expected = feed_of(recorded).drop_columns([COMMIT_TIMESTAMP])
    batch = session.read.format("tailer").options(**options).load(location).toArrow()
    assert_same(rows(batch.drop_columns([COMMIT_TIMESTAMP])), rows(expected), recorded.title)
    for end in (2, recorded.last):
        frame = session.readStream.format("tailer").options(**options, maxRowsPerTrigger=3, endingVersion=end)
        writer = frame.load(location).writeStream.format("parquet")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination()
    found = pq.read_table(tmp_path / "out").drop_columns([COMMIT_TIMESTAMP]).cast(expected.schema)
    assert_same(rows(found), rows(expected), recorded.title)
    files = [file for folder in (event_log, tmp_path / "checkpoint") for file in folder.rglob("*") if file.is_file()]
    recorded_text = b"".join(file.read_bytes() for file in files)
    assert b"SparkListenerJobEnd" in recorded_text
    for secret in (versitygw.secret, versitygw.key):
        assert secret.encode() not in recorded_text


def test_the_engine_gives_the_rows_in_their_order(session: SparkSession, recorded: RecordedTable) -> None:
    with closing(Executors(session)) as executors:
        engine = SparkEngine(lambda: executors)
        for plan in plans(recorded.path):
            expected = list(placed(run_plan(plan, LocalEngine()).batches))
            assert list(placed(run_plan(plan, engine).batches)) == expected


def test_executors_write_to_delta_what_the_driver_does(
    session: SparkSession, recorded: RecordedTable, tmp_path: Path
) -> None:
    delivering = Delivering(recorded.path, tmp_path / "target")
    delivering.by_executors(session, 2)
    delivering.by_executors(session)
    beside = delivering.into(tmp_path / "beside")
    beside.by_driver()
    assert rows_of(delivering.target) == rows_of(beside.target)
    assert delivering.progress() == beside.progress() == delivering.latest


def test_executors_deliver_shards_to_kafka(session: SparkSession, kafka: KafkaCluster, tmp_path: Path) -> None:
    history = History(tmp_path / "table", seed=5, length=12, large=300, large_every=4)
    history.publish(history.length)
    place = ShardedDelivery(kafka, history)
    with closing(Executors(session)) as executors:
        pipeline = sharded_pipeline(
            place.settings(3),
            place.table(),
            lambda: executors,
            TimerWake(),
            until=Start(StartKind.VERSION, history.last),
        )
        anyio.run(pipeline.run)
    assert place.figures(3).all_zero, place.figures(3)
