"""Delivery by executors, each a shard of the rows: the driver sets the last version, and waits until all reach it.

The driver delivers no rows. A range of versions becomes a job with a task for each shard (`tailer.shards.worker`). The
sink knows what was delivered, shard by shard, whatever happens to tasks, executors and the driver. After a range all
shards are level. The next range begins at the least advanced shard: each continues from its own position.

A range ends where its files make up `RANGE_BYTES` for each shard. The pipeline can be stopped between ranges, and no
shard gets further ahead of the others than one range. A large version whose rows must be compared is a range of its
own: executors share the comparison, because each shard would have to compare all rows (`WholeVersions`).

Shards check by themselves which table they follow, and announce changes of columns: they are pipelines (`RowDelivery`).
"""

import logging
import pickle
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol

import anyio
import pyarrow as pa
from anyio import lowlevel, to_thread

from tailer.changelog.report import ChangelogReport
from tailer.config.pipelines import PipelineSettings
from tailer.engine.background import background
from tailer.errors import ConfigError, Retry, TailerError
from tailer.pipeline.delivery import ResumePoint, VersionRange
from tailer.pipeline.limits import Limits
from tailer.pipeline.loop import Pipeline
from tailer.pipeline.policy import OnDataLoss
from tailer.pipeline.polling import Polling
from tailer.pipeline.retention import VacuumWatch
from tailer.pipeline.retry import Retries
from tailer.pipeline.status import Committed, PipelineStatus
from tailer.plan import ChangePlan, Position
from tailer.shards.division import Division
from tailer.shards.resharding import Layout, layout_id
from tailer.shards.worker import ShardReport, ShardWork, deliver_shard, make_sink
from tailer.sink import Sink
from tailer.start import Start
from tailer.stores.wakeup import Wake
from tailer.table_log import TableLog

__all__ = ["Runner", "ShardDelivery", "ShardSession", "WholeVersions", "sharded_pipeline"]

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


class WholeVersions(Protocol):
    """A delivery of single versions in all shards together: `tailer.spark.write.shared_versions`."""

    def takes(self, plan: ChangePlan, places: Sequence[Position]) -> bool:
        """Return whether the version of `plan` should be delivered so, to shards at `places` inside it. Blocks.

        May raise `EngineUnavailable`.
        """
        ...

    async def deliver(self, plan: ChangePlan) -> list[ShardReport] | None:
        """Deliver the version to shards that have all before it. Return a report of each; None if it was not possible.

        Raises what stopped it for all of them.
        """
        ...


def sharded_pipeline(
    settings: PipelineSettings,
    table: TableLog,
    runner: Callable[[], Runner],
    wake: Wake,
    limits: Limits | None = None,
    until: Start | None = None,
    status: PipelineStatus | None = None,
    whole: WholeVersions | None = None,
) -> Pipeline:
    """Make the pipeline of `table`, the table of `settings`, through `runner`, in `settings.shards` shards.

    `runner` blocks and may raise `TailerError`: it is called in a thread before every job. `until`: the last version to
    deliver; None: continue until `stop`. `whole`: delivers versions that shards need not compare by themselves. Raises
    `ConfigError` for a sink that only one process may write, and for a policy that shards cannot follow.
    """
    name, policy = settings.name, settings.policy
    if policy.on_data_loss is not OnDataLoss.FAIL:
        reason = f"is {policy.on_data_loss}, and shards would each continue from another version"
        raise ConfigError(f"{name}.on_data_loss", reason, 'Leave it out, or set write = "driver".')
    make_sink(settings)
    limits = limits or settings.limits
    retries = Retries(name, limits.retry_for_s, status)
    delivery = ShardDelivery(settings, table, runner, retries, whole)
    polling, watch = Polling.of(limits, wake), VacuumWatch(name)
    return Pipeline(name, table, delivery, wake, settings.start, until, policy, polling, retries, watch)


class ShardDelivery:
    """See `sharded_pipeline`. `retries`: of the pipeline."""

    def __init__(
        self,
        settings: PipelineSettings,
        table: TableLog,
        runner: Callable[[], Runner],
        retries: Retries,
        whole: WholeVersions | None = None,
    ) -> None:
        self.settings: Final = settings
        self.table: Final = table
        self.runner: Final = runner
        self.retries: Final = retries
        self.whole: Final = whole
        self.report: Final = ChangelogReport(settings.name)

    @asynccontextmanager
    async def session(self, table_id: str) -> AsyncIterator["ShardSession"]:
        """See `Delivery.session`. Puts the division in force, with every shard at some position."""
        settings = self.settings
        sink = make_sink(settings)
        try:
            layout = Layout(settings.name, self.table, sink, lambda: make_sink(settings))
            await layout.settle(Division.of(settings, sink), settings.start)
            yield ShardSession(self, sink, layout, await layout.places(settings.shards))
        finally:
            with anyio.CancelScope(shield=True):
                await sink.aclose()


