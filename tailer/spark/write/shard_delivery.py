"""Delivery in shards, each of which an executor writes: the driver plans, and waits until all shards have a range.

A range of whole versions is one job. Executors read its files, each file once, and Spark brings the rows to their
shards (`tailer.spark.write.exchange`). All executors compare a large version that must be compared. The sink knows what
was delivered, shard by shard, whatever happens to tasks, executors and the driver (invariant 2). A range begins after
the least advanced shard, and each shard leaves out what it has. After a range all shards are level.

A range ends before a version that changes the columns, and where its files make up `RANGE_BYTES` for each shard; so
does a part of a snapshot. The pipeline can be stopped between ranges, and no shard gets further ahead of the others
than one range. Each shard announces changes of columns for itself, and checks which table it follows.

A range that fails because a version cannot be read, or is refused by the sink, stops the pipeline only at that version:
the versions before it are delivered first.
"""

import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Final

import pyarrow as pa
from anyio import to_thread
from typing_extensions import override

from tailer.changelog.engine import ChangelogReport
from tailer.changelog.rules import PairingRules, check_key, check_reading, concerns, renumbered
from tailer.config.pipelines import PipelineSettings
from tailer.config.tables import open_files
from tailer.errors import ConfigError, TailerError
from tailer.pipeline.delivery import Delivery, ResumePoint, VersionRange
from tailer.pipeline.loop import Pipeline
from tailer.pipeline.policy import Limits, OnDataLoss, PlanReport
from tailer.pipeline.polling import Polling
from tailer.pipeline.retention import VacuumWatch
from tailer.pipeline.retry import Retries
from tailer.pipeline.status import Committed, PipelineStatus
from tailer.plan import END, ChangePlan, Position
from tailer.shards.assignment import check_shard_key
from tailer.shards.resharding import Division, Layout, layout_id
from tailer.shards.worker import ShardWork, make_sink, worst_error
from tailer.sink import Sink
from tailer.spark.write.exchange import ShardExchange
from tailer.spark.write.version_ranges import RANGE_VERSIONS, VersionRanges, fewer_versions, splits_of
from tailer.start import Start
from tailer.stores.wakeup import Wake
from tailer.table_log import TableLog

__all__ = ["ShardDelivery", "sharded_pipeline"]

_log = logging.getLogger(__name__)

RANGE_BYTES: Final = 512 * 2**20  # of files, for each shard


def sharded_pipeline(
    settings: PipelineSettings,
    table: TableLog,
    sink: Sink,
    exchange: ShardExchange,
    wake: Wake,
    limits: Limits | None = None,
    until: Start | None = None,
    status: PipelineStatus | None = None,
) -> Pipeline:
    """Make the pipeline of `table`, the table of `settings`, in `settings.shards` shards.

    `sink`: made from `settings`, and closed by the caller; it notices another driver. `exchange`: delivers each range.
    `until`: the last version to deliver; None: continue until `stop`. Raises `ConfigError` for a policy that shards
    cannot follow.
    """
    name, policy = settings.name, settings.policy
    if policy.on_data_loss is not OnDataLoss.FAIL:
        reason = f"is {policy.on_data_loss}, and shards would each continue from another version"
        raise ConfigError(f"{name}.on_data_loss", reason, 'Leave it out, or set write = "driver".')
    limits = limits or settings.limits
    retries = Retries(name, limits.retry_for_s, status)
    delivery = ShardDelivery(settings, table, sink, exchange, retries)
    polling, watch = Polling.of(limits, wake), VacuumWatch(name)
    return Pipeline(name, table, delivery, wake, settings.start, until, policy, polling, retries, watch)


class ShardDelivery(Delivery):
    """Delivery in the shards of `settings`; `retries`: of the pipeline."""

    def __init__(
        self, settings: PipelineSettings, table: TableLog, sink: Sink, exchange: ShardExchange, retries: Retries
    ) -> None:
        self.settings: Final = settings
        self.table: Final = table
        self.sink: Final = sink
        self.exchange: Final = exchange
        self.retries: Final = retries
        self.report: Final = ChangelogReport(settings.name)
        self.plan_report: Final = PlanReport(settings.name, settings.policy.row_ids)
        self.most_versions = RANGE_VERSIONS

    @asynccontextmanager
    @override
    async def session(self, table_id: str) -> AsyncIterator["ShardSession"]:
        """Put the division in force first, with every shard at some position."""
        settings = self.settings
        layout = Layout(settings.name, self.table, self.sink, lambda: make_sink(settings))
        await layout.settle(Division.of(settings, self.sink), settings.start)
        yield ShardSession(self, layout, await layout.places(settings.shards))


