"""The test cluster does what tests of the sink rely on: it runs, dies, freezes and loses answers.

On every landing: one node that dies, freezes and loses answers, in this module.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kafka import KafkaProducer
from kafka.errors import KafkaError

from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.proxy import END_TXN, Proxy
from tests.support.kafka.topics import create_topic, end_offsets, read_topic, unique_name

pytestmark = pytest.mark.kafka


@contextmanager
def producing(bootstrap_servers: str, **settings: Any) -> Iterator[KafkaProducer]:
    """A producer that waits for every replica, and not at all when it is closed."""
    producer = KafkaProducer(bootstrap_servers=bootstrap_servers.split(","), acks="all", **settings)
    try:
        yield producer
    finally:
        producer.close(timeout=0)


def values(bootstrap_servers: str, topic: str) -> list[bytes | None]:
    """Return the values that a reader of committed records sees."""
    return [record.value for record in read_topic(bootstrap_servers, topic)]


def test_nothing_passes_a_link_that_is_cut(kafka: KafkaCluster, kafka_link: Proxy) -> None:
    topic = create_topic(kafka.bootstrap_servers)
    with producing(kafka_link.address, delivery_timeout_ms=500, request_timeout_ms=400, linger_ms=0) as producer:
        producer.send(topic, b"before").get(60)
        kafka_link.cut()
        with pytest.raises(KafkaError):
            producer.send(topic, b"lost").get(60)
    kafka_link.mend()
    with producing(kafka_link.address) as producer:
        producer.send(topic, b"after").get(60)
    assert values(kafka.bootstrap_servers, topic) == [b"before", b"after"]


def test_the_answer_to_a_commit_is_lost_and_nothing_else(kafka: KafkaCluster, kafka_link: Proxy) -> None:
    topic = create_topic(kafka.bootstrap_servers)
    with producing(kafka_link.address, transactional_id=unique_name("transaction")) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        kafka_link.drop_responses(END_TXN)
        producer.send(topic, b"row").get(60)
        commit = threading.Thread(target=producer.commit_transaction)
        commit.start()
        kafka_link.await_lost()
        assert values(kafka.bootstrap_servers, topic) == [b"row"]
        kafka_link.mend()
        commit.join()
    assert list(end_offsets(kafka.bootstrap_servers, [topic]).values()) == [2]
