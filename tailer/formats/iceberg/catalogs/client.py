"""Requests to a catalog by PyIceberg, which is synchronous: on a few threads of their own, within a time limit.

PyIceberg reads the metadata of a table as soon as it knows where that is, and the location alone is wanted: the rest is
ours to read, from our own stores. SQL, Glue and Hive have no more than the location, and the file of `LocationOnly`
ends the reading there. A REST catalog answers with metadata, which would be parsed whole; `_LookAdapter` takes the
location out of the answer before that. It asks with the ETag of the last answer, so that a server which has ETags need
not answer again.

A client is kept for all tables of its catalog. It is made again with the secrets of then where a login is refused.
"""

import re
import threading
from collections.abc import Callable, Mapping
from copy import copy
from functools import partial
from typing import Any, Final, NoReturn, TypeVar

import anyio
import anyio.to_thread
import msgspec
from pyiceberg import exceptions as theirs
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.utils.config import Config
from requests import PreparedRequest, Response
from requests.adapters import BaseAdapter
from typing_extensions import override

from tailer.errors import ConfigError, NotATable, StorageAccessRefused, StorageUnavailable, TailerError, how_to_install
from tailer.formats.iceberg.metadata.document import TITLE
from tailer.stores.secrets import WAYS, NoSecret, Secret

__all__ = ["CatalogClient", "client_of", "translate"]

_TABLE: Final = re.compile(r"/namespaces/[^/]+/tables/[^/?]+(?:\?|$)")
_LENT: Final = "X-Iceberg-Access-Delegation"


class _LocationFound(Exception):
    """Ends a look: `location` is that of the metadata file."""

    def __init__(self, location: str) -> None:
        super().__init__()
        self.location: Final = location


class LocationOnly(FileIO):  # type: ignore[misc]
    """Opens no file: its location is what is wanted."""

    @override
    def new_input(self, location: str) -> InputFile:
        raise _LocationFound(location)

    @override
    def new_output(self, location: str) -> OutputFile:
        raise PermissionError(location)

    @override
    def delete(self, location: str | InputFile | OutputFile) -> NoReturn:
        raise PermissionError(location)


class _Answer(msgspec.Struct, rename="kebab"):
    metadata_location: str | None = None


class _LookAdapter(BaseAdapter):  # type: ignore[misc]
    """Sends requests by `adapter`, within `timeout_s` for each step, and takes locations out of answers."""

    def __init__(self, adapter: BaseAdapter, timeout_s: float) -> None:
        super().__init__()
        self._adapter = adapter
        self._timeout_s = timeout_s
        self._last: dict[str, tuple[str, str]] = {}  # ETags and locations, by URL

    @override
    def send(
        self,
        request: PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: bool | str = True,
        cert: Any = None,
        proxies: dict[str, str] | None = None,
    ) -> Response:
        url = request.url or ""
        is_look = request.method == "GET" and _TABLE.search(url) is not None
        tag, location = self._last.get(url, ("", ""))
        if is_look:
            # Files are read with the login of their store, so a server need not lend one. A compressed answer may have
            # an ETag that the server itself does not know.
            request.headers.pop(_LENT, None)
            request.headers.update({"Accept-Encoding": "identity"} | ({"If-None-Match": tag} if tag else {}))
        response = self._adapter.send(request, stream, self._timeout_s, verify, cert, proxies)
        if is_look and response.status_code == 304:
            raise _LocationFound(location)
        if is_look and response.status_code == 200:
            new = msgspec.json.decode(response.content, type=_Answer).metadata_location
            if new is not None:
                self._last[url] = (response.headers.get("ETag", ""), new)
                raise _LocationFound(new)
        return response

    @override
    def close(self) -> None:
        self._adapter.close()


_REMEDY: Final = 'Give a text in quotes, or {file = "..."}, {command = ["..."]} or {env = "..."}.'
# What is ours to decide: a look must neither make tables in a database, nor read files, nor have a long answer.
_OURS: Final = {
    "py-io-impl": "tailer.formats.iceberg.catalogs.client.LocationOnly",
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
            location: str | None = self._made().load_table(table).metadata_location
        except _LocationFound as look:
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
            tables: list[Identifier] = self._made().list_tables(namespace)
        except theirs.NoSuchNamespaceError:
            return None
        except Exception as error:  # noqa: BLE001 - of any library that PyIceberg uses
            raise self._fault(error, name) from None
        return tables

    def _made(self) -> Catalog:
        with self._making:
            if self._catalog is None:
                if not self._given and Config().get_catalog_config(self._name) is None:
                    remedy = "Add a table with that name, with type and uri: see docs/iceberg.md."
                    raise ConfigError(f"catalogs.{self._name}", "there is no such catalog", remedy)
                catalog = load_catalog(self._name, **read_properties(self._name, self._given))
                if isinstance(catalog, RestCatalog):
                    session = catalog._session  # noqa: SLF001 - there is no other way to bound its requests
                    for prefix, adapter in list(session.adapters.items()):
                        session.mount(prefix, _LookAdapter(adapter, _STEP_WITHIN_S))
                self._catalog = catalog
            # The client of Hive has one connection, which it opens for each request: with one client, two threads would
            # mix up the answers to their requests.
            if not hasattr(self._catalog, "_create_hive_client"):
                return self._catalog
            own = copy(self._catalog)
            own._client = own._create_hive_client(own.properties)  # noqa: SLF001 - no other way to have another one
            return own

    def _fault(self, error: Exception, name: str) -> TailerError:
        fault = error if isinstance(error, TailerError) else translate(error, name, self._name)
        if isinstance(fault, StorageAccessRefused):
            self._catalog = None
        return fault
