"""Topic administration and reading of progress, with kafka-python whichever client produces.

The end of a topic is that for `read_uncommitted`, and open transactions before it are passed over, see
`tailer_sinks.kafka.clients.python_records`: the end for `read_committed` comes before the oldest open transaction of
any producer, and would make a part look like the whole.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from uuid import UUID

from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, TransactionState
from kafka.errors import (
    BrokerResponseError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    NotCoordinatorError,
    TopicAlreadyExistsError,
    for_code,
)
from kafka.protocol.consumer import IsolationLevel, OffsetSpec
from kafka.structs import OffsetAndMetadata

from tailer.errors import SinkError, SinkRejected, SinkUnavailable
from tailer_sinks.kafka.clients.port import UNKNOWN_TOPIC, Connection, TopicState, error_of
from tailer_sinks.kafka.clients.python_connection import CLIENT_ERRORS, connected, error_for
from tailer_sinks.kafka.clients.python_records import Record, Transactions, batches

__all__ = ["Cluster", "Owner", "ReadResult"]

_REQUEST_MS: Final = 20_000
_VISIBLE_MS: Final = 20_000
_COORDINATOR_S: Final = 3.0
_MOVING: Final = (CoordinatorLoadInProgressError, CoordinatorNotAvailableError, NotCoordinatorError)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ReadResult:
    """The newest committed record of each key, with the value None for a tombstone.

    `open_keys`: the keys that have records in open transactions.
    """

    records: Mapping[bytes | None, Record]
    open_keys: frozenset[bytes | None]


@dataclass(frozen=True, slots=True)
class Owner:
    """The producer of a transactional id: its id and its epoch in `writer`.

    `in_transaction`: whether it has a transaction that is neither committed nor aborted. When it has one, all markers
    of those before it are written. They are written soon after a commit was acknowledged.
    """

    writer: tuple[int, int]
    in_transaction: bool


@dataclass(slots=True)
class _Read:
    """The records of a topic read up to `position`, valid for its id and the leader's epoch.

    While these are the same, no record before the end can have been lost: a topic that was created again has another
    id, and committed records are lost only with a leader that lacked them.
    """

    topic_id: str | None
    epoch: int | None
    position: int
    transactions: Transactions = field(default_factory=Transactions)
    newest: dict[bytes | None, Record] = field(default_factory=dict)

    def take(self, batch: Any) -> None:
        """Take the next batch."""
        for record in self.transactions.take(batch):
            newest = self.newest.get(record.key)
            # Commits come in another order than records.
            if newest is None or newest.offset < record.offset:
                self.newest[record.key] = record
        self.position = batch.next_offset


class Cluster:
    """The topics of a cluster. Methods block, one thread calls them at a time, and each may raise `SinkError`.

    Connects on first use, and again after an error.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection: Final = connection
        self._name: Final = connection.name
        self._admin: Any = None
        self._reads: dict[str, _Read] = {}
        self._told: dict[str, tuple[str | None, int]] = {}  # by topic: its id, and the last offset told to a producer

    def describe(self, topics: Sequence[str], with_configs: bool = True) -> dict[str, TopicState]:
        """Describe those of `topics` that exist; their settings only `with_configs`."""
        with self._connected() as admin:
            existing = {name: topic for name, topic in self._described(admin, topics).items() if topic is not None}
            configs: dict[str, dict[str, str]] = {}
            if existing and with_configs:
                wanted = [ConfigResource(ConfigResourceType.TOPIC, name) for name in existing]
                described = admin.describe_configs(wanted, config_filter="all").get("topic", {})
                for name, settings in described.items():
                    values = ((key, setting["value"]) for key, setting in settings.items())
                    configs[name] = {key: value for key, value in values if value is not None}
            return {
                name: TopicState(len(topic["partitions"]), configs.get(name, {}), _id(topic))
                for name, topic in existing.items()
            }

    def names(self) -> list[str]:
        """Return the names of all topics."""
        with self._connected() as admin:
            return list(admin.list_topics())

    def create(self, topic: str, partitions: int, replication_factor: int, configs: Mapping[str, str]) -> None:
        """Create a topic unless it exists. Returns when every partition has a leader.

        `replication_factor` -1: the cluster's default.
        """
        wanted = {"num_partitions": partitions, "replication_factor": replication_factor, "configs": dict(configs)}
        with self._connected(topic) as admin:
            described = admin.create_topics({topic: wanted}, raise_errors=False)["topics"][0]
            code, text = described["error_code"], described.get("error_message")
            if code not in {0, TopicAlreadyExistsError.errno}:
                raise error_of(self._name, code, f"{for_code(code).__name__}: {text}", topic)
            admin.wait_for_topics([topic], timeout_ms=_VISIBLE_MS)

    def read(self, topic: str, before: int | None = None) -> ReadResult | None:
        """Read partition 0 of a topic up to its current end, or up to the offset `before`. None: no such topic.

        `before`: an offset that a producer was told. A broker that does not know yet that another one leads has nothing
        that was stored since: from here on, no read ends before that offset.

        A transaction that was just committed may still be open: `owner` says more.
        """
        partition = TopicPartition(topic, 0)
        with self._connected(topic) as admin:
            described = self._described(admin, [topic])[topic]
            if described is None:
                return None
            last, topic_id = _end(admin, partition), _id(described)
            end = last.offset if before is None else before
            told_id, told = self._told.get(topic, (None, 0))
            if before is not None:
                self._told[topic] = (topic_id, before)
            elif topic_id is not None and topic_id == told_id and end <= told:
                reason = f"a broker gave a former end of {topic}: it may not know yet that another one leads"
                raise SinkUnavailable(self._name, reason)
            # An error in the middle leaves no partial result.
            read = self._reads.pop(topic, None)
            valid = read is not None and (read.topic_id, read.epoch) == (topic_id, last.leader_epoch)
            is_unsure = None in (topic_id, last.leader_epoch)  # brokers are too old to tell of a topic created again
            if read is None or not valid or is_unsure or read.position > end:
                read = _Read(topic_id, last.leader_epoch, _start(admin, partition))
            for batch in batches(admin, partition, read.position, end):
                read.take(batch)
            self._reads[topic] = read
            return ReadResult(dict(read.newest), read.transactions.open_keys)

    def owner(self, transactional_id: str) -> Owner | None:
        """Return the producer that took a transactional id over last.

        None: brokers do not say. They are older than 3.0, have forgotten the id, or its coordinator is moving.
        """
        for is_last in (False, True):
            with self._connected() as admin:
                try:
                    transaction = admin.describe_transactions([transactional_id])[transactional_id]
                except (NotCoordinatorError, CoordinatorNotAvailableError):
                    pass
                except BrokerResponseError:
                    break
                else:
                    writer = transaction.producer_id, transaction.producer_epoch
                    return Owner(writer, transaction.state == TransactionState.ONGOING)
            if not is_last:
                self.close()  # the client remembers coordinators, but not that one has moved
        return None

    def had_messages(self, topic: str) -> bool:
        """Return whether a topic has messages, or had some that were deleted since; False without such a topic.

        Messages of aborted and open transactions also count.
        """
        with self._connected(topic) as admin:
            described = self._described(admin, [topic])[topic]
            if described is None:
                return False
            partitions = [TopicPartition(topic, part["partition_index"]) for part in described["partitions"]]
            return any(end.offset > 0 for end in _ends(admin, partitions).values())

    def scan(self, topic: str, take: Callable[[bytes], None]) -> None:
        """Pass the value of every committed message in partition 0 of a topic, if it exists, to `take`."""
        partition, transactions = TopicPartition(topic, 0), Transactions()
        with self._connected(topic) as admin:
            if self._described(admin, [topic])[topic] is None:
                return
            for batch in batches(admin, partition, _start(admin, partition), _end(admin, partition).offset):
                for record in transactions.take(batch):
                    if record.value is not None:
                        take(record.value)

    def note(self, group: str, topic: str, text: str) -> bool:
        """Keep a text with the offset that a group of consumers has in partition 0 of a topic.

        Brokers keep the last one. Returns False if they do not know the topic.
        """
        partition = TopicPartition(topic, 0)

        def keep(admin: Any) -> bool:
            answer = admin.alter_group_offsets(group, {partition: OffsetAndMetadata(0, text, None)})[partition]
            if answer.errno not in {0, UNKNOWN_TOPIC}:
                raise answer
            return bool(answer.errno == 0)

        return self._ask_coordinator(topic, keep)

    def noted(self, group: str, topic: str) -> str | None:
        """Return the text that `note` kept last; None: none."""
        partition = TopicPartition(topic, 0)

        def look(admin: Any) -> str | None:
            offset = admin.list_group_offsets({group: [partition]})[group].get(partition)
            return None if offset is None else offset.metadata or None

        return self._ask_coordinator(topic, look)

    def _ask_coordinator(self, topic: str, ask: Callable[[Any], T]) -> T:
        """Ask the coordinator of a group, after a moment if it moves, or the first group of the cluster makes it."""
        deadline = time.monotonic() + _COORDINATOR_S
        while True:
            try:
                with self._connected(topic) as admin:
                    return ask(admin)
            except SinkUnavailable as error:
                if not isinstance(error.__cause__, _MOVING) or time.monotonic() >= deadline:
                    raise
            time.sleep(_COORDINATOR_S / 20)

    def close(self) -> None:
        """Close the connection. Never raises."""
        admin, self._admin = self._admin, None
        if admin is not None:
            with suppress(*CLIENT_ERRORS):
                admin.close()

    def _described(self, admin: Any, topics: Sequence[str]) -> dict[str, Any]:
        """Describe topics as the brokers do; None for those that do not exist."""
        described = {topic["name"]: topic for topic in admin.describe_topics(list(topics))}
        for name, topic in described.items():
            if topic["error_code"] not in {0, UNKNOWN_TOPIC}:
                raise error_of(self._name, topic["error_code"], for_code(topic["error_code"]).__name__, name)
        return {name: topic if topic["error_code"] == 0 else None for name, topic in described.items()}

    @contextmanager
    def _connected(self, topic: str | None = None) -> Iterator[Any]:
        if self._admin is None:
            self._admin = connected(KafkaAdminClient, self._connection, request_timeout_ms=_REQUEST_MS)
        try:
            yield self._admin
        except SinkRejected:
            raise
        except SinkError:
            self.close()
            raise
        except CLIENT_ERRORS as error:
            self.close()
            raise error_for(self._name, error, topic) from error


def _start(admin: Any, partition: TopicPartition) -> int:
    """Return the offset of the first record of a partition."""
    return int(admin.list_partition_offsets({partition: OffsetSpec.EARLIEST})[partition].offset)


def _end(admin: Any, partition: TopicPartition) -> Any:
    """Return the end of a partition for `read_uncommitted`, and the epoch of the leader that gives it."""
    return _ends(admin, [partition])[partition]


def _ends(admin: Any, partitions: Sequence[TopicPartition]) -> Any:
    """Return the same for several partitions."""
    asked = dict.fromkeys(partitions, OffsetSpec.LATEST)
    return admin.list_partition_offsets(asked, IsolationLevel.READ_UNCOMMITTED)


def _id(described: Any) -> str | None:
    """Return the id of a described topic; None if brokers are too old for ids."""
    topic_id = described.get("topic_id")
    return None if topic_id is None or UUID(str(topic_id)).int == 0 else str(topic_id)
