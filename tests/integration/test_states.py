"""Every state of a pipeline and every order, seen from outside of a running daemon; drains while commits go on."""

import json
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import httpx2
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tailer.daemon.client import DaemonClient
from tailer.daemon.status_report import PipelineReport
from tailer.errors import ConfigError
from tests.support.daemon.commands import Orders, background, metrics_address
from tests.support.seeds import repeats
from tests.support.waiting import until

SNAPSHOT_ROWS: Final = 400_000
BACKLOG: Final = 40


def kafka(port: int) -> str:
    """Return the options of a sink with a broker at `port`."""
    return f'kind = "kafka", bootstrap_servers = "127.0.0.1:{port}", topic = "t"'


def files(name: str) -> str:
    """Return the options of a sink that writes to the folder `out/NAME`."""
    return f'kind = "files", path = "out/{name}"'


def configured(folder: Path, pipelines: dict[str, tuple[str, str, str]], top: str = "") -> Path:
    """Write a configuration of pipelines: their table, their sink, and other settings."""
    lines = ['metrics = "127.0.0.1:0"', top]
    for name, (table, sink, more) in pipelines.items():
        lines += [f"[pipelines.{name}]", f'table = "{table}"', f"sink = {{{sink}}}", "poll_interval_s = 0.1", more]
    (folder / "tailer.toml").write_text("\n".join(lines))
    return folder / "tailer.toml"


def filed(folder: Path) -> list[tuple[int, str, int]]:
    """Return the rows in the folder of a `files` sink, in the order of the files."""
    found: list[tuple[int, str, int]] = []
    for path in sorted(folder.rglob("*.jsonl")):
        rows = map(json.loads, path.read_text().splitlines())
        found += [(row["_commit_version"], row["_change_type"], row.get("id")) for row in rows]
    return found


class Watcher:
    """Asks the daemon for its status all the time, in a thread, and remembers the states of each pipeline."""

    def __init__(self, url: str) -> None:
        self.states: dict[str, list[str]] = {}
        self.draining: set[str] = set()
        self.wrong: list[PipelineReport] = []
        self._client = DaemonClient(url=url)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(0.005):
            try:
                report = self._client.status()
            except ConfigError:
                continue
            for each in report.pipelines:
                states = self.states.setdefault(each.name, [])
                if not states or states[-1] != each.state.value:
                    states.append(each.state.value)
                if each.draining:
                    self.draining.add(each.name)
                explained = each.state.value not in ("waiting", "retrying", "paused", "stopped") or (
                    each.why and each.hint
                )
                if not explained or each.since > report.at:
                    self.wrong.append(each)

    def stop(self) -> None:
        """End the thread."""
        self._over.set()
        self._thread.join()

    def passed(self, name: str, *states: str) -> Callable[[], bool]:
        """Return whether the pipeline has been in these states, in this order."""

        def holds() -> bool:
            left = iter(self.states.get(name, []))
            return all(state in left for state in states)

        return holds


@pytest.fixture
def silent() -> Iterator[int]:
    """A port at which nobody answers."""
    with socket.create_server(("127.0.0.1", 0)) as opened:
        yield opened.getsockname()[1]


@pytest.fixture
def config(tmp_path: Path, silent: int) -> Path:
    """A large table, one with a backlog, a quiet one, a missing one, a wrong one; sinks that refuse, do not answer."""
    write_deltalake(tmp_path / "large", pa.table({"id": pa.array(range(SNAPSHOT_ROWS), pa.int64())}))
    behind = Orders(tmp_path / "behind")
    for number in range(BACKLOG):
        behind.insert(*range(1000 * number, 1000 * number + 1000))
    pipelines = {
        "large": ("large", files("large"), 'start = "snapshot"'),
        "behind": ("behind", files("behind"), ""),
        "quiet": ("behind", files("quiet"), 'start = "latest"'),
        "missing": ("missing", files("missing"), ""),
        "wrong": ("tailer.toml", files("wrong"), ""),
        "refused": ("behind", kafka(1), ""),
        "silent": ("behind", kafka(silent), ""),
    }
    return configured(tmp_path, pipelines)


