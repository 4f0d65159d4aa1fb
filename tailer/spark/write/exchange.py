"""The way of rows to the shards that write them: Spark's own exchange.

Each file is read once, whatever the number of shards, and all executors share the comparison of a large version. Spark
brings the rows of a shard to one task, in the order of their positions, which writes them
(`tailer.spark.write.shard_rows`). Micro-batches of a query come this way (`tailer.spark.write.kafka_shards`), as rows
that Spark may have read by itself, and ranges of versions of the daemon (`ShardExchange`), packed where they are read.

`DataFrame.mapInArrow` asks for pandas, and uses nothing of it, so what is behind it is called here. PySpark is pinned,
and `tests/integration/test_spark_kafka.py` runs it.

Of an error, Spark passes on nothing but text. So an executor raises a `MarkedError`: its text has the pickled error
between two random marks.
"""

import logging
import pickle
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache, partial, reduce
from secrets import token_hex
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from tailer.changelog.carryovers import ChangelogCounts
from tailer.errors import ConfigError, EngineUnavailable, SinkFenced, SinkUnavailable, TailerError
from tailer.events import CHANGE_TYPE, COMMIT_VERSION, ChangeType, has_variant, type_text
from tailer.plan import TASKS, ChangePlan
from tailer.schema.exact_types import exact_type
from tailer.shards.assignment import shard_numbers
from tailer.shards.packed_rows import PARTS, lone_rows, note_part, parts_of
from tailer.shards.worker import ShardReport, ShardWork
from tailer.spark.native.comparing import at_postimages, shared
from tailer.spark.release import SameRelease, our_task, unfit_executors
from tailer.spark.session import SPARK_ERRORS, JobGroup, engine_name, first_sentence, run_stoppable
from tailer.spark.source.spark_types import quoted, spark_schema
from tailer.spark.source.views import POSITIONS
from tailer.spark.splits import DiffSplit, Split, file_splits, read_split
from tailer.spark.write.shard_rows import SHARD, ShardRows, packed_changes

__all__ = ["ShardExchange", "check_columns", "deliver_exchanged", "exchanged"]


class MarkedError(RuntimeError):
    """An error on its way to the driver, as text."""

    def __init__(self, mark: str, error: TailerError) -> None:
        super().__init__(f"{error}\n{mark}:{b64encode(pickle.dumps(error)).decode()}:{mark}")


def raised_on_executor(error: Exception, mark: str) -> TailerError | None:
    """Return what an executor raised as a `MarkedError`, or why it cannot run our code; None: neither is in `error`."""
    text = str(error)
    match = re.search(f"{mark}:([A-Za-z0-9+/=]+):{mark}", text)
    if match is not None:
        ours: TailerError = pickle.loads(b64decode(match[1]))
        return ours
    return unfit_executors(text)


