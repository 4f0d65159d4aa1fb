"""Run pipelines in one task group, and drain them on a signal; `tailer run` and `tailer tail` share this.

A pipeline that stops with an error does not stop the others. After the last one has ended the errors are raised
together. SIGTERM or Ctrl-C makes every pipeline finish the version it is at. Those that are not done after `drain_s`,
or at a second signal, are cancelled. Nothing is half committed (invariant 1), and the next run delivers the rest
(invariant 2).

Messages go to standard error, because standard output belongs to the stdout sink.
"""

import logging
import signal
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, Protocol

import anyio
from anyio import to_thread
from anyio.abc import TaskStatus

from tailer.changelog.report import ChangelogReport
from tailer.config.pipelines import PipelineSettings, Settings
from tailer.config.placement import Writers
from tailer.config.tables import open_files
from tailer.daemon.engines import Engines, open_engines
from tailer.engine.background import background
from tailer.errors import ConfigError, TailerError, how_to_install
from tailer.pipeline.retention import VacuumWatch
from tailer.pipeline.row_delivery import row_pipeline
from tailer.pipeline.status import PipelineStatus
from tailer.progress.recorded import Recorded
from tailer.progress.state_table import StateTable
from tailer.shards.resharding import Layout, UndividedSink
from tailer.shards.shard_delivery import sharded_pipeline
from tailer.shards.worker import make_sink
from tailer.sink import Sink

__all__ = ["Drainable", "close_sinks", "log_to_stderr", "open_layout", "open_sink", "run_all", "serve"]

CLOSE_S: Final = 5.0

_log = logging.getLogger(__name__)


class Drainable(Protocol):
    """A pipeline, as far as it is run and stopped."""

    async def run(self) -> None:
        """Work until the end, an error, or `stop`."""
        ...

    def stop(self) -> None:
        """Make `run` return after the transaction it is in."""
        ...


async def serve(settings: Settings) -> None:
    """Run every pipeline of `settings` until all have ended, or are drained after a signal.

    Raises an `ExceptionGroup` of the errors, each with a note that names its pipeline.
    """
    sinks: list[Sink] = []
    statuses = {each.name: PipelineStatus(each.name, not _is_written_by_spark(each)) for each in settings.pipelines}
    async with _monitored(settings, list(statuses.values())):
        try:
            delta = any(map(_is_written_by_spark, settings.pipelines))
            files = open_files(settings.stores)
            async with open_engines(settings.engine, settings.spark, files, delta=delta) as engines:
                pipelines: dict[str, Drainable] = {}
                for each in settings.pipelines:
                    sinks.append(open_sink(settings, each))
                    status = statuses[each.name]
                    pipelines[each.name] = _Reporting(_pipeline(each, sinks[-1], engines, status), status)
                failures = await run_all(pipelines, settings.drain_s)
        finally:
            await close_sinks(sinks)
    for name, error in failures.items():
        error.add_note(name)
    if failures:
        raise ExceptionGroup("pipelines stopped", list(failures.values()))


def open_sink(settings: Settings, pipeline: PipelineSettings) -> Sink:
    """Make the pipeline's sink, with progress in the state table if the sink cannot keep it; no I/O."""
    sink = pipeline.make_sink()
    if isinstance(sink, Sink):
        return sink
    assert settings.state_table is not None, "checked by tailer.config.settings"
    return Recorded(sink, StateTable(settings.stores.open(settings.state_table)))


def open_layout(settings: PipelineSettings, sink: Sink) -> Layout:
    """Make the layout that keeps the number of shards in `sink`, which `distributes`; no I/O. Raises `ConfigError`."""
    return Layout(settings.name, settings.open_table(), sink, lambda: make_sink(settings))


async def close_sinks(sinks: Sequence[Sink]) -> None:
    """Close every sink, also during a cancellation; give up on sinks that do not answer within `CLOSE_S`."""
    with anyio.move_on_after(CLOSE_S, shield=True):
        for sink in sinks:
            try:
                await sink.aclose()
            except TailerError as error:
                _log.warning("%s", error)


async def run_all(pipelines: Mapping[str, Drainable], drain_s: float) -> dict[str, Exception]:
    """Run pipelines, given by name, until all have ended; return the errors by name.

    After SIGTERM or SIGINT they have `drain_s` seconds to finish; a second signal cancels them.
    """
    runs = _Runs(pipelines, drain_s)
    async with anyio.create_task_group() as group:
        await group.start(runs.obey_signals)
        await runs.run()
        group.cancel_scope.cancel()
    return runs.failures


