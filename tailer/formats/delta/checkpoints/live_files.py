"""The live files of a snapshot, in bounded memory, in an order that does not depend on the log's checkpoints.

A logical file is a data file with its deletion vector (PROTOCOL.md, "Action Reconciliation"). Each file action becomes
an entry with an age; the newest entry of a file decides whether the file is live. Entries are sorted by file to group
them. The live files are then sorted by time, which is the order of delivery. Both sorts spill to disk, so memory does
not depend on the number of files. A file that a checkpoint lists twice appears once.

`find_files` looks back for a few files instead, and holds only these.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from types import TracebackType
from typing import Final, Self

import pyarrow as pa
import pyarrow.compute as pc

from tailer.errors import LogCorrupt
from tailer.formats.delta.checkpoints.add_columns import (
    ADD_COLUMNS,
    ADD_COLUMNS_WITH_STATISTICS,
    columns_of,
    read_files,
)
from tailer.formats.delta.checkpoints.checkpoint import listed_before, read_adds
from tailer.formats.delta.checkpoints.sorted_runs import SpillingSort
from tailer.formats.delta.log.actions import AddFile, CdcFile, FileAction, RemoveFile, scan_commit
from tailer.formats.delta.log.listing import LogPath, LogSegment
from tailer.formats.delta.log.paths import locate, locate_all
from tailer.formats.delta.log.removes import FileBefore, FileKey, FilesBefore, file_key
from tailer.stores.port import ObjectStore, OpenObject, in_thread

__all__ = ["LiveFiles", "find_files", "live_files", "scan_files", "unique_ids"]

_BATCH_ROWS: Final = 4096
# Entries: `add` is null for a remove, and `age` is 0 for the newest actions.
_KEYS: Final = {"location": pa.string(), "vector": pa.string(), "age": pa.int64(), "modified_ms": pa.int64()}
_BY_FILE: Final = ("location", "vector", "age")
_BY_TIME: Final = ("modified_ms", "location", "vector")


class LiveFiles:
    """The live files of a snapshot, by modification time, then location, then deletion vector. Must be closed."""

    def __init__(self, entries: SpillingSort) -> None:
        self._entries = entries

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entries.close()

    def __iter__(self) -> Iterator[AddFile]:
        """Iterate over the files from the first on. May read from disk, so iterate in a worker thread."""
        for batch in self._entries:
            yield from read_files(batch.column("add"))


async def live_files(store: ObjectStore, segment: LogSegment, statistics: bool = False) -> LiveFiles:
    """Find the files live at the end of `segment`. `statistics`: with theirs, which take more space than all else.

    Raises `LogCorrupt` for files of the log that violate the protocol. Raises `StorageUnavailable`, also where a file
    no longer exists and where there is no space for temporary files.
    """
    columns = ADD_COLUMNS_WITH_STATISTICS if statistics else ADD_COLUMNS
    kind = pa.schema({**_KEYS, "add": columns})
    rows: list[tuple[str, str, int, AddFile | None]] = []
    with ExitStack() as opened:
        entries = opened.enter_context(SpillingSort(kind, _BY_FILE))

        def flush() -> None:
            if rows:
                locations, vectors, ages, files = zip(*rows, strict=True)
                adds = columns_of(files, columns)
                rows.clear()
                entries.add(_entries(pa.array(locations), pa.array(vectors), pa.array(ages, pa.int64()), adds))

        def note(age: int, file: AddFile | RemoveFile, location: str) -> None:
            # The adds of a commit count as newer than its removes, which are about older files.
            newest = file if isinstance(file, AddFile) else None
            rows.append((*file_key(file, location), age + (newest is None), newest))
            if len(rows) == _BATCH_ROWS:
                flush()

        newest_first = list(reversed(segment.commits))
        for number, path in enumerate(newest_first):
            await scan_files(store, segment.table, path, partial(note, 2 * number), statistics)
        try:
            flush()
        except ValueError as error:
            raise LogCorrupt(segment.table, newest_first[-1].name, str(error), segment.version) from error

        def add_checkpointed(adds: pa.StructArray) -> None:
            ages = pa.repeat(pa.scalar(2 * len(newest_first), pa.int64()), len(adds))
            locations = locate_all(adds.field("path"), store.uri)
            entries.add(_entries(locations, unique_ids(adds.field("deletionVector")), ages, adds))

        await read_adds(store, segment, add_checkpointed, columns)
        live = opened.enter_context(SpillingSort(kind, _BY_TIME))
        await in_thread(_add_live, entries, live)
        entries.close()
        opened.pop_all()
        return LiveFiles(live)


async def find_files(store: ObjectStore, removes: Sequence[RemoveFile], segment: LogSegment) -> FilesBefore:
    """Find the files of `removes` at the end of `segment`. Raises as `live_files` does.

    Commits are read from the newest back, then the checkpoint, until an add of each file is found. Nearly always that
    is soon: what is removed was once added under the same path and deletion vector. Only these files are held.
    """
    search = _Search(removes, store.uri)
    for path in reversed(segment.commits):
        await scan_files(store, segment.table, path, search.note, end=search.end_commit)
        if not search.missing:
            break
    else:
        await read_adds(store, segment, search.add_checkpointed)
    return search.found()


async def scan_files(
    store: ObjectStore,
    table: str,
    path: LogPath,
    note: Callable[[AddFile | RemoveFile, str], None],
    statistics: bool = False,
    end: Callable[[], None] = lambda: None,
) -> None:
    """Pass each file that the commit at `path` adds or removes to `note`, with its location, in a worker thread.

    `end`: called there after the last. Raises `LogCorrupt`, also where one of them raises `ValueError`, and
    `StorageUnavailable`.
    """

    def add(file: FileAction) -> bool:
        if not isinstance(file, CdcFile):
            note(file, locate(file.path, store.uri))
        return False

    def scan(opened: OpenObject) -> None:
        try:
            scan_commit(
                opened.file, table, path.name, path.version, opened.meta.modified_ms, add, statistics=statistics
            )
            end()
        except ValueError as error:
            raise LogCorrupt(table, path.name, str(error), path.version) from error

    with listed_before():
        await store.scan(path.name, scan)


def _entries(
    locations: pa.StringArray, vectors: pa.StringArray, ages: pa.Int64Array, adds: pa.StructArray
) -> pa.RecordBatch:
    modified_ms = pc.fill_null(adds.field("modificationTime"), 0)
    return pa.record_batch([locations, vectors, ages, modified_ms, adds], names=[*_KEYS, "add"])


def _add_live(entries: SpillingSort, live: SpillingSort) -> None:
    """Add the newest entry of each file to `live`, if it is an add."""
    last: tuple[str, str] | None = None
    for batch in entries:
        locations, vectors = batch.column("location"), batch.column("vector")
        first = (locations[0].as_py(), vectors[0].as_py()) != last
        last = locations[-1].as_py(), vectors[-1].as_py()
        is_other = pc.or_(
            pc.not_equal(locations.slice(1), locations.slice(0, len(batch) - 1)),
            pc.not_equal(vectors.slice(1), vectors.slice(0, len(batch) - 1)),
        )
        is_newest = pa.concat_arrays([pa.array([first]), is_other])
        live.add(batch.filter(pc.and_(is_newest, batch.column("add").is_valid())))


def unique_ids(vectors: pa.StructArray) -> pa.StringArray:
    """Return the unique id of each deletion vector, as `DeletionVector.unique_id` does; empty without a vector."""
    if vectors.null_count == len(vectors):
        return pa.repeat(pa.scalar("", pa.string()), len(vectors))
    kinds, paths, _, _, offsets = vectors.flatten()
    ends = pc.fill_null(pc.binary_join_element_wise("@", pc.cast(offsets, pa.string()), ""), "")
    return pc.fill_null(pc.binary_join_element_wise(kinds, paths, ends, ""), "")


class _Search:
    """Finds the files of `removes` in actions, the newest of which come first."""

    def __init__(self, removes: Sequence[RemoveFile], root: str) -> None:
        self._root = root
        self._wanted: dict[FileKey, FileKey] = {}
        for remove in removes:
            with suppress(ValueError):  # planning reports a path that is none
                self._wanted[file_key(remove)] = file_key(remove, locate(remove.path, root))
        self._locations = {location for location, _ in self._wanted.values()}
        self._texts = pa.array(sorted(self._locations), pa.string())
        self._adds: dict[FileKey, AddFile] = {}
        self._newest: dict[str, AddFile] = {}  # of each location
        self._removes: list[FileKey] = []  # of the commit that is being read
        self._removed: set[FileKey] = set()
        self.missing = set(self._wanted.values())  # files of which no add was found yet

    def note(self, file: AddFile | RemoveFile, location: str) -> None:
        """Add a file of a commit. Its adds count as newer than its removes, which are about older files."""
        if location in self._locations:
            if isinstance(file, AddFile):
                self._add(location, file)
            else:
                self._removes.append(file_key(file, location))

    def end_commit(self) -> None:
        """Go on to the commit before."""
        self._removed |= set(self._removes) - self._adds.keys()
        self._removes.clear()

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
