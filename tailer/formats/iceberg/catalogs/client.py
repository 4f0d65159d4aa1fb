"""Requests to a catalog by PyIceberg, which is synchronous: on a few threads of their own, within a time limit.

A client is kept for all tables of its catalog. It is made again with the secrets of then where a login is refused.
"""

import re
import threading
from collections.abc import Callable, Mapping
from copy import copy
from functools import partial
from typing import Any, Final, TypeVar

import anyio
import anyio.to_thread
import msgspec
from pyiceberg import exceptions as theirs
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.utils.config import Config

from tailer.errors import ConfigError, NotATable, StorageAccessRefused, StorageUnavailable, TailerError, how_to_install
from tailer.formats.iceberg.catalogs.answers import LocationFound, LookAdapter
from tailer.formats.iceberg.metadata.current import TITLE
from tailer.stores.secrets import WAYS, NoSecret, Secret

__all__ = ["CatalogClient", "client_of", "read_properties", "translate"]

_REMEDY: Final = 'Give a text in quotes, or {file = "..."}, {command = ["..."]} or {env = "..."}.'
# What is ours to decide: a look must neither make tables in a database, nor read files, nor have a long answer.
_OURS: Final = {
    "py-io-impl": "tailer.formats.iceberg.catalogs.answers.LocationOnly",
    "init_catalog_tables": "false",
    "snapshot-loading-mode": "refs",
}


