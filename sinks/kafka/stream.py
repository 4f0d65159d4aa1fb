"""What an instance knows of one stream: its producer, and what it last saw of it in the progress topic.

Another instance may take a stream over at any moment; brokers answer the one before as they answer somebody whose
transaction took too long. What tells the two apart is the progress topic: whoever takes over claims the stream there.

Everything here blocks and is called from worker threads, by one at a time.
"""

import logging
from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from sinks.encoding.messages import Encoder
from sinks.kafka.clients.port import Producer
from sinks.kafka.first_start import lost
from sinks.kafka.link import Link
from sinks.kafka.progress import Count, Entry
from sinks.kafka.topics import TopicState, check_id
from tailer.errors import SinkError, SinkFenced, SinkRejected, SinkUnavailable
from tailer.plan import Position
from tailer.sink import LAYOUT, is_layout, shard_of

__all__ = ["Stream"]

_log = logging.getLogger(__name__)

LOOK_S: Final = 5.0
TAKE_OVER_S: Final = 30.0


class Stream:
    """The stream `app_id`.

    `encoding`: the encoder of the transaction before, which may hold rows back that were not delivered with it, and
    the schema that it is for. `late_from`: where the last transaction began that was open for too long, if one was.
    """

    def __init__(self, link: Link, app_id: str) -> None:
        self.app_id: Final = app_id
        self.link: Final = link
        self.encoding: tuple[pa.Schema, Encoder] | None = None
        self.late_from: tuple[Position | None] | None = None
        self._topic = TopicState(0, {})
        self._producer: Producer | None = None
        self._seen: Entry | None = None
        self._asked = False
        self._claimed = False
        self._has_moved = False

    @property
    def seen(self) -> Entry | None:
        """What the progress topic said last."""
        return self._seen

    @property
    def producer(self) -> Producer:
        """The producer. `take_over` must have been called."""
        assert self._producer is not None, "taken over"
        return self._producer

    def look(self) -> Position | None:
        """Where the stream is, asked anew; takes nothing over.

        Behind a transaction that stays open, of whichever stream, it may be further than it says; `take_over` finds
        out. Raises `SinkFenced` where another instance has claimed a stream of ours, `SinkUnavailable` where it cannot
        be told whether there is any progress.
        """
        # Who asks goes on from the answer: what was held back comes again.
        self.encoding = None
        told = self.link.entries(LOOK_S)
        if told is None and self._seen is not None:
            raise SinkUnavailable(self.link.name, f"{self.link.options.progress_topic} is gone, or is not known yet")
        entries, complete = told or ({}, True)
        found = entries.get(self.app_id)
        if complete:
            self._check_claim(found)
        else:
            # What is hidden may be our own: taking over will tell.
            self.discard()
            if found is None or found.position is None:
                raise self._hidden()
        self._seen, self._asked, self._has_moved = found, True, False
        return None if found is None else found.position

    def take_over(self) -> None:
        """Be the one who writes the stream, going on behind what was seen last; nothing to do where we are.

        Where the stream has moved on since, be it by another instance or by a transaction that became visible only now,
        it is ours nevertheless: raises `SinkUnavailable` until somebody looks again, and goes on from there. Raises
        `SinkFenced` where another instance took it from us, `SinkRejected` where its progress or its topic is gone.
        """
        if self._producer is None:
            self._take_over()
        if self._has_moved:
            raise SinkUnavailable(self.link.name, f"what {self.app_id} was about to deliver is there by now")

    def check_topics(self) -> None:
        """Raise `SinkRejected` where the topic is another one now, or got partitions and keys would move.

        Behind the last row of a transaction: what was sent before may have been spread over all partitions. Raises
        `SinkUnavailable` where a topic is gone.
        """
        assert self._seen is not None, "taken over"
        now = self.link.look_at_topics()
        if self._seen.position is None and now.topic_id != self._topic.topic_id:
            raise SinkUnavailable(self.link.name, f"the topic {self.link.options.topic} was just created again")
        self._check_place(self._seen, now)

    def reset(self, position: Position) -> None:
        """Take the stream over and set it to `position`, in the topic as it is now. Raises `SinkError`."""
        self.discard()
        self._take_over(position)
        self._has_moved = False

    def entry(self, position: Position | None, key: str | None = None, count: Count | None = None) -> Entry:
        """Progress at `position`, of a stream that was taken over."""
        topic, instance = self.link.options.topic, self.link.instance
        return Entry(position, instance, topic, self._topic.partitions, key, count or Count(), self._topic.topic_id)

    def committed(self, entry: Entry) -> None:
        """Note what a commit of ours has put into the progress topic."""
        self._seen = entry

    def failed(self, error: SinkError) -> SinkError:
        """Let go of the producer; what to raise in place of `error`, which it met."""
        if isinstance(error, SinkRejected):
            # It may be sound, and readers wait for what it has open.
            self.abort()
        self.discard()
        try:
            found = self.link.entries(LOOK_S)
            if found is not None and found[1]:
                self._check_claim(found[0].get(self.app_id))
        except SinkFenced as fenced:
            return fenced
        except SinkError as further:
            _log.warning("%s: after an error, what took place cannot be asked for: %s", self.link.name, further)
        return self._gave_up(error) if isinstance(error, SinkFenced) else error

    def abort(self) -> None:
        """Give up what is open, so that readers need not wait for it to time out."""
        self.encoding = None
        if self._producer is not None:
            try:
                self._producer.abort()
            except SinkError as error:
                _log.debug("%s: %s", self.link.name, error)
                self.discard()

    def discard(self) -> None:
        """Let go of the producer."""
        self.encoding = None
        if self._producer is not None:
            self._producer.close()
            self._producer = None

    def _take_over(self, anew: Position | None = None) -> None:
        """Claim the stream; `anew`: put it there, whatever there was, in the topic as it is now."""
        self._topic = self.link.check_topics(self._delivered() if anew is None else None)
        producer = self._connect()
        try:
            found = self._found()
            self._check_claim(found)
            if found is not None and anew is None:
                self._check_place(found, self._topic)
            asked, seen = self._asked, self._seen
            self._claim(producer, found if anew is None else self.entry(anew))
        except BaseException:
            producer.close()
            raise
        self._producer = producer
        _log.info("%s: delivers %s from here on", self.link.name, self.app_id)
        self._has_moved = asked and (seen and seen.position) != (found and found.position)

    def _connect(self) -> Producer:
        """A producer that has fenced whoever had the stream."""
        try:
            return self.link.producer(self.app_id)
        except SinkFenced as error:
            raise self._gave_up(error) from error

    def _found(self) -> Entry | None:
        """What the progress topic says of the stream, of which nobody else can change anything any more."""
        found = self.link.entries(TAKE_OVER_S)
        if found is None:
            # It is there, for topics were checked: to take it for empty would be to begin anew.
            raise SinkUnavailable(self.link.name, f"not all brokers know {self.link.options.progress_topic} yet")
        entries, complete = found
        if not complete:
            raise self._hidden()
        return entries.get(self.app_id)

    def _delivered(self) -> Position | None:
        """Up to where rows are in the topic, as far as the progress topic says; of a layout, those of its shards."""
        found = [self._seen]
        if is_layout(self.app_id) or not self._asked:
            entries = (self.link.entries(LOOK_S) or ({}, True))[0]
            found = _shards_of(self.app_id, entries) if is_layout(self.app_id) else [entries.get(self.app_id)]
        there = [each for each in found if each is not None and each.topic == self.link.options.topic]
        return min((each.position for each in there if each.position is not None), default=None)

    def _claim(self, producer: Producer, found: Entry | None) -> None:
        entry = self.entry(None)
        if found is not None:
            entry = self.entry(found.position, found.key, found.count)
        try:
            self._record(producer, entry)
        except SinkFenced as error:
            # Another instance does the same just now: the progress topic will tell who was last.
            raise self._gave_up(error) from error
        self._seen, self._asked, self._claimed = entry, True, True

    def _record(self, producer: Producer, entry: Entry) -> None:
        """Commit progress without rows."""
        producer.begin()
        self.link.record_progress(producer, self.app_id, entry)
        producer.commit()

    def _check_claim(self, found: Entry | None) -> None:
        """Raise `SinkFenced` where another instance has claimed a stream of ours.

        Raises `SinkRejected` where progress is gone: to take that for a stream that never began would be to begin anew.
        """
        had = self._seen
        if had is not None and (found is None or (found.position is None and not self._claimed)):
            at = had.position
            if at is not None or self._claimed:
                raise lost(self.link, self.app_id, at)
        if self._claimed and found is not None and found.instance != self.link.instance:
            raise SinkFenced(self.link.name, f"the progress of {self.app_id} names it")

    def _check_place(self, found: Entry, now: TopicState) -> None:
        """Raise where what was delivered up to `found` is not in the topic as it is now, or keys would move."""
        topic, partitions = self.link.options.topic, now.partitions
        remedy = "go on with it nevertheless, behind what was delivered: `tailer progress reset CONFIG --to VERSION`"
        if found.topic != topic:
            reason = f"{self.app_id} was delivered to the topic {found.topic}, not {topic}"
            raise SinkRejected(self.link.name, reason, f"Set topic back, give the pipeline another name, or {remedy}.")
        if found.position is not None and not is_layout(self.app_id):
            check_id(self.link.name, topic, found.position, found.topic_id, now.topic_id)
        if found.partitions != partitions and self.link.options.key:
            reason = (
                f"the topic {topic} has {partitions} partitions and had {found.partitions}: keys would move, and the "
                "order of a key's messages would be lost"
            )
            raise SinkRejected(self.link.name, reason, f"Deliver to a new topic, by another pipeline; or {remedy}.")

    def _hidden(self) -> SinkUnavailable:
        reason = f"a transaction is open in {self.link.options.progress_topic}, and hides what is behind it"
        return SinkUnavailable(self.link.name, reason)

    def _gave_up(self, error: SinkError) -> SinkUnavailable:
        return SinkUnavailable(self.link.name, error.reason)


def _shards_of(layout: str, entries: Mapping[str, Entry]) -> list[Entry | None]:
    """The progress of the shards that are in force by the layout; of the pipeline where it is not divided."""
    known = entries.get(layout)
    shards = 0 if known is None or known.position is None else known.position.version
    streams = {
        app_id: entry for app_id, entry in entries.items() if app_id.startswith(layout.removesuffix(LAYOUT) + "/")
    }
    return [
        entry
        for app_id, entry in streams.items()
        if not is_layout(app_id) and (shard_of(app_id) or (0, 0))[1] == shards
    ]
