"""The loop of one (table, sink): wait -> plan -> deliver -> commit. There is one loop, and two ways to deliver.

The sink alone says where the pipeline is (invariant 2). A session asks the sink, seeks the table to the next version
and delivers from there. Any error ends the session, all of its state is forgotten, and the next session asks again.
`tailer.pipeline.retry` is the only place that retries. How versions get to the sink is a `Delivery`
(`tailer.pipeline.delivery`).

An undeliverable version stops the pipeline, but only after every earlier version is committed. If the failing session
had to abort them, the next session delivers them first. If the changes are lost for good, the pipeline may be
configured to continue (`OnDataLoss`): the version becomes a gap that is announced to the sink, and delivery continues
after it. If the log no longer holds the state to continue from, a pipeline without an end waits until it changes.
"""

import time
from contextlib import suppress
from typing import Final

import anyio
import pyarrow as pa

from tailer.errors import (
    ChangeError,
    ChangesUnavailable,
    ConfigError,
    EngineUnavailable,
    LogError,
    SinkError,
    TableReplaced,
    TailerError,
)
from tailer.pipeline.backfill.delivery import BetweenVersions
from tailer.pipeline.data_loss import DataLoss, Due
from tailer.pipeline.delivery import (
    Delivery,
    ResumePoint,
    Session,
    VersionRange,
    check_known_columns,
    first_point,
    tell_key,
)
from tailer.pipeline.policy import OnDataLoss, OnSchemaChange, Policy
from tailer.pipeline.polling import Polling
from tailer.pipeline.retention import VacuumWatch
from tailer.pipeline.retry import Retries
from tailer.plan import ChangePlan, Regime
from tailer.progress.lookup import check_new
from tailer.start import EARLIER, Start, StartKind
from tailer.stores.wakeup import Wake
from tailer.table_log import TableLog

__all__ = ["Pipeline"]

_BETWEEN_VERSIONS: Final = (StartKind.LATEST, StartKind.TIMESTAMP, StartKind.TAG)
_LOOK_BACK_S: Final = 10.0


