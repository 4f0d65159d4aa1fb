"""Appends by Spark's own Delta writer of rows that executors make: one job, one commit.

The rows come from a data source that serves one append (`AppendSource`). Spark asks it for partitions, each with some
splits (`tailer.spark.splits`), and the writer takes the rows that executors read there. The work travels as an option
of the source, so that the driver alone plans, whatever catalogs it has. The task of the first partition asks the sink
whether this append is still due (`tailer.sink.Append.check`). By then the writer's transaction is open, so no other
commit can come in between.

Spark's commit protocol handles lost executors and tasks that run again or twice at once. An error that an executor
raises is raised again on the driver (`tailer.spark.write.executor_errors`).
"""

import pickle
import secrets
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tailer.errors import EngineUnavailable, SinkFenced, SinkRejected, SinkUnavailable, TailerError
from tailer.sink import Append
from tailer.spark.job_group import SPARK_ERRORS, JobGroup
from tailer.spark.native.comparing import shared
from tailer.spark.release import SameRelease
from tailer.spark.session import engine_name, first_sentence
from tailer.spark.source.spark_types import spark_column, spark_schema
from tailer.spark.splits import DiffSplit, NetChangesSplit, Split, file_splits, read_split
from tailer.spark.write.executor_errors import MarkedError, raised_on_executor

__all__ = ["AppendSource", "RangeAppend"]

FORMAT: Final = "tailer_append"
DESCRIPTION: Final = "lake-tailer: append changes"
PARTITION_BYTES: Final = 32 * 2**20  # of files whose rows are compared: the most for one task
# delta-rs, which also reads and writes these tables, reads no moment before 1677 from Spark's INT96, and knows no
# calendar but the Gregorian one.
_FILE_CONF: Final = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}
_REFUSALS: Final = (
    "DeltaAnalysisException",
    "DELTA_VIOLATE_CONSTRAINT",
    "DELTA_NOT_NULL_CONSTRAINT",
    "DELTA_EXCEED_CHAR_VARCHAR_LIMIT",
)


class RangeAppend:
    """One append of the rows of `splits`, which closes version `last` of its app_id. `sink`: its name in errors."""

    def __init__(self, session: SparkSession, sink: str, append: Append, splits: Sequence[Split], last: int) -> None:
        self._session = session
        self._sink = sink
        self.append: Final = append
        self._last = last
        self._mark = secrets.token_hex(16)
        self._splits = splits
        self._group = JobGroup(session, f"lake-tailer-{self._mark}", DESCRIPTION)

    def run(self) -> None:
        """Append the rows; blocks until Spark has committed.

        Raises what executors raise, `SinkFenced` if another instance has committed for the app_id, `SinkRejected` if
        Spark or the table refuses the rows, and `SinkUnavailable` or `EngineUnavailable` for temporary errors, after
        which the outcome of the commit is unknown. Does nothing if the table is at `last` already.
        """
        try:
            session = self._open()
            session.dataSource.register(AppendSource)
            with self._group:
                splits = [part for split in self._splits for part in self._compared(split)]
                work = _Work(self.append, tuple(_pack(splits)), self._mark)
                self._write(session.read.format(FORMAT).option("work", _to_text(work)).load())
        except SPARK_ERRORS as error:
            raise self._named(error) from error

    def stop(self) -> None:
        """Make `run` end soon. Callable from any thread, any number of times."""
        self._group.stop()

    def _open(self) -> SparkSession:
        """Return a session of its own, in which the rows are read and written."""
        session = self._session.newSession()
        for name, value in _FILE_CONF.items():
            session.conf.set(name, value)
        return session

    def _write(self, rows: DataFrame) -> None:
        """Commit `rows`."""
        append = self.append
        writer = rows.write.format("delta").mode("append")
        for name, value in {
            "txnAppId": append.app_id,
            "txnVersion": str(self._last),
            "userMetadata": append.note,
            "mergeSchema": str(append.merges).lower(),
        }.items():
            writer = writer.option(name, value)
        writer.save(self._location)

    @property
    def _location(self) -> str:
        # Without a scheme a path would be one of Spark's default file system.
        location = self.append.location
        return location if "://" in location else f"file:{location}"

    def _compared(self, split: Split) -> Sequence[Split]:
        """Return splits with the rows of `split`; nothing is left to compare if all executors can share that."""
        found = shared(self._session, split)
        return [split] if found is None else file_splits(found.slices, files=split.files)

    def _named(self, error: Exception) -> TailerError:
        found = raised_on_executor(error, self._mark)
        if found is not None:
            return found
        text, reason = str(error), first_sentence(error)
        if "ConcurrentTransactionException" in text or "DELTA_CONCURRENT_TRANSACTION" in text:
            return SinkFenced(self._sink, f"another instance committed for {self.append.app_id} at the same time")
        if "ConcurrentModificationException" in text or "DELTA_CONCURRENT" in text or "ChangedException" in text:
            return SinkUnavailable(self._sink, reason)
        if _refuses(error):
            return SinkRejected(self._sink, reason, "Change the target table, or choose a new path.")
        return EngineUnavailable(engine_name(self._session), reason)


