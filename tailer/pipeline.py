"""The loop of one (table, sink): wait -> plan -> run -> commit.

Where we are is what the sink says (invariant 2). A session asks the sink, seeks the table to what comes next and
delivers from there; any error ends the session, everything it knew is forgotten, and the next session asks again.
`tailer.attempts` is the only place that retries.

Rows of consecutive versions share a transaction while there is a backlog, within `Limits`; a version larger than the
limits is split where the sink can store a position inside a version, and otherwise delivered whole. Caught up means
commit now: batching never adds latency.

A version that cannot be delivered stops the pipeline behind the version before it, which is delivered first: where the
session that found out had to give that up, another one delivers it. If the changes are lost for good, the pipeline may
have been told to go on (`OnDataLoss`): that version is then a gap, announced to the sink, and what follows it is next.
Where the log does not tell the state to go on from, a pipeline without an end waits until that changes.
"""

import logging
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Final

import pyarrow as pa

from tailer.attempts import Attempts
from tailer.delivery import Delivery, Limits
from tailer.engine import Engine
from tailer.errors import (
    ChangeError,
    ChangesUnavailable,
    ConfigError,
    FileVacuumed,
    LogError,
    SchemaChanged,
    SinkRejected,
    StorageError,
    TableReplaced,
    TailerError,
)
from tailer.events import Gap
from tailer.lineage import app_id_of, check_new, find_progress
from tailer.obstacle import LOST_LOG, Awaited, Obstacle
from tailer.plan import TASKS, ChangePlan, Position, Regime, add_row_ids, select_columns
from tailer.policy import OnDataLoss, OnSchemaChange, Policy
from tailer.row_ids import RowIdReport
from tailer.schema_changes import describe_changes
from tailer.sink import Heartbeat, Progress, Sink
from tailer.start import Start, StartKind, StartPoint
from tailer.status import PipelineStatus
from tailer.table_log import TableLog
from tailer.vacuum_watch import VacuumWatch
from tailer.watch import Wake

__all__ = ["Limits", "Pipeline", "shape"]

_log = logging.getLogger(__name__)
_BETWEEN_VERSIONS: Final = (StartKind.LATEST, StartKind.TIMESTAMP)
_LOST: Final = (*LOST_LOG, FileVacuumed, ChangesUnavailable, TableReplaced)
_LOOK_BACK_S: Final = 10.0
_WAIT_POLLS: Final = 10  # between two looks at a log that does not tell the state


