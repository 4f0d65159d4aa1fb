"""Delivery by the driver: an engine runs the plan of each version, and the rows go through a `SinkWriter`.

While there is a backlog, rows of consecutive versions share a transaction, within `Limits`. A version larger than the
limits is split if the sink can store a position inside a version, and is delivered whole otherwise. A pipeline that has
caught up commits at once: batching never adds latency.

If the sink refuses a transaction of several versions, the next session delivers one version at a time, so that the
versions before the refused one are committed.
"""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

import pyarrow as pa

from tailer.engine.background import background
from tailer.engine.look_ahead import LookAhead
from tailer.engine.port import Engine
from tailer.errors import ChangeError, ConfigError, LogError, SinkRejected, StorageError, TailerError
from tailer.events import Gap
from tailer.pipeline.delivery import ResumePoint, VersionRange
from tailer.pipeline.limits import Limits
from tailer.pipeline.loop import Pipeline
from tailer.pipeline.policy import Policy
from tailer.pipeline.polling import Polling
from tailer.pipeline.retention import VacuumWatch
from tailer.pipeline.retry import Retries
from tailer.pipeline.sink_writer import SinkWriter
from tailer.pipeline.status import PipelineStatus
from tailer.pipeline.version_writer import VersionWriter
from tailer.plan import ChangePlan, Position
from tailer.progress.lookup import app_id_of, find_progress
from tailer.sink import Sink
from tailer.start import Start
from tailer.stores.wakeup import Wake
from tailer.table_log import TableLog

__all__ = ["RowDelivery", "RowSession", "row_pipeline"]

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
    retries = Retries(name, limits.retry_for_s, status)
    delivery = RowDelivery(name, table, sink, engine, policy, limits, retries)
    polling = Polling.of(limits, wake)
    return Pipeline(name, table, delivery, wake, start, until, policy, polling, retries, vacuum_watch)


class RowDelivery:
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
        notes = retries.is_stopping, retries.status.note_step
        self.versions: Final = VersionWriter(name, table, engine, policy, sink.splits_snapshots, *notes)
        self._limits = limits.within(sink.demands)
        self._retries = retries

    @asynccontextmanager
    async def session(self, table_id: str) -> AsyncIterator["RowSession"]:
        """See `Delivery.session`."""
        progress = await find_progress(self.name, self.table, table_id, self.sink)
        resume = None if progress is None else ResumePoint.following(progress.position)
        self._retries.status.note_resume(None if progress is None else progress.position)
        made = self.table.confirm, self._retries.note_commit
        async with background() as group, SinkWriter(self.name, self.sink, progress, self._limits, *made) as writer:
            ahead = LookAhead(self.table, self.engine, self.policy.shape, group)
            yield RowSession(self, writer, resume, ahead)

    def narrow(self) -> bool:
        """Give each version a transaction of its own from now on. Return False if that is so already."""
        if self._limits.max_versions == 1:
            return False
        self._limits = replace(self._limits, max_versions=1)
        return True


class RowSession:
    """A session of `delivery`. It delivers one version at a time, or small ones together.

    `writer` joins them into transactions.
    """

    def __init__(self, delivery: RowDelivery, writer: SinkWriter, resume: ResumePoint | None, ahead: LookAhead) -> None:
        self.sink = delivery.sink
        self.resume = resume
        self._delivery = delivery
        self._versions = delivery.versions
        self._shape = delivery.policy.shape
        self._writer = writer
        self._ahead = ahead

    @property
    def table_id(self) -> str | None:
        """See `Session.table_id`."""
        return self._writer.table_id

    @property
    def app_id(self) -> str | None:
        """See `Session.app_id`."""
        return None if self.table_id is None else app_id_of(self._delivery.name, self.table_id)

    async def record_start(self, plan: ChangePlan) -> None:
        """See `Session.record_start`."""
        await self._writer.close_version(plan)
        await self._writer.commit()

    async def snapshot(self, version: int, after: Position | None) -> bool:
        """See `Session.snapshot`."""
        return await self._versions.snapshot(self._writer, version, after)

    def begin(self, version: int, schema: pa.Schema | None, last: int | None) -> None:
        """See `Session.begin`."""
        self._ahead.begin(last)
        if schema is not None:
            self._writer.schema = schema

    async def plan(self) -> VersionRange | None:
        """See `Session.plan`."""
        plans = await self._ahead.next_plans()
        return VersionRange.of(plans) if plans else None

    async def deliver(self, versions: VersionRange, after: Position | None) -> None:
        """See `Session.deliver`."""
        if len(versions.plans) > 1:
            await self._versions.together(self._writer, [self._shape(plan) for plan in versions.plans])
            return
        plan, ahead = await self._ahead.take(versions.plans[0])
        await self._versions.version(self._writer, plan, after, ahead)

    async def commit(self) -> None:
        """See `Session.commit`."""
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
        """See `AnnouncesGaps.skip`."""
        await self._writer.skip(gap, schema, at_once=True)

    async def resnapshot(self, gap: Gap, page: ChangePlan, rest: AsyncIterator[ChangePlan]) -> None:
        """See `AnnouncesGaps.resnapshot`."""
        plan = self._shape(page)
        self._versions.check_schema(self._writer.schema, plan)
        await self._writer.skip(gap, plan.schema, at_once=False)
        await self._versions.pages(self._writer, page, rest, None)
