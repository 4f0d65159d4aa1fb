"""Delta tables in folders, found by their logs: nothing else may be written into one."""

import os
from collections.abc import Iterable
from pathlib import Path

from tailer.errors import StorageRefused
from tailer.formats.delta.log.listing import LOG, LogPath
from tailer.stores.port import ObjectMeta, ObjectStore
from tailer.stores.uploads import UploadStore

__all__ = ["has_log", "holds_table", "table_around", "table_in_stores"]


def holds_table(path: Path) -> bool:
    """Return whether `path` holds a Delta table: its log has a commit or a checkpoint."""
    try:
        with os.scandir(path / LOG) as entries:
            return any(_is_version(entry.name) for entry in entries)
    except OSError:
        return False


async def has_log(store: ObjectStore, folder: str) -> bool:
    """Return whether the folder of a store holds a Delta table; one request. Raises `StorageError`."""
    return await store.holds(f"{folder}/{LOG}".removeprefix("/"), _is_version)


def _is_version(name: str) -> bool:
    """Return whether a file in a log is a commit or a checkpoint."""
    return "/" not in name and LogPath.parse(ObjectMeta(name, 0, 0)) is not None


def table_around(path: Path) -> Path | None:
    """Return the nearest parent of `path`, with links resolved, that holds a Delta table; None without one."""
    return next(filter(holds_table, Path(os.path.realpath(path)).parents), None)


async def table_in_stores(stores: Iterable[UploadStore]) -> str | None:
    """Return the URI of the first of these folders that holds a Delta table; None if none of them does.

    Folders after the first may be out of reach; those do not count. Raises `StorageError` for the first.
    """
    for number, store in enumerate(stores):
        try:
            names = await store.names_below(LOG)
        except StorageRefused:
            if number == 0:
                raise
            continue
        if any(_is_version(name.removeprefix(f"{LOG}/")) for name in names):
            return store.uri
    return None
