"""librdkafka's public C interface, by ctypes, in the library that confluent-kafka brings.

confluent-kafka has a call and an object of Python for each message and each delivery report. Here a call takes an array
of messages, and an event reports a batch of them. Nothing but documented functions of `rdkafka.h` is used; their
structures and constants are part of its stable interface.

Columns of messages become arrays of structures that point into Arrow's memory. The words of a structure are filled
column by column, so the work does not depend on Python for each message. The columns must be alive while the array is
in use.
"""

import ctypes
import sys
from collections.abc import Callable, Sequence
from ctypes import CFUNCTYPE, POINTER, c_char, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from functools import cache
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import cimpl

from tailer_sinks.encoding.messages import Messages

__all__ = [
    "ANY_PARTITION",
    "COPIED",
    "DELIVERIES",
    "ERRORS",
    "LOGS",
    "PRODUCER",
    "PURGE_NOW",
    "REFRESH",
    "Argument",
    "Kind",
    "Library",
    "Message",
    "argument_lists",
    "library",
    "message_array",
    "sizes_of",
]

PRODUCER: Final = 0
ANY_PARTITION: Final = -1
COPIED: Final = 0x2  # a message's key and value are copied
PURGE_NOW: Final = 0x1 | 0x2 | 0x4  # queued and in flight, without waiting
DELIVERIES, LOGS, ERRORS = 0x1, 0x4, 0x8  # types of events
REFRESH: Final = CFUNCTYPE(None, c_void_p, c_char_p, c_void_p)  # asks for a new token, of the client with this handle


class Message(ctypes.Structure):
    """A message for `produce_batch`, or of a delivery report (`rd_kafka_message_t`)."""

    _fields_ = (
        ("err", c_int),
        ("topic", c_void_p),
        ("partition", c_int32),
        ("value", c_void_p),
        ("size", c_size_t),
        ("key", c_void_p),
        ("key_size", c_size_t),
        ("offset", c_int64),
        ("opaque", c_void_p),
    )


class Argument(ctypes.Structure):
    """An argument of `produceva` (`rd_kafka_vu_t`): a kind, and a union of 64 bytes, here as words."""

    _fields_ = (("kind", c_int), ("words", c_int64 * 8))


class Kind:
    """The kinds of arguments."""

    TOPIC: Final = 2
    PARTITION: Final = 3
    VALUE: Final = 4
    KEY: Final = 5
    FLAGS: Final = 7
    HEADER: Final = 9


class Library:
    """The functions, without their prefix `rd_kafka_`. Raises `AttributeError` if one is missing."""

    def __init__(self, path: str) -> None:
        self._functions: Final = ctypes.CDLL(path)
        text, buffer = c_char_p, POINTER(c_char)
        self.conf_new = self._function("conf_new", c_void_p)
        self.conf_set = self._function("conf_set", c_int, c_void_p, text, text, buffer, c_size_t)
        self.conf_set_events = self._function("conf_set_events", None, c_void_p, c_int)
        self.conf_set_log_cb = self._function("conf_set_log_cb", None, c_void_p, c_void_p)
        self.conf_enable_sasl_queue = self._function("conf_enable_sasl_queue", None, c_void_p, c_int)
        self.conf_set_refresh = self._function("conf_set_oauthbearer_token_refresh_cb", None, c_void_p, REFRESH)
        self.conf_destroy = self._function("conf_destroy", None, c_void_p)
        self.new = self._function("new", c_void_p, c_int, c_void_p, buffer, c_size_t)
        self.destroy = self._function("destroy", None, c_void_p)
        self.enable_callbacks = self._function("sasl_background_callbacks_enable", c_void_p, c_void_p)
        self.set_token = self._function(
            "oauthbearer_set_token", c_int, c_void_p, text, c_int64, text, c_void_p, c_size_t, buffer, c_size_t
        )
        self.set_token_failure = self._function("oauthbearer_set_token_failure", c_int, c_void_p, text)
        self.set_log_queue = self._function("set_log_queue", c_int, c_void_p, c_void_p)
        self.queue_get_main = self._function("queue_get_main", c_void_p, c_void_p)
        self.queue_poll = self._function("queue_poll", c_void_p, c_void_p, c_int)
        self.queue_yield = self._function("queue_yield", None, c_void_p)
        self.queue_destroy = self._function("queue_destroy", None, c_void_p)
        self.event_type = self._function("event_type", c_int, c_void_p)
        self.event_error = self._function("event_error", c_int, c_void_p)
        self.event_error_string = self._function("event_error_string", text, c_void_p)
        self.event_message_count = self._function("event_message_count", c_size_t, c_void_p)
        self.event_message_next = self._function("event_message_next", POINTER(Message), c_void_p)
        self.event_log = self._function(
            "event_log", c_int, c_void_p, POINTER(c_char_p), POINTER(c_char_p), POINTER(c_int)
        )
        self.event_destroy = self._function("event_destroy", None, c_void_p)
        self.topic_new = self._function("topic_new", c_void_p, c_void_p, text, c_void_p)
        self.topic_name = self._function("topic_name", text, c_void_p)
        self.topic_destroy = self._function("topic_destroy", None, c_void_p)
        self.produce_batch = self._function("produce_batch", c_int, c_void_p, c_int32, c_int, c_void_p, c_int)
        self.produceva = self._function("produceva", c_void_p, c_void_p, c_void_p, c_size_t)
        self.flush = self._function("flush", c_int, c_void_p, c_int)
        self.purge = self._function("purge", c_int, c_void_p, c_int)
        self.init_transactions = self._function("init_transactions", c_void_p, c_void_p, c_int)
        self.begin_transaction = self._function("begin_transaction", c_void_p, c_void_p)
        self.commit_transaction = self._function("commit_transaction", c_void_p, c_void_p, c_int)
        self.abort_transaction = self._function("abort_transaction", c_void_p, c_void_p, c_int)
        self.fatal_error = self._function("fatal_error", c_int, c_void_p, buffer, c_size_t)
        self.last_error = self._function("last_error", c_int)
        self.err2str = self._function("err2str", text, c_int)
        self.error_code = self._function("error_code", c_int, c_void_p)
        self.error_string = self._function("error_string", text, c_void_p)
        self.error_is_fatal = self._function("error_is_fatal", c_int, c_void_p)
        self.error_is_retriable = self._function("error_is_retriable", c_int, c_void_p)
        self.error_txn_requires_abort = self._function("error_txn_requires_abort", c_int, c_void_p)
        self.error_destroy = self._function("error_destroy", None, c_void_p)

    def _function(self, name: str, result: type | None, *arguments: type) -> Callable[..., Any]:
        function = getattr(self._functions, f"rd_kafka_{name}")
        function.restype, function.argtypes = result, arguments
        return cast("Callable[..., Any]", function)


