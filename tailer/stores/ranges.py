"""The port through which worker threads read parts of one object, and an object as a file through it."""

import io
from typing import Any, Final, NamedTuple, Protocol

__all__ = ["ObjectEnd", "ObjectRanges", "RangeFile"]

_PIECE_BYTES: Final = 8 * 2**20


class ObjectEnd(NamedTuple):
    """The last bytes of an object, and the size of all of it."""

    size_bytes: int
    data: bytes


class ObjectRanges(Protocol):
    """The bytes of one object, read by any number of threads. An object replaced meanwhile is an error.

    Buckets have it, whose clients are not imported where all files are local.

    Every method raises `ObjectNotFound`, `StorageUnavailable` or `StorageRefused`.
    """

    @property
    def uri(self) -> str:
        """The location of the object."""
        ...

    def end(self, length: int) -> ObjectEnd:
        """Return up to `length` bytes from the end of the object, and its size, in one request."""
        ...

    def read(self, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from `offset` on; fewer only where the object ends there."""
        ...


class RangeFile(io.RawIOBase):
    """An object of a known size as a seekable file; each read is a request, so put a buffer around it."""

    def __init__(self, ranges: ObjectRanges, size_bytes: int) -> None:
        super().__init__()
        self._ranges = ranges
        self._size = size_bytes
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Move the position, and return it."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(start + offset, 0)
        return self._at

    def readall(self) -> bytes:
        """Read from the position to the end, in few requests. Raises as `ObjectRanges.read`."""
        pieces = []
        while self._at < self._size:
            pieces.append(self._ranges.read(self._at, min(_PIECE_BYTES, self._size - self._at)))
            self._at += len(pieces[-1])
        return b"".join(pieces)

    def readinto(self, buffer: Any, /) -> int:
        """Fill the buffer from the position on, as far as the object goes. Raises as `ObjectRanges.read`."""
        data = self._ranges.read(self._at, min(len(buffer), self._size - self._at))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
