"""Comparisons that all executors share: a large version, or a range of versions, becomes the rows that changed.

`tailer.changelog.carryovers` compares, with an index whose rows and queries are Spark's
(`tailer.spark.native.shared_index`). What is left is read in full as usual, in parallel. Preimages of updates are read
from their own files, and have their own places there. Where rows are put in order afterwards, as for Kafka, a preimage
needs the place of its postimage. It gets that by a join with the places of partners, which executors keep meanwhile.

One executor compares what it can compare faster. It also does so if a shared comparison fails: if the rows themselves
are broken, it raises the error.

The daemon's comparisons (`SparkComparisons`) are shared in the same way. One that is stopped, as when the daemon ends,
stops its jobs.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from threading import Event, Thread
from typing import Final
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from typing_extensions import override

from tailer.changelog.carryovers import ChangelogCounts, refine, refine_range
from tailer.changelog.compared_tasks import InlineSelections
from tailer.changelog.equal_rows.port import Stopped
from tailer.changelog.equal_rows.row_index import RowIndex, SharedIndexes, borrowed_index
from tailer.errors import EngineUnavailable
from tailer.formats.rows import execute
from tailer.plan import ChangePlan
from tailer.read.data_files import LOCAL, DataFiles
from tailer.read.decoded_files import DecodedFiles
from tailer.spark.native.equal_rows import places
from tailer.spark.native.shared_index import SharedIndex
from tailer.spark.session import SPARK_ERRORS, STOP_AGAIN_S, JobGroup, engine_name, first_sentence
from tailer.spark.source.spark_types import spark_frame
from tailer.spark.splits import DiffSplit, FileSlice, FilesSplit, NetChangesSplit, Split, file_slices

__all__ = ["SparkComparisons", "at_postimages", "compared", "is_worth", "shared"]

_log = logging.getLogger(__name__)

# Measured on 2 cores (`tests/bench/test_spark_comparing.py`): one executor compares 1 GB of files in 22 s. Shared, that
# took 72 s divided by the cores, when files were read twice, and 17 s more.
SHARED_BYTES: Final = 800_000_000  # of files, for any number of cores
_TIMES: Final = 3.2  # as much work as in one process
FEW_ROWS: Final = 200_000  # left of a comparison: this process reads and compares them in less time, too
_UNPAIRED: Final = "raise_error('an update of this batch has lost its postimage')"


@dataclass(frozen=True, slots=True)
class Compared:
    """The rows that are left of a comparison, and the `counts` of the others.

    `preimages`: those of updates, if they are apart from `slices`; `places`: their places, and those of their
    postimages (`tailer.spark.native.equal_rows.places`).
    """

    slices: Sequence[FileSlice]
    counts: ChangelogCounts
    preimages: Sequence[FileSlice] = ()
    places: DataFrame | None = None


def shared(spark: SparkSession, split: Split, kept: ExitStack | None = None) -> Compared | None:
    """Return the rows of `split` with nothing left to compare, if all executors can share the comparison.

    Else return None. `kept`: closed when nobody needs the places of preimages any more; None: nobody needs them, and
    they are among the slices. Runs jobs.
    """
    if isinstance(split, FilesSplit):
        return None
    try:
        return compared(spark, split, kept) if is_worth(spark, _plans(split)) else None
    except SPARK_ERRORS as error:
        version, table = _plans(split)[-1].version, _plans(split)[-1].table
        _log.warning("%s: one executor compares version %d: %s", table, version, first_sentence(error))
        return None


def is_worth(spark: SparkSession, plans: Sequence[ChangePlan]) -> bool:
    """Return whether all executors compare the rows of plans faster than one."""
    saved = max(0.0, 1 - _TIMES / spark.sparkContext.defaultParallelism)
    return sum(plan.size_bytes for plan in plans) * saved >= SHARED_BYTES


def compared(spark: SparkSession, split: DiffSplit | NetChangesSplit, kept: ExitStack | None = None) -> Compared:
    """Return the rows that are left; `kept`: as in `shared`. Runs jobs; raises what these and `refine` raise."""
    with borrowed_index() as local, ExitStack() as here:
        shared_index = SharedIndex(spark, local, FEW_ROWS, split.files)
        index = (here if kept is None else kept).enter_context(closing(shared_index))
        rows = DecodedFiles(execute, files=split.files)
        if isinstance(split, NetChangesSplit):
            plans, counts = refine_range(split.plans, split.rules, index, InlineSelections(), rows)
            return Compared([part for plan in plans for part in file_slices(plan)], counts)
        plan, counts = refine(split.plan, split.rules, index, InlineSelections(), None, rows)
        own = len(plan.tasks) - len(split.plan.tasks)  # tasks of preimages come first
        preimages, others = (file_slices(replace(plan, tasks=tasks)) for tasks in (plan.tasks[:own], plan.tasks[own:]))
        if kept is None or not own:
            return Compared([*preimages, *others], counts)
        numbers = pa.array([task.index for task in split.plan.tasks], pa.int64())
        tasks = pa.table({"task": pa.array(range(len(numbers)), pa.int64()), "number": numbers})
        partner_places = places(index.partners(), spark_frame(spark, tasks))
        index.clear()
        return Compared(others, counts, preimages, partner_places)


def at_postimages(preimages: DataFrame, places: DataFrame) -> DataFrame:
    """Return preimages in the places of their postimages. The place is in the last two columns."""
    names = [f"column_{index}" for index in range(len(preimages.columns) - 2)]
    rows = preimages.toDF(*names, "its_task", "its_row").join(
        places, sql.expr("its_task = task AND its_row = row"), "left"
    )
    columns = [*names, *(f"coalesce({place}, {_UNPAIRED})" for place in ("to_task", "to_row"))]
    pairs = zip(columns, preimages.columns, strict=True)
    return rows.select(*(sql.expr(source).alias(name) for source, name in pairs))


def _plans(split: DiffSplit | NetChangesSplit) -> tuple[ChangePlan, ...]:
    return (split.plan,) if isinstance(split, DiffSplit) else split.plans


DESCRIPTION: Final = "lake-tailer: rows that did not change"


class SparkComparisons(SharedIndexes):
    """`tailer.changelog.equal_rows.row_index.SharedIndexes` of a session, whose executors open files with `files`.

    `session` is called in a worker thread, because Spark may have to start first.
    """

    def __init__(self, session: Callable[[], SparkSession], files: DataFiles = LOCAL) -> None:
        self._session = session
        self._files = files

    @override
    def is_worth(self, plan: ChangePlan) -> bool:
        if plan.size_bytes < SHARED_BYTES:
            return False
        session = self._session()
        try:
            return is_worth(session, [plan])
        except SPARK_ERRORS as error:
            raise EngineUnavailable(engine_name(session), first_sentence(error)) from error

    @contextmanager
    @override
    def index(self, local: RowIndex) -> Iterator[SharedIndex]:
        session = self._session()
        group = JobGroup(session, f"lake-tailer-{uuid4()}", DESCRIPTION)
        try:
            with (
                group,
                _stopping(local, group),
                closing(SharedIndex(session, local, FEW_ROWS, self._files)) as index,
            ):
                yield index
        except SPARK_ERRORS as error:
            if local.stopped:
                raise Stopped from None
            raise EngineUnavailable(engine_name(session), first_sentence(error)) from error


@contextmanager
def _stopping(local: RowIndex, group: JobGroup) -> Iterator[None]:
    """Stop the jobs of `group` when `local` is stopped."""
    ended = Event()

    def watch() -> None:
        while not ended.wait(STOP_AGAIN_S):
            if local.stopped:
                group.stop()

    watcher = Thread(target=watch, name="tailer-comparison", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