class AppendSource(DataSource):
    """The rows of one append; see the module's docstring."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        same_and_work: tuple[SameRelease, _Work] = pickle.loads(zlib.decompress(b64decode(options["work"])))
        self._work = same_and_work[1]

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the schema of the written rows."""
        return spark_schema(self._work.append.schema)

    def reader(self, schema: StructType) -> "AppendReader":
        """Make the reader of the rows."""
        return AppendReader(self._work)


class AppendReader(DataSourceReader):
    """The reader of one append: some splits for each partition, and their rows on executors."""

    def __init__(self, work: "_Work") -> None:
        self._work = work

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for executors: their splits are in the partitions."""
        return {"_same": SameRelease(), "_work": replace(self._work, partitions=())}

    def partitions(self) -> list[InputPartition]:
        """Return one partition for each group of splits."""
        return [InputPartition((number == 0, group)) for number, group in enumerate(self._work.partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition. Runs on an executor."""
        is_first, splits = partition.value
        append = self._work.append
        wanted = to_arrow_schema(spark_schema(append.schema), timezone="UTC")
        try:
            if is_first:
                append.check()
            for split in splits:
                for batch in read_split(split):
                    pairs = zip(map(spark_column, append.conform(batch.rows).columns), wanted.types, strict=True)
                    columns = [column if column.type.equals(kind) else column.cast(kind) for column, kind in pairs]
                    yield pa.RecordBatch.from_arrays(columns, schema=wanted)
        except TailerError as error:
            raise MarkedError(self._work.mark, error) from error


@dataclass(frozen=True, slots=True)
class _Work:
    """The work of executors. `mark`: the text around an error of ours in Spark's text."""

    append: Append
    partitions: tuple[tuple[Split, ...], ...]
    mark: str


def _to_text(work: _Work) -> str:
    return b64encode(zlib.compress(pickle.dumps((SameRelease(), work)))).decode()


def _pack(splits: Sequence[Split]) -> Iterator[tuple[Split, ...]]:
    """Group splits into tasks: every file that a task writes is one more in the table."""
    group: list[Split] = []
    size = 0
    for split in splits:
        weight = _size_bytes(split)
        if group and size + weight > PARTITION_BYTES:
            yield tuple(group)
            group, size = [], 0
        group.append(split)
        size += weight
    yield tuple(group)


def _size_bytes(split: Split) -> int:
    match split:
        case DiffSplit():
            return split.plan.size_bytes
        case NetChangesSplit():
            return sum(plan.size_bytes for plan in split.plans)
    return PARTITION_BYTES // 2 + 1  # already cut to size: one task each


def _refuses(error: Exception) -> bool:
    """Return whether the table or Spark would fail in the same way again."""
    text = str(error)
    if isinstance(error, AnalysisException) and "PYTHON_DATA_SOURCE_ERROR" not in text:
        return True
    return any(refusal in text for refusal in _REFUSALS)
