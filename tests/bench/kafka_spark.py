"""A process with a Spark that delivers a table's change feed to Kafka: arguments SCRATCH, TABLE and the brokers.

Each input line orders one delivery, as JSON: the topic, and whether messages have keys. The answer is a line with the
time and the processor time of Python and Java together. It is a separate process because Java must start with the
sink's classes, and so that nothing else is counted.
"""

import json
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from tests.jars.where import jars
from tests.support.spark.session import build_spark

__all__ = ["answers"]

_VALUE = "to_json(struct(*)) AS value"
_KEY = "to_json(struct(id)) AS key"


def answers(scratch: Path, table: str, bootstrap_servers: str, orders: Iterable[str]) -> Iterator[str]:
    """Yield the output lines: first that Spark is ready, then an answer to each order."""
    spark = build_spark(scratch, jars=jars("spark-kafka"))
    (java,) = (child for child in psutil.Process().children(recursive=True) if child.name() == "java")
    yield "{}"
    for order in orders:
        given = json.loads(order)
        started, cpu_s = time.perf_counter(), _cpu_s(java)
        _deliver(spark, table, bootstrap_servers, given["topic"], given["keyed"])
        yield json.dumps({"seconds": time.perf_counter() - started, "cpu_s": _cpu_s(java) - cpu_s})
    spark.stop()


def _deliver(spark: SparkSession, table: str, bootstrap_servers: str, topic: str, keyed: bool) -> None:
    changes = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 0).load(table)
    messages = changes.selectExpr(_VALUE, *([_KEY] if keyed else []))
    # Compressed, as ours are; not Spark's default.
    options = {"kafka.bootstrap.servers": bootstrap_servers, "kafka.compression.type": "lz4", "topic": topic}
    messages.write.format("kafka").options(**options).save()


def _cpu_s(java: psutil.Process) -> float:
    times = java.cpu_times()
    return float(times.user + times.system) + time.process_time()


if __name__ == "__main__":
    for answer in answers(Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.stdin):
        print(answer, flush=True)
