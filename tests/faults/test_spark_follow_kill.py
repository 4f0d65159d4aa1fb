"""SIGKILL of the driver and of executors of `tailer.spark.follow`: the table that it appends to is exact afterwards.

On every landing: the driver is killed in this module, and executors that write in `faults/test_spark_kafka_kill.py`.
"""

import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.faults.follow_writer import append_all
from tests.support.follow import follow
from tests.support.histories.long_history import LongHistory
from tests.support.seeds import repeats
from tests.support.spark.cluster import Driver, StandaloneCluster
from tests.support.spark.session import delta_conf
from tests.support.waiting import until

pytestmark = pytest.mark.spark

KILLS: Final = repeats(1)
COMMITS: Final = 14 + 6 * KILLS
PATIENCE_S: Final = 600

Change = tuple[int, str, int, object]


def history_in(folder: Path, seed: int) -> LongHistory:
    """Write a history, all of it published."""
    history = LongHistory(folder / "source", seed=seed, length=COMMITS)
    history.publish(history.length)
    return history


def commits(target: Path) -> int:
    """Count the versions of the target."""
    return len(list((target / "_delta_log").glob("*.json")))


def wait_for(target: Path, versions: int, ended: Callable[[], object]) -> None:
    """Return when the target has so many versions; `ended` is not true before."""

    def is_reached() -> bool:
        assert not ended(), "it ended before it was killed"
        return commits(target) >= versions

    until(is_reached, lambda: commits(target))


def check_delivered(history: LongHistory, target: Path) -> None:
    """Check that the target has every change of the source, once."""
    expected: Counter[Change] = Counter()
    for version in follow(history.path):
        expected.update(_changes(version.table))
    assert Counter(change[:3] for change in expected.elements()) == history.changes
    found = _changes(pa.table(DeltaTable(target).scan()))
    assert not expected - found, f"missing: {list((expected - found).items())[:5]}"
    assert not found - expected, f"doubled or wrong: {list((found - expected).items())[:5]}"


def _changes(table: pa.Table) -> Counter[Change]:
    names = ("_commit_version", "_change_type", "id", "_commit_timestamp")
    return Counter(zip(*(table.column(name).to_pylist() for name in names), strict=True))


def test_drivers_killed_while_they_follow(tmp_path: Path) -> None:
    moments, history, target = random.Random(11), history_in(tmp_path, 8), tmp_path / "target"
    killed = []
    for number in range(KILLS + 1):
        scratch = tmp_path / f"scratch-{number}"
        scratch.mkdir()
        folders = (history.path, target, tmp_path / "checkpoint", scratch)
        command = [sys.executable, "-m", "tests.faults.follow_writer", *map(str, folders)]
        with (scratch / "said.log").open("wb") as said:
            process = subprocess.Popen(command, stdout=said, stderr=said)
        try:
            if number < KILLS:
                wait_for(target, commits(target) + moments.randint(1, 2), process.poll)
                # Some kills come in the middle of a batch, some right behind a commit.
                time.sleep(moments.choice((0.0, moments.uniform(0.0, 1.0))))
                assert process.poll() is None
                killed.append(commits(target))
            else:
                assert process.wait(PATIENCE_S) == 0, (scratch / "said.log").read_text()
        finally:
            process.kill()
            process.wait()
    assert commits(target) > killed[-1]
    check_delivered(history, target)


@pytest.mark.nightly
def test_executors_killed_while_they_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, twice, with slow tasks run a second time beside the first (speculation)."""
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    history, target = history_in(tmp_path, 9), tmp_path / "target"
    conf = {
        **delta_conf(),
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.shuffle.partitions": "2",
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1",
        "spark.speculation.quantile": "0.1",
        "spark.speculation.minTaskRuntime": "0ms",
    }
    cluster = StandaloneCluster(tmp_path / "cluster")
    try:
        with Driver(cluster.settings(conf)) as driver:
            running = driver.start(append_all, history.path, target, tmp_path / "checkpoint")
            for reached in (2, 4):
                wait_for(target, reached, running.done)
                executors = cluster.executor_pids()
                assert executors
                for pid in executors:
                    cluster.kill_executor(pid)
            running.result(PATIENCE_S)
    finally:
        cluster.close()
    check_delivered(history, target)
