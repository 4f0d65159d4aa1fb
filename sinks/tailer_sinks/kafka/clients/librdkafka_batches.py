"""A client that calls librdkafka with arrays of messages which point into Arrow's memory, and counts its events.

An event reports a batch of messages that have one outcome: a partition's batch is stored as a whole or not at all. So
the work for a message is librdkafka's own.

If the queue were full in the middle of an array, the first of its messages would be refused and later ones might be
accepted, in another order. So messages wait here until the queue has room for all of a call, and whatever call still
refuses a message is an error, after which the transaction can only be aborted. `_Room` counts what is in flight.
"""

import ctypes
import logging
import weakref
from collections.abc import Callable, Iterator, Mapping
from ctypes import c_char_p, c_int
from dataclasses import dataclass
from threading import Event, Thread
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError, KafkaException

from tailer.errors import SinkError
from tailer_sinks.encoding.messages import Messages
from tailer_sinks.kafka.clients.librdkafka import (
    ANY_PARTITION,
    COPIED,
    DELIVERIES,
    ERRORS,
    LOGS,
    PRODUCER,
    PURGE_NOW,
    REFRESH,
    Argument,
    Library,
    Message,
    argument_lists,
    message_array,
    sizes_of,
)

__all__ = ["BatchClient", "Deliveries", "TokenSource"]

_ROOM_S: Final = 0.05
_SERVED_S: Final = 1.0
_CALL_MESSAGES: Final = 8192
_ERROR_BYTES: Final = 512
# Python's, of syslog's.
_LEVELS: Final = (*[logging.CRITICAL] * 3, logging.ERROR, logging.WARNING, logging.INFO, logging.INFO, logging.DEBUG)


TokenSource = Callable[[], tuple[str, float]]  # returns a token for OAUTHBEARER, and its expiry in seconds since 1970


class Deliveries:
    """The delivery reports of the messages of one transaction. `first_offset`: of the first one; None: unknown."""

    def __init__(self) -> None:
        self.sent = 0
        self.stored = 0
        self.failed = 0
        self.failure: tuple[KafkaError, str | None] | None = None
        self.first_offset: int | None = None

    @property
    def in_flight(self) -> int:
        """The number of messages without a report."""
        return self.sent - self.stored - self.failed

    def fail(self, count: int, error: KafkaError, topic: str | None) -> None:
        """Count messages that are not stored; the first error is kept."""
        self.failed += count
        if self.failure is None:
            self.failure = (error, topic)


