"""The loop of one (table, sink): wait -> plan -> run -> commit.

The sink alone says where the pipeline is (invariant 2). A session asks the sink, seeks the table to the next version
and delivers from there. Any error ends the session, all of its state is forgotten, and the next session asks again.
`tailer.pipeline.retry` is the only place that retries.

While there is a backlog, rows of consecutive versions share a transaction, within `Limits`. A version larger than the
limits is split if the sink can store a position inside a version, and is delivered whole otherwise. A pipeline that has
caught up commits at once: batching never adds latency.

An undeliverable version stops the pipeline, but only after every earlier version is committed. If the failing session
had to abort them, the next session delivers them first. If the changes are lost for good, the pipeline may be
configured to continue (`OnDataLoss`): the version becomes a gap that is announced to the sink, and delivery continues
after it. If the log no longer holds the state to continue from, a pipeline without an end waits until it changes.
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
from tailer.pipeline.retry import Retries
from tailer.pipeline.sink_writer import Limits, SinkWriter
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
    """A pipeline from `table` to `sink`.

    `start`: where to begin if the sink has no progress. `until`: the last version to deliver; None: no end.
    """

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
            reason = f"{sink.name} identifies rows by {', '.join(sink.demands.key)}, and the engine does not"
            raise ConfigError(name, reason, "Give a ChangelogEngine with compute_updates, null_keys and that key.")
        self._looked_back = -_LOOK_BACK_S
        self._status = status or PipelineStatus(name)
        self._retries = Retries(name, self._limits.retry_for_s, self._status)
        self._versions = VersionWriter(
            name, table, engine, self._policy, sink.splits_snapshots, self._retries.is_stopping
        )
        self._loss = DataLoss(name, table, self._policy, self._versions, wake, self._limits.poll_interval_s)

    def stop(self) -> None:
        """Finish and commit the current version, then return from `run`."""
        self._retries.stop()
        self._wake.ring()

    async def run(self) -> None:
        """Deliver until `until` is complete or `stop` is called.

        Raises the `TailerError` that needs a person, or that lasted longer than `Limits.retry_for_s`.
        """
        async with self._wake:
            await self._retries.run(self._attempt)

    async def _attempt(self) -> bool:
        """Run one session. Return False if another session should follow at once."""
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
        """Deliver until nothing is left. Return False to deliver again, without the version that was refused."""
        table_id = await self._table.table_id()
        self._loss.forget_other(table_id)
        progress = await find_progress(self._name, self._table, table_id, self._sink)
        last = await self._table.resolve_end(self._until) if self._until is not None else None
        made = self._table.confirm, self._note_commit
        async with SinkWriter(self._name, self._sink, progress, self._limits, *made) as writer:
            try:
                done = await self._run_from(writer, progress, last)
            except (LogError, ChangeError, ConfigError, StorageError) as error:
                nothing_lost = await writer.salvage()
                if isinstance(error, LogError | ChangeError):
                    self._loss.note(error, table_id, nothing_lost)
                raise
            except SinkRejected as error:
                if writer.holds_versions and self._limits.max_versions > 1:
                    _log.warning("%s: %s; continuing one version at a time up to that one", self._name, error)
                    self._limits = replace(self._limits, max_versions=1)
                    return False
                raise
            await writer.commit()
        return done

    def _note_commit(self, rows: int) -> None:
        self._status.note_rows(rows)
        self._retries.note_success()

    async def _run_from(self, writer: SinkWriter, progress: Progress | None, last: int | None) -> bool:
        """Deliver from `progress` up to `last`. Return False if the undeliverable version has become readable."""
        point, after = await self._next(progress, last)
        version, fresh = point.version, progress is None
        knows_columns = progress is not None and not progress.position.opens_version
        if fresh and not self._loss.is_known:
            await check_new(self._name, self._table, await self._table.table_id(), self._sink)
        if self._loss.blocks(version, last):
            found = await self._loss.get_past(writer, version, point.snapshot, after)
            if found is None:
                return False
            version, after, knows_columns, fresh = found, None, False, False
        elif point.snapshot:
            if self._retries.is_stopping() or not await self._versions.snapshot(writer, version, after):
                return True
            version, after, knows_columns, fresh = version + 1, None, True, False
        await self._seek(writer, version, knows_columns, fresh)
        while not self._retries.is_stopping() and (last is None or version <= last):
            if self._loss.blocks(version, last):
                found = await self._loss.get_past(writer, version)
                if found is None:
                    return False
                await self._seek(writer, version := found, knows_columns=False)
                continue
            plan = await self._table.next_plan()
            if plan is None:
                await self._wait(writer)
                continue
            await self._look_back(plan)
            await self._versions.version(writer, self._policy.shape(plan), after)
            version, after = version + 1, None
        return True

    async def _next(self, progress: Progress | None, last: int | None) -> tuple[StartPoint, Position | None]:
        """Find the next start: version, whether as a snapshot, and the position in it that is already delivered."""
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

    async def _seek(self, writer: SinkWriter, version: int, knows_columns: bool, fresh: bool = False) -> None:
        """Seek the table to `version`, and give the writer the schema of the rows before it.

        `knows_columns`: whether the sink has rows of the version just before, so that a change of their columns must be
        announced to it.
        """
        schema = await self._table.seek(version)
        table_id = self._table.state_id
        if table_id is not None:
            await self._check_lineage(writer, version, table_id)
        if fresh and table_id is not None and self._start.kind is StartKind.LATEST:
            # Recorded at once, as if the version before were empty: what arrives between now and the first delivery
            # must survive a restart.
            columns = schema or pa.schema([])
            plan = ChangePlan(self._table.uri, table_id, version - 1, 0, None, Regime.NONE, columns, tasks=())
            await writer.close_version(self._policy.shape(plan))
            await writer.commit()
        if knows_columns:
            if schema is None and version > 0:
                reason = "it may change the schema, and the log no longer has the schema before it"
                raise ChangesUnavailable(self._table.uri, version, reason)
            writer.schema = self._policy.shape_schema(schema)

    async def _check_lineage(self, writer: SinkWriter, version: int, table_id: str) -> None:
        """Raise `TableReplaced` if the log belongs to another table than the one being delivered."""
        followed = writer.table_id
        if followed not in (None, table_id) and followed not in await self._table.ids(-1):
            raise TableReplaced(self._table.uri, version, followed or "", table_id)

    async def _wait(self, writer: SinkWriter) -> None:
        """Commit the open transaction, then wait for a new version."""
        await writer.commit()
        self._retries.note_success()
        if self._vacuum_watch is not None and self._table.retention_ms is not None:
            self._vacuum_watch.caught_up(self._table.retention_ms)
        if isinstance(self._sink, Heartbeat) and writer.table_id is not None:
            await self._sink.beat(app_id_of(self._name, writer.table_id))
        await self._wake.wait(self._limits.poll_interval_s)

    async def _look_back(self, plan: ChangePlan) -> None:
        """Report the length and age of the backlog from time to time, while there is one."""
        watch, kept_ms = self._vacuum_watch, self._table.retention_ms
        if watch is not None and kept_ms is not None and time.monotonic() - self._looked_back >= _LOOK_BACK_S:
            self._looked_back = time.monotonic()
            watch.report(await self._table.latest() - plan.version + 1, plan.timestamp_ms, kept_ms)
