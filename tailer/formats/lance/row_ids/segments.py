"""Segments: unsigned numbers in a row, in one of five encodings (Lance format, "Row ID sequences", `U64Segment`).

A segment is decoded into the smallest thing that keeps its order: a range stays a `range`, however long it is; other
sorted numbers become a bitmap; the rest an Arrow array.
"""

from array import array
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from tailer.formats.lance.protobuf import InvalidMessage, Message

__all__ = ["MOST_ROWS", "Segment", "numbers_of", "parse_segment", "set_of"]

MOST_ROWS: Final = 2**32  # of a fragment: an offset has 32 bits

Segment: TypeAlias = range | BitMap64 | pa.UInt64Array

_RANGE, _HOLES, _BITMAP, _SORTED, _ARRAY = 1, 2, 3, 4, 5
_BITS_AT_A_TIME: Final = 2**20


def parse_segment(message: Message) -> Segment:
    """Read a message `U64Segment`. Raises `InvalidMessage`."""
    kind = message.one_of(_RANGE, _HOLES, _BITMAP, _SORTED, _ARRAY)
    if kind is None:
        raise InvalidMessage("a segment has no encoding that is known")
    content = Message(message.data(kind))
    if kind == _ARRAY:
        return _encoded(content)
    if kind == _SORTED:
        return _sorted(_encoded(content))
    first, end = content.number(1), content.number(2)
    if not 0 <= end - first <= MOST_ROWS or end >= 2**63:
        raise InvalidMessage(f"a segment ranges from {first} to {end}")
    found = range(first, end)
    if kind == _RANGE:
        return found
    return _with_holes(found, content) if kind == _HOLES else _with_bitmap(found, content.data(3))


def numbers_of(segment: Segment) -> pa.UInt64Array:
    """Return the numbers of a segment in order, with 8 bytes for each."""
    if isinstance(segment, pa.Array):
        return segment
    bitmap = BitMap64(segment)
    return pa.Array.from_buffers(pa.uint64(), len(bitmap), [None, pa.py_buffer(bitmap.to_array())])


def set_of(segment: Segment) -> BitMap64:
    """Return the numbers of a segment as a set. It may be the segment itself."""
    if isinstance(segment, BitMap64):
        return segment
    if isinstance(segment, range):
        return BitMap64(segment)
    start, end = 8 * segment.offset, 8 * (segment.offset + len(segment))
    return BitMap64(array("Q", segment.buffers()[1][start:end].to_pybytes())) if len(segment) else BitMap64()


def _with_holes(found: range, content: Message) -> BitMap64:
    encoded = content.optional_message(3)
    holes = BitMap64() if encoded is None else _sorted(_encoded(encoded))
    if holes and not (found.start <= holes.min() and holes.max() < found.stop):
        raise InvalidMessage(f"a hole is not between {found.start} and {found.stop}")
    return BitMap64(found) - holes


def _with_bitmap(found: range, bits: bytes) -> BitMap64:
    """Return the numbers of the range whose bits are set. The first number has the least significant bit."""
    if len(bits) != (len(found) + 7) // 8:
        raise InvalidMessage(f"a bitmap of {len(bits)} bytes for {len(found)} numbers")
    mask = pa.Array.from_buffers(pa.bool_(), len(found), [None, pa.py_buffer(bits)])
    result = BitMap64()
    for start in range(0, len(found), _BITS_AT_A_TIME):
        places = pc.indices_nonzero(mask.slice(start, _BITS_AT_A_TIME))
        result |= set_of(pc.add(places, pa.scalar(found.start + start, pa.uint64())))
    return result


def _sorted(numbers: pa.UInt64Array) -> BitMap64:
    if len(numbers) > 1 and not pc.all(pc.less(numbers[:-1], numbers[1:])).as_py():
        raise InvalidMessage("numbers that must be sorted are not, or occur twice")
    return set_of(numbers)


def _encoded(message: Message) -> pa.UInt64Array:
    """Read a message `EncodedU64Array`: numbers of 16 or 32 bits after a base, or of 64 bits."""
    kind = message.one_of(1, 2, 3)
    if kind is None:
        return pa.array([], pa.uint64())
    content = Message(message.data(kind))
    narrow, data = {1: pa.uint16(), 2: pa.uint32(), 3: pa.uint64()}[kind], content.data(2)
    if len(data) % narrow.byte_width:
        raise InvalidMessage(f"{len(data)} bytes for numbers of {narrow.byte_width} bytes")
    numbers = pa.Array.from_buffers(narrow, len(data) // narrow.byte_width, [None, pa.py_buffer(data)])
    if len(numbers) > MOST_ROWS:
        raise InvalidMessage(f"{len(numbers)} numbers in a segment")
    if kind == 3:
        return numbers
    try:
        return pc.add_checked(numbers.cast(pa.uint64()), pa.scalar(content.number(1), pa.uint64()))
    except pa.ArrowInvalid:
        raise InvalidMessage("a number has more than 64 bits") from None
