"""Log to committed Kafka transaction, and Spark's change feed to its Kafka sink: same table, same broker, same run.

W1 and W2 of `tests.bench.change_tables`: appends, and change files of Spark's MERGE. Flat JSON of twelve columns and
the feed's three; ours also in Debezium's envelope, as Avro and as Arrow. An event is a row, or both images of an
update; speeds are those of events, also where Spark has a message for each image. Each delivery has its own process and
its own topic; the broker's processor time is counted apart. Ours commits rows with their progress; Spark's sink has no
transactions, and may send rows twice. kafka-python delivers the first versions only, and is compared with the same
client that sends ready messages and nothing else.

Nothing is asserted about time, only that all rows arrive. `make bench` prints the table; quoted figures come from here.
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import psutil  # type: ignore[import-untyped]
import pyarrow as pa
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from tests.bench.change_tables import FIRST, TABLES
from tests.bench.conftest import PutLine
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.topics import admin, create_topic, unique_name
from tests.support.servers.schema_registry import serving_registry

RUNS: Final = 5
KEY: Final = "id"
PARTITIONS: Final = 6
FEW: Final = 4  # versions
APPENDED: Final = 50_000  # rows of a version of W1
EVENTS: Final = {"W1": 5_000_000, "W2": 1_000_000}
ROOT: Final = Path(__file__).parents[2]


@dataclass(frozen=True)
class Taken:
    """Measurements of a delivery: time, its own processor time and the broker's, in seconds; the memory of ours."""

    seconds: float
    cpu_s: float
    broker_s: float
    peak_mb: float


@dataclass(frozen=True)
class Contender:
    """A program to measure: `client` is kafka-python or confluent-kafka for ours; `few`: the first versions only."""

    name: str
    table: str = "W1"
    client: str | None = None
    keyed: bool = False
    few: bool = False
    options: tuple[tuple[str, str], ...] = ()
    goal: str = "-"

    @property
    def events(self) -> int:
        """The number of events that it delivers."""
        return FEW * APPENDED if self.few else EVENTS[self.table]

    @property
    def form(self) -> str:
        """The form of messages: `json`, `debezium`, `avro` or `arrow`."""
        return self.options[0][1] if self.options else "json"


DEBEZIUM: Final = (("envelope", "debezium"),)
AVRO: Final = (("encoding", "avro"),)
ARROW: Final = (("encoding", "arrow"),)
SPARK: Final = Contender("W1, Spark")
SPARK_KEYED: Final = Contender("W1, Spark, keys", keyed=True)
SPARK_MERGES: Final = Contender("W2, Spark, keys", "W2", keyed=True)
ALONE: Final = Contender("kafka-python alone", few=True)
# The contender that each is compared with.
CONTENDERS: Final[dict[Contender, Contender]] = {
    Contender("W1, flat JSON", "W1", "confluent-kafka", goal="0.45 M events/s"): SPARK,
    SPARK: SPARK,
    Contender("W1, keys", "W1", "confluent-kafka", keyed=True, goal="0.42 M events/s"): SPARK_KEYED,
    # Spark has none of these forms: beside its JSON.
    Contender("W1, Debezium, keys", "W1", "confluent-kafka", True, False, DEBEZIUM, "0.36 M events/s"): SPARK_KEYED,
    SPARK_KEYED: SPARK_KEYED,
    Contender("W2, Debezium, keys", "W2", "confluent-kafka", True, False, DEBEZIUM, "0.25 M events/s, 6 us"): (
        SPARK_MERGES
    ),
    SPARK_MERGES: SPARK_MERGES,
    Contender("W1, Avro", "W1", "confluent-kafka", options=AVRO, goal="0.45 M events/s"): SPARK,
    Contender("W1, Arrow", "W1", "confluent-kafka", options=ARROW, goal="1.0 M events/s"): SPARK,
    Contender("W1, kafka-python", "W1", "kafka-python", few=True): ALONE,
    ALONE: ALONE,
}


