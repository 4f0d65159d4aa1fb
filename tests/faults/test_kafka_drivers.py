"""Both drivers of the `kafka` sink under faults: neither may report a commit that did not take place.

Faults of the link, the broker, other producers and the clock, and refusals by the broker.

On every landing: two of three ways to send, in this module; all of them without faults
(`integration/test_kafka_drivers.py`).
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import pytest
from kafka import TopicPartition

from tailer.errors import CommitUnknown, SinkError, SinkFenced, SinkRejected, SinkUnavailable
from tailer_sinks.kafka.clients import confluent_producer, python_producer
from tailer_sinks.kafka.clients.port import Producer, ProducerFactory, ProducerSettings
from tailer_sinks.kafka.clients.python_cluster import Cluster
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.drivers import SINK, connection_to, every_driver, messages_of, producing
from tests.support.kafka.proxy import END_TXN, Proxy
from tests.support.kafka.topics import admin, create_topic, end_offsets, read_topic, unique_name
from tests.support.servers.ports import free_ports
from tests.support.waiting import until

SHORT: Final = ProducerSettings(transaction_timeout_ms=60_000, delivery_timeout_ms=2000)
IMPATIENT: Final = ProducerSettings(transaction_timeout_ms=3000, delivery_timeout_ms=2000)


def await_stored(kafka: KafkaCluster, topic: str, count: int) -> None:
    """Wait until so many messages of an open transaction are stored in a topic."""
    until(lambda: end_offsets(kafka.bootstrap_servers, [topic])[TopicPartition(topic, 0)] >= count)


def state_of(kafka: KafkaCluster, shard: str) -> str:
    """Return the broker's state of a transactional id."""
    with admin(kafka.bootstrap_servers) as client:
        (described,) = client.describe_transactions([shard]).values()
    return str(described.state.value)


def values_in(kafka: KafkaCluster, topic: str) -> list[bytes | None]:
    """Return the messages of a topic that `read_committed` consumers see."""
    return [record.value for record in read_topic(kafka.bootstrap_servers, topic)]


def assert_useless(producer: Producer) -> None:
    """Assert that a failed producer refuses everything except `close`."""
    for call in (producer.begin, producer.commit, producer.abort, lambda: producer.send("any", messages_of([b""]))):
        with pytest.raises(SinkUnavailable, match="has failed"):
            call()
    producer.close()
    with pytest.raises(SinkUnavailable, match="was closed"):
        producer.begin()


