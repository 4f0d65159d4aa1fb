"""Comparisons that all executors share: rows of a rewritten version that did not change cancel out by Spark's exchange.

`tailer.changelog.carryovers.refine` compares a version in one process. Here executors read the compared columns of
parts of files, each its own, and give a fingerprint for each row (`tailer.changelog.equal_rows.fingerprints`). Spark
counts the deleted and the inserted rows of each fingerprint. It combines counts before the exchange, so many equal rows
are few counts. Rows whose counts are equal have cancelled out. Of the others, those are left that `refine` leaves: all,
if only one side has the fingerprint; else the first deleted or the last inserted ones, by address. Equal rows are
numbered file by file, and the files' counts are added up, so not all of them meet on one executor.

What is left goes to the driver as bits, and is read in full as usual: in parallel, or on one executor where updates are
to be found among it. Positions are those of the original tasks.

Versions that track rows are not compared here, because rows with equal ids cancel out first; nor are net changes of a
range.
"""

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sql
from pyspark.sql.types import BooleanType, LongType, StructField, StructType

from tailer.changelog.equal_rows.compared_columns import ComparedColumns
from tailer.changelog.equal_rows.fingerprints import MAX_ROWS, Fingerprints
from tailer.changelog.rules import Carryovers, has_carryovers
from tailer.delta.deletion_vector import inline
from tailer.events import ChangeBatch, SchemaChange
from tailer.plan import ChangePlan, ChangeTask
from tailer.read.row_bitmaps import WORD_BITS, Bitmaps, bitmap_of_words
from tailer.spark.native.executed import executed
from tailer.spark.splits import DiffSplit, FileSlice, file_splits

__all__ = ["is_shared", "left_over"]

SHARED_BYTES: Final = 2**28  # of files: one executor compares less in the time that Spark takes to begin

_TASK_BITS: Final = MAX_ROWS.bit_length() - 1
_FINGERPRINT: Final = ("high", "low")
_LONGS: Final = ("high", "low", "address")


def is_shared(split: DiffSplit) -> bool:
    """Return whether `left_over` can compare a version, and is worth it."""
    plan = split.plan
    tracked = plan.paired or any(task.tracking is not None for task in plan.tasks)
    return not tracked and has_carryovers(plan, split.rules) and plan.size_bytes >= SHARED_BYTES


def left_over(spark: SparkSession, split: DiffSplit) -> DiffSplit:
    """Return the split without the rows that cancel out; its rules keep what is left.

    Runs jobs, and raises what reading the rows raises.
    """
    compared = _compared(split.plan)
    work = file_splits([FileSlice(task) for task in compared], files=split.files)
    sources = {task.index: number for number, task in enumerate(compared)}
    view = FingerprintView(Fingerprints(secrets.token_hex(16)), sources)
    rows = executed(spark, view, work).persist(StorageLevel.DISK_ONLY)
    try:
        left = _bitmaps(_words(_unmatched(rows)).toArrow())
    finally:
        rows.unpersist()
    plan = _reduced(split.plan, sources, left)
    return replace(split, plan=plan, rules=replace(split.rules, carryovers=Carryovers.KEEP))


@dataclass(frozen=True, slots=True)
class FingerprintView:
    """Rows as their fingerprints, addresses and sides (`tailer.spark.source.views.RowsView`).

    `sources`: the number of each task in addresses, by its index.
    """

    fingerprints: Fingerprints
    sources: Mapping[int, int]
    spark_schema: StructType = field(
        default_factory=lambda: StructType(
            [*(StructField(name, LongType()) for name in _LONGS), StructField("deleted", BooleanType())]
        )
    )

    def rows(self, batch: ChangeBatch) -> Iterator[pa.RecordBatch]:
        """Yield a row for each row."""
        yield self.fingerprints.of(self.sources[batch.task], batch)

    def change(self, event: SchemaChange) -> Iterator[pa.RecordBatch]:
        """Yield nothing."""
        return iter(())


def _compared(plan: ChangePlan) -> list[ChangeTask]:
    """Return the tasks whose rows are compared, with the columns in which they are."""
    columns = ComparedColumns.of([plan])
    return [replace(plan.tasks[index], schema=columns.compared(index)) for index in columns.comparable()]


def _unmatched(rows: DataFrame) -> DataFrame:
    """Return the addresses that are left, as `RowIndex.unmatched` has them."""
    deleted, inserted = sql.count_if("deleted"), sql.count_if(~sql.col("deleted"))
    uneven = rows.groupBy(*_FINGERPRINT).agg(deleted.alias("all_deleted"), inserted.alias("all_inserted"))
    uneven = uneven.where("all_deleted <> all_inserted")
    found = rows.join(uneven, [*_FINGERPRINT])
    one_sided = "least(all_deleted, all_inserted) = 0"
    mixed = found.where(f"NOT ({one_sided})").withColumn("task", sql.expr(f"shiftright(address, {_TASK_BITS})"))
    by_file = mixed.groupBy(*_FINGERPRINT, "task", "deleted").count()
    before = Window.partitionBy(*_FINGERPRINT, "deleted").orderBy("task").rowsBetween(Window.unboundedPreceding, -1)
    by_file = by_file.withColumn("before", sql.coalesce(sql.sum("count").over(before), sql.lit(0))).drop("count")
    in_file = Window.partitionBy(*_FINGERPRINT, "task", "deleted").orderBy("address")
    numbered = mixed.join(by_file, [*_FINGERPRINT, "task", "deleted"])
    numbered = numbered.withColumn("nth", sql.col("before") + sql.row_number().over(in_file))
    left = "CASE WHEN deleted THEN nth <= all_deleted - all_inserted ELSE nth > all_deleted END"
    return found.where(one_sided).select("address").union(numbered.where(left).select("address"))


def _words(addresses: DataFrame) -> DataFrame:
    """Return the addresses as bits: a row for each task and 64 rows."""
    row = f"(address & {MAX_ROWS - 1})"
    parts = addresses.selectExpr(
        f"shiftright(address, {_TASK_BITS}) AS task",
        f"{row} div {WORD_BITS} AS word",
        f"shiftleft(1L, CAST({row} % {WORD_BITS} AS INT)) AS bit",
    )
    return parts.groupBy("task", "word").agg(sql.bit_or("bit").alias("bits"))


def _bitmaps(words: pa.Table) -> Bitmaps:
    found: Bitmaps = {}
    for task in pc.unique(words["task"]).to_pylist():
        own = words.filter(pc.equal(words["task"], task)).combine_chunks()
        found[task] = bitmap_of_words(own["word"].chunk(0), own["bits"].chunk(0))
    return found


def _reduced(plan: ChangePlan, sources: Mapping[int, int], left: Bitmaps) -> ChangePlan:
    """Return the plan with the rows that are left of the compared tasks, and all rows of the others."""
    tasks = []
    for task in plan.tasks:
        if task.index not in sources:
            tasks.append(task)
        elif rows := left.get(sources[task.index]):
            tasks.append(replace(task, include=inline(rows), exclude=None))
    return replace(plan, tasks=tuple(tasks))
