"""The composition root of tables: a store or a table is opened from its location here, and nowhere else."""

from pathlib import Path

from tailer.delta.catalog.port import CommitCatalog
from tailer.delta.table import DeltaTableLog
from tailer.stores.local import LocalStore
from tailer.stores.port import ObjectStore
from tailer.table_log import TableLog

__all__ = ["open_store", "open_table"]


def open_store(location: Path) -> ObjectStore:
    """Open the store whose root is `location`; no I/O."""
    return LocalStore(location)


def open_table(location: Path, catalog: CommitCatalog | None = None) -> TableLog:
    """Open the log of the table at `location`; no I/O. `catalog`: the one that manages the table, if any."""
    return DeltaTableLog(open_store(location), catalog=catalog)