class Pipeline:
    """A pipeline that brings `table` to a sink by `delivery`.

    `start`: where to begin if the sink has no progress. `until`: the last version to deliver; None: no end.
    `polling`: the waits between looks. `retries` is shared with `delivery`.
    """

    def __init__(
        self,
        name: str,
        table: TableLog,
        delivery: Delivery,
        wake: Wake,
        start: Start,
        until: Start | None,
        policy: Policy,
        polling: Polling,
        retries: Retries,
        vacuum_watch: VacuumWatch | None = None,
    ) -> None:
        self._name = name
        self._table = table
        self._delivery = delivery
        self._wake = wake
        self._start = start
        self._until = until
        self._policy = policy
        self._polling = polling
        self._retries = retries
        self._vacuum_watch = vacuum_watch
        self._looked_back = -_LOOK_BACK_S
        self._loss = DataLoss(name, table, policy, wake, polling.shortest_s, retries.status)
        self._between = BetweenVersions(name, retries.status)
        retries.status.on_command = wake.ring

    def stop(self) -> None:
        """Finish and commit the current versions, then return from `run`."""
        self._retries.stop()
        self._wake.ring()

    async def run(self) -> None:
        """Deliver until `until` is complete or `stop` is called. Cancelled, it aborts what is not committed.

        Raises the `TailerError` that needs a person, or that lasted longer than `Limits.retry_for_s`.
        """
        async with self._wake:
            await self._retries.run(self._attempt)

    async def _attempt(self) -> bool:
        """Run one session. Return False if another session should follow at once."""
        try:
            return await self._session()
        except TailerError as error:
            if isinstance(error, SinkError | EngineUnavailable | LogError | ChangeError):
                with anyio.move_on_after(_LOOK_BACK_S), suppress(TailerError):  # the backlog grows
                    self._retries.status.note_table(await self._table.latest(), self._table.retention_ms)
            if self._loss.is_news(error):
                self._retries.status.note_error(error)
                return False
            if not await self._loss.wait(error, has_end=self._until is not None):
                raise
            return False
        finally:
            self._looked_back = -_LOOK_BACK_S

    async def _session(self) -> bool:
        """Deliver until nothing is left. Return False to begin another session, which gets further."""
        table_id = await self._table.table_id()
        self._loss.forget_other(table_id)
        async with self._delivery.session(table_id) as session:
            last = await self._table.resolve_end(self._until) if self._until is not None else None
            self._retries.status.note_step()
            try:
                point = await self._begin(session, last)
                done = point is not None and await self._deliver_all(session, point, last)
                await session.commit()
            except TailerError as error:
                if session.narrow(error):
                    return False
                nothing_lost = await session.salvage(error)
                if isinstance(error, LogError | ChangeError):
                    self._loss.note(error, table_id, nothing_lost, fresh=session.resume is None)
                raise
        return done

    async def _begin(self, session: Session, last: int | None) -> ResumePoint | None:
        """Get to the first version whose changes are due, and seek the table to it.

        Returns None if the undeliverable version has become readable, or if it was stopped in a snapshot.
        """
        point = session.resume or await self._first_start(session, last)
        self._loss.note_resume(point)
        if point.snapshot:
            await self._loss.obey(point)
        if self._loss.blocks(point.version, last):
            after_loss = await self._loss.get_past(session, point)
            if after_loss is None:
                return None
            point = after_loss
        elif point.snapshot:
            self._retries.status.note_snapshot(point.version)
            await tell_key(session.sink, self._table, point.version)
            if self._retries.is_stopping() or not await session.snapshot(point.version, point.after):
                return None
            point = ResumePoint(point.version + 1, knows_columns=True)
        await self._seek(session, point, last)
        return point

    async def _deliver_all(self, session: Session, point: ResumePoint, last: int | None) -> bool:
        """Deliver everything from `point` to `last`. Return False if the undeliverable version has become readable."""
        status = self._retries.status
        while not self._retries.is_stopping() and (last is None or point.version <= last):
            if self._loss.blocks(point.version, last):
                after_loss = await self._loss.get_past(session, point)
                if after_loss is None:
                    return False
                point = after_loss
                await self._seek(session, point, last)
                continue
            has_progress = not point.fresh or self._records_start(point, last)
            if status.backfills.command is not None and has_progress and point.is_between:
                await tell_key(session.sink, self._table, point.version - 1)
                point = await self._between.deliver(session, point)
                await self._seek(session, point, last)
                continue
            asked_s = time.monotonic()
            self._loss.due = Due(point.version)
            versions = await session.plan()
            status.backlog.plan_s = time.monotonic() - asked_s
            if versions is None:
                if status.command is OnDataLoss.RESNAPSHOT and has_progress and point.is_between:
                    await self._between.resnapshot(point.version - 1)
                else:
                    await self._wait(session, point.version - 1, has_progress)
                continue
            if last is not None and versions.first > last:
                return True  # numbers of versions may have gaps
            self._loss.due = Due(point.version, versions.first)
            if await self._loss.obey(point):
                continue
            status.note_work(versions.last, versions.oldest_ms, versions.size_bytes, versions.first)
            self._polling.found()
            await self._look_back(versions)
            await session.deliver(versions, point.after)
            point = ResumePoint(versions.last + 1)
        return True

    async def _first_start(self, session: Session, last: int | None) -> ResumePoint:
        """Find where to begin without progress."""
        start = await self._table.resolve(self._start)
        # The version after the latest one is a start, too: up to `latest` nothing follows it.
        to_latest = self._until is not None and self._until.kind is StartKind.LATEST
        first = start.version - (to_latest or self._start.kind in _BETWEEN_VERSIONS)
        if last is not None and first > last:
            reason = f"version {first} comes after the end, version {last}"
            raise ConfigError("start", reason, EARLIER)
        self._retries.status.on_start(start, last)
        if not self._loss.is_known:
            await check_new(self._name, self._table, await self._table.table_id(), session.sink)
        return await first_point(self._table, start, session.sink)

    async def _seek(self, session: Session, point: ResumePoint, last: int | None) -> None:
        """Seek the table to `point`, check that it is the same table, and prepare the session to plan from there."""
        if point.in_net_difference:
            reason = "the sink has a part of its net difference from an earlier version, which nothing can finish now"
            raise ChangesUnavailable(self._table.uri, point.version, reason)
        columns = await self._table.seek(point.version)
        if self._table.state_id is not None:
            await tell_key(session.sink, self._table, point.version - 1)
        table_id = self._table.state_id
        followed = session.table_id
        if table_id is not None and followed not in (None, table_id) and followed not in await self._table.ids(-1):
            raise TableReplaced(self._table.uri, point.version, followed or "", table_id)
        if not point.fresh:
            await self._table.check_delivered(point.last_begun)
        # A delivery that announces nothing needs the columns before only to refuse a change of them.
        must_know_columns = session.announces_columns or self._policy.on_schema_change is OnSchemaChange.FAIL
        if must_know_columns:
            check_known_columns(self._table, point, columns)
        told = columns if point.knows_columns else None
        schema = self._policy.shape_schema(told, self._table.uri, point.version)
        if point.fresh and self._records_start(point, last) and table_id is not None:
            # Recorded at once, as if the version before were empty: what arrives between now and the first delivery
            # must survive a restart.
            before = columns or pa.schema([])
            plan = ChangePlan(self._table.uri, table_id, point.version - 1, 0, None, Regime.NONE, before, tasks=())
            plan = self._policy.shape(plan)
            await session.record_start(plan)
            schema = plan.schema
        session.begin(point.version, schema, self._loss.end_before(point.version, last))

    def _records_start(self, point: ResumePoint, last: int | None) -> bool:
        """Return whether the start `point` is recorded: it may move, or comes after the latest version, the end."""
        is_empty = self._start.kind is StartKind.VERSION and last is not None and point.version > last
        return is_empty or self._start.kind in (StartKind.LATEST, StartKind.TAG)

    async def _wait(self, session: Session, latest: int, has_progress: bool) -> None:
        """Commit what is open, up to the version `latest`, then wait for a new one."""
        await session.commit()
        self._retries.note_caught_up(latest, has_progress)
        self._loss.note_caught_up()
        kept_ms = self._table.retention_ms
        self._retries.status.note_table(latest, kept_ms)
        ends_s, is_over = time.monotonic() + self._polling.next_wait_s(), False
        while not is_over:
            next_beat_s = None if session.app_id is None else await session.sink.beat(session.app_id)
            # A wait that is given up for a heartbeat goes on afterwards: no look at the table follows.
            with anyio.move_on_after(next_beat_s) as until_beat:
                await self._wake.wait(max(ends_s - time.monotonic(), 0.0))
            is_over = not until_beat.cancelled_caught
        self._polling.was_woken = time.monotonic() < ends_s
        self._retries.status.note_step()

    async def _look_back(self, versions: VersionRange) -> None:
        """Report the length and age of the backlog from time to time, while there is one."""
        watch = self._vacuum_watch
        if watch is None or time.monotonic() - self._looked_back < _LOOK_BACK_S:
            return
        self._looked_back = time.monotonic()
        latest, kept_ms = await self._table.latest(), self._table.retention_ms
        self._retries.status.note_table(latest, kept_ms)
        if kept_ms is not None and versions.oldest_ms is not None:
            watch.report(latest - versions.first + 1, versions.oldest_ms, kept_ms)
