"""Read a topic: all its records at the end, or all that a concurrent reader saw.

Uses kafka-python without a consumer group, so a read does not depend on earlier ones.
"""

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Literal, Self, TypeVar

from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.admin import OffsetSpec
from kafka.consumer.fetcher import ConsumerRecord
from kafka.errors import KafkaError, RetriableError, UnknownBrokerIdError

__all__ = ["Follower", "Isolation", "Record", "admin", "create_topic", "end_offsets", "read_topic", "unique_name"]

T = TypeVar("T")
Isolation = Literal["read_committed", "read_uncommitted"]

_PATIENCE_S: Final = 300
# A consumer that connects to a stopping broker may wait for ever; a new one does not.
_RENEW_S: Final = 15.0
_ANSWER_MS: Final = 2_000


@dataclass(frozen=True)
class Record:
    """A record in a topic. `timestamp`: milliseconds."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


def unique_name(prefix: str = "topic") -> str:
    """Return a name that no other test uses."""
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


@contextmanager
def admin(bootstrap_servers: str) -> Iterator[KafkaAdminClient]:
    """Make an administration client."""
    client = KafkaAdminClient(bootstrap_servers=bootstrap_servers.split(","))
    try:
        yield client
    finally:
        client.close()


def create_topic(
    bootstrap_servers: str,
    topic: str | None = None,
    partitions: int = 1,
    replication_factor: int = -1,
    configs: Mapping[str, str] | None = None,
) -> str:
    """Create a topic and return its name, a unique one unless `topic` is given; it can be used then.

    `replication_factor` -1: the cluster's. `configs`: Kafka's, of the topic.
    """
    name = topic or unique_name()
    settings = {
        "num_partitions": partitions,
        "replication_factor": replication_factor,
        "configs": dict(configs or {}),
    }

    def create() -> None:
        with admin(bootstrap_servers) as client:
            client.create_topics({name: settings}, wait_for_metadata=True)

    _patiently(create, UnknownBrokerIdError)  # a broker that has just started does not name itself yet
    return name


def end_offsets(bootstrap_servers: str, topics: Sequence[str]) -> dict[TopicPartition, int]:
    """Return the next offset of each partition, with open transactions included.

    Retries while brokers are down.
    """
    return _patiently(lambda: _end_offsets(bootstrap_servers, topics), RetriableError)


def _patiently(ask: Callable[[], T], passing: type[KafkaError]) -> T:
    """Ask again as long as the answer is an error that may pass."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return ask()
        except passing:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _end_offsets(bootstrap_servers: str, topics: Sequence[str]) -> dict[TopicPartition, int]:
    with admin(bootstrap_servers) as client:
        partitions = [
            TopicPartition(topic["name"], partition["partition_index"])
            for topic in client.describe_topics(list(topics))
            for partition in topic["partitions"]
        ]
        found = client.list_partition_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST))
    return {partition: offset.offset for partition, offset in found.items()}


def read_topic(bootstrap_servers: str, topic: str, isolation: Isolation = "read_committed") -> list[Record]:
    """Read all records of a topic up to its present end, in the order of each partition.

    The end includes open transactions: under `read_committed` this waits for them. Raises `TimeoutError`.
    """
    with Follower(bootstrap_servers, [topic], isolation) as follower:
        return follower.finish()


class Follower:
    """A reader of topics from their beginnings in a separate thread, like another application.

    Started when entered. The topics exist, and keep their partitions. It survives restarts of brokers.
    """

    def __init__(self, bootstrap_servers: str, topics: Sequence[str], isolation: Isolation = "read_committed") -> None:
        self._bootstrap_servers = bootstrap_servers
        self._topics = list(topics)
        self._isolation = isolation
        self._changed = threading.Condition()
        self._records: list[Record] = []
        self._positions: dict[TopicPartition, int] = {}
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(1, "follower")
        self._reading: Future[None] = Future()

    def records(self) -> list[Record]:
        """Return the records seen so far, in the order of arrival."""
        self._raise_if_broken()
        with self._changed:
            return list(self._records)

    def by_partition(self) -> dict[TopicPartition, list[Record]]:
        """Return the records seen so far, by partition."""
        found: dict[TopicPartition, list[Record]] = {}
        for record in self.records():
            found.setdefault(TopicPartition(record.topic, record.partition), []).append(record)
        return found

    def await_records(self, count: int) -> list[Record]:
        """Wait until that many records were seen; return all seen records. Raises `TimeoutError`."""
        self._await(lambda: len(self._records) >= count, f"{count} records")
        return self.records()

    def finish(self) -> list[Record]:
        """Read up to the present end of the topics, then stop; return all records. Raises `TimeoutError`."""
        records = self.read_to_end()
        self.stop()
        return records

    def read_to_end(self) -> list[Record]:
        """Read up to the present end of the topics; return all records. Raises `TimeoutError`."""
        ends = end_offsets(self._bootstrap_servers, self._topics)
        self._await(lambda: all(self._positions.get(at, 0) >= end for at, end in ends.items()), f"the end, {ends}")
        return self.records()

    def stop(self) -> None:
        """Stop reading."""
        self._stopped.set()
        self._pool.shutdown()

    def __enter__(self) -> Self:
        self._reading = self._pool.submit(self._follow)
        self._reading.add_done_callback(lambda _: self._notify())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def _raise_if_broken(self) -> None:
        if self._reading.done():
            self._reading.result()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _await(self, reached: Callable[[], bool], what: str) -> None:
        with self._changed:
            there = self._changed.wait_for(lambda: self._reading.done() or reached(), _PATIENCE_S)
            if not there:
                message = f"waited for {what}; {len(self._records)} records seen, at {self._positions}"
                raise TimeoutError(message)
        self._raise_if_broken()

    def _follow(self) -> None:
        while not self._stopped.is_set():
            consumer = KafkaConsumer(
                bootstrap_servers=self._bootstrap_servers.split(","),
                isolation_level=self._isolation,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                allow_auto_create_topics=False,
                reconnect_backoff_max_ms=500,
                max_poll_records=10_000,
                fetch_max_wait_ms=100,
            )
            try:
                self._read(consumer)
            finally:
                consumer.close()

    def _read(self, consumer: KafkaConsumer) -> None:
        """Read until stopped, or until no record came for a while."""
        partitions = list(end_offsets(self._bootstrap_servers, self._topics))
        consumer.assign(partitions)
        for at, position in self._positions.items():
            consumer.seek(at, position)
        moved = time.monotonic()
        while not self._stopped.is_set() and time.monotonic() - moved < _RENEW_S:
            with suppress(RetriableError):
                before = self._positions
                self._take(consumer.poll(timeout_ms=100))
                found_positions = {at: consumer.position(at, timeout_ms=_ANSWER_MS) for at in partitions}
                positions = self._positions | {at: place for at, place in found_positions.items() if place is not None}
                if positions != before:
                    moved = time.monotonic()
                with self._changed:
                    self._positions = positions
                    self._changed.notify_all()

    def _take(self, polled: Mapping[TopicPartition, Sequence[ConsumerRecord]]) -> None:
        with self._changed:
            self._records += [
                Record(r.topic, r.partition, r.offset, r.timestamp, r.key, r.value, tuple(r.headers))
                for batch in polled.values()
                for r in batch
            ]
            self._positions = self._positions | {at: batch[-1].offset + 1 for at, batch in polled.items() if batch}
            self._changed.notify_all()
