"""The state of one stream in an instance: its producer, and the progress that it saw last.

Another instance may take a stream over at any moment. Brokers then answer the previous one as if its transaction had
taken too long. The progress topic distinguishes the two: a takeover claims the stream there.

Everything here blocks and is called from worker threads, by one at a time.
"""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

from tailer.errors import SinkError, SinkFenced, SinkRejected, SinkUnavailable
from tailer.plan import Position
from tailer.sink import LAYOUT, is_layout, process_of, shard_of, shards_in
from tailer_sinks.kafka.clients.port import Producer, TopicState
from tailer_sinks.kafka.encoders import TopicEncoder
from tailer_sinks.kafka.first_start import lost
from tailer_sinks.kafka.link import Link
from tailer_sinks.kafka.progress import Count, Entry, ProgressTopic
from tailer_sinks.kafka.routed_topics import RoutedTopics
from tailer_sinks.kafka.topics import check_id, check_partitions

__all__ = ["Stream", "check_place"]

REREAD_S: Final = 60.0  # where brokers do not say who owns a transactional id

_log = logging.getLogger(__name__)


class Stream:
    """The stream `app_id`.

    `routed`: the topics for rows if a column names them. `encoding`: the encoder of the previous transaction, which may
    hold back rows that were not delivered with it, and its schema. `late_from`: the start of the last transaction that
    was too long for its time-out, if any. `seen`: the progress that the progress topic had when it was last read, or
    that was committed since. `committed_s`: when our producer last committed, which only the writer can.
    """

    def __init__(self, link: Link, app_id: str) -> None:
        self.app_id: Final = app_id
        self.link: Final = link
        self.routed: Final = None if link.options.route is None else RoutedTopics(link, app_id)
        self.encoding: tuple[pa.Schema, TopicEncoder] | None = None
        self.late_from: tuple[Position | None] | None = None
        self.seen: Entry | None = None
        self._topic = TopicState(0, {})
        self._producer: Producer | None = None
        self._asked = self._has_moved = False
        self._owners: frozenset[str | None] | None = None  # instances that progress may name; None: any
        self._former: str | None = None  # the instance that progress named before our claim
        self._writer: tuple[int, int] | None = None
        self._replaced: set[str] = set()  # streams in other tables that were later when progress was read
        self._fenced: Mapping[str, tuple[int, int] | None] = {}  # those at the takeover, and their writers before it
        self._held_s = self.committed_s = -math.inf

    @property
    def producer(self) -> Producer:
        """The producer. `take_over` must have been called."""
        assert self._producer is not None, "taken over"
        return self._producer

    @property
    def is_taken_over(self) -> bool:
        """Return whether `take_over` has nothing to do."""
        return self._producer is not None and not self._has_moved

    def look(self) -> Position | None:
        """Read the position of the stream without taking it over.

        If a transaction of the stream is open, the stream may be further than this; `take_over` finds out. Raises
        `SinkFenced` if another instance has claimed a stream of ours, `SinkUnavailable` if progress cannot be read.
        """
        # The pipeline continues after the answer: rows that were held back come again.
        self.encoding = None
        read = self.link.progress_of(self.app_id)
        if read is None and self.seen is not None:
            raise _unknown_topic(self.link)
        read = read or ProgressTopic()  # the topic is to be created
        entry = read.entries.get(self.app_id)
        self._check_claim(read)
        if self.app_id in read.open:
            # It may be our own: taking over ends it.
            self.discard()
            if is_layout(self.app_id) and not _is_in_transaction(self.link, self.app_id):
                # Shards begin by it, and nothing compares it when they are taken over.
                raise _undecided(self.link, self.app_id)
        elif self._producer is not None and _position(entry) != _position(self.seen):
            raise _former(self.link, self.app_id)
        self.seen, self._asked, self._has_moved, self._replaced = entry, True, False, read.replaced_by(self.app_id)
        self.link.seen[self.app_id] = _position(entry)
        return _position(entry)

    def take_over(self) -> None:
        """Become the writer of the stream, after the progress seen last; does nothing for the current writer.

        If the stream has moved on since, by another instance or by a transaction that became visible only now, it is
        taken over all the same, but `SinkUnavailable` is raised until the progress is read again. Raises `SinkFenced`
        if another instance took it from us, `SinkRejected` if its progress or its topic is gone.
        """
        if self._producer is None:
            self._take_over()
        if self._has_moved:
            raise _further(self.link, self.app_id)

    def hold(self) -> None:
        """Become the writer, as `take_over` does, or check that nobody else has become it since.

        Raises `SinkFenced` if another instance has taken the stream over. It names itself in the progress topic, which
        is read only if the transactional id has another producer than the one that wrote our last record.
        """
        self.take_over()
        owner = self.link.owner(self.app_id)
        is_recent = owner is None and time.monotonic() < self._held_s + REREAD_S
        if is_recent or (owner is not None and owner.writer == self._writer):
            return
        read = _progress(self.link, self.app_id)
        self._check_claim(read)
        if self.app_id not in read.open:
            self._writer, self._held_s = read.writers.get(self.app_id), time.monotonic()

    def check_topics(self) -> None:
        """Raise `SinkRejected` if the topic was replaced, or gained partitions so that keys would move.

        Call it after the last row of a transaction: earlier messages may have been spread over all partitions. Raises
        `SinkUnavailable` if a topic is gone.
        """
        assert self.seen is not None, "taken over"
        now = self.link.look_at_topics([self.link.options.topic])[self.link.options.topic]
        if self.seen.position is None and now.topic_id != self._topic.topic_id:
            raise SinkUnavailable(self.link.name, f"the topic {self.link.options.topic} was just created again")
        check_place(self.link, self.app_id, self.seen, now)

    def reset(self, position: Position) -> None:
        """Take the stream over and set it to `position`, in the topic as it is now. Raises `SinkError`."""
        self.discard()
        self._take_over(position)
        self._has_moved = False

    def entry(self, position: Position | None, key: str | None = None, count: Count | None = None) -> Entry:
        """Make progress at `position`, of a stream that was taken over."""
        topic, instance = self.link.options.topic, self.link.instance
        return Entry(position, instance, topic, self._topic.partitions, key, count or Count(), self._topic.topic_id)

    def failed(self, error: SinkError) -> SinkError:
        """Discard the producer after `error`. Return the error to raise in its place."""
        if isinstance(error, SinkRejected):
            # It may still work, and readers wait for its open transaction.
            self.abort()
        self.discard()
        try:
            if (read := self.link.progress_of(self.app_id)) is not None:
                self._check_claim(read)
        except SinkFenced as fenced:
            return fenced
        except SinkError as further:
            _log.warning("%s: after an error, the progress topic cannot be read: %s", self.link.name, further)
        return _gave_up(self.link, error) if isinstance(error, SinkFenced) else error

    def abort(self) -> None:
        """Abort the open transaction, so that readers need not wait for its timeout."""
        self.encoding = None
        if self._producer is not None:
            try:
                self._producer.abort()
            except SinkError as error:
                _log.debug("%s: %s", self.link.name, error)
                self.discard()

    def discard(self) -> None:
        """Discard the producer."""
        self.encoding, self.committed_s = None, -math.inf
        if self._producer is not None:
            self._producer.close()
            self._producer = None

    @property
    def _claimed(self) -> bool:
        return self._owners == frozenset([self.link.instance])

    def _take_over(self, reset_to: Position | None = None) -> None:
        """Claim the stream; `reset_to`: set it to that progress, whatever it was, in the topic as it is now."""
        if self.routed is not None and reset_to is None:
            read = self.link.progress() or ProgressTopic()
            self.routed.check(read, read.predecessor(self.app_id))
        self._topic = self.link.check_topics(self._delivered() if reset_to is None else None)
        asked, seen = self._asked, self.seen
        self._fenced = self.link.fence_replaced(self.app_id, self._replaced if asked else None)
        producer = self.link.producer(self.app_id)
        try:
            former = self._claim(producer, self._claimable(reset_to), reset_to)
        except BaseException:
            producer.close()
            raise
        self._producer = producer
        instance = self.link.instance
        rival = "" if former is None or former.instance == instance else f", in place of instance {former.instance}"
        _log.info("%s: delivers %s from here on as instance %s%s", self.link.name, self.app_id, instance, rival)
        self._has_moved = asked and _position(seen) != _position(former)

    def _claimable(self, reset_to: Position | None, before: int | None = None) -> Entry | None:
        """Return the progress on top of which the stream can be claimed. Raises `SinkError`."""
        read = _decided(self.link, self.app_id, before, self._fenced)
        entry = read.entries.get(self.app_id)
        self._check_claim(read)
        if reset_to is None and (further := read.further_than(self.link.seen, self.app_id)) is not None:
            raise _further(self.link, further)
        former = entry or read.predecessor(self.app_id)  # rows before REPLACE TABLE are in the same topic
        if self.routed is not None:
            self.routed.load(read, read.predecessor(self.app_id))
        if former is not None and reset_to is None:
            check_place(self.link, self.app_id, former, self._topic)
        self._former = None if entry is None else entry.instance
        return entry

    def _delivered(self) -> Position | None:
        """Return the last position of rows in the topic by the progress topic; of a layout, those of its shards."""
        if self.seen is not None and not is_layout(self.app_id):
            return _first_position(self.link, [self.seen])
        read = self.link.progress() or ProgressTopic()
        own = read.entries.get(self.app_id) or read.predecessor(self.app_id)
        return _first_position(self.link, _shards_of(self.app_id, read.entries) if is_layout(self.app_id) else [own])

    def _claim(self, producer: Producer, former: Entry | None, reset_to: Position | None) -> Entry | None:
        """Claim the stream on top of the progress `former`. Return the progress that there really was.

        A broker that led before may have given less. The leader stores our record after all of our predecessor's: what
        is before it decides. If that is more, a second record in the same transaction takes its place.
        """
        try:
            producer.begin()
            entry = _record_claim(self, producer, former, reset_to)
            offset = producer.flush()
            if offset is None:
                raise SinkUnavailable(self.link.name, f"no broker said where its claim of {self.app_id} is stored")
            stated, former = former, self._claimable(reset_to, offset)
            if former != stated:
                entry = _record_claim(self, producer, former, reset_to)
            if self.routed is not None and reset_to is not None:
                self.routed.reset(producer, reset_to)
            producer.commit()
        except SinkFenced as error:
            self._note_rival()
            raise _gave_up(self.link, error) from error
        self.seen, self._asked, self._owners = entry, True, frozenset([self.link.instance])
        self.link.seen[self.app_id] = entry.position
        return former

    def _note_rival(self) -> None:
        """Note that another instance took the stream over before we could claim it, so that the later one goes on.

        Raises `SinkFenced` if it has claimed the stream. From now on, so does a new name in the progress topic. There
        will be none after the late request of a killed instance.
        """
        read = _progress(self.link, self.app_id)
        owner, entry = self.link.owner(self.app_id), read.entries.get(self.app_id)
        if not self._claimed:
            named = None if entry is None else entry.instance
            # An instance that progress named already at our last look came before us: our next claim ends it.
            is_later = self.seen is None or named != self.seen.instance
            is_theirs = is_later and owner is not None and owner.writer == read.writers.get(self.app_id)
            self._owners = frozenset() if is_theirs else frozenset([self.link.instance, named])
        self._check_claim(read)

    def _check_claim(self, read: ProgressTopic) -> None:
        """Raise `SinkFenced` if another instance has claimed a stream of ours, or one that we were about to claim.

        Raises `SinkRejected` if progress is gone: taking that for a new stream would deliver everything again. What was
        committed last may not be visible yet if a transaction is open.
        """
        entry, had = read.entries.get(self.app_id), self.seen
        if self.app_id in read.open:
            if self._claimed and entry is not None and entry.instance not in (self.link.instance, self._former):
                raise _taken(self.link, self.app_id, entry)
            return
        is_gone = entry is None or (entry.position is None and not self._claimed)
        if had is not None and is_gone and (had.position is not None or self._claimed):
            raise lost(self.link, self.app_id, had.position)
        if self._owners is not None and entry is not None and entry.instance not in self._owners:
            raise _taken(self.link, self.app_id, entry)


