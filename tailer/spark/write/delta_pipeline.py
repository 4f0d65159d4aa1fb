"""A pipeline into a Delta table whose rows executors read and write: only progress passes through the driver.

A range of whole versions is one job and one commit of Spark's Delta writer, with rows and `txn` (invariant 1). The
target's `txn` action holds the position of the pipeline, as for the `delta` sink itself: with the same app_id and the
same meaning, so either can continue where the other stopped. Each range begins at the target's progress (invariant 2),
and the commit takes place only if that is unchanged (`tailer.sink.Appendable`): of two instances one fails with
`SinkFenced`.

The sink does everything but append rows: it reads progress, checks that rows fit, and commits ranges without rows. A
snapshot is also one commit, whose `txn` is its version. A snapshot that the `delta` sink left unfinished has more than
one `txn`, which Spark's writer cannot write: it is finished the same way, by `engine`.

A range that fails because a version cannot be read, or is refused by the target, stops the pipeline only at that
version: the versions before it are delivered first.
"""

import logging
from collections.abc import Callable
from contextlib import aclosing
from typing import Final, Protocol

import anyio
import pyarrow as pa
from anyio import to_thread
from pyspark.sql import SparkSession

from tailer.config.pipelines import PipelineSettings
from tailer.engine.background import background
from tailer.engine.port import Engine
from tailer.errors import (
    ChangeError,
    CommitUnknown,
    ConfigError,
    EngineUnavailable,
    LogError,
    SinkFenced,
    SinkRejected,
    SinkUnavailable,
    TableReplaced,
    TailerError,
)
from tailer.pipeline.loop import Limits, Pipeline
from tailer.pipeline.policy import OnDataLoss
from tailer.pipeline.retention import VacuumWatch
from tailer.pipeline.retry import Retries
from tailer.pipeline.row_ids import RowIdReport
from tailer.pipeline.status import PipelineStatus
from tailer.pipeline.wakeup import TimerWake, Wake
from tailer.plan import Position, output_schema
from tailer.progress.lookup import app_id_of, check_new, find_progress
from tailer.sink import Append, Appendable, Progress, Sink
from tailer.spark.write.appends import RangeAppend
from tailer.spark.write.delta_session import check_delta
from tailer.spark.write.version_ranges import RANGE_VERSIONS, VersionRange, VersionRanges, splits_of
from tailer.start import Start, StartKind, StartPoint
from tailer.table_log import TableLog

__all__ = ["DeltaPipeline", "delta_pipeline"]

_log = logging.getLogger(__name__)
# Starts after which the first version may change the columns.
_KNOWN_COLUMNS: Final = (StartKind.LATEST, StartKind.SNAPSHOT)
_BETWEEN_VERSIONS: Final = (StartKind.LATEST, StartKind.TIMESTAMP)
STOP_AGAIN_S: Final = 0.2  # a job that reaches Spark only after the stop is stopped at the next try


class AppendableSink(Sink, Appendable, Protocol):
    """A sink that is also `Appendable`."""


def delta_pipeline(
    settings: PipelineSettings,
    table: TableLog,
    sink: Sink,
    session: Callable[[], SparkSession],
    engine: Engine,
    wake: Wake,
    limits: Limits | None = None,
    until: int | None = None,
    range_versions: int = RANGE_VERSIONS,
    status: PipelineStatus | None = None,
) -> "DeltaPipeline":
    """Make the pipeline for `settings` whose `write` is `executors`, into `sink`, which must be `Appendable`.

    `session`: returns a session with Delta (`tailer.spark.write.delta_session`), called in a worker thread. `engine`:
    the engine of the driver's own pipeline. `until`: the last version to deliver; None: continue until `stop`.
    `range_versions`: how many may share a commit. Raises `ConfigError` for another sink, and for a policy that
    executors cannot follow.
    """
    if settings.policy.on_data_loss is not OnDataLoss.FAIL:
        reason = f"is {settings.policy.on_data_loss}, and only the driver can announce a gap"
        raise ConfigError(f"{settings.name}.on_data_loss", reason, 'Leave it out, or set write = "driver".')
    if not isinstance(sink, Appendable):
        reason = f"is a {settings.sink_kind} sink, to which Spark's Delta writer cannot append"
        raise ConfigError(f"{settings.name}.sink", reason, 'Set write = "driver".')
    limits = limits or Limits(poll_interval_s=settings.poll_interval_s)
    return DeltaPipeline(settings, table, sink, session, engine, wake, limits, until, range_versions, status)


