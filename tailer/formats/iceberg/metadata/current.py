"""Finds the current metadata file of a table.

In the folder of a table (Iceberg specification, "File System Tables") names have versions.

Version n of the metadata is the file `vN.metadata.json`, and no file is replaced. So the next version is found by
requesting its file, which costs one request however long the history is, and few where many versions are new.
`version-hint.text` names a version, but may lag behind, or be missing: then the folder is listed.

Where a catalog names the files, the folder does not tell which one is current: a commit that fails leaves a file that
was never part of the table. Such a table is followed by its name in the catalog: one request for each look, and no
listing. The folder of the file that the catalog names is where the table is. It may be another one later: then the id
in the metadata says whether it is still the same table. Without the catalog, one file alone can be read, which the
location names.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from typing_extensions import override

from tailer.errors import NotATable, ObjectNotFound
from tailer.formats.iceberg.catalogs.names import CatalogTable
from tailer.formats.iceberg.files.places import Places
from tailer.formats.iceberg.metadata.document import FOLDER, TITLE, Document, parse_document, split_location
from tailer.formats.registry import no_table
from tailer.stores.port import ObjectStore, StoredObject

__all__ = [
    "NAMES",
    "CatalogPointer",
    "CurrentDocument",
    "FolderPointer",
    "OneFile",
    "is_metadata_file",
]

NAMES: Final = re.compile(r"v([0-9]+)(\.gz)?\.metadata\.json(\.gz)?")
_HINT: Final = "version-hint.text"
_SPELLINGS: Final = ("v{}.metadata.json", "v{}.gz.metadata.json", "v{}.metadata.json.gz")
_CATALOGS: Final = re.compile(r"[0-9]+-.+(?:\.gz)?\.metadata\.json(?:\.gz)?")
_LIST_MISSES: Final = 16


def is_metadata_file(name: str) -> bool:
    return name.endswith((".metadata.json", ".metadata.json.gz"))


@dataclass(frozen=True, slots=True)
class MetadataFile:
    """A metadata file: the store of the table's folder, and the file's name there."""

    store: ObjectStore
    name: str


class Pointer(Protocol):
    """Knows which metadata file of a table is the current one."""

    async def current(self) -> MetadataFile:
        """Return the current file, with one request where it is the same as before. Raises `NotATable`."""
        ...


class CurrentDocument:
    """The newest metadata of the table to whose file `pointer` points."""

    def __init__(self, pointer: Pointer) -> None:
        self._pointer = pointer
        self._file: MetadataFile | None = None
        self._document: Document | None = None

    async def newest(self) -> Document:
        """Return the newest metadata. Raises `NotATable`, `LogCorrupt`, `UnsupportedFeature`."""
        file, before = await self._pointer.current(), self._document
        if before is not None and file == self._file:
            return before

        def decode(stored: StoredObject) -> Document:
            return parse_document(stored.data, file.store.uri, file.name, before)

        try:
            document = await file.store.read(file.name, decode)
        except ObjectNotFound as error:
            raise no_table(file.store.uri, FOLDER, f"no {file.name}", TITLE) from error
        self._document, self._file = document, file  # not before it was read: a store may not answer
        return document

    async def advance(self) -> Document | None:
        """Return the newest metadata where it is newer than the last; None where it is not."""
        before = self._document
        newest = await self.newest()
        return None if newest is before else newest


class OneFile(Pointer):
    """Points to one file for ever: the state of a table when it was written."""

    def __init__(self, store: ObjectStore, name: str) -> None:
        self._file = MetadataFile(store, f"{FOLDER}/{name}")

    @override
    async def current(self) -> MetadataFile:
        return self._file


@dataclass(frozen=True, slots=True)
class _At:
    """A version of the metadata, and the file that has it."""

    version: int
    name: str


class FolderPointer(Pointer):
    """Points to the newest version of the metadata in the folder of the table at the root of `store`."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._at: _At | None = None
        self._spelling = _SPELLINGS[0]
        self._misses = 0

    @override
    async def current(self) -> MetadataFile:
        version = self._at
        self._at = await self._first() if version is None else await self._later(version) or version
        return MetadataFile(self._store, f"{FOLDER}/{self._at.name}")

    async def _later(self, current: _At) -> _At | None:
        """Return the last of the versions that follow `current`; None: there is none yet."""
        later, step, is_past = current, 1, False
        while step:  # the versions have no gap, so of a thousand new ones twenty are requested
            name = await self._existing(later.version + step, self._spelling)
            later = later if name is None else _At(later.version + step, name)
            is_past = is_past or name is None
            step = step // 2 if is_past else later.version - current.version
        if later is not current:
            self._misses = 0
            return later
        self._misses += 1
        if self._misses % _LIST_MISSES:
            return None
        listed = await self._listed()  # another spelling, or versions whose first files were deleted
        # Fewer versions are those of a table that was made again.
        return listed if listed is not None and listed.version != current.version else None

    async def _existing(self, version: int, *spellings: str) -> str | None:
        for spelling in spellings:
            name = spelling.format(version)
            try:
                await self._store.stat(f"{FOLDER}/{name}")
            except ObjectNotFound:
                continue
            self._spelling = spelling
            return name
        return None

    async def _first(self) -> _At:
        hint = ""
        with suppress(ObjectNotFound):
            hint = await self._store.read(
                f"{FOLDER}/{_HINT}", lambda stored: stored.data.decode(errors="replace").strip()
            )
        if hint.isdecimal():
            version = int(hint)
            name = await self._existing(version, *_SPELLINGS)
            if name is not None:
                hinted = _At(version, name)
                return await self._later(hinted) or hinted
        listed = await self._listed()
        if listed is None:
            names = [meta.name.rpartition("/")[2] for meta in await self._store.list(FOLDER)]
            raise self._none(sorted(filter(is_metadata_file, names)))
        return listed

    async def _listed(self) -> _At | None:
        """Return the newest version in the folder; None: it has no version."""
        by_version: dict[int, str] = {}
        for meta in await self._store.list(FOLDER):
            name = meta.name.rpartition("/")[2]
            if (match := NAMES.fullmatch(name)) is not None:
                by_version[int(match[1])] = name
        if not by_version:
            return None
        version = max(by_version)
        self._spelling = next(spelling for spelling in _SPELLINGS if spelling.format(version) == by_version[version])
        return _At(version, by_version[version])

    def _none(self, names: list[str]) -> NotATable:
        if not names:
            return no_table(self._store.uri, FOLDER, f"no metadata file in {FOLDER}", TITLE)
        by_catalog = any(map(_CATALOGS.fullmatch, names))
        whose = "are named by a catalog, which alone knows which one is current" if by_catalog else "have no version"
        remedy = (
            f"Give the table's name in the catalog, iceberg://CATALOG/NAMESPACE.TABLE (docs/iceberg.md). Without the "
            f"catalog one state can be read: give the metadata file, such as {self._store.uri}/{FOLDER}/{names[-1]}."
        )
        return NotATable(self._store.uri, f"its metadata files {whose}", f"{TITLE} that can be followed", remedy)


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
        root, name = split_location(location)
        if root != self._store.uri:
            self._store = self._open_store(root)
            self._places.add(self._store)
        return MetadataFile(self._store, name)
