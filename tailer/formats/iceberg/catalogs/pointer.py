"""Points to the metadata file that a catalog names: one request for each look, and no listing.

The folder of that file is where the table is. It may be another one later: then the id in the metadata says whether it
is still the same table.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from typing_extensions import override

from tailer.errors import ConfigError, NotATable
from tailer.formats.iceberg.files.places import Places
from tailer.formats.iceberg.metadata.current import FOLDER, TITLE, MetadataFile, Pointer
from tailer.stores.location import parse_location
from tailer.stores.port import ObjectStore

__all__ = ["CatalogPointer", "CatalogTable", "root_of"]

_NOWHERE: Final = Path("/")  # locations are absolute


class CatalogTable(Protocol):
    """A table that a catalog knows by `name`."""

    name: str

    async def look(self) -> str | None:
        """Return the location of the metadata file of now; None: the catalog has no such table.

        Raises as `TableNames.find`.
        """
        ...


def root_of(location: str) -> str:
    """Return the folder of the table whose metadata file is at `location`. Raises `NotATable`."""
    return _split(location)[0]


def _split(location: str) -> tuple[str, str]:
    try:
        parsed = parse_location(f"file:{location}" if location.startswith("/") else location, _NOWHERE, "table")
    except ConfigError as error:
        remedy = "The catalog has its metadata where lake-tailer cannot read."
        raise NotATable(location, error.reason, TITLE, remedy) from None
    folder, _, name = parsed.rpartition("/")
    root = folder.removesuffix(f"/{FOLDER}")
    return root, name if root == folder else f"{FOLDER}/{name}"


class CatalogPointer(Pointer):
    """Points to the metadata of a table that a catalog names, whose folder is the root of `store` at first.

    `places`: are told other folders.
    """

    def __init__(
        self, table: CatalogTable, store: ObjectStore, open_store: Callable[[str], ObjectStore], places: Places
    ) -> None:
        self._table = table
        self._store = store
        self._open_store = open_store
        self._places = places

    @override
    async def current(self) -> MetadataFile:
        location = await self._table.look()
        if location is None:
            reason = "the catalog has no such table any more: it was dropped or renamed"
            remedy = "Give its new name. A table that was made again is another one: add a pipeline for it."
            raise NotATable(self._table.name, reason, TITLE, remedy)
        root, name = _split(location)
        if root != self._store.uri:
            self._store = self._open_store(root)
            self._places.add(self._store)
        return MetadataFile(self._store, name)
