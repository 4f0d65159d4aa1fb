"""Names of Iceberg tables: `iceberg://CATALOG/NAMESPACE.TABLE`, where a namespace may have several levels.

A catalog has a table [catalogs.NAME] in the configuration. One without it is reached as PyIceberg's own configuration
says, which is a file or the environment.
"""

import re
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, NamedTuple

from typing_extensions import override

from tailer.errors import ConfigError, ObjectNotFound, how_to_install
from tailer.formats.port import TableNames
from tailer.stores.port import in_thread
from tailer.stores.stores import Stores

if TYPE_CHECKING:
    from tailer.formats.iceberg.catalogs.client import CatalogClient

__all__ = ["NAMES", "CatalogTable"]

_SCHEME: Final = "iceberg"
_NAME: Final = re.compile(r"iceberg://([^/]*)/?(.*)", re.DOTALL | re.IGNORECASE)
_CATALOG: Final = re.compile(r"[A-Za-z0-9_-]+")
_REMEDY: Final = "Give iceberg://CATALOG/NAMESPACE.TABLE."
_EXTRA: Final = "iceberg-catalogs"


class _Name(NamedTuple):
    """The parts of a name."""

    catalog: str
    table: tuple[str, ...]  # the levels of the namespace, and the table


def _split(name: str) -> _Name:
    catalog, _, table = name.removeprefix(f"{_SCHEME}://").partition("/")
    return _Name(catalog, tuple(table.split(".")))


class CatalogTable:
    """A table that a catalog knows by `name`."""

    def __init__(self, name: str, stores: Stores) -> None:
        self.name: Final = name
        self._stores = stores

    async def look(self) -> str | None:
        """Return the location of the metadata file of now; None: the catalog has no such table.

        Raises as `TableNames.find`.
        """
        catalog, table = _split(self.name)
        client = await _client(self.name, catalog, self._stores)
        return await client.location(self.name, table)


async def _client(name: str, catalog: str, stores: Stores) -> "CatalogClient":
    """Return the client of a catalog. Raises `ConfigError` where it is not installed."""

    def imported() -> "CatalogClient":
        NAMES.check_client(name)
        from tailer.formats.iceberg.catalogs.client import client_of  # noqa: PLC0415 - an extra

        return client_of(catalog, stores.catalogs.get(catalog, {}))

    return await in_thread(imported)


class _IcebergNames(TableNames):
    scheme = _SCHEME
    table_format = "iceberg"
    is_log = True
    missing = (
        "the catalog has no such table",
        "Check the namespace and the table, and whether it was dropped or renamed.",
    )

    @override
    def parse(self, text: str, where: str) -> str:
        match = _NAME.fullmatch(text)
        catalog, name = match.groups() if match is not None else ("", "")
        parts = name.rstrip("/").split(".")
        if not _CATALOG.fullmatch(catalog) or len(parts) < 2 or not all(part and "/" not in part for part in parts):
            raise ConfigError(where, "is not the name of a table in a catalog", _REMEDY)
        if any("*" in part for part in parts[:-1]):
            reason = "has a * in the name of a namespace, but it may only be in that of a table"
            raise ConfigError(where, reason, "Add a pipeline for each namespace.")
        return f"{_SCHEME}://{catalog}/{'.'.join(parts)}"

    @override
    def check_client(self, name: str) -> None:
        if find_spec("pyiceberg") is None:
            reason = "is in a catalog of Iceberg, and pyiceberg is not installed"
            raise ConfigError("table", reason, how_to_install(_EXTRA))

    @override
    async def find(self, name: str, stores: Stores) -> str | None:
        from tailer.formats.iceberg.metadata.document import root_of  # noqa: PLC0415 - not to recognise a name

        location = await CatalogTable(name, stores).look()
        return None if location is None else root_of(location)

    @override
    async def tables(self, folder: str, pattern: str, stores: Stores) -> list[str]:
        catalog, (*namespace, _) = _split(f"{folder}/{pattern}")
        tables = await (await _client(folder, catalog, stores)).tables(tuple(namespace))
        if tables is None:
            raise ObjectNotFound(f"{folder}/{'.'.join(namespace)}")
        return [".".join(table) for table in tables]

    @override
    def catalog(self, name: str, stores: Stores) -> CatalogTable:
        return CatalogTable(name, stores)


NAMES: Final[TableNames] = _IcebergNames()
