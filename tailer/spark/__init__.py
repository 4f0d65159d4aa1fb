"""lake-tailer on Spark: the same plans and the same `execute` on many machines.

    native       DataFrames that Spark reads by itself wherever it can
    streaming    streams of these
    source       the data source `tailer`, for batches and streams
    engine       the daemon's engine on executors
    write        pipelines whose rows executors write
    splits       units of work for executors

`register` makes the data source known to a session::

    import tailer.spark
    tailer.spark.register(spark)
    spark.readStream.format("tailer").load("/data/orders")

Executors need lake-tailer: either an environment with it (`spark.pyspark.python`, an image), or the wheel
(`spark.submit.pyFiles`) in an environment with its dependencies. `local[*]` already has it. For tables in stores they
need the extra `s3`, `gcs` or `azure`, and keys where each cloud's own tools look for them.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import SparkSession

from tailer.config.shapes import DEFAULT_SHARDS

if TYPE_CHECKING:
    from tailer.spark.native.changes import changes
    from tailer.spark.streaming.follow import follow
    from tailer.spark.write.kafka_shards import KafkaShards

__all__ = ["changes", "follow", "into_kafka", "register"]

_HOMES: Final = {"changes": "tailer.spark.native.changes", "follow": "tailer.spark.streaming.follow"}


def __getattr__(name: str) -> Any:
    """Import the public functions when they are first used: executors import this package, and do without them."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def register(spark: SparkSession) -> None:
    """Register `format("tailer")` in a session, classic or of Spark Connect. Registering again changes nothing."""
    from tailer.spark.source.data_source import TailerSource  # noqa: PLC0415 - as above

    spark.dataSource.register(TailerSource)


def into_kafka(name: str, sink: Mapping[str, Any], *, shards: int = DEFAULT_SHARDS) -> "KafkaShards":
    """Return what `follow` takes to deliver micro-batches into Kafka, exactly once.

    `name`: of the pipeline, under which Kafka keeps its progress. `sink`: the options of a sink of `kind = "kafka"`
    (docs/kafka.md). `shards`: how many tasks write at a time; it is part of progress. With a `key`, all changes of a
    key are in one shard, in order, and the images of updates are paired by it.

    Raises `ConfigError` for a wrong option.
    """
    from tailer.spark.write.kafka_shards import KafkaShards  # noqa: PLC0415 - as above

    return KafkaShards(name, dict(sink), shards)
