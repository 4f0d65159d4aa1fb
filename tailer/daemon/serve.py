"""Put the pipelines of a configuration together, and run them: `tailer run`.

Messages go to standard error, because standard output belongs to the stdout sink.
"""

import logging
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
from anyio import to_thread

from tailer.changelog.engine import ChangelogReport
from tailer.config.pipelines import MetricsSettings, PipelineSettings, Settings
from tailer.config.shapes import Writers
from tailer.config.tables import CurrentStores, open_files
from tailer.daemon.engines import Engines, open_engines
from tailer.daemon.fleet.awaited import AwaitedTable
from tailer.daemon.fleet.fleet import Fleet, Make, Statuses
from tailer.daemon.logs import Summaries
from tailer.daemon.observe.otel import exported
from tailer.daemon.runs import Drainable, Stop, Work
from tailer.daemon.sinks import close_sinks, open_layout
from tailer.engine import background
from tailer.errors import ConfigError, NotATable, TailerError, how_to_install
from tailer.pipeline.retention import VacuumWatch
from tailer.pipeline.row_delivery import row_pipeline
from tailer.pipeline.status import PipelineStatus
from tailer.sink import Sink, instance_name
from tailer.stores.secrets import NoSecret, Secret

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from tailer.daemon.control import Control
    from tailer.daemon.http_server import Listener

__all__ = ["make_work", "serve"]

Show = Callable[[Sequence[PipelineStatus]], Coroutine[Any, Any, None]]

_log = logging.getLogger(__name__)


async def serve(settings: Settings, show: Show | None = None, *, standby: bool = False) -> None:
    """Run every pipeline of `settings` until none is left that could run, or all are drained after a signal.

    A pipeline that has stopped could run as long as a command may come that lets it go on.

    `show`: shows what the pipelines do, until it is cancelled. `standby`: run a pipeline only while no other instance
    does.

    Raises an `ExceptionGroup` of the errors of stopped pipelines, each with a note that names its pipeline.
    """
    statuses = Statuses(pipeline.make_status() for pipeline in settings.pipelines)
    opened: list[Sink] = []
    async with _served(settings, statuses) as control, exported(statuses):
        await _import_clients(settings)
        try:
            stores = CurrentStores(settings.stores)
            ahead_bytes, files = settings.read_ahead_bytes, open_files(stores)
            chosen = open_engines(settings.engine, settings.spark, files, ahead_bytes=ahead_bytes)
            async with chosen as engines:
                make: Make = partial(make_work, settings, engines, opened)
                if standby:
                    from tailer.daemon.standby import standing_by  # noqa: PLC0415

                    make = standing_by(make, instance_name(), settings.standby_after_s)
                fleet = Fleet(settings, statuses, stores, make)
                summaries = Summaries(statuses)
                if control is not None:
                    control.runs, fleet.runs.takes_commands = fleet.runs, control.is_reachable
                async with background() as group:
                    group.start_soon(summaries.run)
                    if show is not None:
                        group.start_soon(show, statuses)
                    failures = await fleet.runs.run()
                summaries.log()
        finally:
            await close_sinks(opened)
    for name, error in failures.items():
        error.add_note(name)
    if failures:
        raise ExceptionGroup("pipelines stopped", list(failures.values()))


async def _import_clients(settings: Settings) -> None:
    """Open the stores of the tables once in a worker thread: the first one of a kind imports its client.

    That takes a second, in which the event loop would stand still. A store that cannot be opened stops its pipeline.
    """
    folders = {source.table for source in settings.pipelines} | {source.pattern.folder for source in settings.templates}
    for location in folders | {settings.state_table}:
        if location is not None:
            with suppress(ConfigError):
                await to_thread.run_sync(settings.stores.open, location)


def make_work(
    settings: Settings,
    engines: Engines,
    opened: list[Sink],
    pipeline: PipelineSettings,
    status: PipelineStatus,
    is_new: bool,
) -> Work:
    """Make the work of a pipeline with a sink of its own, which is in `opened` until the work ends.

    `is_new`: whether its table has come while the process ran.
    """
    sink = settings.open_sink(pipeline)
    opened.append(sink)
    make = partial(_pipeline, pipeline, sink, engines, status)
    first = make()  # made here, because settings that do not fit are refused at the start

    async def work(stop: Stop) -> None:
        table, current = AwaitedTable(pipeline, status, stop, is_new=is_new), first
        try:
            while not stop.is_set:
                if await table.wait():
                    current = make()  # the table that has come may be of another format
                if stop.is_set:
                    return
                try:
                    await stop.run(current)
                except TailerError as error:
                    # Where the store did not answer before, nobody knew that the table is missing.
                    is_unseen = isinstance(error, NotATable) and not status.has_seen_table
                    if not (is_unseen and await table.is_missing()) and not table.may_grow(error):
                        raise
                else:
                    return
        finally:
            await close_sinks([sink])
            opened.remove(sink)

    return work