@pytest.mark.long
def test_every_state_and_every_command(config: Path) -> None:
    behind = Orders(config.parent / "behind", version=BACKLOG - 1)
    with background("run", "--config", config, "--log-format", "text") as daemon:
        url = metrics_address(daemon)
        watcher, client = Watcher(url), DaemonClient(socket=config.with_suffix(".sock"))
        try:
            until(watcher.passed("large", "snapshot", "streaming"))
            until(watcher.passed("behind", "catching_up", "streaming"))
            until(watcher.passed("quiet", "idle"))
            until(watcher.passed("missing", "waiting"))
            until(watcher.passed("wrong", "stopped"))
            until(watcher.passed("refused", "retrying"))
            until(watcher.passed("silent", "starting"))
            assert httpx2.get(f"{url}/livez").status_code == 200
            for name in ("behind", "quiet", "missing", "wrong", "refused"):
                client.send(name, "pause")
                until(watcher.passed(name, "paused"))
            behind.insert(-1)
            for name in ("behind", "quiet", "missing", "wrong", "refused"):
                client.send(name, "resume")
            until(watcher.passed("behind", "paused", "streaming"))
            until(watcher.passed("quiet", "idle", "paused", "streaming"))
            until(watcher.passed("missing", "waiting", "paused", "waiting"))
            until(watcher.passed("wrong", "stopped", "paused", "stopped"))
            until(watcher.passed("refused", "retrying", "paused", "retrying"))
            with pytest.raises(ConfigError, match="is retrying and not stopped by lost changes"):
                client.send("refused", "skip")
            with pytest.raises(ConfigError, match="not stopped by lost changes: there is nothing to skip"):
                client.send("missing", "skip")
            client.send("large", "resnapshot")
            write_deltalake(config.parent / "large", pa.table({"id": pa.array([-1], pa.int64())}), mode="append")
            until(watcher.passed("large", "streaming", "snapshot", "streaming"))
            client.send("quiet", "resnapshot")
            behind.insert(-2)
            until(lambda: len(filed(config.parent / "out" / "quiet")) >= 1000 * BACKLOG + 2)
            Orders(config.parent / "missing").insert(1)
            until(watcher.passed("missing", "waiting", "paused", "waiting", "streaming"))
            until(lambda: filed(config.parent / "out" / "missing") == [(0, "insert", 1)])
        finally:
            watcher.stop()
        assert not watcher.wrong
        assert filed(config.parent / "out" / "behind")[-2:] == [(BACKLOG, "insert", -1), (BACKLOG + 1, "insert", -2)]
        assert len(filed(config.parent / "out" / "large")) == SNAPSHOT_ROWS + 1 + SNAPSHOT_ROWS + 1  # and the gap


@pytest.mark.long
@pytest.mark.parametrize("in_time", [pytest.param(True, id="in time"), pytest.param(False, id="cancelled")])
def test_drained_again_and_again_while_commits_go_on(tmp_path: Path, in_time: bool) -> None:
    """A drain ends with whole transactions, or is cancelled; the next run delivers the rest once."""
    tables = [Orders(tmp_path / f"t{number}") for number in range(6)]
    for table in tables:
        table.insert(0)
    pipelines = {f"p{number}": (f"t{number}", files(f"p{number}"), "") for number in range(len(tables))}
    config, over = configured(tmp_path, pipelines, "drain_s = 20" if in_time else "drain_s = 0.001"), threading.Event()

    def commit() -> None:
        number = 1
        while not over.is_set():
            tables[number % len(tables)].insert(*range(20 * number, 20 * number + 20))
            number += 1

    committing = threading.Thread(target=commit)
    committing.start()
    try:
        for number in range(repeats(2)):
            with background("run", "--config", config, "--log-format", "text") as daemon:
                metrics_address(daemon)
                time.sleep(0.5 + number / 5)
                daemon.send_signal(signal.SIGTERM)
                _, errors = daemon.communicate(timeout=300)
            assert daemon.returncode == 0, errors
            assert "draining" in errors
            assert ("cancelled" in errors) <= (not in_time), errors
            for table, name in zip(tables, pipelines, strict=True):
                whole = filed(tmp_path / "out" / name)
                until(lambda table=table, whole=whole: len(table.changes) >= len(whole))  # type: ignore[misc]
                assert whole == table.changes[: len(whole)]
                rest = table.changes[len(whole) : len(whole) + 1]
                assert not whole or not rest or rest[0][0] != whole[-1][0], "half a version"
    finally:
        over.set()
        committing.join()
    with background("run", "--config", config):
        for table, name in zip(tables, pipelines, strict=True):
            until(lambda table=table, name=name: filed(tmp_path / "out" / name) == table.changes)  # type: ignore[misc]


@pytest.mark.long
def test_a_drain_finishes_a_large_transaction_and_says_so(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "large", pa.table({"id": pa.array(range(SNAPSHOT_ROWS), pa.int64())}))
    config = configured(tmp_path, {"large": ("large", files("large"), "")}, "drain_s = 60")
    with background("run", "--config", config, "--log-format", "text") as daemon:
        watcher = Watcher(metrics_address(daemon))
        try:
            until(watcher.passed("large", "catching_up"))
            daemon.send_signal(signal.SIGTERM)
            daemon.communicate(timeout=300)
        finally:
            watcher.stop()
    assert daemon.returncode == 0
    assert watcher.draining == {"large"}
    delivered = len(filed(tmp_path / "out" / "large"))
    assert delivered == SNAPSHOT_ROWS


@pytest.mark.long
def test_resumed_twice_before_the_pause_has_come_about(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "large", pa.table({"id": pa.array(range(SNAPSHOT_ROWS), pa.int64())}))
    config = configured(tmp_path, {"large": ("large", files("large"), "")})
    with background("run", "--config", config, "--log-format", "text") as daemon:
        watcher, way = Watcher(metrics_address(daemon)), httpx2.HTTPTransport(uds=str(config.with_suffix(".sock")))
        try:
            with httpx2.Client(transport=way, base_url="http://daemon") as client:
                until(watcher.passed("large", "catching_up"))
                answers = [client.post(f"/pipelines/large/{verb}") for verb in ("pause", "resume", "resume")]
            assert [each.json()["message"] for each in answers[1:]] == ["large runs"] * 2
            until(watcher.passed("large", "catching_up", "streaming"))
        finally:
            watcher.stop()
        write_deltalake(tmp_path / "large", pa.table({"id": pa.array([-1], pa.int64())}), mode="append")
        until(lambda: len(filed(tmp_path / "out" / "large")) == SNAPSHOT_ROWS + 1)
    assert watcher.draining == {"large"}
