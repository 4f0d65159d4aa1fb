"""The locations that a query reads and the store they are in, from options of the data source. No I/O, no pyspark.

A query has the options of one store, for its table and for `allowedRoots`. Secrets are not among them: Spark keeps
options in plans and shows them, and every machine finds its own keys.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final

import msgspec

from tailer.config.shapes import StoreAccess
from tailer.config.stores import make_options, store_faults
from tailer.errors import ConfigError
from tailer.formats.registry import names_of, parse_table
from tailer.stores.location import parse_location, split_location
from tailer.stores.stores import Stores

__all__ = ["Locations", "location_of", "roots_of", "spell", "stores_of"]

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_SECRETS: Final = (
    "accessKeyId",
    "secretAccessKey",
    "sessionToken",
    "fs.s3a.access.key",
    "fs.s3a.secret.key",
    "fs.s3a.session.token",
)
_FORMS: Final = (
    "Give a folder that all executors can read, s3://BUCKET/FOLDER, gs://BUCKET/FOLDER, or "
    "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/FOLDER."
)
_SECRETS_REMEDY: Final = (
    "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment of the driver and of all executors, "
    "or name a `profile` that all of them have."
)


_CLOUD_SECRETS: Final = ("accountKey", "clientSecret", "sasKey", "sasToken", "serviceAccountKey")
_CLOUD_SECRETS_REMEDY: Final = "Set it in the environment of the driver and of all executors (docs/stores.md)."


class Locations(StoreAccess, frozen=True, kw_only=True):
    """The options for locations as they are written."""

    refused: ClassVar[Mapping[str, tuple[str, str]]] = dict.fromkeys(
        _SECRETS, ("would be a secret in Spark's plans", _SECRETS_REMEDY)
    ) | dict.fromkeys(_CLOUD_SECRETS, ("would be a secret in Spark's plans", _CLOUD_SECRETS_REMEDY))

    path: str = ""
    allowed_roots: str = ""


def spell(option: str) -> str:
    """Return an option in Spark's spelling: `compute_updates = true` is `computeUpdates = true`."""
    return "netChanges" if option == "net" else re.sub(r"_([a-z])", lambda match: match[1].upper(), option)


_SPELLED: Final = {field.name: spell(field.name) for field in msgspec.structs.fields(StoreAccess)}


def location_of(text: str, where: str) -> str:
    """Return the location that `text` names. Raises `ConfigError` naming the option `where`."""
    if not text:
        raise ConfigError(where, "is missing or empty", "Give the folder that contains _delta_log: load('/data/t').")
    if where == "path" and names_of(text) is not None:
        return parse_table(text, Path("/"), where)
    if split_location(text) is not None:
        return parse_location(text, Path("/"), where)
    scheme = _SCHEME.fullmatch(text)
    if scheme is None:
        return _folder(text)
    if scheme[1].lower() != "file":
        # The rest of an address may hold a secret.
        reason = f"{scheme[1]}: is neither a local path nor a store that can be read"
        raise ConfigError(where, reason, _FORMS)
    # As in Hadoop: one slash or three, and no escapes.
    local = re.sub(r"^//(?=/)", "", scheme[2])
    if not local.startswith("/") or re.match(r"//[^/]", local):
        raise ConfigError(where, "is not an absolute path on this machine", "Write it as file:///data/orders.")
    return _folder(local)


def roots_of(text: str) -> tuple[str, ...]:
    """Return the locations in `allowedRoots`, which are separated by commas. Raises `ConfigError`."""
    return tuple(location_of(root.strip(), "allowedRoots") for root in text.split(",")) if text else ()


def stores_of(given: Locations, locations: tuple[str, ...]) -> Stores:
    """Return the stores of `locations`, those of a query. Raises `ConfigError` for a wrong option of the store."""
    values = {name: getattr(given, name) for name in _SPELLED}
    remote = [location for location in locations if split_location(location) is not None]
    for option, reason, remedy in store_faults(values, remote):
        raise ConfigError(_SPELLED[option], reason, remedy)
    for option, name in _SPELLED.items():
        if not remote and values[option] != getattr(Locations(), option):
            raise ConfigError(name, "is of no use: the table is on a local disk", "Leave it out.")
    return Stores(tuple((location, make_options(location, values)) for location in remote))


def _folder(text: str) -> str:
    """Resolve a path. Relative paths are relative to the current folder, as Spark's are."""
    one_slash = re.sub("^/+", "/", text)
    return os.path.normpath(Path.cwd() / one_slash)
