"""The files of a snapshot, in an order that does not depend on how the log tells of them, in bounded memory.

A logical file is a data file with its deletion vector (PROTOCOL.md, "Action Reconciliation"). Every action about one
is an entry that says how old it is: of a file's entries the newest decides whether the file is live. Sorting the
entries by file brings those of one file together; sorting the live ones by time gives the order of delivery. Neither
needs the table in memory, however many files it has and whether or not the log has a checkpoint. What a checkpoint
holds twice comes once.
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
from tailer.stores.local import ObjectStore, OpenObject, in_thread

__all__ = ["LiveFiles", "live_files"]


class _Entry(msgspec.Struct, frozen=True, array_like=True):
    """What an action says of one logical file: it is there (`add`), or it is not. `age`: 0 for the newest actions."""

    location: str
    vector: str
    age: int
    add: AddFile | None


class LiveFiles:
    """The live files of a snapshot, by modification time, then location, then deletion vector. To be closed."""

    def __init__(self, entries: SpillingSort[_Entry]) -> None:
        self._entries = entries

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entries.close()

    def __iter__(self) -> Iterator[AddFile]:
        """The files, from the first on. Reads the disk where they are many: iterate in a worker thread."""
        return (entry.add for entry in self._entries if entry.add is not None)


async def live_files(store: ObjectStore, segment: LogSegment, root: str) -> LiveFiles:
    """The files live at the end of `segment`. `root`: the table's location, which paths of the log are relative to.

    Raises `LogCorrupt` for files of the log that are not as the protocol has them, and `StorageUnavailable`, also
    where one is gone and where there is no room for temporary files.
    """
    with ExitStack() as opened:
        entries = opened.enter_context(SpillingSort(_Entry, _by_file))
        newest_first = list(reversed(segment.commits))
        for age, path in enumerate(newest_first):
            with listed_before():
                await store.scan(path.name, partial(_take_commit, entries, segment.table, root, path, 2 * age))
        age = 2 * len(newest_first)
        await read_adds(store, segment, lambda add: entries.add(_entry(add, root, age)))
        live = opened.enter_context(SpillingSort(_Entry, _by_time))
        await in_thread(_take_live, entries, live)
        entries.close()
        opened.pop_all()
        return LiveFiles(live)


def _by_file(entry: _Entry) -> tuple[str, str, int]:
    return entry.location, entry.vector, entry.age


def _by_time(entry: _Entry) -> tuple[int, str, str]:
    moment_ms = 0 if entry.add is None else entry.add.modification_time
    return moment_ms, entry.location, entry.vector


def _take_commit(
    entries: SpillingSort[_Entry], table: str, root: str, path: LogPath, age: int, opened: OpenObject
) -> None:
    """Add what a commit says. Its adds stand against its removes, which are of older files."""

    def take(file: FileAction) -> bool:
        if not isinstance(file, CdcFile):
            entries.add(_entry(file, root, age if isinstance(file, AddFile) else age + 1))
        return False

    try:
        scan_commit(opened.file, table, path.name, path.version, opened.meta.modified_ms, take)
    except ValueError as error:
        raise LogCorrupt(table, path.name, str(error), path.version) from error


def _take_live(entries: SpillingSort[_Entry], live: SpillingSort[_Entry]) -> None:
    for _, newest_first in groupby(entries, key=lambda entry: (entry.location, entry.vector)):
        newest = next(newest_first)
        if newest.add is not None:
            live.add(newest)


def _entry(file: AddFile | RemoveFile, root: str, age: int) -> _Entry:
    """Raises `ValueError` for a path that is none."""
    vector = _unique_id(file.deletion_vector)
    return _Entry(locate(file.path, root), vector, age, file if isinstance(file, AddFile) else None)


def _unique_id(vector: DeletionVector | None) -> str:
    """What tells the deletion vectors of a file apart (PROTOCOL.md, "Derived Fields"); empty for none."""
    if vector is None:
        return ""
    offset = "" if vector.offset is None else f"@{vector.offset}"
    return f"{vector.storage_type}{vector.path_or_inline_dv}{offset}"
