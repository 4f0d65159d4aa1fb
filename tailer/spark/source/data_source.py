"""The data source `tailer`: a table's changes for Spark, as a batch or as a stream, entirely in Python.

    spark.read.format("tailer").option("startingVersion", 0).load("/data/orders")
    spark.readStream.format("tailer").load("/data/orders")

Spark calls these methods, in these processes:

- `TailerSource.schema` on the driver, once, when the query is written. The columns are those of the table now, or at
  the end of a batch. The versions found then travel with the source, so every run of a batch reads the same ones.
- `BatchReader.partitions`, and all of `StreamReader` but `read`, on the driver. Each query has one process that plans
  (`tailer.spark.source.admission`) and caches its plans. It remembers nothing that is not in an offset (invariant 2):
  Spark asks for the next offset before it commits the previous one, and never reports that the last one was committed.
- `read` on executors: it reads one split (`tailer.spark.splits`).

The start of a stream is decided once, and every offset contains it (`tailer.spark.source.plan_cache`). Rows of a
micro-batch have no order except by `_commit_version` and, in the envelope, by `_task` and `_row`.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import anyio
import pyarrow as pa
from anyio.from_thread import BlockingPortal, start_blocking_portal
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from tailer.errors import (
    ConfigError,
    VersionAhead,
)
from tailer.events import SchemaChange
from tailer.plan import Position
from tailer.schema.columns import refuse_names
from tailer.spark.next_step import with_next_step
from tailer.spark.release import SameRelease, our_task
from tailer.spark.source.admission import Admission, Budget, Work
from tailer.spark.source.options import SourceOptions, read_options
from tailer.spark.source.plan_cache import Offset, Place, StreamPlace, offset_of, place_of
from tailer.spark.source.views import EnvelopeView, SparkView, TypedView
from tailer.spark.splits import Split, read_split
from tailer.start import Start, StartKind, StartPoint
from tailer.table_log import TableLog

__all__ = [
    "StreamReader",
    "TailerSource",
]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Loaded:
    """The table when the query was written: its columns at the version `end`, and its newest version."""

    columns: pa.Schema
    end: int
    latest: int


class TailerSource(DataSource):
    """See the module's docstring."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        with with_next_step():
            self._chosen = read_options(options)
        self._loaded: Loaded | None = None

    @classmethod
    def name(cls) -> str:
        return "tailer"

    def schema(self) -> StructType:
        """Return the columns of change rows. Raises what reading the log raises."""
        return self._view(follows=False).spark_schema

    def reader(self, schema: StructType) -> "BatchReader":
        """Make the reader of a batch. Raises `ConfigError` if it has no start."""
        with with_next_step():
            self._chosen.check_batch()
            view = self._checked(schema, follows=False)
        return BatchReader(self._chosen, view, self._load_once().latest)

    def streamReader(self, schema: StructType) -> "StreamReader":  # noqa: N802 - Spark's name
        chosen, _ = self.followed()
        return StreamReader(chosen, self._checked(schema, follows=True))

    def followed(self) -> tuple[SourceOptions, SparkView]:
        """Return what a reader of a stream needs."""
        with with_next_step():
            self._chosen.check_stream()
        return self._chosen, self._view(follows=True)

    def choose(self, change: Callable[[SourceOptions], SourceOptions]) -> SourceOptions:
        """Change the options and return them. Call it before anything is read. Raises what `change` raises."""
        self._chosen = change(self._chosen)
        return self._chosen

    def _checked(self, schema: StructType, *, follows: bool) -> SparkView:
        view = self._view(follows=follows)
        if schema != view.spark_schema:
            remedy = "Leave .schema(...) out, and select or cast the columns after load()."
            raise ConfigError("schema", f"is given by the table: {view.spark_schema.simpleString()}", remedy)
        return view

    def _view(self, *, follows: bool) -> SparkView:
        with with_next_step():
            loaded, chosen, read = self._load_once(), self._chosen, self._chosen.read
            if chosen.envelope:
                return EnvelopeView(
                    loaded.columns, tuple(read.columns), row_ids=read.row_ids, since=loaded.end, where=read.where
                )
            view = TypedView(
                loaded.columns,
                tuple(read.columns),
                row_ids=read.row_ids,
                since=loaded.end,
                follows=follows,
                positions=chosen.positions,
                where=read.where,
            )
            refuse_names(view.columns, chosen.table.location, loaded.end)
            return view

    def _load_once(self) -> Loaded:
        if self._loaded is None:
            self._loaded = loaded = anyio.run(_load, self._chosen)
            self._chosen = self._chosen.spelled_as(loaded.columns.names)
        return self._loaded


