"""The data source `tailer`: a table's changes for Spark, as a batch or as a stream, in Python from end to end.

    spark.read.format("tailer").option("startingVersion", 0).load("/data/orders")
    spark.readStream.format("tailer").load("/data/orders")

`tailer.spark.source.options` has the options. Where Spark calls what, and in which process:

- `TailerSource.schema` on the driver, once, when the query is written: the columns are those of the table now, or at
  the end of a batch. What was found then travels with the source, so every run of a batch reads the same versions.
- `BatchReader.partitions`, and all of `StreamReader` but `read`, on the driver: one process for each query that plans
  (`tailer.spark.source.admission`) and keeps what it has planned. Nothing is remembered that an offset does not say
  (invariant 2): Spark asks the next offset before it commits the one before, and of the last one it never says that it
  is committed.
- `read` on executors: it runs one piece (`tailer.spark.splits`).

A stream's start is made definite once, and every offset tells it (`tailer.spark.source.offsets`). Rows of a micro-batch
have no order but the one that `_commit_version` and, in the envelope, `_task` and `_row` tell.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import anyio
import pyarrow as pa
from anyio.from_thread import BlockingPortal, start_blocking_portal
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from tailer.delta.table import DeltaTableLog
from tailer.errors import (
    ChangesUnavailable,
    ConfigError,
    FileVacuumed,
    LogCorrupt,
    LogRewritten,
    TableReplaced,
    TailerError,
    VersionAhead,
    VersionGone,
)
from tailer.events import SchemaChange
from tailer.plan import Position
from tailer.spark.engine.worker import our_task
from tailer.spark.source.admission import Budget, Feed
from tailer.spark.source.offsets import Offset, StreamPlace, offset_of, place_of
from tailer.spark.source.options import SourceOptions, read_options
from tailer.spark.source.plan_cache import Place
from tailer.spark.source.views import EnvelopeView, SparkView, TypedView
from tailer.spark.splits import Piece, run
from tailer.start import Start, StartKind, StartPoint
from tailer.stores.local import LocalStore
from tailer.table_log import TableLog

__all__ = ["TailerSource"]

T = TypeVar("T")

_BEHIND: Final = (
    "a query with a new checkpoint folder and startingVersion = {} goes on behind it, without those changes."
)
_RESTORE: Final = "Restore what is missing; or "


def _next_step(error: TailerError) -> str:
    """What to do about an error in a query: the words of `hint` are for pipelines, where the two differ."""
    match error:
        case TableReplaced():
            return "Start a query with a new checkpoint folder, and say where to begin in the new table."
        case FileVacuumed(version=version) | ChangesUnavailable(version=version):
            return _RESTORE + _BEHIND.format(version + 1)
        case VersionGone() | LogCorrupt():
            return _RESTORE + _BEHIND.format("a version behind the gap")
        case ConfigError(where="key"):
            between = "Where a version renames it, give the query an endingVersion before that, then the other name."
            return f"{error.hint} {between}"
        case VersionAhead(latest=latest):
            return f"Give a version up to {latest}; a query that was further than that needs a new checkpoint folder."
        case LogRewritten():
            return "A query that read the log as it was before needs a new checkpoint folder."
    return error.hint


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was found when the query was written: the table's columns at the version `end`, and its newest version."""

    columns: pa.Schema
    end: int
    latest: int


