"""Locations of tables, as users write them and as we do: an absolute path of this machine, or a folder in a store.

A local location begins with a slash, and no other does. The others are `s3://BUCKET/KEY`, `gs://BUCKET/KEY` and
`abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/KEY`. Names are literal: percent signs in them are not escapes, as in
Hadoop. `s3a:` and `s3n:` are other spellings of `s3:`, and `abfs:` is one of `abfss:`.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from tailer.errors import ConfigError
from tailer.stores.folders import local_folder

__all__ = [
    "AZURE",
    "GCS",
    "S3",
    "ObjectLocation",
    "address_faults",
    "is_local",
    "is_readable",
    "lies_in",
    "parse_location",
    "path_text",
    "split_location",
]

S3: Final = "s3"
GCS: Final = "gs"
AZURE: Final = "abfss"

_SPELLINGS: Final = {"s3": S3, "s3a": S3, "s3n": S3, "gs": GCS, "abfss": AZURE, "abfs": AZURE}
_STORE: Final = re.compile(r"(?P<scheme>s3[an]?|gs|abfss?)://(?P<bucket>[^/]*)(?P<key>/.*)?", re.DOTALL | re.IGNORECASE)
_OTHER: Final = re.compile(r"(?!file:)([A-Za-z][A-Za-z0-9+.-]*)://", re.IGNORECASE)
_CONTAINER: Final = r"(?:\$root|\$web|[a-z0-9](?:-?[a-z0-9])+)"
_HOST: Final = r"[a-z0-9]{3,24}\.dfs\.core\.(?:windows\.net|usgovcloudapi\.net|chinacloudapi\.cn)"
_BUCKETS: Final = {
    S3: re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]+"),
    GCS: re.compile(r"[a-z0-9][a-z0-9._-]+[a-z0-9]"),
    AZURE: re.compile(f"{_CONTAINER}@{_HOST}"),
}
_FORMS: Final = {
    S3: "s3://BUCKET/FOLDER",
    GCS: "gs://BUCKET/FOLDER",
    AZURE: "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/FOLDER",
}
# Addresses of Azure that do not name the account, or name another protocol.
_OF_AZURE: Final = frozenset({"adl", "az", "azure", "wasb", "wasbs"})
# A shared access signature, which belongs into the environment.
_SIGNATURE: Final = re.compile(r"[?&]sig=", re.IGNORECASE)
# S3 with a table of versions beside it, which decides what was committed.
_EXTERNAL_MANIFESTS: Final = "s3+ddb"
_KEYS_REMEDY: Final = "Leave them out: keys come from the environment, a profile or the machine."


class ObjectLocation(NamedTuple):
    """The parts of a location in a store. `bucket`: of Azure, `CONTAINER@HOST`."""

    scheme: str
    bucket: str
    key: str

    @property
    def root(self) -> str:
        """The location of the bucket."""
        return f"{self.scheme}://{self.bucket}"


def parse_location(text: str, beside: Path, where: str) -> str:
    """Return the location that `text` names; a path is relative to `beside`. No I/O.

    Raises `ConfigError` naming `where`.
    """
    parts = split_location(text)
    if parts is None:
        if other := _OTHER.match(text):
            # The rest of an address may hold a secret.
            reason = f"{other[1]}:// is not a store that can be read"
            raise ConfigError(where, reason, _other_remedy(other[1].lower()))
        return str(local_folder(text, beside, where))
    scheme, bucket, key = parts.scheme, parts.bucket, parts.key.strip("/")
    if _holds_credentials(parts):
        raise ConfigError(where, "holds credentials", _KEYS_REMEDY)
    if not _BUCKETS[scheme].fullmatch(bucket):
        kind = "container and account" if scheme == AZURE else "the name of a bucket"
        raise ConfigError(where, f"{bucket!r} is not {kind}", f"Give {_FORMS[scheme]}.")
    if "\0" in key or any(part in (".", "..") for part in key.split("/")):
        raise ConfigError(where, "has a folder that no object can be in", f"Give {_FORMS[scheme]} without dots.")
    return f"{parts.root}/{key}".rstrip("/")


def path_text(path: str | os.PathLike[str], where: str) -> str:
    """Return the text of a path that a program gave. Raises `ConfigError` naming `where` for anything else."""
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str):
        raise ConfigError(where, f"{path!r} is not a path", "Give text, or a pathlib.Path.")
    return text


def address_faults(address: str, remedy: str, login_remedy: str) -> Iterator[tuple[str, str]]:
    """Yield the reason and the next step of each fault of the address of a server: `login_remedy` if it has a login."""
    try:
        parts = urlsplit(address)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        yield "is not an address", remedy
        return
    if parts.username is not None or parts.password is not None:
        yield "holds a user or a password", login_remedy
    elif not is_address or parts.query or parts.fragment:
        yield "is not an address", remedy


def is_local(location: str) -> bool:
    """Return whether a location is a path of this machine."""
    return location.startswith("/")


def is_readable(location: str) -> bool:
    """Return whether `parse_location` accepts a location: it is of this machine, or in a store with a client."""
    try:
        parse_location(location, Path("/"), "")
    except ConfigError:
        return False
    return True


def lies_in(location: str, folder: str) -> bool:
    """Return whether a location is `folder`, or below it."""
    return f"{location}/".startswith(f"{folder}/")


def split_location(uri: str) -> ObjectLocation | None:
    """Split the location of an object in a store, in any spelling; None for one that is elsewhere."""
    match = _STORE.fullmatch(uri)
    if match is None:
        return None
    scheme, bucket = _SPELLINGS[match["scheme"].lower()], match["bucket"]
    if scheme == AZURE:
        container, mark, host = bucket.rpartition("@")
        bucket = f"{container}{mark}{host.lower()}"
    return ObjectLocation(scheme, bucket, (match["key"] or "").removeprefix("/"))


def _holds_credentials(location: ObjectLocation) -> bool:
    user = location.bucket.rpartition("@")[0]
    if location.scheme == AZURE:
        return ":" in user or "@" in user or _SIGNATURE.search(location.key) is not None
    return bool(user) or "@" in location.bucket


def _other_remedy(scheme: str) -> str:
    if scheme in _OF_AZURE:
        return f"Give {_FORMS[AZURE]}."
    if scheme == _EXTERNAL_MANIFESTS:
        return (
            f"Give {_FORMS[S3]}: a version is read from there as soon as its writer has copied its manifest, without "
            "DynamoDB."
        )
    return f"Give a folder of this machine, or {', or '.join(_FORMS.values())}."