@contextmanager
def impatient_commits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make commits time out after a moment."""
    with monkeypatch.context() as patch:
        patch.setattr(python_producer, "_END_MS", 2000)
        patch.setattr(confluent_producer, "_END_S", 2.0)
        yield


@every_driver
def test_a_zombie_is_fenced(driver: ProducerFactory, kafka: KafkaCluster) -> None:
    """Another producer takes the id during an open transaction, which never becomes visible."""
    topic, shard = create_topic(kafka.bootstrap_servers), unique_name()
    with producing(driver, kafka.bootstrap_servers, shard) as zombie:
        zombie.begin()
        zombie.send(topic, messages_of([b"zombie"]))
        await_stored(kafka, topic, 1)
        with producing(driver, kafka.bootstrap_servers, shard) as heir:
            heir.begin()
            heir.send(topic, messages_of([b"heir"]))
            heir.commit()
            with pytest.raises(SinkFenced):
                zombie.commit()
            assert_useless(zombie)
            heir.begin()
            heir.send(topic, messages_of([b"heir again"]))
            heir.commit()
    assert values_in(kafka, topic) == [b"heir", b"heir again"]


@every_driver
def test_a_zombie_that_goes_on_sending_is_fenced(driver: ProducerFactory, kafka: KafkaCluster) -> None:
    """Messages sent after the takeover are refused, and so is the commit."""
    topic, shard = create_topic(kafka.bootstrap_servers), unique_name()
    with producing(driver, kafka.bootstrap_servers, shard) as zombie:
        zombie.begin()
        zombie.send(topic, messages_of([b"zombie"]))
        await_stored(kafka, topic, 1)
        with producing(driver, kafka.bootstrap_servers, shard):
            with pytest.raises(SinkFenced):
                send_and_commit(zombie, topic, b"zombie again")
            assert_useless(zombie)
    assert values_in(kafka, topic) == []


def send_and_commit(producer: Producer, topic: str, *values: bytes, partition: int | None = None) -> None:
    """Continue as a stream that has not noticed the fault."""
    producer.send(topic, messages_of(values), partition)
    producer.commit()


@every_driver
@pytest.mark.parametrize("more", [[b"lost too"], []], ids=["sends more", "only commits"])
def test_a_transaction_that_the_broker_gave_up(driver: ProducerFactory, kafka: KafkaCluster, more: list[bytes]) -> None:
    """kafka-python's own commit reports success in this case."""
    topic, shard = create_topic(kafka.bootstrap_servers), unique_name()
    with producing(driver, kafka.bootstrap_servers, shard, IMPATIENT) as producer:
        producer.begin()
        producer.send(topic, messages_of([b"lost"]))
        await_stored(kafka, topic, 1)
        until(lambda: state_of(kafka, shard) == "CompleteAbort")
        with pytest.raises(SinkError):
            send_and_commit(producer, topic, *more)
        assert_useless(producer)
    assert values_in(kafka, topic) == []


@every_driver
def test_a_link_that_was_cut_for_too_long(driver: ProducerFactory, kafka: KafkaCluster, kafka_link: Proxy) -> None:
    """A message timed out; the link is restored and more is sent. kafka-python's own commit would leave one out."""
    topic = create_topic(kafka.bootstrap_servers)
    with producing(driver, kafka_link.address, unique_name(), SHORT) as producer:
        producer.begin()
        producer.send(topic, messages_of([b"first"]))
        await_stored(kafka, topic, 1)
        kafka_link.cut()
        producer.send(topic, messages_of([b"lost"]))
        time.sleep(2 * SHORT.delivery_timeout_ms / 1000)  # the pause is the fault itself
        kafka_link.mend()
        with pytest.raises(SinkUnavailable):
            send_and_commit(producer, topic, b"last")
        assert_useless(producer)
    with producing(driver, kafka_link.address, unique_name()):
        pass


@every_driver
def test_a_link_that_was_cut_for_a_moment(driver: ProducerFactory, kafka: KafkaCluster, kafka_link: Proxy) -> None:
    """Messages and commits are retried, and stored once; kafka-python sometimes fails instead."""
    topic = create_topic(kafka.bootstrap_servers)
    values, committed = [b"1", b"2", b"3"], 0
    # The next holder of the id ends a failed transaction.
    transactional_id = unique_name()
    with (
        suppress(CommitUnknown, SinkUnavailable),
        producing(driver, kafka_link.address, transactional_id) as producer,
    ):
        for value in values:
            producer.begin()
            producer.send(topic, messages_of([value] * 10))
            kafka_link.cut()
            kafka_link.mend()
            producer.commit()
            committed += 1
    with producing(driver, kafka_link.address, transactional_id):
        pass
    found = values_in(kafka, topic)
    assert found in [[value for value in values[:count] for _ in range(10)] for count in (committed, committed + 1)]