class TailerSource(DataSource):
    """See the module's docstring."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        with _with_next_step():
            self._chosen = read_options(options)
        self._loaded: Loaded | None = None

    @classmethod
    def name(cls) -> str:
        """What `format` calls it."""
        return "tailer"

    def schema(self) -> StructType:
        """The columns of change rows. Raises what reading the log raises."""
        return self._view(follows=False).spark_schema

    def reader(self, schema: StructType) -> "BatchReader":
        """For a batch. Raises `ConfigError` where it has no start."""
        with _with_next_step():
            self._chosen.check_batch()
            view = self._checked(schema, follows=False)
        return BatchReader(self._chosen, view, self._found().latest)

    def streamReader(self, schema: StructType) -> "StreamReader":  # noqa: N802 - Spark's name
        """For a stream."""
        with _with_next_step():
            self._chosen.check_stream()
            view = self._checked(schema, follows=True)
        return StreamReader(self._chosen, view)

    def _checked(self, schema: StructType, *, follows: bool) -> SparkView:
        view = self._view(follows=follows)
        if schema != view.spark_schema:
            remedy = "Leave .schema(...) out, and select or cast the columns behind load()."
            raise ConfigError("schema", f"is given by the table: {view.spark_schema.simpleString()}", remedy)
        return view

    def _view(self, *, follows: bool) -> SparkView:
        with _with_next_step():
            found, chosen = self._found(), self._chosen
            if chosen.envelope:
                columns, since = found.columns, found.end
                return EnvelopeView(columns, chosen.columns, chosen.filter, row_ids=chosen.row_ids, since=since)
            return TypedView(
                found.columns,
                chosen.columns,
                chosen.filter,
                row_ids=chosen.row_ids,
                since=found.end,
                follows=follows,
            )

    def _found(self) -> Loaded:
        if self._loaded is None:
            self._loaded = loaded = anyio.run(_load, self._chosen)
            self._chosen = self._chosen.spelled_as(loaded.columns.names)
        return self._loaded


class BatchReader(DataSourceReader):
    """All changes from the start to the end, `latest` at most."""

    def __init__(self, chosen: SourceOptions, view: SparkView, latest: int) -> None:
        self._chosen = chosen
        self._view = view
        self._latest = latest

    def partitions(self) -> list["PiecePartition"]:
        """The pieces, as partitions."""
        with _with_next_step():
            work = anyio.run(self._work)
        return [PiecePartition(piece) for piece in work]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a piece, on an executor."""
        return _read(self._view, partition)

    async def _work(self) -> list[Piece | SchemaChange]:
        chosen = self._chosen
        table = _open(chosen)
        first = await _point(table, chosen.start, self._latest)
        last = self._latest if chosen.end is None else min(await _end(table, chosen.end), self._latest)
        if first.version > last + 1:
            reason = f"version {first.version} comes after the end, version {last}"
            raise ConfigError("startingVersion", reason, "Give an earlier start, or a later end.")
        feed = Feed(table, self._view, chosen.rules, net=chosen.net_changes)
        begin = await feed.start(first)
        return await feed.work(begin, Position.end(last))


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream that never ends, or at the option's end."""

    def __init__(self, chosen: SourceOptions, view: SparkView) -> None:
        self._chosen = chosen
        self._view = view
        self._planning: _Planning | None = None

    def __getstate__(self) -> dict[str, Any]:
        """What travels to executors: they plan nothing."""
        return {**self.__dict__, "_planning": None}

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Just before the start; the same however often it is asked."""
        first = self._plan(_Planning.first)
        return offset_of(StreamPlace(first, first.position), self._chosen.app_id)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        """How far the next micro-batch goes; `start` where there is nothing new."""
        after = self._place(start)
        budget = Budget() if isinstance(limit, ReadAllAvailable) else self._chosen.budget
        end = self._plan(partial(_Planning.advance, after=after.place, budget=budget))
        return offset_of(StreamPlace(end, after.start), self._chosen.app_id)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """That there are limits: Spark has no word for several at once."""
        return (
            ReadAllAvailable() if self._chosen.budget == Budget() else ReadMaxFiles(self._chosen.budget.max_files or 1)
        )

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802 - Spark's name
        """The end of the newest version, for the query's progress."""
        newest = self._plan(_Planning.newest)
        return offset_of(StreamPlace(newest, newest.position), self._chosen.app_id)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Make the newest version of now the end."""
        self._plan(_Planning.end_here)

    def partitions(self, start: Offset, end: Offset) -> list["PiecePartition"]:
        """The pieces between two offsets, as partitions."""
        after, through = self._place(start), self._place(end)
        # The first batch, begun before a restart: its start was made definite then.
        begin = after.place if after.start == through.start else through.beginning
        ask = partial(_Planning.work, after=begin, through=through.place)
        return [PiecePartition(piece) for piece in self._plan(ask)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a piece, on an executor."""
        return _read(self._view, partition)

    def stop(self) -> None:
        """End what plans."""
        if self._planning is not None:
            self._planning.close()
            self._planning = None

    def _place(self, offset: Offset) -> StreamPlace:
        with _with_next_step():
            return place_of(offset, self._chosen.app_id)

    def _plan(self, ask: Callable[["_Planning"], T]) -> T:
        with _with_next_step():
            if self._planning is None:
                self._planning = _Planning(self._chosen, self._view)
            return ask(self._planning)


