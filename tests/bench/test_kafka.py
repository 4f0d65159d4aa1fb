"""Log to committed Kafka transaction, and Spark's change feed to its Kafka sink: same table, same broker, same run.

Flat JSON of twelve columns and the feed's three; ours also in Debezium's envelope, as Avro and as Arrow. Each delivery
has its own process and its own topic; the broker's processor time is counted apart. Ours commits rows with their
progress; Spark's sink has no transactions, and may send rows twice. kafka-python delivers the first versions only, and
is also compared with the same client that sends ready messages and nothing else.

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

from tests.bench.conftest import PutLine
from tests.bench.kafka_events import APPENDED, KEY, write_orders
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.topics import admin, create_topic, unique_name
from tests.support.servers.schema_registry import serving_registry

RUNS: Final = 3
APPENDS: Final = 24
FEW: Final = 2  # versions
ROOT: Final = Path(__file__).parents[2]


@dataclass(frozen=True)
class Taken:
    """Measurements of a delivery: time, its own processor time and the broker's, all in seconds."""

    seconds: float
    cpu_s: float
    broker_s: float


@dataclass(frozen=True)
class Contender:
    """A program to measure: `client` is kafka-python or confluent-kafka for ours; `few`: the first versions only."""

    name: str
    client: str | None = None
    partitions: int = 1
    keyed: bool = False
    few: bool = False
    options: tuple[tuple[str, str], ...] = ()
    goal: str = "-"  # millions of rows a second

    @property
    def form(self) -> str:
        """The form of messages: `json`, `debezium`, `avro` or `arrow`."""
        return self.options[0][1] if self.options else "json"


DEBEZIUM: Final = (("envelope", "debezium"),)
AVRO: Final = (("encoding", "avro"),)
ARROW: Final = (("encoding", "arrow"),)
SPARK_1: Final = Contender("Spark, 1 partition")
SPARK_4: Final = Contender("Spark, 4 partitions", partitions=4)
SPARK_KEYED: Final = Contender("Spark, 4 partitions, keys", partitions=4, keyed=True)
ALONE: Final = Contender("kafka-python alone, 4 partitions", partitions=4, few=True)
# The contender that each is compared with.
CONTENDERS: Final[dict[Contender, Contender]] = {
    Contender("confluent-kafka, 1 partition", "confluent-kafka", goal="0.35"): SPARK_1,
    SPARK_1: SPARK_1,
    Contender("confluent-kafka, 4 partitions", "confluent-kafka", 4): SPARK_4,
    SPARK_4: SPARK_4,
    Contender("confluent-kafka, 4 partitions, keys", "confluent-kafka", 4, keyed=True, goal="0.35"): SPARK_KEYED,
    # Spark has none of these forms: beside its JSON.
    Contender("Debezium, 4 partitions, keys", "confluent-kafka", 4, True, options=DEBEZIUM, goal="0.3"): SPARK_KEYED,
    Contender("Avro, 4 partitions", "confluent-kafka", 4, options=AVRO, goal="0.45"): SPARK_4,
    Contender("Arrow, 4 partitions", "confluent-kafka", 4, options=ARROW, goal="1.0"): SPARK_4,
    SPARK_KEYED: SPARK_KEYED,
    Contender("kafka-python, 4 partitions", "kafka-python", 4, few=True): ALONE,
    ALONE: ALONE,
}


