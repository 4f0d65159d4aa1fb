"""The composition root of tables: a table and its files are opened from their location here, and nowhere else."""

from collections.abc import Mapping
from functools import partial

from tailer.formats.delta.catalog.port import CommitCatalog
from tailer.formats.registry import check_choices, default_format, format_of, named_format
from tailer.read.data_files import DataFiles
from tailer.stores.location import is_local
from tailer.stores.ranges import ObjectRanges
from tailer.stores.shared import SharedLogs
from tailer.stores.stores import Stores
from tailer.table_log import TableLog

__all__ = ["CurrentStores", "check_reader", "open_files", "open_table"]


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
    table_format: str | None = None,
    branch: str | None = None,
    logs: SharedLogs | None = None,
    statistics: bool = False,
) -> TableLog:
    """Open the log of the table at `location`, as `parse_location` returns it.

    Without a `table_format`, the location decides (`tailer.formats.registry.format_of`). `catalog`: the one that
    manages the table, if any. `allowed_roots`: where its files may be, besides `location`. `branch`: None is the main
    one. `logs`: those that other pipelines of the process follow. `statistics`: as in `TableFormat.open`.

    Raises `ConfigError` where the store's client is not installed, and as `check_choices`.
    """
    known = stores or Stores()
    chosen = check_choices(table_format, branch, is_managed=catalog is not None)
    by_location = default_format if catalog is not None else partial(format_of, location)
    found = by_location() if chosen is None else named_format(chosen)
    root = found.root(location, branch)
    store = known.open(root)
    if logs is not None and not is_local(root):
        store = logs.share(store, known.options(root))
    return found.open(store, known.open, allowed_roots, branch, catalog, statistics)


def check_reader(location: str, wanted: str | None, *, is_managed: bool) -> None:
    """Raise `ConfigError` where the format of a table is known, and what reads its rows is not installed.

    `wanted`, `is_managed`: as in `check_choices`. No library is imported, and no folder is looked at.
    """
    if wanted is not None:
        named_format(wanted).check_reader()
    elif not is_managed and not is_local(location):
        format_of(location).check_reader()


def open_files(stores: Stores | CurrentStores | None = None) -> DataFiles:
    """Make what opens the files that tasks name; no I/O."""
    known = stores or Stores()
    return DataFiles(known.ranges, logins=known.delta_rs_settings)
