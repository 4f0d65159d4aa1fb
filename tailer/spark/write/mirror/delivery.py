"""Delivery into a mirror in Delta whose rows executors read and merge: only progress passes through the driver.

A range of whole versions is one job and one commit: a MERGE by Spark, with its `txn` (invariant 1). That is the `txn`
of the sink's own commits, so the driver and executors continue where the other stopped. Each range begins at the
target's progress (invariant 2), and the commit takes place only if that is unchanged, and nobody else has changed the
table since (`tailer.sink.Mergeable`).

What a MERGE of Spark cannot do, the driver does in the sink's own transactions, by a session of rows
(`tailer.pipeline.row_delivery`): the first commit, snapshots, versions without rows, versions that change columns, and
whatever else the sink reserves for itself. Such a session begins with the sink's progress, and the table's log is
sought again after it.

A range that fails because a version cannot be read, or is refused by the target, stops the pipeline only at that
version: the versions before it are delivered first.
"""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import pyarrow as pa
from anyio import to_thread
from pyspark.sql import SparkSession

from tailer.config.pipelines import PipelineSettings
from tailer.config.tables import open_files
from tailer.engine.port import Engine
from tailer.errors import ConfigError, TailerError, VersionAhead
from tailer.events import Gap
from tailer.pipeline.backfill.order import BackfillOrder, Backfills
from tailer.pipeline.delivery import ResumePoint, TakesOrders, VersionRange
from tailer.pipeline.limits import Limits
from tailer.pipeline.loop import Pipeline
from tailer.pipeline.policy import OnDataLoss, PlanReport
from tailer.pipeline.polling import Polling
from tailer.pipeline.retention import VacuumWatch
from tailer.pipeline.retry import Retries
from tailer.pipeline.row_delivery import RowDelivery, RowSession
from tailer.pipeline.status import Committed, PipelineStatus
from tailer.plan import ChangePlan, Position, output_schema
from tailer.progress.lookup import find_progress
from tailer.sink import Merge, Mergeable, Sink, app_id_of
from tailer.spark.write.commits import commit_by_spark, commit_without_rows
from tailer.spark.write.delta_session import check_delta
from tailer.spark.write.mirror.range_merge import RangeMerge
from tailer.spark.write.version_ranges import RANGE_VERSIONS, VersionRanges, changes_of, fewer_versions, splits_of
from tailer.start import Start
from tailer.stores.wakeup import Wake
from tailer.table_log import TableLog

__all__ = ["MergeDelivery", "MergeSession", "merge_pipeline"]

_log = logging.getLogger(__name__)