class DeltaPipeline:
    """See `delta_pipeline`."""

    def __init__(
        self,
        settings: PipelineSettings,
        table: TableLog,
        sink: AppendableSink,
        session: Callable[[], SparkSession],
        engine: Engine,
        wake: Wake,
        limits: Limits,
        until: int | None,
        range_versions: int,
        status: PipelineStatus | None,
    ) -> None:
        self._name = settings.name
        self._settings = settings
        self._table = table
        self._sink = sink
        self._open_session = session
        self._engine = engine
        self._wake = wake
        self._limits = limits
        self._until = until
        self._watch = VacuumWatch(settings.name)
        self._row_ids = RowIdReport(settings.name) if settings.policy.row_ids else None
        self._status = status or PipelineStatus(settings.name, counts_rows=False)
        self._retries = Retries(settings.name, limits.retry_for_s, self._status)
        self._finishing: Pipeline | None = None
        self._session: SparkSession | None = None
        self._most_versions = range_versions
        self._under_way: VersionRange | None = None
        self._table_id: str | None = None

    def stop(self) -> None:
        """Finish the current range and return from `run`."""
        self._retries.stop()
        if self._finishing is not None:
            self._finishing.stop()
        self._wake.ring()

    async def run(self) -> None:
        """Deliver until `until` or `stop`. Cancelled, it stops the running job.

        Raises the `TailerError` that needs a person, or that lasted longer than `Limits.retry_for_s`.
        """
        async with self._wake:
            await self._retries.run(self._deliver_all)

    async def _deliver_all(self) -> bool:
        """Run a session: deliver everything after the sink's progress. Return False to repeat with fewer versions."""
        self._under_way = None
        self._session = await to_thread.run_sync(self._ready)
        try:
            return await self._deliver_from(await self._progress())
        except (SinkRejected, LogError, ChangeError, ConfigError) as error:
            fewer = self._before(error)
            if fewer == 0 or self._retries.is_stopping():
                raise
            _log.warning("%s: %s; continuing with fewer versions at once", self._name, error)
            self._most_versions = fewer
            return False
        finally:
            self._watch.forget()

    def _before(self, error: TailerError) -> int:
        """Return how many versions of the current range to deliver before the failed one; 0: none."""
        version_range, at = self._under_way, getattr(error, "version", None)
        if version_range is None:
            return 0
        if at is None:
            return (version_range.last - version_range.first + 1) // 2
        return at - version_range.first if version_range.first < at <= version_range.last else 0

    def _ready(self) -> SparkSession:
        session = self._open_session()
        if session is not self._session:
            check_delta(session)
        return session

    async def _progress(self) -> Progress | None:
        """Return the sink's progress, after finishing a snapshot that was left unfinished."""
        progress = await find_progress(self._name, self._table, await self._table.table_id(), self._sink)
        if progress is not None and progress.position.in_snapshot:
            await self._finish_snapshot(progress.position.version)
            progress = await find_progress(self._name, self._table, await self._table.table_id(), self._sink)
        if progress is not None and not await self._sink.has_delivered(self._name):
            # Spark's first commit does not record it.
            await self._sink.reset(progress)
        return progress

    async def _finish_snapshot(self, version: int) -> None:
        """Deliver the rest of a snapshot that takes several commits."""
        settings, end = self._settings, Start(StartKind.VERSION, version)
        self._finishing = Pipeline(
            self._name,
            self._table,
            self._sink,
            self._engine,
            TimerWake(),
            settings.start,
            end,
            settings.policy,
            self._limits,
            status=self._status,
        )
        if not self._retries.is_stopping():
            await self._finishing.run()
        self._finishing = None

    async def _deliver_from(self, progress: Progress | None) -> bool:
        if self._retries.is_stopping():
            return True
        first = await self._begin() if progress is None else progress.position.version + 1
        if progress is not None:
            self._table_id = progress.app_id.removeprefix(f"{self._name}/")
        schema = self._settings.policy.shape_schema(await self._table.seek(first))
        await self._check_lineage(first)
        if progress is None and self._settings.start.kind not in _KNOWN_COLUMNS:
            schema = None
        version_ranges = VersionRanges(
            self._table,
            self._settings.policy,
            self._settings.policy.shape,
            schema,
            self._until,
        )
        while not self._retries.is_stopping() and (self._until is None or first <= self._until):
            version_range = await version_ranges.next(self._most_versions)
            if version_range is None:
                await self._wait()
                continue
            await self._look_back(version_range)
            await self._deliver(version_range, version_range.first)
            first = version_range.last + 1
        return True

    async def _begin(self) -> int:
        """Deliver the start of a pipeline without progress, and return the version to continue with."""
        start, table = self._settings.start, self._table
        await check_new(self._name, table, await table.table_id(), self._sink)
        point: StartPoint = await table.resolve(start)
        self._table_id = None
        if self._until is not None and point.version - (start.kind in _BETWEEN_VERSIONS) > self._until:
            reason = f"version {point.version} comes after the end, version {self._until}"
            raise ConfigError("start", reason, "Give an earlier start, such as `earliest`, or a later end.")
        if point.snapshot:
            async with aclosing(table.snapshot_plans(point.version)) as pages:
                version_range = VersionRange(tuple([self._settings.policy.shape(page) async for page in pages]))
            await self._deliver(version_range, point.version)
            return point.version + 1
        schema = self._settings.policy.shape_schema(await table.seek(point.version))
        if start.kind is StartKind.LATEST and table.state_id is not None:
            # Recorded at once: what arrives between now and the first delivery must survive a restart.
            await self._close(table.state_id, schema or pa.schema([]), point.version - 1)
            self._table_id = table.state_id
        return point.version

    async def _check_lineage(self, version: int) -> None:
        """Raise `TableReplaced` if the log belongs to another table than the one being delivered."""
        followed, found = self._table_id, self._table.state_id
        if followed is None or found is None or followed == found:
            return
        if followed not in await self._table.ids(-1):
            raise TableReplaced(self._table.uri, version, followed, found)

    async def _deliver(self, version_range: VersionRange, version: int) -> None:
        """Deliver the range, which begins with `version`, in one commit."""
        self._under_way = version_range
        await self._turn_to(version_range.table_id, version)
        if self._row_ids is not None:
            for plan in version_range.plans:
                self._row_ids.note(plan)
        if version_range.has_rows:
            append = await self._sink.appending(app_id_of(self._name, version_range.table_id), version_range.schemas)
            splits = await to_thread.run_sync(splits_of, version_range, self._settings.pairing)
            assert self._session is not None, "opened with the session"
            write = RangeAppend(self._session, self._sink.name, append, splits, version_range.last)
            await self._append(write, append, Position.end(version_range.last))
        else:
            await self._close(version_range.table_id, version_range.plans[-1].schema, version_range.last)
        _log.info("%s: delivered up to version %d", self._name, version_range.last)
        if self._table_id is None and not await self._sink.has_delivered(self._name):
            await self._sink.reset(
                Progress(app_id_of(self._name, version_range.table_id), Position.end(version_range.last))
            )
        self._table_id = version_range.table_id
        self._under_way = None
        self._retries.note_success()

    async def _turn_to(self, table_id: str, version: int) -> None:
        """Continue under the app_id of `table_id` from `version` on, if it is another one."""
        if self._table_id in (None, table_id):
            return
        app_id = app_id_of(self._name, table_id)
        found = await self._sink.progress(app_id)
        if found is not None and found.position.version >= version:
            raise SinkFenced(self._sink.name, f"{app_id} is at version {found.position.version} already")
        if found is not None:
            await self._sink.reset(Progress(app_id, Position.end(version - 1)))
        _log.info("%s: version %d replaces the table; continuing as %s", self._name, version, app_id)

    async def _append(self, write: RangeAppend, append: Append, position: Position) -> None:
        """Run the append; raises unless our commit took place."""
        await self._table.confirm(None)  # the target has whole versions only
        failure: TailerError | None = None
        try:
            await _run(write)
        except (EngineUnavailable, SinkUnavailable, SinkFenced) as error:
            failure = error
        with anyio.CancelScope(shield=True):
            if not await self._sink.confirm(append, position):
                raise failure or SinkUnavailable(self._sink.name, "Spark has committed nothing and given no reason")

    async def _close(self, table_id: str, schema: pa.Schema, version: int) -> None:
        """Commit without rows that everything up to `version` is delivered."""
        app_id = app_id_of(self._name, table_id)
        async with self._sink.begin(app_id, output_schema(schema)) as transaction:
            try:
                with anyio.CancelScope(shield=True), anyio.fail_after(self._limits.commit_deadline_s):
                    await transaction.commit(Progress(app_id, Position.end(version)))
            except TimeoutError as error:
                reason = f"no answer within {self._limits.commit_deadline_s:g} s"
                raise CommitUnknown(self._sink.name, reason) from error

    async def _wait(self) -> None:
        self._retries.note_success()
        if self._table.retention_ms is not None:
            self._watch.caught_up(self._table.retention_ms)
        await self._wake.wait(self._limits.poll_interval_s)

    async def _look_back(self, version_range: VersionRange) -> None:
        kept_ms = self._table.retention_ms
        if kept_ms is not None:
            self._watch.report(
                await self._table.latest() - version_range.first + 1, version_range.plans[0].timestamp_ms, kept_ms
            )


async def _run(write: RangeAppend) -> None:
    """Run `write` to its end. If cancelled, stop it and return when it has ended."""
    stopping = _Stopping(write)
    async with background() as group:
        group.start_soon(stopping.stop_when_cancelled)
        try:
            await to_thread.run_sync(write.run)
        finally:
            stopping.ended.set()


class _Stopping:
    def __init__(self, write: RangeAppend) -> None:
        self.ended = anyio.Event()
        self._write = write

    async def stop_when_cancelled(self) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                while not self.ended.is_set():
                    await to_thread.run_sync(self._write.stop)
                    with anyio.move_on_after(STOP_AGAIN_S):
                        await self.ended.wait()
