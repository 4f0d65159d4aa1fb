"""SIGKILL of the real daemon inside transactions: how soon it, and others with its progress topic, go on.

Brokers give these transactions up after 15 minutes, the most they allow. Nobody may wait for that: not the next start,
not the first start of another pipeline, not a look at the progress. Each of them must come in a quarter of that time,
on however busy a machine. The figures are printed. How few seconds they are is asserted by `make nightly`, which has
the machine for itself.

On every landing: three kills, in this module.
"""

import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from kafka import TopicPartition
from kafka.admin import OffsetSpec
from kafka.protocol.consumer import IsolationLevel

from tests.faults.lingering_daemon import LINGER_S, LINGERS
from tests.support.daemon.commands import tailer
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.history import History
from tests.support.kafka.lanes import CLIENTS, Daemon, Lane, Lanes
from tests.support.kafka.topics import admin

KILLS = 3
SOAK_KILLS = 20
TRANSACTION_S = 900.0
WAITED_S = TRANSACTION_S / 4
SOON_S = 3.0
LINGERING = (sys.executable, "-m", "tests.faults.lingering_daemon")


@dataclass
class Waits:
    """Seconds from the start of a process, and from when its pipelines run, until it has done its work."""

    of_process: list[float] = field(default_factory=list)
    of_pipelines: list[float] = field(default_factory=list)

    def measure(self, daemon: Daemon, began_s: float, reached: Callable[[], bool]) -> None:
        """Wait until a daemon that was started at `began_s` has reached something."""
        daemon.await_running()
        running_s = time.monotonic()
        daemon.wait_for(reached)
        now_s = time.monotonic()
        self.of_process.append(now_s - began_s)
        self.of_pipelines.append(now_s - running_s)

    def __str__(self) -> str:
        totals, rests = sorted(self.of_process), sorted(self.of_pipelines)
        return f"{_figures(totals)}; of that after the start of the pipelines {_figures(rests)}"


def _figures(sorted_s: Sequence[float]) -> str:
    count = len(sorted_s)
    return f"median {sorted_s[count // 2]:.2f}, p90 {sorted_s[count * 9 // 10]:.2f}, longest {sorted_s[-1]:.2f} s"


def delivered(lanes: Lanes) -> Callable[[], bool]:
    """Return a function that says whether readers have seen more of every lane by then."""
    before = lanes.seen()
    return lambda: all(count > before[name] for name, count in lanes.seen().items())


def hides_progress(kafka: KafkaCluster, topic: str) -> bool:
    """Return whether `read_committed` consumers cannot read a progress topic to its end."""
    asked = {TopicPartition(topic, 0): OffsetSpec.LATEST}
    with admin(kafka.bootstrap_servers) as client:
        levels = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
        committed, everything = (client.list_partition_offsets(asked, level) for level in levels)
    return bool(committed != everything)


def kill_in_transaction(lanes: Lanes, daemon: Daemon, moments: random.Random, *, at_commit: bool) -> None:
    """Kill a daemon at a random moment while a transaction is open. `at_commit`: when it has all its records."""
    flag, before = lanes.config.with_name("linger"), daemon.said.count(LINGERS)
    flag.touch()
    lanes.publish_until(daemon, lambda: daemon.said.count(LINGERS) > before if at_commit else bool(lanes.open()))
    time.sleep(moments.uniform(0.0, LINGER_S * 0.8))
    daemon.kill()
    flag.unlink()


def measured(tmp_path: Path, kafka: KafkaCluster, kills: int) -> tuple[Waits, Waits]:
    """Kill a daemon at random moments inside transactions; nobody may wait until brokers give these up.

    Return how long the next ones took to deliver something, and other pipelines that started meanwhile.
    """
    moments = random.Random(kills)
    history = History(tmp_path / "table", seed=9, length=40 * (kills + 1), large=600, large_every=5)
    first, restarts, neighbours, looks, hidden = Waits(), Waits(), Waits(), list[float](), 0
    pipelines = [Lane(client) for client in CLIENTS]
    with Lanes(tmp_path, history, kafka.bootstrap_servers, pipelines, transaction_timeout_s=TRANSACTION_S) as lanes:
        for number in range(kills + 1):
            history.publish(2)
            reached, began_s = delivered(lanes), time.monotonic()
            with Daemon(lanes.config, LINGERING) as daemon:
                (restarts if number else first).measure(daemon, began_s, reached)
                if number == kills:
                    lanes.await_caught_up(daemon)
                    assert daemon.terminate() == 0, daemon.said
                    break
                kill_in_transaction(lanes, daemon, moments, at_commit=number % 2 == 0)
            hidden += hides_progress(kafka, lanes.progress_topic)
            began_s = time.monotonic()
            shown = tailer("progress", "show", "--config", lanes.config)
            looks.append(time.monotonic() - began_s)
            assert shown.returncode == 0, shown.stderr
            start_beside(lanes, tmp_path / f"beside-{number}", kafka, neighbours)
        lanes.check()
    print(f"\n{kills} kills, {hidden} of them with progress in an open transaction")
    print(f"start to first delivery, without a kill: {first}")
    print(f"restart to first delivery: {restarts}")
    print(f"first start of another pipeline to its first delivery: {neighbours}")
    print(f"progress show: {_figures(sorted(looks))}")
    assert hidden, "no kill left progress in an open transaction"
    assert max(*restarts.of_process, *neighbours.of_process, *looks) < WAITED_S, "waited for an open transaction"
    return restarts, neighbours


def start_beside(lanes: Lanes, folder: Path, kafka: KafkaCluster, waits: Waits) -> None:
    """Start a new pipeline with the same progress topic, while the transaction of a killed one is open."""
    folder.mkdir()
    new = Lane("kafka-python", "flat")
    new.name = folder.name
    with Lanes(folder, lanes.history, kafka.bootstrap_servers, [new], progress_topic=lanes.progress_topic) as beside:
        reached, began_s = delivered(beside), time.monotonic()
        with Daemon(beside.config) as daemon:
            waits.measure(daemon, began_s, reached)
            beside.await_caught_up(daemon)
            assert daemon.terminate() == 0, daemon.said
        beside.check()


def test_restart_after_kills(tmp_path: Path, kafka: KafkaCluster) -> None:
    measured(tmp_path, kafka, KILLS)


@pytest.mark.nightly
@pytest.mark.timeout(0)
def test_restart_after_many_kills(tmp_path: Path, kafka: KafkaCluster) -> None:
    for waits in measured(tmp_path, kafka, SOAK_KILLS):
        assert max(waits.of_process) < SOON_S
