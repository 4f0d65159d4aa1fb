"""The loop of one (table, sink): wait -> plan -> run -> commit.

Where we are is what the sink says (invariant 2). A session asks the sink, seeks the table to what comes next and
delivers from there; any error ends the session, everything it knew is forgotten, and the next session asks again.
This is the only place that retries.

Rows of consecutive versions share a transaction while there is a backlog, within `Limits`; a version larger than the
limits is split where the sink can store a position inside a version, and otherwise delivered whole. Caught up means
commit now: batching never adds latency.
"""

import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from typing import Final

import anyio
import pyarrow as pa
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_random_exponential

from tailer.engine import Engine
from tailer.errors import CommitUnknown, ConfigError, Retry, TableReplaced, TailerError
from tailer.events import ChangeBatch
from tailer.plan import ChangePlan, Position, Regime, Start, StartKind, StartPoint, TableLog, output_schema
from tailer.sink import Progress, Sink, SinkTransaction
from tailer.watch import Wake

__all__ = ["Limits", "Pipeline"]

_log = logging.getLogger(__name__)
_RETRIED: Final = (Retry.TIMED, Retry.ASK)
_BETWEEN_VERSIONS: Final = (StartKind.LATEST, StartKind.TIMESTAMP)


@dataclass(frozen=True, slots=True)
class Limits:
    """How much shares one sink transaction, and how long to wait for what.

    A transaction is closed when any of `max_versions`, `max_rows`, `max_bytes` (of Arrow memory) or `max_seconds` is
    reached. `poll_interval_s`: how often to look for a new version without a notification. `commit_deadline_s`: how
    long a commit may take before its outcome counts as unknown. `retry_for_s`: how long after a failure to try again
    without any success before giving up.
    """

    max_versions: int = 1000
    max_rows: int = 1_000_000
    max_bytes: int = 256 * 2**20
    max_seconds: float = 5.0
    poll_interval_s: float = 1.0
    commit_deadline_s: float = 120.0
    retry_for_s: float = 600.0


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
        columns: tuple[str, ...] = (),
        limits: Limits | None = None,
    ) -> None:
        self._name = name
        self._table = table
        self._sink = sink
        self._engine = engine
        self._wake = wake
        self._start = start
        self._until = until
        self._columns = columns
        self._limits = limits or Limits()
        self._stopping = anyio.Event()
        self._succeeded = False
        self._failing_since = 0.0

    def stop(self) -> None:
        """Finish the version under way, commit it and return from `run`."""
        self._stopping.set()
        self._wake.ring()

    async def run(self) -> None:
        """Deliver until `until` is closed or `stop` is called.

        Raises the `TailerError` that a person must look at, or that did not pass within `Limits.retry_for_s`.
        """
        async with self._wake:
            again = True
            while again:
                retrying = AsyncRetrying(
                    retry=retry_if_exception(self._may_pass),
                    wait=wait_random_exponential(multiplier=0.5, max=30.0),
                    stop=self._gives_up,
                    sleep=self._pause,
                    before_sleep=self._report,
                    reraise=True,
                )
                again = await retrying(self._attempt)

    async def _attempt(self) -> bool:
        """One session; True asks for a fresh streak of attempts, because this one had success before it failed."""
        if self._stopping.is_set():
            return False
        self._succeeded = False
        try:
            await self._session()
        except TailerError as error:
            if not self._succeeded or not self._may_pass(error):
                raise
            _log.warning("%s: %s; starting again from the sink's progress", self._name, error)
            return True
        return False

    def _may_pass(self, error: BaseException) -> bool:
        return isinstance(error, TailerError) and error.retry in _RETRIED and not self._stopping.is_set()

    def _gives_up(self, state: RetryCallState) -> bool:
        """Whether `retry_for_s` have passed since the streak's first failure, however long that attempt took."""
        if state.attempt_number == 1:
            self._failing_since = time.monotonic()
        return time.monotonic() - self._failing_since >= self._limits.retry_for_s

    def _report(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        _log.warning("%s: %s; trying again in %.1f s", self._name, error, state.upcoming_sleep)

    async def _pause(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await self._stopping.wait()

    async def _session(self) -> None:
        table_id = await self._table.table_id()
        app_id = f"{self._name}/{table_id}"
        progress = await self._sink.progress(app_id)
        last = await self._table.resolve_end(self._until) if self._until is not None else None
        async with _Delivery(self._name, app_id, self._sink, self._limits, self._note_success) as delivery:
            async with aclosing(self._plans(delivery, table_id, progress, last)) as plans:
                async for plan, after in plans:
                    if self._stopping.is_set():
                        break
                    if plan.table_id != table_id:
                        raise TableReplaced(plan.table, plan.version, table_id, plan.table_id)
                    await self._deliver(delivery, self._select(plan), after)
            await delivery.commit()

    def _note_success(self) -> None:
        self._succeeded = True

    async def _plans(
        self, delivery: "_Delivery", table_id: str, progress: Progress | None, last: int | None
    ) -> AsyncGenerator[tuple[ChangePlan, Position | None], None]:
        """What is to be delivered, with the position already delivered; ends at `last` or when stopping."""
        point, after = await self._next(progress, last)
        if point.snapshot:
            yield await self._table.snapshot_plan(point.version), after
            point, after = StartPoint(point.version + 1), None
        version = point.version
        schema = await self._table.seek(version)
        if progress is None and self._start.kind is StartKind.LATEST:
            # Recorded at once, as if the version before were empty: what arrives between now and the first delivery
            # must survive a restart.
            columns = schema or pa.schema([])
            yield ChangePlan(self._table.uri, table_id, version - 1, 0, None, Regime.NONE, columns, tasks=()), None
            await delivery.commit()
        while not self._stopping.is_set() and (last is None or version <= last):
            plan = await self._table.next_plan()
            if plan is None:
                await delivery.commit()
                self._note_success()
                await self._wake.wait(self._limits.poll_interval_s)
                continue
            yield plan, after
            version, after = version + 1, None

    async def _next(self, progress: Progress | None, last: int | None) -> tuple[StartPoint, Position | None]:
        """What comes first: the version, whether as a snapshot, and the position in it that was delivered already."""
        if progress is not None:
            after = progress.position
            return StartPoint(after.version + after.closes_version, after.in_snapshot), after
        point = await self._table.resolve(self._start)
        first = point.version - (self._start.kind in _BETWEEN_VERSIONS)
        if last is not None and first > last:
            reason = f"version {first} comes after the end, version {last}"
            raise ConfigError("start", reason, "Give an earlier start, such as `earliest`, or a later end.")
        return point, None

    async def _deliver(self, delivery: "_Delivery", plan: ChangePlan, after: Position | None) -> None:
        schema = output_schema(plan.schema)
        async with self._engine.run(plan, after) as batches:
            async for batch in batches:
                await delivery.write(batch, schema)
        await delivery.close_version(plan.version, schema)

    def _select(self, plan: ChangePlan) -> ChangePlan:
        return plan.select(self._columns) if self._columns else plan


class _Delivery:
    """The sink's side of a session: at most one open transaction, and how full it is."""

    def __init__(self, name: str, app_id: str, sink: Sink, limits: Limits, committed: Callable[[], None]) -> None:
        self._name = name
        self._app_id = app_id
        self._sink = sink
        self._limits = limits
        self._stack = AsyncExitStack()
        self._transaction: SinkTransaction | None = None
        self._schema: pa.Schema | None = None
        self._position: Position | None = None
        self._versions = self._rows = self._bytes = 0
        self._since = 0.0
        self._committed = committed

    async def __aenter__(self) -> "_Delivery":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.__aexit__(*error)  # type: ignore[arg-type]

    @property
    def _is_due(self) -> bool:
        """Whether the transaction is as large, or as old, as it should get."""
        return (
            self._versions >= self._limits.max_versions
            or self._rows >= self._limits.max_rows
            or self._bytes >= self._limits.max_bytes
            or time.monotonic() - self._since >= self._limits.max_seconds
        )

    async def _open(self, schema: pa.Schema) -> SinkTransaction:
        """The transaction for rows of `schema`: the open one, unless it is of another schema."""
        if self._transaction is not None and self._schema != schema:
            await self.commit()
        if self._transaction is None:
            self._versions = self._rows = self._bytes = 0
            self._since = time.monotonic()
            self._schema = schema
            self._transaction = await self._stack.enter_async_context(self._sink.begin(self._app_id, schema))
        return self._transaction

    async def write(self, batch: ChangeBatch, schema: pa.Schema) -> None:
        """Write a batch; commit behind it where the sink can and the transaction is due."""
        transaction = await self._open(schema)
        await transaction.write(batch)
        self._position = Position(batch.version, batch.task, batch.last_row)
        self._rows += len(batch)
        self._bytes += batch.size_bytes
        if self._sink.splits_versions and self._is_due:
            await self.commit()

    async def close_version(self, version: int, schema: pa.Schema) -> None:
        """Note that nothing of `version` is left; commit if the transaction is due."""
        await self._open(schema)
        self._position = Position.end(version)
        self._versions += 1
        if self._is_due:
            await self.commit()

    async def commit(self) -> None:
        """Make what is open visible, with its progress. Not cancelled once begun; late is unknown, not failed."""
        if self._transaction is None or self._position is None:
            return
        progress = Progress(self._app_id, self._position)
        try:
            with anyio.CancelScope(shield=True), anyio.fail_after(self._limits.commit_deadline_s):
                await self._transaction.commit(progress)
        except TimeoutError as error:
            reason = f"no answer within {self._limits.commit_deadline_s:g} s"
            raise CommitUnknown(self._sink.name, reason) from error
        self._transaction = None
        self._committed()
        await self._stack.aclose()
        _log.info("%s: delivered up to version %d (%d rows)", self._name, self._position.version, self._rows)
