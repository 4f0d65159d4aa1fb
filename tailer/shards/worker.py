"""Delivery of one shard by an executor, with the same exactly-once machinery as any pipeline.

A shard is a `Pipeline` with its own name and a last version, whose engine leaves out the rows of other shards
(`tailer.shards.assignment`). Attempts at one shard may run one after the other or at the same time, on any machine.
Each begins with the progress of the shard in the sink, and the later attempt fences the earlier one.

A fenced attempt polls the shard's progress. While it advances, another attempt is live and this one waits. It takes
over again only after the shard has stood still for `ShardWork.patience_s`, doubled each time. So one of two attempts
gets as much time as its longest transaction needs, and no task fails because another one does its work.
"""

import logging
import pickle
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

import anyio

from tailer.changelog.carryovers import ChangelogCounts
from tailer.changelog.engine import ChangelogEngine
from tailer.config.pipelines import PipelineSettings
from tailer.config.tables import open_files
from tailer.engine.local import LocalEngine
from tailer.engine.port import Engine
from tailer.errors import ConfigError, Retry, SinkFenced, TailerError
from tailer.pipeline.row_delivery import row_pipeline
from tailer.pipeline.status import PipelineStatus
from tailer.plan import ChangePlan, Position
from tailer.progress.lookup import find_progress
from tailer.shards.assignment import KeyShards, TaskShards
from tailer.shards.division import Division
from tailer.shards.resharding import LayoutSink, place_of
from tailer.sink import Sink, shard_name
from tailer.start import Start, StartKind
from tailer.stores.wakeup import TimerWake

__all__ = ["ShardReport", "ShardWork", "deliver_shard", "is_finished", "make_sink"]

_log = logging.getLogger(__name__)

PATIENCE_S: Final = 15.0
LOOK_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class ShardWork:
    """The work of one shard: all versions up to and including `until`.

    Its options may hold secrets and are never shown. `patience_s`: how long the shard must stand still until a fenced
    attempt takes it over again.
    """

    settings: PipelineSettings
    shard: int
    until: int
    patience_s: float = PATIENCE_S

    @property
    def name(self) -> str:
        """The name of the shard as a pipeline."""
        return shard_name(self.settings.name, self.shard, self.settings.shards)


@dataclass(slots=True)
class ShardReport:
    """The outcome of a shard.

    `error`: the error that stopped it; None: delivered. `compared`: the results for each version that this attempt
    compared (`tailer.changelog.report`). `rows`: the rows it committed, by change type.
    """

    shard: int
    error: TailerError | None = None
    compared: list[tuple[ChangePlan, ChangelogCounts]] = field(default_factory=list)
    rows: Counter[str] = field(default_factory=Counter)

    def note(self, plan: ChangePlan, counts: ChangelogCounts) -> None:
        """Add `counts`, the result of comparing the rows of `plan`."""
        self.compared.append((replace(plan, tasks=()), counts))


def deliver_shard(work: ShardWork) -> Iterator[bytes]:
    """Deliver the shard and yield one pickled `ShardReport`.

    The report also carries errors of our own, because a retry of the task would not help.
    """
    report = ShardReport(work.shard)
    try:
        anyio.run(_deliver, work, report)
    except TailerError as error:
        _log.warning("%s: %s", work.name, error)
        report.error = error
    yield pickle.dumps(report)


def make_sink(settings: PipelineSettings) -> Sink:
    """Make the pipeline's sink, which several processes may write. No I/O.

    Raises `ConfigError` for a sink that only one process may write.
    """
    sink = settings.make_sink()
    if not isinstance(sink, Sink) or not sink.distributes:
        reason = f"a {settings.sink_kind} sink is written by one process"
        raise ConfigError(
            f"{settings.name}.write", reason, 'Set write = "driver", or deliver to a sink of kind = "kafka".'
        )
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
        # Random, so that two attempts do not take over in step.
        end = Position.end(work.until)
        if await is_finished(work.settings, work.name, end, patience_s * random.uniform(1, 2)):
            return
        _log.info("%s: no progress; taking over again", work.name)
        patience_s *= 2


async def _attempt(work: ShardWork, report: ShardReport) -> None:
    settings = work.settings
    table, sink, status = settings.open_table(), make_sink(settings), PipelineStatus(work.name)
    try:
        await place_of(work.name, table, sink)
        pipeline = row_pipeline(
            work.name,
            table,
            LayoutSink(sink, settings.name, Division.of(settings, sink)),
            _engine(work, sink, report),
            TimerWake(),
            settings.start,
            Start(StartKind.VERSION, work.until),
            settings.policy,
            settings.limits,
            status=status,
        )
        await pipeline.run()
    finally:
        report.rows += status.rows
        with anyio.CancelScope(shield=True):
            await sink.aclose()


async def is_finished(settings: PipelineSettings, name: str, end: Position, patience_s: float) -> bool:
    """Wait while the shard `name` advances. Return whether it has reached `end`.

    `patience_s`: how long it must stand still. Raises `SinkFenced` if it is no longer a shard of the pipeline.
    """
    table, sink = settings.open_table(), make_sink(settings)
    seen: Position | None = None
    deadline = anyio.current_time() + patience_s
    try:
        while anyio.current_time() < deadline:
            try:
                found = await find_progress(name, table, await table.table_id(), sink)
                await LayoutSink(sink, settings.name, Division.of(settings, sink)).check()
            except TailerError as error:
                if error.retry not in (Retry.ASK, Retry.TIMED):
                    raise
                _log.debug("%s: %s", name, error)
            else:
                if found is not None and found.position >= end:
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
    files = open_files(settings.stores)
    local, note = LocalEngine(threads=1, files=files), report.note
    if sink.demands.key:
        return KeyShards(ChangelogEngine(local, settings.pairing, note, files), work.shard, settings.shards)
    return ChangelogEngine(TaskShards(local, work.shard, settings.shards), settings.pairing, note, files)
