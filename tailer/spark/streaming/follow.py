"""The changes of a table as a stream of DataFrames that Spark reads by itself wherever it can.

A micro-batch of the data source `tailer` passes through Spark's conversion of Python's rows twice. Here Spark streams
no rows (`tailer.spark.streaming.driver_stream`), and `foreachBatch` makes each micro-batch a DataFrame as
`tailer.spark.changes` does. Offsets are those of the data source, so a query may go on from its checkpoint, with the
same options.

The rows of two offsets are always the same (invariant 4): a batch that runs again after a failure has the rows and the
number that it had before.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Protocol, runtime_checkable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tailer.errors import ConfigError
from tailer.spark.java import check_session
from tailer.spark.native.changes import Option, frame, source_options
from tailer.spark.next_step import with_next_step
from tailer.spark.source.admission import Work
from tailer.spark.source.data_source import TailerSource
from tailer.spark.source.options import SourceOptions, read_options
from tailer.spark.source.views import TypedView
from tailer.spark.streaming.driver_stream import DriverStreams, check_stream
from tailer.start import Place, Start, StartKind

__all__ = ["follow"]


@runtime_checkable
class TakesPositions(Protocol):
    """A destination with progress of its own, by the positions of rows, such as `tailer.spark.into_kafka` returns.

    A port, because executors import this module, and may lack what that destination imports.
    """

    def wanted(self, chosen: SourceOptions) -> SourceOptions:
        """Return the options of the rows that it needs. Raises `ConfigError` for those that do not go with it."""
        ...

    def deliver(
        self, rows: DataFrame, chosen: SourceOptions, view: TypedView, work: Work, is_stopped: Callable[[], bool]
    ) -> None:
        """Deliver a micro-batch. `is_stopped`: whether the query was told to end."""
        ...


Deliver = Callable[[DataFrame, int], None] | TakesPositions


def follow(
    spark: SparkSession,
    table: str | os.PathLike[str],
    deliver: Deliver,
    *,
    start: Place = "snapshot",
    end: Place | None = None,
    **options: Option,
) -> DataStreamWriter:
    """Return a query, not started yet, that calls `deliver(changes, number)` with each micro-batch of changes.

    `deliver` is what `foreachBatch` takes, such as the functions of `tailer.spark.recipes`, or what
    `tailer.spark.into_kafka` returns. After a failure it gets the last batch again, with the same rows and the same
    number. `start`, `end`, `options` and the columns: as in `tailer.spark.changes`; `end`: None follows the table
    without an end. Options also say how much a micro-batch holds (`maxFilesPerTrigger` and the others), and `appId`.
    Give the query a checkpoint folder, a trigger, and start it::

        query = tailer.spark.follow(spark, "/data/orders", append_once("/data/orders_changes", "orders"), start=0)
        query.option("checkpointLocation", "/data/checkpoints/orders").start()

    Raises `ConfigError`, also for a session of Spark Connect, and what reading the log raises.
    """
    with with_next_step():
        check_session(spark)
        check_stream(spark)
        if end is not None:
            if Start.at(end, "end").kind is StartKind.LATEST:
                remedy = "Leave end out, and give the query trigger(availableNow=True)."
                raise ConfigError("end", "is the newest version, which is no end for a stream", remedy)
            if Start.at(start).kind is StartKind.SNAPSHOT:
                reason = "needs a start: a snapshot is of the newest version when the query starts"
                raise ConfigError("end", reason, "Give start = a version, a moment, or 'earliest'.")
        given = source_options(table, start, "latest" if end is None else end, options)
        read_options(given).check_stream()
    name = os.fspath(table)
    source = TailerSource(given)
    chosen = source.choose(deliver.wanted if isinstance(deliver, TakesPositions) else lambda options: options)
    # A notebook has an event loop of its own in this thread.
    with ThreadPoolExecutor(1, "tailer-planning") as thread:
        thread.submit(source.schema).result()
    streams = DriverStreams(spark, source)

    def on_batch(batch: DataFrame, number: int) -> None:
        view, work = streams.planned()
        with with_next_step(), ExitStack() as kept:
            rows = frame(batch.sparkSession, name, view, work, kept)
            if isinstance(deliver, TakesPositions):
                deliver.deliver(rows, chosen, view, work, partial(_is_stopped, spark))
            else:
                deliver(rows, number)

    return streams.frame().writeStream.foreachBatch(on_batch)


def _is_stopped(spark: SparkSession) -> bool:
    """Return whether the query that this thread runs was stopped. Spark does not interrupt Python."""
    number = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
    query = None if number is None else spark.streams.get(number)
    return number is not None and (query is None or not query.isActive)