@cache
def library() -> Library:
    """Return the library that confluent-kafka uses. Raises `ImportError` where it cannot be called."""
    words = ctypes.sizeof(c_void_p) == 8 and sys.byteorder == "little"
    if not words or ctypes.sizeof(Message) != 72 or ctypes.sizeof(Argument) != 72:
        raise ImportError("its librdkafka can only be called on little-endian machines of 64 bits")
    try:
        # The functions of a library that this module is linked to are found through it, wherever that lies.
        return Library(cimpl.__file__)
    except (AttributeError, OSError) as error:
        raise ImportError(f"its librdkafka cannot be called: {error}") from error


_WORD: Final = 8
_STRUCT_WORDS: Final = ctypes.sizeof(Message) // _WORD
_VALUE, _SIZE, _KEY, _KEY_SIZE = (
    getattr(Message, name).offset // _WORD for name in ("value", "size", "key", "key_size")
)
_ZERO: Final = pa.scalar(0, pa.int64())
# Something to point at where a column has no bytes: librdkafka takes a null pointer for null.
_NO_BYTES: Final = ctypes.create_string_buffer(1)


def sizes_of(messages: Messages) -> pa.Array:
    """Return the bytes of each message's key and value."""
    sizes = _lengths(messages.values)
    return sizes if messages.keys is None else pc.add(sizes, _lengths(messages.keys))


def message_array(messages: Messages) -> bytearray:
    """Return an array of `Message` for messages without headers."""
    array = bytearray(_WORD * _STRUCT_WORDS * len(messages))
    words = memoryview(array).cast("q")
    words[_VALUE::_STRUCT_WORDS] = _words(_addresses(messages.values))
    words[_SIZE::_STRUCT_WORDS] = _words(_lengths(messages.values))
    if messages.keys is not None:
        words[_KEY::_STRUCT_WORDS] = _words(_addresses(messages.keys))
        words[_KEY_SIZE::_STRUCT_WORDS] = _words(_lengths(messages.keys))
    return array


def argument_lists(
    messages: Messages, topic: int, partition: int | None, names: Sequence["ctypes.Array[ctypes.c_char]"]
) -> tuple[bytearray, int]:
    """Return an array of arguments for each message with its headers, and the number of arguments in each.

    `topic`: librdkafka's handle. `names`: of the headers; they must be alive while the array is in use. In the place of
    a header that a message does not have, an earlier argument is repeated.
    """
    where = ANY_PARTITION if partition is None else partition
    count, flags = len(messages), Kind.FLAGS
    rows: list[list[pa.Array | int]] = [
        [Kind.TOPIC, topic],
        [Kind.PARTITION, where],
        [flags, COPIED],
        [Kind.VALUE, _addresses(messages.values), _lengths(messages.values)],
    ]
    if messages.keys is not None:
        rows.append([Kind.KEY, _addresses(messages.keys), _lengths(messages.keys)])
    for (_, column), name in zip(messages.headers, names, strict=True):
        there, address = column.is_valid(), ctypes.addressof(name)
        kind, first = (
            pc.if_else(there, pa.scalar(given, pa.int64()), pa.scalar(otherwise, pa.int64()))
            for given, otherwise in ((int(Kind.HEADER), int(flags)), (address, COPIED))
        )
        rows.append([kind, first, _addresses(column), _lengths(column)])
    width = ctypes.sizeof(Argument) // _WORD
    array = bytearray(_WORD * width * len(rows) * count)
    words = memoryview(array).cast("q")
    for number, row in enumerate(rows):
        for place, word in enumerate(row):
            column = pa.repeat(pa.scalar(word, pa.int64()), count) if isinstance(word, int) else word
            words[number * width + place :: width * len(rows)] = _words(column)
    return array, len(rows)


def _words(column: pa.Array) -> memoryview:
    """Return the memory of integers (int64) without nulls."""
    data = memoryview(column.buffers()[1]).cast("q")
    return data[column.offset : column.offset + len(column)]


def _lengths(column: pa.Array) -> pa.Array:
    return pc.fill_null(pc.binary_length(column), _ZERO)


def _addresses(column: pa.Array) -> pa.Array:
    """Return where the bytes of each value are in memory; 0 for null."""
    _, offsets, data = column.buffers()
    start = data.address if data is not None and data.address else ctypes.addressof(_NO_BYTES)
    starts = pa.Array.from_buffers(pa.int64(), len(column), [None, offsets], offset=column.offset)
    addresses = pc.add(starts, pa.scalar(start, pa.int64()))
    return addresses if column.null_count == 0 else pc.if_else(column.is_valid(), addresses, _ZERO)