@asynccontextmanager
async def _served(settings: Settings, statuses: Sequence[PipelineStatus]) -> AsyncIterator["Control | None"]:
    """Serve metrics, status and control at the configured places. Yield the control, if its libraries are installed.

    Raises `ConfigError` if what was asked for cannot be served.
    """
    try:
        from tailer.daemon.control import Control  # noqa: PLC0415 - its libraries are an extra
        from tailer.daemon.http_server import HttpServer, Listener, WithToken  # noqa: PLC0415
        from tailer.daemon.monitor import Monitor  # noqa: PLC0415
        from tailer.daemon.page import History, history_route, page_routes  # noqa: PLC0415
    except ImportError as error:
        if settings.metrics is not None or settings.control.is_required:
            key = "metrics" if settings.metrics is not None else "control"
            reason = f"cannot be served: {error}"
            raise ConfigError(f"{settings.path}: {key}", reason, how_to_install("daemon")) from error
        yield None
        return
    monitor, control, listeners = Monitor(statuses, settings.hung_s), Control(), []
    history, token = History(statuses), await _read_token(settings, "control_token", settings.control.token)
    if settings.metrics is not None:
        routes = control.route(token, needs_token=True), *page_routes(history, takes_commands=token is not None)
        app: ASGIApp = monitor.app(*routes)
        if (readers := await _read_token(settings, "metrics_token", settings.metrics.token)) is not None:
            app = WithToken(app, readers)
        listeners.append(_open_address(settings, settings.metrics, app))
    path, opened = settings.control.socket, _open_control(settings)
    if opened is not None:
        local = monitor.app(control.route(None, needs_token=False), history_route(history))
        listeners.append(Listener(local, opened))
    control.is_reachable = opened is not None or (settings.metrics is not None and token is not None)
    server = HttpServer(listeners, [history.run])
    server.start()
    try:
        async with background() as group:
            group.start_soon(monitor.beat)
            yield control
    finally:
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(server.stop)
        if path is not None and opened is not None:
            path.unlink(missing_ok=True)


def _open_address(settings: Settings, asked: MetricsSettings, app: "ASGIApp") -> "Listener":
    """Open the address of the metrics for `app`. Raises `ConfigError`."""
    from tailer.daemon.http_server import Listener, listen  # noqa: PLC0415 - as above

    host, port = asked.host, asked.port
    try:
        opened = listen(host, port)
    except OSError as error:
        reason = f"cannot listen on {host} port {port}: {error.strerror or error}"
        remedy = "Give a host of this machine and a free port."
        raise ConfigError(f"{settings.path}: metrics", reason, remedy) from error
    port = opened.getsockname()[1]
    _log.info("metrics on http://%s:%d/metrics and a status page on its /, with /livez and /readyz", host, port)
    return Listener(app, opened)


def _open_control(settings: Settings) -> socket.socket | None:
    """Open the control socket, if any. Raises `ConfigError` only if it was asked for."""
    from tailer.daemon.http_server import listen_unix  # noqa: PLC0415 - its libraries are an extra

    path = settings.control.socket
    if path is None:
        return None
    try:
        return listen_unix(path)
    except OSError as error:
        reason = f"cannot listen on {path}: {error.strerror or error}"
        if settings.control.is_required:
            remedy = "Give a short path in a folder that the daemon may write, and that no other daemon uses."
            raise ConfigError(f"{settings.path}: control", reason, remedy) from error
        _log.warning("no control socket: %s; set control to another path", reason)
        return None


async def _read_token(settings: Settings, key: str, secret: Secret) -> str | None:
    """Read the token that `key` gives, if any. Raises `ConfigError`."""
    where = f"{settings.path}: {key}"
    try:
        token = await to_thread.run_sync(secret.read)
    except NoSecret as error:
        remedy = error.remedy or "Run it by hand, as the user of this process."
        raise ConfigError(where, error.reason, remedy) from None
    if token is None:
        return None
    if token := token.strip():
        return token
    reason = "is empty" if secret.value is not None else f"{secret.place} is empty"
    raise ConfigError(where, reason, "Give a token of your own.")


def _pipeline(settings: PipelineSettings, sink: Sink, engines: Engines, status: PipelineStatus) -> Drainable:
    """Put the pipeline together: of the two ways to deliver, the one that `settings` choose."""
    table = settings.open_table()
    wake = table.make_wake()
    if sink.distributes and settings.write is Writers.EXECUTORS:
        from tailer.spark.write.exchange import ShardExchange  # noqa: PLC0415 - PySpark is an extra
        from tailer.spark.write.shard_delivery import sharded_pipeline  # noqa: PLC0415

        assert engines.spark is not None, "checked by tailer.config.settings"
        exchange = ShardExchange(engines.spark.session)
        return sharded_pipeline(settings, table, sink, exchange, wake, status=status)
    if sink.distributes:
        from tailer.shards.resharding import UndividedSink  # noqa: PLC0415 - only for sinks that distribute

        sink = UndividedSink(sink, settings.name, open_layout(settings, sink), settings.start)
    engine = engines.for_pipeline(settings.pairing, ChangelogReport(settings.name).note)
    limits = settings.limits
    watch = VacuumWatch(settings.name)
    return row_pipeline(
        settings.name, table, sink, engine, wake, settings.start, None, settings.policy, limits, watch, status
    )
