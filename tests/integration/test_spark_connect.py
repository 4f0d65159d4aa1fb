"""Spark Connect: the same answers where Spark is behind a server, of which this process has nothing but a client.

`test_spark_executors` runs on it too. In an environment of its own: see the marker `spark_connect`.
"""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import anyio
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import tailer.spark
from tailer.config.placement import SparkSettings
from tailer.engine.local import LocalEngine
from tailer.pipeline.wakeup import TimerWake
from tailer.spark.engine.engine import SparkEngine
from tailer.spark.engine.executors import Executors
from tailer.spark.session import close_session, is_remote, open_session
from tailer.spark.write.delta_session import CATALOG, DELTA_CATALOG, DELTA_EXTENSION, EXTENSIONS
from tailer.spark.write.sharded_pipeline import ShardedPipeline
from tests.executor_writing import Delivering, rows_of
from tests.faults.kafka_history import History
from tests.feeding import placed
from tests.follow import plans, run_plan
from tests.golden.test_feeds import expected_table, rows
from tests.integration.test_kafka_shards import Place
from tests.kafka.cluster import KafkaCluster
from tests.oracle import assert_same
from tests.spark import delta_jars
from tests.spark_cluster import ConnectServer
from tests.tables import expected_feed, golden_delta

pytestmark = pytest.mark.spark_connect

TABLE: Final = "cdf-table-with-dv"


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with Delta that knows the data source."""
    conf = {EXTENSIONS: DELTA_EXTENSION, CATALOG: DELTA_CATALOG}
    with ConnectServer(tmp_path_factory.mktemp("connect"), conf, delta_jars()) as server:
        found = open_session(SparkSettings(remote=server.remote))
        assert is_remote(found)
        tailer.spark.register(found)
        yield found
        close_session(found)


def test_a_batch_is_the_expected_feed(session: SparkSession) -> None:
    feed = expected_feed(TABLE)
    frame = session.read.format("tailer").options(startingVersion=feed.first, endingVersion=feed.last)
    assert_same(rows(frame.load(str(golden_delta(TABLE))).toArrow()), rows(expected_table(TABLE)), TABLE)


def test_a_stream_is_the_expected_feed(session: SparkSession, tmp_path: Path) -> None:
    """In several micro-batches, the second half by another query that takes over."""
    feed = expected_feed(TABLE)
    for end in (feed.first, feed.last):
        frame = session.readStream.format("tailer").options(startingVersion=feed.first, maxRowsPerTrigger=3)
        changes = frame.option("endingVersion", end).load(str(golden_delta(TABLE)))
        writer = changes.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start(str(tmp_path / "out"))
        query.awaitTermination()
        assert query.exception() is None
    found = pq.read_table(tmp_path / "out").cast(expected_table(TABLE).schema)
    assert_same(rows(found), rows(expected_table(TABLE)), TABLE)


def test_the_engine_gives_the_rows_in_their_order(session: SparkSession) -> None:
    with closing(Executors(session)) as executors:
        engine = SparkEngine(lambda: executors)
        for plan in plans(golden_delta(TABLE)):
            expected = list(placed(run_plan(plan, LocalEngine()).batches))
            assert list(placed(run_plan(plan, engine).batches)) == expected


def test_executors_write_to_delta_what_the_driver_does(session: SparkSession, tmp_path: Path) -> None:
    feed, source = expected_feed(TABLE), golden_delta(TABLE)
    delivering = Delivering(source, tmp_path / "target")
    delivering.by_executors(session, feed.first)
    delivering.by_executors(session)
    beside = delivering.into(tmp_path / "beside")
    beside.by_driver()
    assert rows_of(delivering.target) == rows_of(beside.target)
    assert delivering.progress() == beside.progress() == delivering.latest


def test_executors_deliver_shards_to_kafka(session: SparkSession, kafka: KafkaCluster, tmp_path: Path) -> None:
    history = History(tmp_path / "table", seed=5, length=12, large=300, large_every=4)
    history.publish(history.length)
    place = Place(kafka, history)
    with closing(Executors(session)) as executors:
        pipeline = ShardedPipeline(place.settings(3), place.table(), lambda: executors, TimerWake(), until=history.last)
        anyio.run(pipeline.run)
    assert place.figures(3).all_zero, place.figures(3)
