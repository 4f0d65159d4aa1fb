"""Errors of obstore as ours: named after the object, with the next step, and without any secret.

obstore has few classes of errors; status and code of a server's answer are in their texts, from which they are read.
The texts themselves are not shown, because they may hold addresses with signatures. A HEAD request has no code.
"""

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    InvalidPathError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from tailer.errors import (
    ConfigError,
    ObjectAlreadyExists,
    ObjectNotFound,
    StorageAccessRefused,
    StorageError,
    StorageUnavailable,
)
from tailer.stores.bucket.port import Failure, TornBody
from tailer.stores.cloud import CloudOptions
from tailer.stores.traffic import Fault

__all__ = ["FAILURES", "Place", "failure_of", "fault_of", "is_empty_range", "translate"]


# Errors of a client, of its connections, and of settings.
FAILURES: Final = (BaseError, OSError, ValueError, ConfigError, TornBody)

# Servers that do not answer with 416: to a range after the end, and to one of an empty object.
_NO_SUCH_BYTES: Final = ("Wanted range starting at", '"bytes 0--1/0"')

_STATUS: Final = re.compile(r"non-2xx status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>\s*([A-Za-z0-9]{1,60})\s*</Code>|\"reason\":\s*\"([A-Za-z0-9]{1,60})\"")
_ADDRESS: Final = re.compile(r"Error performing [A-Z]+ (https?://[^\s/]+)")
_LOGIN: Final = re.compile(r"token request|az account|[Cc]redential|client_email")

_NO_BUCKET: Final = frozenset({"ContainerNotFound", "NoSuchBucket", "ContainerBeingDeleted"})
_ARCHIVED: Final = frozenset({"BlobArchived", "BlobBeingRehydrated"})
_LATER: Final = frozenset({"408", "429"})

_KEYS_HINTS: Final = {
    "gs": (
        "Run gcloud auth application-default login, name a key file in GOOGLE_APPLICATION_CREDENTIALS or "
        "service_account, or set anonymous for a public bucket."
    ),
    "abfss": (
        'Run az login and set credential_type = "azure_cli", set AZURE_STORAGE_ACCOUNT_KEY or the variables of a '
        "service principal, or set anonymous for a public container."
    ),
}
_RIGHTS_HINTS: Final = {
    "gs": (
        "Check the credentials, and grant them Storage Object Viewer on the bucket; where lake-tailer writes, Storage "
        "Object User."
    ),
    "abfss": (
        "Check the account and the credentials, and grant them Storage Blob Data Reader on the container; where "
        "lake-tailer writes, Storage Blob Data Contributor."
    ),
}
# Settings that no client can be made with.
_SETTINGS: Final = (
    ("Unable to open service account file", "the key file of the service account cannot be read"),
    ("Unable to decode service account file", "the file with Google's credentials has no service account and no user"),
    ("Invalid Access Key", "the access key of the account is not one"),
    ("required configuration is missing", "the login that credential_type names lacks its variables"),
    ("Unable parse source url", "the endpoint is not a URL"),
)
_CHECK_HINT: Final = "Check the location, the options of the store, and the cloud's variables in the environment."


@dataclass(frozen=True, slots=True)
class Place:
    """Facts about a request for the errors about it. `has_answered`: whether the client has been of use before."""

    bucket: str
    options: CloudOptions
    has_answered: bool = False

    @property
    def kind(self) -> str:
        """The scheme of the cloud."""
        return self.bucket.partition(":")[0]

    @property
    def store_name(self) -> str:
        """The name of the store in metrics."""
        return self.options.name or self.bucket.partition("://")[2].partition("@")[0]

    @property
    def noun(self) -> str:
        """The name of the bucket, with the cloud's word for it."""
        name, _, host = self.bucket.partition("://")[2].partition("@")
        return f"the container {name} of the account {host.partition('.')[0]}" if host else f"the bucket {name}"


def failure_of(error: BaseException) -> Failure:
    if isinstance(error, TornBody):
        return Failure.TORN
    if isinstance(error, UnauthenticatedError) or _status(error) == "401":
        return Failure.EXPIRED
    return Failure.MISSING if _is_missing(error) else Failure.OTHER


def is_empty_range(error: Exception) -> bool:
    """Return whether the object has no such bytes."""
    return _status(error) == "416" or any(words in _text(error) for words in _NO_SUCH_BYTES)


def fault_of(error: Exception) -> Fault | None:
    """Return the kind of fault of a request that ended with `error`; None for an answer that a reader expects."""
    status = _status(error)
    if is_empty_range(error) or isinstance(error, FileNotFoundError | AlreadyExistsError):
        return None
    if isinstance(error, PreconditionError):
        return Fault.CONFLICT
    if isinstance(error, TornBody):
        return Fault.TORN_BODY
    if status in ("429", "503"):
        return Fault.THROTTLED
    if status:
        if status == "401":
            return Fault.EXPIRED_TOKEN
        return Fault.SERVER_ERROR if status.startswith("5") else Fault.REFUSED
    if "TimedOut" in str(error):
        return Fault.TIMEOUT
    return Fault.CONNECTION if "HTTP error" in _text(error) else Fault.REFUSED