def merge_pipeline(
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
    """Make the pipeline for `settings` whose `write` is `executors`, into `sink`, which must be `Mergeable`.

    The parameters are those of `tailer.spark.write.append_delivery.append_pipeline`, and so is what is raised.
    """
    name, policy = settings.name, settings.policy
    if policy.on_data_loss is not OnDataLoss.FAIL:
        reason = f"is {policy.on_data_loss}, and only the driver can announce a gap"
        raise ConfigError(f"{name}.on_data_loss", reason, 'Leave it out, or set write = "driver".')
    if not isinstance(sink, Mergeable):
        reason = f"is a {settings.sink_kind} sink, into which Spark cannot merge"
        raise ConfigError(f"{name}.sink", reason, 'Set write = "driver".')
    limits = limits or settings.limits
    retries = Retries(name, limits.retry_for_s, status or PipelineStatus(name, counts_rows=False))
    rows = RowDelivery(name, table, sink, engine, policy, limits, retries)
    delivery = MergeDelivery(settings, table, sink, session, rows, range_versions, retries)
    polling, watch = Polling.of(limits, wake), VacuumWatch(name)
    return Pipeline(name, table, delivery, wake, settings.start, until, policy, polling, retries, watch)


class MergeDelivery:
    """See `merge_pipeline`. `rows`: the driver's delivery into the same sink; `retries`: of the pipeline."""

    def __init__(
        self,
        settings: PipelineSettings,
        table: TableLog,
        sink: Mergeable,
        session: Callable[[], SparkSession],
        rows: RowDelivery,
        range_versions: int,
        retries: Retries,
    ) -> None:
        self.settings: Final = settings
        self.table: Final = table
        self.sink: Final = sink
        self.rows: Final = rows
        self.retries: Final = retries
        self.report: Final = PlanReport(settings.name, settings.policy.row_ids)
        self.most_versions = range_versions
        self._open_session = session
        self._checked: SparkSession | None = None

    @asynccontextmanager
    async def session(self, table_id: str) -> AsyncIterator["MergeSession"]:
        """See `Delivery.session`."""
        self._checked = spark = await to_thread.run_sync(self._ready)
        progress = await find_progress(self.settings.name, self.table, table_id, self.sink)
        session = MergeSession(self, spark, table_id)
        if progress is not None:
            session.resume = ResumePoint.following(progress.position)
            session.table_id = progress.app_id.removeprefix(f"{self.settings.name}/")
        yield session

    def _ready(self) -> SparkSession:
        spark = self._open_session()
        if spark is not self._checked:
            check_delta(spark)
        return spark


class MergeSession:
    """A session of `delivery` in `spark`; the table is now `latest_id`. `resume`, `table_id`: see `Session`."""

    announces_columns: Final = True

    def __init__(self, delivery: MergeDelivery, spark: SparkSession, latest_id: str) -> None:
        self._delivery = delivery
        self._name = delivery.settings.name
        self._table = delivery.table
        self._spark = spark
        self._latest_id = latest_id
        self._schema: pa.Schema | None = None
        self._last: int | None = None
        self._ranges: VersionRanges | None = None
        self._under_way: VersionRange | None = None
        self._is_narrowed = False
        self._nothing_lost = True
        self.sink = delivery.sink
        self.resume: ResumePoint | None = None
        self.table_id: str | None = None

    @property
    def app_id(self) -> str | None:
        """See `Session.app_id`."""
        return None if self.table_id is None else app_id_of(self._name, self.table_id)

    @property
    def orders(self) -> TakesOrders:
        """See `Session.orders`. The driver carries them out."""
        return self

    async def record_start(self, plan: ChangePlan) -> None:
        """See `Session.record_start`."""
        async with self._driver() as rows:
            await rows.record_start(plan)

    async def snapshot(self, version: int, after: Position | None) -> bool:
        """See `Session.snapshot`."""
        async with self._driver() as rows:
            return await rows.snapshot(version, after)

    def begin(self, version: int, schema: pa.Schema | None, last: int | None) -> None:
        """See `Session.begin`."""
        self._schema, self._last = self._schema if schema is None else schema, last
        policy = self._delivery.settings.policy
        self._ranges = VersionRanges(self._table, policy, self._schema, last, changes_alone=True)

    async def plan(self) -> VersionRange | None:
        """See `Session.plan`."""
        assert self._ranges is not None, "begun before"
        # The driver begins a mirror, and executors go on with it.
        return await self._ranges.next(1 if self.table_id is None else self._delivery.most_versions)

    async def deliver(self, versions: VersionRange, after: Position | None) -> None:
        """See `Session.deliver`. The target has whole versions only."""
        self._under_way = versions
        merge = await self._prepare(versions)
        if merge is None:
            await self._deliver_by_driver(versions)
        else:
            await self._merge(versions, merge)
        self._under_way = None

    async def commit(self) -> None:
        """See `Session.commit`. Nothing is ever open."""

    def narrow(self, error: TailerError) -> bool:
        """See `Session.narrow`: the next range ends before the version that failed."""
        if self._is_narrowed:
            return True
        fewer = fewer_versions(self._under_way, error)
        if fewer == 0 or self._delivery.retries.is_stopping():
            return False
        _log.warning("%s: %s; continuing with fewer versions at once", self._name, error)
        self._delivery.most_versions = fewer
        return True

    async def salvage(self, error: TailerError) -> bool:
        """See `Session.salvage`. The driver has committed what it could."""
        return self._nothing_lost

    async def skip(self, gap: Gap, schema: pa.Schema) -> None:
        """See `TakesOrders.skip`."""
        async with self._driver() as rows:
            await rows.skip(gap, schema)
        self._schema = schema

    async def resnapshot(self, gap: Gap, page: ChangePlan, rest: AsyncIterator[ChangePlan]) -> None:
        """See `TakesOrders.resnapshot`."""
        async with self._driver() as rows:
            await rows.resnapshot(gap, page, rest)
        self._schema = self._delivery.settings.policy.shape(page).schema

    async def backfill(self, backfills: Backfills, order: BackfillOrder) -> bool:
        """See `TakesOrders.backfill`."""
        async with self._driver() as rows:
            return await rows.backfill(backfills, order)

    async def _prepare(self, versions: VersionRange) -> Merge | None:
        """Prepare the MERGE of `versions`. None: they are the driver's."""
        last = versions.plans[-1]
        if self._schema is None or last.table_id != self.table_id or changes_of(self._schema, versions.plans[0]):
            return None
        return await self.sink.merging(app_id_of(self._name, last.table_id), output_schema(last.schema))

    async def _merge(self, versions: VersionRange, merge: Merge) -> None:
        """Deliver `versions`, which leave the columns as they are, in one commit."""
        last, settings = versions.plans[-1], self._delivery.settings
        for plan in versions.plans:
            self._delivery.report.note(plan)
        await self._table.confirm(None)  # the target has whole versions only
        if any(plan.tasks for plan in versions.plans):
            splits = await to_thread.run_sync(splits_of, versions, settings.pairing, open_files(settings.stores))
            write = RangeMerge(self._spark, self.sink.name, merge, splits, versions.last)
            await commit_by_spark(write, self.sink, Position.end(versions.last))
        else:
            await commit_without_rows(self.sink, merge.app_id, last, self._delivery.rows.limits.commit_deadline_s)
        _log.debug("%s: delivered up to version %d", self._name, versions.last)
        self._schema = last.schema
        self._delivery.retries.note_commit(Committed(Position.end(versions.last), {}, first=versions.first))

    async def _deliver_by_driver(self, versions: VersionRange) -> None:
        """Deliver `versions` through this process, which plans them again, and continue after them."""
        await self._table.seek(versions.first)
        async with self._driver() as rows:
            rows.begin(versions.first, self._schema, versions.last)
            due = versions.first
            while due <= versions.last and not self._delivery.retries.is_stopping():
                found = await rows.plan()
                if found is None:
                    raise VersionAhead(self._table.uri, due, due - 1)
                await rows.deliver(found, None)
                due = found.last + 1
        await self._table.seek(versions.last + 1)
        self.begin(versions.last + 1, versions.plans[-1].schema, self._last)

    @asynccontextmanager
    async def _driver(self) -> AsyncIterator[RowSession]:
        """Open a session of the driver, after the sink's progress, and commit what it delivers."""
        async with self._delivery.rows.session(self._latest_id) as rows:
            try:
                yield rows
                await rows.commit()
            except TailerError as error:
                self._is_narrowed = rows.narrow(error)
                self._nothing_lost = not self._is_narrowed and await rows.salvage(error)
                raise
            self.table_id = rows.table_id
