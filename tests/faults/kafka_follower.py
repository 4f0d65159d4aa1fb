"""A process that follows a table with Spark and delivers its changes into Kafka: for `test_spark_kafka_kill`.

python -m tests.faults.kafka_follower SOURCE NAME OPTIONS CHECKPOINT SCRATCH, with the sink's options as JSON
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

import tailer.spark
from tailer.config.shapes import SparkSettings
from tailer.spark.native import comparing
from tailer.spark.session import close_session, open_session

__all__ = ["SHARDS", "deliver_all"]

SHARDS: Final = 3


def deliver_all(
    session: SparkSession,
    source: Path,
    name: str,
    options: Mapping[str, Any],
    checkpoint: Path,
    few_rows: int = comparing.FEW_ROWS,
) -> None:
    """Deliver all changes that are there, some files at a time.

    All executors share every comparison. `few_rows`: how many rows this process compares nevertheless.
    """
    comparing.SHARED_BYTES, comparing.FEW_ROWS = 0, few_rows  # type: ignore[misc]
    into = tailer.spark.into_kafka(name, options, shards=SHARDS)
    query = tailer.spark.follow(session, source, into, start=0, maxFilesPerTrigger=6)
    query.trigger(availableNow=True).option("checkpointLocation", str(checkpoint)).start().awaitTermination()


def _main(source: str, name: str, options: str, checkpoint: str, scratch: str) -> None:
    conf = {
        "spark.local.dir": f"{scratch}/local",
        "spark.sql.warehouse.dir": f"{scratch}/warehouse",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
    }
    session = open_session(SparkSettings("local[2]", conf=conf))
    try:
        deliver_all(session, Path(source), name, json.loads(options), Path(checkpoint))
    finally:
        close_session(session)


if __name__ == "__main__":
    _main(*sys.argv[1:])