def translate(error: Exception, uri: str, place: Place) -> StorageError:
    """Make our error from one of obstore, or of the system. `uri`: of the object or the folder."""
    if isinstance(error, StorageError):
        return error
    if isinstance(error, ConfigError):
        return StorageAccessRefused(uri, f"{error.where} {error.reason}", _CHECK_HINT)
    status, code = _status(error), _code(error)
    named = code or status
    if code in _NO_BUCKET:
        return StorageAccessRefused(
            uri, f"{place.noun} does not exist", "Check its name, the account and the endpoint."
        )
    if code in _ARCHIVED:
        remedy = "Restore it, and keep the table's files out of the archive tier."
        return StorageAccessRefused(uri, f"the object is archived ({code})", remedy)
    if _is_missing(error):
        return ObjectNotFound(uri)
    if isinstance(error, AlreadyExistsError | PreconditionError):
        return ObjectAlreadyExists(uri)
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return _denied(uri, named, place)
    if not isinstance(error, BaseError | ValueError):
        return StorageUnavailable(uri, _no_answer(error, place))
    return _general(error, uri, place)


def _general(error: Exception, uri: str, place: Place) -> StorageError:
    """Translate an error for which obstore has no class of its own."""
    text, status = _text(error), _status(error)
    for words, reason in _SETTINGS:
        if words in text:
            return StorageAccessRefused(uri, reason, _CHECK_HINT)
    if _LOGIN.search(text):
        return _no_login(uri, text, status, place)
    if status in ("401", "403"):
        return _denied(uri, _code(error) or status, place)
    if status.startswith("4") and status not in _LATER:
        named = _code(error) or status
        return StorageAccessRefused(uri, f"the server refuses the request: {named}", _CHECK_HINT)
    if isinstance(error, ValueError | InvalidPathError):
        return StorageAccessRefused(uri, "no object can have this name", "Check the location.")
    return StorageUnavailable(uri, _code(error) or status or _no_answer(error, place))


def _denied(uri: str, named: str, place: Place) -> StorageAccessRefused:
    reason = f"access to {place.noun} is denied ({named}), {place.options.login}"
    return StorageAccessRefused(uri, reason, _RIGHTS_HINTS[place.kind])


def _no_login(uri: str, text: str, status: str, place: Place) -> StorageError:
    """Translate a failure to log in. One that once succeeded is a failure of the server that gives out tokens."""
    if "az account" in text:
        remedy = "Run az login, and check that az is on the PATH."
        return StorageAccessRefused(uri, "az account get-access-token failed", remedy)
    if place.options.anonymous:  # obstore asks for a login in order to write all the same
        return StorageAccessRefused(uri, f"{place.noun} cannot be written to anonymously", _KEYS_HINTS[place.kind])
    if place.has_answered or status.startswith("5") or status in _LATER:
        return StorageUnavailable(uri, f"no credentials from the server of tokens: {status or 'no answer'}")
    if "169.254.169.254" in text or "metadata.google.internal" in text:
        return StorageAccessRefused(uri, "no credentials were found", _KEYS_HINTS[place.kind])
    reason = f"the login was refused ({status or 'no answer'}), {place.options.login}"
    return StorageAccessRefused(uri, reason, _KEYS_HINTS[place.kind])


def _no_answer(error: Exception, place: Place) -> str:
    """Describe a failure without an answer of the server."""
    text = _text(error)
    if isinstance(error, TornBody):
        return "the server did not send the whole object"
    address = _ADDRESS.search(text)
    address_or_endpoint = address[1] if address is not None else place.options.endpoint
    host = (urlsplit(address_or_endpoint).netloc.rpartition("@")[2] if address_or_endpoint else "") or "the server"
    if "TimedOut" in str(error):
        return f"no answer from {host} in time"
    if "dns error" in str(error):
        return f"{host} is not a known name"
    return f"{host} cannot be reached" if "Connect" in str(error) else f"the connection to {host} failed"


def _is_missing(error: BaseException) -> bool:
    """Return whether the object does not exist, as far as the server said."""
    return isinstance(error, FileNotFoundError) and not _code(error).startswith(tuple(_NO_BUCKET))


def _text(error: BaseException) -> str:
    """Return the text of an error without obstore's record of its causes."""
    return str(error).partition("Debug source:")[0]


def _status(error: BaseException) -> str:
    match = _STATUS.search(_text(error))
    return match[1] if match is not None else ""


def _code(error: BaseException) -> str:
    match = _CODE.search(_text(error))
    return (match[1] or match[2]) if match is not None else ""
