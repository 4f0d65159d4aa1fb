"""The `ObjectStore` port, a class to inherit: what a store need not have is a method with a default.

Log reading is asynchronous at this port. `read` fetches an object and decodes it in one worker thread, so parsing never
blocks the event loop. Names are `/`-separated and relative to the store's root. `list` is in lexicographic order, as in
object stores, so zero-padded versions come in numeric order.

Commits use `put_if_absent`: it writes an object completely or not at all, and raises `ObjectAlreadyExists` where the
object exists.

Worker threads read parts of one object through another port, `tailer.stores.ranges.ObjectRanges`.
"""

import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple, Protocol, TypeVar

from anyio import sleep, to_thread

from tailer.errors import ObjectNotFound
from tailer.stores.ranges import ObjectRanges
from tailer.stores.wakeup import Wake

__all__ = [
    "BlockingScans",
    "Folders",
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

    `etag`: of its content, without the quotes that some listings leave out; empty where the store has none. Two
    contents of one size may have one time.

    A named tuple, because a log may have very many, and they are made and compared sooner than dataclasses.
    """

    name: str
    size_bytes: int
    modified_ms: int
    etag: str = ""


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
    """A flat space of named objects below one root.

    `uri`: the root in tasks and messages, without a trailing slash. `is_atomic`: whether objects appear whole, whoever
    writes them: no reader sees the first part of one.
    """

    uri: str
    is_atomic: bool

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

    async def holds(self, prefix: str, is_wanted: Callable[[str], bool]) -> bool:
        """Return whether the folder `prefix` has an object whose name, without the folder, is wanted; one request.

        A missing folder has none.
        """
        return any(is_wanted(meta.name.removeprefix(f"{prefix}/")) for meta in await self.list(prefix))

    async def folder_mark(self, prefix: str) -> Hashable | None:
        """Return a value that changes when an object is added to the folder `prefix`, or removed from it.

        None where the store cannot tell, for example soon after such a change.
        """
        return None

    def ranges(self, name: str) -> ObjectRanges | None:
        """Return the bytes of an object, to be read by threads; None where the location is that of a local file."""
        return None

    def blocking(self) -> "BlockingScans | None":
        """Return the store's reads for the calling thread; None where a read takes longer than to start a thread."""
        return None


class BlockingScans(Protocol):
    """Reads in the calling thread, by the local store alone: the port knows none of its implementations."""

    def scan_now(self, name: str, work: Callable[[OpenObject], T]) -> T:
        """Call `work` with an open object in this thread. Raises as `ObjectStore.scan`."""
        ...

    def stat_now(self, name: str) -> ObjectMeta:
        """Return an object's metadata. Raises as `ObjectStore.stat`."""
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
