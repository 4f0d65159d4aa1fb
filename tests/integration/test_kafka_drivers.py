"""Both drivers of the `kafka` sink, and the reading of topics, against a healthy broker."""

import inspect
import os
import random
import time
from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, Final

import pytest
from kafka import TopicPartition
from kafka.partitioner import murmur2
from kafka.record import util

from tailer.errors import SinkRejected, SinkUnavailable
from tailer_sinks.kafka.clients import python_cluster, python_connection
from tailer_sinks.kafka.clients.port import ProducerFactory, ProducerSettings
from tailer_sinks.kafka.clients.python_cluster import Cluster, Owner
from tailer_sinks.kafka.clients.python_producer import PythonProducer
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.drivers import DRIVERS, await_values, connection_to, every_driver, messages_of, producing
from tests.support.kafka.topics import Record, admin, create_topic, end_offsets, read_topic, unique_name
from tests.support.waiting import until

# From UtilsTest of Apache Kafka.
JAVA_HASHES: Final = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def values_of(records: Sequence[Record]) -> list[bytes | None]:
    """Return the values in a topic."""
    return [record.value for record in records]


def await_end(kafka: KafkaCluster, topic: str, end: int) -> None:
    """Wait until the first partition of a topic has that length, open transactions included."""
    until(lambda: end_offsets(kafka.bootstrap_servers, [topic])[TopicPartition(topic, 0)] >= end)


@every_driver
def test_committed_messages_are_seen_and_aborted_ones_are_not(driver: ProducerFactory, kafka: KafkaCluster) -> None:
    """Several transactions of one producer, empty ones among them."""
    topic = create_topic(kafka.bootstrap_servers)
    with producing(driver, kafka.bootstrap_servers, unique_name()) as producer:
        producer.begin()
        producer.send(topic, messages_of([b"1", b"2"]))
        producer.commit()
        producer.begin()
        producer.send(topic, messages_of([b"3"]))
        # librdkafka may fail to abort before the broker knows of the transaction.
        await_end(kafka, topic, 4)
        producer.abort()
        producer.begin()
        producer.abort()
        producer.begin()
        producer.commit()
        producer.begin()
        producer.send(topic, messages_of([b"4"]))
        producer.send(topic, messages_of([]))
        producer.send(topic, messages_of([b"5"]))
        producer.commit()
    assert values_of(read_topic(kafka.bootstrap_servers, topic)) == [b"1", b"2", b"4", b"5"]


@every_driver
@pytest.mark.parametrize("pause_s", [0.0, 1.2], ids=["at once", "after the flush gave up"])
def test_a_flush_that_was_started_ends_with_its_transaction(
    driver: ProducerFactory, kafka: KafkaCluster, pause_s: float
) -> None:
    """Nothing is lost or sent twice, whether it is committed, aborted or closed, and with nothing to send."""
    topic, transactional_id = create_topic(kafka.bootstrap_servers), unique_name()
    with producing(driver, kafka.bootstrap_servers, transactional_id) as producer:
        for value, end in ((b"1", producer.commit), (b"2", producer.abort), (b"3", producer.commit)):
            producer.begin()
            producer.send(topic, messages_of([value] * 1000))
            producer.start_flush()
            if end == producer.abort:
                # librdkafka may fail to abort, with or without a flush, before the broker knows of the transaction.
                await_end(kafka, topic, 1000 + 1 + 1000)
            time.sleep(pause_s)
            end()
            producer.begin()
            producer.start_flush()
            producer.commit()
        producer.begin()
        producer.send(topic, messages_of([b"4"] * 1000))
        producer.start_flush()
    with producing(driver, kafka.bootstrap_servers, transactional_id) as producer:
        producer.begin()
        producer.send(topic, messages_of([b"5"]))
        producer.commit()
    assert values_of(read_topic(kafka.bootstrap_servers, topic)) == [b"1"] * 1000 + [b"3"] * 1000 + [b"5"]


