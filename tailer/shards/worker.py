"""Delivery of the rows of one shard by an executor, exactly once.

The rows come in the order of their positions. The sink has the position of the shard (invariant 2), so rows up to it
are left out, whether a task runs again, a range of versions does, or a query begins anew without its checkpoint.
Changes of columns, transactions, and what happens when the table is replaced are those of any pipeline (`SinkWriter`).

Attempts at one shard may run one after the other or at the same time, on any machine. The later one fences the earlier
one, which then polls the shard's progress. While that advances, another attempt is live and this one waits. If the
shard stands still for `patience_s`, this one raises `SinkFenced`, and Spark runs the task again, with more patience. So
one of two attempts gets as much time as its longest transaction needs.
"""

import logging
import random
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Final

import anyio
import pyarrow as pa
from anyio import to_thread

from tailer.changelog.carryovers import ChangelogCounts
from tailer.config.pipelines import PipelineSettings
from tailer.errors import ConfigError, Retry, SinkFenced, SinkUnavailable, TableReplaced, TailerError
from tailer.events import ChangeBatch
from tailer.pipeline.sink_writer import SinkWriter
from tailer.pipeline.status import Committed
from tailer.plan import TASKS, ChangePlan, Position, Regime
from tailer.progress.lookup import find_progress
from tailer.shards.resharding import Division, LayoutSink, open_sink, progress_of
from tailer.sink import Progress, Sink, shard_name
from tailer.table_log import TableLog

__all__ = [
    "PATIENCE_S",
    "ShardReport",
    "ShardWork",
    "make_sink",
    "may_pass",
    "report_of",
    "worst_error",
]

_log = logging.getLogger(__name__)

PATIENCE_S: Final = 15.0
LOOK_S: Final = 1.0
# Batches that are written in one step.
_BATCHES: Final = 64
_BATCH_BYTES: Final = 8 * 2**20


@dataclass(frozen=True, slots=True)
class ShardWork:
    """The work of all shards: the rows after `begin` and up to `through`, of the table with the id `table_id`.

    `settings`: of the pipeline; its options may hold secrets and are never shown. `plans`: of the versions, in their
    order, without tasks where all rows have the columns of the version; empty if all rows have `columns`, as in
    `tailer.plan.ChangeTask.schema`. `before`: the columns that the sink knows of at `begin`; None: none.
    """

    settings: PipelineSettings
    table_id: str
    columns: pa.Schema
    begin: Position
    through: Position
    plans: tuple[ChangePlan, ...] = ()
    before: pa.Schema | None = None

    def plan(self, version: int) -> ChangePlan:
        """Return a plan of a version whose rows have `columns`, without tasks."""
        return ChangePlan(self.settings.table, self.table_id, version, 0, None, Regime.NONE, self.columns, ())

    def schema_at(self, place: Position) -> pa.Schema | None:
        """Return the columns that a shard at `place` knows of."""
        schema = self.before
        for plan in self.plans:
            if plan.version == place.version and place.is_inside and plan.tasks:
                return plan.schema_of(place.task)
            if place.version > plan.version or (place.version == plan.version and not place.opens_version):
                schema = plan.schema
        return schema


@dataclass(slots=True)
class ShardReport:
    """The outcome of a shard.

    `error`: the error that stopped it; None: delivered. `compared`: the results for each version whose comparison this
    shard was told of (`tailer.changelog.engine`). `rows`: the rows it committed, by change type.
    """

    shard: int
    error: TailerError | None = None
    compared: list[tuple[ChangePlan, ChangelogCounts]] = field(default_factory=list)
    rows: Counter[str] = field(default_factory=Counter)

    def note(self, plan: ChangePlan, counts: ChangelogCounts) -> None:
        """Add `counts`, the result of comparing the rows of `plan`."""
        self.compared.append((replace(plan, tasks=()), counts))


class _ShardWriter(SinkWriter):
    """A `SinkWriter` whose rows may end inside a version."""

    async def commit_at(self, position: Position, plan: ChangePlan) -> None:
        """Commit that everything up to `position`, inside the version of `plan`, is written, rows or none."""
        await self._open(plan.table_id, plan.version, plan.schema if self.schema is None else self.schema)
        self._position = position
        await self.commit()


def make_sink(settings: PipelineSettings) -> Sink:
    """Make the pipeline's sink, which several processes may write. No I/O.

    Raises `ConfigError` for a sink that only one process may write.
    """
    sink = settings.make_sink()
    if not isinstance(sink, Sink) or not sink.distributes:
        reason = f"a {settings.sink_kind} sink is written by one process"
        raise ConfigError(
            f"{settings.name}.write", reason, 'Set write = "driver", or deliver to a sink of kind = "kafka".'
        )
    return sink


def may_pass(error: BaseException) -> bool:
    """Return whether another attempt later may succeed."""
    return isinstance(error, TailerError) and error.retry in (Retry.TIMED, Retry.ASK)


def worst_error(reports: Sequence[ShardReport]) -> TailerError | None:
    """Return the error of a shard, if any has one: a lasting error matters more to a person than a temporary one."""
    return min((report.error for report in reports if report.error is not None), key=may_pass, default=None)


def report_of(
    work: ShardWork, report: ShardReport, changes: Iterator[ChangeBatch], patience_s: float = PATIENCE_S
) -> ShardReport:
    """Deliver the rows of a shard, and return `report` with what was done.

    An error of ours is part of it: running the task again would not help, but for `SinkFenced`, which is raised.
    """
    try:
        anyio.run(deliver_rows, work, report, changes, patience_s)
    except SinkFenced:
        raise
    except TailerError as error:
        report.error = error
    return report


