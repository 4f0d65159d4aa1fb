"""Delivery into a Delta table whose rows executors read and write: only progress passes through the driver.

A range of whole versions is one job and one commit of Spark's Delta writer, with rows and `txn` (invariant 1). The
target's `txn` action holds the position of the pipeline, as for the `delta` sink itself: with the same app_id and the
same meaning, so either can continue where the other stopped. Each range begins at the target's progress (invariant 2),
and the commit takes place only if that is unchanged (`tailer.sink.Appendable`): of two instances one fails with
`SinkFenced`.

The sink does everything but append rows: it reads progress, checks that rows fit, and commits ranges without rows. A
snapshot is also one commit, whose `txn` is its version. A snapshot that the `delta` sink left unfinished has more than
one `txn`, which Spark's writer cannot write: it is finished as it was begun, by a `RowDelivery`.

A range that fails because a version cannot be read, or is refused by the target, stops the pipeline only at that
version: the versions before it are delivered first.
"""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Final

import pyarrow as pa
from anyio import to_thread
from pyspark.sql import SparkSession

from tailer.config.pipelines import PipelineSettings
from tailer.config.tables import open_files
from tailer.engine.port import Engine
from tailer.errors import ConfigError, SinkFenced, SinkUnavailable, TailerError
from tailer.pipeline.delivery import ResumePoint, VersionRange
from tailer.pipeline.limits import Limits
from tailer.pipeline.loop import Pipeline
from tailer.pipeline.policy import OnDataLoss, PlanReport
from tailer.pipeline.polling import Polling
from tailer.pipeline.retention import VacuumWatch
from tailer.pipeline.retry import Retries
from tailer.pipeline.row_delivery import RowDelivery
from tailer.pipeline.status import Committed, PipelineStatus
from tailer.plan import ChangePlan, Position
from tailer.progress.lookup import find_progress
from tailer.sink import Appendable, Progress, Sink, app_id_of
from tailer.spark.write.appends import RangeAppend
from tailer.spark.write.commits import commit_by_spark, commit_without_rows
from tailer.spark.write.delta_session import check_delta
from tailer.spark.write.version_ranges import RANGE_VERSIONS, VersionRanges, fewer_versions, schemas_of, splits_of
from tailer.start import Start
from tailer.stores.wakeup import Wake
from tailer.table_log import TableLog

__all__ = ["AppendDelivery", "AppendSession", "append_pipeline"]

_log = logging.getLogger(__name__)


def append_pipeline(
    settings: PipelineSettings,
    table: TableLog,
    sink: Sink,
    session: Callable[[], SparkSession],
    engine: Engine,
    wake: Wake,
    limits: Limits | None = None,
    until: Start | None = None,
    range_versions: int = RANGE_VERSIONS,
    status: PipelineStatus | None = None,
) -> Pipeline:
    """Make the pipeline for `settings` whose `write` is `executors`, into `sink`, which must be `Appendable`.

    `session`: returns a session with Delta (`tailer.spark.write.delta_session`), called in a worker thread. `engine`:
    the engine of the driver's own pipeline. `until`: the last version to deliver; None: continue until `stop`.
    `range_versions`: how many may share a commit. Raises `ConfigError` for another sink, and for a policy that
    executors cannot follow.
    """
    name, policy = settings.name, settings.policy
    if policy.on_data_loss is not OnDataLoss.FAIL:
        reason = f"is {policy.on_data_loss}, and only the driver can announce a gap"
        raise ConfigError(f"{name}.on_data_loss", reason, 'Leave it out, or set write = "driver".')
    if not isinstance(sink, Appendable):
        reason = f"is a {settings.sink_kind} sink, to which Spark's Delta writer cannot append"
        raise ConfigError(f"{name}.sink", reason, 'Set write = "driver".')
    limits = limits or settings.limits
    retries = Retries(name, limits.retry_for_s, status or PipelineStatus(name, counts_rows=False))
    rows = RowDelivery(name, table, sink, engine, policy, limits, retries)
    delivery = AppendDelivery(settings, table, sink, session, rows, limits, range_versions, retries)
    polling, watch = Polling.of(limits, wake), VacuumWatch(name)
    return Pipeline(name, table, delivery, wake, settings.start, until, policy, polling, retries, watch)


class AppendDelivery:
    """See `append_pipeline`. `rows`: the driver's delivery into the same sink; `retries`: of the pipeline."""

    def __init__(
        self,
        settings: PipelineSettings,
        table: TableLog,
        sink: Appendable,
        session: Callable[[], SparkSession],
        rows: RowDelivery,
        limits: Limits,
        range_versions: int,
        retries: Retries,
    ) -> None:
        self.settings: Final = settings
        self.table: Final = table
        self.sink: Final = sink
        self.rows: Final = rows
        self.limits: Final = limits
        self.retries: Final = retries
        self.report: Final = PlanReport(settings.name, settings.policy.row_ids)
        self.most_versions = range_versions
        self._open_session = session
        self._checked: SparkSession | None = None

    @asynccontextmanager
    async def session(self, table_id: str) -> AsyncIterator["AppendSession"]:
        """See `Delivery.session`."""
        self._checked = spark = await to_thread.run_sync(self._ready)
        progress = await find_progress(self.settings.name, self.table, table_id, self.sink)
        whole = progress is not None and progress.position.closes_version
        if progress is not None and whole and not await self.sink.has_delivered(self.settings.name):
            # Spark's first commit does not record it.
            await self.sink.reset(progress)
        yield AppendSession(self, spark, table_id, progress)

    def _ready(self) -> SparkSession:
        spark = self._open_session()
        if spark is not self._checked:
            check_delta(spark)
        return spark


