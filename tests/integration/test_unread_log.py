"""A daemon whose log nobody reads: the pipe is full before its first line."""

import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx2
import pytest

from tailer.daemon.client import DaemonClient
from tailer.daemon.observe.log_writer import WAITING_CHARS
from tests.support.daemon.commands import COMMAND, Orders
from tests.support.servers.ports import free_ports
from tests.support.waiting import until

# The client library forgets a Unix socket that nobody serves.
pytestmark = pytest.mark.filterwarnings(r"ignore:unclosed <socket.socket fd=\d+, family=1:ResourceWarning")

LONG: Final = 10_000  # characters of an option that does not exist: the log names it


@contextmanager
def unread(*arguments: object) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run `tailer` with a full pipe as standard error; yield the process, and the end of the pipe to read from."""
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    try:
        while True:
            os.write(theirs, b".")
    except BlockingIOError:
        os.set_blocking(theirs, True)
    command = [*COMMAND, *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def copied(orders: Orders) -> list[tuple[int, str, int]]:
    """Return the rows delivered so far."""
    target = orders.path.parent / "copy"
    return orders.copied_to(target) if (target / "_delta_log").exists() else []


def read(pipe: int, until_text: str) -> str:
    """Read from the pipe up to a text."""
    found = b""
    while until_text.encode() not in found:
        assert select.select([pipe], [], [], 60)[0], found[-500:]
        piece = os.read(pipe, 1 << 16)
        assert piece, found[-500:]
        found += piece
    return found.decode()


@pytest.fixture
def orders(tmp_path: Path) -> Orders:
    """A table with one version."""
    table = Orders(tmp_path / "orders")
    table.insert(1, 2)
    return table


@pytest.fixture
def config(orders: Orders) -> Path:
    """The configuration, beside the table."""
    text = f'metrics = "127.0.0.1:{free_ports(1)[0]}"\n[pipelines.copy]\ntable = "orders"\n'
    text += 'poll_interval_s = 0.1\nsink = {kind = "delta", path = "copy"}\n'
    (path := orders.path.parent / "t.toml").write_text(text)
    return path


def test_rows_and_orders_go_on_and_what_is_dropped_is_counted(orders: Orders, config: Path) -> None:
    good, client = config.read_text(), DaemonClient(socket=config.with_suffix(".sock"))
    with unread("run", "--config", config, "-v", "--log-format", "text") as (daemon, pipe):
        until(lambda: copied(orders) == orders.changes)
        strange = "".join(f"{number:0{LONG}} = 1\n" for number in range(2 * WAITING_CHARS // LONG))
        config.write_text(good + strange)  # refused, with a line for each option
        daemon.send_signal(signal.SIGHUP)
        time.sleep(2)
        more = '[pipelines.more]\ntable = "orders"\nsink = {kind = "files", path = "more"}\n'
        config.write_text(good + more)
        until(lambda: len(client.status().pipelines) == 2)
        orders.insert(3)
        until(lambda: copied(orders) == orders.changes)
        client.send("copy", "pause")
        until(lambda: client.status().pipelines[0].state.value == "paused")
        client.send("copy", "resume")
        orders.insert(4)
        until(lambda: copied(orders) == orders.changes)
        assert httpx2.get(f"http://{good.split(chr(34))[1]}/livez").status_code == 200
        said = read(pipe, "lines of the log were dropped here")
        daemon.terminate()
        said += read(pipe, "draining copy")
        assert daemon.wait(300) == 0
    assert "running copy" in said
    assert "no such option" in said


def test_the_process_ends_at_a_signal(orders: Orders, config: Path) -> None:
    with unread("run", "--config", config, "-v") as (daemon, _):
        until(lambda: copied(orders) == orders.changes)
        daemon.terminate()
        assert daemon.wait(300) == 0


def test_the_exit_code_is_that_of_the_error(orders: Orders, config: Path) -> None:
    (orders.path / "_delta_log" / f"{1:020d}.json").write_text("{garbage\n")
    config.write_text(f'control = ""\n{config.read_text()}')
    with unread("run", "--config", config) as (daemon, _):
        assert daemon.wait(300) == 3
