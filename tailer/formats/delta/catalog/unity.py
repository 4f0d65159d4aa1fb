"""Unity Catalog as the `CommitCatalog` of a table, over its Delta API (`/delta/v1`, Unity Catalog 0.5 and later).

One `loadTable` request returns the table's id, location, latest version and all unpublished commits, as of one moment.
A name may later refer to another table. So the answer must have the location of the followed table, and the id of the
first answer.

Each request uses its own connection, so there is nothing to close and no connection goes stale between two polls. The
token comes from the environment, a file or a command. The file is read for every request, and the command runs again
when the token is refused, so that the token can be renewed. No message contains the token, because the catalog's own
texts are not repeated.
"""

import os
from typing import Final
from urllib.parse import quote, unquote, urlsplit

import anyio
import httpx2
import msgspec
from typing_extensions import override

from tailer.errors import ConfigError, StorageAccessRefused, StorageUnavailable, TableReplaced
from tailer.formats.delta.catalog.options import UnityOptions, fits_header
from tailer.formats.delta.catalog.port import CommitCatalog, RatifiedCommits, StagedCommit
from tailer.stores.location import split_location
from tailer.stores.port import in_thread
from tailer.stores.secrets import KeptSecret, NoSecret

__all__ = ["UnityCatalog"]

ANSWER_WITHIN_S: Final = 20.0
_STEP_WITHIN_S: Final = 10.0  # to connect, and between two chunks of a response

_API: Final = "/api/2.1/unity-catalog"
_MANAGED: Final = "MANAGED"
_UNKNOWN: Final = frozenset({"NoSuchCatalogException", "NoSuchSchemaException", "NoSuchTableException"})


class _Commit(msgspec.Struct, rename="kebab"):
    version: int
    timestamp: int
    file_name: str


class _Table(msgspec.Struct, rename="kebab"):
    table_type: str
    table_uuid: str
    location: str


class _Answer(msgspec.Struct, rename="kebab"):
    metadata: _Table
    commits: list[_Commit] | None = None
    latest_table_version: int | None = None


class _Fault(msgspec.Struct):
    type: str = ""


class _Refusal(msgspec.Struct):
    error: _Fault


