"""Delivery by the driver: an engine runs the plan of each version, and the rows go through a `SinkWriter`.

While there is a backlog, rows of consecutive versions share a transaction, within `Limits`. A version larger than the
limits is split if the sink can store a position inside a version, and is delivered whole otherwise. A pipeline that has
caught up commits at once: batching never adds latency.

If the sink refuses a transaction of several versions, the next session delivers one version at a time, so that the
versions before the refused one are committed.
"""

import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Final

import pyarrow as pa
from anyio.abc import TaskGroup
from typing_extensions import override

from tailer.engine import Engine, background
from tailer.engine.look_ahead import LookAhead, PrefetchedBatches
from tailer.errors import ChangeError, ConfigError, LogError, SchemaChanged, SinkRejected, StorageError, TailerError
from tailer.events import ChangeBatch, Gap
from tailer.pipeline.backfill.command import BackfillCommand, Backfills
from tailer.pipeline.backfill.delivery import BackfillDelivery
from tailer.pipeline.delivery import Delivery, ResumePoint, Session, TakesCommands, VersionRange
from tailer.pipeline.loop import Pipeline
from tailer.pipeline.policy import Limits, OnSchemaChange, PlanReport, Policy
from tailer.pipeline.polling import Polling
from tailer.pipeline.retention import VacuumWatch
from tailer.pipeline.retry import Retries
from tailer.pipeline.sink_writer import SinkWriter
from tailer.pipeline.status import PipelineStatus
from tailer.plan import TASKS, ChangePlan, Position
from tailer.progress.lookup import find_progress
from tailer.schema.changes import describe_changes
from tailer.sink import Sink, app_id_of
from tailer.start import Start
from tailer.stores.wakeup import Wake
from tailer.table_log import TableLog

__all__ = ["row_pipeline"]

_log = logging.getLogger(__name__)


def row_pipeline(
    name: str,
    table: TableLog,
    sink: Sink,
    engine: Engine,
    wake: Wake,
    start: Start,
    until: Start | None = None,
    policy: Policy | None = None,
    limits: Limits | None = None,
    vacuum_watch: VacuumWatch | None = None,
    status: PipelineStatus | None = None,
) -> Pipeline:
    """Make a pipeline from `table` to `sink` whose rows come through this process. The rest as in `Pipeline`.

    Raises `ConfigError` if `sink` identifies rows by a key that `engine` does not have.
    """
    policy, limits = policy or Policy(), limits or Limits()
    retries = Retries(name, limits.retry_for_s, status, limits.first_answer_s)
    delivery = RowDelivery(name, table, sink, engine, policy, limits, retries)
    polling = Polling.of(limits, wake)
    return Pipeline(name, table, delivery, wake, start, until, policy, polling, retries, vacuum_watch)


class RowDelivery(Delivery):
    """See the module. `retries`: of the pipeline `name`."""

    def __init__(
        self,
        name: str,
        table: TableLog,
        sink: Sink,
        engine: Engine,
        policy: Policy,
        limits: Limits,
        retries: Retries,
    ) -> None:
        if sink.demands.key not in ((), engine.key):
            reason = f"{sink.name} identifies rows by {', '.join(sink.demands.key)}, and the engine does not"
            raise ConfigError(name, reason, "Give a ChangelogEngine with compute_updates, null_keys and that key.")
        self.name: Final = name
        self.table: Final = table
        self.sink: Final = sink
        self.engine: Final = engine
        self.policy: Final = policy
        self.retries: Final = retries
        self.report: Final = PlanReport(name, policy.row_ids)
        self.limits = limits.within(sink.demands)

    @asynccontextmanager
    @override
    async def session(self, table_id: str) -> AsyncIterator["RowSession"]:
        progress = await find_progress(self.name, self.table, table_id, self.sink)
        resume = None if progress is None else ResumePoint.following(progress.position)
        self.retries.status.note_resume(None if progress is None else progress.position)
        confirm, committed, types = self.table.confirm, self.retries.note_commit, self.policy.types
        writer = SinkWriter(self.name, self.sink, progress, self.limits, confirm, committed, types)
        async with background() as group, writer:
            try:
                yield RowSession(self, writer, resume, group)
            finally:
                self.engine.forget()

    def narrow(self) -> bool:
        """Give each version a transaction of its own from now on. Return False if that is so already."""
        if self.limits.max_versions == 1:
            return False
        self.limits = replace(self.limits, max_versions=1)
        return True