class BatchClient:
    """A transactional producer of librdkafka. Methods raise `KafkaException`.

    `config`: librdkafka's settings, with the limits of its queue and without callbacks. `report`: called with errors
    that belong to no message. `tokens`: called by a thread of librdkafka; None: no tokens are used.
    """

    def __init__(
        self,
        functions: Library,
        config: Mapping[str, Any],
        log: logging.Logger,
        report: Callable[[KafkaError], None],
        tokens: TokenSource | None = None,
    ) -> None:
        self._functions: Final = functions
        self._log: Final = log
        self._report: Final = report
        self._room: Final = _Room(
            int(config["queue.buffering.max.messages"]), int(config["queue.buffering.max.kbytes"]) * 1024
        )
        self._deliveries = Deliveries()
        self._flush: _Call | None = None
        self._fatal: KafkaError | None = None
        self._topics: dict[str, int] = {}
        refresh = None if tokens is None else _refresh(functions, tokens)
        self._client: Final = _client(functions, config, log, refresh)
        self._queue: Final = functions.queue_get_main(self._client)
        # The callback must live for as long as the client.
        end = weakref.finalize(self, _end, functions, self._client, self._queue, self._topics, refresh)
        end.atexit = False  # the process ends anyway, and a forked one has none of the threads

    def init_transactions(self, timeout_s: float) -> None:
        """Take the transactional id over."""
        self._check(self._functions.init_transactions(self._client, _ms(timeout_s)))

    def begin_transaction(self) -> Deliveries:
        """Begin a transaction; return what will count its delivery reports."""
        self._check(self._functions.begin_transaction(self._client))
        self._deliveries, self._flush = Deliveries(), None
        self._room.empty()
        return self._deliveries

    def commit_transaction(self, timeout_s: float) -> None:
        """Commit. All deliveries must have been reported."""
        self._check(self._functions.commit_transaction(self._client, _ms(timeout_s)))

    def abort_transaction(self, timeout_s: float) -> None:
        """Abort, and drop what is not sent yet."""
        self._check(self._served(self._started(self._functions.abort_transaction, timeout_s)))

    def produce(self, topic: str, messages: Messages, partition: int | None) -> None:
        """Queue messages in order; blocks while the queue is full. Returns early if a delivery fails."""
        handle = self._topic(topic)
        sizes = sizes_of(messages)
        for start, count in self._room.calls(sizes):
            part = sizes.slice(start, count)
            size_bytes, largest_bytes = pc.sum(part).as_py(), pc.max(part).as_py()
            while not self._room.has(self._deliveries.in_flight, count, size_bytes, largest_bytes):
                self.poll(_ROOM_S)
                if self._deliveries.failure is not None:
                    return
            self._room.take(size_bytes, largest_bytes)
            piece = messages.slice(start, count)
            if messages.headers:
                self._produce_with_headers(handle, piece, partition)
            else:
                array = message_array(piece)
                memory = (Message * len(piece)).from_buffer(array)
                where = ANY_PARTITION if partition is None else partition
                queued = self._functions.produce_batch(handle, where, COPIED, memory, len(piece))
                self._deliveries.sent += queued
                if queued < len(piece):
                    raise self._refused(next(message.err for message in memory if message.err))

    def poll(self, timeout_s: float) -> None:
        """Serve reports and errors: all that are there, or wait for one."""
        self._serve(timeout_s)
        if self._fatal is not None:
            raise KafkaException(self._fatal)

    def start_flush(self, timeout_s: float) -> None:
        """Send what is queued at once, without waiting for the reports. `timeout_s`: until `flush`."""
        self._flush = self._started(self._functions.flush, timeout_s)

    def flush(self, timeout_s: float) -> int:
        """Send what is queued at once and wait for the reports. Return the number of messages without one."""
        begun, self._flush = self._flush, None
        self._served(begun or self._started(self._functions.flush, timeout_s))
        self.poll(0)
        return self._deliveries.in_flight

    def drop(self) -> None:
        """End without waiting for messages in flight. A call in another thread may hold the last reference."""
        self._functions.purge(self._client, PURGE_NOW)

    def _produce_with_headers(self, topic: int, messages: Messages, partition: int | None) -> None:
        names = [ctypes.create_string_buffer(name.encode()) for name, _ in messages.headers]
        array, count = argument_lists(messages, topic, partition, names)
        memory = (Argument * count * len(messages)).from_buffer(array)
        first, size_bytes = ctypes.addressof(memory), count * ctypes.sizeof(Argument)
        produce, client = self._functions.produceva, self._client
        for place in range(first, first + len(array), size_bytes):
            self._check(produce(client, place, count))
            self._deliveries.sent += 1

    def _topic(self, name: str) -> int:
        if name not in self._topics:
            handle = self._functions.topic_new(self._client, name.encode(), None)
            if handle is None:
                raise self._refused(self._functions.last_error())
            self._topics[name] = handle
        return self._topics[name]

    def _started(self, call: Callable[..., int | None], timeout_s: float) -> "_Call":
        """Begin to call a function that waits until reports are served."""

        def run() -> None:
            try:
                begun.results.append(call(self._client, _ms(timeout_s)))
            finally:
                begun.ended.set()
                self._functions.queue_yield(self._queue)

        begun = _Call(Thread(target=run, name="librdkafka"), Event(), [])
        try:
            begun.thread.start()
        except RuntimeError as error:  # the system has no more threads
            raise KafkaException(KafkaError(KafkaError._FAIL, str(error))) from error  # noqa: SLF001
        return begun

    def _served(self, call: "_Call") -> int | None:
        """Serve reports until a call ends. Return its result."""
        try:
            while not call.ended.is_set():
                self._serve(_SERVED_S)
        finally:
            call.thread.join()
        return call.results[0]

    def _serve(self, timeout_s: float) -> None:
        functions, queue, wait_ms = self._functions, self._queue, _ms(timeout_s)
        while event := functions.queue_poll(queue, wait_ms):
            wait_ms = 0
            try:
                self._handle(event)
            finally:
                functions.event_destroy(event)

    def _handle(self, event: int) -> None:
        functions, kind = self._functions, self._functions.event_type(event)
        if kind == DELIVERIES:
            self._count(event)
        elif kind == ERRORS:
            code, text = functions.event_error(event), _text(functions.event_error_string(event))
            if code == KafkaError._FATAL:  # noqa: SLF001 - the client's public names look like this
                self._fatal = self._fatal_error()
            else:
                self._report(KafkaError(code, text))
        elif kind == LOGS:
            facility, line, level = c_char_p(), c_char_p(), c_int()
            functions.event_log(event, facility, line, level)
            self._log.log(_LEVELS[level.value & 7], "%s %s", _text(facility.value), _text(line.value))

    def _count(self, event: int) -> None:
        """Count a report of messages, which have one outcome."""
        functions = self._functions
        count, code = functions.event_message_count(event), functions.event_error(event)
        if code == KafkaError.NO_ERROR:
            self._deliveries.stored += count
            if self._deliveries.first_offset is None and (message := functions.event_message_next(event)):
                offset = message.contents.offset
                self._deliveries.first_offset = offset if offset >= 0 else None
            return
        message = functions.event_message_next(event)
        error = message.contents.err if message else code
        topic = _text(functions.topic_name(message.contents.topic)) if message else None
        self._deliveries.fail(count, KafkaError(error, _text(functions.err2str(error))), topic)

    def _fatal_error(self) -> KafkaError:
        text = ctypes.create_string_buffer(_ERROR_BYTES)
        code = self._functions.fatal_error(self._client, text, len(text))
        return KafkaError(code, _text(text.value), True)

    def _refused(self, code: int) -> KafkaException:
        if code == KafkaError._FATAL:  # noqa: SLF001
            return KafkaException(self._fatal_error())
        return KafkaException(KafkaError(code, f"Unable to produce message: {_text(self._functions.err2str(code))}"))

    def _check(self, error: int | None) -> None:
        """Raise an error object of librdkafka, if there is one."""
        if error is None:
            return
        functions = self._functions
        raised = KafkaError(
            functions.error_code(error),
            _text(functions.error_string(error)),
            bool(functions.error_is_fatal(error)),
            bool(functions.error_is_retriable(error)),
            bool(functions.error_txn_requires_abort(error)),
        )
        functions.error_destroy(error)
        raise KafkaException(raised)


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of librdkafka in a thread of its own, and its result once it has `ended`."""

    thread: Thread
    ended: Event
    results: list[int | None]


class _Room:
    """The room in librdkafka's queue: an upper bound of what is in flight, from what reports count.

    Reports do not say which messages they are about, so those in flight may be the largest ones.
    """

    def __init__(self, most_messages: int, most_bytes: int) -> None:
        self._most_messages = most_messages
        self._most_bytes = most_bytes
        self.empty()

    def empty(self) -> None:
        """Note that nothing is in flight."""
        self._bytes = self._largest_bytes = 0

    def calls(self, sizes: pa.Array) -> Iterator[tuple[int, int]]:
        """Yield the start and the number of messages of each call: an eighth of the queue, or one message."""
        start, most = 0, max(1, min(_CALL_MESSAGES, self._most_messages // 8))
        while start < len(sizes):
            count = min(most, len(sizes) - start)
            while count > 1 and pc.sum(sizes.slice(start, count)).as_py() > self._most_bytes // 8:
                count //= 2
            yield start, count
            start += count

    def has(self, in_flight: int, count: int, size_bytes: int, largest_bytes: int) -> bool:
        """Return whether there is certainly room for `count` messages of so many bytes."""
        if in_flight == 0:
            self.empty()
            return True
        messages, largest = in_flight + count, max(self._largest_bytes, largest_bytes)
        most_bytes = min(self._bytes + size_bytes, messages * largest)
        return messages <= self._most_messages and most_bytes <= self._most_bytes

    def take(self, size_bytes: int, largest_bytes: int) -> None:
        """Note messages that are about to be sent."""
        self._bytes += size_bytes
        self._largest_bytes = max(self._largest_bytes, largest_bytes)


def _refresh(functions: Library, tokens: TokenSource) -> Any:
    """Return the callback that gives a client the next token. Connections fail as long as there is none."""

    def refresh(client: int, _config: bytes | None, _opaque: int | None) -> None:
        try:
            token, expiry_s = tokens()
        except Exception as error:  # noqa: BLE001 - the client waits until it is told
            reason_text = str(error) if isinstance(error, SinkError) else type(error).__name__
            functions.set_token_failure(client, reason_text.encode())
            return
        reason = ctypes.create_string_buffer(_ERROR_BYTES)
        if functions.set_token(client, token.encode(), int(expiry_s * 1000), b"", None, 0, reason, len(reason)):
            functions.set_token_failure(client, reason.value)

    return REFRESH(refresh)


def _client(functions: Library, config: Mapping[str, Any], log: logging.Logger, refresh: Any) -> int:
    """Make librdkafka's handle of a producer. Raises `KafkaException`."""
    reason = ctypes.create_string_buffer(_ERROR_BYTES)
    logs = log.isEnabledFor(logging.CRITICAL)
    config_handle = functions.conf_new()
    for name, value in {**config, "log.queue": logs}.items():
        written = str(value).lower() if isinstance(value, bool) else str(value)
        if functions.conf_set(config_handle, name.encode(), written.encode(), reason, len(reason)):
            functions.conf_destroy(config_handle)
            raise KafkaException(KafkaError(KafkaError._INVALID_ARG, _text(reason.value)))  # noqa: SLF001
    functions.conf_set_events(config_handle, DELIVERIES | ERRORS | (LOGS if logs else 0))
    if not logs:
        functions.conf_set_log_cb(config_handle, None)
    if refresh is not None:
        functions.conf_set_refresh(config_handle, refresh)
        functions.conf_enable_sasl_queue(config_handle, 1)
    client = functions.new(PRODUCER, config_handle, reason, len(reason))
    if client is None:
        functions.conf_destroy(config_handle)
        raise KafkaException(KafkaError(functions.last_error(), _text(reason.value)))
    if logs:
        functions.set_log_queue(client, None)
    if refresh is not None:  # tokens are also asked for between transactions, when nothing polls
        functions.enable_callbacks(client)
    return int(client)


def _end(functions: Library, client: int, queue: int, topics: Mapping[str, int], _refresh: Any) -> None:
    functions.purge(client, PURGE_NOW)
    for topic in topics.values():
        functions.topic_destroy(topic)
    functions.queue_destroy(queue)
    functions.destroy(client)


def _ms(seconds: float) -> int:
    return int(seconds * 1000)


def _text(words: bytes | None) -> str:
    return (words or b"").decode(errors="replace")
