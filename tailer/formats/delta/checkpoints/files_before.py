"""A look back at a few files of a commit: their entries in the state before it.

Commits are read from the newest back, then the checkpoint, until an add of each wanted logical file is found. Nearly
always that is soon: what is removed was once added under the same path and deletion vector. Only the wanted files are
held.
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from tailer.errors import LogCorrupt
from tailer.formats.delta.checkpoints.add_columns import read_files
from tailer.formats.delta.checkpoints.checkpoint import listed_before, read_adds
from tailer.formats.delta.log.actions import AddFile, CdcFile, FileAction, RemoveFile, scan_commit
from tailer.formats.delta.log.listing import LogPath, LogSegment
from tailer.formats.delta.log.paths import locate, locate_all
from tailer.formats.delta.log.removes import FileBefore, FileKey, FilesBefore, file_key
from tailer.stores.port import ObjectStore, OpenObject

__all__ = ["find_files"]


async def find_files(store: ObjectStore, removes: Sequence[RemoveFile], segment: LogSegment) -> FilesBefore:
    """Find the files of `removes` at the end of `segment`. Raises as `live_files` does."""
    search = _Search(removes, segment.table, store.uri)
    for path in reversed(segment.commits):
        with listed_before():
            await store.scan(path.name, partial(search.add_commit, path))
        if not search.missing:
            break
    else:
        await read_adds(store, segment, search.add_checkpointed)
    return search.found()


class _Search:
    """Finds the files of `removes` in actions, the newest of which come first."""

    def __init__(self, removes: Sequence[RemoveFile], table: str, root: str) -> None:
        self._table = table
        self._root = root
        self._wanted: dict[FileKey, FileKey] = {}
        for remove in removes:
            with suppress(ValueError):  # planning reports a path that is none
                self._wanted[file_key(remove)] = file_key(remove, locate(remove.path, root))
        self._locations = {location for location, _ in self._wanted.values()}
        self._texts = pa.array(sorted(self._locations), pa.string())
        self._adds: dict[FileKey, AddFile] = {}
        self._newest: dict[str, AddFile] = {}  # of each location
        self._removed: set[FileKey] = set()
        self.missing = set(self._wanted.values())  # files of which no add was found yet

    def add_commit(self, path: LogPath, opened: OpenObject) -> None:
        """Add a commit. Its adds count as newer than its removes, which are about older files."""
        removes: list[tuple[str, RemoveFile]] = []

        def add(file: FileAction) -> bool:
            if not isinstance(file, CdcFile) and (location := locate(file.path, self._root)) in self._locations:
                if isinstance(file, AddFile):
                    self._add(location, file)
                else:
                    removes.append((location, file))
            return False

        try:
            scan_commit(opened.file, self._table, path.name, path.version, opened.meta.modified_ms, add)
        except ValueError as error:
            raise LogCorrupt(self._table, path.name, str(error), path.version) from error
        self._removed |= {file_key(remove, location) for location, remove in removes} - self._adds.keys()

    def add_checkpointed(self, adds: pa.StructArray) -> None:
        """Add files of a checkpoint. Raises `ValueError` for an invalid path."""
        locations = locate_all(adds.field("path"), self._root)
        chosen = pc.is_in(locations, self._texts)
        for location, file in zip(locations.filter(chosen).to_pylist(), read_files(adds.filter(chosen)), strict=True):
            self._add(location, file)

    def found(self) -> FilesBefore:
        """Return what was found."""
        return {
            key: FileBefore(
                located in self._adds and located not in self._removed,
                self._adds.get(located, self._newest.get(located[0])),
            )
            for key, located in self._wanted.items()
        }

    def _add(self, location: str, file: AddFile) -> None:
        key = file_key(file, location)
        self._newest.setdefault(location, file)
        self._adds.setdefault(key, file)
        self.missing.discard(key)
