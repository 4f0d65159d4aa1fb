"""The composition root of tables: a table and its files are opened from their location here, and nowhere else."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
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

__all__ = ["CurrentStores", "TableRef", "check_reader", "find_location", "open_files"]


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


@dataclass(frozen=True, slots=True)
class TableRef:
    """A table: where it is, and what it takes to open it.

    `location`: of its root, or its name in a catalog (`parse_table`). `table_format`: the name of a format; None: the
    location decides (`tailer.formats.registry.format_of`). `branch`: None is the main one. `allowed_roots`: where its
    files may be, besides `location`.
    """

    location: str
    table_format: str | None = None
    branch: str | None = None
    allowed_roots: tuple[str, ...] = ()

    def checked(self, *, is_managed: bool = False) -> "TableRef":
        """Return it with the name of its format, where that is known: tables of AWS Glue are Delta tables.

        `is_managed`: whether a catalog manages the commits. Raises `ConfigError` as `check_choices`, naming a field.
        """
        wanted = self.table_format
        if glue.is_named(self.location):
            known = default_format()
            if wanted not in (None, known.name):
                reason = f"is {wanted!r}, but of the tables in Glue only {known.title} can be followed"
                raise ConfigError("table_format", reason, "Leave it out, or give the table's location, not its name.")
            wanted = known.name
        return replace(self, table_format=check_choices(wanted, self.branch, is_managed=is_managed))

    async def located(self, stores: Stores | None = None) -> "TableRef":
        """Return it with its location, as `find_location`. Raises `NotATable` where the catalog has no such table."""
        found = await find_location(self.location, stores)
        if found is None:
            remedy = "Check the names of the database and the table, the region, and which account the keys are of."
            raise NotATable(self.location, "Glue has no such table", remedy=remedy)
        return replace(self, location=found)

    def open(
        self, stores: Stores | None = None, catalog: CommitCatalog | None = None, *, statistics: bool = False
    ) -> TableLog:
        """Open the log of the table, which is `located`; no I/O.

        `catalog`: the one that manages the table, if any. `statistics`: as in `TableFormat.open`. Raises `ConfigError`
        where the store's client is not installed, and as `check_choices`.
        """
        known = stores or Stores()
        found, store = self._open_root(known, is_managed=catalog is not None)
        return found.open(store, known.open, self.allowed_roots, self.branch, catalog, statistics)

    def inspect(self, stores: Stores | None = None) -> TableInspector:
        """Open what looks at the log of the table for people, as `open` does."""
        known = stores or Stores()
        found, store = self._open_root(known, is_managed=False)
        return found.inspect(store, known.open, self.allowed_roots, self.branch)

    def _open_root(self, stores: Stores, *, is_managed: bool) -> tuple[TableFormat, ObjectStore]:
        """Return the format of the table, and the store that has its root."""
        chosen = check_choices(self.table_format, self.branch, is_managed=is_managed)
        by_location = default_format if is_managed else partial(format_of, self.location)
        found = by_location() if chosen is None else named_format(chosen)
        return found, stores.open(found.root(self.location, self.branch))


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
