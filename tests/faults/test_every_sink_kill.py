"""SIGKILL of one daemon that delivers into every sink and mode, while an operator asks for backfills and snapshots.

After each kill the destinations are read without the sinks: a log has every change up to its version once, and a mirror
has the rows of its version. `tailer verify` agrees. What is in Kafka is judged at the end of a part. Parts are
independent, with seeds of their own, so that one can be repeated.

On every landing: kills of each sink and mode by itself, in the other modules here.
"""

import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.daemon.every_sink import (
    DatabaseLog,
    DatabaseMirror,
    DeltaLog,
    DeltaMirror,
    FilesLog,
    HttpLog,
    Lane,
)
from tests.support.daemon.pipelines import Pipelines
from tests.support.daemon.process import small_transactions
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.history import History
from tests.support.kafka.lanes import CLIENTS, TAILER, Daemon, Lanes
from tests.support.kafka.lanes import Lane as KafkaLane
from tests.support.mirrors.databases import Database, DuckDbDatabase, PostgresDatabase, SqliteDatabase
from tests.support.seeds import seeds
from tests.support.servers.endpoint import Endpoint, serving
from tests.support.servers.postgres import Postgres

# The client library forgets a Unix socket that nobody serves.
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(0),
    pytest.mark.filterwarnings(r"ignore:unclosed <socket.socket fd=\d+, family=1:ResourceWarning"),
]

PARTS: Final = 20
KILLS: Final = 10
COMMITS: Final = 5 * KILLS
VERIFIED: Final = 4  # of so many kills one is followed by `tailer verify`
COMMANDS: Final = 4
SMALL: Final = small_transactions(40)


class Killing:
    """A daemon with all sinks over one history, its kills, and what was found after each of them."""

    def __init__(self, pipelines: Pipelines, seed: int) -> None:
        self.pipelines = pipelines
        self.lanes = pipelines.lanes
        self.history = pipelines.history
        self.chance = random.Random(seed)
        self.figures = {lane.name: Counter[str]() for lane in self.lanes}
        self.busy: Counter[str] = Counter()

    def kill(self, number: int) -> None:
        """Start a daemon, kill it at a random moment, and judge what it left."""
        chance, history = self.chance, self.history
        due = history.length * (number + 1) // (KILLS + 1)
        history.publish(chance.randint(1, max(1, due - history.published)))
        with Daemon(self.pipelines.config, SMALL if number % 2 else TAILER) as daemon:
            if number % 5 == 4:  # before it has done anything, or much
                time.sleep(chance.uniform(0.3, 3.0))
            else:
                daemon.await_running()
                lane = self.lanes[number % len(self.lanes)]
                before = lane.reached()
                if before < history.published - 1:
                    daemon.wait_for(lambda: lane.reached() > before)
                self.pipelines.give_commands(chance, COMMANDS)
                history.publish(max(0, due - history.published))
                time.sleep(chance.uniform(0.0, 1.0))
            daemon.kill()
        self._judge(ended=False)
        verified = [lane for lane in self.lanes if lane.is_verified and self.pipelines.reached[lane.name] >= 0]
        if verified and number % VERIFIED == 0:
            self._verify(chance.choice(verified))

    def finish(self) -> None:
        """Let a daemon deliver the rest, and judge everything."""
        self.history.publish(self.history.length)
        with Daemon(self.pipelines.config) as daemon:
            daemon.await_running()
            self.pipelines.await_delivered(daemon)
            assert daemon.terminate() == 0, daemon.said
        self._judge(ended=True)
        for lane in self.lanes:
            if lane.is_verified:
                self._verify(lane)
        self.pipelines.kafka.check()

    def _judge(self, *, ended: bool) -> None:
        found = self.pipelines.judge(ended=ended)
        for name, faults in found.items():
            version = self.pipelines.reached[name]
            self.figures[name].update(faults.figures)
            self.busy[name] += version < self.history.published - 1
            assert not any(faults.figures.values()), f"{name} at version {version}: {faults}"

    def _verify(self, lane: Lane) -> None:
        difference = self.pipelines.difference(lane)
        assert not difference, difference


def lanes_of(folder: Path, endpoint: Endpoint, postgres: Postgres) -> Iterator[Lane]:
    """Yield a pipeline for each sink and mode."""
    yield DeltaLog(folder / "delta", "delta-log")
    yield DeltaMirror(folder / "delta-mirror", "delta-mirror")
    yield FilesLog(folder / "files", "files")
    yield HttpLog(endpoint, "http")
    files: dict[str, type[SqliteDatabase | DuckDbDatabase]] = {"sqlite": SqliteDatabase, "duckdb": DuckDbDatabase}
    for kind, made in files.items():
        yield DatabaseMirror(made(folder / f"{kind}.mirror"), f"{kind}-mirror")
        yield DatabaseLog(made(folder / f"{kind}.log"), f"{kind}-log")
    database: Database = PostgresDatabase(postgres)
    yield DatabaseMirror(database, "postgresql-mirror")
    yield DatabaseLog(database, "postgresql-log")


@pytest.mark.parametrize("part", range(PARTS))
def test_killed_two_hundred_times(tmp_path: Path, kafka: KafkaCluster, postgres: Postgres, part: int) -> None:
    seed = seeds(1).start * PARTS + part
    print(f"seed {seed}")
    history = History(tmp_path / "table", seed=seed, length=COMMITS, large=300, large_every=10)
    pipelines = [KafkaLane(client) for client in CLIENTS]
    with serving() as endpoint, Lanes(tmp_path, history, kafka.bootstrap_servers, pipelines) as lanes:
        killing = Killing(Pipelines(list(lanes_of(tmp_path, endpoint, postgres)), lanes), seed)
        for number in range(KILLS):
            killing.kill(number)
        killing.finish()
        print(f"{KILLS} kills; records of transactions in Kafka that were torn: {lanes.torn()}")
    for name, figures in killing.figures.items():
        print(
            f"{name}: busy at {killing.busy[name]} kills, {killing.pipelines.commands[name]} commands, {dict(figures)}"
        )