class AppendSession:
    """A session of `delivery` in `spark`, after `progress`; the table is now `latest_id`."""

    announces_columns: Final = False

    def __init__(
        self, delivery: AppendDelivery, spark: SparkSession, latest_id: str, progress: Progress | None
    ) -> None:
        self._delivery = delivery
        self._name = delivery.settings.name
        self._policy = delivery.settings.policy
        self._table = delivery.table
        self._spark = spark
        self._latest_id = latest_id
        self._ranges: VersionRanges | None = None
        self._under_way: VersionRange | None = None
        self.sink = delivery.sink
        self.orders = None
        self.resume = None if progress is None else ResumePoint.following(progress.position)
        self.table_id = None if progress is None else progress.app_id.removeprefix(f"{self._name}/")

    @property
    def app_id(self) -> str | None:
        """See `Session.app_id`."""
        return None if self.table_id is None else app_id_of(self._name, self.table_id)

    async def record_start(self, plan: ChangePlan) -> None:
        """See `Session.record_start`."""
        await self._close(plan)
        self.table_id = plan.table_id

    async def snapshot(self, version: int, after: Position | None) -> bool:
        """See `Session.snapshot`. It cannot be stopped, but for one that the driver has begun."""
        if self.resume is not None:
            return await self._finish_snapshot(version)
        async with aclosing(self._table.snapshot_plans(version)) as pages:
            versions = VersionRange.of([self._policy.shape(page) async for page in pages])
        await self._append_range(versions)
        return True

    def begin(self, version: int, schema: pa.Schema | None, last: int | None) -> None:
        """See `Session.begin`."""
        self._ranges = VersionRanges(self._table, self._policy, schema, last)

    async def plan(self) -> VersionRange | None:
        """See `Session.plan`."""
        assert self._ranges is not None, "begun before"
        return await self._ranges.next(self._delivery.most_versions)

    async def deliver(self, versions: VersionRange, after: Position | None) -> None:
        """See `Session.deliver`. The target has whole versions only."""
        await self._append_range(versions)

    async def commit(self) -> None:
        """See `Session.commit`. Nothing is ever open."""

    def narrow(self, error: TailerError) -> bool:
        """See `Session.narrow`: the next range ends before the version that failed."""
        fewer = fewer_versions(self._under_way, error)
        if fewer == 0 or self._delivery.retries.is_stopping():
            return False
        _log.warning("%s: %s; continuing with fewer versions at once", self._name, error)
        self._delivery.most_versions = fewer
        return True

    async def salvage(self, error: TailerError) -> bool:
        """See `Session.salvage`. Nothing is ever open."""
        return True

    async def _finish_snapshot(self, version: int) -> bool:
        """Deliver the rest of a snapshot that takes several commits, after the progress that their writer has read."""
        async with self._delivery.rows.session(self._latest_id) as rows:
            at = rows.resume
            if at is None or not at.snapshot or at.version != version:
                raise SinkUnavailable(self.sink.name, f"another instance finished the snapshot of version {version}")
            try:
                finished = await rows.snapshot(version, at.after)
            except TailerError as error:
                await rows.salvage(error)
                raise
            await rows.commit()
            self.table_id = rows.table_id
        return finished

    async def _append_range(self, versions: VersionRange) -> None:
        """Deliver the range in one commit."""
        self._under_way = versions
        last = versions.plans[-1]
        app_id = app_id_of(self._name, last.table_id)
        if self.table_id not in (None, last.table_id):
            await self._turn_to(app_id, versions.first)
        for plan in versions.plans:
            self._delivery.report.note(plan)
        if any(plan.tasks for plan in versions.plans):
            append = await self.sink.appending(app_id, schemas_of(versions))
            settings = self._delivery.settings
            files = open_files(settings.stores)
            splits = await to_thread.run_sync(splits_of, versions, settings.pairing, files)
            write = RangeAppend(self._spark, self.sink.name, append, splits, versions.last)
            await self._table.confirm(None)  # the target has whole versions only
            await commit_by_spark(write, self.sink, Position.end(versions.last))
        else:
            await self._close(last)
        _log.debug("%s: delivered up to version %d", self._name, versions.last)
        if self.table_id is None and not await self.sink.has_delivered(self._name):
            await self.sink.reset(Progress(app_id, Position.end(versions.last)))
        self.table_id = last.table_id
        self._under_way = None
        self._delivery.retries.note_commit(Committed(Position.end(versions.last), {}, first=versions.first))

    async def _turn_to(self, app_id: str, version: int) -> None:
        """Continue under another `app_id` from `version` on."""
        found = await self.sink.progress(app_id)
        if found is not None and found.position.version >= version:
            raise SinkFenced(self.sink.name, f"{app_id} is at version {found.position.version} already")
        if found is not None:
            await self.sink.reset(Progress(app_id, Position.end(version - 1)))
        _log.info("%s: version %d replaces the table; continuing as %s", self._name, version, app_id)

    async def _close(self, plan: ChangePlan) -> None:
        """Commit without rows that everything up to the version of `plan` is delivered."""
        app_id = app_id_of(self._name, plan.table_id)
        await commit_without_rows(self.sink, app_id, plan, self._delivery.limits.commit_deadline_s)
