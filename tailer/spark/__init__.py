"""lake-tailer on Spark: the same plans and the same `execute` on many machines.

    native       DataFrames that Spark reads by itself wherever it can
    streaming    streams of these
    source       the data source `tailer`, for batches and streams
    engine       the daemon's engine on executors
    write        pipelines whose rows executors write
    splits       units of work for executors
    session, shared_session   Spark sessions, classic or of Spark Connect
    recipes      functions for `foreachBatch`
    release      executors have the release of the driver
    java         objects of Spark's Java

`register` makes the data source known to a session::

    import tailer.spark
    tailer.spark.register(spark)
    spark.readStream.format("tailer").load("/data/orders")

Executors need lake-tailer: either an environment with it (`spark.pyspark.python`, an image), or the wheel
(`spark.submit.pyFiles`) in an environment with its dependencies. `local[*]` already has it. For tables in
stores they need the extra `s3` or `cloud`, and keys where each cloud's own tools look for them.
"""

from pyspark.sql import SparkSession

from tailer.spark.native.changes import changes
from tailer.spark.source.data_source import TailerSource
from tailer.spark.streaming.follow import follow
from tailer.spark.write.kafka_shards import into_kafka

__all__ = ["changes", "follow", "into_kafka", "register"]


def register(spark: SparkSession) -> None:
    """Register `format("tailer")` in a session, classic or of Spark Connect. Registering again changes nothing."""
    spark.dataSource.register(TailerSource)
