"""Comparisons that all executors share: a large version, or a range of versions, becomes the rows that changed.

`tailer.changelog.carryovers` compares, with an index whose rows and queries are Spark's
(`tailer.spark.native.shared_index`). What is left is read in full as usual, in parallel. Preimages of updates are read
from their own files and not put beside their postimages: most readers of splits have no use for the order of rows.

One executor compares what it can compare faster, the versions of Lance datasets, what a session of Spark Connect reads,
and updates whose two images must have one position. It also does so if a shared comparison fails: if the rows
themselves are broken, it raises the error.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Final

from pyspark.sql import SparkSession

from tailer.changelog.carryovers import refine, refine_range
from tailer.changelog.compared_tasks import InlineSelections
from tailer.changelog.equal_rows.row_index_pool import borrowed_index
from tailer.plan import ChangePlan
from tailer.read.execute import execute
from tailer.read.kept_rows import KeptRows
from tailer.spark.job_group import SPARK_ERRORS
from tailer.spark.native.shared_index import SharedIndex
from tailer.spark.session import first_sentence, is_remote
from tailer.spark.splits import DiffSplit, FileSlice, FilesSplit, NetChangesSplit, Split, file_slices, file_splits

__all__ = ["compared", "is_worth", "shared"]

_log = logging.getLogger(__name__)

# Measured on 2 cores (`tests/bench/test_spark_comparing.py`): one executor compares 1 GB of files in 22 s. Shared, that
# took 72 s divided by the cores, when files were read twice, and 17 s more.
SHARED_BYTES: Final = 800_000_000  # of files, for any number of cores
_TIMES: Final = 3.2  # as much work as in one process
FEW_ROWS: Final = 200_000  # left of a comparison: this process reads and compares them in less time, too


def shared(spark: SparkSession, split: Split, *, positions: bool = False) -> Sequence[Split]:
    """Return splits with the rows of `split` and nothing to compare, if all executors can share the comparison.

    Else return `split` itself. `positions`: whether a preimage must have the position of its postimage. Runs jobs.
    """
    if isinstance(split, FilesSplit) or (positions and _pairs(split)):
        return [split]
    try:
        if not is_worth(spark, _plans(split)):
            return [split]
        return file_splits(list(compared(spark, split)), files=split.files)
    except SPARK_ERRORS as error:
        at, table = _plans(split)[-1].version, _plans(split)[-1].table
        _log.warning("%s: one executor compares version %d: %s", table, at, first_sentence(error))
        return [split]


def is_worth(spark: SparkSession, plans: Sequence[ChangePlan]) -> bool:
    """Return whether all executors can compare the rows of plans, and do it faster than one."""
    if is_remote(spark) or any(task.fragment is not None for plan in plans for task in plan.tasks[:1]):
        return False
    saved = max(0.0, 1 - _TIMES / spark.sparkContext.defaultParallelism)
    return sum(plan.size_bytes for plan in plans) * saved >= SHARED_BYTES


def compared(spark: SparkSession, split: DiffSplit | NetChangesSplit) -> Iterator[FileSlice]:
    """Yield slices of the rows that are left. Runs jobs; raises what these and `refine` raise."""
    with borrowed_index() as local, closing(SharedIndex(spark, local, FEW_ROWS, split.files)) as index:
        rows = KeptRows([], partial(execute, files=split.files))
        if isinstance(split, DiffSplit):
            plan, _ = refine(split.plan, split.rules, index, InlineSelections(), None, rows)
            plans: tuple[ChangePlan, ...] = (plan,)
        else:
            plans, _ = refine_range(split.plans, split.rules, index, InlineSelections(), rows)
    for plan in plans:
        yield from file_slices(plan)


def _pairs(split: DiffSplit | NetChangesSplit) -> bool:
    return split.rules.compute_updates or any(plan.paired for plan in _plans(split))


def _plans(split: DiffSplit | NetChangesSplit) -> tuple[ChangePlan, ...]:
    return (split.plan,) if isinstance(split, DiffSplit) else split.plans
