"""A table in Azure read by Spark's executors, from a real server: batches and streams, and the daemon's engine.

On every landing: Spark's source in S3 (`integration/test_spark_s3.py`), and Azure without Spark
(`contract/test_stores.py`, `integration/test_cloud_tables.py`).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import tailer.spark
from tailer.events import COMMIT_TIMESTAMP
from tests.support.cloud.servers import CloudServer
from tests.support.cloud.tables import copied
from tests.support.oracle.recorded import CASES_DATA, read
from tests.support.oracle.rows import assert_same, rows_of
from tests.support.spark.queries import read_batch

KEY: Final = "AZURE_STORAGE_ACCOUNT_KEY"
VECTORS: Final = CASES_DATA / "vectors_on_a_file_with_many_row_groups.1.tar.xz"


@pytest.fixture
def server(spark: SparkSession, azurite: CloudServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[CloudServer]:
    """A server whose key, but not its endpoint, the driver and the executors have in their environment."""
    with azurite.logged_in(monkeypatch):
        monkeypatch.setitem(spark.sparkContext.environment, KEY, azurite.secret)
        tailer.spark.register(spark)
        yield azurite


@pytest.mark.nightly
def test_batch_and_stream_equal_the_local_table(spark: SparkSession, server: CloudServer, tmp_path: Path) -> None:
    local, checkpoint = read(VECTORS, tmp_path / "table").path, tmp_path / "checkpoint"
    location = copied(local, server, server.new_bucket()).location
    given = {"startingVersion": "0", "endpoint": str(server.options.endpoint)}
    frame = spark.read.format("tailer").options(**given).load(location.replace("abfss:", "abfs:"))
    batch = frame.toArrow()
    expected = read_batch(path=local, startingVersion=0).drop_columns([COMMIT_TIMESTAMP])
    assert_same(rows_of(batch.drop_columns([COMMIT_TIMESTAMP])), rows_of(expected), "local")
    found: list[pa.Table] = []

    def take(rows: DataFrame, _number: int) -> None:
        found.append(rows.toArrow())

    rows = spark.readStream.format("tailer").options(maxFilesPerTrigger=3, **given).load(location)
    query = rows.writeStream.option("checkpointLocation", str(checkpoint)).foreachBatch(take)
    query.trigger(availableNow=True).start().awaitTermination()
    assert_same(rows_of(pa.concat_tables(found)), rows_of(batch), "stream")
    recorded = [file.read_bytes().decode("latin-1") for file in checkpoint.rglob("*") if file.is_file()]
    assert recorded
    assert server.secret not in "".join(recorded) + frame._jdf.queryExecution().toString()
    with_key = spark.read.format("tailer").options(accountKey=server.secret, **given)
    with pytest.raises(PySparkException, match="accountKey: would be a secret") as refused:
        with_key.load(location)
    assert server.secret not in str(refused.value)
