"""Row positions as bitmaps and as Arrow arrays, converted without a Python object per row."""

import array
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

__all__ = [
    "WORD_BITS",
    "Bitmaps",
    "bitmap_of",
    "bitmap_of_words",
    "from_bytes",
    "positions_of",
    "span",
    "to_bytes",
    "words_of",
]

# Row positions by the number of their source, such as a task index.
Bitmaps = dict[int, BitMap64]

WORD_BITS: Final = 64


def span(first: int, end: int) -> BitMap64:
    """Return all positions from `first` to before `end`."""
    positions = BitMap64()
    positions.add_range(first, end)
    return positions


def positions_of(bitmap: BitMap64) -> pa.Array:
    """Convert a bitmap to ascending int64 positions."""
    raw = bitmap.to_array()
    return pa.Array.from_buffers(pa.int64(), len(raw), [None, pa.py_buffer(raw)])


def bitmap_of(positions: pa.Array) -> BitMap64:
    """Convert int64 positions, in any order and without nulls, to a bitmap."""
    count = len(positions)
    if count == 0:
        return BitMap64()
    first, last = positions[0].as_py(), positions[-1].as_py()
    if last - first == count - 1 and (count == 1 or pc.all(pc.greater(positions[1:], positions[:-1])).as_py()):
        return span(first, last + 1)
    start = positions.offset * 8
    return BitMap64(array.array("Q", positions.buffers()[1].to_pybytes()[start : start + count * 8]))


def words_of(bitmap: BitMap64, count: int) -> pa.Array:
    """Convert the positions below `count` to int64 words of `WORD_BITS`, the first position in the lowest bit."""
    words = count // WORD_BITS + 1
    bits = pc.is_in(positions_of(span(0, words * WORD_BITS)), value_set=positions_of(bitmap))
    return pa.Array.from_buffers(pa.int64(), words, [None, bits.buffers()[1]])


def bitmap_of_words(numbers: pa.Array, words: pa.Array) -> BitMap64:
    """Convert int64 words as of `words_of`, some of them by their numbers, to a bitmap. Both arrays have no nulls."""
    bitmap = BitMap64()
    for bit in range(WORD_BITS):
        mask = 1 << bit if bit < WORD_BITS - 1 else -(1 << bit)
        is_set = pc.not_equal(pc.bit_wise_and(words, pa.scalar(mask, pa.int64())), 0)
        bitmap |= bitmap_of(pc.add(pc.multiply(numbers.filter(is_set), WORD_BITS), bit))
    return bitmap


def to_bytes(bitmap: BitMap64) -> bytes:
    """Convert a bitmap for another machine; ranges take a few bytes."""
    bitmap.run_optimize()
    data: bytes = bitmap.serialize()
    return data


def from_bytes(data: bytes) -> BitMap64:
    """Convert what `to_bytes` returned."""
    return BitMap64.deserialize(data)
