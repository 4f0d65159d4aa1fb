"""Stable row ids of a fragment's rows (Lance format, "Row ID sequences", `protos/rowids.proto`).

A sequence has one id for each row of a fragment, deleted or not, in the order of their offsets. Sets of ids are
bitmaps, which hold a range of any length in few bytes: the ids of 100 million rows that were appended together take a
millisecond to build and to compare.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap, BitMap64

from tailer.formats.lance.protobuf import InvalidMessage, Message
from tailer.formats.lance.row_ids.segments import MOST_ROWS, Segment, numbers_of, parse_segment, set_of

__all__ = ["RowIds", "parse_row_ids"]

_ONE_BITMAP: Final = struct.pack("<QI", 1, 0)


@dataclass(frozen=True, slots=True)
class RowIds:
    """Ids of a fragment's rows. `all`: the ids as a set. Treat it as read-only."""

    segments: tuple[Segment, ...]
    all: BitMap64

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.all)

    def at(self, offsets: BitMap) -> pa.UInt64Array:
        """Return the ids of the rows at some offsets, in the order of the offsets. Raises `IndexError`."""
        found = [numbers_of(ids) for ids in self._slices(offsets)]
        return pa.concat_arrays(found) if found else pa.array([], pa.uint64())

    def set_at(self, offsets: BitMap) -> BitMap64:
        """Return the ids of the rows at some offsets as a set. Raises `IndexError`."""
        return BitMap64().union(*(set_of(ids) for ids in self._slices(offsets)))

    def live(self, deleted: BitMap) -> BitMap64:
        """Return the ids of the rows that are not deleted. Raises `IndexError` for an offset after the last row."""
        return self.all - self.set_at(deleted)

    def offsets_of(self, ids: BitMap64) -> BitMap:
        """Return the offsets of the rows that have one of these ids. Other ids are ignored."""
        found = BitMap()
        for start, segment in self._placed():
            wanted = ids & set_of(segment)
            if not wanted:
                continue
            if isinstance(segment, range):
                found |= _narrow(wanted.shift(start - segment.start))
            else:
                places = pc.indices_nonzero(pc.is_in(numbers_of(segment), value_set=numbers_of(wanted)))
                found |= _narrow(set_of(pc.add(places, pa.scalar(start, pa.uint64()))))
        return found

    def _slices(self, offsets: BitMap) -> Iterator[Segment]:
        """Yield the ids at some offsets, one piece for each segment that has any of them."""
        if offsets and offsets.max() >= len(self):
            raise IndexError(f"offset {offsets.max()} of {len(self)} rows")
        for start, segment in self._placed():
            within = offsets & BitMap(range(start, start + len(segment)))
            if not within:
                continue
            if isinstance(segment, range):
                yield _widen(within).shift(segment.start - start)
            else:
                yield numbers_of(segment).take(numbers_of(_widen(within).shift(-start)))

    def _placed(self) -> Iterator[tuple[int, Segment]]:
        """Yield each segment with the offset of its first row."""
        start = 0
        for segment in self.segments:
            yield start, segment
            start += len(segment)


def parse_row_ids(data: bytes) -> RowIds:
    """Read a row id sequence. Raises `InvalidMessage`, also for an id that two rows have."""
    segments: list[Segment] = []
    ids, rows = BitMap64(), 0
    for message in Message(data).messages(1):
        segment = parse_segment(message)
        rows += len(segment)
        if rows > MOST_ROWS:
            raise InvalidMessage(f"a sequence of more than {MOST_ROWS} rows")
        segments.append(segment)
        ids |= set_of(segment)
    if len(ids) != rows:
        raise InvalidMessage(f"{rows} rows have {len(ids)} different ids")
    return RowIds(tuple(segments), ids)


def _widen(offsets: BitMap) -> BitMap64:
    """Return the same numbers as 64-bit ones: the portable format of these is a list of 32-bit bitmaps."""
    return BitMap64.deserialize(_ONE_BITMAP + offsets.serialize())


def _narrow(offsets: BitMap64) -> BitMap:
    """Return the same numbers, all below 2**32, as 32-bit ones."""
    return BitMap.deserialize(offsets.serialize()[len(_ONE_BITMAP) :]) if offsets else BitMap()
