"""The `ObjectStore` port, with nine methods.

Log reading is asynchronous at this port. `read` fetches an object and decodes it in one worker thread, so parsing never
blocks the event loop. Names are `/`-separated and relative to the store's root. `list` is in lexicographic order, as in
object stores, so zero-padded versions come in numeric order.

Commits use `put_if_absent`: it writes an object completely or not at all, and raises `ObjectAlreadyExists` where the
object exists.
"""

import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple, Protocol, TypeVar, runtime_checkable

from anyio import sleep, to_thread

from tailer.errors import ObjectNotFound
from tailer.stores.wakeup import Wake

__all__ = [
    "BlockingScans",
    "Folders",
    "MarkedFolders",
    "ObjectMeta",
    "ObjectStore",
    "Objects",
    "OpenObject",
    "StoredObject",
    "in_thread",
    "stays",
]

T = TypeVar("T")


async def in_thread(work: Callable[..., T], *args: object) -> T:
    """Run blocking or long work in a worker thread. It cannot be cancelled once started, because it may be writing."""
    return await to_thread.run_sync(work, *args)


class ObjectMeta(NamedTuple):
    """An object's name, size and time of last modification (milliseconds since 1970).

    A named tuple, because a log may have very many, and they are made and compared sooner than dataclasses.
    """

    name: str
    size_bytes: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object's content."""

    meta: ObjectMeta
    data: bytes


@dataclass(frozen=True, slots=True)
class OpenObject:
    """An object open for reading, as a seekable file at its start. `meta`: as of opening."""

    meta: ObjectMeta
    file: BinaryIO


# In a class with a method named `list` the built-in is shadowed.
Objects = list[ObjectMeta]
Folders = list[str]


class ObjectStore(Protocol):
    """A flat space of named objects below one root."""

    @property
    def uri(self) -> str:
        """The root in tasks and messages, without a trailing slash."""
        ...

    @property
    def is_atomic(self) -> bool:
        """Return whether objects appear whole, whoever writes them: no reader sees the first part of one."""
        ...

    async def read(self, name: str, decode: Callable[[StoredObject], T]) -> T:
        """Fetch an object and decode it in a worker thread.

        Raises `ObjectNotFound`, `StorageUnavailable`. Every method raises `StorageRefused` where an operator must act.
        """
        ...

    async def scan(self, name: str, work: Callable[[OpenObject], T]) -> T:
        """Call `work` with an open object in a worker thread: for objects too large for memory.

        Raises `ObjectNotFound`, `StorageUnavailable`.
        """
        ...

    async def stat(self, name: str) -> ObjectMeta:
        """Return an object's metadata. Raises `ObjectNotFound`, `StorageUnavailable`."""
        ...

    async def list(self, prefix: str, start_after: str = "") -> Objects:
        """List objects directly below the folder `prefix` whose full name is greater than `start_after`, in order.

        A missing folder counts as empty.
        """
        ...

    async def list_folders(self, prefix: str) -> Folders:
        """Return the names of the folders directly below the folder `prefix` (empty: the root), in order.

        A missing folder counts as empty in an object store, which has no folders but those with objects in them; on a
        local disk it raises `ObjectNotFound`: the disk may not be mounted.
        """
        ...

    async def put_if_absent(self, name: str, data: bytes) -> None:
        """Create an object, durably. Raises `ObjectAlreadyExists`."""
        ...

    async def put(self, name: str, data: bytes) -> None:
        """Create or replace an object atomically: readers see the old or the new content."""
        ...

    async def delete(self, name: str) -> None:
        """Delete an object. A missing object is not an error."""
        ...

    def make_wake(self, prefix: str, names: re.Pattern[str]) -> Wake:
        """Make a wake-up for new objects directly below the folder `prefix` with one of these `names`; no I/O.

        A store that cannot notify returns a `TimerWake`.
        """
        ...


@runtime_checkable
class BlockingScans(Protocol):
    """A store whose objects are read so fast that a worker thread for each would take longer."""

    def scan_now(self, name: str, work: Callable[[OpenObject], T]) -> T:
        """Call `work` with an open object in this thread. Raises as `ObjectStore.scan`."""
        ...

    def stat_now(self, name: str) -> ObjectMeta:
        """Return an object's metadata. Raises as `ObjectStore.stat`."""
        ...


@runtime_checkable
class MarkedFolders(Protocol):
    """A store that can say whether a folder still has the same objects."""

    def folder_mark(self, prefix: str) -> Hashable | None:
        """Return a value that is another one after an object was added to the folder `prefix`, or removed from it.

        None where that cannot be said, as soon after such a change. Blocks.
        """
        ...


async def stays(store: ObjectStore, meta: ObjectMeta, for_s: float) -> bool:
    """Wait `for_s` seconds and return whether the object's size and time still equal `meta`.

    Raises `StorageUnavailable`.
    """
    await sleep(for_s)
    try:
        return await store.stat(meta.name) == meta
    except ObjectNotFound:
        return False
