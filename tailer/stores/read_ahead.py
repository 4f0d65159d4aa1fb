"""Read an object through ranges that are fetched before they are read.

Opening it fetches its end, and with it its size, in one request: a small file is there as a whole, and so is a larger
one of which all will be read, if its size is known. Who will read some ranges says so (`ReadAhead.expect`). Threads
shared by the process fetch them in pieces (`tailer.stores.pieces`), in the order in which they are needed, as far as
the bound of the bytes held allows; what was read makes room for what comes.
A piece that is needed before a thread began to fetch it is fetched by the reader itself, so a file never waits for the
read-ahead of others. Anything else can be read too: tiny reads that follow each other share requests.
"""

import os
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Final
from weakref import WeakSet

from tailer.errors import StorageUnavailable
from tailer.stores.pieces import Limits, Piece, Range, Streamed, attach, pieces_of, streamed
from tailer.stores.ranges import ObjectRanges

__all__ = ["LIMITS", "ReadAhead", "open_ahead"]

LIMITS: Final = Limits()
_THREADS: Final = 16


class ReadAhead:
    """One object, used by one thread at a time. `needed_bytes`: its size if all of it will be read; 0: unknown.

    Every method raises what `ObjectRanges` raises, and `StorageUnavailable` for an answer that is too short.
    """

    def __init__(self, ranges: ObjectRanges, limits: Limits = LIMITS, needed_bytes: int = 0) -> None:
        self._ranges = ranges
        self._limits = limits
        tail_bytes = max(limits.tail_bytes, needed_bytes if needed_bytes <= limits.whole_bytes else 0)
        self.size_bytes, self._tail = ranges.end(tail_bytes)
        if len(self._tail) != min(tail_bytes, self.size_bytes):
            raise _short(ranges, len(self._tail), min(tail_bytes, self.size_bytes))
        self._tail_begin = self.size_bytes - len(self._tail)
        self._streams: list[Streamed] = []
        self._pieces: list[Piece] = []
        self._requested: dict[Piece, None] = {}
        self._waiting: deque[Piece] = deque()
        self._held_bytes = 0
        self._around_begin, self._around = 0, b""

    @property
    def whole(self) -> bytes | None:
        """All of the object, if it is there."""
        return None if self._tail_begin else self._tail

    def expect(self, now: Iterable[Range], later: Iterable[Range] = ()) -> None:
        """Fetch ranges that will be read, side by side, and after them those that may be read later.

        Nothing else is held any longer.
        """
        _expecting.add(self)
        orders = [streamed(now, self._tail_begin), streamed(later, self._tail_begin)]
        for piece in self._pieces:
            piece.streams = []
        for rank, streams in enumerate(orders):
            attach(self._pieces, streams, rank)
        for piece in [piece for piece in self._requested if not piece.streams]:
            self._drop(piece)
        requested = sorted(self._requested, key=_begin)
        pieces: list[Piece] = []
        for rank, streams in enumerate(orders):
            fresh = pieces_of(streams, requested, self._most_held, self._limits)
            attach(fresh, streams, rank)
            pieces += fresh
            requested = sorted(requested + fresh, key=_begin)
        self._streams = sorted((stream for streams in orders for stream in streams), key=_begin)
        self._pieces = requested
        self._waiting = deque(sorted(pieces, key=lambda piece: piece.rank))
        self._fetch_ahead()

    def read(self, offset: int, length: int) -> bytes | memoryview:
        """Return up to `length` bytes from `offset` on; fewer only where the object ends there."""
        end = min(offset + length, self.size_bytes)
        parts: list[memoryview] = []
        begin = offset
        while begin < end:
            parts.append(self._part(begin, end))
            self._note(begin, begin + len(parts[-1]))
            self._fetch_ahead()
            begin += len(parts[-1])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """Free its memory. What was not yet requested is not any more; an answer still to come is dropped."""
        _expecting.discard(self)
        for piece in list(self._requested):
            self._drop(piece)
        self._pieces, self._streams, self._tail, self._around = [], [], b"", b""
        self._waiting.clear()

    def _part(self, begin: int, end: int) -> memoryview:
        """Return the bytes from `begin` on, at least one and none after `end`."""
        if begin >= self._tail_begin:
            return memoryview(self._tail)[begin - self._tail_begin : end - self._tail_begin]
        index = bisect_right(self._pieces, begin, key=_begin) - 1
        if index >= 0 and begin < self._pieces[index].end:
            piece = self._pieces[index]
            return memoryview(self._content(piece))[begin - piece.begin : end - piece.begin]
        return self._unexpected(begin, min(end, self._tail_begin))

    def _content(self, piece: Piece) -> bytes:
        """Return the bytes of a piece; wait for them, or fetch them here if no thread has begun to."""
        if piece.content is None:
            if piece.future is None:
                self._hold(piece)
            if piece.future is None or piece.future.cancel():
                piece.content = _fetch(self._ranges, piece.begin, piece.end)
            else:
                piece.content = piece.future.result()
            piece.future = None
        return piece.content

    def _unexpected(self, begin: int, end: int) -> memoryview:
        """Return bytes that nobody expected, and remember some after them: more where reads follow each other."""
        around_end = self._around_begin + len(self._around)
        if not self._around_begin <= begin < around_end:
            follows = around_end <= begin < around_end + len(self._around)
            least = min(2 * len(self._around), self._limits.piece_bytes) if follows else self._limits.near_bytes
            stop = min(max(end, begin + least), self._tail_begin)
            content = _fetch(self._ranges, begin, stop)
            if len(content) > self._limits.held_bytes:
                return memoryview(content)[: end - begin]
            self._around_begin, self._around = begin, content
            if stop == self._tail_begin and not self._pieces:  # a footer larger than the tail is read more than once
                self._tail_begin, self._tail = begin, self._around + self._tail
                return memoryview(self._tail)[: end - begin]
        return memoryview(self._around)[begin - self._around_begin : end - self._around_begin]

    def _note(self, begin: int, end: int) -> None:
        """Note that the bytes were read."""
        for index in range(max(bisect_right(self._streams, begin, key=_begin) - 1, 0), len(self._streams)):
            stream = self._streams[index]
            if stream.begin >= end:
                break
            if begin <= stream.read_to:
                stream.read_to = max(stream.read_to, min(end, stream.end))

    def _fetch_ahead(self) -> None:
        """Request pieces as long as there is room for them."""
        while self._waiting:
            piece = self._waiting[0]
            if not piece.is_requested and not piece.is_read:
                if not self._has_room(piece.size_bytes):
                    return
                self._hold(piece)
                piece.future = _threads().submit(_fetch, self._ranges, piece.begin, piece.end)
            self._waiting.popleft()

    @property
    def _most_held(self) -> int:
        """The bound of bytes held, as long as no more objects are read."""
        return min(self._limits.held_bytes, self._limits.shared_bytes // max(len(_expecting), 1))

    def _has_room(self, size_bytes: int) -> bool:
        """Return whether there is room for a piece, after dropping what was read."""
        most = self._most_held - size_bytes
        if self._held_bytes > most:
            for piece in [piece for piece in self._requested if piece.is_read]:
                self._drop(piece)
                if self._held_bytes <= most:
                    break
        return self._held_bytes <= max(most, 0)

    def _hold(self, piece: Piece) -> None:
        self._requested[piece] = None
        self._held_bytes += piece.size_bytes

    def _drop(self, piece: Piece) -> None:
        del self._requested[piece]
        self._held_bytes -= piece.size_bytes
        if piece.future is not None:
            piece.future.cancel()
        piece.future = piece.content = None


# All that may hold pieces.
_expecting: Final[WeakSet[ReadAhead]] = WeakSet()


def open_ahead(ranges: ObjectRanges, limits: Limits = LIMITS, needed_bytes: int = 0) -> Future[ReadAhead]:
    """Open an object that will be read later; see `ReadAhead`."""
    return _threads().submit(ReadAhead, ranges, limits, needed_bytes)


def _begin(part: Piece | Streamed) -> int:
    return part.begin


def _fetch(ranges: ObjectRanges, begin: int, end: int) -> bytes:
    content = ranges.read(begin, end - begin)
    if len(content) != end - begin:
        raise _short(ranges, len(content), end - begin)
    return content


def _short(ranges: ObjectRanges, sent: int, wanted: int) -> StorageUnavailable:
    return StorageUnavailable(ranges.uri, f"it sent {sent} bytes where {wanted} were requested")


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, "read-ahead")


# A forked process has none of the threads.
os.register_at_fork(after_in_child=_threads.cache_clear)