class Race:
    """A table, a broker, and a Spark that waits for orders (`tests.bench.kafka_spark`)."""

    def __init__(self, folder: Path, cluster: KafkaCluster, spark: "subprocess.Popen[str]", registry_url: str) -> None:
        self._folder = folder
        self._registry_url = registry_url
        self._cluster = cluster
        self._broker = psutil.Process(cluster.pid())
        self._spark = spark
        self._answer()

    def run(self, contender: Contender) -> Taken:
        """Run a delivery to a new topic; all events must arrive."""
        servers = self._cluster.bootstrap_servers
        topic = create_topic(servers, partitions=PARTITIONS)
        table, first = str(self._folder / contender.table), FIRST[contender.table]
        broker_s = self._broker_s()
        if contender == ALONE:
            taken = run_module("kafka_python_alone", servers, topic, str(contender.events))
        elif contender.client is None:
            taken = self._order({"table": table, "first": first, "topic": topic, "keyed": contender.keyed})
        else:
            options = json.dumps(self._options(contender, topic))
            taken = run_module(
                "kafka_delivery", table, options, str(first), str(FEW - 1) if contender.few else "latest"
            )
        broker_s = self._broker_s() - broker_s
        # Of W2's events 80 % are updates, with two images in Spark, and 10 % deletes, in Debezium with a tombstone.
        more = 0 if contender.table == "W1" else contender.events * (1 if contender.client else 8) // 10
        assert count(servers, topic, contender.form) == contender.events + more
        with admin(servers) as client:
            client.delete_topics([topic])
        return Taken(taken["seconds"], taken["cpu_s"], broker_s, taken.get("peak_mb", 0.0))

    def _options(self, contender: Contender, topic: str) -> dict[str, Any]:
        return {
            "bootstrap_servers": self._cluster.bootstrap_servers,
            "topic": topic,
            "progress_topic": unique_name("progress"),
            "create_topics": True,
            "library": contender.client,
            "key": [KEY] if contender.keyed else [],
            "registry_url": self._registry_url if contender.form == "avro" else [],
            **dict(contender.options),
        }

    def _broker_s(self) -> float:
        times = self._broker.cpu_times()
        return float(times.user + times.system)

    def _order(self, order: dict[str, Any]) -> dict[str, float]:
        print(json.dumps(order), file=opened(self._spark.stdin), flush=True)
        return self._answer()

    def _answer(self) -> dict[str, float]:
        answer: dict[str, float] = json.loads(opened(self._spark.stdout).readline())
        return answer


def opened(pipe: IO[str] | None) -> IO[str]:
    """Return a process's pipe, which must exist."""
    assert pipe is not None
    return pipe


def run_module(module: str, *arguments: str) -> dict[str, float]:
    """Run a module of this folder in its own process; return its output."""
    command = [sys.executable, "-m", f"tests.bench.{module}", *arguments]
    process = subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=ROOT)
    taken: dict[str, float] = json.loads(process.stdout)
    return taken


def count(bootstrap_servers: str, topic: str, form: str) -> int:
    """Return the number of messages that a `read_committed` consumer finds; of Arrow's rows."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": topic,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    partitions = set(consumer.list_topics(topic).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
    found = 0
    while partitions:
        for message in consumer.consume(10_000, timeout=0.2):
            error = message.error()
            if error is None:
                found += pa.ipc.open_stream(message.value()).read_all().num_rows if form == "arrow" else 1
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error.str()
                partitions.discard(message.partition())
    consumer.close()
    return found


@contextmanager
def waiting_spark(scratch: Path, cluster: KafkaCluster) -> Iterator["subprocess.Popen[str]"]:
    """The Spark process; it ends with its input."""
    scratch.mkdir()
    command = [sys.executable, "-m", "tests.bench.kafka_spark", str(scratch), cluster.bootstrap_servers]
    with (scratch / "log").open("w") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT
        )
        with process:
            yield process


@pytest.fixture(scope="module")
def race(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Race]:
    """A broker with settings for work, not for tests."""
    scratch = tmp_path_factory.mktemp("kafka")
    for table in EVENTS:
        TABLES[table](scratch / table)
    # Deleted topics free their space at once.
    properties = {"log.segment.delete.delay.ms": "1000"}
    with (
        KafkaCluster(scratch / "broker", properties=properties, java_options=("-Xmx1g",)) as cluster,
        waiting_spark(scratch / "waiting", cluster) as spark,
        serving_registry() as registry,
    ):
        yield Race(scratch, cluster, spark, registry.uris[0])


def put(put_line: PutLine, contender: Contender, runs: Sequence[dict[Contender, Taken]]) -> None:
    """Put a line into the table of all benchmarks: medians, and the median of the ratios within a run."""
    peer, events = CONTENDERS[contender], contender.events
    mine = [run[contender] for run in runs]
    speed, theirs = (statistics.median(events / run[each].seconds / 1e6 for run in runs) for each in (contender, peer))
    cpu_us, broker_us, peak_mb = (
        statistics.median(each)
        for each in zip(
            *((1e6 * taken.cpu_s / events, 1e6 * taken.broker_s / events, taken.peak_mb) for taken in mine), strict=True
        )
    )
    ratio, cpu_ratio = (
        statistics.median(getattr(run[peer], name) / getattr(run[contender], name) for run in runs)
        for name in ("seconds", "cpu_s")
    )
    figures = f"{speed:.3f} M events/s, {cpu_us:.1f} us of CPU an event, the broker's {broker_us:.1f}, {peak_mb:.0f} MB"
    beside = f"{peer.name}: {theirs:.3f} M events/s; {ratio:.2f}, of CPU {cpu_ratio:.2f}"
    put_line(f"Kafka, {PARTITIONS} partitions: {contender.name}", figures, beside, contender.goal)


def test_kafka(race: Race, capsys: pytest.CaptureFixture[str], put_line: PutLine) -> None:
    # The first round does not count: Java compiles in it.
    _, *runs = [{contender: race.run(contender) for contender in CONTENDERS} for _ in range(1 + RUNS)]
    for contender in CONTENDERS:
        if contender.client:
            put(put_line, contender, runs)
    with capsys.disabled():
        print(f"load of the machine, all of this included: {os.getloadavg()[0]:.1f} of {os.cpu_count()}")
