"""The changes of a table as a DataFrame that Spark reads by itself wherever it can.

The data source `tailer` hands rows from Python to Spark. Here the same plan becomes a DataFrame of scans by Spark's own
Parquet reader (`tailer.spark.native.scans`), which also prunes columns and row groups by what the query asks for. The
rows are the same: whatever that reader would not read exactly as `tailer.read.execute` does goes through `execute`
(`tailer.spark.native.native_eligibility`), and so do rows that must be compared, rows in other files than Parquet, and
tables in stores, for which Spark would need jars and keys of its own.

Planning reads the footer of every local data file, on the driver: 0.3 ms each, some at a time if they open slowly. One
line of the log says how many files are read how, and why.
"""

import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial, reduce
from time import perf_counter
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from tailer.changelog.rules import concerns
from tailer.errors import ConfigError
from tailer.events import SchemaChange
from tailer.plan import TaskKind
from tailer.read.data_files import DataFiles
from tailer.spark.java import check_session
from tailer.spark.native.comparing import at_postimages, shared
from tailer.spark.native.executed import change_rows, executed
from tailer.spark.native.native_eligibility import ExecutedTask, NativeTask, choose_reader, selects_nothing
from tailer.spark.native.scans import VECTOR_BYTES, scans, vector_bytes
from tailer.spark.next_step import with_next_step
from tailer.spark.source.admission import Work
from tailer.spark.source.data_source import TailerSource
from tailer.spark.source.spark_types import quoted
from tailer.spark.source.views import TypedView
from tailer.spark.splits import DiffSplit, FileSlice, Split, file_slices, file_splits
from tailer.start import Place, Start, StartKind
from tailer.stores.location import path_text

__all__ = ["Option", "changes", "frame", "source_options"]

_log = logging.getLogger(__name__)

_FOOTERS: Final = 8  # read at a time
_AT_ONCE: Final = 256  # files whose deletion vectors are in memory before they are counted
_MEASURED: Final = 16  # files that are opened first, to see how long that takes
_SLOW_S: Final = 0.001
_SHOWN: Final = 5  # reasons in a line of the log

_CDC: Final = {TaskKind.CDC_DELETES, TaskKind.CDC_OTHERS}


def frame(spark: SparkSession, table: str, view: TypedView, work: Work, kept: ExitStack | None = None) -> DataFrame:
    """Return the rows of `work`, in the columns of `view`; `table`: its name in the log.

    `kept`: what executors keep until nobody needs the rows any more; used if the view has positions. Reads footers, and
    rows only of large versions that must be compared.
    """
    with ThreadPoolExecutor(_FOOTERS, "tailer-footer") as threads:
        others, more = _uncompared(work, threads)
        groups: dict[object, list[FileSlice]] = {}
        for part in (*work.files, *more):  # the tasks of a change file are one group, all others are alone
            own = part.task.uri if part.task.kind in _CDC else part.task.index
            groups.setdefault((part.task.version, own), []).append(part)
        native: list[NativeTask] = []
        left: list[FileSlice] = []
        reasons = Counter[str]()
        for group, choice in _choose_readers(list(groups.values()), work.opener, threads):
            if isinstance(choice, NativeTask):
                native.append(choice)
            else:
                left += group
                reasons[choice.reason] += 1
    rest = "; ".join(f"{count} because {reason}" for reason, count in reasons.most_common(_SHOWN))
    shown = f", execute the rest: {rest}" if rest else ""
    _log.info("%s: Spark's own reader has %d files%s", table, len(native), shown)
    parts = scans(spark, native, view.spark_schema, positions=view.positions)
    others, preimages = _share_comparisons(spark, others, view, kept if view.positions else None)
    others += file_splits(left, files=work.opener)
    parts += preimages
    if others or not parts:
        parts.append(executed(spark, view.spark_schema, partial(change_rows, view), others))
    return reduce(DataFrame.union, parts)


def _uncompared(work: Work, threads: Executor) -> tuple[list[Split], list[FileSlice]]:
    """Return the work apart from files, and more files: those of versions that need no comparison after all.

    Where a deletion vector has grown, the log has a delete and an insert, but the insert has no row.
    """
    others: list[Split] = []
    more: list[FileSlice] = []
    for split in work.others:
        if isinstance(split, DiffSplit):
            tasks = split.plan.tasks
            empty = threads.map(partial(selects_nothing, files=work.opener), tasks)
            left = replace(split.plan, tasks=tuple(task for task, none in zip(tasks, empty, strict=True) if not none))
            if not concerns(left, split.rules):
                more += file_slices(left)
                continue
        if not isinstance(split, SchemaChange):  # the columns show it
            others.append(split)
    return others, more


def _share_comparisons(
    spark: SparkSession, splits: Sequence[Split], view: TypedView, kept: ExitStack | None
) -> tuple[list[Split], list[DataFrame]]:
    """Have all executors compare large versions, here and now. Return splits, and preimages that are apart from them.

    `kept`: see `shared`.
    """
    remaining: list[Split] = []
    preimages: list[DataFrame] = []
    for split in splits:
        changed = shared(spark, split, kept)
        if changed is None:
            remaining.append(split)
            continue
        # Few rows are left as a rule: `execute` finds them by their pages.
        remaining += file_splits(changed.slices, files=split.files)
        if changed.places is not None:
            apart = file_splits(changed.preimages, files=split.files)
            rows = executed(spark, view.spark_schema, partial(change_rows, view), apart)
            preimages.append(at_postimages(rows, changed.places))
    return remaining, preimages


