"""The daemon: concurrent pipelines, signals, and the output of a stopped or killed process."""

import json
import os
import signal
import time
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from tailer.daemon.runs import run_all
from tailer.errors import NotATable
from tests.support.daemon.commands import Orders, background, tailer
from tests.support.waiting import until


class Endless:
    """A pipeline that runs until it is stopped, and then needs `finishing_s` more seconds."""

    def __init__(self, finishing_s: float = 0.0) -> None:
        self.finishing_s = finishing_s
        self.stops = 0
        self.finished = False
        self._stopping = anyio.Event()

    async def run(self) -> None:
        await self._stopping.wait()
        await anyio.sleep(self.finishing_s)
        self.finished = True

    def stop(self) -> None:
        self.stops += 1
        self._stopping.set()


class Failing:
    """A pipeline that fails."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def run(self) -> None:
        await anyio.lowlevel.checkpoint()
        raise self.error

    def stop(self) -> None:
        """Do nothing."""


async def send(*numbers: signal.Signals) -> None:
    """Send signals to this process, once a handler is installed."""
    for number in numbers:
        await anyio.sleep(0.2)
        os.kill(os.getpid(), number)


@pytest.mark.anyio
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_makes_every_pipeline_finish(number: signal.Signals) -> None:
    pipelines = {"a": Endless(), "b": Endless(0.3)}
    async with anyio.create_task_group() as group:
        group.start_soon(send, number)
        assert await run_all(pipelines, drain_s=30) == {}
    assert [(each.stops, each.finished) for each in pipelines.values()] == [(1, True), (1, True)]


@pytest.mark.anyio
async def test_a_pipeline_that_does_not_drain_in_time_is_cancelled() -> None:
    pipelines = {"a": Endless(), "b": Endless(600)}
    began = time.monotonic()
    async with anyio.create_task_group() as group:
        group.start_soon(send, signal.SIGTERM)
        assert await run_all(pipelines, drain_s=0.5) == {}
    assert time.monotonic() - began < 10
    assert [each.finished for each in pipelines.values()] == [True, False]


@pytest.mark.anyio
async def test_a_second_signal_cancels_at_once() -> None:
    pipelines = {"a": Endless(600)}
    began = time.monotonic()
    async with anyio.create_task_group() as group:
        group.start_soon(send, signal.SIGINT, signal.SIGINT)
        assert await run_all(pipelines, drain_s=600) == {}
    assert time.monotonic() - began < 10
    assert not pipelines["a"].finished


@pytest.mark.anyio
async def test_a_failing_pipeline_does_not_stop_others() -> None:
    good, error, bug = Endless(0.2), NotATable("/x"), KeyError("y")
    async with anyio.create_task_group() as group:
        group.start_soon(send, signal.SIGTERM)
        failures = await run_all({"bad": Failing(error), "good": good, "worse": Failing(bug)}, drain_s=30)
    assert failures == {"bad": error, "worse": bug}
    assert good.finished


@pytest.mark.anyio
async def test_when_all_have_ended_it_is_over() -> None:
    error = NotATable("/x")
    assert await run_all({"bad": Failing(error)}, drain_s=30) == {"bad": error}
    assert await run_all({}, drain_s=30) == {}


@pytest.fixture
def orders(tmp_path: Path) -> Orders:
    """A table with one version."""
    table = Orders(tmp_path / "orders")
    table.insert(*range(10))
    return table


def configured(folder: Path, *pipelines: str, top: str = "") -> Path:
    """Write a configuration of pipelines given as NAME KIND TARGET."""
    text = [top]
    for name, kind, target in map(str.split, pipelines):
        option = f'format = "{target}"' if kind == "stdout" else f'path = "{target}"'
        text.append(f'[pipelines.{name}]\ntable = "orders"\nsink = {{kind = "{kind}", {option}}}')
    (folder / "tailer.toml").write_text("\n".join(text))
    return folder / "tailer.toml"


def copied(orders: Orders, target: str = "copy") -> list[tuple[int, str, int]]:
    """Return the rows delivered so far."""
    try:
        return orders.copied_to(orders.path.parent / target)
    except TableNotFoundError:
        return []


def filed(folder: Path) -> list[tuple[int, str, int]]:
    """Return the files in the directory of a `files` sink."""
    lines = [line for path in folder.rglob("*.jsonl") for line in path.read_text().splitlines()]
    rows = map(json.loads, lines)
    return sorted((row["_commit_version"], row["_change_type"], row["id"]) for row in rows)


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_commits_are_delivered_and_a_signal_ends_the_daemon_cleanly(orders: Orders, ending: signal.Signals) -> None:
    config = configured(orders.path.parent, "copy delta copy", "files files out")
    with background("run", "--config", config) as daemon:
        until(lambda: copied(orders) == orders.changes)
        orders.delete(3)
        orders.insert(20)
        until(lambda: copied(orders) == orders.changes)
        until(lambda: filed(orders.path.parent / "out") == orders.changes)
        daemon.send_signal(ending)
        out, errors = daemon.communicate(timeout=300)
    assert (daemon.returncode, out) == (0, "")
    assert f"{ending.name}: draining" in errors
    assert "Traceback" not in errors


def test_the_next_run_goes_on_where_the_last_one_ended(orders: Orders) -> None:
    config = configured(orders.path.parent, "copy delta copy", "screen stdout jsonl", top='state_table = "state"')
    printed: list[str] = []
    for ids in ((11, 12), (13,)):
        with background("run", "--config", config) as daemon:
            until(lambda: copied(orders) == orders.changes)
            orders.insert(*ids)
            until(lambda: copied(orders) == orders.changes)
            daemon.terminate()
            out, _ = daemon.communicate(timeout=300)
        assert daemon.returncode == 0
        printed += out.splitlines()
    rows = [json.loads(line) for line in printed]
    # Drained, so even the at-least-once sink has no repetition.
    delivered = [(row["_commit_version"], row["_change_type"], row["id"]) for row in rows]
    assert delivered == orders.changes[: len(delivered)]
    assert len(delivered) >= len(orders.changes) - 1


def test_one_pipeline_that_cannot_go_on_is_reported_and_the_others_go_on(orders: Orders) -> None:
    config = configured(orders.path.parent, "copy delta copy")
    config.write_text(
        config.read_text() + '\n[pipelines.lost]\ntable = "tailer.toml"\nsink = {kind = "delta", path = "nowhere"}'
    )
    with background("run", "--config", config) as daemon:
        assert daemon.stderr is not None
        while "lost stopped" not in (line := daemon.stderr.readline()):
            assert line, "the daemon ended"
        orders.insert(11)
        until(lambda: copied(orders) == orders.changes)
        daemon.terminate()
        _, errors = daemon.communicate(timeout=300)
    assert daemon.returncode == 3
    assert errors.splitlines()[-2:] == [
        f"error: lost: {config}: not a Delta table: it is a file, not a folder",
        "hint: Give the folder of a table.",
    ]


def test_a_daemon_with_nothing_left_to_do_ends_with_the_gravest_error(orders: Orders) -> None:
    config = configured(orders.path.parent, "copy delta copy")
    config.write_text(
        config.read_text() + '\n[pipelines.lost]\ntable = "tailer.toml"\nsink = {kind = "files", path = "x"}'
    )
    text = config.read_text().replace('table = "orders"', 'table = "orders"\ncolumns = ["nonsense"]')
    config.write_text(f'control = ""\n{text}')  # with commands, the one that lost its table would wait for one
    done = tailer("run", "--config", config)
    assert (done.returncode, done.stdout) == (3, "")
    assert "error: lost: " in done.stderr
    assert "error: copy: columns: no column 'nonsense'" in done.stderr


def test_a_sink_that_does_not_answer_is_tried_again_until_a_signal_comes(orders: Orders) -> None:
    config = configured(orders.path.parent, "copy delta copy")
    unreachable = 'kind = "kafka", bootstrap_servers = "127.0.0.1:1", topic = "orders"'
    config.write_text(config.read_text().replace('kind = "delta", path = "copy"', unreachable))
    with background("run", "--config", config) as daemon:
        assert daemon.stderr is not None
        while "retrying in" not in (line := daemon.stderr.readline()):
            assert line, "the daemon ended"
        daemon.terminate()
        _, errors = daemon.communicate(timeout=300)
    assert daemon.returncode == 0
    assert "error: " not in errors


def test_only_new_changes_where_it_starts_at_the_latest(orders: Orders) -> None:
    config = configured(orders.path.parent, "copy delta copy")
    config.write_text(config.read_text().replace('table = "orders"', 'table = "orders"\nstart = "latest"'))
    with background("run", "--config", config):
        until(lambda: DeltaTable.is_deltatable(str(orders.path.parent / "copy")))
        orders.insert(11)
        until(lambda: copied(orders) == orders.changes[-1:])
