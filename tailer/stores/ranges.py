"""The port through which worker threads read parts of one object. Executors import it, and have no event loop."""

from typing import NamedTuple, Protocol

__all__ = ["ObjectEnd", "ObjectRanges"]


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
