"""Topic administration and reading of progress, with kafka-python whichever client produces.

Committed records are read by a `read_committed` consumer. That consumer must not give the end of the topic: it sees
only up to the oldest open transaction of any producer, and would take a part for the whole. So the partition's leader
is asked for the end for `read_uncommitted`, and the consumer has to reach it.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import TopicAlreadyExistsError, for_code
from kafka.protocol.consumer import IsolationLevel, OffsetSpec

from sinks.kafka.clients.answers import UNKNOWN_TOPIC, error_of
from sinks.kafka.clients.port import Connection
from sinks.kafka.clients.python_connection import CLIENT_ERRORS, connected, error_for
from sinks.kafka.topics import TopicState
from tailer.errors import SinkError, SinkRejected, SinkUnavailable

__all__ = ["Cluster", "ReadResult"]

_REQUEST_MS: Final = 20_000
_VISIBLE_MS: Final = 20_000
_POLL_MS: Final = 200
_RECORDS: Final = 10_000


@dataclass(frozen=True, slots=True)
class ReadResult:
    """The newest value of each key, None for a tombstone; `complete`: whether the end of the topic was reached."""

    records: Mapping[bytes | None, bytes | None]
    complete: bool


@dataclass(slots=True)
class _Read:
    """The records of a topic read up to `position`, valid for its id and the leader's epoch.

    While these are the same, no record before the end can have been lost: a topic that was created again has another
    id, and committed records are lost only with a leader that lacked them.
    """

    topic_id: str | None
    epoch: int | None
    position: int = 0
    newest: dict[bytes | None, bytes | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Clients:
    admin: Any
    consumer: Any

    def close(self) -> None:
        for close in (self.admin.close, lambda: self.consumer.close(autocommit=False)):
            with suppress(*CLIENT_ERRORS):
                close()


class Cluster:
    """The topics of a cluster. Methods block, one thread calls them at a time, and each may raise `SinkError`.

    Connects on first use, and again after an error.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection: Final = connection
        self._name: Final = connection.name
        self._clients: _Clients | None = None
        self._reads: dict[str, _Read] = {}

    def describe(self, topics: Sequence[str], with_configs: bool = True) -> dict[str, TopicState]:
        """Describe those of `topics` that exist; their settings only `with_configs`."""
        with self._connected() as clients:
            found = {topic: each for topic, each in self._described(clients, topics).items() if each is not None}
            if not found or not with_configs:
                return {topic: TopicState(len(each["partitions"]), {}, _id(each)) for topic, each in found.items()}
            wanted = [ConfigResource(ConfigResourceType.TOPIC, topic) for topic in found]
            configs = clients.admin.describe_configs(wanted, config_filter="all").get("topic", {})
            return {
                topic: TopicState(
                    len(described["partitions"]),
                    {
                        key: about["value"]
                        for key, about in configs.get(topic, {}).items()
                        if about["value"] is not None
                    },
                    _id(described),
                )
                for topic, described in found.items()
            }

    def partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic. Raises `SinkRejected` if there is no such topic."""
        with self._connected() as clients:
            return len(self._present(clients, topic)["partitions"])

    def create(self, topic: str, partitions: int, replication_factor: int, configs: Mapping[str, str]) -> None:
        """Create a topic unless it exists. Returns when every partition has a leader.

        `replication_factor` -1: the cluster's default.
        """
        wanted = {"num_partitions": partitions, "replication_factor": replication_factor, "configs": dict(configs)}
        with self._connected(topic) as clients:
            described = clients.admin.create_topics({topic: wanted}, raise_errors=False)["topics"][0]
            code, text = described["error_code"], described.get("error_message")
            if code not in {0, TopicAlreadyExistsError.errno}:
                raise error_of(self._name, code, f"{for_code(code).__name__}: {text}", topic)
            clients.admin.wait_for_topics([topic], timeout_ms=_VISIBLE_MS)

    def read(self, topic: str, timeout_s: float) -> ReadResult | None:
        """Read the committed records in partition 0 of a topic, up to its current end. None: no such topic.

        Not complete if a transaction that is open now is still open after `timeout_s` seconds.
        """
        partition = TopicPartition(topic, 0)
        deadline = time.monotonic() + timeout_s
        with self._connected(topic) as clients:
            described = self._described(clients, [topic])[topic]
            if described is None:
                return None
            end = _end(clients, partition)
            read = self._reads.get(topic)
            if read is None or (read.topic_id, read.epoch) != (_id(described), end.leader_epoch) or _unsure(read):
                read = _Read(_id(described), end.leader_epoch)
            if read.position > end.offset:
                read = _Read(_id(described), end.leader_epoch)
            # An error in the middle leaves no partial result.
            self._reads.pop(topic, None)
            self._read_on(clients, partition, read, end.offset, deadline)
            self._reads[topic] = read
            complete = read.position >= end.offset
            if not complete:
                # Raises if the cause is a broker that does not answer, not an open transaction.
                _end(clients, partition)
            return ReadResult(dict(read.newest), complete)

    def had_messages(self, topic: str) -> bool:
        """Return whether a topic has messages, or had some that were deleted since; False without such a topic.

        Messages of aborted and open transactions also count.
        """
        with self._connected(topic) as clients:
            described = self._described(clients, [topic])[topic]
            if described is None:
                return False
            partitions = [TopicPartition(topic, each["partition_index"]) for each in described["partitions"]]
            return any(end.offset > 0 for end in _ends(clients, partitions).values())

    def scan(self, topic: str, take: Callable[[bytes], None]) -> None:
        """Pass the value of every committed message in partition 0 of a topic, if it exists, to `take`.

        Raises `SinkUnavailable` if no more came for `_REQUEST_MS`: after an open transaction.
        """
        partition = TopicPartition(topic, 0)
        with self._connected(topic) as clients:
            if self._described(clients, [topic])[topic] is None:
                return
            end, position, moved = _end(clients, partition).offset, 0, time.monotonic()
            clients.consumer.assign([partition])
            clients.consumer.seek_to_beginning(partition)
            while position < end:
                for record in clients.consumer.poll(timeout_ms=_POLL_MS, max_records=_RECORDS).get(partition, ()):
                    if record.value is not None:
                        take(record.value)
                before, position = position, clients.consumer.position(partition, timeout_ms=_REQUEST_MS)
                if position != before:
                    moved = time.monotonic()
                elif time.monotonic() - moved > _REQUEST_MS / 1000:
                    raise SinkUnavailable(self._name, f"an open transaction in {topic} hides later messages")

    def close(self) -> None:
        """Close the connections. Never raises."""
        clients, self._clients = self._clients, None
        if clients is not None:
            clients.close()

    def _read_on(self, clients: _Clients, partition: TopicPartition, read: _Read, end: int, deadline: float) -> None:
        consumer = clients.consumer
        consumer.assign([partition])
        if read.position:
            consumer.seek(partition, read.position)
        else:
            consumer.seek_to_beginning(partition)
        while read.position < end and time.monotonic() < deadline:
            for record in consumer.poll(timeout_ms=_POLL_MS, max_records=_RECORDS).get(partition, ()):
                read.newest[record.key] = record.value
            read.position = consumer.position(partition, timeout_ms=_REQUEST_MS)

    def _described(self, clients: _Clients, topics: Sequence[str]) -> dict[str, Any]:
        """Describe topics as the brokers do; None for those that do not exist."""
        described = {topic["name"]: topic for topic in clients.admin.describe_topics(list(topics))}
        for name, topic in described.items():
            if topic["error_code"] not in {0, UNKNOWN_TOPIC}:
                raise error_of(self._name, topic["error_code"], for_code(topic["error_code"]).__name__, name)
        return {name: topic if topic["error_code"] == 0 else None for name, topic in described.items()}

    def _present(self, clients: _Clients, topic: str) -> Any:
        described = self._described(clients, [topic])[topic]
        if described is None:
            raise error_of(self._name, UNKNOWN_TOPIC, "asked for its partitions", topic)
        return described

    @contextmanager
    def _connected(self, topic: str | None = None) -> Iterator[_Clients]:
        if self._clients is None:
            self._clients = _connect(self._connection)
        try:
            yield self._clients
        except SinkRejected:
            raise
        except SinkError:
            self.close()
            raise
        except CLIENT_ERRORS as error:
            self.close()
            raise error_for(self._name, error, topic) from error


def _connect(connection: Connection) -> _Clients:
    admin = connected(KafkaAdminClient, connection, request_timeout_ms=_REQUEST_MS)
    try:
        consumer = connected(
            KafkaConsumer,
            connection,
            request_timeout_ms=_REQUEST_MS,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            group_id=None,
            fetch_max_wait_ms=_POLL_MS,
            allow_auto_create_topics=False,
            metrics_enabled=False,
        )
    except BaseException:
        admin.close()
        raise
    return _Clients(admin, consumer)


def _end(clients: _Clients, partition: TopicPartition) -> Any:
    """Return the end of a partition for `read_uncommitted`, and the epoch of the leader that gives it."""
    return _ends(clients, [partition])[partition]


def _ends(clients: _Clients, partitions: Sequence[TopicPartition]) -> Any:
    """Return the same for several partitions."""
    asked = dict.fromkeys(partitions, OffsetSpec.LATEST)
    return clients.admin.list_partition_offsets(asked, IsolationLevel.READ_UNCOMMITTED)


def _id(described: Any) -> str | None:
    """Return the id of a described topic; None if brokers are too old for ids."""
    topic_id = described.get("topic_id")
    return None if topic_id is None or UUID(str(topic_id)).int == 0 else str(topic_id)


def _unsure(read: _Read) -> bool:
    """Return whether brokers are too old to detect that a topic was created again."""
    return read.topic_id is None or read.epoch is None
