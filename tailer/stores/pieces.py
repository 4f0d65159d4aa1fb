"""Cut the ranges of an object that will be read into pieces, each to be fetched by one request.

Of neighbouring ranges that are close to each other, one request fetches both and the bytes between them. Large ranges
are cut, so that several requests fetch them at the same time. Ranges are read side by side, each from its begin to its
end, as the columns of a row group are: the pieces of all ranges come in the order in which they will be needed.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

__all__ = ["Limits", "Piece", "Range", "Streamed", "attach", "pieces_of", "streamed"]

Range = tuple[int, int]  # from the first byte to before the last

_PARALLEL: Final = 8
# Of `least_bytes`, for a piece of what is fetched at once: 2 MB. A request costs as much of the processor as receiving
# several megabytes: from a server of this machine, files of 2 MB are read in two thirds of the time that they take in
# pieces of 1 MB, and with 20 ms for each request in the same time.
_LEAST_SHARES: Final = 8
_GAP_SHARE: Final = 8


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of what is fetched and held of one object.

    `tail_bytes`: fetched when it is opened. `whole_bytes`: up to this size an object of which all will be read is
    fetched then, in one request, which costs less than two requests for parts of it. `held_bytes`: of the pieces held
    and being fetched; less with many objects open, which have `shared_bytes` together. `piece_bytes`: of one piece.
    `least_bytes`: below this size nothing is cut. `near_bytes`: fetched rather than left out between two ranges;
    `gap_bytes`: likewise between two large ones.
    """

    tail_bytes: int = 2**17
    whole_bytes: int = 4 * 2**20
    held_bytes: int = 32 * 2**20
    shared_bytes: int = 128 * 2**20
    piece_bytes: int = 4 * 2**20
    least_bytes: int = 2**18
    near_bytes: int = 2**16
    gap_bytes: int = 2**19


@dataclass(slots=True)
class Streamed:
    """A range that is read from its begin to its end. `read_to`: the place up to which it was read."""

    begin: int
    end: int
    read_to: int


@dataclass(slots=True, eq=False)
class Piece:
    """Bytes of one request. `streams`: the ranges that it has bytes of. `rank`: how early it is needed.

    `future` and `content` are set while it is being fetched, and once it is held.
    """

    begin: int
    end: int
    streams: list[Streamed] = field(default_factory=list)
    rank: float = 0
    future: Future[bytes] | None = None
    content: bytes | None = None

    @property
    def size_bytes(self) -> int:
        """The number of its bytes."""
        return self.end - self.begin

    @property
    def is_requested(self) -> bool:
        """Return whether it is held or being fetched."""
        return self.future is not None or self.content is not None

    @property
    def is_read(self) -> bool:
        """Return whether all of it was read that will be."""
        return all(stream.read_to >= min(stream.end, self.end) for stream in self.streams)


def streamed(ranges: Iterable[Range], end: int) -> list[Streamed]:
    """Return the ranges before `end`, in ascending order, without those that lie in others."""
    streams: list[Streamed] = []
    covered = 0
    for first, last in sorted(ranges):
        begin, stop = max(first, covered), min(last, end)
        if begin < stop:
            streams.append(Streamed(begin, stop, begin))
            covered = stop
    return streams


def pieces_of(streams: Sequence[Streamed], held: Sequence[Piece], held_bytes: int, limits: Limits) -> list[Piece]:
    """Return the pieces that have all bytes of `streams` but those of the pieces `held`, which are in order.

    `held_bytes`: for which there is room.
    """
    total = sum(stream.end - stream.begin for stream in streams)
    if total <= held_bytes:
        size_bytes, joined_bytes = max(total // _PARALLEL, _LEAST_SHARES * limits.least_bytes), total + held_bytes
    else:
        # Of each large range one piece is read while the next one is fetched.
        large = sum(stream.end - stream.begin > limits.least_bytes for stream in streams)
        size_bytes = max(held_bytes // (2 * max(large, 1)), limits.least_bytes)
        joined_bytes = min(size_bytes, limits.piece_bytes)
    size_bytes = min(size_bytes, limits.piece_bytes)
    pieces = []
    for begin, end in _join(_without(streams, held), [piece.begin for piece in held], joined_bytes, limits):
        count = -(-(end - begin) // size_bytes)
        bounds = [begin + (end - begin) * number // count for number in range(count + 1)]
        pieces += [Piece(*bound) for bound in pairwise(bounds)]
    return pieces


def attach(pieces: Sequence[Piece], streams: Sequence[Streamed], rank: int) -> None:
    """Note with each piece the streams it has bytes of. `rank`: that of these streams among others."""
    begins, ends = [stream.begin for stream in streams], [stream.end for stream in streams]
    for piece in pieces:
        own = streams[bisect_right(ends, piece.begin) : bisect_left(begins, piece.end)]
        if own:
            shares = (max(piece.begin - stream.begin, 0) / (stream.end - stream.begin) for stream in own)
            piece.rank = rank + min(shares)
            piece.streams += own


def _without(streams: Iterable[Streamed], held: Sequence[Piece]) -> Iterator[Range]:
    """Yield the parts of the streams that no piece has, in order."""
    ends = [piece.end for piece in held]
    for stream in streams:
        begin = stream.begin
        for piece in held[bisect_right(ends, begin) :]:
            if piece.begin >= stream.end:
                break
            if begin < piece.begin:
                yield begin, piece.begin
            begin = piece.end
        if begin < stream.end:
            yield begin, stream.end


def _join(ranges: Iterable[Range], held: Sequence[int], most: int, limits: Limits) -> Iterator[Range]:
    """Join neighbours that are close to each other, up to `most` bytes, unless one of the pieces `held` is between.

    Bytes between ranges are fetched for nothing, but a request costs as much as many bytes. `held`: begins of pieces.
    """
    last: Range | None = None
    for begin, end in ranges:
        if last is not None:
            gap, size = begin - last[1], end - last[0]
            most_gap = max(limits.near_bytes, min(limits.gap_bytes, size // _GAP_SHARE))
            between = bisect_left(held, last[1]) < bisect_left(held, begin)
            if gap <= most_gap and size <= most and not between:
                last = last[0], end
                continue
            yield last
        last = begin, end
    if last is not None:
        yield last