class Race:
    """A table, a broker, and a Spark that waits for orders (`tests.bench.kafka_spark`)."""

    def __init__(
        self, table: Path, rows: int, cluster: KafkaCluster, spark: "subprocess.Popen[str]", registry_url: str
    ) -> None:
        self._table = table
        self._rows = rows
        self._registry_url = registry_url
        self._cluster = cluster
        self._broker = psutil.Process(cluster.pid())
        self._spark = spark
        self._answer()

    def rows(self, contender: Contender) -> int:
        """Return the number of change rows that a contender delivers."""
        return FEW * APPENDED if contender.few else self._rows

    def run(self, contender: Contender) -> Taken:
        """Run a delivery to a new topic; all rows must arrive."""
        servers = self._cluster.bootstrap_servers
        topic = create_topic(servers, partitions=contender.partitions)
        broker_s = self._broker_s()
        if contender == ALONE:
            taken = run_module("kafka_python_alone", servers, topic, str(self.rows(contender)))
        elif contender.client is None:
            taken = self._order({"topic": topic, "keyed": contender.keyed})
        else:
            options = self._options(contender, topic)
            last = str(FEW - 1) if contender.few else "latest"
            taken = run_module("kafka_delivery", str(self._table), json.dumps(options), last)
        broker_s = self._broker_s() - broker_s
        # Debezium has one message for both images of an update.
        joined = (self._rows - APPENDS * APPENDED) // 2 if contender.form == "debezium" else 0
        assert count(servers, topic, contender.form) == self.rows(contender) - joined
        with admin(servers) as client:
            client.delete_topics([topic])
        return Taken(taken["seconds"], taken["cpu_s"], broker_s)

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
def waiting_spark(scratch: Path, table: Path, cluster: KafkaCluster) -> Iterator["subprocess.Popen[str]"]:
    """The Spark process; it ends with its input."""
    scratch.mkdir()
    arguments = (str(scratch), str(table), cluster.bootstrap_servers)
    command = [sys.executable, "-m", "tests.bench.kafka_spark", *arguments]
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
    table = scratch / "orders"
    rows = write_orders(table, APPENDS)
    # Deleted topics free their space at once.
    properties = {"log.segment.delete.delay.ms": "1000"}
    with (
        KafkaCluster(scratch / "broker", properties=properties, java_options=("-Xmx1g",)) as cluster,
        waiting_spark(scratch / "spark", table, cluster) as spark,
        serving_registry() as registry,
    ):
        yield Race(table, rows, cluster, spark, registry.uris[0])


def table_line(race: Race, contender: Contender, runs: Sequence[dict[Contender, Taken]]) -> str:
    """Format medians, and medians of the ratios within a run."""
    rows, peer = race.rows(contender), CONTENDERS[contender]
    mine = [run[contender] for run in runs]
    pairs = [(run[contender], run[peer]) for run in runs]
    figures = (
        f"{statistics.median(rows / taken.seconds for taken in mine):>9,.0f}",
        f"{statistics.median(rows / taken.cpu_s for taken in mine):>9,.0f}",
        f"{statistics.median(1e6 * taken.broker_s / rows for taken in mine):>9.2f}",
        f"{statistics.median(theirs.seconds / own.seconds for own, theirs in pairs):>6.2f}",
        f"{statistics.median(theirs.cpu_s / own.cpu_s for own, theirs in pairs):>6.2f}",
        f"{peer.name}",
    )
    return f"{contender.name:37}{'  '.join(figures)}"


def put(put_line: PutLine, race: Race, contender: Contender, runs: Sequence[dict[Contender, Taken]]) -> None:
    """Put a line into the table of all benchmarks."""
    peer = CONTENDERS[contender]
    speeds = [
        statistics.median(race.rows(each) / run[each].seconds / 1e6 for run in runs) for each in (contender, peer)
    ]
    per_cpu = statistics.median(race.rows(contender) / run[contender].cpu_s / 1e6 for run in runs)
    ratio = statistics.median(run[peer].seconds / run[contender].seconds for run in runs)
    figures = f"{speeds[0]:.3f} Mrows/s, {per_cpu:.3f} per s of CPU"
    put_line(f"Kafka, {contender.name}", figures, f"{peer.name}: {speeds[1]:.3f} Mrows/s; {ratio:.2f}", contender.goal)


def test_kafka(race: Race, capsys: pytest.CaptureFixture[str], put_line: PutLine) -> None:
    # Compilation by Java in the first round is shown by itself: a job that runs once pays for it each time.
    first, *runs = [{contender: race.run(contender) for contender in CONTENDERS} for _ in range(1 + RUNS)]
    heads = ("rows/s", "rows/CPU s", "broker CPU s/M", "times as fast, per CPU s, as")
    with capsys.disabled():
        print(f"\n{APPENDS} versions of {APPENDED:,} rows and updates; medians of {RUNS} runs")
        print(f"{'':37}{', '.join(heads)}")
        for contender in CONTENDERS:
            print(table_line(race, contender, runs))
            if contender.client:
                put(put_line, race, contender, runs)
        print("the round before, in which Java compiles:")
        for contender in CONTENDERS:
            print(table_line(race, contender, [first]))
        print(f"load of the machine, all of this included: {os.getloadavg()[0]:.1f} of {os.cpu_count()}")
