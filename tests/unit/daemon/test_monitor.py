"""The monitoring endpoint: paths, methods, and the state of pipelines and the event loop."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import anyio
import msgspec
import pytest

from tailer.daemon import monitor
from tailer.daemon.http_server import HttpServer, Listener, listen
from tailer.daemon.monitor import Monitor, metrics_registry
from tailer.daemon.status_report import StatusReport
from tailer.errors import NotATable, StorageUnavailable, TailerError
from tailer.pipeline.retry import Retries
from tailer.pipeline.status import Committed, PipelineState, PipelineStatus
from tailer.plan import Position
from tests.support.waiting import until


@pytest.fixture
def statuses() -> list[PipelineStatus]:
    """Two running pipelines."""
    found = [PipelineStatus("monitored-a"), PipelineStatus("monitored-b")]
    for status in found:
        status.note_start()
    return found


@contextmanager
def served(monitor: Monitor, host: str = "127.0.0.1") -> Iterator[int]:
    """Serve the answers of `monitor` on a free port."""
    opened = listen(host, 0)
    server = HttpServer([Listener(monitor.app(), opened)])
    server.start()
    yield opened.getsockname()[1]
    server.stop()


@pytest.fixture(params=["127.0.0.1", "localhost", "::1"])
def address(request: pytest.FixtureRequest, statuses: list[PipelineStatus]) -> Iterator[str]:
    """The address of their monitor."""
    host: str = request.param
    with served(Monitor(statuses), host) as port:
        yield f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def asked(url: str, method: str = "GET") -> tuple[int, str]:
    """Return status and body of a request."""
    try:
        with urlopen(Request(url, method=method), timeout=10) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


def measured(name: str, pipeline: str) -> float | None:
    """Return the value of a metric; None without one."""
    return metrics_registry().get_sample_value(name, {"pipeline": pipeline})


def test_unknown_paths_are_not_found(address: str) -> None:
    assert asked(f"{address}/metrics")[0] == 200
    assert asked(f"{address}/livez") == (200, "live\n")
    for path in ("/", "", "/health", "/metrics/", "/metricsx", "/readyz/x", "/favicon.ico"):
        assert asked(address + path)[0] == 404, path


def test_nothing_but_reading_is_allowed(address: str) -> None:
    assert asked(f"{address}/livez", "POST")[0] == 405
    assert asked(f"{address}/metrics", "DELETE")[0] == 405
    assert asked(f"{address}/livez", "HEAD") == (200, "")


def test_a_silent_client_does_not_block_others(address: str) -> None:
    host, _, port = address.removeprefix("http://").rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), timeout=10):
        assert asked(f"{address}/livez")[0] == 200


def test_ready_while_every_pipeline_delivers(address: str, statuses: list[PipelineStatus]) -> None:
    first, second = statuses
    assert asked(f"{address}/readyz") == (503, "monitored-a: starting\nmonitored-b: starting\n")
    first.note_caught_up(3)
    second.note_snapshot(4)
    assert asked(f"{address}/readyz") == (200, "monitored-a: idle\nmonitored-b: snapshot\n")
    second.note_error(NotATable("x"))
    assert asked(f"{address}/readyz") == (503, "monitored-a: idle\nmonitored-b: retrying\n")
    second.note_caught_up(4)
    assert asked(f"{address}/readyz")[0] == 200
    first.note_pause()
    assert asked(f"{address}/readyz") == (200, "monitored-a: paused\nmonitored-b: idle\n")
    second.note_drain("SIGTERM")
    assert asked(f"{address}/readyz") == (503, "monitored-a: paused\nmonitored-b: idle\n")
    second.note_stop()
    assert asked(f"{address}/readyz") == (503, "monitored-a: paused\nmonitored-b: stopped\n")


@pytest.mark.anyio
async def test_an_event_loop_that_is_stuck_is_not_live(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Monitor([])
    with served(watched) as port:
        url = f"http://127.0.0.1:{port}/livez"
        monkeypatch.setattr(monitor, "STUCK_S", 0.2)
        await anyio.sleep(0.3)
        status, text = await anyio.to_thread.run_sync(asked, url)
        assert (status, "has been blocked" in text) == (503, True)
        monkeypatch.setattr(monitor, "STUCK_S", 30.0)
        async with anyio.create_task_group() as group:
            group.start_soon(watched.beat)
            assert (await anyio.to_thread.run_sync(asked, url))[0] == 200
            group.cancel_scope.cancel()


def test_a_pipeline_that_hangs_is_not_live(statuses: list[PipelineStatus]) -> None:
    statuses[0].note_caught_up(1)  # waits for a version
    with served(Monitor(statuses, hung_s=0.2)) as port, served(Monitor(statuses, hung_s=0)) as patient:
        until(lambda: asked(f"http://127.0.0.1:{port}/livez")[0] == 503)
        assert asked(f"http://127.0.0.1:{port}/livez")[1].startswith("monitored-b: no progress for ")
        assert asked(f"http://127.0.0.1:{patient}/livez")[0] == 200
        statuses[1].note_pause()
        assert asked(f"http://127.0.0.1:{port}/livez") == (200, "live\n")


def test_status_as_json(statuses: list[PipelineStatus]) -> None:
    first, second = statuses
    first.note_commit(Committed(Position.end(4), {"insert": 2, "strange": 1}, 50, 0.1))
    second.note_stop(NotATable("x"))
    with served(Monitor(statuses)) as port:
        status, text = asked(f"http://127.0.0.1:{port}/status")
    report = msgspec.json.decode(text, type=StatusReport)
    assert (status, report.format) == (200, 1)
    one, other = report.pipelines
    assert (one.name, one.delivered, one.position) == ("monitored-a", 4, "the end of version 4")
    assert one.rows == {"insert": 2, "update_preimage": 0, "update_postimage": 0, "delete": 0, "other": 1}
    assert (other.state, other.hint) == (
        PipelineState.STOPPED,
        f"{NotATable('x').hint} `tailer resume monitored-b` begins it again.",
    )
    assert other.last_error is not None
    assert other.last_error.name == "NotATable"


def test_a_pipeline_that_stopped_is_down() -> None:
    status = PipelineStatus("monitored-c")
    status.note_start()
    assert measured("lake_tailer_pipeline_up", "monitored-c") == 1
    status.note_stop()
    assert measured("lake_tailer_pipeline_up", "monitored-c") == 0


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("errors", "counted", "retried"),
    [
        ([], 0, 0),
        ([StorageUnavailable("x"), StorageUnavailable("x")], 2, 2),
        ([NotATable("x")], 1, 0),
        ([KeyError("a bug")], 1, 0),
    ],
)
async def test_attempts_are_counted(errors: list[Exception], counted: int, retried: int) -> None:
    name = f"monitored-{counted}-{retried}-{len(errors)}-{type(errors[0]).__name__ if errors else ''}"
    status = PipelineStatus(name)
    retries = Retries(name, 60, status)
    waiting = list(errors)

    async def session() -> bool:
        if waiting:
            raise waiting.pop(0)
        retries.note_caught_up(0)
        return True

    try:
        await retries.run(session)
    except (TailerError, KeyError):
        assert status.state is PipelineState.RETRYING
    else:
        assert status.state is PipelineState.IDLE
        assert measured("lake_tailer_last_success_timestamp_seconds", name)
    assert measured("lake_tailer_errors_total", name) == counted
    assert measured("lake_tailer_retries_total", name) == retried
