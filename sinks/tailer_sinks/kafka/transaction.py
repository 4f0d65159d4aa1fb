"""Rows on their way into one Kafka transaction.

A version may be spread over several transactions, so the counts for its END record are part of progress: the instance
that continues in the middle of a version continues to count.

An encoder may hold back the last rows of a batch until the next one. If a transaction ends there, progress ends before
them: they are in the next transaction, and are read again after a crash.
"""

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import accumulate
from operator import eq
from typing import Final, TypeVarTuple

import pyarrow as pa
from anyio import to_thread

from tailer.errors import SinkError, SinkRejected, SinkUnavailable
from tailer.events import METADATA_FIELDS, ROW_COMMIT_VERSION, ROW_ID, ChangeBatch, ControlEvent, Gap, SchemaChange
from tailer.plan import END, Position
from tailer.sink import Progress, SinkTransaction
from tailer_sinks.encoding.flat import batch_slices, encoded_ahead
from tailer_sinks.encoding.messages import Messages, Sent
from tailer_sinks.kafka.clients.port import Producer
from tailer_sinks.kafka.encoders import TopicEncoder, WaitingBatches, checked_key_form, encoder_for, joined
from tailer_sinks.kafka.options import Options
from tailer_sinks.kafka.progress import Count, Counts
from tailer_sinks.kafka.records import end_records, event_record, gap_remedy, oversized, without_large
from tailer_sinks.kafka.stream import Stream

__all__ = ["KafkaTransaction"]

_log = logging.getLogger(__name__)
_PAUSE: Final = 1 / 6  # of the transaction's time-out: what takes longer between two messages is no work
_ADDED: Final = frozenset([field.name for field in METADATA_FIELDS] + [ROW_ID, ROW_COMMIT_VERSION])

Ts = TypeVarTuple("Ts")


