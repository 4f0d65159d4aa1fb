"""Producing with kafka-python, if nothing faster is installed, with guards against its defects.

Measured with 3.0: if a batch timed out, or the broker aborted the transaction, `commit_transaction` returns normally
while messages are missing: only the futures of those messages show it. So each future is checked before a commit. The
client also does not bound its memory or the time of a commit, and cannot be closed while messages are in flight: all of
that is done here.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from kafka import KafkaProducer
from kafka.codec import has_gzip, has_lz4, has_snappy, has_zstd
from kafka.errors import KafkaError, KafkaTimeoutError, UnknownError, UnknownTopicOrPartitionError
from kafka.partitioner import murmur2
from typing_extensions import override

from tailer.errors import CommitUnknown, SinkRejected, SinkUnavailable
from tailer_sinks.encoding.messages import Messages
from tailer_sinks.kafka.clients.port import Connection, Producer, ProducerSettings, commit_error
from tailer_sinks.kafka.clients.python_connection import CLIENT_ERRORS, connected, error_for, translated
from tailer_sinks.kafka.clients.settings import Compression

__all__ = ["PythonProducer"]

_INIT_MS: Final = 25_000
_END_MS: Final = 30_000
_TOPIC_MS: Final = 5_000
_CLOSE_S: Final = 2.0
_MARGIN_S: Final = 5.0
_BATCH_BYTES: Final = 256 * 2**10
_LINGER_MS: Final = 100
_REQUEST_MS: Final = 20_000
_CHUNK_MESSAGES: Final = 1000
_CHUNK_BYTES: Final = 2**20
_OVERHEAD: Final = 100  # of a message in the client's memory, beside its key and its value

Headers = list[tuple[str, str | bytes | None]]

_COMPRESSES: Final[Mapping[Compression, Callable[[], bool]]] = {
    "none": lambda: True,
    "gzip": has_gzip,
    "lz4": has_lz4,
    "snappy": has_snappy,
    "zstd": has_zstd,
}


class _Client(KafkaProducer):  # type: ignore[misc]  # it has no types
    """The client's producer, with time limits for the end of transactions and for closing."""

    def await_topic(self, topic: str, timeout_ms: int) -> list[int]:
        """Return the partitions of a topic. Raises `UnknownTopicOrPartitionError` if the brokers do not know it."""
        try:
            return sorted(self._wait_on_metadata(topic, timeout_ms))
        except KafkaTimeoutError:
            answer = self._metadata.request_update()
            self._sender.wakeup()
            deadline = time.monotonic() + timeout_ms / 1000
            while not answer.is_done and time.monotonic() < deadline:
                time.sleep(0.01)
            if answer.succeeded() or isinstance(answer.exception, UnknownTopicOrPartitionError):
                raise UnknownTopicOrPartitionError(topic) from None
            raise

    def begin_end(self, *, commit: bool) -> Any:
        """Request the end of the transaction. Return a result to wait for. Raises if the request could not be made."""
        result = self._transaction_manager.begin_commit() if commit else self._transaction_manager.begin_abort()
        self._sender.wakeup()
        return result

    def stop(self) -> None:
        """Close now. The client's own `close` waits for messages in flight, and gives up if that takes too long."""
        self._unregister_cleanup()
        self._sender.force_close()
        self._sender.join(_CLOSE_S)
        self.close(timeout=0)

    def __del__(self) -> None:
        """Do nothing: the client's own would close again, and complain."""


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Messages in flight: their futures, and their approximate bytes of memory."""

    topic: str
    futures: Sequence[Any]
    size: int


class PythonProducer(Producer):
    """A `tailer_sinks.kafka.clients.port.Producer`, made as `ProducerFactory` says."""

    def __init__(self, connection: Connection, settings: ProducerSettings, transactional_id: str) -> None:
        self._name: Final = connection.name
        self._limit: Final = settings.in_flight_bytes
        self._patience_s: Final = settings.delivery_timeout_ms / 1000 + _MARGIN_S
        # Messages sent but not yet confirmed, in order.
        self._in_flight: deque[_Chunk] = deque()
        self._in_flight_bytes = 0
        self._first_offset: int | None = None
        self._turn = self._unkeyed_bytes = 0
        self._failed = False
        if not _COMPRESSES[settings.compression]():
            reason = f"kafka-python cannot compress with {settings.compression}: its library is not installed"
            raise SinkRejected(
                self._name, reason, 'Choose another "compression.type", "lz4" say, or install confluent-kafka.'
            )
        # The client requires a delivery timeout longer than these two together.
        batches = {"linger_ms": min(_LINGER_MS, settings.delivery_timeout_ms // 10), "batch_size": _BATCH_BYTES}
        request_ms = min(_REQUEST_MS, settings.delivery_timeout_ms * 3 // 4)
        self._client: Final[_Client] = connected(
            _Client,
            connection,
            transactional_id=transactional_id,
            transaction_timeout_ms=settings.transaction_timeout_ms,
            delivery_timeout_ms=settings.delivery_timeout_ms,
            request_timeout_ms=request_ms,
            max_block_ms=_INIT_MS,
            max_request_size=settings.request_bytes,
            compression_type=None if settings.compression == "none" else settings.compression,
            allow_auto_create_topics=False,
            metrics_enabled=False,
            **batches | translated(settings.settings),
        )
        try:
            with self._refusing_after_failure():
                self._client.init_transactions()
        except BaseException:
            self.close()
            raise

    @override
    def begin(self) -> None:
        with self._refusing_after_failure():
            self._client.begin_transaction()
        self._first_offset = None

    @override
    def send(self, topic: str, messages: Messages, partition: int | None = None) -> None:
        with self._refusing_after_failure(topic):
            partitions = self._client.await_topic(topic, _TOPIC_MS)  # the client's own `send` waits longer
            if partition is not None:
                partitions = [partition]
            size = _bytes_of(messages)
            step = max(1, min(_CHUNK_MESSAGES, len(messages) * _CHUNK_BYTES // max(1, size)))
            for start in range(0, len(messages), step):
                self._send_chunk(topic, messages.slice(start, step), partitions)

    @override
    def start_flush(self) -> None:
        """Do nothing: the client's thread sends within some milliseconds."""

    @override
    def flush(self) -> int | None:
        with self._refusing_after_failure():
            self._flush()
        return self._first_offset

    @override
    def commit(self) -> None:
        with self._refusing_after_failure():
            self._flush()
            result = self._client.begin_end(commit=True)
            # From here on an error leaves the outcome unknown, unless a broker refused.
            try:
                answered = result.wait(timeout_ms=_END_MS)
            except CLIENT_ERRORS as error:
                raise commit_error(error_for(self._name, error)) from error
            if not answered:
                raise CommitUnknown(self._name, f"no answer for {_END_MS // 1000} s")

    @override
    def abort(self) -> None:
        with self._refusing_after_failure():
            self._in_flight.clear()
            self._in_flight_bytes = 0
            if not self._client.begin_end(commit=False).wait(timeout_ms=_END_MS):
                raise KafkaTimeoutError(f"the transaction was not aborted within {_END_MS // 1000} s")

    @override
    def close(self) -> None:
        self._failed = True
        self._in_flight.clear()
        with suppress(Exception):
            self._client.stop()

    @contextmanager
    def _refusing_after_failure(self, topic: str | None = None) -> Iterator[None]:
        if self._failed:
            raise SinkUnavailable(self._name, "this producer has failed, or was closed")
        self._failed = True
        try:
            yield
        except CLIENT_ERRORS as error:
            raise error_for(self._name, error, topic) from error
        self._failed = False

    def _send_chunk(self, topic: str, messages: Messages, partitions: Sequence[int]) -> None:
        size = _bytes_of(messages)
        self._await_room(size)
        send = self._client.send
        # Messages without a key fill the batch of one partition, then that of the next one.
        if self._unkeyed_bytes >= _BATCH_BYTES:
            self._turn, self._unkeyed_bytes = self._turn + 1, 0
        self._unkeyed_bytes += size
        other = partitions[self._turn % len(partitions)]
        count = len(partitions)
        futures = [
            # The partition of Java's clients for a key, at half the client's cost.
            send(topic, value, key, headers, other if key is None else partitions[(murmur2(key) & 0x7FFFFFFF) % count])
            for value, key, headers in _rows(messages)
        ]
        self._in_flight.append(_Chunk(topic, futures, size))
        self._in_flight_bytes += size

    def _await_room(self, size: int) -> None:
        """Remove acknowledged messages; wait for the oldest others until there is room for `size` bytes."""
        while self._in_flight:
            chunk = self._in_flight[0]
            if not all(future.is_done for future in chunk.futures):
                if self._in_flight_bytes + size <= self._limit:
                    return
                self._await(chunk, time.monotonic() + self._patience_s)
            self._settle()

    def _flush(self) -> None:
        """Return when every sent message is confirmed."""
        deadline = time.monotonic() + self._patience_s
        # A batch that was cut in two appears as an unknown error; wait for its messages one by one.
        with suppress(UnknownError):
            self._client.flush(self._patience_s)
        while self._in_flight:
            self._await(self._in_flight[0], deadline)
            self._settle()

    def _await(self, chunk: _Chunk, deadline: float) -> None:
        """Wait until the outcome of each message is known, or until `deadline`."""
        for future in chunk.futures:
            if not future.is_done:
                with suppress(KafkaError):
                    future.get(timeout=max(0.0, deadline - time.monotonic()))

    def _settle(self) -> None:
        chunk = self._in_flight.popleft()
        self._in_flight_bytes -= chunk.size
        self._check_delivered(chunk)
        if self._first_offset is None and (offset := chunk.futures[0].value.offset) >= 0:
            self._first_offset = offset

    def _check_delivered(self, chunk: _Chunk) -> None:
        """Raise unless each of these messages is confirmed: a commit would not notice."""
        for future in chunk.futures:
            if not future.succeeded():
                error = future.exception or KafkaTimeoutError("a sent message was not acknowledged")
                raise error_for(self._name, error, chunk.topic) from error


def _bytes_of(messages: Messages) -> int:
    columns = [messages.values, *(column for _, column in messages.headers)]
    if messages.keys is not None:
        columns.append(messages.keys)
    return sum(int(column.nbytes) for column in columns) + _OVERHEAD * len(messages)


def _rows(messages: Messages) -> Iterable[tuple[bytes | None, bytes | None, Headers | None]]:
    """Yield the value, the key and the headers of each message; a null header is left out.

    Arrow's own conversion of a column takes half the time of cutting its buffer by its offsets in Python.
    """
    keys: Sequence[bytes | None] = [None] * len(messages) if messages.keys is None else messages.keys.to_pylist()
    headers: Sequence[Headers | None] = [None] * len(messages)
    if messages.headers:
        names = [name for name, _ in messages.headers]
        rows = zip(*(column.to_pylist() for _, column in messages.headers), strict=True)
        headers = [[(name, value) for name, value in zip(names, row, strict=True) if value is not None] for row in rows]
    return zip(messages.values.to_pylist(), keys, headers, strict=True)