class ShardSession:
    """A `Session` of `delivery`: all shards of `layout` continue from their `places`."""

    table_id: Final = None
    announces_columns: Final = True
    commands: Final = None

    def __init__(self, delivery: ShardDelivery, layout: Layout, places: Sequence[Position]) -> None:
        low = min(places)
        first = low.version + low.closes_version
        self.sink = delivery.sink
        self.app_id: str | None = layout_id(delivery.settings.name)
        self.resume: ResumePoint | None = ResumePoint(
            first,
            any(place.in_snapshot for place in places if place.version == first),
            # All shards begin at the same place. Those that have got further were told of all changes since.
            knows_columns=not low.opens_version,
        )
        self._delivery = delivery
        self._settings = delivery.settings
        self._table = delivery.table
        self._layout = layout
        self._places = places
        self._schema: pa.Schema | None = None  # the columns that the sink knows of
        self._ranges: VersionRanges | None = None
        self._under_way: VersionRange | None = None

    async def record_start(self, plan: ChangePlan) -> None:
        """Do nothing: `Layout.settle` has recorded it."""

    async def snapshot(self, version: int, after: Position | None) -> bool:
        """Deliver a snapshot; it may be stopped between its parts."""
        last: ChangePlan | None = None
        async with aclosing(self._table.snapshot_plans(version)) as pages:
            async for page in pages:
                for part in self._parts(self._settings.policy.shape(page)):
                    if self._delivery.retries.is_stopping():
                        return False
                    if last is not None:  # it has a part after it
                        end = Position(last.version, last.tasks[-1].index, END) if last.tasks else min(self._places)
                        if end > min(self._places):
                            await self._deliver(VersionRange.of([last]), end)
                            self._delivery.retries.note_progress()
                    last = part
        assert last is not None, "a snapshot has a page"
        if self._delivery.retries.is_stopping():
            return False
        await self._deliver(VersionRange.of([last]), Position.end(version))
        self._delivery.retries.note_commit(Committed(Position.end(version), {}))
        return True

    def begin(self, version: int, schema: pa.Schema | None, last: int | None) -> None:
        """Begin to divide the versions up to `last`."""
        self._schema = schema
        self._ranges = VersionRanges(self._table, self._settings.policy, schema, last, self._range_bytes)

    async def plan(self) -> VersionRange | None:
        """Plan the next range. Raises if its first version cannot be planned."""
        assert self._ranges is not None, "begun before"
        return await self._ranges.next(self._delivery.most_versions)

    async def deliver(self, versions: VersionRange, after: Position | None) -> None:
        """Run a job that brings all shards to the end of the range.

        Raises the error that stopped one of them, and `SinkFenced` if another instance has claimed the layout.
        """
        self._under_way = versions
        await self._deliver(versions, Position.end(versions.last))
        self._under_way = None
        self._delivery.retries.note_commit(Committed(Position.end(versions.last), {}, first=versions.first))

    async def commit(self) -> None:
        """Do nothing: nothing is open in the driver."""

    def narrow(self, error: TailerError) -> bool:
        """Let the next range end before the version that failed."""
        fewer = fewer_versions(self._under_way, error)
        if fewer == 0 or self._delivery.retries.is_stopping():
            return False
        _log.warning("%s: %s; continuing with fewer versions at once", self._settings.name, error)
        self._delivery.most_versions = fewer
        return True

    async def salvage(self, error: TailerError) -> bool:
        """Return True: nothing is open in the driver."""
        return True

    @property
    def _range_bytes(self) -> int:
        return RANGE_BYTES * self._settings.shards

    def _parts(self, page: ChangePlan) -> Iterator[ChangePlan]:
        """Divide a page of a snapshot into parts of the size of a range; at least one."""
        first, size_bytes = 0, 0
        for index, task in enumerate(page.tasks):
            if size_bytes >= self._range_bytes:
                yield replace(page, tasks=page.tasks[first:index])
                first, size_bytes = index, 0
            size_bytes += task.size_bytes
        yield replace(page, tasks=page.tasks[first:])

    async def _deliver(self, versions: VersionRange, through: Position) -> None:
        """Bring all shards to `through`, the end of `versions` or of a part of a snapshot."""
        settings, begin, key = self._settings, min(self._places), self.sink.demands.key
        plans = [self._numbered(plan, settings.pairing) for plan in versions.plans]
        for plan in plans:
            if plan.tasks and settings.pairing.compute_updates:
                check_key(plan, settings.pairing)
            schemas = [task.schema for task in plan.tasks] + ([] if plan.is_bare else [plan.schema])
            for schema in {id(schema): schema for schema in schemas}.values():
                check_shard_key(key, schema, plan.table, plan.version)
            self._delivery.plan_report.note(plan)
        splits = await to_thread.run_sync(
            splits_of, VersionRange.of(plans), settings.pairing, open_files(settings.stores), begin
        )
        last = plans[-1]
        heads = tuple(map(_without_tasks, plans))
        work = ShardWork(settings, last.table_id, last.schema, begin, through, heads, self._schema)
        await self._table.confirm(begin)
        await self._layout.in_force()
        reports = await self._delivery.exchange.deliver(splits, work, key)
        for report in reports:
            self._delivery.retries.status.rows.update(report.rows)
            for compared, counts in report.compared:
                self._delivery.report.note(compared, counts)
        if (error := worst_error(reports)) is not None:
            if any(report.rows for report in reports):
                self._delivery.retries.note_progress()
            raise error
        _log.debug("%s: all shards are delivered up to %s", settings.name, through)
        self._places = [max(place, through) for place in self._places]
        self._schema = last.schema

    def _numbered(self, plan: ChangePlan, rules: PairingRules) -> ChangePlan:
        """Give the tasks the numbers by which they are compared. Raises `ConfigError` if a shard has others."""
        inside = [place for place in self._places if place.version == plan.version and place.is_inside]
        if concerns(plan, rules):
            plan = renumbered(plan, rules, inside[0] if inside else None)
        for place in inside:
            check_reading(plan, place)
        return plan


def _without_tasks(plan: ChangePlan) -> ChangePlan:
    """Return the plan without its tasks, if all rows have the columns of the version."""
    schemas = {id(task.schema): task.schema for task in plan.tasks}
    same = all(schema.equals(plan.schema, check_metadata=True) for schema in schemas.values())
    return replace(plan, tasks=()) if same else plan
