"""The composition root of tables: a table and its files are opened from their location here, and nowhere else."""

from tailer.delta.catalog.port import CommitCatalog
from tailer.delta.table import DeltaTableLog
from tailer.read.data_files import DataFiles
from tailer.stores.ranges import ObjectRanges
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


def open_table(
    location: str,
    stores: Stores | None = None,
    catalog: CommitCatalog | None = None,
    allowed_roots: tuple[str, ...] = (),
) -> TableLog:
    """Open the log of the table at `location`, as `parse_location` returns it; no I/O.

    `catalog`: the one that manages the table, if any. `allowed_roots`: where its files may be, besides `location`.

    Raises `ConfigError` where the store's client is not installed.
    """
    return DeltaTableLog((stores or Stores()).open(location), catalog, allowed_roots)


def open_files(stores: Stores | CurrentStores | None = None) -> DataFiles:
    """Make what opens the files that tasks name; no I/O."""
    return DataFiles((stores or Stores()).ranges)