class UnityCatalog(CommitCatalog):
    """A table of a Unity Catalog server. `options`: without a fault, see `unity_faults`."""

    def __init__(self, options: UnityOptions) -> None:
        self._uri = options.uri.rstrip("/")
        self._table = options.table
        self._place = f"{self._table} in {self._uri}"
        self._secret = options.token
        self._token = KeptSecret(self._secret)
        self._id: str | None = None
        catalog, schema, name = (quote(part, safe="") for part in self._table.split("."))
        api = self._uri if urlsplit(self._uri).path else self._uri + _API
        self._url = f"{api}/delta/v1/catalogs/{catalog}/schemas/{schema}/tables/{name}"
        self._client: httpx2.AsyncClient | None = None

    @override
    async def ratified(self, location: str) -> RatifiedCommits:
        answer = await self._load()
        table, latest = answer.metadata, answer.latest_table_version
        if table.table_type != _MANAGED or latest is None or latest < 0:
            reason = "the catalog does not manage its commits"
            raise self._wrong(reason, "Remove `catalog` from the pipeline: the table's own log has all commits.")
        if self._id is not None and table.table_uuid != self._id:
            raise TableReplaced(location, latest, self._id, table.table_uuid)
        if not await in_thread(_same_location, table.location, location):
            reason = f"the catalog has it at {table.location}, and the pipeline follows {location}"
            raise self._wrong(reason, "Set the pipeline's `table` and its catalog's `table` to the same table.")
        self._id = table.table_uuid
        commits = sorted(answer.commits or (), key=lambda commit: commit.version)
        try:
            return RatifiedCommits(latest, tuple(StagedCommit(c.version, c.file_name, c.timestamp) for c in commits))
        except ValueError as error:
            raise self._unavailable(f"its answer contradicts itself: {error}") from error

    async def _load(self) -> _Answer:
        token = await self._read_token()
        response = await self._ask(token)
        if response.status_code in (401, 403) and self._secret.may_change:
            self._token.forget()
            if (renewed := await self._read_token()) != token:
                token, response = renewed, await self._ask(renewed)
        if response.status_code != 200:
            raise self._refused(response, token is not None)
        try:
            return msgspec.json.decode(response.content, type=_Answer)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise self._unavailable("its answer is not from the Delta API") from error

    async def _ask(self, token: str | None) -> httpx2.Response:
        headers = {"Accept": "application/json"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        if self._client is None:
            self._client = await in_thread(_new_client)
        try:
            with anyio.fail_after(ANSWER_WITHIN_S):
                return await self._client.get(self._url, headers=headers)
        except (httpx2.TimeoutException, TimeoutError) as error:
            raise self._unavailable("no answer in time") from error
        except httpx2.HTTPError as error:
            raise self._unavailable(str(error) or type(error).__name__) from error

    async def _read_token(self) -> str | None:
        try:
            token = await in_thread(self._token.read)
        except NoSecret as error:
            if error.remedy is None:
                raise self._unavailable(error.reason) from None
            raise self._wrong(error.reason, error.remedy) from None
        if token is not None and not fits_header(token):
            raise self._wrong(f"{self._secret.place} gives no token", "It must give the token alone, in one line.")
        return token

    def _refused(
        self, response: httpx2.Response, had_token: bool
    ) -> ConfigError | StorageAccessRefused | StorageUnavailable:
        status, kind = response.status_code, _fault(response.content)
        if status >= 500 or status in (408, 429):
            return self._unavailable(f"it answers {status} {kind}".rstrip())
        match status:
            case 401:
                reason = "does not accept the token, which may have expired" if had_token else "requires a token"
                return StorageAccessRefused(self._place, f"the catalog {reason}", self._secret.remedy("token"))
            case 403:
                remedy = "Grant USE CATALOG, USE SCHEMA and SELECT."
                return StorageAccessRefused(self._place, "the catalog denies access to it", remedy)
            case 404 if kind in _UNKNOWN:
                return self._wrong("the catalog does not have this table", "Check the name: catalog.schema.table.")
            case 404:
                reason = f"there is no Delta API at {self._uri}"
                return self._wrong(reason, "Check `uri`; Unity Catalog has this API since version 0.5.")
        remedy = "Check `uri`, and that the table is a Delta table managed by the catalog."
        return self._wrong(f"the catalog answers {status} {kind}".rstrip(), remedy)

    def _wrong(self, reason: str, remedy: str) -> ConfigError:
        return ConfigError(self._place, reason, remedy)

    def _unavailable(self, reason: str) -> StorageUnavailable:
        return StorageUnavailable(f"the catalog at {self._uri}", reason)


def _new_client() -> httpx2.AsyncClient:
    """Create a client. Blocks to read the system's certificates."""
    alone = httpx2.Limits(max_keepalive_connections=0)
    return httpx2.AsyncClient(timeout=_STEP_WITHIN_S, limits=alone, follow_redirects=False)


def _fault(content: bytes) -> str:
    """Return the error type that the API names; empty for an answer of another program."""
    try:
        kind = msgspec.json.decode(content, type=_Refusal).error.type
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""
    return kind if kind.isidentifier() and len(kind) < 64 else ""


def _same_location(location: str, ours: str) -> bool:
    """Return whether two locations are the same. Catalogs write `file:`, `s3a:` and `abfs:` for ours."""
    return _normalize(location) == _normalize(ours)


def _normalize(location: str) -> str:
    if location.startswith("file:"):
        location = unquote(urlsplit(location).path)
    if (place := split_location(location)) is not None:
        return f"{place.root}/{place.key}".rstrip("/")
    return location.rstrip("/") if "://" in location else os.path.realpath(location)
