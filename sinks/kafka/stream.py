"""What an instance knows of one stream: its producer, and what it last saw of it in the progress topic.

Another instance may take a stream over at any moment; brokers answer the one before as they answer somebody whose
transaction took too long. What tells the two apart is the progress topic: whoever takes over claims the stream there.

Everything here blocks and is called from worker threads, by one at a time.
"""

import logging
from dataclasses import replace
from typing import Final

import pyarrow as pa

from sinks.encoding.messages import Encoder
from sinks.kafka.link import Link
from sinks.kafka.port import Producer
from sinks.kafka.progress import Entry
from tailer.errors import SinkError, SinkFenced, SinkRejected, SinkUnavailable
from tailer.plan import Position

__all__ = ["Stream"]

_log = logging.getLogger(__name__)

LOOK_S: Final = 5.0
TAKE_OVER_S: Final = 30.0


class Stream:
    """The stream `app_id`.

    `encoding`: the encoder of the transaction before, which may hold rows back that were not delivered with it, and
    the schema that it is for. `partitions`: of the topic.
    """

    def __init__(self, link: Link, app_id: str) -> None:
        self.app_id: Final = app_id
        self.link: Final = link
        self.encoding: tuple[pa.Schema, Encoder] | None = None
        self.partitions = 0
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

    def take_over(self, anew: bool = False) -> None:
        """Be the one who writes the stream, going on behind what was seen last; nothing to do where we are.

        `anew`: go on in another topic, too, or in one that got more partitions. Where the stream has moved on since, be
        it by another instance or by a transaction that became visible only now, it is ours nevertheless: raises
        `SinkUnavailable` until somebody looks again, and goes on from there. Raises `SinkFenced` where another instance
        took it from us.
        """
        if self._producer is None:
            self._take_over(anew)
        if self._has_moved and not anew:
            raise SinkUnavailable(self.link.name, f"what {self.app_id} was about to deliver is there by now")

    def check_partitions(self) -> None:
        """Raise `SinkRejected` where the topic got partitions since, and keys have their place by their number.

        Behind the last message of a transaction: what was sent before may have been spread over all of them.
        """
        if self.link.options.key and self.seen is not None:
            self._check_place(self.seen, self.link.partitions())

    def move(self, position: Position) -> None:
        """Set the stream, which was taken over, to `position`. Raises `SinkError`."""
        entry = Entry(position, self.link.instance, self.link.options.topic, self.partitions)
        try:
            self._record(self.producer, entry)
        except SinkError as error:
            raise self.failed(error) from error
        self._seen, self._has_moved = entry, False

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

    def _take_over(self, anew: bool) -> None:
        partitions = self.link.check_topics()
        producer = self._connect()
        try:
            found = self._found()
            self._check_claim(found)
            if found is not None and not anew:
                self._check_place(found, partitions)
            asked, seen = self._asked, self._seen
            self._claim(producer, found, partitions)
        except BaseException:
            producer.close()
            raise
        self._producer, self.partitions = producer, partitions
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

    def _claim(self, producer: Producer, found: Entry | None, partitions: int) -> None:
        topic, instance = self.link.options.topic, self.link.instance
        entry = Entry(None, instance, topic, partitions)
        if found is not None:
            entry = replace(found, instance=instance, topic=topic, partitions=partitions)
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
        if self._claimed and (found is None or found.instance != self.link.instance):
            raise SinkFenced(self.link.name, f"the progress of {self.app_id} names it")

    def _check_place(self, found: Entry, partitions: int) -> None:
        topic = self.link.options.topic
        remedy = "go on with it nevertheless, behind what was delivered: `tailer progress reset CONFIG --to VERSION`"
        if found.topic != topic:
            reason = f"{self.app_id} was delivered to the topic {found.topic}, not {topic}"
            raise SinkRejected(self.link.name, reason, f"Set topic back, give the pipeline another name, or {remedy}.")
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
        reason = f"the broker gave our transaction up ({error.reason}); it may have taken too long"
        return SinkUnavailable(self.link.name, reason)
