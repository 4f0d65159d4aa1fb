"""The loop of one (table, sink): wait -> plan -> run -> commit.

Where we are is what the sink says (invariant 2). A session asks the sink, seeks the table to what comes next and
delivers from there; any error ends the session, everything it knew is forgotten, and the next session asks again.
`tailer.pipeline.retry` is the only place that retries.

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
from dataclasses import replace
from typing import Final

import pyarrow as pa

from tailer.engine.port import Engine
from tailer.errors import (
    ChangeError,
    ChangesUnavailable,
    ConfigError,
    LogError,
    SinkRejected,
    StorageError,
    TableReplaced,
    TailerError,
)
from tailer.pipeline.data_loss import DataLoss
from tailer.pipeline.policy import Policy
from tailer.pipeline.retention import VacuumWatch
from tailer.pipeline.retry import Attempts
from tailer.pipeline.sink_writer import Delivery, Limits
from tailer.pipeline.status import PipelineStatus
from tailer.pipeline.version_writer import VersionWriter
from tailer.pipeline.wakeup import Wake
from tailer.plan import ChangePlan, Position, Regime
from tailer.progress.lookup import app_id_of, check_new, find_progress
from tailer.sink import Heartbeat, Progress, Sink
from tailer.start import Start, StartKind, StartPoint
from tailer.table_log import TableLog

__all__ = ["Limits", "Pipeline"]

_log = logging.getLogger(__name__)
_BETWEEN_VERSIONS: Final = (StartKind.LATEST, StartKind.TIMESTAMP)
_LOOK_BACK_S: Final = 10.0


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
        self._wake = wake
        self._start = start
        self._until = until
        self._policy = policy or Policy()
        self._limits = (limits or Limits()).within(sink.demands)
        self._vacuum_watch = vacuum_watch
        if sink.demands.key not in ((), engine.key):
            reason = f"{sink.name} tells rows apart by {', '.join(sink.demands.key)}, and the engine does not"
            raise ConfigError(name, reason, "Give a ChangelogEngine with compute_updates, null_keys and that key.")
        self._looked_back = -_LOOK_BACK_S
        self._status = status or PipelineStatus(name)
        self._attempts = Attempts(name, self._limits.retry_for_s, self._status)
        self._versions = VersionWriter(
            name, table, engine, self._policy, sink.splits_snapshots, self._attempts.is_stopping
        )
        self._loss = DataLoss(name, table, self._policy, self._versions, wake, self._limits.poll_interval_s)

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
            if self._loss.is_news(error):
                self._status.note_error()
                return False
            if not await self._loss.wait(error, has_end=self._until is not None):
                raise
            return False
        finally:
            if self._vacuum_watch is not None:
                self._vacuum_watch.forget()
                self._looked_back = -_LOOK_BACK_S

    async def _session(self) -> bool:
        """Deliver until there is no more; False where versions before a refused one are to be delivered without it."""
        table_id = await self._table.table_id()
        self._loss.forget_other(table_id)
        progress = await find_progress(self._name, self._table, table_id, self._sink)
        last = await self._table.resolve_end(self._until) if self._until is not None else None
        made = self._table.confirm, self._note_commit
        async with Delivery(self._name, self._sink, progress, self._limits, *made) as delivery:
            try:
                done = await self._run_from(delivery, progress, last)
            except (LogError, ChangeError, ConfigError, StorageError) as error:
                nothing_lost = await delivery.salvage()
                if isinstance(error, LogError | ChangeError):
                    self._loss.note(error, table_id, nothing_lost)
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

    async def _run_from(self, delivery: Delivery, progress: Progress | None, last: int | None) -> bool:
        """Deliver what comes behind `progress`, up to `last`; False where what was in the way is gone meanwhile."""
        point, after = await self._next(progress, last)
        version, fresh = point.version, progress is None
        knows_columns = progress is not None and not progress.position.opens_version
        if fresh and not self._loss.is_known:
            await check_new(self._name, self._table, await self._table.table_id(), self._sink)
        if self._loss.stands_before(version, last):
            found = await self._loss.get_past(delivery, version, point.snapshot, after)
            if found is None:
                return False
            version, after, knows_columns, fresh = found, None, False, False
        elif point.snapshot:
            if self._attempts.is_stopping() or not await self._versions.snapshot(delivery, version, after):
                return True
            version, after, knows_columns, fresh = version + 1, None, True, False
        await self._seek(delivery, version, knows_columns, fresh)
        while not self._attempts.is_stopping() and (last is None or version <= last):
            if self._loss.stands_before(version, last):
                found = await self._loss.get_past(delivery, version)
                if found is None:
                    return False
                await self._seek(delivery, version := found, knows_columns=False)
                continue
            plan = await self._table.next_plan()
            if plan is None:
                await self._wait(delivery)
                continue
            await self._look_back(plan)
            await self._versions.version(delivery, self._policy.shape(plan), after)
            version, after = version + 1, None
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
            await delivery.close_version(self._policy.shape(plan))
            await delivery.commit()
        if knows_columns:
            if schema is None and version > 0:
                reason = "it may change the schema, and what the schema was before is no longer in the log"
                raise ChangesUnavailable(self._table.uri, version, reason)
            delivery.schema = self._policy.shape_schema(schema)

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
