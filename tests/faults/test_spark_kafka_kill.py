"""SIGKILL of the driver and of executors of `tailer.spark.follow` into Kafka: the five figures are 0.

Executors of a killed driver may go on for a while beside those of the next one, and a slow task runs a second time
beside the first (speculation): of two writers of a shard, the later one fences the earlier one.

On every landing: executors that write are killed in this module, and drivers in `faults/test_spark_follow_kill.py`.
"""

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from tests.faults.kafka_follower import SHARDS, deliver_all
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.history import History
from tests.support.kafka.lanes import FORMS, Form
from tests.support.kafka.sharded_delivery import ShardedDelivery
from tests.support.kafka.topics import end_offsets
from tests.support.seeds import repeats
from tests.support.spark.cluster import Driver, StandaloneCluster
from tests.support.waiting import until

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

KILLS: Final = repeats(1)
COMMITS: Final = 6 + 2 * KILLS
PATIENCE_S: Final = 600


def history_in(folder: Path, seed: int) -> History:
    """Write a history, all of it published."""
    history = History(folder / "table", seed=seed, length=COMMITS, large=2_000, large_every=6)
    history.publish(COMMITS - 1)
    return history


def written(delivery: ShardedDelivery) -> int:
    """Count the records in the topic of rows, with those of open and of aborted transactions."""
    return sum(end_offsets(delivery.servers, [delivery.lane.topic]).values())


def wait_for(delivery: ShardedDelivery, records: int, ended: Callable[[], object]) -> None:
    """Return when so many records were written; `ended` is not true before."""

    def is_reached() -> bool:
        assert not ended(), "it ended before it was killed"
        return written(delivery) >= records

    until(is_reached, lambda: written(delivery))


def check(delivery: ShardedDelivery) -> None:
    """Compare all that was delivered with the history."""
    figures = delivery.figures(SHARDS)
    if delivery.lane.form == "flat":  # without a key shards have no common order
        figures = replace(figures, disordered=0)
    assert figures.all_zero, figures


@pytest.mark.nightly
@pytest.mark.parametrize("form", FORMS)
def test_drivers_killed_while_they_follow(tmp_path: Path, kafka: KafkaCluster, form: Form) -> None:
    moments, history = random.Random(form), history_in(tmp_path, 12)
    delivery = ShardedDelivery(kafka, history, form)
    for number in range(KILLS + 1):
        scratch = tmp_path / f"scratch-{number}"
        scratch.mkdir()
        told = [str(history.path), delivery.lane.name, json.dumps(delivery.options), str(tmp_path / "checkpoint")]
        command = [sys.executable, "-m", "tests.faults.kafka_follower", *told, str(scratch)]
        with (scratch / "said.log").open("wb") as said:
            process = subprocess.Popen(command, stdout=said, stderr=said)
        try:
            if number < KILLS:
                before = written(delivery)
                wait_for(delivery, before + moments.randint(1, 2_000), process.poll)
                time.sleep(moments.choice((0.0, moments.uniform(0.0, 0.3))))
                assert process.poll() is None
            else:
                assert process.wait(PATIENCE_S) == 0, (scratch / "said.log").read_text()
        finally:
            process.kill()
            process.wait()
    check(delivery)


def test_executors_killed_while_they_write(
    tmp_path: Path, kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them, with slow tasks run a second time beside the first."""
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    history = history_in(tmp_path, 13)
    delivery = ShardedDelivery(kafka, history)
    conf = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1",
        "spark.speculation.quantile": "0.1",
        "spark.speculation.minTaskRuntime": "0ms",
    }
    cluster = StandaloneCluster(tmp_path / "cluster")
    try:
        with Driver(cluster.settings(conf)) as driver:
            told = history.path, delivery.lane.name, delivery.options, tmp_path / "checkpoint", 0
            running = driver.start(deliver_all, *told)
            for _ in range(KILLS):
                wait_for(delivery, written(delivery) + 500, running.done)
                executors = cluster.executor_pids()
                assert executors
                for pid in executors:
                    cluster.kill_executor(pid)
            running.result(PATIENCE_S)
    finally:
        cluster.close()
    check(delivery)