class PiecePartition(InputPartition):
    """A piece on its way to an executor. Raises nothing."""

    def __init__(self, piece: Piece | SchemaChange) -> None:
        super().__init__(piece)


class _Planning:
    """The driver's side of a stream: a feed, in an event loop of its own."""

    def __init__(self, chosen: SourceOptions, view: SparkView) -> None:
        self._stack = ExitStack()
        self._portal: BlockingPortal = self._stack.enter_context(start_blocking_portal())
        self._chosen = chosen
        self._table = _open(chosen)
        self._feed = Feed(self._table, view, chosen.rules, net=chosen.net_changes)
        self._first: Place | None = None
        self._last: int | None = None
        self._final = chosen.end is None  # whether that is the last version for good

    def first(self) -> Place:
        if self._first is None:
            self._first = self._ask(self._start)
        return self._first

    def advance(self, after: Place, budget: Budget) -> Place:
        return self._ask(partial(self._feed.advance, after, budget, self._end()))

    def work(self, after: Place, through: Place) -> list[Piece | SchemaChange]:
        return self._ask(partial(self._feed.work, after, through.position, through.table_id))

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
        """The last version. Of a time that is yet to come nobody knows which one that is."""
        end = self._chosen.end
        if not self._final and end is not None:
            self._last = self._ask(partial(_end, self._table, end))
            self._final = end.kind is not StartKind.TIMESTAMP or self._ask(self._table.latest) > self._last
        return self._last

    async def _start(self) -> Place:
        return await self._feed.start(await _point(self._table, self._chosen.start, self._last))

    def _ask(self, question: Callable[[], Awaitable[T]]) -> T:
        return self._portal.call(question)


def _open(chosen: SourceOptions) -> TableLog:
    return DeltaTableLog(LocalStore(chosen.path))


async def _load(chosen: SourceOptions) -> Loaded:
    table = _open(chosen)
    latest = await table.latest()
    end = latest if chosen.end is None else min(await _end(table, chosen.end), latest)
    columns = await table.seek(end + 1)
    if columns is None:
        raise ConfigError("path", f"what the columns of {table.uri} are at version {end} is not in its log")
    return Loaded(columns, end, latest)


async def _point(table: TableLog, start: Start | None, latest: int | None) -> StartPoint:
    """The start made definite; a snapshot, where it is one, of the version `latest`, None for the newest now."""
    wanted = start or Start(StartKind.SNAPSHOT)
    with _naming("starting", wanted):
        point = await table.resolve(wanted)
    newest = await table.latest()
    if point.version > newest + 1:
        raise VersionAhead(table.uri, point.version, newest)
    return StartPoint(latest, snapshot=True) if point.snapshot and latest is not None else point


async def _end(table: TableLog, end: Start) -> int:
    """The end made definite."""
    with _naming("ending", end):
        return await table.resolve_end(end)


@contextmanager
def _naming(which: str, place: Start) -> Iterator[None]:
    """Errors name the option that was given."""
    try:
        yield
    except ConfigError as error:
        error.where = f"{which}Timestamp" if place.kind is StartKind.TIMESTAMP else f"{which}Version"
        raise


def _read(view: SparkView, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    work = partition.value
    with our_task(), _with_next_step():
        if isinstance(work, SchemaChange):
            yield from view.change(work)
        elif work is not None:  # Spark makes a partition of no work for a batch without any
            for batch in run(work):
                yield from view.rows(batch)


@contextmanager
def _with_next_step() -> Iterator[None]:
    """Of an error, Spark shows no more than the text of its traceback: what to do belongs there, too."""
    try:
        yield
    except TailerError as error:
        error.add_note(_next_step(error))
        raise
