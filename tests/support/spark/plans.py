"""Streams of plans without a query: Spark only reads the files that the plans name."""

import pyarrow as pa
from pyspark.sql import SparkSession

from tailer.spark.native.frames import frame
from tailer.spark.streaming.plans import PlanSource, work_of
from tests.support.spark.queries import Checkpoint, Query

__all__ = ["PlansQuery", "rows_of_plans"]


class PlansQuery(Query):
    """A query on the data source of plans."""

    source = PlanSource


def rows_of_plans(spark: SparkSession, checkpoint: Checkpoint) -> dict[int, pa.Table]:
    """Return the rows that the plans of each batch stand for."""
    found = {}
    for number, plans in checkpoint.batches.items():
        view, work = work_of(plans["work"].to_pylist())
        found[number] = frame(spark, "a table of the tests", view, work).toArrow()
    return found