class BatchReader(DataSourceReader):
    """A batch of all changes from the start to the end, which is at most `latest`."""

    def __init__(self, chosen: SourceOptions, view: SparkView, latest: int) -> None:
        self._same = SameRelease()
        self._chosen = chosen
        self.view = view
        self._latest = latest

    def partitions(self) -> list["SplitPartition"]:
        return [SplitPartition(split) for split in self.work().splits()]

    def work(self) -> Work:
        """Return what the batch contains."""
        with with_next_step():
            return anyio.run(self._work)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a split. Runs on an executor."""
        return read_partition(self.view, partition)

    async def _work(self) -> Work:
        chosen = self._chosen
        table = await chosen.open_table()
        first = await _point(table, chosen.start, self._latest)
        last = self._latest if chosen.end is None else min(await _end(table, chosen.end), self._latest)
        if first.version > last + 1:
            reason = f"version {first.version} comes after the end, version {last}"
            raise ConfigError("startingVersion", reason, "Give an earlier start, or a later end.")
        admission = Admission(table, self.view, chosen.rules, net=chosen.read.net, files=chosen.open_files())
        begin = await admission.start(first)
        return await admission.work(begin, Position.end(last))


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream without an end, or up to the end given as an option."""

    def __init__(self, chosen: SourceOptions, view: SparkView) -> None:
        self._same = SameRelease()
        self._chosen = chosen
        self._view = view
        self._planning: _Planning | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for executors, which plan nothing."""
        return {**self.__dict__, "_planning": None}

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Return the offset just before the start; every call returns the same."""
        first = self._plan(_Planning.first)
        return offset_of(StreamPlace(first, first.position), self._chosen.app_id)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        """Return the end of the next micro-batch; `start` if there is nothing new."""
        after = self._place(start)
        budget = Budget() if isinstance(limit, ReadAllAvailable) else self._chosen.budget
        end = self._plan(partial(_Planning.advance, after=after.place, budget=budget))
        return offset_of(StreamPlace(end, after.start), self._chosen.app_id)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return that there are limits: Spark has no form for several at once."""
        return (
            ReadAllAvailable() if self._chosen.budget == Budget() else ReadMaxFiles(self._chosen.budget.max_files or 1)
        )

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802 - Spark's name
        """Return the end of the newest version, for the query's progress."""
        newest = self._plan(_Planning.newest)
        return offset_of(StreamPlace(newest, newest.position), self._chosen.app_id)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Make the current newest version the end."""
        self._plan(_Planning.end_here)

    def partitions(self, start: Offset, end: Offset) -> list["SplitPartition"]:
        """Return the splits between two offsets as partitions."""
        return [SplitPartition(split) for split in self.work(start, end).splits()]

    def work(self, start: Offset, end: Offset) -> Work:
        """Return what there is between two offsets."""
        after, through = self._place(start), self._place(end)
        # The first batch began before a restart: its start was decided then.
        begin = after.place if after.start == through.start else through.beginning
        work = self._plan(partial(_Planning.work, after=begin, through=through.place))
        return work.in_stream(through.start, after.place)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a split. Runs on an executor."""
        return read_partition(self._view, partition)

    def stop(self) -> None:
        if self._planning is not None:
            self._planning.close()
            self._planning = None

    def _place(self, offset: Offset) -> StreamPlace:
        with with_next_step():
            return place_of(offset, self._chosen.app_id)

    def _plan(self, ask: Callable[["_Planning"], T]) -> T:
        with with_next_step():
            if self._planning is None:
                self._planning = _Planning(self._chosen, self._view)
            return ask(self._planning)


