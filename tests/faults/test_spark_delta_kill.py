"""SIGKILL of the driver and of executors that write a Delta table: the table is exact afterwards.

A killed driver leaves a JVM for a moment, which may still commit. The next driver starts meanwhile.
"""

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import pytest
from pyspark.sql import SparkSession

from tailer.spark.write.delta.spark_with_delta import with_delta
from tests.support.daemon.process import DeltaDestination
from tests.support.histories.long_history import LongHistory
from tests.support.mirrors.long_history import HistoryMirror
from tests.support.seeds import repeats
from tests.support.spark.cluster import Driver, StandaloneCluster
from tests.support.spark.executor_writes import Delivering, Interrupted, check_delivered, waits_to_die
from tests.support.spark.session import delta_jars
from tests.support.waiting import until

pytestmark = pytest.mark.spark

KILLS: Final = repeats(1)
FEW_KILLS: Final = 2
MANY_KILLS: Final = 20
COMMITS: Final = 60
SHORT: Final = 4  # versions per version range, so that commits come often
PATIENCE_S: Final = 600


class Writer:
    """The process of `tests.faults.executor_writer`."""

    def __init__(
        self, history: LongHistory, target: Path, scratch: Path, range_versions: int = SHORT, mode: str = "append"
    ) -> None:
        scratch.mkdir()
        self._said = scratch / "said.log"
        module = "tests.faults.executor_writer"
        command = [
            sys.executable,
            "-m",
            module,
            str(history.path),
            str(target),
            str(scratch),
            str(range_versions),
            mode,
        ]
        with self._said.open("wb") as said:
            self.process = subprocess.Popen(command, stdout=said, stderr=said)

    @property
    def said(self) -> str:
        """Everything it printed."""
        return self._said.read_text(errors="replace")

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Return when a condition holds."""

        def living() -> bool:
            assert self.process.poll() is None, self.said
            return holds()

        until(living, lambda: len(self.said), lambda: self.said)


def files(destination: DeltaDestination) -> int:
    """Count the data files, committed or not."""
    return len(list(destination.path.glob("part-*.parquet")))


def has_mirrored(mirror: HistoryMirror, least: int) -> bool:
    """Return whether the mirror is at least at version `least`."""
    return mirror.version() >= least


def has_more_files(target: Path, there: int) -> bool:
    """Return whether there are more files than `there`."""
    return len(list(target.glob("part-*.parquet"))) > there


def has_got(destination: DeltaDestination, there: int, least: int) -> bool:
    """Return whether there are more files than `there`, and progress is at least `least`."""
    return files(destination) > there and destination.reached() >= least


@pytest.mark.nightly
def test_drivers_killed_while_they_write(tmp_path: Path, started: list[Writer]) -> None:
    moments = random.Random(7)
    history = LongHistory(tmp_path / "source", seed=5, length=COMMITS)
    destination = DeltaDestination(tmp_path / "target", f"orders/{history.table_id}")
    reached = [-1]
    for number in range(KILLS):
        history.publish(8)
        there = files(destination)
        started.append(writer := Writer(history, destination.path, tmp_path / f"scratch-{number}"))
        # Some kills find uncommitted files, others come after a commit.
        least = reached[-1] if number % 2 == 0 else reached[-1] + 1
        writer.wait_until(partial(has_got, destination, there, least))
        history.publish(4)
        time.sleep(moments.uniform(0.0, 0.7))
        writer.process.kill()
        writer.process.wait()
        reached.append(destination.reached())
    history.publish(history.length)
    started.append(writer := Writer(history, destination.path, tmp_path / "scratch", range_versions=history.length))
    writer.wait_until(lambda: destination.reached() == history.last)
    writer.process.send_signal(signal.SIGTERM)
    assert writer.process.wait(PATIENCE_S) == 0, writer.said
    print(f"killed at versions {reached[1:]}")
    check_delivered(history, destination.path)


@pytest.mark.parametrize("kills", [FEW_KILLS, pytest.param(MANY_KILLS, marks=pytest.mark.nightly)])
def test_drivers_killed_while_they_merge(tmp_path: Path, started: list[Writer], kills: int) -> None:
    """Each commit of the mirror is a version of the table, with its progress."""
    moments = random.Random(8)
    history = LongHistory(tmp_path / "source", seed=5, length=20 * (kills + 1))
    target = tmp_path / "target"
    mirror = HistoryMirror(str(target), history)
    Delivering(history.path, target, options={"mode": "mirror", "key": ["id"]}).by_driver()
    reached = [0]
    for number in range(kills):
        history.publish(SHORT + 1)
        started.append(writer := Writer(history, target, tmp_path / f"scratch-{number}", mode="mirror"))
        # Some kills come after a commit, others after a file that may be committed or not.
        before = len(list(target.glob("part-*.parquet")))
        if number % 2 == 0:
            writer.wait_until(partial(has_mirrored, mirror, reached[-1] + 1))
        else:
            writer.wait_until(partial(has_more_files, target, before))
        history.publish(2 * SHORT)
        time.sleep(moments.uniform(0.0, 2.0))
        writer.process.kill()
        writer.process.wait()
        reached.append(mirror.version())
    history.publish(history.length)
    started.append(writer := Writer(history, target, tmp_path / "scratch", history.length, "mirror"))
    writer.wait_until(lambda: mirror.version() == history.last)
    writer.process.send_signal(signal.SIGTERM)
    assert writer.process.wait(PATIENCE_S) == 0, writer.said
    print(f"killed at versions {reached[1:]}, {mirror.commits()} commits")
    for commit in range(mirror.commits()):
        mirror.version(commit)


def deliver(session: SparkSession, delivering: Delivering, until: int, folder: Path) -> None:
    """Deliver the rest with a new driver."""
    sink = Interrupted(delivering.name, **delivering.settings.sink_options)
    sink.then = partial(waits_to_die, folder)
    anyio.run(delivering.executors(lambda: session, until, sink).run)


def test_executors_killed_while_they_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    history = LongHistory(tmp_path / "source", seed=6, length=COMMITS // 2)
    history.publish(history.length)
    delivering = Delivering(history.path, tmp_path / "target")
    destination = DeltaDestination(delivering.target, f"orders/{history.table_id}")
    cluster = StandaloneCluster(tmp_path / "cluster")
    try:
        conf = {"spark.jars": ",".join(map(str, delta_jars())), "spark.databricks.delta.snapshotPartitions": "2"}
        with Driver(with_delta(cluster.settings(conf))) as driver:
            delivered = driver.start(deliver, delivering, history.last, tmp_path)
            deadline = time.monotonic() + PATIENCE_S
            while not (tmp_path / "running").exists():
                assert not delivered.done() or delivered.result() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
            for pid in cluster.executor_pids():
                cluster.kill_executor(pid)
            delivered.result(PATIENCE_S)
    finally:
        cluster.close()
    check_delivered(history, destination.path)