class _Runs:
    def __init__(self, pipelines: Mapping[str, Drainable], drain_s: float) -> None:
        self.failures: dict[str, Exception] = {}
        self._running = dict(pipelines)
        self._drain_s = drain_s
        self._scope = anyio.CancelScope()

    async def run(self) -> None:
        with self._scope:
            async with anyio.create_task_group() as group:
                for name, pipeline in self._running.items():
                    group.start_soon(self._run_one, name, pipeline)
        if self._scope.cancelled_caught:
            _log.info("cancelled %s; the next run delivers what was not committed", self._names())

    async def obey_signals(self, *, task_status: TaskStatus[None]) -> None:
        """Start the drain and its deadline at the first signal; cancel at the second."""
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            _log.info("running %s; SIGTERM or Ctrl-C to stop", self._names())  # true from here on
            task_status.started()
            draining = False
            async for number in signals:
                if draining:
                    self._scope.cancel()
                    continue
                draining = True
                self._scope.deadline = anyio.current_time() + self._drain_s
                word = signal.Signals(number).name
                _log.info("%s: draining %s, %g s at most", word, self._names(), self._drain_s)
                for pipeline in self._running.values():
                    pipeline.stop()

    async def _run_one(self, name: str, pipeline: Drainable) -> None:
        try:
            await pipeline.run()
        except Exception as error:  # noqa: BLE001 - kept with its traceback, and raised after the last pipeline
            self.failures[name] = error
            if len(self._running) > 1:
                bug = None if isinstance(error, TailerError) else error
                _log.error("%s stopped: %s; the others go on", name, error, exc_info=bug)
        del self._running[name]

    def _names(self) -> str:
        return ", ".join(self._running)


class _Reporting:
    """A pipeline that records in its status whether it runs."""

    def __init__(self, pipeline: Drainable, status: PipelineStatus) -> None:
        self._pipeline = pipeline
        self._status = status

    async def run(self) -> None:
        self._status.note_start()
        try:
            await self._pipeline.run()
        finally:
            self._status.note_stop()

    def stop(self) -> None:
        self._pipeline.stop()


@asynccontextmanager
async def _monitored(settings: Settings, statuses: Sequence[PipelineStatus]) -> AsyncIterator[None]:
    """Serve metrics at the configured address, if any. Raises `ConfigError` if that fails."""
    if settings.metrics is None:
        yield
        return
    try:
        from tailer.daemon.monitor import Monitor  # noqa: PLC0415 - its library is an extra
    except ImportError as error:
        reason = f"cannot be served: {error}"
        raise ConfigError(f"{settings.path}: metrics", reason, how_to_install("daemon")) from error
    host, port = settings.metrics
    monitor = Monitor(statuses)
    try:
        port, stop = await to_thread.run_sync(monitor.serve, host, port)
    except OSError as error:
        reason = f"cannot listen on {host} port {port}: {error.strerror or error}"
        remedy = "Give a host of this machine and a free port."
        raise ConfigError(f"{settings.path}: metrics", reason, remedy) from error
    _log.info("metrics on http://%s:%d/metrics and health on its /livez and /readyz", host, port)
    try:
        async with background() as group:
            group.start_soon(monitor.beat)
            yield
    finally:
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(stop)


def _pipeline(settings: PipelineSettings, sink: Sink, engines: Engines, status: PipelineStatus) -> Drainable:
    """Put the pipeline together: of the three ways to deliver, the one that `settings` choose."""
    table = settings.open_table()
    wake = table.make_wake()
    if sink.distributes and settings.write is Writers.EXECUTORS:
        assert engines.spark is not None, "checked by tailer.config.settings"
        return sharded_pipeline(settings, table, engines.spark.executors, wake, status=status)
    if sink.distributes:
        sink = UndividedSink(sink, settings.name, open_layout(settings, sink), settings.start)
    engine = engines.for_pipeline(settings.pairing, ChangelogReport(settings.name).note)
    limits = settings.limits
    if _is_written_by_spark(settings):
        from tailer.spark.write.append_delivery import append_pipeline  # noqa: PLC0415 - PySpark is an extra

        assert engines.spark is not None, "checked by tailer.config.settings"
        return append_pipeline(settings, table, sink, engines.spark.session, engine, wake, limits, status=status)
    watch = VacuumWatch(settings.name)
    return row_pipeline(
        settings.name, table, sink, engine, wake, settings.start, None, settings.policy, limits, watch, status
    )


def _is_written_by_spark(settings: PipelineSettings) -> bool:
    return settings.write is Writers.EXECUTORS and settings.sink_kind == "delta"


def log_to_stderr(level: int = logging.INFO) -> None:
    """Log one line for each event with UTC time: ours from `level` on, those of libraries from warnings on."""
    formatter = logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", "%Y-%m-%dT%H:%M:%SZ")
    formatter.converter = time.gmtime
    stream = logging.StreamHandler()
    stream.setFormatter(formatter)
    logging.basicConfig(level=max(level, logging.WARNING), handlers=[stream], force=True)
    for ours in ("tailer", "sinks"):
        logging.getLogger(ours).setLevel(level)
