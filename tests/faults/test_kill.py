"""SIGKILL of the real daemon at random moments: nothing is missing, nothing is doubled, versions come in order.

What was delivered is read from the destination, by its own reader, and compared with the model of the history and with
the versions read again from the log.
"""

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from tests.faults.saga import Change, Saga
from tests.follow import follow

TAILER: Final = Path(sys.executable).with_name("tailer")
KILLS: Final = 11
TERMINATIONS: Final = 8
COMMITS: Final = 300
READY_S: Final = 60.0
CAUGHT_UP_S: Final = 120.0
EXIT_S: Final = 40.0

Delivered = list[tuple[int, str, int, int]]  # version, change type, id, time of commit in milliseconds


class Destination(Protocol):
    """Where the daemon delivers, read without it."""

    @property
    def sink(self) -> str:
        """The sink's table in the configuration."""
        ...

    def reached(self) -> int:
        """The last version that is complete; -1 for none."""
        ...

    def transactions(self) -> Iterator[Delivered]:
        """The rows of every transaction, in order of commit."""
        ...


@dataclass
class DeltaDestination:
    """The target of the delta sink, through delta-rs and pyarrow."""

    path: Path
    app_id: str

    @property
    def sink(self) -> str:
        """The sink's table in the configuration."""
        return f'kind = "delta"\npath = "{self.path}"\n'

    def reached(self) -> int:
        """See `Destination.reached`."""
        try:
            version = DeltaTable(self.path).transaction_version(self.app_id)
        except TableNotFoundError:
            return -1
        return -1 if version is None else version

    def transactions(self) -> Iterator[Delivered]:
        """See `Destination.transactions`."""
        for version in range(DeltaTable(self.path).version() + 1):
            commit = self.path / "_delta_log" / f"{version:020d}.json"
            actions = [msgspec.json.decode(line) for line in commit.read_bytes().splitlines()]
            files = [self.path / action["add"]["path"] for action in actions if "add" in action]
            tables = [pq.read_table(file) for file in files]
            yield [row for table in tables for row in _delivered(table)]


@dataclass
class FilesDestination:
    """The folder of the files sink: JSON Lines in files named by their versions."""

    path: Path
    app_id: str

    @property
    def sink(self) -> str:
        """The sink's table in the configuration."""
        return f'kind = "files"\npath = "{self.path}"\n'

    def _files(self) -> list[Path]:
        return sorted((self.path / self.app_id).glob("[0-9]*.jsonl"))

    def reached(self) -> int:
        """See `Destination.reached`."""
        return max((int(file.stem.split("-")[-1]) for file in self._files()), default=-1)

    def transactions(self) -> Iterator[Delivered]:
        """See `Destination.transactions`."""
        for file in self._files():
            rows: list[dict[str, Any]] = [msgspec.json.decode(line) for line in file.read_bytes().splitlines()]
            yield list(_delivered(pa.Table.from_pylist(rows))) if rows else []


def _delivered(table: pa.Table) -> Iterator[tuple[int, str, int, int]]:
    names = ("_commit_version", "_change_type", "id", "_commit_timestamp")
    columns = [table.column(name).to_pylist() for name in names]
    return ((version, kind, one, _millis(moment)) for version, kind, one, moment in zip(*columns, strict=True))


def _millis(moment: datetime | str) -> int:
    moment = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


class Daemon:
    """`tailer run`, as a person would start it."""

    def __init__(self, config: Path) -> None:
        self._said = config.with_suffix(".log")
        with self._said.open("wb") as said:
            self.process = subprocess.Popen([TAILER, "run", config], stdout=said, stderr=said)

    @property
    def said(self) -> str:
        """Everything it printed."""
        return self._said.read_text()

    def wait_until_running(self) -> None:
        """Return when the pipelines have been started."""
        deadline = time.monotonic() + READY_S
        while "running" not in self.said:
            assert self.process.poll() is None, self.said
            assert time.monotonic() < deadline, self.said
            time.sleep(0.01)

    def wait_until_reached(self, destination: Destination, version: int) -> None:
        """Return when `version` has been delivered."""
        deadline = time.monotonic() + CAUGHT_UP_S
        while destination.reached() < version:
            assert self.process.poll() is None, self.said
            assert time.monotonic() < deadline, f"at version {destination.reached()}\n{self.said}"
            time.sleep(0.05)

    def kill(self) -> None:
        """End it without warning."""
        assert self.process.poll() is None, self.said
        self.process.kill()
        self.process.wait()

    def terminate(self) -> int:
        """Ask it to end; returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(EXIT_S)


@pytest.fixture(params=["delta", "files"])
def kind(request: pytest.FixtureRequest) -> str:
    """The sink's kind."""
    return str(request.param)