def read_properties(catalog: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties of a catalog, with its secrets. Blocks. Raises `NoSecret`, and `ConfigError` by name."""
    return {**_read(f"catalogs.{catalog}", given), **_OURS}


def _read(where: str, given: Mapping[str, Any]) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for name, value in given.items():
        if isinstance(value, bool | int | float):
            properties[name] = str(value).lower()
        elif isinstance(value, Mapping) and not value.keys() <= WAYS.keys():
            properties[name] = _read(f"{where}.{name}", value)
        else:
            try:
                properties[name] = Secret.of(value).read()
            except ValueError:
                raise ConfigError(
                    f"{where}.{name}", "must be text, a number or the place of a secret", _REMEDY
                ) from None
    return properties


_LOGIN: Final = (
    theirs.UnauthorizedError,
    theirs.ForbiddenError,
    theirs.AuthorizationExpiredError,
    theirs.OAuthError,
)
# What databases and AWS say where they refuse, and where a database has no catalog.
_REFUSED: Final = re.compile(
    "authentication failed|access ?denied|unrecognizedclient|invalidsignature|expiredtoken", re.IGNORECASE
)
_NO_CATALOG: Final = re.compile(
    "no such table|relation .* does not exist|unable to open database", re.IGNORECASE | re.DOTALL
)
_WRONG_ADDRESS: Final = frozenset({"ArgumentError", "NoSuchModuleError"})  # of SQLAlchemy, which is an extra
_LOGIN_REMEDY: Final = (
    "Correct the token or the credential in [catalogs.{catalog}], or allow this login to read the namespace and its "
    "tables."
)


def no_answer(name: str, catalog: str, reason: str) -> StorageUnavailable:
    """Build the error for a catalog that does not answer; it is asked again."""
    return StorageUnavailable(name, f"the catalog {catalog}: {reason}")


def translate(error: Exception, name: str, catalog: str) -> TailerError:
    """Return what an error of PyIceberg, or of a client that it uses, means for the table `name` of a catalog."""
    kind, text = type(error).__name__, str(error)
    if isinstance(error, NoSecret):
        if error.remedy is None:
            return no_answer(name, catalog, error.reason)
        return ConfigError(f"catalogs.{catalog}", error.reason, error.remedy)
    if isinstance(error, ImportError | theirs.NotInstalledError):
        remedy = f"{how_to_install('iceberg-catalogs')} {_package(text)}".rstrip()
        return ConfigError(f"catalogs.{catalog}", "needs a package that is not installed", remedy)
    if isinstance(error, _LOGIN) or _REFUSED.search(text):
        reason = f"the catalog {catalog} refuses the login ({kind})"
        return StorageAccessRefused(name, reason, _LOGIN_REMEDY.format(catalog=catalog))
    if _NO_CATALOG.search(text):
        remedy = f"Check the uri in [catalogs.{catalog}]: the database needs the tables of a catalog."
        return StorageAccessRefused(name, f"the database of {catalog} has no catalog", remedy)
    if (
        isinstance(error, theirs.BadRequestError | theirs.NoSuchPropertyException | ValueError)
        or kind in _WRONG_ADDRESS
    ):
        remedy = f"Add [catalogs.{catalog}] with type and uri, or check its options: see docs/iceberg.md."
        return ConfigError(f"catalogs.{catalog}", f"cannot be used ({kind})", remedy)
    return no_answer(name, catalog, kind)


def _package(text: str) -> str:
    """Return how to install what PyIceberg says that it lacks."""
    extra = re.search(r"pyiceberg\[[a-z0-9-]+\]", text)
    if extra is None:
        missing = re.search(r"No module named '([A-Za-z0-9_]+)", text)
        return "" if missing is None else f"It lacks {missing[1]}."
    return f"It also needs {extra[0]}."


T = TypeVar("T")
Identifier = tuple[str, ...]

_ANSWER_WITHIN_S: Final = 20.0
_STEP_WITHIN_S: Final = 10.0
_AT_ONCE: Final = 4

_clients: Final = dict[tuple[str, bytes], "CatalogClient"]()


def client_of(catalog: str, given: Mapping[str, Any]) -> "CatalogClient":
    """Return the client of a catalog with these options, the same for all tables; no I/O."""
    key = (catalog, msgspec.json.encode(given, order="deterministic"))
    return _clients.setdefault(key, CatalogClient(catalog, given))


class CatalogClient:
    """A catalog. `given`: its options in the configuration; those of PyIceberg's configuration count, too."""

    def __init__(self, catalog: str, given: Mapping[str, Any]) -> None:
        self._name = catalog
        self._given = given
        self._catalog: Catalog | None = None
        self._making = threading.Lock()
        self._turns = anyio.CapacityLimiter(_AT_ONCE)
        # A request that does not end keeps its thread, which the turns do not know any more.
        self._threads = threading.BoundedSemaphore(_AT_ONCE)

    async def location(self, name: str, table: Identifier) -> str | None:
        """Return the location of the metadata file of a table; None: there is no such table. One request."""
        return await self._ask(name, partial(self._locate, name, table))

    async def tables(self, namespace: Identifier) -> list[Identifier] | None:
        """Return the tables in a namespace, with their full names; None: there is no such namespace."""
        return await self._ask(f"iceberg://{self._name}/{'.'.join(namespace)}", partial(self._list, namespace))

    async def _ask(self, name: str, work: Callable[[], T]) -> T:
        def attempt() -> T:
            if not self._threads.acquire(blocking=False):
                raise no_answer(name, self._name, f"{_AT_ONCE} requests have had no answer")
            try:
                return work()
            finally:
                self._threads.release()

        try:
            with anyio.fail_after(_ANSWER_WITHIN_S):
                return await anyio.to_thread.run_sync(attempt, limiter=self._turns, abandon_on_cancel=True)
        except TimeoutError:
            raise no_answer(name, self._name, f"no answer in {_ANSWER_WITHIN_S:g} s") from None

    def _locate(self, name: str, table: Identifier) -> str | None:
        try:
            location: str | None = self._made(name).load_table(table).metadata_location
        except LocationFound as look:
            location = look.location
        except theirs.NoSuchIcebergTableError:
            raise NotATable(name, "the catalog has a table of another kind", TITLE) from None
        except (theirs.NoSuchTableError, theirs.NoSuchNamespaceError):
            return None
        except Exception as error:  # noqa: BLE001 - of any library that PyIceberg uses
            raise self._fault(error, name) from None
        return location

    def _list(self, namespace: Identifier) -> list[Identifier] | None:
        name = f"iceberg://{self._name}/{'.'.join(namespace)}"
        try:
            tables: list[Identifier] = self._made(name).list_tables(namespace)
        except theirs.NoSuchNamespaceError:
            return None
        except Exception as error:  # noqa: BLE001 - of any library that PyIceberg uses
            raise self._fault(error, name) from None
        return tables

    def _made(self, name: str) -> Catalog:
        with self._making:
            if self._catalog is None:
                if not self._given and Config().get_catalog_config(self._name) is None:
                    remedy = "Add a table with that name, with type and uri: see docs/iceberg.md."
                    raise ConfigError(f"catalogs.{self._name}", "there is no such catalog", remedy)
                catalog = load_catalog(self._name, **read_properties(self._name, self._given))
                if isinstance(catalog, RestCatalog):
                    session = catalog._session  # noqa: SLF001 - there is no other way to bound its requests
                    for prefix, adapter in list(session.adapters.items()):
                        session.mount(prefix, LookAdapter(adapter, _STEP_WITHIN_S))
                self._catalog = catalog
            return _for_one_request(self._catalog)

    def _fault(self, error: Exception, name: str) -> TailerError:
        fault = error if isinstance(error, TailerError) else translate(error, name, self._name)
        if isinstance(fault, StorageAccessRefused):
            self._catalog = None
        return fault


def _for_one_request(catalog: Catalog) -> Catalog:
    """Return a catalog that no other thread uses, where its client would mix up the answers to two requests.

    That of Hive does: it has one connection, which it opens for each request.
    """
    if not hasattr(catalog, "_create_hive_client"):
        return catalog
    own = copy(catalog)
    own._client = catalog._create_hive_client(catalog.properties)  # noqa: SLF001 - no other way to have another one
    return own
