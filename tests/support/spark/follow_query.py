"""Streams of `tailer.spark.follow` without a query: Spark only reads the files of micro-batches."""

from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from tailer.spark.native.changes import frame
from tailer.spark.source.data_source import StreamReader
from tailer.spark.source.views import TypedView
from tests.support.spark.queries import Checkpoint, Query

__all__ = ["FollowQuery"]


class FollowQuery(Query):
    """A query whose micro-batches are made DataFrames as by `tailer.spark.follow`."""

    def __init__(self, spark: SparkSession, checkpoint: Checkpoint, **options: Any) -> None:
        super().__init__(checkpoint, **options)
        self._spark = spark

    def read(self, reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> pa.Table:
        """Return the rows between two offsets."""
        view = reader._view
        assert isinstance(view, TypedView)
        return frame(self._spark, "a table of the tests", view, reader.work(start, end)).toArrow()