@pytest.fixture
def saga(tmp_path: Path, kind: str) -> Saga:
    """A busy table."""
    return Saga(tmp_path / "source", seed=len(kind), length=COMMITS)


@pytest.fixture
def destination(tmp_path: Path, kind: str, saga: Saga) -> Destination:
    """Where its changes go."""
    make = DeltaDestination if kind == "delta" else FilesDestination
    return make(tmp_path / "target", f"orders/{saga.table_id}")


@pytest.fixture
def config(tmp_path: Path, saga: Saga, destination: Destination) -> Path:
    """The daemon's configuration."""
    path = tmp_path / "tailer.toml"
    pipeline = f'[pipelines.orders]\ntable = "{saga.path}"\nstart = "earliest"\npoll_interval_s = 0.05\n'
    path.write_text(f"{pipeline}[pipelines.orders.sink]\n{destination.sink}")
    return path


@pytest.fixture
def started() -> Iterator[list[Daemon]]:
    """Daemons of a test; none survives it."""
    daemons: list[Daemon] = []
    yield daemons
    for daemon in daemons:
        if daemon.process.poll() is None:
            daemon.process.kill()
            daemon.process.wait()


def check(saga: Saga, destination: Destination, last: int) -> None:
    """What was delivered is all versions up to `last`: every row once, versions in order and never torn apart."""
    seen = -1
    found: Counter[tuple[int, str, int, int]] = Counter()
    for transaction in destination.transactions():
        versions = sorted({row[0] for row in transaction})
        assert not versions or versions[0] > seen, f"version {versions[0]} comes after version {seen}"
        seen = max([seen, *versions])
        found.update(transaction)
    expected: Counter[tuple[int, str, int, int]] = Counter()
    for version in follow(saga.path, 0, last):
        expected.update(_delivered(version.table))
    modelled: Counter[Change] = Counter({change: n for change, n in saga.changes.items() if change[0] <= last})
    assert Counter(row[:3] for row in expected.elements()) == modelled
    assert not expected - found, f"missing: {list((expected - found).items())[:5]}"
    assert not found - expected, f"doubled or wrong: {list((found - expected).items())[:5]}"


@pytest.mark.smoke
def test_killed_again_and_again(saga: Saga, destination: Destination, config: Path, started: list[Daemon]) -> None:
    moments = random.Random(saga.seed)
    reached = []
    for _ in range(KILLS):
        saga.publish(moments.randrange(8))  # what came while nobody watched
        started.append(Daemon(config))
        started[-1].wait_until_running()
        killed_at = time.monotonic() + moments.uniform(0.0, 1.5)
        while time.monotonic() < killed_at:
            saga.publish(moments.randrange(5))
            time.sleep(moments.uniform(0.0, 0.15))
        started[-1].kill()
        reached.append(destination.reached())
    saga.publish(saga.length)
    started.append(Daemon(config))
    started[-1].wait_until_running()
    started[-1].wait_until_reached(destination, saga.last)
    assert started[-1].terminate() == 0, started[-1].said
    check(saga, destination, saga.last)
    print(f"killed at versions {reached}")
    assert len(set(reached)) > KILLS // 3, f"the daemon hardly got anywhere between kills: {reached}"


def test_terminated_while_busy(saga: Saga, destination: Destination, config: Path, started: list[Daemon]) -> None:
    saga.publish(saga.length)
    stops: list[int] = []
    while len(stops) < TERMINATIONS and destination.reached() < saga.last:
        started.append(Daemon(config))
        started[-1].wait_until_running()
        time.sleep(0.4)
        assert started[-1].terminate() == 0, started[-1].said
        stops.append(destination.reached())
        if len(stops) == 2:
            check(saga, destination, stops[-1])
    print(f"terminated at versions {stops}")
    assert len(set(stops)) > len(stops) // 3, f"the daemon hardly got anywhere between terminations: {stops}"
    started.append(Daemon(config))
    started[-1].wait_until_running()
    started[-1].wait_until_reached(destination, saga.last)
    assert started[-1].terminate() == 0, started[-1].said
    check(saga, destination, saga.last)
