"""A process with a Spark that reads tables' changes: arguments SCRATCH and MASTER.

Each input line orders one read, as JSON: the reader (`READERS`), the table, the first and the last version. The answer
is a line with the time and the processor time of Java, of the executors' Python and of the process itself; for a plan
also its size. Spark's readers write to a sink that keeps no row. It is a separate process because a process has one
Spark, and so that nothing else is counted.
"""

import json
import pickle
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import anyio
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import tailer.spark
from tailer.engine import Engine
from tailer.engine.local import LocalEngine
from tailer.formats.delta.table import DeltaTableLog
from tailer.spark.engine.engine import SparkEngine
from tailer.spark.engine.executors import Executors
from tailer.spark.source.data_source import TailerSource
from tailer.stores.local import LocalStore
from tests.bench import spark_tables
from tests.bench.process_costs import cpu_s
from tests.support.spark.session import build_spark

__all__ = ["READERS", "answers"]

Order = Mapping[str, Any]


def answers(scratch: Path, master: str, orders: Iterable[str]) -> Iterator[str]:
    """Yield the output lines: first that Spark is ready, then an answer to each order."""
    spark = build_spark(scratch, master)
    spark.conf.set("spark.databricks.delta.changelogV2.enabled", "true")
    tailer.spark.register(spark)
    yield "{}"
    for line in orders:
        order = json.loads(line)
        read = READERS[order["reader"]]
        started, before = time.perf_counter(), cpu_s()
        answer = read(spark, order)
        seconds, after = time.perf_counter() - started, cpu_s()
        yield json.dumps({"seconds": seconds} | {name: after[name] - before[name] for name in after} | (answer or {}))
    spark.stop()


def _ours(spark: SparkSession, order: Order) -> None:
    options = {"startingVersion": order["first"], "endingVersion": order["last"], **order.get("options", {})}
    _batch(spark.read.format("tailer").options(**options).load(order["path"]))


def _native(spark: SparkSession, order: Order) -> None:
    _batch(tailer.spark.changes(spark, order["path"], start=order["first"], end=order["last"]))


def _feed(spark: SparkSession, order: Order) -> None:
    options = {"readChangeFeed": True, "startingVersion": order["first"], "endingVersion": order["last"]}
    _batch(spark.read.format("delta").options(**options).load(order["path"]))


def _changes(spark: SparkSession, order: Order) -> None:
    options = {"startingVersion": order["first"], "endingVersion": order["last"]}
    _batch(spark.read.options(**options).changes(f"delta.`{order['path']}`"))


def _our_stream(spark: SparkSession, order: Order) -> None:
    _stream(spark.readStream.format("tailer").option("startingVersion", order["first"]).load(order["path"]))


def _our_plans(spark: SparkSession, order: Order) -> None:
    _await(tailer.spark.follow(spark, order["path"], lambda changes, _: _batch(changes), start=order["first"]))


def _feed_for_each(spark: SparkSession, order: Order) -> None:
    options = {"readChangeFeed": True, "startingVersion": order["first"]}
    rows = spark.readStream.format("delta").options(**options).load(order["path"])
    _await(rows.writeStream.foreachBatch(lambda changes, _: _batch(changes)))


def _feed_stream(spark: SparkSession, order: Order) -> None:
    # All in one micro-batch, like ours; Delta's default limit is a thousand files.
    options = {"readChangeFeed": True, "startingVersion": order["first"]}
    _stream(spark.readStream.format("delta").options(**options).load(order["path"]))


def _batch(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


def _stream(rows: DataFrame) -> None:
    _await(rows.writeStream.format("noop"))


def _await(writer: DataStreamWriter) -> None:
    with tempfile.TemporaryDirectory() as checkpoint:
        writer.trigger(availableNow=True).option("checkpointLocation", checkpoint).start().awaitTermination()


def _local_engine(_spark: SparkSession, order: Order) -> None:
    anyio.run(_follow, LocalEngine(), order)


def _spark_engine(spark: SparkSession, order: Order) -> None:
    executors = Executors(spark)
    try:
        anyio.run(_follow, SparkEngine(lambda: executors), order)
    finally:
        executors.close()


async def _follow(engine: Engine, order: Order) -> None:
    """Read as the daemon does: version by version, the batches in order."""
    log = DeltaTableLog(LocalStore(Path(order["path"])))
    await log.seek(order["first"])
    for _ in range(order["first"], order["last"] + 1):
        plan = await log.next_plan()
        assert plan is not None
        async with engine.run([plan]) as batches:
            async for batch in batches:
                assert len(batch)


def _plan(_spark: SparkSession, order: Order) -> dict[str, float]:
    """Plan a batch of version 0 without reading it; return the number of partitions and the bytes of each."""
    source = TailerSource({"path": order["path"], "startingVersion": "0"})
    partitions = source.reader(source.schema()).partitions()
    sizes = [len(pickle.dumps(partition)) for partition in partitions[:1000]]
    return {"partitions": len(partitions), "bytes": statistics.mean(sizes)}


def _write(spark: SparkSession, order: Order) -> None:
    getattr(spark_tables, order["table"])(spark, Path(order["path"]), **order["arguments"])


READERS: Final[Mapping[str, Callable[[SparkSession, Order], dict[str, float] | None]]] = {
    "tailer": _ours,
    "tailer, native": _native,
    "tailer, follow": _our_plans,
    "tailer, stream": _our_stream,
    "Delta's feed": _feed,
    "Delta's feed, foreachBatch": _feed_for_each,
    "Delta's feed, stream": _feed_stream,
    "Delta's CHANGES": _changes,
    "LocalEngine": _local_engine,
    "SparkEngine": _spark_engine,
    "plan": _plan,
    "write": _write,
}


if __name__ == "__main__":
    for answer in answers(Path(sys.argv[1]), sys.argv[2], sys.stdin):
        print(answer, flush=True)