@every_driver
def test_the_answer_to_a_commit_is_lost(
    driver: ProducerFactory, kafka: KafkaCluster, kafka_link: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit took place, and the producer cannot know."""
    topic, shard = create_topic(kafka.bootstrap_servers), unique_name()
    with producing(driver, kafka_link.address, shard) as producer:
        producer.begin()
        producer.send(topic, messages_of([b"committed"]))
        await_stored(kafka, topic, 1)
        kafka_link.drop_responses(END_TXN)
        with impatient_commits(monkeypatch), pytest.raises(CommitUnknown, match=SINK):
            producer.commit()
        assert_useless(producer)
    kafka_link.mend()
    with producing(driver, kafka_link.address, shard):
        pass
    assert values_in(kafka, topic) == [b"committed"]


@every_driver
def test_the_broker_is_killed(driver: ProducerFactory, mortal_kafka: KafkaCluster) -> None:
    """Killed during a transaction and restarted too late: the next producer finds nothing of it."""
    topic, shard = create_topic(mortal_kafka.bootstrap_servers), unique_name()
    with producing(driver, mortal_kafka.bootstrap_servers, shard, SHORT) as producer:
        producer.begin()
        producer.send(topic, messages_of([b"first"]))
        await_stored(mortal_kafka, topic, 1)
        mortal_kafka.stop(hard=True)
        with pytest.raises(SinkUnavailable):
            send_and_commit(producer, topic, b"second")
        assert_useless(producer)
    mortal_kafka.start()
    with producing(driver, mortal_kafka.bootstrap_servers, shard) as producer:
        producer.begin()
        producer.send(topic, messages_of([b"third"]))
        producer.commit()
    assert values_in(mortal_kafka, topic) == [b"third"]


@every_driver
def test_the_broker_is_bounced(driver: ProducerFactory, mortal_kafka: KafkaCluster) -> None:
    """Killed during a transaction and restarted: the transaction continues, or is aborted as a whole."""
    topic, shard = create_topic(mortal_kafka.bootstrap_servers), unique_name()
    committed: list[bytes | None] = []
    with producing(driver, mortal_kafka.bootstrap_servers, shard) as producer:
        producer.begin()
        producer.send(topic, messages_of([b"first"]))
        await_stored(mortal_kafka, topic, 1)
        mortal_kafka.bounce(hard=True)
        with suppress(SinkUnavailable, SinkFenced):
            send_and_commit(producer, topic, b"second")
            committed += [b"first", b"second"]
    with producing(driver, mortal_kafka.bootstrap_servers, shard):
        pass
    assert values_in(mortal_kafka, topic) == committed


@every_driver
def test_messages_nothing_is_heard_of(driver: ProducerFactory, kafka: KafkaCluster, kafka_link: Proxy) -> None:
    """The client never reports their outcome."""
    topic = create_topic(kafka.bootstrap_servers)
    with producing(driver, kafka_link.address, unique_name()) as producer:
        producer.begin()
        producer.send(topic, messages_of([b"first"]))
        await_stored(kafka, topic, 1)
        kafka_link.hold()
        producer._patience_s = 1.0  # type: ignore[attr-defined]
        with pytest.raises(SinkUnavailable):
            send_and_commit(producer, topic, b"second")
        assert_useless(producer)


@every_driver
def test_buffered_messages_are_bounded(driver: ProducerFactory, kafka: KafkaCluster, kafka_link: Proxy) -> None:
    """The link is blocked: `send` stops accepting messages, and reports when they time out."""
    topic = create_topic(kafka.bootstrap_servers)
    settings = ProducerSettings(delivery_timeout_ms=2000, in_flight_bytes=2**20)
    endless = messages_of([os.urandom(1000)] * 10_000)
    with producing(driver, kafka_link.address, unique_name(), settings) as producer:
        producer.begin()
        producer.send(topic, messages_of([b"first"]))
        await_stored(kafka, topic, 1)
        kafka_link.hold()
        with pytest.raises(SinkUnavailable):
            producer.send(topic, endless)
        assert_useless(producer)


@every_driver
def test_a_message_that_is_too_large(driver: ProducerFactory, kafka: KafkaCluster) -> None:
    """For us, or for the topic: the error names the topic and the settings to check."""
    wide = create_topic(kafka.bootstrap_servers)
    narrow = create_topic(kafka.bootstrap_servers, configs={"max.message.bytes": "20000"})
    for topic, settings in ((wide, ProducerSettings(request_bytes=50_000)), (narrow, ProducerSettings())):
        with producing(driver, kafka.bootstrap_servers, unique_name(), settings) as producer:
            producer.begin()
            with pytest.raises(SinkRejected, match=topic) as caught:
                send_and_commit(producer, topic, os.urandom(60_000))
            assert "max.message.bytes" in caught.value.hint
            assert "max_record_bytes" in caught.value.hint
            assert_useless(producer)
        assert values_in(kafka, topic) == []


@every_driver
def test_a_topic_that_is_missing(driver: ProducerFactory, kafka: KafkaCluster) -> None:
    """It is not created implicitly."""
    topic = unique_name()
    with producing(driver, kafka.bootstrap_servers, unique_name()) as producer:
        producer.begin()
        with pytest.raises(SinkUnavailable, match=f"topic {topic}: there is no such"):
            send_and_commit(producer, topic, b"1")
    with admin(kafka.bootstrap_servers) as client:
        assert topic not in client.list_topics()


@every_driver
def test_a_partition_that_is_missing(driver: ProducerFactory, kafka: KafkaCluster) -> None:
    """The message is not sent to another partition."""
    topic = create_topic(kafka.bootstrap_servers)
    with producing(driver, kafka.bootstrap_servers, unique_name()) as producer:
        producer.begin()
        with pytest.raises((SinkRejected, SinkUnavailable)):
            send_and_commit(producer, topic, b"1", partition=3)


@every_driver
def test_a_message_without_a_key_for_a_compacted_topic(driver: ProducerFactory, kafka: KafkaCluster) -> None:
    """The broker refuses it."""
    topic = create_topic(kafka.bootstrap_servers, configs={"cleanup.policy": "compact"})
    with producing(driver, kafka.bootstrap_servers, unique_name()) as producer:
        producer.begin()
        with pytest.raises(SinkRejected, match=topic):
            send_and_commit(producer, topic, b"1")


@every_driver
def test_a_transaction_timeout_beyond_the_brokers(driver: ProducerFactory, kafka: KafkaCluster) -> None:
    """It is refused when the id is initialised."""
    settings = ProducerSettings(transaction_timeout_ms=10**9)
    with pytest.raises(SinkRejected, match="transaction timeout") as caught:
        driver(connection_to(kafka.bootstrap_servers), settings, unique_name())
    assert "transaction.max.timeout.ms" in caught.value.hint


@every_driver
def test_no_answer_in_time(driver: ProducerFactory) -> None:
    """The error names the address and the sink, and comes soon."""
    began_s = time.monotonic()
    address = f"127.0.0.1:{free_ports(1)[0]}"
    with pytest.raises(SinkUnavailable, match=address) as caught:
        driver(connection_to(address), ProducerSettings(), unique_name())
    assert caught.value.sink == SINK
    assert time.monotonic() - began_s < 8


def test_reading_survives_a_bounce(mortal_kafka: KafkaCluster) -> None:
    """The first call afterwards may fail, as any call may; a later one reads everything."""
    topic = create_topic(mortal_kafka.bootstrap_servers)
    cluster = Cluster(connection_to(mortal_kafka.bootstrap_servers))

    def seen() -> bool:
        with suppress(SinkUnavailable):
            found = cluster.read(topic)
            return found is not None and [each.value for each in found.records.values()] == [b"value"]
        return False

    try:
        with producing(python_producer.PythonProducer, mortal_kafka.bootstrap_servers, unique_name()) as producer:
            producer.begin()
            producer.send(topic, messages_of([b"value"], [b"key"]))
            producer.commit()
        until(seen)
        mortal_kafka.bounce(hard=True)
        until(seen)
        mortal_kafka.stop(hard=True)
        with pytest.raises(SinkUnavailable):
            cluster.read(topic)
        mortal_kafka.start()
        until(seen)
    finally:
        cluster.close()
