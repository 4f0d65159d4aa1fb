"""The live files of a snapshot, in bounded memory, in an order that does not depend on the log's checkpoints.

A logical file is a data file with its deletion vector (PROTOCOL.md, "Action Reconciliation"). Each file action becomes
an entry with an age; the newest entry of a file decides whether the file is live. Entries are sorted by file to group
them. The live files are then sorted by time, which is the order of delivery. Both sorts spill to disk, so memory does
not depend on the number of files. A file that a checkpoint lists twice appears once.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from itertools import groupby
from types import TracebackType
from typing import Self

import msgspec

from tailer.delta.checkpoints.checkpoint import listed_before, read_adds
from tailer.delta.checkpoints.sorted_runs import SpillingSort
from tailer.delta.log.actions import AddFile, CdcFile, DeletionVector, FileAction, RemoveFile, scan_commit
from tailer.delta.log.listing import LogPath, LogSegment
from tailer.delta.log.paths import locate
from tailer.errors import LogCorrupt
from tailer.stores.port import ObjectStore, OpenObject, in_thread

__all__ = ["LiveFiles", "live_files"]


class _Entry(msgspec.Struct, frozen=True, array_like=True):
    """One action about a logical file: an `add`, or None for a remove. `age`: 0 for the newest actions."""

    location: str
    vector: str
    age: int
    add: AddFile | None


class LiveFiles:
    """The live files of a snapshot, by modification time, then location, then deletion vector. Must be closed."""

    def __init__(self, entries: SpillingSort[_Entry]) -> None:
        self._entries = entries

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entries.close()

    def __iter__(self) -> Iterator[AddFile]:
        """Iterate over the files from the first on. May read from disk, so iterate in a worker thread."""
        return (entry.add for entry in self._entries if entry.add is not None)


async def live_files(store: ObjectStore, segment: LogSegment, root: str) -> LiveFiles:
    """Find the files live at the end of `segment`. `root`: the table's location, the base of relative paths.

    Raises `LogCorrupt` for files of the log that violate the protocol. Raises `StorageUnavailable`, also where a file
    no longer exists and where there is no space for temporary files.
    """
    with ExitStack() as opened:
        entries = opened.enter_context(SpillingSort(_Entry, _by_file))
        newest_first = list(reversed(segment.commits))
        for age, path in enumerate(newest_first):
            with listed_before():
                await store.scan(path.name, partial(_add_commit, entries, segment.table, root, path, 2 * age))
        age = 2 * len(newest_first)
        await read_adds(store, segment, lambda add: entries.add(_entry(add, root, age)))
        live = opened.enter_context(SpillingSort(_Entry, _by_time))
        await in_thread(_add_live, entries, live)
        entries.close()
        opened.pop_all()
        return LiveFiles(live)


def _by_file(entry: _Entry) -> tuple[str, str, int]:
    return entry.location, entry.vector, entry.age


def _by_time(entry: _Entry) -> tuple[int, str, str]:
    modified_ms = 0 if entry.add is None else entry.add.modification_time
    return modified_ms, entry.location, entry.vector


def _add_commit(
    entries: SpillingSort[_Entry], table: str, root: str, path: LogPath, age: int, opened: OpenObject
) -> None:
    """Add entries for a commit. Its adds count as newer than its removes, which are about older files."""

    def add_entry(file: FileAction) -> bool:
        if not isinstance(file, CdcFile):
            entries.add(_entry(file, root, age if isinstance(file, AddFile) else age + 1))
        return False

    try:
        scan_commit(opened.file, table, path.name, path.version, opened.meta.modified_ms, add_entry)
    except ValueError as error:
        raise LogCorrupt(table, path.name, str(error), path.version) from error


def _add_live(entries: SpillingSort[_Entry], live: SpillingSort[_Entry]) -> None:
    for _, newest_first in groupby(entries, key=lambda entry: (entry.location, entry.vector)):
        newest = next(newest_first)
        if newest.add is not None:
            live.add(newest)


def _entry(file: AddFile | RemoveFile, root: str, age: int) -> _Entry:
    """Build an entry. Raises `ValueError` for an invalid path."""
    vector = _unique_id(file.deletion_vector)
    return _Entry(locate(file.path, root), vector, age, file if isinstance(file, AddFile) else None)


def _unique_id(vector: DeletionVector | None) -> str:
    """Return the unique id of a deletion vector (PROTOCOL.md, "Derived Fields"); empty without a vector."""
    if vector is None:
        return ""
    offset = "" if vector.offset is None else f"@{vector.offset}"
    return f"{vector.storage_type}{vector.path_or_inline_dv}{offset}"
