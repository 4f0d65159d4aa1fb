"""SIGKILL of executors and of the driver while `tailer.spark.follow` delivers versions that all executors compare.

Each driver loses an executor in the middle of the exchange, and the first driver is killed in the middle of a batch. A
Delta table has every change once. Spark's Kafka sink is at least once: nothing is lost, and what came twice has the
same key, made of the version, the change type and the row's key.

On every landing: comparisons without kills (`integration/test_spark_comparing.py`), and executors and drivers of
queries that are killed while they write.
"""

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession

import tailer
import tailer.spark
from tailer.spark.native import comparing
from tailer.spark.recipes import append_once
from tests.jars.where import jars
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.topics import create_topic, read_topic, unique_name
from tests.support.spark.cluster import WORKERS, Driver, StandaloneCluster
from tests.support.spark.event_log import LOST, event_log_settings, stages
from tests.support.spark.session import delta_conf
from tests.support.spark.stage_kills import WATCHED, StageKiller, await_executors

pytestmark = [pytest.mark.spark, pytest.mark.nightly]

FILES: Final = 2
ROWS: Final = 20_000  # in a file
UPDATES: Final = 2  # versions, each of which rewrites all files
PATIENCE_S: Final = 600
KEY: Final = "concat_ws('/', _commit_version, _change_type, id) AS key"
SETTINGS: Final = {
    **WATCHED,
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.shuffle.partitions": "4",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.minTaskRuntime": "0ms",
}

Deliver = Callable[[DataFrame, int], None]


@dataclass(frozen=True)
class Delivery:
    """A query from `source` into a Delta table, or with `bootstrap_servers` into a topic."""

    source: Path
    checkpoint: Path
    target: str
    bootstrap_servers: str = ""

    def deliver(self) -> Deliver:
        """Return the function for batches."""
        return self._send if self.bootstrap_servers else append_once(self.target, "orders")

    @property
    def done(self) -> int:
        """The number of batches that are over."""
        return len([path for path in self.checkpoint.glob("commits/*") if path.name.isdigit()])

    def _send(self, changes: DataFrame, _number: int) -> None:
        options = {"kafka.bootstrap.servers": self.bootstrap_servers, "topic": self.target}
        changes.selectExpr(KEY, "to_json(struct(*)) AS value").write.format("kafka").options(**options).save()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table whose last versions rewrite its files."""
    path, chance = tmp_path_factory.mktemp("source"), Random(3)
    for number in range(FILES):
        ids = range(number * ROWS, (number + 1) * ROWS)
        rows = {"id": pa.array(ids, pa.int64()), "v": [f"{chance.getrandbits(240):060x}" for _ in ids]}
        write_deltalake(path, pa.table(rows), mode="append")
    for number in range(UPDATES):
        DeltaTable(path).update(predicate=f"id % 2 = {number}", updates={"v": f"'updated {number}'"})
    return path


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """A master and two workers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        with StandaloneCluster(tmp_path_factory.mktemp("cluster")) as found:
            yield found


def ready(session: SparkSession) -> int:
    """Return the driver's process when all executors are ready."""
    await_executors(session, WORKERS)
    return os.getpid()


def run(session: SparkSession, delivery: Delivery, pids: list[int]) -> bool:
    """Deliver the rest, a version in each batch; return whether an executor was killed in the middle of an exchange."""
    comparing.SHARED_BYTES = 0  # type: ignore[misc]
    query = tailer.spark.follow(
        session, delivery.source, delivery.deliver(), start=0, maxFilesPerTrigger=1, computeUpdates=True, key=["id"]
    ).option("checkpointLocation", str(delivery.checkpoint))
    with StageKiller(session, pids, lambda _, shuffles: shuffles) as killer:
        query.trigger(availableNow=True).start().awaitTermination()
    return killer.killed


def kill_both(cluster: StandaloneCluster, delivery: Delivery, folder: Path) -> None:
    """Deliver with two drivers, the first of which is killed after its first comparison; both lose an executor."""
    for number, kills in enumerate((True, False)):
        events = folder / f"events-{number}"
        kafka = {"spark.jars": ",".join(map(str, jars("spark-kafka")))}
        sink = kafka if delivery.bootstrap_servers else delta_conf()
        with Driver(cluster.settings({**SETTINGS, **event_log_settings(events), **sink})) as driver:
            pid = driver.call(ready)
            running = driver.start(run, delivery, cluster.executor_pids())
            if kills:
                deadline_s = time.monotonic() + PATIENCE_S
                while delivery.done <= FILES:
                    assert not running.done() or running.result() is None, "it ended before it was killed"
                    assert time.monotonic() < deadline_s
                    time.sleep(0.02)
                time.sleep(0.5)
                os.kill(pid, signal.SIGKILL)
                with pytest.raises(BrokenProcessPool):
                    running.result(PATIENCE_S)
                assert delivery.done < FILES + UPDATES
            else:
                assert running.result(PATIENCE_S)
        assert any(stage.ends[LOST] for stage in stages(events).values()), f"driver {number} lost no executor"


def identified(rows: pa.Table) -> Counter[tuple[Any, ...]]:
    """Count changes by the version, the change type, the key and the value."""
    names = ("_commit_version", "_change_type", "id", "v")
    return Counter(zip(*(rows[name].to_pylist() for name in names), strict=True))


def expected(source: Path) -> Counter[tuple[Any, ...]]:
    """Return the changes as one process reads them; each is there once."""
    found = identified(tailer.changes(source, compute_updates=True, key=["id"]).to_arrow())
    assert set(found.values()) == {1}
    return found


def test_into_delta(cluster: StandaloneCluster, source: Path, tmp_path: Path) -> None:
    delivery = Delivery(source, tmp_path / "checkpoint", str(tmp_path / "target"))
    kill_both(cluster, delivery, tmp_path)
    found, wanted = identified(pa.table(DeltaTable(delivery.target).scan())), expected(source)
    assert not wanted - found, f"missing: {list((wanted - found).items())[:5]}"
    assert not found - wanted, f"doubled or wrong: {list((found - wanted).items())[:5]}"


@pytest.mark.kafka
def test_into_kafka(cluster: StandaloneCluster, kafka: KafkaCluster, source: Path, tmp_path: Path) -> None:
    delivery = Delivery(source, tmp_path / "checkpoint", unique_name("shared"), kafka.bootstrap_servers)
    create_topic(kafka.bootstrap_servers, delivery.target)
    kill_both(cluster, delivery, tmp_path)
    values: dict[bytes, set[bytes]] = {}
    records = read_topic(kafka.bootstrap_servers, delivery.target)
    for record in records:
        values.setdefault(record.key or b"", set()).add(record.value or b"")
    wanted = {f"{version}/{kind}/{key}".encode() for version, kind, key, _ in expected(source)}
    assert not wanted - values.keys(), f"missing: {sorted(wanted - values.keys())[:5]}"
    assert not values.keys() - wanted, f"wrong: {sorted(values.keys() - wanted)[:5]}"
    assert {len(each) for each in values.values()} == {1}, "records with the same key differ"
    print(f"{len(records) - len(values)} of {len(records)} records came twice")