def _position(entry: Entry | None) -> Position | None:
    return None if entry is None else entry.position


def _progress(link: Link, app_id: str) -> ProgressTopic:
    """Read the progress from the topic, which exists. Raises `SinkUnavailable` if a broker does not know it."""
    read = link.progress_of(app_id)
    if read is None:
        raise _unknown_topic(link)
    return read


def _decided(
    link: Link, app_id: str, before: int | None, fenced: Mapping[str, tuple[int, int] | None]
) -> ProgressTopic:
    """Read the progress of all streams; that of `app_id`, whose id is taken over, cannot change any more.

    `before`: as in `Link.progress`. Raises `SinkUnavailable` if a stream that replaces it was claimed since `fenced`.
    """
    read = link.progress(before)
    if read is None:
        # It exists, for topics were checked. Taking it for empty would deliver everything again.
        raise SinkUnavailable(link.name, f"not all brokers know {link.options.progress_topic} yet")
    if app_id in read.open:
        raise _undecided(link, app_id)
    if read.claimed_since(fenced, app_id):
        raise link.replaced(app_id)
    return read


def _unknown_topic(link: Link) -> SinkUnavailable:
    return SinkUnavailable(link.name, f"{link.options.progress_topic} is gone, or is not known yet")


def _is_in_transaction(link: Link, app_id: str) -> bool:
    owner = link.owner(app_id)
    return owner is not None and owner.in_transaction


