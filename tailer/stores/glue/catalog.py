"""Requests to Glue, with aiobotocore: the login and the clients are those of S3 (`tailer.stores.s3`)."""

from collections.abc import Mapping
from typing import Any, Final

import aiohttp
from botocore.exceptions import BotoCoreError, ClientError

from tailer.errors import ObjectNotFound, StorageAccessRefused, StorageError
from tailer.stores.bucket.port import Failure
from tailer.stores.glue.entries import is_delta, location_of
from tailer.stores.glue.names import SCHEME, split_name
from tailer.stores.glue.options import GlueOptions
from tailer.stores.s3.clients import LoopClient, loop_client
from tailer.stores.s3.errors import Place, error_code, failure_of, message_of, translate
from tailer.stores.s3.traffic import unseen_fault, verb_of
from tailer.stores.traffic import FAULTS

__all__ = ["find_location", "list_tables"]

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
    database, table = split_name(name)
    answer = await _ask(name, database, options, "get_table", DatabaseName=database, Name=table)
    return None if answer is None else location_of(name, answer["Table"])


async def list_tables(database: str, options: GlueOptions) -> list[str]:
    """See `tailer.stores.glue.list_tables`."""
    found: list[str] = []
    name, more = database.removeprefix(SCHEME), dict[str, str]()
    while True:
        page = await _ask(database, name, options, "get_tables", DatabaseName=name, **more)
        if page is None:
            raise ObjectNotFound(database)
        found += [entry["Name"] for entry in page.get("TableList", ()) if is_delta(entry)]
        if not page.get("NextToken"):
            return found
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
                    return await _send(lent, operation, request)
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


async def _send(lent: LoopClient, operation: str, request: Mapping[str, str]) -> Answer:
    answer: Answer = await getattr(lent.client, operation)(**request)
    return answer


def _translate(error: Exception, uri: str, place: Place) -> StorageError:
    code = error_code(error)
    if isinstance(error, ClientError) and code in _DENIED:
        reason = f"access to {place.noun} is denied ({code}), {place.credentials}{message_of(error)}"
        return StorageAccessRefused(uri, reason, _DENIED_REMEDY)
    if isinstance(error, ClientError) and code in _LASTING:
        reason = f"Glue refuses the request: {code}{message_of(error)}"
        return StorageAccessRefused(uri, reason, "Check the name, and the options of the store with its prefix.")
    return translate(error, uri, place)
