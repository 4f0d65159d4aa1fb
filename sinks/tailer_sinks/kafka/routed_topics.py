"""The topics to which a stream sends rows by the value of a column.

Each has a record of its own in the progress topic, written with its first rows: so a topic that was deleted, or whose
keys would move because it got more partitions, is noticed as a single topic is. The records also keep the counts of a
version that is under way.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from tailer.errors import SinkUnavailable
from tailer.plan import Position
from tailer.sink import pipeline_of, shard_of
from tailer_sinks.kafka.clients.port import Producer, TopicState
from tailer_sinks.kafka.link import Link
from tailer_sinks.kafka.progress import Count, Entry, ProgressTopic, topic_key
from tailer_sinks.kafka.topics import check_id, check_partitions, recreated

__all__ = ["RoutedTopics"]

_GONE: Final = 0  # partitions in the record of a topic that was missing when progress was set


class RoutedTopics:
    """The topics of the stream `app_id`, of a sink whose topic names a column."""

    def __init__(self, link: Link, app_id: str) -> None:
        self._link: Final = link
        self._app_id: Final = app_id
        self._own: dict[str, Entry] = {}
        self._former: Mapping[str, Entry] = {}  # of a table that this one replaced
        self._others: frozenset[str] = frozenset()
        self._states: dict[str, TopicState] = {}
        self._touched: set[str] = set()
        self._recorded: dict[str, Entry] = {}  # not committed yet
        self._delivered: Position | None = None

    def load(self, read: ProgressTopic, former: Entry | None) -> None:
        """Take the records of the stream; `former`: progress of a table that this one replaced, if any."""
        predecessor = next((app_id for app_id, entry in read.entries.items() if entry is former), None)
        reaches = self._link.options.sends_to
        self._own = {topic: entry for topic, entry in read.topics.get(self._app_id, {}).items() if reaches(topic)}
        replaced = {} if predecessor is None else read.topics.get(predecessor, {})
        self._former = {topic: entry for topic, entry in replaced.items() if reaches(topic)}
        ours = (topics for app_id, topics in read.topics.items() if _undivided(app_id) == _undivided(self._app_id))
        self._others = frozenset(topic for topics in ours for topic in topics if reaches(topic))
        progress = read.entries.get(self._app_id) or read.entries.get(predecessor or "")
        self._delivered = None if progress is None else progress.position
        self._recorded = {}
        self._states.clear()
        self._touched.clear()

    @property
    def read(self) -> Sequence[str]:
        """The topics whose readers need events: those that are listed, and those with rows of any of the shards."""
        route = self._link.options.route
        listed = [] if route is None else route.listed
        return sorted({*listed, *self._others, *self._own, *self._touched})

    def check(self, read: ProgressTopic, former: Entry | None) -> None:
        """Take the records as `load` does. Raise `SinkRejected` if a topic was deleted, or its keys would move."""
        self.load(read, former)
        used = [topic for topic in {**self._former, **self._own} if self._has_rows(topic)]
        states = self._link.present(used)
        for topic in used:
            if topic not in states:
                raise recreated(self._link.name, topic, self._delivered_to(self._known(topic)))
            self._check_place(topic, states[topic])

    def begin(self) -> None:
        """Begin a transaction: no topic has rows of it."""
        self._recorded = {}
        self._touched.clear()

    def use(self, topic: str) -> None:
        """Prepare to send rows to a topic. It is created if it is missing and may be. Raises `SinkError`."""
        if topic not in self._states:
            state = self._link.check_topic(topic, self._has_rows(topic))
            self._check_place(topic, state)
            self._states[topic] = state
        self._touched.add(topic)

    def check_topics(self) -> None:
        """Check the topics of the transaction, after its last row. Raises as `check`, and `SinkUnavailable`."""
        states = self._link.look_at_topics(sorted(self._touched))
        for topic in self._touched:
            now, before = states[topic], self._states[topic]
            self._check_place(topic, now)
            if now.topic_id != before.topic_id and not self._has_rows(topic):
                raise SinkUnavailable(self._link.name, f"the topic {topic} was just created again")
            if self._link.options.key:
                check_partitions(self._link.name, topic, before.partitions, now.partitions)

    def counts(self, version: int) -> Mapping[str, Count]:
        """Return what topics have of a version that is under way."""
        return {
            topic: entry.count
            for topic, entry in self._own.items()
            if entry.position is not None and entry.position.version == version and not entry.position.closes_version
        }

    def record(self, producer: Producer, position: Position, counts: Mapping[str, Count]) -> None:
        """Send the records of a transaction that ends at `position`; `counts`: of its version."""
        self._recorded = {
            topic: self._entry(topic, position, self._states[topic], counts.get(topic))
            for topic in sorted(self._touched)
            if topic not in self._own
            or self._own[topic].partitions == _GONE
            or (not position.closes_version and topic in counts)
        }
        self._send(producer)

    def reset(self, producer: Producer, position: Position) -> None:
        """Send records that set all topics to `position`, as they are now; those that are gone are forgotten."""
        recorded = {**self._former, **self._own}
        states = self._link.present(list(recorded))
        self._recorded = {
            topic: self._entry(topic, position, states.get(topic, TopicState(_GONE, {}))) for topic in recorded
        }
        self._send(producer)
        self.commit(position)  # if the transaction fails, all is loaded again

    def commit(self, position: Position) -> None:
        """Note that the transaction was committed, at `position`."""
        self._own |= self._recorded
        self._delivered, self._recorded = position, {}

    def _send(self, producer: Producer) -> None:
        for topic, entry in self._recorded.items():
            self._link.record_progress(producer, topic_key(self._app_id, topic), entry)

    def _entry(self, topic: str, position: Position, state: TopicState, count: Count | None = None) -> Entry:
        instance = self._link.instance
        return Entry(position, instance, topic, state.partitions, None, count or Count(), state.topic_id)

    def _known(self, topic: str) -> Entry | None:
        return self._own.get(topic) or self._former.get(topic)

    def _has_rows(self, topic: str) -> bool:
        entry = self._known(topic)
        return entry is not None and entry.partitions != _GONE

    def _check_place(self, topic: str, now: TopicState) -> None:
        """Raise if rows that were delivered are not in the topic as it is now, or keys would move."""
        entry = self._known(topic)
        if entry is None or entry.partitions == _GONE:
            return
        check_id(self._link.name, topic, self._delivered_to(entry), entry.topic_id, now.topic_id)
        if self._link.options.key:
            check_partitions(self._link.name, topic, entry.partitions, now.partitions)

    def _delivered_to(self, entry: Entry | None) -> Position:
        """Return the last position of the stream; `entry`: of one of its topics."""
        return self._delivered or (None if entry is None else entry.position) or Position.end(-1)


def _undivided(app_id: str) -> str:
    """Return the pipeline of a stream, also of a shard."""
    shard = shard_of(app_id)
    return pipeline_of(app_id).removesuffix("" if shard is None else f"/{shard[0]}-of-{shard[1]}")
