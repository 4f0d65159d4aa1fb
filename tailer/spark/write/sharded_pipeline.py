"""A pipeline whose shards executors write: the driver sets the last version, and waits until all shards reach it.

The driver delivers no rows. A range of versions becomes a job with a task for each shard (`tailer.shards.worker`). The
sink knows what was delivered, shard by shard, whatever happens to tasks, executors and the driver. After a range all
shards are level. The next range begins at the least advanced shard: each continues from its own position.

A range ends where its files make up `RANGE_BYTES` for each shard. The pipeline can be stopped between ranges, and no
shard gets further ahead of the others than one range.
"""

import logging
import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final, Protocol

import anyio
from anyio import lowlevel, to_thread

from tailer.changelog.report import ChangelogReport
from tailer.config.pipelines import PipelineSettings
from tailer.engine.background import background
from tailer.errors import ConfigError, Retry, TailerError
from tailer.pipeline.loop import Limits
from tailer.pipeline.policy import OnDataLoss
from tailer.pipeline.retention import VacuumWatch
from tailer.pipeline.retry import Retries
from tailer.pipeline.status import PipelineStatus
from tailer.pipeline.wakeup import Wake
from tailer.plan import Position
from tailer.shards.resharding import Layout, layout_id
from tailer.shards.worker import ShardReport, ShardWork, deliver_shard, make_sink
from tailer.sink import Heartbeat, Sink
from tailer.table_log import TableLog

__all__ = ["Runner", "ShardedPipeline"]

_log = logging.getLogger(__name__)

RANGE_BYTES: Final = 512 * 2**20  # of files, for each shard
RANGE_VERSIONS: Final = 1000


class Results(Iterator[list[bytes]], Protocol):
    """The results of items, in their order."""

    def close(self) -> None:
        """Stop the run. Callable from any thread."""
        ...


class Runner(Protocol):
    """A place that runs work: `tailer.spark.engine.executors.Executors`."""

    def run(self, work: Callable[[Any], Iterator[bytes]], items: Sequence[Any]) -> Results:
        """Yield the results of `work` for each item."""
        ...


class ShardedPipeline:
    """A pipeline of `table`, the table of `settings`, through `runner`, in `settings.shards` shards.

    `runner` blocks and may raise `TailerError`: it is called in a thread before every job. `until`: the last version to
    deliver; None: continue until `stop`. Raises `ConfigError` for a sink that only one process may write, and for a
    policy that shards cannot follow.
    """

    def __init__(
        self,
        settings: PipelineSettings,
        table: TableLog,
        runner: Callable[[], Runner],
        wake: Wake,
        limits: Limits | None = None,
        until: int | None = None,
        status: PipelineStatus | None = None,
    ) -> None:
        if settings.policy.on_data_loss is not OnDataLoss.FAIL:
            reason = f"is {settings.policy.on_data_loss}, and shards would each continue from another version"
            raise ConfigError(f"{settings.name}.on_data_loss", reason, 'Leave it out, or set write = "driver".')
        make_sink(settings)
        self._settings = settings
        self._table = table
        self._runner = runner
        self._wake = wake
        self._limits = limits or Limits(poll_interval_s=settings.poll_interval_s)
        self._until = until
        self._report = ChangelogReport(settings.name)
        self._watch = VacuumWatch(settings.name)
        self._status = status or PipelineStatus(settings.name)
        self._retries = Retries(settings.name, self._limits.retry_for_s, self._status)

    def stop(self) -> None:
        """Finish the current range in all shards and return from `run`."""
        self._retries.stop()
        self._wake.ring()

    async def run(self) -> None:
        """Deliver until `until` or `stop`. Cancelled, it stops the executors; their commits stay.

        Raises the `TailerError` that needs a person, or that lasted longer than `Limits.retry_for_s`.
        """
        async with self._wake:
            await self._retries.run(self._session)

    async def _session(self) -> bool:
        """Run a session that begins with the sink's progress."""
        settings = self._settings
        async with AsyncExitStack() as stack:
            sink = make_sink(settings)
            stack.push_async_callback(_close, sink)
            stack.callback(self._watch.forget)
            layout = Layout(settings.name, self._table, sink, lambda: make_sink(settings))
            await layout.settle(settings.shards, settings.start)
            version_ranges = _VersionRanges(
                self._table, await layout.places(settings.shards), settings.shards, self._until
            )
            while not self._retries.is_stopping():
                version_range = await version_ranges.next()
                if version_range is not None:
                    await layout.in_force()  # raises if another instance has claimed it
                    await self._deliver(version_range)
                    version_ranges.done(version_range)
                elif version_ranges.at_end:
                    break
                else:
                    await self._wait(sink)
        return True

    async def _wait(self, sink: Sink) -> None:
        self._retries.note_success()
        if self._table.retention_ms is not None:
            self._watch.caught_up(self._table.retention_ms)
        if isinstance(sink, Heartbeat):
            await sink.beat(layout_id(self._settings.name))
        await self._wake.wait(self._limits.poll_interval_s)

    async def _deliver(self, version_range: "_VersionRange") -> None:
        """Run a job that brings all shards to the end of the range. Raises the error that stopped one of them."""
        settings = self._settings
        if version_range.oldest_ms is not None and self._table.retention_ms is not None:
            versions = await self._table.latest() - version_range.first + 1
            self._watch.report(versions, version_range.oldest_ms, self._table.retention_ms)
        works = [ShardWork(settings, shard, version_range.last) for shard in range(settings.shards)]
        run = await to_thread.run_sync(lambda: self._runner().run(deliver_shard, works))
        self._note([pickle.loads(b"".join(chunks)) for chunks in await _results(run)])
        _log.info("%s: all shards are delivered up to version %d", settings.name, version_range.last)
        self._retries.note_success()

    def _note(self, reports: Sequence[ShardReport]) -> None:
        self._status.note_rows(sum(report.rows for report in reports))
        # Every shard compares all rows of a version, so the report of one is complete.
        for plan, counts in reports[0].compared:
            self._report.note(plan, counts)
        errors = [report.error for report in reports if report.error is not None]
        if errors:
            # A lasting error matters more to a person than a temporary one.
            raise min(errors, key=_passes)


