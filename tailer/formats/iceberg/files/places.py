"""Places of a table's files: metadata names them by absolute locations, in the spelling of whoever wrote them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from tailer.errors import ConfigError, FileOutsideTable, ObjectNotFound
from tailer.stores.location import is_readable, lies_in, parse_location
from tailer.stores.port import ObjectStore, OpenObject, StoredObject
from tailer.stores.ranges import ObjectRanges

__all__ = ["Places"]

T = TypeVar("T")

_NOWHERE: Final = Path("/")  # locations are absolute


class Places:
    """Opens the files of the table at the root of `store`.

    `open_store`: opens another root. `allowed_roots`: where files may be, besides the table's folder.
    """

    def __init__(
        self, store: ObjectStore, open_store: Callable[[str], ObjectStore], allowed_roots: Sequence[str] = ()
    ) -> None:
        self._stores = {store.uri: store}
        self._open_store = open_store
        self._roots = (store.uri, *allowed_roots)
        self.uri = store.uri

    def add(self, store: ObjectStore) -> None:
        """Allow files below the root of another store, which the table's catalog names."""
        self._stores[store.uri] = store
        self._roots = (store.uri, *self._roots)

    def locate(self, path: str, version: int) -> str:
        """Return the location of a file. Raises `FileOutsideTable` where it is in no folder that is allowed."""
        try:  # a path by itself is literal, as in an address of a file
            location = parse_location(f"file:{path}" if path.startswith("/") else path, _NOWHERE, "file")
        except ConfigError as error:
            raise FileOutsideTable(self.uri, version, path, is_readable(path)) from error
        if not any(lies_in(location, root) for root in self._roots):
            raise FileOutsideTable(self.uri, version, location, is_readable(location))
        return location

    async def read(self, path: str, version: int, decode: Callable[[StoredObject], T]) -> T:
        """Read a small file. Raises as `locate` and `ObjectStore.read`."""
        store, name = self._opened(path, version)
        return await store.read(name, decode)

    def ranges(self, location: str) -> ObjectRanges:
        """Return the bytes of a file in a store, at a location that `locate` returned. Raises `ObjectNotFound`."""
        store, name = self._store_of(location)
        ranges = store.ranges(name)
        if ranges is None:
            raise ObjectNotFound(location)
        return ranges

    async def scan(self, path: str, version: int, work: Callable[[OpenObject], T]) -> T:
        """Call `work` with an open file. Raises as `locate` and `ObjectStore.scan`."""
        store, name = self._opened(path, version)
        return await store.scan(name, work)

    def _opened(self, path: str, version: int) -> tuple[ObjectStore, str]:
        return self._store_of(self.locate(path, version))

    def _store_of(self, location: str) -> tuple[ObjectStore, str]:
        root = next(root for root in self._roots if lies_in(location, root))
        if root not in self._stores:
            self._stores[root] = self._open_store(root)
        return self._stores[root], location.removeprefix(root).removeprefix("/")