class KafkaTransaction(SinkTransaction):
    """A transaction of `stream`, which was taken over, first with rows of `schema`."""

    writes_together = True

    def __init__(self, stream: Stream, schema: pa.Schema) -> None:
        self._stream = stream
        self._options = stream.link.options
        self._name: Final = stream.link.name
        self._schema = schema
        # Made with the first row: there may be no more rows of `schema`.
        self._encoder: TopicEncoder | None = None
        if stream.encoding is not None and stream.encoding[0].equals(schema):
            self._encoder = stream.encoding[1]
        self._begun, self._begun_s, self._sent_s, self._paused_s = False, 0.0, 0.0, 0.0
        self._waiting = WaitingBatches()
        self._last: ChangeBatch | None = None
        seen = stream.seen
        self._key = None if seen is None else seen.key
        self._after = position = None if seen is None else seen.position
        self._counts = Counts()
        if seen is not None and position is not None and not position.closes_version:  # a version is under way
            one = {self._options.topic: seen.count}
            for topic, count in (one if stream.routed is None else stream.routed.counts(position.version)).items():
                self._counts.add(position.version, topic, count)
        # The first version that is to have an END record; None: the first one that has rows.
        self._open_version = None if position is None else position.version + position.closes_version
        if stream.routed is not None:
            stream.routed.begin()
        self.committed = False

    async def write(self, batch: ChangeBatch) -> None:
        await self.write_all([batch])

    async def write_all(self, batches: Sequence[ChangeBatch]) -> None:
        # The first rows open the transaction at once: from then on brokers limit its time. Rows of another schema than
        # was announced are refused at once.
        announced = all(batch.rows.schema.equals(self._schema) for batch in batches)
        if self._waiting.add(batches) or not (self._begun and announced):
            await to_thread.run_sync(self._guarded, self._write_waiting)

    async def announce(self, event: ControlEvent) -> None:
        await to_thread.run_sync(self._guarded, self._announce, event)

    async def commit(self, progress: Progress) -> None:
        await to_thread.run_sync(self._guarded, self._commit, progress)

    def _guarded(self, step: Callable[[*Ts], None], *arguments: *Ts) -> None:
        try:
            step(*arguments)
        except SinkError as error:
            raise self._translate(self._stream.failed(error)) from error

    def _translate(self, error: SinkError) -> SinkError:
        """Return the error to raise: `error`, or the one that caused it.

        With `boundary = "version"` the same version takes as long the next time, so the second failure at one position
        is final. That is not so if brokers, the store or this process stood still for a while.
        """
        open_s, timeout_s = time.monotonic() - self._begun_s, self._options.transaction_timeout_s
        if not (self._begun and open_s > timeout_s and isinstance(error, SinkUnavailable)):
            return error
        remedy = 'raise transaction_timeout_s, or set boundary = "chunk"'
        open_too_long = f"the transaction was open for {open_s:.0f} s, and brokers give it up after {timeout_s:g}"
        if self._options.boundary == "version" and self._sent_s - self._begun_s - self._paused_s > timeout_s:
            if self._stream.late_from == (self._after,):
                reason = f"{open_too_long}, for the second time from the same place on: {error.reason}"
                return SinkRejected(self._name, reason, f"The version is too long for it: {remedy}.")
            self._stream.late_from = (self._after,)
        return SinkUnavailable(self._name, f"{open_too_long} (where versions take that long, {remedy}): {error.reason}")

    def _write_waiting(self) -> None:
        batches = self._waiting.take()
        if not batches:
            return
        encoder = self._encoder or self._encoder_for(self._schema)
        for batch, parts in joined(encoder.sample, batches):
            if len(parts) == 1 or not self._write_joined(encoder, batch, parts):
                for part in parts:
                    self._write(encoder, part)

    def _write(self, encoder: TopicEncoder, batch: ChangeBatch) -> None:
        self._flush_other_task(encoder, batch)
        with closing(
            encoded_ahead(lambda piece: (piece, encoder.encode(piece, _now_ms())), batch_slices(batch))
        ) as encoded:
            for piece, sent in encoded:
                self._send_rows(piece, sent)
                self._last = piece

    def _write_joined(self, encoder: TopicEncoder, batch: ChangeBatch, parts: Sequence[ChangeBatch]) -> bool:
        """Write batches that were joined, which have a message for each row.

        Return False if they must be written one by one: a message is too large, a row cannot be encoded, or rows before
        them are held back.
        """
        self._flush_other_task(encoder, batch)
        if encoder.pending is not None:
            return False
        try:
            sent = encoder.encode(batch, _now_ms())
        except SinkRejected:
            return False
        limit = self._options.max_record_bytes
        if any(oversized(messages, limit) is not None for _, messages, _ in sent):
            return False
        for topic, messages, rows in sent:
            self._send_to(topic, messages)
            for version, number in _rows_of_versions(parts, rows):
                self._counts.add(version, topic, Count(number))
        self._last = parts[-1]
        return True

    def _flush_other_task(self, encoder: TopicEncoder, batch: ChangeBatch) -> None:
        """Send the rows that are held back unless `batch` goes on with their task."""
        last = self._last or encoder.pending
        if last is not None and (last.version, last.task) != (batch.version, batch.task):
            self._flush()

    def _announce(self, event: ControlEvent) -> None:
        self._write_waiting()
        self._flush()
        if isinstance(event, Gap):
            self._counts.clear()
            self._open_version = event.version if event.snapshot else event.version + 1
        elif _ADDED.issuperset(event.after.names):
            self._schema, self._encoder = event.after, None  # the table has no columns, so no rows that need a key
        else:
            self._encoder_for(_columns_after(event, self._name, self._options))
        options, keyed, app_id = self._options, bool(self._options.key), self._stream.app_id
        if options.schema_topic is not None:
            self._send(options.schema_topic, event_record(event, app_id, False, options.int64), partition=0)
        elif not (remedy := gap_remedy(options)):
            topics = [options.topic] if self._stream.routed is None else self._stream.routed.read
            states = self._stream.link.look_at_topics(topics)
            for topic in topics:
                for partition in range(states[topic].partitions):
                    self._send_to(topic, event_record(event, app_id, keyed, options.int64), partition)
        elif isinstance(event, Gap):
            reason = f"changes up to version {event.version} are lost, and there is no topic to report that to readers"
            raise SinkRejected(self._name, reason, remedy)

    def _commit(self, progress: Progress) -> None:
        position = progress.position
        whole = position.closes_version or position.in_snapshot
        if not whole and self._options.boundary == "version":
            reason = f"{position} is inside of a version, and boundary is version"
            raise SinkRejected(self._name, reason)
        self._write_waiting()
        position = self._reached(position)
        self._end_versions(position)
        entry = self._stream.entry(position, self._key, self._counts.total(position.version))
        self._stream.link.record_progress(self._begin(), self._stream.app_id, entry)
        if (routed := self._stream.routed) is not None:
            routed.record(self._stream.producer, position, self._counts.of(position.version))
        self._stream.producer.start_flush()
        (routed or self._stream).check_topics()  # while messages are under way, and before waiting for them
        self._stream.producer.commit()
        self._stream.seen, self._stream.committed_s = entry, time.monotonic()
        self._stream.link.seen[self._stream.app_id] = position
        if routed is not None:
            routed.commit(position)
        self.committed = True

    def _reached(self, position: Position) -> Position:
        """Return the position up to which rows have messages."""
        held = None if self._encoder is None else self._encoder.pending
        if held is None:
            return position
        inside = position.row < END
        if inside and (held.version, held.task) == (position.version, position.task):
            return Position(position.version, position.task, held.row_index[0].as_py() - 1)
        self._flush()
        return position

    def _encoder_for(self, schema: pa.Schema) -> TopicEncoder:
        """Return the encoder for rows of `schema`, from here on."""
        if all(name in schema.names for name in self._options.key):  # else the encoder says so
            self._key = checked_key_form(self._stream.link, schema, self._key)
        routed = self._stream.routed
        encoder = encoder_for(self._stream.link, schema, () if routed is None else routed.read)
        self._schema, self._encoder, self._stream.encoding = schema, encoder, (schema, encoder)
        return encoder

    def _flush(self) -> None:
        """Send the rows that the encoder holds back: no later row belongs to them."""
        self._last = None
        if self._encoder is None or (held := self._encoder.pending) is None:
            return
        self._send_rows(held, self._encoder.flush(_now_ms()))

    def _send_rows(self, batch: ChangeBatch, sent: Sent) -> None:
        """Send messages about rows of the batch's task."""
        for topic, messages, _ in sent:
            small, letters = without_large(batch, messages, topic, self._options.max_record_bytes)
            if letters is not None:
                self._send_letters(letters, batch)
            self._send_to(topic, small)
            events = len(small) - small.values.null_count
            self._counts.add(batch.version, topic, Count(events, 0 if letters is None else len(letters)))

    def _send_letters(self, letters: Messages, batch: ChangeBatch) -> None:
        topic = self._options.dead_letter_topic
        place = f"version {batch.version}, task {batch.task}, row {letters.row_index[0].as_py()}"
        if topic is None:
            reason = f"a row ({place}) makes a message of more than {self._options.max_record_bytes} bytes"
            remedy = (
                "Raise max_record_bytes, and max.message.bytes of the topic; leave the column out with columns; or "
                'set large_records = "dead_letter" and a dead_letter_topic.'
            )
            raise SinkRejected(self._name, reason, remedy)
        _log.warning("%s: %d rows are too large, from %s on; see %s", self._name, len(letters), place, topic)
        self._send(topic, letters, partition=0)

    def _end_versions(self, position: Position) -> None:
        """Send an END record for each version that is complete with this transaction."""
        if self._options.end_topic is None:
            return
        done = position.version + position.closes_version
        first = self._open_version
        if first is None:
            first = self._counts.first(position.version)
        if first < done:
            empty = {} if self._stream.routed is not None else {self._options.topic: Count()}
            counts = {version: self._counts.of(version) or empty for version in range(first, done)}
            records = end_records(self._stream.app_id, counts, _now_ms())
            self._send(self._options.end_topic, records, partition=0)

    def _send_to(self, topic: str, messages: Messages, partition: int | None = None) -> None:
        """Send messages to a topic for rows."""
        if self._stream.routed is not None:
            self._stream.routed.use(topic)
        self._send(topic, messages, partition)

    def _send(self, topic: str, messages: Messages, partition: int | None = None) -> None:
        if len(messages.values):
            self._begin().send(topic, messages, partition)

    def _begin(self) -> Producer:
        """Return the producer, in a transaction."""
        producer, now_s = self._stream.producer, time.monotonic()
        if not self._begun:
            producer.begin()
            self._begun, self._begun_s, self._sent_s = True, now_s, now_s
        if now_s - self._sent_s > self._options.transaction_timeout_s * _PAUSE:
            self._paused_s += now_s - self._sent_s
        self._sent_s = now_s
        return producer