class SplitPartition(InputPartition):
    """A split on its way to an executor. Raises nothing."""

    def __init__(self, split: Split | SchemaChange) -> None:
        super().__init__(split)


class _Planning:
    """The driver's side of a stream: its admission, in an event loop of its own."""

    def __init__(self, chosen: SourceOptions, view: SparkView) -> None:
        self._chosen = chosen
        self._table = anyio.run(chosen.open_table)
        files = chosen.open_files()
        self._admission = Admission(
            self._table, view, chosen.rules, net=chosen.read.net, whole_images=chosen.positions, files=files
        )
        self._stack = ExitStack()
        self._portal: BlockingPortal = self._stack.enter_context(start_blocking_portal())
        self._first: Place | None = None
        self._last: int | None = None
        self._final = chosen.end is None  # whether that is the final last version

    def first(self) -> Place:
        if self._first is None:
            self._first = self._ask(self._start)
        return self._first

    def advance(self, after: Place, budget: Budget) -> Place:
        return self._ask(partial(self._admission.advance, after, budget, self._end()))

    def work(self, after: Place, through: Place) -> Work:
        return self._ask(partial(self._admission.work, after, through.position, through.table_id))

    def newest(self) -> Place:
        latest = self._ask(self._table.latest)
        return Place(self._ask(self._table.table_id), Position.end(latest))

    def end_here(self) -> None:
        latest, end = self._ask(self._table.latest), self._end()
        self._last = latest if end is None else min(latest, end)
        self._final = True

    def close(self) -> None:
        self._stack.close()

    def _end(self) -> int | None:
        """Return the last version. For a time in the future it is not known yet."""
        end = self._chosen.end
        if not self._final and end is not None:
            self._last = self._ask(partial(_end, self._table, end))
            self._final = end.kind is not StartKind.TIMESTAMP or self._ask(self._table.latest) > self._last
        return self._last

    async def _start(self) -> Place:
        return await self._admission.start(await _point(self._table, self._chosen.start, self._last))

    def _ask(self, question: Callable[[], Awaitable[T]]) -> T:
        return self._portal.call(question)


async def _load(chosen: SourceOptions) -> Loaded:
    table = await chosen.open_table()
    latest = await table.latest()
    end = latest if chosen.end is None else min(await _end(table, chosen.end), latest)
    columns = await table.seek(end + 1)
    if columns is None:
        raise ConfigError("path", f"the log of {table.uri} does not contain its columns at version {end}")
    return Loaded(columns, end, latest)


async def _point(table: TableLog, start: Start | None, latest: int | None) -> StartPoint:
    """Resolve the start; a snapshot is of the version `latest`, None for the newest now."""
    wanted = start or Start(StartKind.SNAPSHOT)
    with _naming("starting", wanted):
        point = await table.resolve(wanted)
    newest = await table.latest()
    if point.version > newest + 1:
        raise VersionAhead(table.uri, point.version, newest)
    return StartPoint(latest, snapshot=True) if point.snapshot and latest is not None else point


async def _end(table: TableLog, end: Start) -> int:
    """Resolve the end to a version."""
    with _naming("ending", end):
        return await table.resolve_end(end)


@contextmanager
def _naming(which: str, place: Start) -> Iterator[None]:
    """Make errors name the option that was given."""
    try:
        yield
    except ConfigError as error:
        error.where = f"{which}Timestamp" if place.kind is StartKind.TIMESTAMP else f"{which}Version"
        raise


def read_partition(view: SparkView, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a `SplitPartition`. Runs on an executor."""
    work = partition.value
    with our_task(), with_next_step():
        if isinstance(work, SchemaChange):
            yield from view.change(work)
        elif work is not None:  # a batch without splits has one partition with None
            for batch in read_split(work):
                yield from view.rows(batch)