class RowSession(TakesCommands, Session):
    """A session of `delivery`. It delivers one version at a time, or small ones together.

    `writer` joins them into transactions. Rows are read in `group`.
    """

    announces_columns: Final = True

    def __init__(self, delivery: RowDelivery, writer: SinkWriter, resume: ResumePoint | None, group: TaskGroup) -> None:
        self.sink = delivery.sink
        self.resume = resume
        self._delivery = delivery
        self._engine = delivery.engine
        self._shape = delivery.policy.shape
        self._report = delivery.report
        self._is_stopping = delivery.retries.is_stopping
        self._note_step = delivery.retries.status.note_step  # for all batches: one version may take long
        self._writer = writer
        self._group = group
        self._ahead = LookAhead(delivery.table, delivery.engine, self._shape, group)

    @property
    @override
    def table_id(self) -> str | None:
        return self._writer.table_id

    @property
    @override
    def app_id(self) -> str | None:
        return None if self.table_id is None else app_id_of(self._delivery.name, self.table_id)

    @property
    @override
    def commands(self) -> TakesCommands:
        return self

    @override
    async def record_start(self, plan: ChangePlan) -> None:
        await self._writer.close_version(plan)
        await self._writer.commit()

    @override
    async def snapshot(self, version: int, after: Position | None) -> bool:
        async with aclosing(self._delivery.table.snapshot_plans(version)) as pages:
            return await self._deliver_pages(self._shape(await anext(pages)), pages, after)

    @override
    def begin(self, version: int, schema: pa.Schema | None, last: int | None) -> None:
        self._ahead.begin(last)
        if schema is not None:
            self._writer.schema = schema

    @override
    async def plan(self) -> VersionRange | None:
        plans = await self._ahead.next_plans()
        return VersionRange.of(plans) if plans else None

    @override
    async def deliver(self, versions: VersionRange, after: Position | None) -> None:
        """May end after any of the versions once the pipeline is stopping."""
        plans, rows = await self._ahead.read(versions.plans, after)
        first, left = plans[0], plans
        try:
            if after is not None and after.version == first.version:
                begun = [task for task in first.tasks if task.index % TASKS <= after.task % TASKS]
                if any(task.schema is first.schema for task in begun):
                    self._writer.schema = first.schema  # announced with rows that were delivered already
            self._check_schema(first)
            for plan in plans:
                self._note_plan(plan)
            while batches := await self._next(rows):
                rest, left = await self._writer.write(batches, left, self._is_stopping)
                if rest:
                    return
            for plan in plans[len(plans) - len(left) : rows.whole]:
                await self._writer.close_version(plan)
                if self._is_stopping():
                    return
            if rows.error is not None:
                raise rows.error
        finally:
            rows.stop()

    @override
    async def commit(self) -> None:
        await self._writer.commit()

    def narrow(self, error: TailerError) -> bool:
        """See `Session.narrow`: a refused transaction is divided into its versions."""
        if not (isinstance(error, SinkRejected) and self._writer.holds_versions and self._delivery.narrow()):
            return False
        _log.warning("%s: %s; continuing one version at a time up to that one", self._delivery.name, error)
        return True

    async def salvage(self, error: TailerError) -> bool:
        """See `Session.salvage`. After an error of the sink nothing can be committed."""
        if isinstance(error, LogError | ChangeError | ConfigError | StorageError):
            return await self._writer.salvage()
        return False

    async def skip(self, gap: Gap, schema: pa.Schema) -> None:
        """See `TakesCommands.skip`. Raises `SinkRejected` before a mirror is asked whether it has the columns."""
        if self.sink.demands.whole:
            reason = f"changes up to version {gap.version} are lost, and without them it would not be a mirror"
            raise SinkRejected(self.sink.name, reason, "`tailer resnapshot PIPELINE` makes it one again.")
        await self._writer.skip(gap, schema, at_once=True)

    @override
    async def resnapshot(self, gap: Gap, page: ChangePlan, rest: AsyncIterator[ChangePlan]) -> None:
        plan = self._shape(page)
        self._check_schema(plan)
        await self._writer.skip(gap, plan.schema, at_once=False)
        await self._deliver_pages(plan, rest, None)

    @override
    async def backfill(self, backfills: Backfills, command: BackfillCommand) -> bool:
        own, progress = self._delivery, self._writer.progress
        parts = own.name, own.table, own.sink, own.engine, own.policy, own.limits, own.retries
        return await BackfillDelivery(*parts, progress, self._group).deliver(backfills, command)

    async def _deliver_pages(self, plan: ChangePlan, rest: AsyncIterator[ChangePlan], after: Position | None) -> bool:
        """Deliver the rows after `after` of a snapshot: its page `plan`, then the `rest`. Return False if stopped."""
        while True:
            rows = PrefetchedBatches(self._group, self._engine, [plan], after)
            self._note_plan(plan)
            try:
                while batches := await self._next(rows):
                    if self.sink.splits_snapshots and self._is_stopping():
                        return False
                    await self._writer.write(batches, [plan])
                if rows.error is not None:
                    raise rows.error
            finally:
                rows.stop()
            page = await anext(rest, None)
            if page is None:
                await self._writer.close_version(plan)
                return True
            plan = self._shape(page)

    def _note_plan(self, plan: ChangePlan) -> None:
        self._report.note(plan)
        self._delivery.retries.status.on_plan(plan)

    async def _next(self, rows: PrefetchedBatches) -> Sequence[ChangeBatch]:
        """Return the next batches, none at the end, and note how long they took."""
        asked_s = time.monotonic()
        batches = await self._writer.next_batches(rows)
        self._delivery.retries.status.backlog.read_s += time.monotonic() - asked_s
        self._note_step()
        return batches

    def _check_schema(self, plan: ChangePlan) -> None:
        """Raise `SchemaChanged` if `plan` has other columns than were delivered last and the policy forbids that."""
        if self._delivery.policy.on_schema_change is OnSchemaChange.FAIL:
            before = self._writer.schema
            schemas = {id(schema): schema for schema in (*(task.schema for task in plan.tasks), plan.schema)}
            for schema in schemas.values():
                before = schema if before is None else before
                if changes := describe_changes(before, schema):
                    raise SchemaChanged(plan.table, plan.version, "; ".join(changes))
