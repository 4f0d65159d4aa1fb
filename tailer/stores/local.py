"""The `ObjectStore` port with eight methods; a local directory and an in-memory store as implementations.

Log reading is asynchronous at this port. `read` fetches an object and decodes it in one worker thread, so parsing never
blocks the event loop. Names are `/`-separated and relative to the store's root. `list` is in lexicographic order, as in
object stores, so zero-padded versions come in numeric order.

Commits use `put_if_absent`: it writes an object completely or not at all, and raises `ObjectAlreadyExists` where the
object exists.
"""

import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar

from anyio import sleep, to_thread

from tailer.errors import ObjectAlreadyExists, ObjectNotFound, StorageError, StorageRefused, StorageUnavailable
from tailer.stores.folders import creation_obstacle, is_lasting
from tailer.stores.wakeup import LocalWake, TimerWake, Wake

__all__ = ["LocalStore", "MemoryStore", "ObjectMeta", "ObjectStore", "OpenObject", "StoredObject", "in_thread", "stays"]

T = TypeVar("T")


async def in_thread(work: Callable[..., T], *args: object) -> T:
    """Run blocking or long work in a worker thread. It cannot be cancelled once started, because it may be writing."""
    return await to_thread.run_sync(work, *args)


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    """An object's name, size and time of last modification (milliseconds since 1970)."""

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


class ObjectStore(Protocol):
    """A flat space of named objects below one root."""

    @property
    def uri(self) -> str:
        """The root in tasks and messages, without a trailing slash."""
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