@every_driver
def test_a_flush_gives_the_offset_of_the_first_message(driver: ProducerFactory, kafka: KafkaCluster) -> None:
    """Each transaction has its own; more may be sent after it, and is committed with the rest."""
    topic, offset = create_topic(kafka.bootstrap_servers), 0
    with producing(driver, kafka.bootstrap_servers, unique_name()) as producer:
        for values in ([b"1"], [b"2", b"3"], [b"4"] * 1000):
            producer.begin()
            assert producer.flush() is None
            producer.send(topic, messages_of(values))
            assert [producer.flush(), producer.flush()] == [offset] * 2
            assert end_offsets(kafka.bootstrap_servers, [topic])[TopicPartition(topic, 0)] == offset + len(values)
            producer.send(topic, messages_of([b"more"]))
            assert producer.flush() == offset
            producer.commit()
            offset += len(values) + 2  # and the marker
    assert len(read_topic(kafka.bootstrap_servers, topic)) == 1 + 2 + 1000 + 3


def test_a_read_before_an_offset_that_was_told_needs_no_end(
    kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that led before gives a former end. No later read takes that for the end."""
    topic, transactional_id = create_topic(kafka.bootstrap_servers), unique_name()
    cluster = Cluster(connection_to(kafka.bootstrap_servers))
    with producing(PythonProducer, kafka.bootstrap_servers, transactional_id) as producer:
        for value in (b"1", b"2"):
            producer.begin()
            producer.send(topic, messages_of([value], [b"k"]))
            producer.commit()
        producer.begin()
        producer.send(topic, messages_of([b"3"], [b"k"]))
        offset = producer.flush()

        def former_ends(*_: Any) -> dict[TopicPartition, Any]:
            return {TopicPartition(topic, 0): SimpleNamespace(offset=2, leader_epoch=0)}

        with monkeypatch.context() as patch:
            patch.setattr(python_cluster, "_ends", former_ends)
            former, found = cluster.read(topic), cluster.read(topic, offset)
            assert former is not None
            assert found is not None
            assert (former.records[b"k"].value, former.open_keys) == (b"1", frozenset())
            assert (found.records[b"k"].value, found.open_keys) == (b"2", frozenset())
            with pytest.raises(SinkUnavailable, match="former end"):
                cluster.read(topic)
        now = cluster.read(topic)
        assert now is not None
        assert (now.records[b"k"].value, now.open_keys) == (b"2", frozenset([b"k"]))
    cluster.close()


@every_driver
def test_a_closed_producer_leaves_nothing(driver: ProducerFactory, kafka: KafkaCluster) -> None:
    """Closed during a transaction; the next producer with the same id aborts it."""
    topic, shard = create_topic(kafka.bootstrap_servers), unique_name()
    with producing(driver, kafka.bootstrap_servers, shard) as producer:
        producer.begin()
        producer.send(topic, messages_of([b"lost"] * 1000))
    with producing(driver, kafka.bootstrap_servers, shard) as producer:
        assert read_topic(kafka.bootstrap_servers, topic) == []
        producer.begin()
        producer.send(topic, messages_of([b"kept"]))
        producer.commit()
    producer.close()
    assert values_of(read_topic(kafka.bootstrap_servers, topic)) == [b"kept"]


@every_driver
def test_every_byte_arrives(driver: ProducerFactory, kafka: KafkaCluster) -> None:
    """Keys, values and headers that are null or empty, and tombstones; in one partition, in their order."""
    topic = create_topic(kafka.bootstrap_servers)
    keys = [b"a", b"", b"b", b"b", bytes(range(256)), None]
    values = [b"1", b"2", b"", None, bytes(range(255, -1, -1)), b"6"]
    with producing(driver, kafka.bootstrap_servers, unique_name()) as producer:
        producer.begin()
        producer.send(topic, messages_of(values, keys))
        marks = [("mark", [b"x", None, b"", b"y", None, b"z"]), ("other", [None, None, b"o", None, None, None])]
        producer.send(topic, messages_of(values, keys, marks))
        producer.send(topic, messages_of([b"last"]).slice(0, 1))
        producer.commit()
    records = read_topic(kafka.bootstrap_servers, topic)
    assert [(record.key, record.value) for record in records] == [*zip(keys, values, strict=True)] * 2 + [
        (None, b"last")
    ]
    assert [record.headers for record in records[6:]] == [
        (("mark", b"x"),),
        (),
        (("mark", b""), ("other", b"o")),
        (("mark", b"y"),),
        (),
        (("mark", b"z"),),
        (),
    ]


@every_driver
def test_the_order_of_each_key(driver: ProducerFactory, kafka: KafkaCluster) -> None:
    """With and without headers in turn, over several transactions, with a small send buffer."""
    topic = create_topic(kafka.bootstrap_servers, partitions=4)
    count = 6000
    settings = ProducerSettings(in_flight_bytes=2**20)
    with producing(driver, kafka.bootstrap_servers, unique_name(), settings) as producer:
        for start in range(0, count, 2000):
            producer.begin()
            for first in range(start, start + 2000, 500):
                numbers = range(first, first + 500)
                keys = [b"%d" % (number % 37) for number in numbers]
                values = [b"%d:" % number + os.urandom(400) for number in numbers]
                headers = [("n", [b"%d" % number for number in numbers])] if first % 1000 else []
                producer.send(topic, messages_of(values, keys, headers))
            producer.commit()
    records = read_topic(kafka.bootstrap_servers, topic)
    assert len(records) == count
    seen: dict[tuple[int, bytes | None], list[int]] = {}
    for record in records:
        assert record.value is not None
        seen.setdefault((record.partition, record.key), []).append(int(record.value.partition(b":")[0]))
    assert len(seen) == 37
    assert all(before < after for numbers in seen.values() for before, after in pairwise(numbers))


@every_driver
def test_keys_lie_where_java_puts_them(driver: ProducerFactory, kafka: KafkaCluster) -> None:
    """Other producers of the same topic put a key into the same partition."""
    topic = create_topic(kafka.bootstrap_servers, partitions=7)
    chance = random.Random(7)
    keys = [*JAVA_HASHES, b"", *(chance.randbytes(chance.randrange(40)) for _ in range(200))]
    with producing(driver, kafka.bootstrap_servers, unique_name()) as producer:
        producer.begin()
        producer.send(topic, messages_of([b""] * len(keys), keys))
        producer.commit()
    found = {record.key: record.partition for record in read_topic(kafka.bootstrap_servers, topic)}
    assert {key: found[key] for key in JAVA_HASHES} == {
        key: (hashed & 0x7FFFFFFF) % 7 for key, hashed in JAVA_HASHES.items()
    }
    assert found == {key: (murmur2(key) & 0x7FFFFFFF) % 7 for key in keys}


@every_driver
def test_messages_without_keys_are_spread(driver: ProducerFactory, kafka: KafkaCluster) -> None:
    """Over all partitions; or all to the given one."""
    spread, chosen = (create_topic(kafka.bootstrap_servers, partitions=2) for _ in range(2))
    with producing(driver, kafka.bootstrap_servers, unique_name()) as producer:
        rounds = 0
        # The partition is chosen anew every few milliseconds.
        while not all(end_offsets(kafka.bootstrap_servers, [spread])[TopicPartition(spread, one)] for one in (0, 1)):
            assert rounds < 50, "all went to one partition"
            rounds += 1
            producer.begin()
            producer.send(spread, messages_of([os.urandom(1000) for _ in range(1000)]))
            producer.commit()
        producer.begin()
        producer.send(chosen, messages_of([b"1"] * 50, [b"%d" % number for number in range(50)]), partition=1)
        producer.send(chosen, messages_of([b"1"] * 50), partition=1)
        producer.commit()
    assert [record.partition for record in read_topic(kafka.bootstrap_servers, chosen)] == [1] * 100


@every_driver
@pytest.mark.parametrize("compression", ["none", "gzip", "lz4"])
def test_compressions(driver: ProducerFactory, kafka: KafkaCluster, compression: str) -> None:
    """All compressions that both clients support."""
    topic = create_topic(kafka.bootstrap_servers)
    settings = ProducerSettings(compression=compression)  # type: ignore[arg-type]
    with producing(driver, kafka.bootstrap_servers, unique_name(), settings) as producer:
        producer.begin()
        producer.send(topic, messages_of([b"x" * 1000] * 100))
        producer.commit()
    assert values_of(read_topic(kafka.bootstrap_servers, topic)) == [b"x" * 1000] * 100


def test_a_compression_that_is_not_installed(kafka: KafkaCluster) -> None:
    """kafka-python needs libraries for some."""
    with pytest.raises(SinkRejected, match="snappy") as caught:
        DRIVERS["kafka-python"](
            connection_to(kafka.bootstrap_servers), ProducerSettings(compression="snappy"), unique_name()
        )
    assert "compression" in caught.value.hint


def test_checksums_are_not_made_in_python() -> None:
    """kafka-python silently falls back to Python code, which takes twice as long for everything."""
    assert util.crc32c_c is not None
    assert inspect.signature(util.calc_crc32c).parameters["_crc32c"].default is util.crc32c_c


def test_brokers_that_are_too_old(kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused before any other request; the test demands a version that no broker has."""
    monkeypatch.setattr(python_connection, "OLDEST_BROKER", (99, 0))
    with pytest.raises(SinkRejected, match="brokers are of version") as caught:
        PythonProducer(connection_to(kafka.bootstrap_servers), ProducerSettings(), unique_name())
    assert "2.7" in caught.value.hint
    with pytest.raises(SinkRejected, match="brokers are of version"):
        Cluster(connection_to(kafka.bootstrap_servers)).describe([])


def test_topics_are_described_and_created(kafka: KafkaCluster) -> None:
    """Only existing topics are described; `create` does not change an existing one."""
    cluster = Cluster(connection_to(kafka.bootstrap_servers))
    first, second, missing = unique_name(), unique_name(), unique_name()
    try:
        assert cluster.describe([first]) == {}
        cluster.create(first, 3, -1, {"cleanup.policy": "compact"})
        cluster.create(second, 1, 1, {})
        cluster.create(first, 5, 1, {})
        states = cluster.describe([first, second, missing])
        assert {name: (state.partitions, state.configs["cleanup.policy"]) for name, state in states.items()} == {
            first: (3, "compact"),
            second: (1, "delete"),
        }
        assert int(states[first].configs["max.message.bytes"]) > 0
        assert cluster.read(missing) is None
        with pytest.raises(SinkRejected, match="replication factor") as caught:
            cluster.create(missing, 1, 9, {})
        assert missing in caught.value.reason
        with pytest.raises(SinkRejected, match="setting of the topic"):
            cluster.create(missing, 1, 1, {"cleanup.policy": "keep"})
    finally:
        cluster.close()
        cluster.close()


@every_driver
def test_the_writer_of_a_record_is_the_owner_of_its_transactional_id(
    driver: ProducerFactory, kafka: KafkaCluster
) -> None:
    """Until another producer takes the id over: before that one has written anything."""
    topic, owned = create_topic(kafka.bootstrap_servers), unique_name()
    cluster = Cluster(connection_to(kafka.bootstrap_servers))

    def writer(value: bytes) -> tuple[int, int]:
        await_values(cluster, topic, {b"ours": value})
        found = cluster.read(topic)
        assert found is not None
        return found.records[b"ours"].writer

    try:
        with producing(driver, kafka.bootstrap_servers, owned) as producer:
            for value in (b"1", b"2"):
                producer.begin()
                producer.send(topic, messages_of([value], [b"ours"]))
                producer.commit()
                assert Owner(writer(value), False) == cluster.owner(owned)
            with producing(driver, kafka.bootstrap_servers, owned):
                assert Owner(writer(b"2"), False) != cluster.owner(owned)
        assert cluster.owner(unique_name()) is None
    finally:
        cluster.close()


@every_driver
def test_the_newest_value_of_each_key_is_read(driver: ProducerFactory, kafka: KafkaCluster) -> None:
    """Up to the end at the time of each call; without aborted records, and without tombstones."""
    topic = create_topic(kafka.bootstrap_servers, configs={"cleanup.policy": "compact"})
    cluster = Cluster(connection_to(kafka.bootstrap_servers))
    try:
        await_values(cluster, topic, {})
        with producing(driver, kafka.bootstrap_servers, unique_name()) as producer:
            for number in range(3):
                producer.begin()
                producer.send(topic, messages_of([b"%d" % number, None], [b"a", b"b"]), partition=0)
                producer.commit()
                await_values(cluster, topic, {b"a": b"%d" % number, b"b": None})
            producer.begin()
            producer.send(topic, messages_of([b"aborted"], [b"a"]), partition=0)
            producer.abort()
        await_values(cluster, topic, {b"a": b"2", b"b": None})
        fresh = Cluster(connection_to(kafka.bootstrap_servers))
        try:
            await_values(fresh, topic, {b"a": b"2", b"b": None})
        finally:
            fresh.close()
    finally:
        cluster.close()


@every_driver
def test_an_open_transaction_hides_nothing(driver: ProducerFactory, kafka: KafkaCluster) -> None:
    """Neither from a look at progress nor from one at END records; a consumer's own end would be before it."""
    topic = create_topic(kafka.bootstrap_servers)
    cluster = Cluster(connection_to(kafka.bootstrap_servers))
    try:
        with (
            producing(driver, kafka.bootstrap_servers, unique_name()) as other,
            producing(driver, kafka.bootstrap_servers, unique_name()) as ours,
        ):
            ours.begin()
            ours.send(topic, messages_of([b"1"], [b"ours"]))
            ours.commit()
            other.begin()
            other.send(topic, messages_of([b"1"], [b"other"]))
            await_end(kafka, topic, 3)
            ours.begin()
            ours.send(topic, messages_of([b"2"], [b"ours"]))
            ours.commit()
            await_values(cluster, topic, {b"ours": b"2"})
            found, scanned = cluster.read(topic), list[bytes]()
            assert found is not None
            assert found.open_keys == {b"other"}
            cluster.scan(topic, scanned.append)
            assert scanned == [b"1", b"2"]
            other.commit()
            await_values(cluster, topic, {b"ours": b"2", b"other": b"1"})
    finally:
        cluster.close()


def test_a_recreated_topic_is_read_from_its_start(kafka: KafkaCluster) -> None:
    """The cached records of the old topic are dropped, although the new one is longer."""
    topic = create_topic(kafka.bootstrap_servers)
    cluster = Cluster(connection_to(kafka.bootstrap_servers))
    try:
        with producing(PythonProducer, kafka.bootstrap_servers, unique_name()) as producer:
            producer.begin()
            producer.send(topic, messages_of([b"1"], [b"old"]))
            producer.commit()
        await_values(cluster, topic, {b"old": b"1"})
        with admin(kafka.bootstrap_servers) as client:
            client.delete_topics([topic])
            until(lambda: topic not in cluster.describe([topic]))
        create_topic(kafka.bootstrap_servers, topic)
        with producing(PythonProducer, kafka.bootstrap_servers, unique_name()) as producer:
            producer.begin()
            producer.send(topic, messages_of([b"2"] * 5, [b"new"] * 5))
            producer.commit()
        await_values(cluster, topic, {b"new": b"2"})
    finally:
        cluster.close()
