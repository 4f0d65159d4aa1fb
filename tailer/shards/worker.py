"""Delivering one shard: what an executor does, and nothing of exactly-once is written anew for it.

A shard is a `Pipeline` under a name of its own, bounded by a version, whose engine leaves out the rows of other shards
(`tailer.shards.assignment`). Attempts at one shard may follow each other or run side by side, on whichever machine:
each begins with what the sink has of the shard, and the later one fences the earlier.

Who is fenced waits for the other to finish: as long as the shard moves, somebody is delivering it. Only if it stands
still for `ShardWork.patience_s`, and each time twice as long, it takes over again: so of two attempts one gets as much
time as its longest transaction needs, and no task fails because another one does its work.
"""

import logging
import pickle
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

import anyio

from tailer.changelog.carryovers import ChangelogCounts
from tailer.changelog.engine import ChangelogEngine
from tailer.config.pipelines import PipelineSettings
from tailer.delta.table import DeltaTableLog
from tailer.engine.local import LocalEngine
from tailer.engine.port import Engine
from tailer.errors import ConfigError, Retry, SinkFenced, TailerError
from tailer.pipeline.loop import Limits, Pipeline
from tailer.pipeline.status import PipelineStatus
from tailer.pipeline.wakeup import TimerWake
from tailer.plan import ChangePlan, Position
from tailer.progress.lookup import find_progress
from tailer.shards.assignment import KeyShards, TaskShards
from tailer.shards.resharding import LayoutSink, place_of
from tailer.sink import Sink, shard_name
from tailer.start import Start, StartKind
from tailer.stores.local import LocalStore

__all__ = ["ShardReport", "ShardWork", "deliver_shard", "make_sink"]

_log = logging.getLogger(__name__)

PATIENCE_S: Final = 15.0
LOOK_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class ShardWork:
    """The versions up to and including `until` of a shard of a pipeline. Its options, never shown, may hold secrets.

    `patience_s`: how long a shard must stand still until who was fenced takes it over again.
    """

    settings: PipelineSettings
    shard: int
    until: int
    patience_s: float = PATIENCE_S

    @property
    def name(self) -> str:
        """What the shard is called as a pipeline."""
        return shard_name(self.settings.name, self.shard, self.settings.shards)


@dataclass(slots=True)
class ShardReport:
    """What became of a shard. `error`: what stopped it, None where it is delivered; `compared`: what was found out
    about each version that this attempt compared (`tailer.changelog.report`); `rows`: how many it committed.
    """

    shard: int
    error: TailerError | None = None
    compared: list[tuple[ChangePlan, ChangelogCounts]] = field(default_factory=list)
    rows: int = 0

    def note(self, plan: ChangePlan, counts: ChangelogCounts) -> None:
        """`counts` were found in the version of `plan`."""
        self.compared.append((replace(plan, tasks=()), counts))


def deliver_shard(work: ShardWork) -> Iterator[bytes]:
    """Deliver it; yields one pickled `ShardReport`. An error that is ours is in there: to try again would not help."""
    report = ShardReport(work.shard)
    try:
        anyio.run(_deliver, work, report)
    except TailerError as error:
        _log.warning("%s: %s", work.name, error)
        report.error = error
    yield pickle.dumps(report)


def make_sink(settings: PipelineSettings) -> Sink:
    """The pipeline's sink, which several processes may write. Raises `ConfigError` where they may not; no I/O."""
    sink = settings.make_sink()
    if not isinstance(sink, Sink) or not sink.distributes:
        reason = f"a {settings.sink_kind} sink is written by one process"
        raise ConfigError(f"{settings.name}.write", reason, 'Leave write out, or deliver to a sink of kind = "kafka".')
    return sink


async def _deliver(work: ShardWork, report: ShardReport) -> None:
    patience_s = work.patience_s
    while True:
        try:
            await _attempt(work, report)
        except SinkFenced as error:
            _log.info("%s: %s; waiting for it", work.name, error)
        else:
            return
        # Not in step with another one that does the same.
        if await _is_finished(work, patience_s * random.uniform(1, 2)):
            return
        _log.info("%s: stands still; taking over again", work.name)
        patience_s *= 2


async def _attempt(work: ShardWork, report: ShardReport) -> None:
    settings = work.settings
    table, sink, status = _open_table(settings), make_sink(settings), PipelineStatus(work.name)
    try:
        await place_of(work.name, table, sink)
        pipeline = Pipeline(
            work.name,
            table,
            LayoutSink(sink, settings.name, settings.shards),
            _engine(work, sink, report),
            TimerWake(),
            settings.start,
            Start(StartKind.VERSION, work.until),
            settings.policy,
            Limits(poll_interval_s=settings.poll_interval_s),
            status=status,
        )
        await pipeline.run()
    finally:
        report.rows += status.rows
        with anyio.CancelScope(shield=True):
            await sink.aclose()


async def _is_finished(work: ShardWork, patience_s: float) -> bool:
    """Wait while the shard moves: whether it has got to its end. Raises `SinkFenced` if it is none any more."""
    settings = work.settings
    table, sink = _open_table(settings), make_sink(settings)
    seen: Position | None = None
    deadline = anyio.current_time() + patience_s
    try:
        while anyio.current_time() < deadline:
            try:
                found = await find_progress(work.name, table, await table.table_id(), sink)
                await LayoutSink(sink, settings.name, settings.shards).check()
            except TailerError as error:
                if error.retry not in (Retry.ASK, Retry.TIMED):
                    raise
                _log.debug("%s: %s", work.name, error)
            else:
                if found is not None and found.position >= Position.end(work.until):
                    return True
                if found is not None and found.position != seen:
                    seen, deadline = found.position, anyio.current_time() + patience_s
            await anyio.sleep(min(LOOK_S, patience_s / 10))
    finally:
        with anyio.CancelScope(shield=True):
            await sink.aclose()
    return False


def _engine(work: ShardWork, sink: Sink, report: ShardReport) -> Engine:
    settings = work.settings
    local, note = LocalEngine(threads=1), report.note
    if sink.demands.key:
        return KeyShards(ChangelogEngine(local, settings.pairing, note), work.shard, settings.shards)
    return ChangelogEngine(TaskShards(local, work.shard, settings.shards), settings.pairing, note)


def _open_table(settings: PipelineSettings) -> DeltaTableLog:
    return DeltaTableLog(LocalStore(settings.table), catalog=settings.make_catalog())
