"""Kafka, exactly once, from the micro-batches of `tailer.spark.follow`.

Each micro-batch is a DataFrame that Spark reads by itself wherever it can. Spark exchanges its rows by shard, and a
task for each shard writes them in the order of their positions (`tailer.spark.write.exchange`).

Shards, positions, keys and messages are those of the daemon's pipelines with `write = "executors"`
(`tailer.shards`): with the same name, sink and number of shards, either can continue where the other stopped. The
progress is in Kafka alone. The checkpoint of the query only says what to read: with a new one, and a start up to that
progress, rows are read again, and left out. A snapshot that was begun is only continued: another one has other rows.

After a micro-batch all shards are at its end. That may be inside a large version, so a sink whose transactions must end
where versions do is refused. It is never inside a change file, where the images of an update may be beside each other.

Attempts that fail are repeated (`Patience`): time in which something was delivered does not count.
"""

import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import anyio
from pyspark.sql import DataFrame
from tenacity import RetryCallState, Retrying, retry_if_exception, wait_random_exponential

from tailer.config.pipelines import PipelineSettings
from tailer.config.shapes import DEFAULT_SHARDS, MOST_SHARDS, Writers
from tailer.config.tables import TableRef
from tailer.errors import ConfigError, SinkRejected, TailerError
from tailer.plan import Position
from tailer.shards.assignment import check_shard_key
from tailer.shards.resharding import Division, Layout, open_sink, stream_names
from tailer.shards.worker import ShardWork, make_sink, may_pass, worst_error
from tailer.sink import Sink
from tailer.spark.release import SameRelease
from tailer.spark.source.admission import Work
from tailer.spark.source.options import SourceOptions
from tailer.spark.source.views import TypedView
from tailer.spark.write.exchange import check_columns, deliver_exchanged, exchanged
from tailer.spark.write.shard_rows import ShardRows, spark_changes
from tailer.start import Start, StartKind

__all__ = ["KafkaShards"]

_log = logging.getLogger(__name__)

_LOOK_S: Final = 0.5  # until a query that was stopped is noticed