ArrowMap = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def map_in_arrow(rows: DataFrame, function: ArrowMap, schema: StructType) -> DataFrame:
    """Return what `function` makes of each partition, rows of `schema`."""
    udf = UserDefinedFunction(function, returnType=schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    columns = (sql.col(quoted(name)) for name in rows.columns)
    column: Any = udf(*columns)
    java: Any = rows._jdf  # noqa: SLF001 - the only way there
    return DataFrame(java.mapInArrow(column._jc, False, None), rows.sparkSession)  # noqa: SLF001


_log = logging.getLogger(__name__)

_DESCRIPTION: Final = "lake-tailer: deliver versions by shards"
_WITHOUT_ROWS: Final = 8  # shards without rows that the driver delivers at the same time
_REPORT: Final = StructType([StructField("report", BinaryType())])
_TASK, _ROW = POSITIONS.names
_SPARK_TYPES: Final = {pa.int32(): IntegerType(), pa.int64(): LongType(), pa.binary(): BinaryType()}
_PARTS: Final = StructType([StructField(field.name, _SPARK_TYPES[field.type]) for field in PARTS])


class ShardExchange:
    """An exchange between the executors of a session. `session`: called in a worker thread."""

    def __init__(self, session: Callable[[], SparkSession]) -> None:
        self._session = session

    async def deliver(self, splits: Sequence[Split], work: ShardWork, key: Sequence[str]) -> list[ShardReport]:
        """Deliver the rows of `splits`, which are those of `work`, in its shards. Return a report of each shard.

        `key`: the columns by which rows belong to shards; empty: their tasks. Raises what reading the rows raises, and
        `EngineUnavailable` for Spark's errors. What was delivered until then is in the shards' progress.
        """
        job = _Job(self._session, splits, work, key)
        return await run_stoppable(job.run, job.stop)


class _Job:
    """The delivery of a range of versions; see `ShardExchange.deliver`."""

    def __init__(
        self, session: Callable[[], SparkSession], splits: Sequence[Split], work: ShardWork, key: Sequence[str]
    ) -> None:
        self._open_session = session
        self._splits = splits
        self._work = work
        self._key = tuple(key)
        self._mark = token_hex(16)
        self._counts: list[tuple[ChangePlan, ChangelogCounts]] = []
        self._lone: dict[int, pa.Schema] = {}
        self._group: JobGroup | None = None

    def run(self) -> list[ShardReport]:
        """Deliver the rows; blocks until all shards have them."""
        if not self._splits:
            return _with_others(self._shard_rows(), [])
        session = self._open_session()
        self._group = JobGroup(session, f"lake-tailer-{self._mark}", _DESCRIPTION)
        try:
            with self._group, ExitStack() as kept:
                parts = self._parts(session, kept).repartitionById(self._work.settings.shards, SHARD)
                rows = parts.sortWithinPartitions("_version", _TASK, _ROW, "_kind")
                reports = deliver_exchanged(rows, self._shard_rows())
        except SPARK_ERRORS as error:
            ours = raised_on_executor(error, self._mark)
            raise ours or EngineUnavailable(engine_name(session), first_sentence(error)) from error
        for plan, counts in self._counts:
            reports[0].note(plan, counts)
        return reports

    def stop(self) -> None:
        """Make `run` end soon. Callable from any thread, any number of times."""
        if self._group is not None:
            self._group.stop()

    def _shard_rows(self) -> ShardRows:
        return ShardRows(SameRelease(), self._work, partial(packed_changes, self._work.table_id, self._lone))

    def _parts(self, session: SparkSession, kept: ExitStack) -> DataFrame:
        """Return the parts of all rows. Has executors share the comparisons that are worth it, here and now."""
        splits: list[Split] = []
        preimages: list[DataFrame] = []
        for split in self._splits:
            compared = shared(session, split, kept) if _may_share(split) else None
            if compared is None or not isinstance(split, DiffSplit):
                splits.append(split)
                continue
            _log.info("%s: all executors compared version %d", self._work.settings.name, split.plan.version)
            self._counts.append((split.plan, compared.counts))
            splits += file_splits(compared.slices, files=split.files)
            if compared.places is not None:
                self._lone[split.plan.version] = split.plan.schema
                lone = self._read(session, file_splits(compared.preimages, files=split.files), is_lone=True)
                # Without a key, lone rows belong to the shards of their tasks.
                own = sql.expr(f"CAST(_task % {TASKS} % {self._work.settings.shards} AS INT)")
                placed = at_postimages(lone, compared.places)
                preimages.append(placed.withColumn(SHARD, sql.coalesce(sql.col(SHARD), own)))
        # The plan of the rows alone has a fixed number of partitions.
        planner = session if preimages else _planning_once(session)
        return reduce(DataFrame.union, preimages, self._read(planner, splits))

    def _read(self, session: SparkSession, splits: Sequence[Split], *, is_lone: bool = False) -> DataFrame:
        """Return the parts of splits, with a task for each split."""
        shards, count = self._work.settings.shards, len(splits)
        packed = tuple(map(pickle.dumps, splits))
        read = _ReadParts(SameRelease(), packed, self._key, shards, self._mark, is_lone)
        return map_in_arrow(session.range(0, count, 1, count), read, _PARTS)


@dataclass(frozen=True, slots=True)
class _ReadParts:
    """A function for `map_in_arrow` over the numbers of pickled splits, which yields the parts of their rows.

    `is_lone`: each row is a part. `mark`: see `MarkedError`.
    """

    same: SameRelease
    splits: tuple[bytes, ...]
    key: tuple[str, ...]
    shards: int
    mark: str
    is_lone: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the splits of this task."""
        with our_task():
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from self._parts(pickle.loads(self.splits[number]))

    def _parts(self, split: Split) -> Iterator[pa.RecordBatch]:
        notes: list[pa.RecordBatch] = []
        try:
            for rows in read_split(split, lambda plan, counts: notes.append(note_part(plan, counts))):
                packed = lone_rows if self.is_lone else parts_of
                yield packed(rows, self.key, self.shards)
        except TailerError as error:
            raise MarkedError(self.mark, error) from error
        yield from notes


def exchanged(rows: DataFrame, key: Sequence[str], shards: int) -> DataFrame:
    """Return change rows with a partition for each shard, in the order of their positions.

    `rows`: with their positions (`POSITIONS`). `key`: the columns by which rows belong to shards; empty: their tasks.
    """
    if key:
        with_shard = StructType([*rows.schema, StructField(SHARD, IntegerType())])
        numbered = map_in_arrow(rows, _Numbered(tuple(key), shards, SameRelease()), with_shard)
    else:
        numbered = rows.withColumn(SHARD, sql.expr(f"CAST(_task % {TASKS} % {shards} AS INT)"))
    # The images of an update may have one position.
    is_postimage = sql.col(CHANGE_TYPE) == sql.lit(ChangeType.UPDATE_POSTIMAGE.value)
    return numbered.repartitionById(shards, SHARD).sortWithinPartitions(COMMIT_VERSION, _TASK, _ROW, is_postimage)


def deliver_exchanged(rows: DataFrame, delivered: ShardRows) -> list[ShardReport]:
    """Deliver rows that are exchanged. Return a report of each shard, in their order; blocks."""
    answers = map_in_arrow(rows, delivered, _REPORT).collect()
    # Spark may leave out a partition without rows.
    return _with_others(delivered, [pickle.loads(row["report"]) for row in answers])


def _with_others(delivered: ShardRows, reports: Sequence[ShardReport]) -> list[ShardReport]:
    """Deliver the shards of which `reports` has none, for they have no rows. Return all reports."""
    # A notebook has an event loop of its own in this thread.
    missing = sorted(set(range(delivered.work.settings.shards)) - {report.shard for report in reports})
    with ThreadPoolExecutor(_WITHOUT_ROWS, "tailer-shards") as threads:
        others = list(threads.map(partial(_without_rows, delivered), missing))
    return sorted([*reports, *others], key=lambda report: report.shard)


def _without_rows(delivered: ShardRows, shard: int) -> ShardReport:
    try:
        return delivered.report(shard, iter(()))
    except SinkFenced as fenced:
        # By another attempt at it, for the pipeline itself is not fenced.
        return ShardReport(shard, SinkUnavailable(fenced.sink, fenced.reason))


def check_columns(columns: pa.Schema) -> None:
    """Raise `ConfigError` for a column that Spark would not read as it is, or that it would take for another one."""
    remedy = 'Name the other columns in the option columns, or run the daemon: write = "executors".'
    spark_schema(columns)
    names = [name.lower() for name in columns.names]
    for field in columns:
        if names.count(field.name.lower()) > 1:
            raise ConfigError("columns", f"Spark does not tell {field.name} from a column in other letters", remedy)
        if field.name.lower() in {*POSITIONS.names, SHARD}:
            raise ConfigError("columns", f"{field.name} is a name that into_kafka uses for a column of its own", remedy)
        if has_variant(field.type) or not exact_type(field.type).equals(field.type):
            reason = f"column {field.name} is {type_text(field.type)}, which is another type in Spark"
            raise ConfigError("columns", reason, remedy)


@lru_cache(maxsize=1)
def _planning_once(session: SparkSession) -> SparkSession:
    """Return a session beside `session` that plans a query once, not again after each stage.

    That takes a fifth of Java's processor time from a range of a few rows.
    """
    planner = session.newSession()
    planner.conf.set("spark.sql.adaptive.enabled", "false")
    return planner


def _may_share(split: Split) -> bool:
    """Return whether rows of a split that are read apart can be put together again: they have the same columns."""
    if not isinstance(split, DiffSplit):
        return False
    columns = split.plan.schema
    return all(task.schema.equals(columns, check_metadata=True) for task in split.plan.tasks)


@dataclass(frozen=True, slots=True)
class _Numbered:
    """A function for `map_in_arrow` that adds the shard of each row."""

    key: tuple[str, ...]
    shards: int
    same: SameRelease

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches with the shard of each row."""
        for batch in batches:
            numbers = shard_numbers([batch.column(name) for name in self.key], self.shards)
            yield batch.append_column(SHARD, numbers)
