"""The composition root of tables: a table and its files are opened from their location here, and nowhere else."""

from collections.abc import Mapping
from functools import partial

from tailer.errors import ConfigError, NotATable
from tailer.formats.delta.catalog.port import CommitCatalog
from tailer.formats.inspection import TableInspector
from tailer.formats.port import TableFormat
from tailer.formats.registry import check_choices, default_format, format_of, named_format
from tailer.read.data_files import DataFiles
from tailer.stores import glue
from tailer.stores.location import is_local
from tailer.stores.port import ObjectStore
from tailer.stores.ranges import ObjectRanges
from tailer.stores.stores import Stores
from tailer.table_log import TableLog

__all__ = [
    "CurrentStores",
    "check_reader",
    "find_location",
    "format_in",
    "locate",
    "open_files",
    "open_inspector",
    "open_table",
]


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


async def find_location(table: str, stores: Stores | None = None) -> str | None:
    """Return the location of a table: `table`, or what the catalog says of this name. None: it has no such table.

    `table`: as `parse_table` returns it. Raises as `tailer.stores.glue.find_location`.
    """
    if not glue.is_named(table):
        return table
    return await glue.find_location(table, (stores or Stores()).glue_options(table))


async def locate(table: str, stores: Stores | None = None) -> str:
    """Return the location of a table as `find_location` does. Raises `NotATable` where the catalog has none."""
    found = await find_location(table, stores)
    if found is None:
        remedy = "Check the names of the database and the table, the region, and which account the keys are of."
        raise NotATable(table, "Glue has no such table", remedy=remedy)
    return found


def format_in(table: str, table_format: str | None) -> str | None:
    """Return the name of the format of a table as it is configured: tables of the catalog are Delta tables.

    `table`: as `parse_table` returns it. Raises `ConfigError` naming `table_format`.
    """
    if not glue.is_named(table):
        return table_format
    wanted = default_format()
    if table_format not in (None, wanted.name):
        reason = f"is {table_format!r}, but of the tables in Glue only {wanted.title} can be followed"
        raise ConfigError("table_format", reason, "Leave it out, or give the table's location in place of its name.")
    return wanted.name


def open_table(
    location: str,
    stores: Stores | None = None,
    catalog: CommitCatalog | None = None,
    allowed_roots: tuple[str, ...] = (),
    table_format: str | None = None,
    branch: str | None = None,
    statistics: bool = False,
) -> TableLog:
    """Open the log of the table at `location`, as `parse_location` returns it.

    Without a `table_format`, the location decides (`tailer.formats.registry.format_of`). `catalog`: the one that
    manages the table, if any. `allowed_roots`: where its files may be, besides `location`. `branch`: None is the main
    one. `statistics`: as in `TableFormat.open`.

    Raises `ConfigError` where the store's client is not installed, and as `check_choices`.
    """
    known = stores or Stores()
    found, store = _open_root(location, known, table_format, branch, is_managed=catalog is not None)
    return found.open(store, known.open, allowed_roots, branch, catalog, statistics)


def open_inspector(
    location: str,
    stores: Stores | None = None,
    allowed_roots: tuple[str, ...] = (),
    table_format: str | None = None,
    branch: str | None = None,
) -> TableInspector:
    """Open what looks at the log of a table for people; no I/O. Arguments and errors are those of `open_table`."""
    known = stores or Stores()
    found, store = _open_root(location, known, table_format, branch, is_managed=False)
    return found.inspect(store, known.open, allowed_roots, branch)


def _open_root(
    location: str, stores: Stores, table_format: str | None, branch: str | None, *, is_managed: bool
) -> tuple[TableFormat, ObjectStore]:
    """Return the format of a table, and the store that has its root."""
    chosen = check_choices(table_format, branch, is_managed=is_managed)
    by_location = default_format if is_managed else partial(format_of, location)
    found = by_location() if chosen is None else named_format(chosen)
    return found, stores.open(found.root(location, branch))


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
