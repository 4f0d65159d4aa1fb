"""The drivers of the `kafka` sink, for suites that each must pass, and messages for them."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import pyarrow as pa
import pytest

from tailer_sinks.encoding.messages import BYTES, Messages
from tailer_sinks.kafka.clients.confluent_producer import ConfluentProducer
from tailer_sinks.kafka.clients.port import Connection, Producer, ProducerFactory, ProducerSettings
from tailer_sinks.kafka.clients.python_cluster import Cluster
from tailer_sinks.kafka.clients.python_producer import PythonProducer
from tests.support.waiting import until

__all__ = ["DRIVERS", "SINK", "await_values", "connection_to", "every_driver", "messages_of", "producing"]

SINK: Final = "orders-out"

DRIVERS: Final[dict[str, ProducerFactory]] = {
    "kafka-python": PythonProducer,
    "confluent-kafka": ConfluentProducer,
}

every_driver = pytest.mark.parametrize("driver", [pytest.param(driver, id=name) for name, driver in DRIVERS.items()])


def connection_to(bootstrap_servers: str) -> Connection:
    """Make a plain connection of the sink called `SINK`."""
    return Connection(SINK, bootstrap_servers.split(","))


def messages_of(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[tuple[str, Sequence[bytes | None]]] = (),
) -> Messages:
    """Make messages in this order."""
    return Messages(
        None if keys is None else pa.array(keys, BYTES),
        pa.array(values, BYTES),
        pa.array(range(len(values)), pa.int64()),
        tuple((name, pa.array(column, BYTES)) for name, column in headers),
    )


@contextmanager
def producing(
    driver: ProducerFactory,
    bootstrap_servers: str,
    transactional_id: str,
    settings: ProducerSettings | None = None,
) -> Iterator[Producer]:
    """Make a producer, closed when left."""
    producer = driver(connection_to(bootstrap_servers), settings or ProducerSettings(), transactional_id)
    try:
        yield producer
    finally:
        producer.close()


def await_values(cluster: Cluster, topic: str, expected: Mapping[bytes | None, bytes | None]) -> None:
    """Wait until these are the newest values by key: commits are visible soon after they were acknowledged."""
    until(lambda: _newest(cluster, topic) == expected)


def _newest(cluster: Cluster, topic: str) -> dict[bytes | None, bytes | None]:
    """Return the newest value of each key in a topic, which exists."""
    content = cluster.read(topic)
    assert content is not None
    return {key: record.value for key, record in content.records.items()}
