"""The `kafka` sink for the pipeline; the package's docstring explains how it works."""

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Self

import pyarrow as pa
from anyio import CancelScope, to_thread
from typing_extensions import override

from tailer.errors import SinkError, SinkRejected
from tailer.sink import (
    Demands,
    Heartbeat,
    Heartbeats,
    Progress,
    Sink,
    pipeline_of,
    refused,
)
from tailer_sinks.heartbeats import BlockingHeartbeats, decode_heartbeat, encode_heartbeat
from tailer_sinks.kafka.encoders import checked_key_form, encoder_for
from tailer_sinks.kafka.first_start import check_first_start
from tailer_sinks.kafka.link import Link
from tailer_sinks.kafka.options import Options, read
from tailer_sinks.kafka.records import gap_remedy, heartbeat
from tailer_sinks.kafka.route import column_in
from tailer_sinks.kafka.stream import Stream, check_place
from tailer_sinks.kafka.topics import recreated
from tailer_sinks.kafka.transaction import KafkaTransaction

__all__ = ["KafkaSink"]

OWNER_S: Final = 5.0  # between two looks of an idle instance at whether it still is the writer


class KafkaSink(Sink):
    """A `Sink` that writes to topics of a Kafka cluster. Raises `ConfigError` for a client that is not installed."""

    splits_snapshots: Final = True
    distributes: Final = True

    def __init__(self, name: str, options: Options) -> None:
        self.name = name
        self._options = options
        self._link = Link(name, options)
        self._streams: dict[str, Stream] = {}
        self._last_beat_s = -options.heartbeat_s

    @classmethod
    def configure(cls, name: str, options: Mapping[str, Any]) -> Self:
        """Read the options, see `tailer_sinks.kafka.options`; no I/O. Raises `ConfigError`."""
        return cls(name, read(name, options))

    @property
    def splits_versions(self) -> bool:
        """Return whether a transaction may end inside a version."""
        return self._options.boundary == "chunk"

    @property
    def demands(self) -> Demands:
        """Transactions within the limits of brokers and readers, and updates paired by the messages' key."""
        options = self._options
        # Leaves enough time to send the messages in flight, and to commit.
        quiet_s = options.transaction_timeout_s / 6
        return Demands(
            key=tuple(options.key),
            max_rows=options.transaction_rows,
            max_bytes=options.transaction_bytes,
            max_quiet_s=quiet_s,
            gap_remedy=gap_remedy(options),
        )

    async def progress(self, app_id: str) -> Progress | None:
        """Read the progress topic, without taking the stream over.

        Raises `SinkFenced` if another instance took over a stream that this one has written, `SinkUnavailable`,
        `SinkRejected`.
        """
        position = await to_thread.run_sync(self._stream(app_id).look)
        return None if position is None else Progress(app_id, position)

    async def has_delivered(self, pipeline: str) -> bool:
        """Return whether the progress topic has a position in any table of the pipeline. Raises as `progress` does."""
        read = await to_thread.run_sync(self._link.decided_progress, pipeline)
        if read is None:
            return False
        places = (entry.position for app_id, entry in read.entries.items() if pipeline_of(app_id) == pipeline)
        return any(place is not None for place in places)

    @override
    async def check_first_start(self, pipeline: str, table_ids: Sequence[str]) -> None:
        """Check as `tailer_sinks.kafka.first_start` says."""
        await to_thread.run_sync(check_first_start, self._link, pipeline, table_ids)

    @override
    def only_look(self) -> None:
        """Take over no stream, register no schema."""
        self._link.only_looks = True

    @override
    async def refusals(self, app_id: str, schema: pa.Schema) -> Sequence[SinkError]:
        """Return refusals: of the key, the topic's name, the columns, the schema registry and the topic."""
        return await to_thread.run_sync(_refusals, self._stream(app_id), schema)

    async def reset(self, progress: Progress) -> None:
        """Set progress in a transaction of its own, taking the stream over.

        It may go backwards: rows that are then delivered again have the same positions as before. The topic, its id and
        its number of partitions are recorded as they are now.
        """
        if not (progress.position.closes_version or progress.position.opens_version):
            raise SinkRejected(self.name, f"{progress.position} is in the middle of a version", "Name a whole version.")
        stream = self._stream(progress.app_id)
        await to_thread.run_sync(self._discard_others, stream)
        await to_thread.run_sync(stream.reset, progress.position)

    @asynccontextmanager
    async def begin(self, app_id: str, schema: pa.Schema) -> AsyncIterator[KafkaTransaction]:
        """Begin a transaction on top of the progress that was read last, or else the current one.

        Entering takes the stream over, the first time: raises as `Stream.take_over` does.
        """
        stream = self._stream(app_id)
        if not stream.is_taken_over:
            await to_thread.run_sync(self._discard_others, stream)
            await to_thread.run_sync(stream.take_over)
        transaction = KafkaTransaction(stream, schema)
        try:
            yield transaction
        finally:
            if not transaction.committed:
                with CancelScope(shield=True):
                    await to_thread.run_sync(stream.abort)

    async def beat(self, app_id: str) -> float | None:
        """Take the stream over, or notice that another instance has; send a heartbeat if one is due.

        So of two instances without changes to deliver, the one that came first ends. Brokers are not asked by one that
        committed less than `OWNER_S` ago: it was the writer then. Raises as `begin` does.
        """
        stream = self._stream(app_id)
        look_s = stream.committed_s + OWNER_S - time.monotonic()
        if look_s <= 0:
            await to_thread.run_sync(stream.hold)
            look_s = OWNER_S
        topic, now_s = self._options.heartbeat_topic, time.monotonic()
        if topic is None:
            return look_s
        if (rest_s := self._last_beat_s + self._options.heartbeat_s - now_s) <= 0:
            await to_thread.run_sync(self._beat, stream, topic)
            self._last_beat_s, rest_s = now_s, self._options.heartbeat_s
        return min(rest_s, look_s)

    @override
    def open_heartbeats(self, pipeline: str, timeout_s: float) -> Heartbeats:
        return _GroupHeartbeats(Link(self.name, self._options), pipeline)

    async def aclose(self) -> None:
        """Close producers and connections."""
        with CancelScope(shield=True):
            await to_thread.run_sync(self._close)

    def _stream(self, app_id: str) -> Stream:
        if app_id not in self._streams:
            self._streams[app_id] = Stream(self._link, app_id)
        return self._streams[app_id]

    def _discard_others(self, stream: Stream) -> None:
        """Discard the producers of the pipeline's other streams: taking `stream` over fences those in other tables."""
        for app_id, other in list(self._streams.items()):
            if pipeline_of(app_id) == pipeline_of(stream.app_id) and other is not stream:
                other.discard()

    def _beat(self, stream: Stream, topic: str) -> None:
        try:
            stream.producer.begin()
            stream.producer.send(topic, heartbeat(self.name, int(time.time() * 1000)), partition=0)
            stream.producer.commit()
        except SinkError as error:
            raise stream.failed(error) from error

    def _close(self) -> None:
        for stream in self._streams.values():
            stream.discard()
        self._link.close()


