"""The composition root: a table, its files and a sink are opened here, and nowhere else.

Sinks are found by their kind through the entry-point group `tailer.sinks`: ours and those of third parties.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import import_module
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any, Final

from typing_extensions import override

from tailer.config.options import as_one, faults_by
from tailer.errors import ConfigError, NotATable, did_you_mean, how_to_install
from tailer.formats.delta.catalog.port import CommitCatalog
from tailer.formats.inspection import TableInspector
from tailer.formats.port import TableFormat
from tailer.formats.registry import check_choices, default_format, format_of, named_format, names_of
from tailer.pipeline.policy import ChangeSource, Policy
from tailer.read.data_files import DataFiles
from tailer.sink import AtLeastOnceSink, Sink
from tailer.stores.location import is_local
from tailer.stores.port import ObjectStore
from tailer.stores.stores import Stores, check_client
from tailer.table_log import TableLog

__all__ = [
    "CurrentStores",
    "TableRef",
    "check_reader",
    "check_table_client",
    "configure_sink",
    "find_location",
    "open_files",
    "sink_kinds",
]

ENTRY_POINTS: Final = "tailer.sinks"
_EVERYTHING: Final = Policy()


@dataclass(slots=True)
class CurrentStores:
    """The stores of the configuration that is in force: a reload replaces them."""

    stores: Stores


def check_table_client(table: str) -> str:
    """Return a location or a name. Raises `ConfigError` where the client of its store or catalog is not installed."""
    names = names_of(table)
    if names is None:
        return check_client(table)
    names.check_client(table)
    return table


async def find_location(table: str, stores: Stores | None = None) -> str | None:
    """Return the location of a table: `table`, or what the catalog says of this name. None: it has no such table.

    `table`: as `parse_table` returns it. Raises as `TableNames.find`.
    """
    names = names_of(table)
    return table if names is None else await names.find(table, stores or Stores())


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
        """Return it with the name of its format, where that is known: a catalog has tables of one format.

        `is_managed`: whether a catalog manages the commits. Raises `ConfigError` as `check_choices`, naming a field.
        """
        wanted, names = self.table_format, names_of(self.location)
        if names is not None:
            if wanted not in (None, names.table_format):
                title = named_format(names.table_format).title
                reason = f"is {wanted!r}, but of the tables that {names.scheme}:// names only {title} can be followed"
                raise ConfigError("table_format", reason, "Leave it out, or give the table's location, not its name.")
            wanted = names.table_format
        return replace(
            self, table_format=check_choices(wanted, self.branch, location=self.location, is_managed=is_managed)
        )

    async def located(self, stores: Stores | None = None) -> "TableRef":
        """Return it with its location, as `find_location`. Raises `NotATable` where the catalog has no such table."""
        names = names_of(self.location)
        location = await find_location(self.location, stores)
        if location is None and names is not None:
            reason, remedy = names.missing
            raise NotATable(self.location, reason, named_format(names.table_format).title, remedy)
        return self if location is None else self.at(location)

    def at(self, location: str) -> "TableRef":
        """Return the table at `location`, where the catalog has it if this is a name."""
        names = names_of(self.location)
        if names is None or not names.is_log:
            return replace(self, location=location)
        return _NamedTable(location, self.table_format, self.branch, self.allowed_roots, name=self.location)

    @property
    def has_catalog(self) -> bool:
        """Return whether a catalog has been asked, and knows that there is a table."""
        return False

    def open(
        self, stores: Stores | None = None, catalog: CommitCatalog | None = None, policy: Policy = _EVERYTHING
    ) -> TableLog:
        """Open the log of the table, which is `located`; no I/O.

        `catalog`: the one that manages the table, if any. `policy`: what to read of it. Raises `ConfigError` where the
        store's client is not installed, and as `check_choices`.
        """
        all_stores = stores or Stores()
        table_format, store = self._open_root(all_stores, is_managed=catalog is not None)
        its_own = catalog or self._catalog(all_stores)
        return table_format.open(
            store,
            all_stores.open,
            self.allowed_roots,
            self.branch,
            its_own,
            statistics=policy.where is not None,
            compare=policy.changes is ChangeSource.COMPARE,
        )

    def inspect(self, stores: Stores | None = None, catalog: CommitCatalog | None = None) -> TableInspector:
        """Open what looks at the log of the table for people, as `open` does."""
        all_stores = stores or Stores()
        table_format, store = self._open_root(all_stores, is_managed=catalog is not None)
        its_own = catalog or self._catalog(all_stores)
        return table_format.inspect(store, all_stores.open, self.allowed_roots, self.branch, its_own)

    def _catalog(self, stores: Stores) -> Any:
        return None

    def _open_root(self, stores: Stores, *, is_managed: bool) -> tuple[TableFormat, ObjectStore]:
        """Return the format of the table, and the store that has its root."""
        chosen = check_choices(self.table_format, self.branch, location=self.location, is_managed=is_managed)
        by_location = default_format if is_managed else partial(format_of, self.location)
        table_format = by_location() if chosen is None else named_format(chosen)
        return table_format, stores.open(table_format.root(self.location, self.branch))


@dataclass(frozen=True, slots=True, kw_only=True)
class _NamedTable(TableRef):
    """A table whose newest version a catalog knows, by its `name`."""

    name: str

    @property
    @override
    def has_catalog(self) -> bool:
        return True

    @override
    def _catalog(self, stores: Stores) -> Any:
        names = names_of(self.name)
        return None if names is None else names.catalog(self.name, stores)


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
    if isinstance(stores, CurrentStores):
        return DataFiles(
            lambda uri: stores.stores.ranges(uri),  # noqa: PLW0108 - of the stores at that time
            logins=lambda location: stores.stores.delta_rs_settings(location),  # noqa: PLW0108
        )
    opened = stores or Stores()
    return DataFiles(opened.ranges, logins=opened.delta_rs_settings)


@cache
def _installed() -> EntryPoints:
    """Return the entry points of sinks. Once: this reads the metadata of all packages, and may be for 500 pipelines."""
    return entry_points(group=ENTRY_POINTS)


def sink_kinds() -> list[str]:
    """Return the installed kinds of sinks."""
    return sorted(_installed().names)


def configure_sink(
    name: str, kind: str, options: Mapping[str, Any], stores: Stores | None = None
) -> Sink | AtLeastOnceSink:
    """Make the sink of `kind`, configured as `name`; no I/O. `stores`: those that its `path` may be in.

    Raises `ConfigError` for an unknown kind, a missing client library or a bad option; an `ExceptionGroup` of several.
    """
    entries = _installed().select(name=kind)
    if not entries:
        remedy = f"{did_you_mean(kind, sink_kinds())} Installed kinds: {', '.join(sink_kinds())}."
        raise ConfigError(name, f"no sink of kind {kind!r}", remedy.lstrip())
    entry = next(iter(entries))
    try:
        factory = entry.load()
    except ImportError as error:
        missing = ConfigError(name, f"the {kind} sink cannot be loaded: {error}", _remedy(entry))
        raise as_one(name, [missing, *_faults_without_library(entry, name, options)]) from error
    path = options.get("path")
    in_store = isinstance(path, str) and "://" in path and not is_local(path)
    if in_store and not getattr(factory, "writes_to_stores", False):
        reason = f"{str(path).partition('://')[0]}:// is not a local path, and a {kind} sink writes to no other"
        raise ConfigError(f"{name}.path", reason, "Give a folder of this machine.")
    sink: Sink | AtLeastOnceSink = factory.configure(name, options)
    if not isinstance(sink, Sink | AtLeastOnceSink):
        reason = f"{type(sink).__name__} inherits neither tailer.sink.Sink nor tailer.sink.AtLeastOnceSink"
        raise ConfigError(name, reason, "Use a version of the sink that is made for this one of lake-tailer.")
    try:
        sink.use_stores(stores or Stores())
    except ConfigError as error:
        raise ConfigError(f"{name}.path", error.reason, error.remedy) from error
    return sink


def _faults_without_library(entry: EntryPoint, name: str, options: Mapping[str, Any]) -> list[ConfigError]:
    """Return the faults of the options, if the module `options` beside the sink can `read` them."""
    package = entry.module.rpartition(".")[0]
    if not package:
        return []
    try:
        read = import_module(f"{package}.options").read
    except (ImportError, AttributeError):
        return []
    return faults_by(partial(read, name, options))


def _remedy(entry: EntryPoint) -> str:
    """The next step where a sink lacks a library: the extra named after its kind, the fast one if there is one."""
    if package := entry.dist:
        extras = package.metadata.get_all("Provides-Extra") or ()
        for extra in (f"{entry.name}-fast", entry.name):
            if extra in extras:
                return how_to_install(extra, package=package.name)
    return "Install the library that is missing."
