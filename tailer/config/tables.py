"""The composition root of tables: a table and its files are opened from their location here, and nowhere else."""

from collections.abc import Mapping
from pathlib import Path

from tailer.delta.catalog.port import CommitCatalog
from tailer.delta.log.listing import LOG
from tailer.delta.table import DeltaTableLog
from tailer.lance.history import SUFFIX, VERSIONS
from tailer.lance.table import LanceTableLog
from tailer.read.data_files import DataFiles
from tailer.stores.location import is_local
from tailer.stores.ranges import ObjectRanges
from tailer.stores.shared import SharedLogs
from tailer.stores.stores import Stores
from tailer.table_log import TableLog

__all__ = ["CurrentStores", "open_files", "open_table"]


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
    logs: SharedLogs | None = None,
) -> TableLog:
    """Open the log of the table at `location`, as `parse_location` returns it.

    A folder of this machine is looked at: with manifests and without a Delta log, it is a Lance dataset. In a store,
    one whose name ends with `.lance` is. `catalog`: the one that manages the table, if any. `allowed_roots`: where its
    files may be, besides `location`. `logs`: those that other pipelines of the process follow.

    Raises `ConfigError` where the store's client is not installed.
    """
    known = stores or Stores()
    store = known.open(location)
    if logs is not None and not is_local(location):
        store = logs.share(store, known.options(location))
    if catalog is None and _is_lance(location):
        return LanceTableLog(store, known.open, allowed_roots)
    return DeltaTableLog(store, catalog, allowed_roots)


def _is_lance(location: str) -> bool:
    if not is_local(location):
        return location.endswith(SUFFIX)
    return Path(location, VERSIONS).is_dir() and not Path(location, LOG).exists()


def open_files(stores: Stores | CurrentStores | None = None) -> DataFiles:
    """Make what opens the files that tasks name; no I/O."""
    known = stores or Stores()
    return DataFiles(known.ranges, logins=known.delta_rs_settings)