def _rows_of_versions(parts: Sequence[ChangeBatch], rows: pa.Array | None) -> Iterator[tuple[int, int]]:
    """Yield how many of these rows of joined batches are of the version of each; None: all rows."""
    numbers: Sequence[int] = range(sum(map(len, parts))) if rows is None else rows.to_pylist()
    before = 0
    for part, end in zip(parts, accumulate(map(len, parts)), strict=True):
        until = bisect_left(numbers, end)
        if until > before:
            yield part.version, until - before
        before = until


def _now_ms() -> int:
    return int(time.time() * 1000)


def _columns_after(event: SchemaChange, name: str, options: Options) -> pa.Schema:
    """Return the columns after a change.

    Raises `SinkRejected` where that of a key or of a topic, or a field in it, is another one under the same name now.
    Later changes of a row that is there already would have another key, or go to another topic, than its message.
    """
    paths: dict[str, set[tuple[str, ...]]] = {column: {(column,)} for column in options.key}
    if options.route is not None:  # its name may be that of a column, or a path
        column = options.route.column
        paths.setdefault(column, set()).update([(column,), tuple(column.split("."))])
    for column, own in paths.items():
        if any(all(map(eq, path, other)) for path in own for other in event.replaced):  # as far as the shorter one goes
            reason = f"version {event.version} gives the name {column}, by which messages are keyed or routed, to"
            remedy = "Choose another key or topic, or send all rows again: `tailer resnapshot PIPELINE`."
            raise SinkRejected(name, f"{reason} another column", remedy)
    return event.after
