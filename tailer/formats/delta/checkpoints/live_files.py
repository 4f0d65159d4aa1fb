"""The live files of a snapshot, in bounded memory, in an order that does not depend on the log's checkpoints.

A logical file is a data file with its deletion vector (PROTOCOL.md, "Action Reconciliation"). Each file action becomes
an entry with an age; the newest entry of a file decides whether the file is live. Entries are sorted by file to group
them. The live files are then sorted by time, which is the order of delivery. Both sorts spill to disk, so memory does
not depend on the number of files. A file that a checkpoint lists twice appears once.
"""

from collections.abc import Iterator
from contextlib import ExitStack
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
from tailer.formats.delta.log.actions import AddFile, CdcFile, FileAction, scan_commit
from tailer.formats.delta.log.listing import LogPath, LogSegment
from tailer.formats.delta.log.paths import locate, locate_all
from tailer.stores.port import ObjectStore, OpenObject, in_thread

__all__ = ["LiveFiles", "live_files", "unique_ids"]

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


async def live_files(store: ObjectStore, segment: LogSegment, root: str, statistics: bool = False) -> LiveFiles:
    """Find the files live at the end of `segment`. `root`: the table's location, the base of relative paths.

    `statistics`: whether files have theirs, which take more space than all else.

    Raises `LogCorrupt` for files of the log that violate the protocol. Raises `StorageUnavailable`, also where a file
    no longer exists and where there is no space for temporary files.
    """
    with ExitStack() as opened:
        columns = ADD_COLUMNS_WITH_STATISTICS if statistics else ADD_COLUMNS
        kind = pa.schema({**_KEYS, "add": columns})
        entries = opened.enter_context(SpillingSort(kind, _BY_FILE))
        actions = _Actions(entries, segment.table, root, columns)
        newest_first = list(reversed(segment.commits))
        for age, path in enumerate(newest_first):
            with listed_before():
                await store.scan(path.name, partial(actions.add_commit, path, 2 * age))
        try:
            actions.flush()
        except ValueError as error:
            raise LogCorrupt(segment.table, newest_first[-1].name, str(error), segment.version) from error
        age = 2 * len(newest_first)
        await read_adds(store, segment, lambda adds: entries.add(_checkpointed(adds, root, age)), columns)
        live = opened.enter_context(SpillingSort(kind, _BY_TIME))
        await in_thread(_add_live, entries, live)
        entries.close()
        opened.pop_all()
        return LiveFiles(live)


class _Actions:
    """Collects the file actions of commits as `entries`, some at a time."""

    def __init__(self, entries: SpillingSort, table: str, root: str, columns: pa.StructType) -> None:
        self._entries = entries
        self._table = table
        self._root = root
        self._columns = columns
        self._rows: list[tuple[str, str, int, AddFile | None]] = []

    def add_commit(self, path: LogPath, age: int, opened: OpenObject) -> None:
        """Add a commit. Its adds count as newer than its removes, which are about older files."""

        def add(file: FileAction) -> bool:
            if not isinstance(file, CdcFile):
                newest = file if isinstance(file, AddFile) else None
                vector = file.deletion_vector.unique_id if file.deletion_vector is not None else ""
                self._rows.append((locate(file.path, self._root), vector, age + (newest is None), newest))
                if len(self._rows) == _BATCH_ROWS:
                    self.flush()
            return False

        statistics = self._columns != ADD_COLUMNS
        try:
            scan_commit(
                opened.file, self._table, path.name, path.version, opened.meta.modified_ms, add, statistics=statistics
            )
        except ValueError as error:
            raise LogCorrupt(self._table, path.name, str(error), path.version) from error

    def flush(self) -> None:
        """Pass on what was collected."""
        if self._rows:
            locations, vectors, ages, files = zip(*self._rows, strict=True)
            adds = columns_of(files, self._columns)
            self._rows = []
            self._entries.add(_entries(pa.array(locations), pa.array(vectors), pa.array(ages, pa.int64()), adds))


def _checkpointed(adds: pa.StructArray, root: str, age: int) -> pa.RecordBatch:
    """Make entries of files of a checkpoint. Raises `ValueError` for an invalid path."""
    ages = pa.repeat(pa.scalar(age, pa.int64()), len(adds))
    return _entries(locate_all(adds.field("path"), root), unique_ids(adds.field("deletionVector")), ages, adds)


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
