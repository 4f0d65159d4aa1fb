"""Requests to Glue, with aiobotocore: the login and the clients are those of S3 (`tailer.stores.s3`).

Programs mark a Delta table in different ways. Spark writes the parameter `spark.sql.sources.provider`, Athena
`table_type`, and crawlers also `classification`. Capitals differ.

Spark keeps the location of a table in the parameter `path` of its SerDe, and may write a location of the storage
descriptor that ends in `-__PLACEHOLDER__`, which is no folder (SPARK-15269). Athena and crawlers write only the storage
descriptor. If the two name different folders, programs disagree about which table it is, so none is followed.

A crawler may also describe a Delta table by a symlink manifest. That is a list of data files at one moment, in a folder
inside of the table, and has no log.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

import aiohttp
from botocore.exceptions import BotoCoreError, ClientError

from tailer.errors import ConfigError, NotATable, ObjectNotFound, StorageAccessRefused, StorageError
from tailer.stores.bucket.port import Failure
from tailer.stores.glue import SCHEME, GlueOptions
from tailer.stores.location import is_local, is_readable, parse_location, split_location
from tailer.stores.s3.clients import LoopClient, loop_client
from tailer.stores.s3.errors import Place, error_code, failure_of, message_of, translate
from tailer.stores.s3.traffic import unseen_fault, verb_of
from tailer.stores.traffic import FAULTS

__all__ = ["is_delta", "location_of"]

Entry = Mapping[str, Any]

_DELTA: Final = "delta"
_KINDS: Final = ("spark.sql.sources.provider", "table_type", "classification")
_TITLES: Final = {"iceberg": "an Iceberg table", "hudi": "a Hudi table"}
_PLACEHOLDER: Final = "-__PLACEHOLDER__"
_MANIFEST_FOLDER: Final = "_symlink_format_manifest"
_MANIFEST_FORMAT: Final = "SymlinkTextInputFormat"
_OTHER_REMEDY: Final = "Give the name of a Delta table, or the table's location in place of its name."
_LOCATION_REMEDY: Final = "Give the table's location in place of its name, or correct it in Glue."


def is_delta(entry: Entry) -> bool:
    """Return whether an entry of the catalog is a Delta table."""
    return _DELTA in _kinds(entry) and not _is_manifest(entry)


def location_of(name: str, entry: Entry) -> str:
    """Return the location of the Delta table that `entry` describes under `name`. Raises `NotATable`."""
    if _is_manifest(entry):
        above, mark, _ = _described(entry).partition(f"/{_MANIFEST_FOLDER}")
        is_address = split_location(above) is not None and is_readable(above)
        remedy = f"Give the location of the table: {above}" if mark and is_address else _OTHER_REMEDY
        raise NotATable(name, "Glue has only a symlink manifest, which lists its files at one moment", remedy=remedy)
    if not is_delta(entry):
        raise NotATable(name, f"in Glue it is {_title(entry)}", remedy=_OTHER_REMEDY)
    parameters = ((entry.get("StorageDescriptor") or {}).get("SerdeInfo") or {}).get("Parameters") or {}
    path = next((str(value) for key, value in parameters.items() if str(key).lower() == "path"), "")
    described = _described(entry)
    if described.rstrip("/").endswith(_PLACEHOLDER):
        described = ""
    locations = [_parse(name, text) for text in (path, described) if text]
    if not locations:
        raise NotATable(name, "Glue has no location of it", remedy=_LOCATION_REMEDY)
    if locations[0] != locations[-1]:
        reason = f"Glue has two locations of it: {locations[0]} for Spark, and {locations[-1]} for others"
        raise NotATable(name, reason, remedy=_LOCATION_REMEDY)
    return locations[0]


def _kinds(entry: Entry) -> list[str]:
    parameters = {str(key).lower(): str(value).lower() for key, value in (entry.get("Parameters") or {}).items()}
    return [parameters[key] for key in _KINDS if parameters.get(key)]


def _title(entry: Entry) -> str:
    if str(entry.get("TableType", "")).upper() == "VIRTUAL_VIEW":
        return "a view"
    if (target := entry.get("TargetTable")) is not None:
        return f"a link to the table {target.get('Name')} of the database {target.get('DatabaseName')}"
    kinds = _kinds(entry)
    title = next((_TITLES[kind] for kind in kinds if kind in _TITLES), None)
    if title is not None:
        return title
    return f"a table of the kind {kinds[0]!r}" if kinds else "a table of an unknown kind"


def _is_manifest(entry: Entry) -> bool:
    format_ = str((entry.get("StorageDescriptor") or {}).get("InputFormat") or "")
    return format_.endswith(_MANIFEST_FORMAT) or _MANIFEST_FOLDER in _described(entry).split("/")


def _described(entry: Entry) -> str:
    return str((entry.get("StorageDescriptor") or {}).get("Location") or "")


def _parse(name: str, location: str) -> str:
    """Return a location in our spelling. Old ones of `s3n:` hold keys, so none of their text is shown."""
    try:
        parsed = parse_location(location, Path("/"), name)
    except ConfigError as error:
        reason = error.reason if split_location(location) is None else "does not name a bucket, or holds credentials"
        raise NotATable(name, f"its location in Glue {reason}", remedy=_LOCATION_REMEDY) from None
    if is_local(parsed):
        raise NotATable(name, "its location in Glue is not in a store", remedy=_LOCATION_REMEDY)
    return parsed


Answer = Mapping[str, Any]

_SERVICE: Final = "glue"
_MISSING: Final = "EntityNotFoundException"
_DENIED: Final = frozenset({"AccessDeniedException", "AccessDenied"})
# Requests that Glue cannot serve, now or later.
_LASTING: Final = frozenset({"GlueEncryptionException", "InvalidInputException", "ValidationException"})
_DENIED_REMEDY: Final = (
    "Allow glue:GetTable, and glue:GetTables for templates, on the catalog, the database and its tables; where Lake "
    "Formation rules the database, also DESCRIBE on the tables."
)
_FAILURES: Final = (BotoCoreError, ClientError, aiohttp.ClientError, OSError, ValueError)


async def find_location(name: str, options: GlueOptions) -> str | None:
    """See `tailer.stores.glue.find_location`."""
    database, table = name.removeprefix(SCHEME).split("/")
    answer = await _ask(name, database, options, "get_table", DatabaseName=database, Name=table)
    return None if answer is None else location_of(name, answer["Table"])


async def list_tables(database: str, options: GlueOptions) -> list[str]:
    """See `tailer.stores.glue.list_tables`."""
    names: list[str] = []
    name, more = database.removeprefix(SCHEME), dict[str, str]()
    while True:
        page = await _ask(database, name, options, "get_tables", DatabaseName=name, **more)
        if page is None:
            raise ObjectNotFound(database)
        names += [entry["Name"] for entry in page.get("TableList", ()) if is_delta(entry)]
        if not page.get("NextToken"):
            return names
        more = {"NextToken": page["NextToken"]}


async def _ask(uri: str, database: str, options: GlueOptions, operation: str, **request: str) -> Answer | None:
    """Send a request; None where Glue has no such table or database. Raises `StorageError`.

    A refused login is looked for again, once.
    """
    login, may_repeat = options.login, True
    while True:
        lent: LoopClient | None = None
        try:
            async with loop_client(login, _SERVICE) as lent:
                try:
                    return cast(Answer, await getattr(lent.client, operation)(**request))
                except _FAILURES as error:
                    if failure_of(error) in (Failure.EXPIRED, Failure.LOGIN):
                        lent.retire()
                    raise
        except _FAILURES as error:
            if (fault := unseen_fault(error)) is not None:
                FAULTS.add((login.store_name(_SERVICE), verb_of(operation), fault), 1)
            if error_code(error) == _MISSING:
                return None
            if failure_of(error) is not Failure.EXPIRED or not may_repeat:
                place = Place(f"the database {database} of Glue", login)
                place = place if lent is None else place.through(lent.client, lent.credentials)
                raise _translate(error, uri, place) from error
            may_repeat = False


def _translate(error: Exception, uri: str, place: Place) -> StorageError:
    code = error_code(error)
    if isinstance(error, ClientError) and code in _DENIED:
        reason = f"access to {place.noun} is denied ({code}), {place.credentials}{message_of(error)}"
        return StorageAccessRefused(uri, reason, _DENIED_REMEDY)
    if isinstance(error, ClientError) and code in _LASTING:
        reason = f"Glue refuses the request: {code}{message_of(error)}"
        return StorageAccessRefused(uri, reason, "Check the name, and the options of the store with its prefix.")
    return translate(error, uri, place)
