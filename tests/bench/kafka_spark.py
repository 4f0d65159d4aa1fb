"""A process with a Spark that delivers change feeds of tables to Kafka: arguments SCRATCH and the brokers.

Each input line orders one delivery, as JSON: the table and its first version, the topic, and whether messages have
keys. The answer is a line with the
time and the processor time of Python and Java together. It is a separate process because Java must start with the
sink's classes, and so that nothing else is counted.
"""

import json
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from tests.jars.where import jars
from tests.support.spark.session import build_spark

__all__ = ["answers"]

_VALUE = "to_json(struct(*)) AS value"
_KEY = "to_json(struct(id)) AS key"


def answers(scratch: Path, bootstrap_servers: str, orders: Iterable[str]) -> Iterator[str]:
    """Yield the output lines: first that Spark is ready, then an answer to each order."""
    spark = build_spark(scratch, jars=jars("spark-kafka"))
    (java,) = (child for child in psutil.Process().children(recursive=True) if child.name() == "java")
    yield "{}"
    for order in orders:
        given = json.loads(order)
        started, cpu_s = time.perf_counter(), _cpu_s(java)
        _deliver(spark, bootstrap_servers, given)
        yield json.dumps({"seconds": time.perf_counter() - started, "cpu_s": _cpu_s(java) - cpu_s})
    spark.stop()


def _deliver(spark: SparkSession, bootstrap_servers: str, order: dict[str, Any]) -> None:
    feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", order["first"])
    messages = feed.load(order["table"]).selectExpr(_VALUE, *([_KEY] if order["keyed"] else []))
    # Compressed, as ours are; not Spark's default.
    options = {"kafka.bootstrap.servers": bootstrap_servers, "kafka.compression.type": "lz4", "topic": order["topic"]}
    messages.write.format("kafka").options(**options).save()


def _cpu_s(java: psutil.Process) -> float:
    times = java.cpu_times()
    return float(times.user + times.system) + time.process_time()


if __name__ == "__main__":
    for answer in answers(Path(sys.argv[1]), sys.argv[2], sys.stdin):
        print(answer, flush=True)
