"""Locations of tables, as users write them and as we do: an absolute path of this machine, or `s3://bucket/key`.

A local location begins with a slash, and no other does. Names are literal: percent signs in them are not escapes, as in
Hadoop. `s3a:` and `s3n:` are other spellings of `s3:`.
"""

import re
from pathlib import Path
from typing import Final

from tailer.errors import ConfigError
from tailer.stores.folders import local_folder

__all__ = ["S3_SCHEME", "bucket_and_key", "is_local", "is_readable", "lies_in", "parse_location"]

S3_SCHEME: Final = "s3"
_S3: Final = re.compile(r"s3[an]?://(?P<bucket>[^/]*)(?P<key>/.*)?", re.DOTALL | re.IGNORECASE)
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]+")
_OTHER: Final = re.compile(r"(?!file:)([A-Za-z][A-Za-z0-9+.-]+)://", re.IGNORECASE)


def parse_location(text: str, beside: Path, where: str) -> str:
    """Return the location that `text` names; a path is relative to `beside`. No I/O.

    Raises `ConfigError` naming `where`.
    """
    found = _S3.fullmatch(text)
    if found is None:
        if other := _OTHER.match(text):
            # The rest of an address may hold a secret.
            reason = f"{other[1]}:// is not a store that can be read"
            raise ConfigError(where, reason, "Give a folder of this machine, or s3://BUCKET/FOLDER.")
        return str(local_folder(text, beside, where))
    bucket, key = found["bucket"], (found["key"] or "").strip("/")
    if "@" in bucket:
        remedy = "Leave them out: keys come from the environment, a profile or the machine."
        raise ConfigError(where, "holds credentials", remedy)
    if not _BUCKET.fullmatch(bucket):
        raise ConfigError(where, f"{bucket!r} is not the name of a bucket", "Give s3://BUCKET/FOLDER.")
    if "\0" in key or any(part in (".", "..") for part in key.split("/")):
        raise ConfigError(where, "has a folder that no object can be in", "Give s3://BUCKET/FOLDER without dots.")
    return f"{S3_SCHEME}://{bucket}/{key}".rstrip("/")


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


def bucket_and_key(uri: str) -> tuple[str, str] | None:
    """Split the location of an object on S3; None for one that is elsewhere."""
    found = _S3.fullmatch(uri)
    return None if found is None else (found["bucket"], (found["key"] or "").removeprefix("/"))
