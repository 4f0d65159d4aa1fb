"""The processes of a run: the product's pipeline as `tailer run` makes it, with the judge looking over its shoulder.

A destination without transactions is here, too: it takes rows at once, and its progress is in the product's own state
table in the bucket.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import pyarrow as pa

from tailer.config.pipelines import PipelineSettings, Settings
from tailer.config.shapes import EngineKind
from tailer.config.tables import open_files
from tailer.daemon import serve
from tailer.daemon.engines import Engines
from tailer.daemon.fleet.fleet import make_run
from tailer.daemon.runs import Run
from tailer.daemon.standby import standing_by
from tailer.engine.local import LocalEngine
from tailer.errors import SinkUnavailable
from tailer.events import ChangeBatch, ControlEvent, Gap
from tailer.pipeline.policy import Limits
from tailer.pipeline.status import PipelineState, PipelineStatus
from tailer.plan import SNAPSHOT_TASKS, TASKS, Position
from tailer.sink import AtLeastOnceSink, Progress, Sink, SinkTransaction, SinkWrapper, TransactionWrapper
from tests.simulation.network import Fault, Network, NoAnswer
from tests.simulation.oracle import Announced, Change, Judge, Transaction, Violation, is_backfill
from tests.simulation.physics import PROCESS, Process
from tests.simulation.scenario import Scenario
from tests.simulation.table import row_of

__all__ = ["LAKE", "PIPELINE", "Daemon", "Endpoint", "LinesSink", "Status", "WatchedSink"]

T = TypeVar("T")

PIPELINE: Final = "p"
LAKE: Final = "s3://lake"
_PATH: Final = Path("/simulated/tailer.toml")


class Surroundings(Protocol):
    """The part of the world that a process uses."""

    scenario: Scenario
    network: Network
    judge: Judge
    kept_order: Any

    def judged(self, look: Callable[[], None]) -> None:
        """Let the judge look."""
        ...

    def keep_order(self, order: Any) -> None:
        """Keep an order to backfill over restarts."""
        ...

    def pipeline(self) -> PipelineSettings:
        """Return the settings of the pipeline."""
        ...

    def look(self) -> None:
        """Let the judge look at a destination that does not report its transactions."""
        ...


class Status(PipelineStatus):
    """A status that tells the judge where sessions go on."""

    world: Surroundings
    session_s = 0.0
    run_s = 0.0

    def note_start(self) -> None:
        self.run_s = self.world.network.physics.now_s
        self.session_s = self.world.network.physics.now_s
        super().note_start()

    def note_error(self, error: BaseException) -> None:
        self.session_s = self.world.network.physics.now_s
        self.world.network.trace.add(f"ERROR {type(error).__name__}: {error}")
        super().note_error(error)

    def note_resume(self, position: Position | None) -> None:
        self.world.network.trace.add(f"RESUME after {position}")
        self.world.look()
        # With an old listing, the destination itself says what was true before.
        since_s = 0.0 if Fault.STALE in self.world.network.seen else self.session_s
        self.world.judged(lambda: self.world.judge.check_resume(position, since_s))
        super().note_resume(position)


class WatchedSink(SinkWrapper):
    """A sink of a process whose rows the judge sees before they are committed."""

    def __init__(self, sink: Sink, world: Surroundings, limits: Limits) -> None:
        super().__init__(sink)
        self._world, self._limits = world, limits.within(sink.demands)

    def begin(self, app_id: str, schema: pa.Schema) -> Any:
        begun, outer = super().begin(app_id, schema), self

        class Begun:
            async def __aenter__(self) -> SinkTransaction:
                return _Transaction(await begun.__aenter__(), outer._world, outer._limits, outer.splits_versions)

            async def __aexit__(self, *error: Any) -> bool | None:
                return await begun.__aexit__(*error)

        return Begun()


class _Transaction(TransactionWrapper):
    def __init__(self, transaction: SinkTransaction, world: Surroundings, limits: Limits, splits: bool) -> None:
        super().__init__(transaction)
        self.writes_together = transaction.writes_together
        self._world, self._limits, self._splits = world, limits, splits
        self._rows, self._last = 0, -1

    async def write(self, batch: ChangeBatch) -> None:
        await self.write_all([batch])

    async def write_all(self, batches: Any) -> None:
        self._world.judged(lambda: self._check(batches))
        await self._transaction.write_all(batches)

    async def commit(self, progress: Progress) -> None:
        try:
            await super().commit(progress)
        finally:
            self._world.look()

    def _check(self, batches: Any) -> None:
        may_end = self._splits or batches[0].version != self._last
        if may_end and self._rows >= self._limits.max_rows and self._last >= 0:
            raise Violation(7, f"a transaction with {self._rows} rows goes on, and may have {self._limits.max_rows}")
        for batch in batches:
            self._rows += len(batch)
            self._last = batch.version
            for row, index in zip(batch.rows.to_pylist(), batch.row_index.to_pylist(), strict=True):
                place = (batch.table_id, batch.version, batch.task, index, row["_change_type"])
                self._world.judge.check_row(place, row_of(row))


class Daemon:
    """The pipeline of one process."""

    def __init__(self, world: Surroundings, process: Process) -> None:
        self.world, self.process = world, process
        self.pipeline: Run | None = None
        self.ended = False
        self.again = False

    @property
    def delivers(self) -> bool:
        """Return whether it is at work, and does not stand by."""
        state = None if self.pipeline is None else self.pipeline.status.state
        return state is not None and (state.delivers or state in (PipelineState.STARTING, PipelineState.RETRYING))

    async def run(self) -> None:
        """Run until it is ended."""
        world = self.world
        files = open_files()
        engines = Engines(EngineKind.LOCAL, LocalEngine(2, files), files, None)
        opened: list[Sink] = []
        while not self.ended:
            self.again = False
            pipeline = world.pipeline()
            settings = Settings(path=_PATH, state_table=f"{LAKE}/state", drain_s=10.0, pipelines=(pipeline,))
            status = Status(PIPELINE)
            status.world = world
            status.backfills.restore(world.kept_order, world.keep_order)
            make: Any = partial(serve.make_work, settings, engines, opened)
            if world.scenario.standby:
                make = standing_by(make, self.process.name, settings.standby_after_s)
            self.pipeline = make_run(pipeline, status, partial(make, pipeline, status, False))
            await self.pipeline.run(lambda _: None)
            self.ended = not self.again
        self.world.network.trace.add("ended")

    async def reload(self) -> None:
        """End the pipeline, and begin it with settings that are read again."""
        self.again = True
        if self.pipeline is not None:
            await self.pipeline.finish("its settings changed", 10.0)


class Endpoint:
    """A server that takes rows and has no transactions; `judge` accepts repetitions.

    Rows of backfills, a stream of their own, come among those of changes: two instances may send both at a time. Their
    task numbers tell them apart, as those of real messages do. Nothing tells two backfills of a version apart, so each
    has all rows that came since it was recorded last. A snapshot may be begun and given up before anything is recorded,
    and the next one of this process be of another version: rows of the former count for nothing.
    """

    def __init__(self, network: Network, judge: Judge) -> None:
        self.network = network
        self.judge = judge
        self.app_id = ""
        self._early: list[Change | Announced] = []
        self._backfilled: list[Change] = []
        self._recorded: dict[str, int] = {}  # by backfill: the number of rows that had come
        self._closed = 0  # the number before the last rows of a backfill that has ended

    def take(self, items: Sequence[Change | Announced]) -> None:
        """Take rows for good."""
        self._early += items

    def take_backfill(self, items: Sequence[Change]) -> None:
        """Take rows of a backfill for good."""
        self._backfilled += items

    def recorded(self, app_id: str, position: Position) -> None:
        """Judge what has come when progress is recorded: it must be everything up to there."""
        if is_backfill(app_id):  # an earlier one, which was never finished, may have left rows of another version
            since = self._recorded.get(app_id, self._closed)
            backfilled = [item for item in self._backfilled[since:] if item.version == position.version]
            self._recorded[app_id] = len(self._backfilled)
            self._closed = since if position.closes_version else self._closed
            self.judge.see(Transaction(app_id, backfilled, position), self.network.physics.now_s)
            return
        items = [item for item in self._early if not self._is_given_up(item)]
        later: list[Change | Announced] = [
            item for item in items if isinstance(item, Change) and item.version > position.version
        ]
        known = [item for item in items if item not in later]
        self.judge.see(Transaction(app_id, known, position), self.network.physics.now_s)
        self._early = later

    def _is_given_up(self, item: Change | Announced) -> bool:
        return isinstance(item, Change) and item.of_snapshot and item.version not in self.judge.begun_with.values()


class LinesSink(AtLeastOnceSink):
    """A sink without transactions that sends each batch to `endpoint`."""

    name = "lines"
    writes_together = False

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def write(self, batch: ChangeBatch) -> None:
        """See `AtLeastOnceSink.write`."""
        rows: list[dict[str, Any]] = batch.rows.to_pylist()
        whole = SNAPSHOT_TASKS <= batch.task < SNAPSHOT_TASKS + TASKS
        changes = [Change(row["_change_type"], row["_commit_version"], row_of(row), whole) for row in rows]
        if batch.task >= SNAPSHOT_TASKS + TASKS:
            await self._send(changes, self._endpoint.take_backfill)
            return
        if whole:
            process = PROCESS.get()
            assert process is not None, "sent by one"
            self._endpoint.judge.begun_with[process.name] = batch.version
        await self._send(changes, self._endpoint.take)

    async def announce(self, event: ControlEvent) -> None:
        """See `AtLeastOnceSink.announce`."""
        if isinstance(event, Gap):
            gap = Announced("gap", event.version, event.first_version, event.snapshot)
            await self._send([gap], self._endpoint.take)

    async def _send(self, items: Sequence[T], take: Callable[[Sequence[T]], None]) -> None:
        try:
            await self._endpoint.network.send(f"POST {len(items)} rows", lambda: take(items))
        except NoAnswer as error:
            raise SinkUnavailable(self.name, str(error)) from error

    async def flush(self) -> None:
        """See `AtLeastOnceSink.flush`."""

    async def aclose(self) -> None:
        """See `AtLeastOnceSink.aclose`."""
