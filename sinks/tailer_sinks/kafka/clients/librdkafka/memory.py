"""Columns of messages as librdkafka's arrays of structures, which point into Arrow's memory.

The words of a structure are filled column by column, so the work does not depend on Python for each message. The
columns must be alive while the array is in use.
"""

import ctypes
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tailer_sinks.encoding.messages import Messages
from tailer_sinks.kafka.clients.librdkafka.library import ANY_PARTITION, COPIED, Argument, Kind, Message

__all__ = ["argument_lists", "message_array", "sizes_of"]

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
