"""An `ObjectStore` in memory, for tests; the simplest implementation of the port."""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TypeVar

from anyio import to_thread
from typing_extensions import override

from tailer.errors import ObjectAlreadyExists, ObjectNotFound
from tailer.stores.port import Folders, ObjectMeta, Objects, OpenObject, StoredObject
from tailer.stores.uploads import UploadStore
from tailer.stores.wakeup import TimerWake, Wake

__all__ = ["MemoryStore"]

T = TypeVar("T")


class MemoryStore(UploadStore):
    """Objects in a dictionary."""

    is_atomic = True

    def __init__(self, uri: str = "memory:") -> None:
        self.uri = uri
        self.objects: dict[str, StoredObject] = {}
        self._attributes: dict[str, Mapping[str, str]] = {}

    @override
    async def read(self, name: str, decode: Callable[[StoredObject], T]) -> T:
        if name not in self.objects:
            raise ObjectNotFound(f"{self.uri}/{name}")
        return await to_thread.run_sync(decode, self.objects[name])

    @override
    async def scan(self, name: str, work: Callable[[OpenObject], T]) -> T:
        return await self.read(name, lambda stored: work(OpenObject(stored.meta, BytesIO(stored.data))))

    @override
    async def stat(self, name: str) -> ObjectMeta:
        return await self.read(name, lambda stored: stored.meta)

    @override
    async def list(self, prefix: str, start_after: str = "") -> Objects:
        names = sorted(name for name in self.objects if name.rpartition("/")[0] == prefix and name > start_after)
        return [self.objects[name].meta for name in names]

    @override
    async def list_folders(self, prefix: str) -> Folders:
        above = f"{prefix}/" if prefix else ""
        below = (name.removeprefix(above) for name in self.objects if name.startswith(above))
        return sorted({name.partition("/")[0] for name in below if "/" in name})

    @override
    async def put_if_absent(self, name: str, data: bytes) -> None:
        if name in self.objects:
            raise ObjectAlreadyExists(f"{self.uri}/{name}")
        await self.put(name, data)

    @override
    async def put(self, name: str, data: bytes) -> None:
        self.objects[name] = StoredObject(ObjectMeta(name, len(data), time.time_ns() // 1_000_000), data)

    @override
    async def delete(self, name: str) -> None:
        self.objects.pop(name, None)
        self._attributes.pop(name, None)

    @override
    async def upload_if_absent(self, name: str, source: Path, attributes: Mapping[str, str]) -> None:
        await self.put_if_absent(name, await to_thread.run_sync(source.read_bytes))
        self._attributes[name] = dict(attributes)

    @override
    async def attributes(self, name: str) -> Mapping[str, str]:
        await self.stat(name)
        return self._attributes.get(name, {})

    @override
    async def names_below(self, prefix: str, start_after: str = "") -> Sequence[str]:
        folder = f"{prefix}/" if prefix else ""
        return sorted(name for name in self.objects if name.startswith(folder) and name > start_after)[:1000]

    @override
    def make_wake(self, prefix: str, names: re.Pattern[str]) -> Wake:
        return TimerWake()