def _refusals(stream: Stream, schema: pa.Schema) -> list[SinkError]:
    """Return all errors with which the first transaction of `stream`, whose progress was read, would be refused."""
    link, seen = stream.link, stream.seen
    route, key = link.options.route, link.options.key
    errors = refused(_check_topic, stream) if route is None else refused(column_in, link.name, route, schema)
    if all(name in schema.names for name in key):
        key_form = None if seen is None else seen.key
        errors += refused(checked_key_form, link, schema, key_form)
        routed = () if stream.routed is None else stream.routed.read
        errors += [] if errors else refused(encoder_for, link, schema, routed)
    return errors


def _check_topic(stream: Stream) -> None:
    """Raise if the rows up to the progress that was read are not in the topic."""
    topic, seen = stream.link.options.topic, stream.seen
    if seen is None:
        return
    if (state := stream.link.present([topic]).get(topic)) is not None:
        check_place(stream.link, stream.app_id, seen, state)
    elif seen.position is not None:
        raise recreated(stream.link.name, topic, seen.position)


class _GroupHeartbeats(BlockingHeartbeats):
    """Heartbeats with the offset of a group of consumers: brokers keep one value, and answer from their memory.

    Records of a topic would be thousands a day, to be read before the last one.
    """

    def __init__(self, link: Link, pipeline: str) -> None:
        super().__init__()
        self._link = link
        self._pipeline = pipeline

    def read_now(self) -> Heartbeat | None:
        text = self._link.heartbeat(self._pipeline)
        place = f"the offset of the group for heartbeats of {self._pipeline}"
        return None if text is None else decode_heartbeat(self._link.name, place, text)

    def write_now(self, heartbeat: Heartbeat) -> None:
        self._link.note_heartbeat(self._pipeline, encode_heartbeat(heartbeat))

    def close_now(self) -> None:
        self._link.close()
