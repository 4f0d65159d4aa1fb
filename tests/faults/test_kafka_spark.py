"""SIGKILL of executors and of the daemon while executors deliver to Kafka: the five figures are 0.

Spark replaces killed executors and runs their tasks again. A killed daemon leaves executors that continue for a while,
beside those of the next one.

On every landing: executors of queries are killed in `faults/test_spark_kafka_kill.py`, and drivers in
`faults/test_spark_follow_kill.py`.
"""

import json
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tailer.config.shapes import SparkSettings
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.figures import Figures
from tests.support.kafka.history import History
from tests.support.kafka.lanes import TAILER, Daemon, Lane, Lanes
from tests.support.kafka.shards import by_key, together
from tests.support.kafka.topics import Record
from tests.support.spark.cluster import StandaloneCluster

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

SHARDS = 3
KILLS = 2
ROUNDS = 3
SHARING = (sys.executable, "-m", "tests.faults.sharing_daemon")
LOCAL = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false"}


class ShardedLane(Lane):
    """A lane whose shards executors deliver."""

    def ends(self, records: Sequence[Record]) -> list[Record]:
        """One END for each version that all shards have ended."""
        return together([record for record in records if record.topic == self.topics[1]], SHARDS)

    def figures(self, history: History, records: Sequence[Record]) -> Figures:
        """See `Lane.figures`."""
        others = [record for record in records if record.topic != self.topics[1]]
        return super().figures(history, [*by_key(others), *self.ends(records)])


class ShardedLanes(Lanes):
    """See `Lanes`; a version is reached when all shards have ended it."""

    def reached(self, lane: Lane) -> int:
        """See `Lanes.reached`."""
        assert isinstance(lane, ShardedLane)
        ends = lane.ends(self._followers[lane.name].records())
        return int(json.loads(ends[-1].value or b"")["commit_version"]) if ends else -1


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """A cluster with two executors for each driver."""
    with StandaloneCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def run_on(spark: SparkSettings, lanes: Sequence[Lane], patch: pytest.MonkeyPatch) -> None:
    """Make daemons of these lanes deliver through executors."""
    patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    patch.setenv("PYSPARK_PYTHON", sys.executable)
    patch.setenv("TAILER_ENGINE", "spark")
    patch.setenv("TAILER_SPARK__MASTER", spark.master)
    patch.setenv("TAILER_SPARK__CONF", json.dumps(dict(spark.conf)))
    for lane in lanes:
        pipeline = f"TAILER_PIPELINES__{lane.name.replace('-', '_').upper()}"
        patch.setenv(f"{pipeline}__WRITE", "executors")
        patch.setenv(f"{pipeline}__SHARDS", str(SHARDS))


def finish(lanes: Lanes, program: Sequence[str] = TAILER) -> None:
    """Let one daemon deliver the rest, and check the figures."""
    lanes.history.publish(5)
    with Daemon(lanes.config, program) as daemon:
        daemon.await_running()
        lanes.await_caught_up(daemon)
        assert daemon.terminate() == 0, daemon.said
        assert ("all executors compared version" in daemon.said) == (program == SHARING)
    lanes.check()


@pytest.mark.nightly
@pytest.mark.parametrize("shaped", [False, True])
def test_executors_and_drivers_are_killed(
    tmp_path: Path, kafka: KafkaCluster, cluster: StandaloneCluster, monkeypatch: pytest.MonkeyPatch, shaped: bool
) -> None:
    """Executors compare versions together, however small, and deliver the others each by itself.

    `shaped`: only some rows, with other values, in the topics that a column names.
    """
    history = History(tmp_path / "table", seed=8, length=200, large=2_000, large_every=2)
    pipelines = [ShardedLane("confluent-kafka", routed=shaped, chosen=shaped)]
    run_on(cluster.settings(), pipelines, monkeypatch)
    moments = random.Random(history.seed)
    with ShardedLanes(tmp_path, history, kafka.bootstrap_servers, pipelines) as lanes:
        for _ in range(ROUNDS):
            kill_both(lanes, cluster, moments)
            # An open transaction may have been committed before the kill, which is known only now.
            if lanes.torn():
                return
        pytest.fail("no kill hit a transaction")


def kill_both(lanes: ShardedLanes, cluster: StandaloneCluster, moments: random.Random) -> None:
    """Kill daemons, and executors of every second one, while a transaction is open; then `finish`."""
    for number in range(KILLS):
        lanes.history.publish(moments.randint(2, 6))
        with Daemon(lanes.config, SHARING) as daemon:
            daemon.await_running()
            # Transactions that are open at first may belong to executors of the previous daemon.
            lanes.publish_until(daemon, lambda: bool(cluster.executor_pids() and lanes.open()))
            if number % 2:
                for pid in cluster.executor_pids()[:1]:
                    cluster.kill_executor(pid)
                lanes.await_more(daemon)
            daemon.kill()
    finish(lanes, SHARING)


@pytest.mark.nightly
def test_the_process_with_all_of_it_is_killed(
    tmp_path: Path, kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Driver and executor are one Java process, which ends when our process is gone."""
    history = History(tmp_path / "table", seed=9, length=30, large=2_000, large_every=2)
    pipelines = [ShardedLane("kafka-python")]
    run_on(SparkSettings("local[2]", conf=LOCAL), pipelines, monkeypatch)
    with ShardedLanes(tmp_path, history, kafka.bootstrap_servers, pipelines) as lanes:
        history.publish(5)
        with Daemon(lanes.config) as daemon:
            daemon.await_running()
            lanes.publish_until(daemon, lambda: bool(lanes.open()))
            daemon.kill()
        finish(lanes)
