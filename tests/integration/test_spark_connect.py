"""The data source behind Spark Connect: the same rows with Spark behind a server and only a client in this process.

Needs an environment of its own: see the marker `spark_connect`.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import tailer.spark
from tailer.errors import ConfigError
from tailer.events import COMMIT_TIMESTAMP
from tests.support.oracle.recorded import CASES_DATA, RecordedTable, read
from tests.support.oracle.rows import assert_same
from tests.support.oracle.rows import rows_of as rows
from tests.support.s3.server import S3Server
from tests.support.s3.tables import RemoteTable
from tests.support.spark.cluster import ConnectServer

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
    """A session that knows the data source. The server has keys for S3; this process has none."""
    from pyspark.sql.connect.session import SparkSession as ConnectSession  # noqa: PLC0415 - needs the extra

    log = {"enabled": "true", "dir": event_log.as_uri(), "compress": "false"}
    conf = {f"spark.eventLog.{name}": value for name, value in log.items()}
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            for name in KEYS:
                patch.setenv(name, versitygw.environment[name])
            server = stack.enter_context(ConnectServer(tmp_path_factory.mktemp("connect"), conf))
        # `SparkSession.builder.remote` would make every session of this process one of Spark Connect.
        found: Any = ConnectSession.builder.remote(server.remote).create()
        tailer.spark.register(found)
        yield found
        found.stop()


def test_a_batch_is_the_expected_feed(session: SparkSession, recorded: RecordedTable) -> None:
    frame = session.read.format("tailer").options(startingVersion=0, endingVersion=recorded.last)
    assert_same(rows(frame.load(str(recorded.path)).toArrow()), rows(feed_of(recorded)), recorded.title)


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


def test_only_the_data_source_takes_such_a_session(session: SparkSession, recorded: RecordedTable) -> None:
    for refused in (
        lambda: tailer.spark.changes(session, recorded.path),
        lambda: tailer.spark.follow(session, recorded.path, lambda *_: None),
    ):
        with pytest.raises(ConfigError) as raised:
            refused()
        assert 'format("tailer")' in raised.value.hint