class ShardSession:
    """A session of `delivery`: all shards of `layout`, in `sink`, continue from their `places`."""

    table_id: Final = None
    gaps: Final = None

    def __init__(self, delivery: ShardDelivery, sink: Sink, layout: Layout, places: Sequence[Position]) -> None:
        low = min(places)
        first = low.version + low.closes_version
        self.sink = sink
        self.app_id: str | None = layout_id(delivery.settings.name)
        self.resume: ResumePoint | None = ResumePoint(
            first,
            any(place.in_snapshot for place in places if place.version == first),
            knows_columns=not all(place.opens_version for place in places),
        )
        self._delivery = delivery
        self._settings = delivery.settings
        self._table = delivery.table
        self._layout = layout
        self._places = places
        self._next = first
        self._last: int | None = None
        self._must_seek = False
        self._ahead: ChangePlan | None = None
        self._before: tuple[str | None, pa.Schema | None] = None, None  # the table's id, and columns to announce

    async def record_start(self, plan: ChangePlan) -> None:
        """See `Session.record_start`. `Layout.settle` has recorded it."""

    async def snapshot(self, version: int, after: Position | None) -> bool:
        """See `Session.snapshot`."""
        await self.deliver(VersionRange(version, version), after)
        return True

    def begin(self, version: int, schema: pa.Schema | None, last: int | None) -> None:
        """See `Session.begin`."""
        self._next, self._last, self._ahead = version, last, None
        self._before = self._table.state_id, schema

    async def plan(self) -> VersionRange | None:
        """See `Session.plan`. Raises if the first version cannot be planned."""
        if self._must_seek:
            await self._table.seek(self._next)
            self._must_seek = False
        last, size, oldest_ms = self._next - 1, 0, None
        max_bytes = RANGE_BYTES * self._settings.shards
        while last - self._next + 1 < RANGE_VERSIONS and size < max_bytes and last != self._last:
            try:
                plan = self._ahead or await self._table.next_plan()
                shared = None if plan is None else await self._shared(plan)
            except TailerError:
                # The versions before it are delivered first; the next range raises again.
                self._must_seek = True
                if last < self._next:
                    raise
                break
            if plan is None:
                break
            self._ahead = None
            if shared is not None:
                if last < self._next:
                    return VersionRange.of([shared])
                self._ahead = plan
                break
            oldest_ms = plan.timestamp_ms if oldest_ms is None else oldest_ms
            last, size = plan.version, size + plan.size_bytes
        return None if last < self._next else VersionRange(self._next, last, oldest_ms, size)

    async def deliver(self, versions: VersionRange, after: Position | None) -> None:
        """See `Session.deliver`: a job that brings all shards to the end of the range.

        Raises the error that stopped one of them, and `SinkFenced` if another instance has claimed the layout.
        """
        await self._layout.in_force()
        reports = await self._deliver_whole(versions) or await self._deliver_apart(versions)
        self._note(reports)
        _log.debug("%s: all shards are delivered up to version %d", self._settings.name, versions.last)
        self._delivery.retries.note_commit(Committed(Position.end(versions.last), {}, first=versions.first))
        self._next = versions.last + 1

    async def commit(self) -> None:
        """See `Session.commit`. Nothing is open in the driver."""

    def narrow(self, error: TailerError) -> bool:
        """See `Session.narrow`. Each shard has done that by itself."""
        return False

    async def salvage(self, error: TailerError) -> bool:
        """See `Session.salvage`. Each shard has done that by itself."""
        return True

    async def _shared(self, plan: ChangePlan) -> ChangePlan | None:
        """Return the plan, in the wanted columns, if executors should share the comparison of its rows; else None."""
        whole, (table_id, columns) = self._delivery.whole, self._before
        if whole is None:
            return None
        wanted = self._settings.policy.shape(plan)
        self._before = wanted.table_id, wanted.schema
        if table_id != plan.table_id or not (columns is None or columns.equals(wanted.schema, check_metadata=True)):
            return None
        inside = [place for place in self._places if place.version == plan.version and place.is_inside]
        return wanted if await to_thread.run_sync(whole.takes, wanted, inside) else None

    async def _deliver_whole(self, versions: VersionRange) -> list[ShardReport] | None:
        """Deliver a version whose comparison executors share; None if `versions` is not one, or they cannot."""
        whole = self._delivery.whole
        return await whole.deliver(*versions.plans) if whole is not None and versions.plans else None

    async def _deliver_apart(self, versions: VersionRange) -> list[ShardReport]:
        """Deliver `versions`, each shard by itself."""
        settings = self._settings
        works = [ShardWork(settings, shard, versions.last) for shard in range(settings.shards)]
        run = await to_thread.run_sync(lambda: self._delivery.runner().run(deliver_shard, works))
        return [pickle.loads(b"".join(chunks)) for chunks in await _results(run)]

    def _note(self, reports: Sequence[ShardReport]) -> None:
        for report in reports:
            self._delivery.retries.status.note_rows(report.rows)
        # Every shard compares all rows of a version, so the report of one is complete.
        for plan, counts in reports[0].compared:
            self._delivery.report.note(plan, counts)
        errors = [report.error for report in reports if report.error is not None]
        if errors:
            # A lasting error matters more to a person than a temporary one.
            raise min(errors, key=_passes)


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