async def deliver_rows(
    work: ShardWork, report: ShardReport, changes: Iterator[ChangeBatch], patience_s: float = PATIENCE_S
) -> None:
    """Deliver the rows of a shard, `changes` in their order; add them to `report`.

    Raises `SinkFenced` if another writer took it over and stands still for `patience_s`.
    """
    settings = work.settings
    name = shard_name(settings.name, report.shard, settings.shards)
    table = settings.open_table()
    async with open_sink(partial(make_sink, settings)) as sink:
        progress = await progress_of(name, table, sink)
        if progress.position >= work.through:
            return
        await _check_table(work, table)
        place, begin = progress.position, work.begin
        if place < begin or (place.in_snapshot and not (begin.in_snapshot and begin.version == place.version)):
            # It would miss rows that come after `begin`.
            raise SinkUnavailable(sink.name, f"{name} was set to {place} while rows after {begin} were read")
        layout = LayoutSink(sink, settings.name, Division.of(settings, sink))
        try:
            await _write(work, report, name, partial(_check_table, work, table), layout, progress, changes)
        except SinkFenced as fenced:
            _log.info("%s: %s; waiting for it", name, fenced)
            try:
                # Random, so that two attempts do not take over in step.
                finished = await _is_finished(settings, name, work.through, patience_s * random.uniform(1, 2))
            except SinkFenced as error:
                # It is no shard of the pipeline any more.
                report.error = error
                return
            if not finished:
                raise fenced from None


async def _write(
    work: ShardWork,
    report: ShardReport,
    name: str,
    check_table: Callable[[], Awaitable[None]],
    sink: Sink,
    progress: Progress,
    changes: Iterator[ChangeBatch],
) -> None:
    """Write and commit the rows after `progress`, up to the end of `work`."""

    async def confirm(_: Position | None) -> None:
        """Confirm the table alone: the driver has confirmed the plans."""
        await check_table()

    def committed(done: Committed) -> None:
        report.rows.update(done.rows)

    place, limits = progress.position, work.settings.limits.within(sink.demands)
    left = deque(plan for plan in work.plans if Position.end(plan.version) > place)
    types = work.settings.policy.types
    async with _ShardWriter(name, sink, progress, limits, confirm, committed, types) as writer:
        writer.schema = work.schema_at(place)
        rows = _after(place, changes)
        while some := await to_thread.run_sync(_some, rows):
            for version, batches in groupby(some, lambda batch: batch.version):
                while left and left[0].version < version:
                    await writer.close_version(left.popleft())
                assert not left or left[0].version == version, "there is a plan of each version"
                await writer.write(list(batches), [left[0] if left else work.plan(version)])
        while left and Position.end(left[0].version) <= work.through:
            await writer.close_version(left.popleft())
        if work.plans and not left:
            await writer.commit()
        else:
            await writer.commit_at(work.through, left[0] if left else work.plan(work.through.version))


async def _check_table(work: ShardWork, table: TableLog) -> None:
    """Raise `TableReplaced` if another table is in the place of that of `work`: the driver may have been frozen.

    Whoever goes on with the new table fences those who have begun before. Those who begin later see it here.
    """
    table_id, begin = await table.table_id(), work.begin
    if work.table_id != table_id and work.table_id not in await table.ids(begin.version):
        raise TableReplaced(table.uri, begin.version + begin.closes_version, work.table_id, table_id)


async def _is_finished(settings: PipelineSettings, name: str, end: Position, patience_s: float) -> bool:
    """Wait while the shard `name` advances. Return whether it has reached `end`.

    `patience_s`: how long it must stand still. Raises `SinkFenced` if it is no longer a shard of the pipeline.
    """
    table = settings.open_table()
    seen: Position | None = None
    deadline = anyio.current_time() + patience_s
    async with open_sink(partial(make_sink, settings)) as sink:
        while anyio.current_time() < deadline:
            try:
                progress = await find_progress(name, table, await table.table_id(), sink)
                await LayoutSink(sink, settings.name, Division.of(settings, sink)).check()
            except TailerError as error:
                if not may_pass(error):
                    raise
                _log.debug("%s: %s", name, error)
            else:
                if progress is not None and progress.position >= end:
                    return True
                if progress is not None and progress.position != seen:
                    seen, deadline = progress.position, anyio.current_time() + patience_s
            await anyio.sleep(min(LOOK_S, patience_s / 10))
    return False


def _some(rows: Iterator[ChangeBatch]) -> Sequence[ChangeBatch]:
    """Return the next batches, to be written in one step; none at the end."""
    batches: list[ChangeBatch] = []
    size_bytes = 0
    while len(batches) < _BATCHES and size_bytes < _BATCH_BYTES and (batch := next(rows, None)) is not None:
        batches.append(batch)
        size_bytes += batch.size_bytes
    return batches


def _after(place: Position, batches: Iterator[ChangeBatch]) -> Iterator[ChangeBatch]:
    """Yield the rows after `place`. Raises `ConfigError` if that is inside of a version that was read in another way.

    By other rules, other rows come before a place (`tailer.changelog.rules`).
    """
    for batch in batches:
        if batch.version == place.version and place.is_inside and batch.task // TASKS != place.task // TASKS:
            reason = f"a part of version {batch.version} was delivered with other rules or columns"
            remedy = (
                "Restore changes, columns, carryovers, computeUpdates, key and rowIds until the query is past that "
                "version. If the table has other columns since, give the query once a new checkpoint folder, a start "
                f"up to that version, and end = {batch.version}; or let the daemon deliver the rest."
            )
            raise ConfigError("carryovers", reason, remedy)
        task, reached = (batch.version, batch.task), (place.version, place.task)
        rest = batch.after(place.row) if task == reached else batch
        if task >= reached and len(rest):
            yield rest
