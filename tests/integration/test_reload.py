"""Reloading the configuration of the real daemon while commits go on: what changes, what does not, what is refused."""

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from deltalake.exceptions import TableNotFoundError

from tailer.daemon.client import DaemonClient
from tailer.daemon.status_report import PipelineReport
from tailer.errors import ConfigError
from tests.support.daemon.commands import Orders, background, tailer
from tests.support.waiting import until

# The client library forgets a Unix socket that nobody serves.
pytestmark = pytest.mark.filterwarnings(r"ignore:unclosed <socket.socket fd=\d+, family=1:ResourceWarning")

TABLES: Final = ("a", "b", "c")


class Lake:
    """Tables in a folder, a configuration beside them, and a pipeline into a Delta table for each of some tables."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "t.toml"
        self.tables = {name: Orders(folder / name) for name in TABLES}
        for table in self.tables.values():
            table.insert(1, 2, 3)

    def configure(self, *names: str, top: str = "", **more: str) -> None:
        """Replace the configuration at once. `more`: lines of a pipeline."""
        parts = [
            f'[pipelines.{name}]\ntable = "{name}"\n{more.get(name, "poll_interval_s = 0.1")}\n'
            f'sink = {{kind = "delta", path = "copies/{name}"}}\n'
            for name in names
        ]
        part = self.config.with_suffix(".part")
        part.write_text("\n".join([top, *parts]))
        part.rename(self.config)

    def copied(self, name: str) -> list[tuple[int, str, int]]:
        """Return the rows delivered so far."""
        try:
            return self.tables[name].copied_to(self.folder / "copies" / name)
        except TableNotFoundError:
            return []

    def is_level(self, *names: str) -> bool:
        """Return whether everything is delivered, once."""
        return all(self.copied(name) == self.tables[name].changes for name in names)

    def status(self) -> dict[str, PipelineReport]:
        """Return the reports by name; nothing while the daemon does not answer."""
        try:
            report = DaemonClient(socket=self.config.with_suffix(".sock")).status()
        except ConfigError:
            return {}
        return {each.name: each for each in report.pipelines}

    @contextmanager
    def commits(self) -> Iterator[None]:
        """Commit to all tables, one after the other, for as long as the block takes."""
        over = threading.Event()

        def commit() -> None:
            number = 100
            while not over.is_set():
                for table in self.tables.values():
                    table.insert(number, number + 1)
                number += 2

        committing = threading.Thread(target=commit)
        committing.start()
        try:
            yield
        finally:
            over.set()
            committing.join()


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Three tables with a version each."""
    return Lake(tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("how", ["file", "signal"])
def test_only_what_changed_begins_again(lake: Lake, how: str) -> None:
    top = "" if how == "file" else "reload_on_change = false"
    lake.configure("a", "b", top=top)
    with background("run", "--config", lake.config) as daemon, lake.commits():
        until(lambda: {name: each.transactions > 0 for name, each in lake.status().items()} == {"a": True, "b": True})
        before = lake.status()["a"]
        lake.configure("a", "b", "c", top=top, b="poll_interval_s = 0.2")
        if how == "signal":
            time.sleep(1)
            assert set(lake.status()) == {"a", "b"}
            daemon.send_signal(signal.SIGHUP)
        until(lambda: "c" in lake.status() and lake.status()["c"].transactions > 0)
        after = lake.status()
        assert after["a"].transactions >= before.transactions
        assert after["a"].rows["insert"] >= before.rows["insert"] > 0
        lake.configure("a", "c", top=top)
        if how == "signal":
            daemon.send_signal(signal.SIGHUP)
        until(lambda: set(lake.status()) == {"a", "c"})
        gone = lake.copied("b")
        lake.configure("a", "b", "c", top=top)
        if how == "signal":
            daemon.send_signal(signal.SIGHUP)
        until(lambda: len(lake.copied("b")) > len(gone))
        time.sleep(0.5)
        os.kill(daemon.pid, signal.SIGTERM)
        _, errors = daemon.communicate(timeout=300)
    assert daemon.returncode == 0
    with background("run", "--config", lake.config):
        until(lambda: lake.is_level("a", "b", "c"))
    assert "pipelines new: c; changed: b; 1 go on as they are" in errors
    assert "pipelines retired: b; 2 go on as they are" in errors
    assert "pipelines new: b; 2 go on as they are" in errors
    assert "Traceback" not in errors


@pytest.mark.long
def test_reloads_at_random_while_commits_go_on_and_the_daemon_is_killed(lake: Lake) -> None:
    chance = random.Random(3)
    lake.configure("a", "b", "c")
    with lake.commits():
        for _ in range(4):
            with background("run", "--config", lake.config) as daemon:
                until(lambda: lake.status() != {})
                for _ in range(8):
                    names = chance.sample(TABLES, chance.randint(1, 3))
                    lake.configure(*names, **{names[0]: f"poll_interval_s = {chance.uniform(0.05, 0.5):.3f}"})
                    if chance.random() < 0.7:
                        daemon.send_signal(signal.SIGHUP)
                    time.sleep(chance.uniform(0, 0.4))
                chance.choice([daemon.kill, daemon.terminate])()
                daemon.communicate(timeout=300)
    lake.configure("a", "b", "c")
    with background("run", "--config", lake.config):
        until(lambda: lake.is_level("a", "b", "c"))


def test_a_broken_file_is_refused_and_the_daemon_goes_on(lake: Lake) -> None:
    lake.configure("a", "b")
    with background("run", "--config", lake.config) as daemon:
        until(lambda: lake.is_level("a", "b"))
        good = lake.config.read_text()
        for text in (good[:40], good.replace("poll_interval_s", "poll_intervals"), ""):
            lake.config.write_text(text)
            daemon.send_signal(signal.SIGHUP)
            time.sleep(1.5)
            lake.tables["a"].insert(lake.tables["a"].version + 50)
            until(lambda: lake.is_level("a"))
        assert set(lake.status()) == {"a", "b"}
        lake.configure("a", "c")
        until(lambda: set(lake.status()) == {"a", "c"})
        until(lambda: lake.is_level("a", "c"))
        daemon.terminate()
        _, errors = daemon.communicate(timeout=300)
    assert daemon.returncode == 0
    assert "is not TOML" in errors
    assert "pipelines.a.poll_intervals: no such option" in errors
    assert "Did you mean 'poll_interval_s'?" in errors
    assert "pipelines: is missing or empty" in errors
    assert "was not loaded: the pipelines go on as before" in errors


def test_settings_of_the_process_are_named_in_a_warning(lake: Lake) -> None:
    lake.configure("a")
    with background("run", "--config", lake.config) as daemon:
        until(lambda: lake.is_level("a"))
        lake.configure("a", "b", top='metrics = "127.0.0.1:0"\nhung_s = 5\ncontrol = "other.sock"\ndrain_s = 3\n')
        until(lambda: lake.is_level("a", "b"))
        assert set(lake.status()) == {"a", "b"}
        daemon.terminate()
        _, errors = daemon.communicate(timeout=300)
    keys = "metrics, its token or one of its files, control, its token or backfills_file, hung_s"
    assert f"restart the daemon for the change of {keys}" in errors
    assert "draining a, b, 3 s at most" in errors


@pytest.mark.long
def test_a_paused_pipeline_stays_paused(lake: Lake) -> None:
    lake.configure("a", "b")
    with background("run", "--config", lake.config) as daemon:
        until(lambda: lake.is_level("a", "b"))
        assert tailer("pause", "a", "--config", lake.config).returncode == 0
        until(lambda: lake.status()["a"].state == "paused")
        lake.configure("a", "b", a="poll_interval_s = 0.3")
        until(lambda: lake.status()["a"].transactions == 0)  # counts begin anew
        lake.tables["a"].insert(9)
        time.sleep(1)
        assert lake.status()["a"].state == "paused"
        assert not lake.is_level("a")
        assert tailer("resume", "a", "--config", lake.config).returncode == 0
        until(lambda: lake.is_level("a", "b"))
        daemon.terminate()
        assert daemon.wait(300) == 0


def survives_hangup(process: int) -> bool:
    """Return whether the process ignores or catches SIGHUP."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    masks = (int(line.split()[1], 16) for line in lines if line.startswith(("SigIgn:", "SigCgt:")))
    return any(mask & 1 << (signal.SIGHUP - 1) for mask in masks)


def test_a_reload_that_comes_too_early_does_no_harm(lake: Lake) -> None:
    lake.configure("a")
    with background("run", "--config", lake.config) as daemon:
        until(lambda: survives_hangup(daemon.pid))
        while lake.status() == {}:
            daemon.send_signal(signal.SIGHUP)
            time.sleep(0.05)
        until(lambda: lake.is_level("a"))


def test_the_only_pipeline_may_change(lake: Lake) -> None:
    lake.configure("a")
    with background("run", "--config", lake.config) as daemon:
        until(lambda: lake.is_level("a"))
        lake.configure("b")
        until(lambda: lake.is_level("b") and set(lake.status()) == {"b"})
        assert daemon.poll() is None


@pytest.mark.long
def test_a_template_that_changes(lake: Lake) -> None:
    """Its tables go on under their names; those that the new pattern does not fit are retired."""
    keys = 'table = "PATTERN"\ndiscover_interval_s = 0.2\npoll_interval_s = 0.1'
    text = f'[pipelines.t]\n{keys}\nsink = {{kind = "delta", path = "copies/{{table}}"}}'
    lake.config.write_text(text.replace("PATTERN", "*"))
    with background("run", "--config", lake.config) as daemon, lake.commits():
        until(lambda: sum(each.transactions > 0 for each in lake.status().values()) == 3)
        lake.config.write_text(text.replace("PATTERN", "a*"))
        until(lambda: set(lake.status()) == {"t/a"})
        assert lake.status()["t/a"].transactions > 0
        lake.config.write_text(text.replace("PATTERN", "*").replace("0.1", "0.2"))
        until(lambda: set(lake.status()) == {"t/a", "t/b", "t/c"})
        daemon.terminate()
        _, errors = daemon.communicate(timeout=300)
    assert "pipelines retired: t/b, t/c; 1 go on as they are" in errors
    with background("run", "--config", lake.config):
        until(lambda: lake.is_level("a", "b", "c"))
