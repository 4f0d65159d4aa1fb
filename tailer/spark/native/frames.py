"""DataFrames of planned work: scans by Spark's own reader wherever it reads the exact rows, `execute` for the rest.

Planning reads the footer of every local data file, on the driver: 0.3 ms each, some at a time. One line of the log says
how many files are read how, and why.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from functools import partial, reduce
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from tailer.changelog.carryovers import concerns
from tailer.events import SchemaChange
from tailer.plan import TaskKind
from tailer.read.data_files import DataFiles
from tailer.spark.native.comparing import shared
from tailer.spark.native.executed import ChangeRows, executed
from tailer.spark.native.fits import Fit, Misfit, fit, selects_nothing
from tailer.spark.native.scans import VECTOR_BYTES, columns_of, scans, vector_bytes
from tailer.spark.source.admission import Work
from tailer.spark.source.views import TypedView
from tailer.spark.splits import DiffSplit, FileSlice, Split, file_slices, file_splits

__all__ = ["frame"]

_log = logging.getLogger(__name__)

_FOOTERS: Final = 8  # read at a time
_AT_ONCE: Final = 256  # files whose deletion vectors are in memory before they are counted
_SHOWN: Final = 5  # reasons in a line of the log

Reasons = Counter[str]


def frame(spark: SparkSession, table: str, view: TypedView, work: Work) -> DataFrame:
    """Return the rows of `work`, in the columns of `view`; `table`: its name in the log. Reads footers, not rows."""
    with ThreadPoolExecutor(_FOOTERS, "tailer-footer") as threads:
        others, more = _settled(spark, work, threads)
        slices = [*work.files, *more]
        found = list(_all_fitted(slices, work.opener, threads))
    fits, misfits, reasons = _divided(slices, found)
    _say(table, len(fits), reasons)
    parts = scans(spark, fits, view.spark_schema)
    others += file_splits(misfits, files=work.opener)
    if others or not parts:
        parts.append(executed(spark, ChangeRows(view), others))
    # Sessions of Spark Connect have another class of DataFrame.
    return reduce(lambda some, more: some.union(more), parts)


def _settled(spark: SparkSession, work: Work, threads: Executor) -> tuple[list[Split], list[FileSlice]]:
    """Return the work apart from files, and more files: those of versions that need no comparison after all.

    Where a deletion vector has grown, the log has a delete and an insert, but the insert has no row. All executors
    compare large versions, here and now.
    """
    others: list[Split] = []
    more: list[FileSlice] = []
    for each in work.others:
        if isinstance(each, DiffSplit):
            tasks = each.plan.tasks
            empty = threads.map(partial(selects_nothing, files=work.opener), tasks)
            left = replace(each.plan, tasks=tuple(task for task, none in zip(tasks, empty, strict=True) if not none))
            if not concerns(left, each.rules):
                more += file_slices(left)
                continue
        if not isinstance(each, SchemaChange):  # the columns show it
            # Few rows are left as a rule: `execute` finds them by their pages.
            others += shared(spark, each)
    return others, more


def _all_fitted(slices: Sequence[FileSlice], files: DataFiles, threads: Executor) -> Iterator[Fit | Misfit]:
    """Yield who reads each slice, in their order. Deletion vectors beyond what every executor may hold are misfits."""
    left = VECTOR_BYTES
    for first in range(0, len(slices), _AT_ONCE):
        for found in threads.map(partial(_fitted, files=files), slices[first : first + _AT_ONCE]):
            size = vector_bytes(found) if isinstance(found, Fit) else 0
            if size > left:
                yield Misfit(found.task, "the deletion vectors are too large together")
            else:
                left -= size
                yield found


def _fitted(part: FileSlice, files: DataFiles) -> Fit | Misfit:
    return fit(part.task, files) if part == FileSlice(part.task) else Misfit(part.task, "only a part of it is wanted")


def _divided(slices: Sequence[FileSlice], found: Sequence[Fit | Misfit]) -> tuple[list[Fit], list[FileSlice], Reasons]:
    """Return what Spark's reader reads, and what `execute` does, with the number of files for each reason.

    The two tasks of a change file are one for Spark, which reads all its rows; so they have to fit together.
    """
    fits: list[Fit] = []
    others: list[FileSlice] = []
    reasons: Reasons = Counter()
    for group in _of_one_file(slices, found).values():
        whole = _whole([result for _, result in group])
        if isinstance(whole, Fit):
            fits.append(whole)
        else:
            others += [part for part, _ in group]
            reasons[whole.reason] += 1
    return fits, others, reasons


def _of_one_file(
    slices: Sequence[FileSlice], found: Sequence[Fit | Misfit]
) -> dict[object, list[tuple[FileSlice, Fit | Misfit]]]:
    """Group the tasks of each change file; all others are alone."""
    groups: dict[object, list[tuple[FileSlice, Fit | Misfit]]] = {}
    for part, result in zip(slices, found, strict=True):
        task = part.task
        own = task.uri if task.kind in (TaskKind.CDC_DELETES, TaskKind.CDC_OTHERS) else task.index
        groups.setdefault((task.version, own), []).append((part, result))
    return groups


def _whole(found: Sequence[Fit | Misfit]) -> Fit | Misfit:
    """Return the one task that stands for all tasks of a file."""
    for each in found:
        if isinstance(each, Misfit):
            return each
    fits = [each for each in found if isinstance(each, Fit)]
    kinds = [each.task.kind for each in fits]
    if kinds in ([TaskKind.INSERT], [TaskKind.DELETE]):
        return fits[0]
    both = sorted(kinds) == [TaskKind.CDC_DELETES, TaskKind.CDC_OTHERS]
    if both and columns_of(fits[0]) == columns_of(fits[1]):
        return fits[0]
    return Misfit(fits[0].task, "its deleted rows have other columns, or are read alone")


def _say(table: str, native: int, reasons: Reasons) -> None:
    others = "; ".join(f"{count} because {reason}" for reason, count in reasons.most_common(_SHOWN))
    _log.info("%s: Spark's own reader has %d files%s", table, native, f", execute the rest: {others}" if others else "")