@dataclass(frozen=True, slots=True)
class _VersionRange:
    """Versions for one job. `oldest_ms`: the commit time of the first one; None: not known."""

    first: int
    last: int
    oldest_ms: int | None = None


class _VersionRanges:
    """A divider of the versions after `places` into ranges; `until`: the last version, None for no end."""

    def __init__(self, table: TableLog, places: Sequence[Position], shards: int, until: int | None) -> None:
        self._table = table
        self._until = until
        self._max_bytes = RANGE_BYTES * shards
        low = min(places)
        self._next = low.version + low.closes_version
        self._snapshot = any(place.in_snapshot for place in places if place.version == self._next)
        self._sought = False

    @property
    def at_end(self) -> bool:
        """Return whether the last version was reached."""
        return self._until is not None and self._next > self._until

    async def next(self) -> _VersionRange | None:
        """Return the next range that is available now, None if there is none.

        Raises if its first version cannot be planned.
        """
        if self.at_end:
            return None
        if self._snapshot:
            return _VersionRange(self._next, self._next)
        if not self._sought:
            await self._table.seek(self._next)
            self._sought = True
        last, size, oldest_ms = self._next - 1, 0, None
        while last - self._next + 1 < RANGE_VERSIONS and size < self._max_bytes and last != self._until:
            try:
                plan = await self._table.next_plan()
            except TailerError:
                # The versions before it are delivered first; the next range raises again.
                self._sought = False
                if last < self._next:
                    raise
                break
            if plan is None:
                break
            oldest_ms = plan.timestamp_ms if oldest_ms is None else oldest_ms
            last, size = plan.version, size + plan.size_bytes
        return None if last < self._next else _VersionRange(self._next, last, oldest_ms)

    def done(self, version_range: _VersionRange) -> None:
        """Note that all shards have reached the end of the range."""
        self._next, self._snapshot = version_range.last + 1, False


async def _results(run: Results) -> list[list[bytes]]:
    """Collect all results. If cancelled, stop `run` and return when it has stopped."""
    closing = _Closing(run)
    async with background() as group:
        group.start_soon(closing.close_when_cancelled)
        try:
            return await to_thread.run_sync(closing.collect)
        except CancelledError:
            await lowlevel.checkpoint()  # raises the cancellation that closed it
            raise
        finally:
            closing.ended = True


class _Closing:
    def __init__(self, run: Results) -> None:
        self.ended = False
        self._run = run

    def collect(self) -> list[list[bytes]]:
        """Return all results. Raises `CancelledError` if `run` was closed."""
        try:
            return list(self._run)
        finally:
            self._run.close()

    async def close_when_cancelled(self) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            if not self.ended:
                with anyio.CancelScope(shield=True):
                    await to_thread.run_sync(self._run.close)


def _passes(error: TailerError) -> bool:
    return error.retry in (Retry.TIMED, Retry.ASK)


async def _close(sink: Sink) -> None:
    with anyio.CancelScope(shield=True):
        await sink.aclose()