class Pipeline:
    """Delivers the changes of `table` to `sink`, from `start` (where the sink has no progress yet) to `until`."""

    def __init__(
        self,
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
    ) -> None:
        self._name = name
        self._table = table
        self._sink = sink
        self._engine = engine
        self._wake = wake
        self._start = start
        self._until = until
        self._policy = policy or Policy()
        self._limits = (limits or Limits()).within(sink.demands)
        self._vacuum_watch = vacuum_watch
        if sink.demands.key not in ((), engine.key):
            reason = f"{sink.name} tells rows apart by {', '.join(sink.demands.key)}, and the engine does not"
            raise ConfigError(name, reason, "Give a PairingEngine with compute_updates, null_keys and that key.")
        self._row_ids = RowIdReport(name) if self._policy.row_ids else None
        self._looked_back = -_LOOK_BACK_S
        self._status = status or PipelineStatus(name)
        self._attempts = Attempts(name, self._limits.retry_for_s, self._status)
        self._obstacle: Obstacle | None = None
        self._awaited = Awaited(name)

    def stop(self) -> None:
        """Finish the version under way, commit it and return from `run`."""
        self._attempts.stop()
        self._wake.ring()

    async def run(self) -> None:
        """Deliver until `until` is closed or `stop` is called.

        Raises the `TailerError` that a person must look at, or that did not pass within `Limits.retry_for_s`.
        """
        async with self._wake:
            await self._attempts.run(self._attempt)

    async def _attempt(self) -> bool:
        """One session; False where another one can do more."""
        try:
            return await self._session()
        except TailerError as error:
            if self._obstacle is not None and self._obstacle.error is error and not self._obstacle.met:
                self._status.note_error()
                return False
            goes_past = self._policy.on_data_loss is not OnDataLoss.FAIL
            if not goes_past or not isinstance(error, LOST_LOG) or error.table != self._table.uri:
                raise
            await self._await_state(error)
            return False
        finally:
            if self._vacuum_watch is not None:
                self._vacuum_watch.forget()
                self._looked_back = -_LOOK_BACK_S

    async def _await_state(self, error: TailerError) -> None:
        """Wait for news of a log that tells no way past `error`; `StateUnknown` where the pipeline has an end."""
        loss = error if self._obstacle is None else self._obstacle.error
        missing = self._awaited.missing(self._table.uri, loss)
        if self._until is not None:
            raise missing from error
        self._awaited.say(loss, missing)
        self._obstacle = None
        await self._wake.wait(self._limits.poll_interval_s * _WAIT_POLLS)

    async def _session(self) -> bool:
        """Deliver until there is no more; False where versions before a refused one are to be delivered without it."""
        table_id = await self._table.table_id()
        if self._obstacle is not None and not self._obstacle.stands_in(table_id):
            self._obstacle = None
        progress = await find_progress(self._name, self._table, table_id, self._sink)
        last = await self._table.resolve_end(self._until) if self._until is not None else None
        made = self._table.confirm, self._note_commit
        async with Delivery(self._name, self._sink, progress, self._limits, *made) as delivery:
            try:
                done = await self._run_from(delivery, progress, last)
            except (LogError, ChangeError, ConfigError, StorageError) as error:
                nothing_lost = await delivery.salvage()
                if isinstance(error, LogError | ChangeError):
                    self._note_obstacle(error, table_id, nothing_lost)
                raise
            except SinkRejected as error:
                if delivery.holds_versions and self._limits.max_versions > 1:
                    _log.warning("%s: %s; going on version by version, up to that one", self._name, error)
                    self._limits = replace(self._limits, max_versions=1)
                    return False
                raise
            await delivery.commit()
        return done

    def _note_commit(self, rows: int) -> None:
        self._status.note_rows(rows)
        self._attempts.note_success()

    def _note_obstacle(self, error: LogError | ChangeError, table_id: str, nothing_lost: bool) -> None:
        """Remember what stopped this session, if another one can do more than fail in the same way."""
        version: int | None = getattr(error, "version", None)
        lost = isinstance(error, _LOST) and self._policy.on_data_loss is not OnDataLoss.FAIL
        before = self._obstacle
        if error.table != self._table.uri or version is None or (nothing_lost and not lost):
            return
        # Trying to get past one and meeting another, a person must look.
        if before is None or not (before.met or (type(before.error), before.version) == (type(error), version)):
            if not self._awaited.is_about(error):
                _log.warning("%s: %s", self._name, error)
            self._obstacle = Obstacle(error, version, table_id, lost)

    async def _run_from(self, delivery: Delivery, progress: Progress | None, last: int | None) -> bool:
        """Deliver what comes behind `progress`, up to `last`; False where what was in the way is gone meanwhile."""
        point, after = await self._next(progress, last)
        version, fresh = point.version, progress is None
        knows_columns = progress is not None and not progress.position.opens_version
        if fresh and self._obstacle is None:
            await check_new(self._name, self._table, await self._table.table_id(), self._sink)
        if self._stands_before(version, last):
            found = await self._pass(delivery, version, point.snapshot, after)
            if found is None:
                return False
            version, after, knows_columns, fresh = found, None, False, False
        elif point.snapshot:
            if self._attempts.is_stopping() or not await self._snapshot(delivery, version, after):
                return True
            version, after, knows_columns, fresh = version + 1, None, True, False
        await self._seek(delivery, version, knows_columns, fresh)
        while not self._attempts.is_stopping() and (last is None or version <= last):
            if self._stands_before(version, last):
                found = await self._pass(delivery, version)
                if found is None:
                    return False
                await self._seek(delivery, version := found, knows_columns=False)
                continue
            plan = await self._table.next_plan()
            if plan is None:
                await self._wait(delivery)
                continue
            await self._look_back(plan)
            await self._deliver(delivery, shape(plan, self._policy), after)
            version, after = version + 1, None
        return True

    async def _is_restored(self, version: int) -> bool:
        """Whether what was in the way at `version` is gone: another session finds out the rest."""
        if self._obstacle is None or not await self._obstacle.is_restored(self._table, version):
            return False
        self._obstacle = None
        await self._wake.wait(self._limits.poll_interval_s)
        return True

    async def _next(self, progress: Progress | None, last: int | None) -> tuple[StartPoint, Position | None]:
        """What comes first: the version, whether as a snapshot, and the position in it that was delivered already."""
        if progress is not None:
            after = progress.position
            point = StartPoint(after.version + after.closes_version, after.in_snapshot)
            return point, None if after.opens_version else after
        point = await self._table.resolve(self._start)
        first = point.version - (self._start.kind in _BETWEEN_VERSIONS)
        if last is not None and first > last:
            reason = f"version {first} comes after the end, version {last}"
            raise ConfigError("start", reason, "Give an earlier start, such as `earliest`, or a later end.")
        return point, None

    async def _seek(self, delivery: Delivery, version: int, knows_columns: bool, fresh: bool = False) -> None:
        """Prepare the table, and the delivery for rows as they were before `version`.

        `knows_columns`: whether the sink has rows of just before it, and must be told if their columns change.
        """
        schema = await self._table.seek(version)
        table_id = self._table.state_id
        if table_id is not None:
            await self._check_lineage(delivery, version, table_id)
        if fresh and table_id is not None and self._start.kind is StartKind.LATEST:
            # Recorded at once, as if the version before were empty: what arrives between now and the first delivery
            # must survive a restart.
            columns = schema or pa.schema([])
            plan = ChangePlan(self._table.uri, table_id, version - 1, 0, None, Regime.NONE, columns, tasks=())
            await delivery.close_version(shape(plan, self._policy))
            await delivery.commit()
        if knows_columns:
            if schema is None and version > 0:
                reason = "it may change the schema, and what the schema was before is no longer in the log"
                raise ChangesUnavailable(self._table.uri, version, reason)
            delivery.schema = self._shape_schema(schema)

    async def _check_lineage(self, delivery: Delivery, version: int, table_id: str) -> None:
        """Raise `TableReplaced` if the table that we are in the middle of is not the one this log is about."""
        followed = delivery.table_id
        if followed not in (None, table_id) and followed not in await self._table.ids(-1):
            raise TableReplaced(self._table.uri, version, followed or "", table_id)

    async def _wait(self, delivery: Delivery) -> None:
        """Commit what there is, then sleep until there may be more."""
        await delivery.commit()
        self._attempts.note_success()
        if self._vacuum_watch is not None and self._table.retention_ms is not None:
            self._vacuum_watch.caught_up(self._table.retention_ms)
        if isinstance(self._sink, Heartbeat) and delivery.table_id is not None:
            await self._sink.beat(app_id_of(self._name, delivery.table_id))
        await self._wake.wait(self._limits.poll_interval_s)

    async def _look_back(self, plan: ChangePlan) -> None:
        """Now and then, while there is a backlog: how long is it, and how old?"""
        watch, kept_ms = self._vacuum_watch, self._table.retention_ms
        if watch is not None and kept_ms is not None and time.monotonic() - self._looked_back >= _LOOK_BACK_S:
            self._looked_back = time.monotonic()
            watch.report(await self._table.latest() - plan.version + 1, plan.timestamp_ms, kept_ms)

    async def _deliver(self, delivery: Delivery, plan: ChangePlan, after: Position | None) -> None:
        """All of a version that is not before `after`."""
        if after is not None and after.version == plan.version:
            begun = [task for task in plan.tasks if task.index <= after.task % TASKS]
            if any(task.schema is plan.schema for task in begun):
                delivery.schema = plan.schema  # announced with rows that were delivered already
        self._check_schema(delivery.schema, plan)
        await self._deliver_rows(delivery, plan, after)
        await delivery.close_version(plan)

    async def _deliver_rows(
        self, delivery: Delivery, plan: ChangePlan, after: Position | None, may_stop: bool = False
    ) -> bool:
        """The rows of the plan behind `after`; False if it was to stop on the way, and might."""
        if self._row_ids is not None:
            self._row_ids.note(plan)
        async with delivery.batches(self._engine, plan, after) as batches:
            async for batch in batches:
                if may_stop and self._attempts.is_stopping():
                    return False
                await delivery.write(batch, plan)
        return True

    def _check_schema(self, before: pa.Schema | None, plan: ChangePlan) -> None:
        """Raise `SchemaChanged` where rows of `plan` have other columns than `before`, and that is not wanted."""
        if self._policy.on_schema_change is OnSchemaChange.FAIL:
            schemas = {id(schema): schema for schema in (*(task.schema for task in plan.tasks), plan.schema)}
            for schema in schemas.values():
                before = schema if before is None else before
                if changes := describe_changes(before, schema):
                    raise SchemaChanged(plan.table, plan.version, "; ".join(changes))

    async def _snapshot(self, delivery: Delivery, version: int, after: Position | None) -> bool:
        """All rows of `version` behind `after`; False if stopped on the way."""
        async with aclosing(self._table.snapshot_plans(version)) as pages:
            return await self._deliver_pages(delivery, await anext(pages), pages, after)

    async def _deliver_pages(
        self, delivery: Delivery, page: ChangePlan, pages: AsyncIterator[ChangePlan], after: Position | None
    ) -> bool:
        """The rows behind `after` of a snapshot that begins with `page`; False if stopped on the way."""
        plan = shape(page, self._policy)
        while await self._deliver_rows(delivery, plan, after, self._sink.splits_snapshots):
            more = await anext(pages, None)
            if more is None:
                await delivery.close_version(plan)
                return True
            plan = shape(more, self._policy)
        return False

    def _stands_before(self, version: int, last: int | None) -> bool:
        obstacle = self._obstacle
        if obstacle is None or isinstance(obstacle.error, TableReplaced):
            return obstacle is not None
        return version >= obstacle.version and (last is None or version <= last)

    async def _pass(
        self, delivery: Delivery, version: int, in_snapshot: bool = False, after: Position | None = None
    ) -> int | None:
        """Get past what stopped the session before, as the policy says; the version to go on with. None: it is gone.

        `in_snapshot`: whether it stood in the way of the snapshot of `version`, delivered up to `after`. Raises it.
        """
        obstacle = self._obstacle
        if obstacle is None or (not in_snapshot and await self._is_restored(version)):
            return None
        obstacle.met = True
        if not obstacle.lost:
            raise obstacle.error
        replaced = isinstance(obstacle.error, TableReplaced)
        if self._policy.on_data_loss is OnDataLoss.RESNAPSHOT or replaced:
            first = 0 if replaced else version
            least = version + 1 if in_snapshot and after is not None else first  # not once more the same files
            found: int | None = await self._resnapshot(delivery, first, least, obstacle)
        elif in_snapshot:
            raise obstacle.error  # to leave the rest of a whole table out is not what was asked for
        else:
            found = await self._skip(delivery, version, obstacle)
        if found is not None:
            _log.warning("%s: the changes of versions %d to %d are lost; going on", self._name, version, found - 1)
            self._obstacle = None
        return found

    async def _resnapshot(self, delivery: Delivery, first: int, least: int, obstacle: Obstacle) -> int:
        """Deliver all rows of the newest version that the log tells, at least `least`; the next one."""
        version = await self._table.latest()
        while version >= least:
            async with aclosing(self._table.snapshot_plans(version)) as pages:
                try:
                    page = await anext(pages)
                except LOST_LOG as error:
                    if error.version is None or not 0 < error.version <= version:
                        raise
                    version = error.version - 1
                    continue
                gap = self._gap(page.table_id, first, version + 1, obstacle, snapshot=True)
                plan = shape(page, self._policy)
                self._check_schema(delivery.schema, plan)
                await delivery.skip(gap, plan.schema)
                await self._deliver_pages(delivery, page, pages, None)
                return version + 1
        raise obstacle.error

    async def _skip(self, delivery: Delivery, version: int, obstacle: Obstacle) -> int | None:
        """Tell the sink that changes from `version` on are lost; the first version that can be delivered again."""
        found, seen = await self._next_readable(obstacle.error, version)
        table_id = self._table.state_id or obstacle.table_id
        if await self._is_restored(version):  # while the log was read
            return None
        gap = self._gap(table_id, version, found, obstacle, snapshot=False)
        await delivery.skip(gap, self._shape_schema(seen) or pa.schema([]))
        return found

    async def _next_readable(self, error: TailerError, version: int) -> tuple[int, pa.Schema | None]:
        """The first version behind `version` that can be entered, and the schema before it."""
        found = await self._table.after_loss(error, version)
        try:
            return found, await self._table.seek(found)
        except LOST_LOG as further:
            return await self._next_readable(further, found)

    def _gap(self, table_id: str, first: int, found: int, obstacle: Obstacle, snapshot: bool) -> Gap:
        return Gap(table_id, first, found - 1, int(time.time() * 1000), str(obstacle.error), snapshot)

    def _shape_schema(self, schema: pa.Schema | None) -> pa.Schema | None:
        if schema is None:
            return None
        schema = select_columns(schema, self._policy.columns) if self._policy.columns else schema
        return add_row_ids(schema) if self._policy.row_ids else schema


def shape(plan: ChangePlan, policy: Policy) -> ChangePlan:
    """The plan for the columns that are wanted."""
    plan = plan.select(policy.columns) if policy.columns else plan
    return plan.with_row_ids() if policy.row_ids else plan
