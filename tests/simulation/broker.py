"""A Kafka broker in memory, and the product's two clients of it: one for topics and progress, one that produces.

The broker has what transactions are made of: ids of producers with epochs, fencing, transactions that span topics, end
at a marker and time out, and markers that are written a moment after a commit was acknowledged. Each topic has one
partition that matters. `on_commit` is called when the last marker of a transaction is there, with its records by topic.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar
from uuid import UUID

from tailer.errors import CommitUnknown, SinkFenced, SinkRejected, SinkUnavailable
from tailer.plan import END, Position
from tailer_sinks.encoding.messages import Messages
from tailer_sinks.kafka.clients.port import TopicState
from tailer_sinks.kafka.clients.python_cluster import Owner, ReadResult
from tailer_sinks.kafka.clients.python_records import Record
from tests.simulation.network import Network, NoAnswer
from tests.simulation.oracle import Transaction, change_of

__all__ = ["Broker", "SimulatedCluster", "SimulatedProducer", "read_transaction"]

T = TypeVar("T")

Written = tuple[bytes | None, bytes | None]
_PROGRESS: Final = "lake-tailer-progress"


class FencedError(Exception):
    """The broker has invalidated this producer."""


@dataclass
class _Entry:
    """A record, or the marker of a transaction (`commits` is not None)."""

    producer: tuple[int, int]
    key: bytes | None = None
    value: bytes | None = None
    commits: bool | None = None


@dataclass
class _Owner:
    """The state of a transactional id. `number`: of its transaction, which counts up."""

    producer: tuple[int, int]
    number: int = 0
    state: str = "empty"  # or open, committing, aborting
    topics: dict[str, list[Written]] = field(default_factory=dict)


@dataclass
class Broker:
    """The server."""

    network: Network
    on_commit: Callable[[Mapping[str, Sequence[Written]]], None]
    topics: dict[str, TopicState] = field(default_factory=dict)
    logs: dict[str, list[_Entry]] = field(default_factory=dict)
    owners: dict[str, _Owner] = field(default_factory=dict)
    notes: dict[tuple[str, str], str] = field(default_factory=dict)  # with the offset of a group in a topic

    def create(self, topic: str, configs: Mapping[str, str]) -> None:
        """Create a topic unless it exists."""
        if topic not in self.topics:
            self.topics[topic] = TopicState(1, dict(configs), str(UUID(int=len(self.topics) + 1)))
            self.logs[topic] = []

    def init(self, transactional_id: str, timeout_s: float) -> tuple[int, int]:
        """Take an id over: its former producer is fenced, and its open transaction aborted."""
        owner = self.owners.get(transactional_id)
        if owner is None:
            owner = self.owners[transactional_id] = _Owner((len(self.owners) + 1, 0))
            return owner.producer
        if owner.state == "open":
            self._end(owner, commits=False)
        elif owner.state != "empty":
            self._mark(owner, commits=owner.state == "committing")
        owner.producer = (owner.producer[0], owner.producer[1] + 1)
        owner.number += 1
        return owner.producer

    def produce(
        self, transactional_id: str, producer: tuple[int, int], number: int, topic: str, records: list[Written]
    ) -> int:
        """Append records in a transaction, which begins with them. Return the offset of the first."""
        owner = self._valid(transactional_id, producer, number)
        if topic not in self.topics:
            raise KeyError(topic)
        owner.state = "open"
        owner.topics.setdefault(topic, []).extend(records)
        log = self.logs[topic]
        offset = len(log)
        log += [_Entry(producer, key, value) for key, value in records]
        return offset

    def end(self, transactional_id: str, producer: tuple[int, int], number: int, *, commits: bool) -> None:
        """End a transaction. The markers follow."""
        owner = self._valid(transactional_id, producer, number)
        owner.number += 1
        if owner.state != "open":
            return
        owner.state = "committing" if commits else "aborting"
        delay_s = self.network.chance.choice((0.0, 0.003, 0.05, 2.0)) * self.network.chance.random()
        at = owner.number

        def mark() -> None:
            if owner.number == at and owner.state in ("committing", "aborting"):
                self._mark(owner, commits=commits)

        self.network.later(delay_s, mark)

    def time_out(self, transactional_id: str, producer: tuple[int, int], number: int) -> None:
        """Abort a transaction that is open for too long; its producer is fenced."""
        owner = self.owners[transactional_id]
        if (owner.producer, owner.number, owner.state) == (producer, number, "open"):
            self.network.trace.add(f"TIMEOUT of the transaction of {transactional_id}")
            owner.producer = (producer[0], producer[1] + 1)
            self._end(owner, commits=False)

    def read(self, topic: str, before: int | None) -> ReadResult | None:
        """Return the newest committed record of each key, and the keys in open transactions."""
        if topic not in self.topics:
            return None
        found: dict[bytes | None, Record] = {}
        undecided: dict[int, list[Record]] = {}
        for offset, entry in enumerate(self.logs[topic][:before]):
            if entry.commits is None:
                record = Record(offset, entry.key, entry.value, entry.producer)
                undecided.setdefault(entry.producer[0], []).append(record)
            else:
                for record in undecided.pop(entry.producer[0], []) if entry.commits else ():
                    found[record.key] = record
                if not entry.commits:
                    undecided.pop(entry.producer[0], None)
        return ReadResult(found, frozenset(each.key for records in undecided.values() for each in records))

    def _valid(self, transactional_id: str, producer: tuple[int, int], number: int) -> _Owner:
        owner = self.owners[transactional_id]
        if owner.producer != producer or number != owner.number:
            raise FencedError
        if owner.state in ("committing", "aborting"):  # a client waits for the markers of its last transaction
            self._mark(owner, commits=owner.state == "committing")
        return owner

    def _end(self, owner: _Owner, *, commits: bool) -> None:
        owner.number += 1
        self._mark(owner, commits=commits)

    def _mark(self, owner: _Owner, *, commits: bool) -> None:
        topics, owner.topics, owner.state = owner.topics, {}, "empty"
        for topic in topics:
            self.logs[topic].append(_Entry(owner.producer, commits=commits))
        if commits:
            self.on_commit(topics)


class SimulatedCluster:
    """Stands in for `tailer_sinks.kafka.clients.python_cluster.Cluster`."""

    def __init__(self, broker: Broker, name: str) -> None:
        self._broker = broker
        self._name = name

    def describe(self, topics: Sequence[str], with_configs: bool = True) -> dict[str, TopicState]:
        """See `Cluster.describe`."""
        known = self._broker.topics
        return self._ask("describe topics", lambda: {each: known[each] for each in topics if each in known})

    def names(self) -> list[str]:
        """See `Cluster.names`."""
        return self._ask("list topics", lambda: list(self._broker.topics))

    def create(self, topic: str, partitions: int, replication_factor: int, configs: Mapping[str, str]) -> None:
        """See `Cluster.create`."""
        self._ask(f"create {topic}", lambda: self._broker.create(topic, configs))

    def read(self, topic: str, before: int | None = None) -> ReadResult | None:
        """See `Cluster.read`."""
        return self._ask(f"read {topic} before {before}", lambda: self._broker.read(topic, before))

    def owner(self, transactional_id: str) -> Owner | None:
        """See `Cluster.owner`."""

        def look() -> Owner | None:
            found = self._broker.owners.get(transactional_id)
            return None if found is None else Owner(found.producer, found.state == "open")

        return self._ask(f"describe transaction {transactional_id}", look)

    def had_messages(self, topic: str) -> bool:
        """See `Cluster.had_messages`."""
        return self._ask(f"offsets of {topic}", lambda: bool(self._broker.logs.get(topic)))

    def scan(self, topic: str, take: Callable[[bytes], None]) -> None:
        """See `Cluster.scan`; there is no end topic here."""

    def note(self, group: str, topic: str, text: str) -> bool:
        """See `Cluster.note`."""

        def keep() -> bool:
            if topic in self._broker.topics:
                self._broker.notes[group, topic] = text
            return topic in self._broker.topics

        return self._ask(f"note {text}", keep)

    def noted(self, group: str, topic: str) -> str | None:
        """See `Cluster.noted`."""
        return self._ask(f"look at {group}", lambda: self._broker.notes.get((group, topic)))

    def close(self) -> None:
        """See `Cluster.close`."""

    def _ask(self, what: str, effect: Callable[[], T]) -> T:
        network = self._broker.network
        try:
            return network.physics.wait(network.send(f"KAFKA {what}", effect))
        except NoAnswer as error:
            raise SinkUnavailable(self._name, str(error)) from error


class SimulatedProducer:
    """A `Producer`: messages go out in order, each request is repeated until it is answered or time is up."""

    def __init__(self, broker: Broker, name: str, transactional_id: str, timeout_s: float) -> None:
        self._broker, self._name, self._id = broker, name, transactional_id
        self._timeout_s = timeout_s
        what = f"take over {transactional_id}"
        self._producer: tuple[int, int] = self._ask(what, lambda: broker.init(transactional_id, timeout_s))
        self._number = broker.owners[transactional_id].number
        self._waiting: dict[str, list[Written]] = {}
        self._begun = self._sent = False
        self._first: int | None = None

    def begin(self) -> None:
        """See `Producer.begin`."""
        self._begun, self._sent, self._first = True, False, None
        self._waiting = {}

    def send(self, topic: str, messages: Messages, partition: int | None = None) -> None:
        """See `Producer.send`."""
        values = messages.values.to_pylist()
        keys = [None] * len(values) if messages.keys is None else messages.keys.to_pylist()
        self._waiting.setdefault(topic, []).extend(zip(keys, values, strict=True))
        if self._broker.network.chance.random() < 0.3:
            self._send_all()

    def start_flush(self) -> None:
        """See `Producer.start_flush`."""

    def flush(self) -> int | None:
        """See `Producer.flush`."""
        self._send_all()
        return self._first

    def commit(self) -> None:
        """See `Producer.commit`."""
        self._send_all()
        number, self._number = self._number, self._number + 1
        what = f"COMMIT {self._id}"
        try:
            self._ask(what, lambda: self._broker.end(self._id, self._producer, number, commits=True), is_commit=True)
        except NoAnswer as error:
            if error.refused:
                raise SinkUnavailable(self._name, str(error)) from error
            raise CommitUnknown(self._name, str(error)) from error

    def abort(self) -> None:
        """See `Producer.abort`."""
        self._waiting = {}
        if self._sent:
            number, self._number = self._number, self._number + 1
            self._ask(f"ABORT {self._id}", lambda: self._broker.end(self._id, self._producer, number, commits=False))
            self._sent = False

    def close(self) -> None:
        """See `Producer.close`."""

    def _send_all(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for topic, records in waiting.items():
            if not self._sent:
                producer, number = self._producer, self._number
                late = partial(self._broker.time_out, self._id, producer, number)
                self._broker.network.later(self._timeout_s, late)
            self._sent = True
            offset = self._ask(f"PRODUCE {len(records)} to {topic} as {self._id}", self._appending(topic, records))
            self._first = offset if self._first is None else self._first

    def _appending(self, topic: str, records: list[Written]) -> Callable[[], int]:
        """Return the effect of a request that may be repeated: it has one sequence number."""
        producer, number, done = self._producer, self._number, list[int]()

        def append() -> int:
            if not done:
                done.append(self._broker.produce(self._id, producer, number, topic, records))
            return done[0]

        return append

    def _ask(self, what: str, effect: Callable[[], T], *, is_commit: bool = False) -> T:
        network = self._broker.network
        for left in reversed(range(1 if is_commit else 1 + network.chance.randrange(3))):
            try:
                return network.physics.wait(network.send(f"KAFKA {what}", effect))
            except FencedError as error:
                raise SinkFenced(self._name, "the broker has another producer of this id") from error
            except KeyError as error:
                raise SinkRejected(self._name, f"there is no topic {error}") from error
            except NoAnswer as error:
                if is_commit:
                    raise
                if not left:
                    raise SinkUnavailable(self._name, str(error)) from error
        raise AssertionError


def read_transaction(topics: Mapping[str, Sequence[Written]], rows: str) -> list[Transaction]:
    """Read the records of a transaction as those of its streams. `rows`: the topic for rows."""
    items = [change_of(json.loads(value)) for _, value in topics.get(rows, ()) if value is not None]
    newest = {(key or b"").decode(): json.loads(value) for key, value in topics.get(_PROGRESS, ()) if value is not None}
    found = []
    for app_id, record in newest.items():
        version = record.get("version")
        at = None if version is None else Position(version, record.get("task", END), record.get("row", END))
        found.append(Transaction(app_id, items, at))
    return found or [Transaction("", items, None)]