class Patience:
    """Patience of `limit_s` with the attempts at the micro-batch of `name`, for tenacity's `Retrying`.

    The time begins with the first failure after which no shard has advanced. `places` looks where the shards are, when
    the time seems to be over: the attempt that has failed may have delivered something. `is_stopped`: whether the query
    was told to end, which ends all patience.
    """

    def __init__(
        self, name: str, limit_s: float, is_stopped: Callable[[], bool], places: Callable[[], Sequence[Position]]
    ) -> None:
        self._name = name
        self._limit_s = limit_s
        self._is_stopped = is_stopped
        self._places = places
        self._seen: Sequence[Position] = ()
        self._since_s: float | None = None
        self._error: BaseException | None = None

    def note(self, places: Sequence[Position]) -> None:
        """Note where the shards are now."""
        if places != self._seen:
            self._seen, self._since_s = places, None

    def is_over(self, _: RetryCallState) -> bool:
        """Return whether the attempt that has failed was the last one."""
        if self._is_stopped():
            return True
        if self._waited_s() >= self._limit_s:
            with suppress(TailerError):
                self.note(self._places())
        return self._waited_s() >= self._limit_s

    def _waited_s(self) -> float:
        now_s = time.monotonic()
        self._since_s = now_s if self._since_s is None else self._since_s
        return now_s - self._since_s

    def say(self, state: RetryCallState) -> None:
        """Log the error of an attempt."""
        self._error = state.outcome.exception() if state.outcome is not None else None
        _log.warning("%s: %s; retrying in %.1f s", self._name, self._error, state.upcoming_sleep)

    def sleep(self, seconds: float) -> None:
        """Sleep until the next attempt. Raises the error of the last one if there is to be none."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self._is_stopped() and self._error is not None:
                raise self._error
            time.sleep(min(left, _LOOK_S))


_POLL_S: Final = 1.0  # of no use here: there is no loop


@dataclass(frozen=True, slots=True)
class KafkaShards:
    """A destination for `tailer.spark.follow`: see `tailer.spark.into_kafka`. Its options may hold secrets."""

    name: str
    sink: Mapping[str, Any]
    shards: int

    def __post_init__(self) -> None:
        """Check the options. Raises `ConfigError`."""
        if not 1 <= self.shards <= MOST_SHARDS:
            reason = f"is {self.shards}, but must be from 1 to {MOST_SHARDS}"
            raise ConfigError("shards", reason, f"Leave it out for {DEFAULT_SHARDS}.")
        sink = make_sink(self._settings(SourceOptions(TableRef(""))))
        if not sink.splits_versions:
            reason = "asks for whole versions, but a micro-batch may end inside a large one"
            raise ConfigError(f"{self.name}.boundary", reason, 'Leave it out, or run the daemon: write = "executors".')

    def __repr__(self) -> str:
        """Show no option."""
        return f"KafkaShards({self.name!r}, shards={self.shards})"

    def wanted(self, chosen: SourceOptions) -> SourceOptions:
        """Return the options of the rows that the shards need. Raises `ConfigError` for those that do not go with it.

        These are rows with their positions; if messages have a key, updates are paired by it.
        """
        if chosen.read.net:
            remedy = "Leave it out, or write to a table: see tailer.spark.recipes."
            raise ConfigError("netChanges", "has no place in a stream of all changes", remedy)
        key = make_sink(self._settings(chosen)).demands.key
        if key and tuple(chosen.read.key) not in ((), key):
            reason = f"differs from the key of the sink: {', '.join(key)}"
            raise ConfigError("key", reason, "Leave it out here: the key of the sink applies to both.")
        return replace(chosen, demanded=key, positions=True)

    def deliver(
        self, rows: DataFrame, chosen: SourceOptions, view: TypedView, batch: Work, is_stopped: Callable[[], bool]
    ) -> None:
        """Deliver a micro-batch; blocks until all shards are at its end.

        Temporary errors are retried until no shard has advanced for ten minutes, or until `is_stopped`. Raises what the
        sink and the table raise, and `ConfigError` if another table has replaced this one.
        """
        span = batch.span
        assert span is not None, "the driver plans"
        settings = self._settings(chosen.spelled_as(view.columns.names))
        key = make_sink(settings).demands.key
        if len(span.table_ids) > 1:
            reason = f"another table has replaced it, between {span.after} and {span.through}"
            remedy = (
                "Deliver what comes before with end = the version before that. Then give the new table another name in "
                "into_kafka, and its query a checkpoint folder of its own."
            )
            raise ConfigError(chosen.table.location, reason, remedy)
        check_columns(view.columns)
        check_shard_key(key, view.columns, chosen.table.location, span.through.version)
        (table_id,) = span.table_ids
        work = ShardWork(settings, table_id, view.columns, span.after, span.through, before=view.columns)
        patience = Patience(self.name, settings.limits.retry_for_s, is_stopped, partial(_places, work))
        retrying = Retrying(
            retry=retry_if_exception(may_pass),
            wait=wait_random_exponential(multiplier=0.5, max=30.0),
            stop=patience.is_over,
            before_sleep=patience.say,
            sleep=patience.sleep,
            reraise=True,
        )
        retrying(self._attempt, exchanged(rows, key, self.shards), work, span.start, patience)

    def _attempt(self, ordered: DataFrame, work: ShardWork, start: Position, patience: Patience) -> None:
        """Run the job of a micro-batch. The sink knows which of its rows were delivered by an earlier attempt."""
        # Spark calls from a thread of its own, but a notebook has an event loop in it.
        with ThreadPoolExecutor(1, "tailer-shards") as thread:
            patience.note(thread.submit(anyio.run, partial(_settle, work, start)).result())
        delivered = ShardRows(SameRelease(), work, partial(spark_changes, work.table_id, work.columns))
        if (error := worst_error(deliver_exchanged(ordered, delivered))) is not None:
            raise error

    def _settings(self, chosen: SourceOptions) -> PipelineSettings:
        return PipelineSettings(
            name=self.name,
            source=chosen.table,
            start=Start(StartKind.EARLIEST),
            policy=chosen.read.policy(),
            pairing=chosen.rules,
            poll_interval_s=_POLL_S,
            sink_kind="kafka",
            sink_options=self.sink,
            write=Writers.EXECUTORS,
            shards=self.shards,
            stores=chosen.stores,
        )


async def _settle(work: ShardWork, start: Position) -> list[Position]:
    """Put the division into shards in force. Return where they are, after that was checked: no row is written yet.

    If nothing was delivered yet, they are set to `start`, that of the stream. Raises as `_check_place` does, for a
    shard in a snapshot or else for the one that is least advanced.
    """
    opening = Position.opening(start.version + 1) if start.closes_version else start
    async with _layout(work.settings) as (layout, sink):
        await layout.settle(Division.of(work.settings, sink), opening)
        places = await layout.places(work.settings.shards)
        streams = zip(stream_names(work.settings.name, work.settings.shards), places, strict=True)
        for name, place in sorted(streams, key=lambda stream: (not stream[1].in_snapshot, stream[1])):
            _check_place(name, place, work.begin, sink)
        return places


def _check_place(name: str, place: Position, begin: Position, sink: Sink) -> None:
    """Raise `SinkRejected` if a stream at `place` would miss rows of a query that continues after `begin`."""
    if place.in_snapshot and not (begin.in_snapshot and begin.version == place.version):
        reason = f"{name} was delivered up to {place}, and this query does not read that snapshot"
        remedy = (
            "Start the query again with the checkpoint folder that it had. Or let the daemon deliver the rest, with "
            'the same name and sink, write = "executors" and as many shards.'
        )
        raise SinkRejected(sink.name, reason, remedy)
    if place < begin:
        reason = f"{name} was delivered up to {place}, and this query continues after {begin}"
        start = place.version + place.closes_version
        remedy = f"Give the query a new checkpoint folder and start = {start}: what was delivered is left out."
        raise SinkRejected(sink.name, reason, remedy)


def _places(work: ShardWork) -> list[Position]:
    async def look() -> list[Position]:
        async with _layout(work.settings) as (layout, _):
            return await layout.places(work.settings.shards)

    with ThreadPoolExecutor(1, "tailer-shards") as thread:
        return thread.submit(anyio.run, look).result()


@asynccontextmanager
async def _layout(settings: PipelineSettings) -> AsyncIterator[tuple[Layout, Sink]]:
    make = partial(make_sink, settings)
    async with open_sink(make) as sink:
        yield Layout(settings.name, settings.open_table(), sink, make), sink
