"""The composition root of tables: a table and its files are opened from their location here, and nowhere else."""

from collections.abc import Mapping
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Self

from tailer.errors import ConfigError, did_you_mean, how_to_install
from tailer.formats.delta.catalog.port import CommitCatalog
from tailer.formats.delta.folders import has_log
from tailer.formats.delta.log.listing import LOG
from tailer.formats.delta.table import DeltaTableLog
from tailer.formats.lance.history import SUFFIX, VERSIONS, has_manifests
from tailer.formats.lance.refs import folder_of, parse_branch
from tailer.formats.lance.table import LanceTableLog
from tailer.read.data_files import DataFiles
from tailer.stores.location import is_local
from tailer.stores.port import ObjectStore
from tailer.stores.ranges import ObjectRanges
from tailer.stores.shared import SharedLogs
from tailer.stores.stores import Stores
from tailer.table_log import TableLog

__all__ = [
    "CurrentStores",
    "TableFormat",
    "check_choices",
    "check_reader",
    "find_format",
    "list_log",
    "open_files",
    "open_table",
]


class TableFormat(StrEnum):
    """The format of a table."""

    DELTA = "delta"
    LANCE = "lance"

    @classmethod
    def parse(cls, text: str | None, where: str) -> Self | None:
        """Return the format that `text` names; None for None. Raises `ConfigError` naming `where`."""
        if text is None or text in list(cls):
            return None if text is None else cls(text)
        known = [each.value for each in cls]
        remedy = did_you_mean(text, known) or f"Give {' or '.join(known)}."
        raise ConfigError(where, f"{text!r} is no format of a table", remedy)


class CurrentStores:
    """The stores of the configuration that is in force: a reload replaces them."""

    def __init__(self, stores: Stores) -> None:
        self.stores = stores

    def ranges(self, uri: str) -> ObjectRanges:
        """See `Stores.ranges`."""
        return self.stores.ranges(uri)

    def delta_rs_settings(self, location: str) -> Mapping[str, str]:
        """See `Stores.delta_rs_settings`."""
        return self.stores.delta_rs_settings(location)


def open_table(
    location: str,
    stores: Stores | None = None,
    catalog: CommitCatalog | None = None,
    allowed_roots: tuple[str, ...] = (),
    table_format: TableFormat | None = None,
    branch: str | None = None,
    logs: SharedLogs | None = None,
) -> TableLog:
    """Open the log of the table at `location`, as `parse_location` returns it.

    Without a `table_format`, a folder of this machine is looked at: with manifests and without a Delta log, it is a
    Lance dataset. In a store, one whose name ends with `.lance` is. `catalog`: the one that manages the table, if any.
    `allowed_roots`: where its files may be, besides `location`. `branch`: of a Lance dataset; None: the main one.
    `logs`: those that other pipelines of the process follow.

    Raises `ConfigError` where the store's client is not installed, and as `check_choices`.
    """
    known = stores or Stores()
    wanted, name = check_choices(table_format, branch, is_managed=catalog is not None), parse_branch(branch, "branch")
    root = location if name is None else f"{location}/{folder_of(name)}"
    store = known.open(root)
    if logs is not None and not is_local(root):
        store = logs.share(store, known.options(root))
    if wanted is TableFormat.LANCE or (wanted is None and catalog is None and _is_lance(location)):
        return LanceTableLog(store, known.open, allowed_roots, name)
    return DeltaTableLog(store, catalog, allowed_roots)


def check_choices(
    table_format: TableFormat | None, branch: str | None = None, *, is_managed: bool = False
) -> TableFormat | None:
    """Return the format that is named: a `branch` names Lance, too. None: none.

    `is_managed`: whether a catalog manages the commits. Raises `ConfigError`, naming the option, where the choices do
    not go together.
    """
    parse_branch(branch, "branch")
    if branch is not None and table_format is TableFormat.DELTA:
        raise ConfigError("branch", "is of a Lance dataset, but table_format is delta", "Leave out one of the two.")
    found = table_format if branch is None else TableFormat.LANCE
    if is_managed and found is TableFormat.LANCE:
        reason = "names a Lance dataset, but a catalog manages Delta tables alone"
        raise ConfigError("table_format" if branch is None else "branch", reason, "Leave out one of the two.")
    return found


def check_reader(location: str, wanted: TableFormat | None, *, is_managed: bool) -> None:
    """Raise `ConfigError` where a table is called a Lance dataset, and what reads its rows is not installed.

    `wanted`, `is_managed`: as in `check_choices`. The library is looked up, not imported.
    """
    is_named = wanted is None and not is_managed and not is_local(location) and location.endswith(SUFFIX)
    if (wanted is TableFormat.LANCE or is_named) and find_spec("lance") is None:
        raise ConfigError("table", "is a Lance dataset, and pylance is not installed", how_to_install("lance"))


async def find_format(
    store: ObjectStore, folder: str = "", wanted: TableFormat | None = None, *, is_named: bool = False
) -> TableFormat | None:
    """Return the format of the table in the folder of a store; None: there is none. At most two requests.

    `wanted`: the format to look for; None: any. `is_named`: whether a Lance dataset is known to be one, so that the
    folder's name need not say so. Raises `StorageError`.
    """
    if wanted is not TableFormat.LANCE and await has_log(store, folder):
        return TableFormat.DELTA
    is_named = is_named or wanted is TableFormat.LANCE
    if wanted is not TableFormat.DELTA and await has_manifests(store, folder, is_named=is_named):
        return TableFormat.LANCE
    return None


async def list_log(store: ObjectStore) -> Mapping[str, int]:
    """Return the names and sizes of the files in the log of a table of any format. Raises `StorageError`."""
    return {each.name: each.size_bytes for log in (LOG, VERSIONS) for each in await store.list(log)}


def _is_lance(location: str) -> bool:
    if not is_local(location):
        return location.endswith(SUFFIX)
    try:
        return Path(location, VERSIONS).is_dir() and not Path(location, LOG).exists()
    except OSError:  # a folder above cannot be entered
        return False


def open_files(stores: Stores | CurrentStores | None = None) -> DataFiles:
    """Make what opens the files that tasks name; no I/O."""
    known = stores or Stores()
    return DataFiles(known.ranges, logins=known.delta_rs_settings)
