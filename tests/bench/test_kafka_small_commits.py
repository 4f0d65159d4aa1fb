"""Small commits into Kafka: how many versions a second, and how long from a commit to a consumer of committed rows.

Nothing is asserted about time, only that all rows arrive. `make bench` prints the table.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psutil  # type: ignore[import-untyped]
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from tests.bench.conftest import PutLine
from tests.bench.small_commits import ROWS, write_commits
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.topics import create_topic, unique_name

RUNS: Final = 5
VERSIONS: Final = 5000
COMMITS: Final = 300
BETWEEN_S: Final = 0.05
PATIENCE_S: Final = 60.0
ROOT: Final = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker with settings for work; its address."""
    with KafkaCluster(tmp_path_factory.mktemp("broker"), java_options=("-Xmx1g",)) as cluster:
        yield cluster.bootstrap_servers


def delivery(path: Path, broker: str, topic: str, until: int, key: list[str]) -> "subprocess.Popen[str]":
    """Start a process that delivers a table up to a version."""
    options: dict[str, Any] = {"bootstrap_servers": broker, "topic": topic, "progress_topic": f"{topic}-progress"}
    options |= {"create_topics": True, "library": "confluent-kafka", "key": key}
    words = (str(path), json.dumps(options), "earliest", str(until))
    command = [sys.executable, "-m", "tests.bench.kafka_delivery", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def reader(broker: str, topic: str) -> Consumer:
    """Make a consumer of committed rows, from the beginning of the topic's one partition on."""
    settings = {"bootstrap.servers": broker, "group.id": topic, "isolation.level": "read_committed"}
    consumer = Consumer({**settings, "fetch.wait.max.ms": 5, "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    return consumer


def take(consumer: Consumer, count: int) -> None:
    """Wait for so many messages."""
    end_s = time.monotonic() + PATIENCE_S
    while count > 0:
        found = consumer.consume(count, timeout=1.0)
        assert time.monotonic() < end_s, f"{count} messages did not come"
        for message in found:
            assert message.error() is None, message.error()
        count -= len(found)


def cpu_s(process: psutil.Process) -> float:
    """Return the processor time of a process so far, in seconds."""
    times = process.cpu_times()
    return float(times.user + times.system)


def latency_ms(consumer: Consumer, hidden: Path, visible: Path) -> float:
    """Make a commit visible after a while; return the time until its rows are read."""
    time.sleep(BETWEEN_S)
    start_s = time.perf_counter()
    os.rename(hidden, visible)  # noqa: PTH104 - as fast as can be
    take(consumer, ROWS)
    return 1000 * (time.perf_counter() - start_s)


def test_catching_up(tmp_path: Path, broker: str, put_line: PutLine) -> None:
    """5,000 commits of 10 rows, keyed."""
    path = write_commits(tmp_path / "table", VERSIONS)
    runs = []
    for _ in range(RUNS):
        topic = unique_name("small")
        create_topic(broker, topic, partitions=1)
        with delivery(path, broker, topic, VERSIONS - 1, ["id"]) as process:
            runs.append(json.loads(process.communicate()[0]))
        consumer = reader(broker, topic)
        take(consumer, VERSIONS * ROWS)
        consumer.close()
    speed = statistics.median(VERSIONS / run["seconds"] for run in runs)
    cpu_ms = statistics.median(1000 * run["cpu_s"] / VERSIONS for run in runs)
    figures = f"{speed:.0f} versions/s, {cpu_ms:.2f} ms of CPU each"
    put_line("W4: 5,000 commits of 10 rows into Kafka, keyed", figures, "-", "3,000 versions/s")


def follow(path: Path, broker: str) -> tuple[list[float], float]:
    """Make commits visible one by one to a daemon; return the latencies in ms, and its ms of CPU for each."""
    topic = unique_name("latency")
    create_topic(broker, topic, partitions=1)
    write_commits(path, COMMITS + 1)
    later = path / "later"
    later.mkdir()
    names = [f"{version:020d}.json" for version in range(1, COMMITS + 1)]
    for name in names:
        shutil.move(path / "_delta_log" / name, later / name)
    consumer = reader(broker, topic)
    found_ms: list[float] = []
    cpu_ms = 0.0
    with delivery(path, broker, topic, COMMITS, []) as process:
        take(consumer, ROWS)
        daemon = psutil.Process(process.pid)
        begun_s = cpu_s(daemon)
        for name in names:
            cpu_ms = 1000 * (cpu_s(daemon) - begun_s) / max(len(found_ms), 1)  # the daemon ends after the last commit
            found_ms.append(latency_ms(consumer, later / name, path / "_delta_log" / name))
        assert process.wait(PATIENCE_S) == 0
    consumer.close()
    return found_ms, cpu_ms


def test_latency(tmp_path: Path, broker: str, put_line: PutLine) -> None:
    """From a commit that is visible to a consumer that has its rows."""
    runs = [follow(tmp_path / str(number), broker) for number in range(RUNS)]
    cuts = [statistics.quantiles(found_ms, n=100) for found_ms, _ in runs]
    p50, p99 = (statistics.median(run[place] for run in cuts) for place in (49, 98))
    figures = f"p50 {p50:.1f} ms, p99 {p99:.1f} ms, {statistics.median(cpu_ms for _, cpu_ms in runs):.1f} ms of CPU"
    put_line("commit visible to a consumer of committed rows", figures, "-", "8 / 20 ms")