def _choose_readers(
    groups: Sequence[list[FileSlice]], files: DataFiles, threads: Executor
) -> Iterator[tuple[list[FileSlice], NativeTask | ExecutedTask]]:
    """Yield each group, and its reader: `execute`, for deletion vectors beyond what every executor may hold.

    Threads help where opening a file takes time; else they only wait for each other.
    """
    left = VECTOR_BYTES
    start, slow = 0, False
    while start < len(groups):
        some = groups[start : start + (_AT_ONCE if start else _MEASURED)]
        began = perf_counter()
        for group, choice in zip(
            some, (threads.map if slow else map)(partial(_choose_reader, files=files), some), strict=True
        ):
            size = vector_bytes(choice) if isinstance(choice, NativeTask) else 0
            if size > left:
                yield group, ExecutedTask(choice.task, "the deletion vectors are too large together")
            else:
                left -= size
                yield group, choice
        start += len(some)
        slow = slow or perf_counter() - began > _SLOW_S * len(some)


def _choose_reader(group: Sequence[FileSlice], files: DataFiles) -> NativeTask | ExecutedTask:
    """Choose the reader of the tasks of a file. Those of a change file are one for Spark, which reads all its rows."""
    first, *others = sorted((part.task for part in group), key=lambda task: task.kind is not TaskKind.CDC_DELETES)
    if any(part != FileSlice(part.task) for part in group):
        return ExecutedTask(first, "only a part of it is wanted")
    if not others and first.kind in (TaskKind.INSERT, TaskKind.DELETE):
        return choose_reader(first, files)
    if len(others) == 1 and {first.kind, others[0].kind} == _CDC:
        second = others[0]
        same = replace(second, kind=first.kind, index=first.index) == first
        if same and second.schema.equals(first.schema, check_metadata=True):
            return choose_reader(first, files, second.index)
    return ExecutedTask(first, "its deleted rows have other columns, or are read alone")


_GIVEN: Final = ("path", "startingversion", "startingtimestamp", "endingversion", "endingtimestamp", "snapshot")

Option = str | bool | int | Sequence[str] | None  # None: not given


def source_options(
    table: str | os.PathLike[str], start: Place, end: Place, options: Mapping[str, Option]
) -> dict[str, str]:
    """Return the options of the data source. Raises `ConfigError` for those that have no place here."""
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        if name.lower() in _GIVEN:
            raise ConfigError(name, "is not an option here", "Give the table first, then start = and end =.")
        if name.lower() == "schema":
            remedy = "Read the envelope with spark.read.format('tailer') or spark.readStream.format('tailer')."
            raise ConfigError(name, "is not an option here", remedy)
    texts = {name: _text(value) for name, value in given.items()} | {"path": path_text(table, "table")}
    first, last = Start.at(start), Start.at(end, "end")
    if first.kind is StartKind.SNAPSHOT:
        texts["snapshot"] = "true"
    else:
        texts |= _placed("starting", first)
    return texts if last.kind is StartKind.LATEST else texts | _placed("ending", last)


def _placed(which: str, place: Start) -> dict[str, str]:
    match place.kind:
        case StartKind.TIMESTAMP:
            return {f"{which}Timestamp": place.moment.isoformat()}
        case StartKind.VERSION:
            return {f"{which}Version": str(place.value)}
        case StartKind.TAG:
            return {f"{which}Version": f"tag:{place.tag}"}
    return {f"{which}Version": place.kind.value}


def _text(value: str | bool | int | Sequence[str]) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, (bool, int)):
        return str(value).lower()
    return ",".join(map(quoted, value))


def changes(
    spark: SparkSession,
    table: str | os.PathLike[str],
    *,
    start: Place = "earliest",
    end: Place = "latest",
    **options: Option,
) -> DataFrame:
    """Return the changes of a table from `start` to `end`, both included, as a DataFrame.

    `start`, `end`: as in `tailer.changes`. `options`: those of the data source (docs/spark.md) that say what the rows
    are and how to reach a store: `columns`, `carryovers`, `computeUpdates`, `netChanges`, `key`, `rowIds`,
    `allowedRoots` and the others; None is as if the option was not given. The columns are those of the table, then
    `_change_type`, `_commit_version` and `_commit_timestamp`. The versions are decided now: reading again gives the
    same rows. Rows have no order.

    Raises `ConfigError`, also for a session of Spark Connect, and what reading the log raises.
    """
    with with_next_step():
        check_session(spark)
        given = source_options(table, start, end, options)
        # A notebook has an event loop of its own in this thread.
        with ThreadPoolExecutor(1, "tailer-planning") as thread:
            view, work = thread.submit(_planned, given).result()
        return frame(spark, os.fspath(table), view, work)


def _planned(options: dict[str, str]) -> tuple[TypedView, Work]:
    source = TailerSource(options)
    reader = source.reader(source.schema())
    view = reader.view
    assert isinstance(view, TypedView), "the envelope is no option"
    return view, reader.work()