class LocalStore:
    """A local directory. Commits are durable: data and directory are synced before success is reported."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()

    @property
    def uri(self) -> str:
        """The directory's absolute path."""
        return str(self.root)

    async def read(self, name: str, decode: Callable[[StoredObject], T]) -> T:
        """See `ObjectStore.read`."""
        return await to_thread.run_sync(lambda: decode(self._fetch(name)))

    async def scan(self, name: str, work: Callable[[OpenObject], T]) -> T:
        """See `ObjectStore.scan`."""
        return await to_thread.run_sync(self._open, name, work)

    async def stat(self, name: str) -> ObjectMeta:
        """See `ObjectStore.stat`."""
        return await to_thread.run_sync(self._look, name)

    async def list(self, prefix: str, start_after: str = "") -> Objects:
        """See `ObjectStore.list`."""
        return await to_thread.run_sync(self._scan, prefix, start_after)

    async def put_if_absent(self, name: str, data: bytes) -> None:
        """See `ObjectStore.put_if_absent`; a hard link creates the name."""
        await to_thread.run_sync(self._write, name, data, os.link)

    async def put(self, name: str, data: bytes) -> None:
        """See `ObjectStore.put`."""
        await to_thread.run_sync(self._write, name, data, os.replace)

    async def delete(self, name: str) -> None:
        """See `ObjectStore.delete`."""
        await to_thread.run_sync(self._unlink, name)

    def make_wake(self, prefix: str, names: re.Pattern[str]) -> Wake:
        """See `ObjectStore.make_wake`; the operating system notifies."""
        return LocalWake(self.root / prefix, names)

    def _fetch(self, name: str) -> StoredObject:
        def whole(opened: OpenObject) -> StoredObject:
            data = opened.file.read()
            return StoredObject(replace(opened.meta, size_bytes=len(data)), data)

        return self._open(name, whole)

    def _look(self, name: str) -> ObjectMeta:
        path = self.root / name
        with _translated(path):
            found = path.stat()
        return ObjectMeta(name, found.st_size, found.st_mtime_ns // 1_000_000)

    def _open(self, name: str, work: Callable[[OpenObject], T]) -> T:
        path = self.root / name
        with _translated(path), path.open("rb") as file:
            found = os.fstat(file.fileno())
            return work(OpenObject(ObjectMeta(name, found.st_size, found.st_mtime_ns // 1_000_000), file))

    def _scan(self, prefix: str, start_after: str) -> Objects:
        found: Objects = []
        try:
            with _translated(self.root / prefix), os.scandir(self.root / prefix) as entries:
                for entry in entries:
                    name = f"{prefix}/{entry.name}"
                    # A file may be deleted between listing and `stat`; that must not hide the others.
                    with suppress(FileNotFoundError):
                        if name > start_after and entry.is_file():
                            stat = entry.stat()
                            found.append(ObjectMeta(name, stat.st_size, stat.st_mtime_ns // 1_000_000))
        except ObjectNotFound:
            return []
        return sorted(found, key=lambda meta: meta.name)

    def _unlink(self, name: str) -> None:
        path = self.root / name
        with suppress(ObjectNotFound), _translated(path):
            path.unlink()

    def _write(self, name: str, data: bytes, publish: Callable[[Path, Path], None]) -> None:
        path = self.root / name
        part = path.parent / f".{path.name}.{secrets.token_hex(8)}.tmp"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with part.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            publish(part, path)
            _sync_directory(path.parent)
        except OSError as error:
            if isinstance(error, FileExistsError) and path.parent.is_dir():
                raise ObjectAlreadyExists(str(path)) from None
            if obstacle := creation_obstacle(path.parent):
                raise StorageRefused(str(path), obstacle) from error
            raise _failure(path, error) from error
        finally:
            # An error about the object matters more than one about its temporary file.
            with suppress(OSError):
                part.unlink()


async def stays(store: ObjectStore, meta: ObjectMeta, for_s: float) -> bool:
    """Wait `for_s` seconds and return whether the object's size and time still equal `meta`.

    Raises `StorageUnavailable`.
    """
    await sleep(for_s)
    try:
        return await store.stat(meta.name) == meta
    except ObjectNotFound:
        return False


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    """Translate system errors about `path` into storage errors."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise ObjectNotFound(str(path)) from None
    except OSError as error:
        raise _failure(path, error) from error


def _failure(path: Path, error: OSError) -> StorageError:
    kind = StorageRefused if is_lasting(error) else StorageUnavailable
    return kind(str(path), error.strerror or str(error))


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class MemoryStore:
    """Objects in a dictionary, for tests; the simplest implementation of the port."""

    def __init__(self, uri: str = "memory:") -> None:
        self.uri = uri
        self.objects: dict[str, StoredObject] = {}

    async def read(self, name: str, decode: Callable[[StoredObject], T]) -> T:
        """See `ObjectStore.read`."""
        if name not in self.objects:
            raise ObjectNotFound(f"{self.uri}/{name}")
        return await to_thread.run_sync(decode, self.objects[name])

    async def scan(self, name: str, work: Callable[[OpenObject], T]) -> T:
        """See `ObjectStore.scan`."""
        return await self.read(name, lambda stored: work(OpenObject(stored.meta, BytesIO(stored.data))))

    async def stat(self, name: str) -> ObjectMeta:
        """See `ObjectStore.stat`."""
        return await self.read(name, lambda stored: stored.meta)

    async def list(self, prefix: str, start_after: str = "") -> Objects:
        """See `ObjectStore.list`."""
        names = sorted(name for name in self.objects if name.rpartition("/")[0] == prefix and name > start_after)
        return [self.objects[name].meta for name in names]

    async def put_if_absent(self, name: str, data: bytes) -> None:
        """See `ObjectStore.put_if_absent`."""
        if name in self.objects:
            raise ObjectAlreadyExists(f"{self.uri}/{name}")
        await self.put(name, data)

    async def put(self, name: str, data: bytes) -> None:
        """See `ObjectStore.put`."""
        self.objects[name] = StoredObject(ObjectMeta(name, len(data), time.time_ns() // 1_000_000), data)

    async def delete(self, name: str) -> None:
        """See `ObjectStore.delete`."""
        self.objects.pop(name, None)

    def make_wake(self, prefix: str, names: re.Pattern[str]) -> Wake:
        """See `ObjectStore.make_wake`."""
        return TimerWake()
