"""Iceberg as a `TableFormat`."""

import re
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import Any, Final

from typing_extensions import override

from tailer.errors import ConfigError, how_to_install
from tailer.formats.iceberg.catalogs.names import NAMES
from tailer.formats.inspection import TableInspector
from tailer.formats.port import TableFormat
from tailer.stores.port import ObjectStore
from tailer.table_log import TableLog

__all__ = ["ICEBERG"]

_METADATA: Final = re.compile(r"(?:.*/)?[^/]+\.metadata\.json(?:\.gz)?")
_VERSION: Final = re.compile(r"(?:.*/)?v([0-9]+)(?:\.gz)?\.metadata\.json(?:\.gz)?")


class _Iceberg(TableFormat):
    name = "iceberg"
    title = "an Iceberg table"
    log_folder = "metadata"
    has_catalogs = False
    has_branches = True
    names = NAMES
    thread_libraries = frozenset({"pyiceberg"})  # a request to a catalog that does not answer

    @override
    def may_be_at(self, location: str) -> bool:
        return _METADATA.fullmatch(location) is not None

    @override
    async def is_in(self, store: ObjectStore, folder: str) -> bool:
        log = f"{folder}/{self.log_folder}".removeprefix("/")
        return await store.holds(log, lambda name: _METADATA.fullmatch(name) is not None)

    def versions(self, names: Iterable[str]) -> Iterable[int]:
        """Return the versions of the metadata, which are no versions of rows."""
        return [int(name[1]) for path in names if (name := _VERSION.fullmatch(path))]

    @override
    def root(self, location: str, branch: str | None) -> str:
        if branch == "":
            raise ConfigError("branch", "is empty", "Give the name of a branch.")
        return location

    @override
    def open(
        self,
        store: ObjectStore,
        open_store: Callable[[str], ObjectStore],
        allowed_roots: tuple[str, ...] = (),
        branch: str | None = None,
        catalog: Any = None,
        statistics: bool = False,
        compare: bool = False,
    ) -> TableLog:
        from tailer.formats.iceberg.table import IcebergTableLog  # noqa: PLC0415 - not to recognise a table

        return IcebergTableLog(store, open_store, allowed_roots, branch, catalog, statistics)

    @override
    def inspect(
        self,
        store: ObjectStore,
        open_store: Callable[[str], ObjectStore],
        allowed_roots: tuple[str, ...] = (),
        branch: str | None = None,
        catalog: Any = None,
    ) -> TableInspector:
        from tailer.formats.iceberg.inspector import IcebergInspector  # noqa: PLC0415 - not to follow a table

        return IcebergInspector(store, open_store, allowed_roots, branch, catalog)

    @override
    def check_reader(self) -> None:
        if find_spec("fastavro") is None:
            raise ConfigError("table", "is an Iceberg table, and fastavro is not installed", how_to_install("iceberg"))


ICEBERG: Final[TableFormat] = _Iceberg()
