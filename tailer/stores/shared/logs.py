"""Reads of one table's log, shared by the pipelines of a process that follow it in an object store.

Each pipeline has a log of its own, at its own position. Pipelines at about the same position ask for the same objects
at about the same time: for the next version, again and again, and for its commit when it is there. The first one asks
the store. Others that ask meanwhile get its answer, and those that ask within `KEEP_S` seconds get the object. So a
version costs one request for all of them, and so does a look for the next one, because their waits end together.

Only objects that are named by a version are shared. They do not change unless the whole table is replaced, which the
logs find out from metadata, which is not shared. Absent objects are not remembered.
"""

import re
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from io import BytesIO
from typing import Final, TypeVar
from weakref import WeakSet, WeakValueDictionary

from anyio import Event

from tailer.errors import ObjectNotFound
from tailer.stores.port import Folders, ObjectMeta, Objects, ObjectStore, OpenObject, StoredObject, in_thread
from tailer.stores.shared.wake import SharedWake
from tailer.stores.wakeup import Wake

__all__ = ["SharedLogs"]

T = TypeVar("T")

KEEP_S: Final = 2.0
_KEEP_BYTES: Final = 16 * 2**20  # of all tables of the process
_OBJECT_BYTES: Final = 2**20  # larger ones are not shared
_NAMED_BY_VERSION: Final = re.compile(r"[^/]+/[0-9]+\.[a-z]+")


@dataclass(eq=False, slots=True)
class _Request:
    """A request that is under way. After it, one of these is true of the object, or the request has failed."""

    done: Event
    stored: StoredObject | None = None
    is_large: bool = False
    is_missing: bool = False


@dataclass(eq=False, slots=True, weakref_slot=True)
class _Log:
    """A log that at least one pipeline follows, and how it is reached."""

    key: Hashable
    users: "WeakSet[_SharedLog]" = field(default_factory=WeakSet)
    wakes: WeakSet[SharedWake] = field(default_factory=WeakSet)
    requests: dict[str, _Request] = field(default_factory=dict)


class SharedLogs:
    """The logs that the pipelines of a process follow. For one event loop. `clock`: in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._logs: WeakValueDictionary[Hashable, _Log] = WeakValueDictionary()
        self._kept: OrderedDict[tuple[Hashable, str], tuple[float, StoredObject]] = OrderedDict()
        self._kept_bytes = 0

    def share(self, store: ObjectStore, access: Hashable) -> ObjectStore:
        """Return `store`, the root of a table, for one more pipeline. `access`: the options by which it is reached.

        A folder of this machine is returned as it is: reading a file twice costs next to nothing.
        """
        if not store.is_atomic:
            return store
        key = store.uri, access
        log = self._logs.setdefault(key, _Log(key))
        shared = _SharedLog(store, log, self)
        log.users.add(shared)
        return shared

    def kept(self, log: _Log, name: str) -> StoredObject | None:
        """Return an object that was read a moment ago."""
        self._forget()
        found = self._kept.get((log.key, name))
        return None if found is None else found[1]

    def keep(self, log: _Log, stored: StoredObject) -> None:
        """Keep an object for a moment."""
        key = log.key, stored.meta.name
        if key not in self._kept:
            self._kept[key] = self._clock(), stored
            self._kept_bytes += len(stored.data)
            self._forget()

    def _forget(self) -> None:
        oldest_s = self._clock() - KEEP_S
        while self._kept:
            key, (time_s, stored) = next(iter(self._kept.items()))
            if time_s >= oldest_s and self._kept_bytes <= _KEEP_BYTES:
                return
            del self._kept[key]
            self._kept_bytes -= len(stored.data)


class _SharedLog(ObjectStore):
    """The store of one of the pipelines that follow `log`; `logs` keeps what it reads."""

    def __init__(self, store: ObjectStore, log: _Log, logs: SharedLogs) -> None:
        self._store = store
        self._log = log
        self._logs = logs
        self.uri = store.uri
        self.is_atomic = store.is_atomic

    async def read(self, name: str, decode: Callable[[StoredObject], T]) -> T:
        """See `ObjectStore.read`."""
        found = await self._shared(name)
        return await (self._store.read(name, decode) if found is None else in_thread(decode, found))

    async def scan(self, name: str, work: Callable[[OpenObject], T]) -> T:
        """See `ObjectStore.scan`."""
        found = await self._shared(name)
        if found is None:
            return await self._store.scan(name, work)
        return await in_thread(work, OpenObject(found.meta, BytesIO(found.data)))

    async def stat(self, name: str) -> ObjectMeta:
        """See `ObjectStore.stat`."""
        return await self._store.stat(name)

    async def list(self, prefix: str, start_after: str = "") -> Objects:
        """See `ObjectStore.list`."""
        return await self._store.list(prefix, start_after)

    async def list_folders(self, prefix: str) -> Folders:
        """See `ObjectStore.list_folders`."""
        return await self._store.list_folders(prefix)

    async def put_if_absent(self, name: str, data: bytes) -> None:
        """See `ObjectStore.put_if_absent`."""
        await self._store.put_if_absent(name, data)

    async def put(self, name: str, data: bytes) -> None:
        """See `ObjectStore.put`."""
        await self._store.put(name, data)

    async def delete(self, name: str) -> None:
        """See `ObjectStore.delete`."""
        await self._store.delete(name)

    def make_wake(self, prefix: str, names: re.Pattern[str]) -> Wake:
        """See `ObjectStore.make_wake`; the waits of all pipelines of the table end together."""
        return SharedWake(self._store.make_wake(prefix, names), self._log.wakes)

    async def _shared(self, name: str) -> StoredObject | None:
        """Return an object that others may ask for, too; None: it is to be read for this pipeline alone.

        Raises as `ObjectStore.read`.
        """
        if len(self._log.users) == 1 or _NAMED_BY_VERSION.fullmatch(name) is None:
            return None
        while True:
            if (kept := self._logs.kept(self._log, name)) is not None:
                return kept
            request = self._log.requests.get(name)
            if request is None:
                return await self._request(name)
            await request.done.wait()
            if request.stored is not None or request.is_large:
                return request.stored
            if request.is_missing:
                raise ObjectNotFound(f"{self.uri}/{name}")

    async def _request(self, name: str) -> StoredObject | None:
        """Ask the store, for all who ask for the object meanwhile."""
        request = self._log.requests[name] = _Request(Event())
        try:
            request.stored = await self._store.scan(name, _small)
            request.is_large = request.stored is None
        except ObjectNotFound:
            request.is_missing = True
            raise
        finally:
            del self._log.requests[name]
            request.done.set()
        if request.stored is not None:
            self._logs.keep(self._log, request.stored)
        return request.stored


def _small(opened: OpenObject) -> StoredObject | None:
    if opened.meta.size_bytes > _OBJECT_BYTES:
        return None
    return StoredObject(opened.meta, opened.file.read())