def _undecided(link: Link, app_id: str) -> SinkUnavailable:
    return SinkUnavailable(link.name, f"brokers have not ended the last transaction of {app_id} yet")


def _former(link: Link, app_id: str) -> SinkUnavailable:
    # While our producer works, nobody else writes. The stream, taken over already, would deliver again what came after.
    reason = f"a broker gave former progress of {app_id}: it may not know yet that another one leads"
    return SinkUnavailable(link.name, reason)


def _further(link: Link, app_id: str) -> SinkUnavailable:
    return SinkUnavailable(link.name, f"{app_id} has delivered more than this instance had seen")


def _taken(link: Link, app_id: str, entry: Entry) -> SinkFenced:
    reason = f"the progress of {app_id} names instance {entry.instance}"
    return SinkFenced(link.name, reason, process_of(entry.instance))


def _gave_up(link: Link, error: SinkError) -> SinkUnavailable:
    return SinkUnavailable(link.name, error.reason)


def check_place(link: Link, app_id: str, delivered: Entry, now: TopicState) -> None:
    """Raise if the rows delivered up to `delivered` are not in the topic as it is now, or keys would move."""
    topic = link.options.topic
    if delivered.topic != topic:
        reason = f"{app_id} was delivered to the topic {delivered.topic}, not {topic}"
        remedy = (
            "continue with it nevertheless, after the delivered rows: `tailer progress reset PIPELINE --to VERSION`"
        )
        raise SinkRejected(link.name, reason, f"Set topic back, give the pipeline another name, or {remedy}.")
    if delivered.topic_id != now.topic_id and delivered.position is not None and not is_layout(app_id):
        check_id(link.name, topic, delivered.position, delivered.topic_id, now.topic_id)
    if link.options.key:
        check_partitions(link.name, topic, delivered.partitions, now.partitions)


def _record_claim(stream: Stream, producer: Producer, former: Entry | None, reset_to: Position | None) -> Entry:
    on = former if former is not None and reset_to is None else stream.entry(reset_to)
    entry = stream.entry(on.position, on.key, on.count)
    stream.link.record_progress(producer, stream.app_id, entry)
    return entry


def _first_position(link: Link, entries: Sequence[Entry | None]) -> Position | None:
    """Return the first position of those in the topic of `link`."""
    there = [entry for entry in entries if entry is not None and entry.topic == link.options.topic]
    return min((entry.position for entry in there if entry.position is not None), default=None)


def _shards_of(layout: str, entries: Mapping[str, Entry]) -> list[Entry | None]:
    """Return the progress of the shards of the current layout; of the pipeline if it is undivided."""
    entry_of_layout = entries.get(layout)
    shards = (
        0
        if entry_of_layout is None or entry_of_layout.position is None
        else shards_in(entry_of_layout.position.version)
    )
    streams = {
        app_id: entry for app_id, entry in entries.items() if app_id.startswith(layout.removesuffix(LAYOUT) + "/")
    }
    return [
        entry
        for app_id, entry in streams.items()
        if not is_layout(app_id) and (shard_of(app_id) or (0, 0))[1] == shards
    ]
