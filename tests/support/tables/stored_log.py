"""Logs in a store in memory that counts requests by kind, and fails as told."""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, TypeVar

from tailer.errors import TailerError
from tailer.formats.delta.log.listing import commit_name
from tailer.stores.port import ObjectMeta, Objects, OpenObject, StoredObject
from tests.support.cloud.memory_store import MemoryStore
from tests.support.tables.log_files import add, metadata, protocol

__all__ = ["CountingStore", "a_log", "put_commit"]

T = TypeVar("T")

HEAD: Final = (protocol(), metadata())


class CountingStore(MemoryStore):
    """A store that counts requests as S3 does. `errors`: by the name of an object, for every GET of it."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: Counter[str] = Counter()
        self.errors: dict[str, TailerError] = {}
        self.asked: list[str] = []
        self.open = 0
        self.most_open = 0

    async def read(self, name: str, decode: Callable[[StoredObject], T]) -> T:
        """Count a GET."""
        self.requests["GET"] += 1
        self.asked.append(name)
        if name in self.errors:
            raise self.errors[name]
        return await super().read(name, decode)

    async def scan(self, name: str, work: Callable[[OpenObject], T]) -> T:
        """Count a GET, and those that run at the same time."""
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            return await super().scan(name, work)
        finally:
            self.open -= 1

    async def stat(self, name: str) -> ObjectMeta:
        """Count a HEAD."""
        self.requests["HEAD"] += 1
        return await MemoryStore.read(self, name, lambda stored: stored.meta)

    async def list(self, prefix: str, start_after: str = "") -> Objects:
        """Count a LIST."""
        self.requests["LIST"] += 1
        return await super().list(prefix, start_after)

    async def put_if_absent(self, name: str, data: bytes) -> None:
        """Count a PUT."""
        self.requests["PUT"] += 1
        await super().put_if_absent(name, data)

    async def delete(self, name: str) -> None:
        """Count a DELETE."""
        self.requests["DELETE"] += 1
        await super().delete(name)

    def taken(self) -> dict[str, int]:
        """Return the numbers of requests since the last call."""
        found, self.requests = dict(self.requests), Counter()
        self.asked.clear()
        return found


def put_commit(store: MemoryStore, version: int, *actions: dict[str, Any], at_ms: int | None = None) -> None:
    """Write a commit of whole seconds, one second after the one before it, unless `at_ms` says otherwise."""
    data = "".join(json.dumps(action) + "\n" for action in actions).encode()
    name = commit_name(version)
    meta = ObjectMeta(name, len(data), 1_000_000 + 1000 * version if at_ms is None else at_ms)
    store.objects[name] = StoredObject(meta, data)


def a_log(store: MemoryStore, versions: int, first: int = 0) -> None:
    """Write commits that add a file each; version 0 also begins the table."""
    for version in range(first, versions):
        put_commit(store, version, *(HEAD if version == 0 else ()), add(f"f{version}"))
