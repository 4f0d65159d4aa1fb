"""Branches and tags: one JSON object each, below `_refs`. A tagged version is not cleaned up.

A branch is a history of its own from some version on, in the folder `tree/NAME` of the dataset. The folder is that of a
dataset: `_versions`, `data` and so on. Its first manifest has the number and the rows of the version that the branch
was made from, and a base path to the dataset, for the files that both share.
"""

import json
import re
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote

from tailer.errors import ConfigError, LogCorrupt, ObjectNotFound, did_you_mean
from tailer.stores.port import ObjectStore

__all__ = ["Branch", "folder_of", "parse_branch", "read_branch", "read_tag"]

_SUFFIX: Final = ".json"


async def read_ref(store: ObjectStore, kind: str, name: str, where: str) -> dict[str, Any]:
    """Read the file of a branch (`kind`: branches) or tag (tags).

    Raises `ConfigError` naming `where` for a name that the dataset does not have, and `LogCorrupt`.
    """
    folder = f"_refs/{kind}"
    path = f"{folder}/{quote(name, safe='')}{_SUFFIX}"
    try:
        document = await store.read(path, lambda stored: json.loads(stored.data))
    except ObjectNotFound:
        listed = [file.name.rpartition("/")[2] for file in await store.list(folder)]
        names = [unquote(file.removesuffix(_SUFFIX)) for file in listed if file.endswith(_SUFFIX)]
        remedy = did_you_mean(name, names) or f"Its {kind}: {', '.join(names) or 'none'}."
        raise ConfigError(where, f"{store.uri} has no {name!r} among its {kind}", remedy) from None
    except ValueError as error:
        raise LogCorrupt(store.uri, path, f"not JSON: {error}") from error
    if not isinstance(document, dict):
        raise LogCorrupt(store.uri, path, "not a JSON object")
    return document


def number_of(document: dict[str, Any], key: str, store: ObjectStore, name: str) -> int:
    """Return a version in the file of the branch or tag `name`. Raises `LogCorrupt`."""
    value = document.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise LogCorrupt(store.uri, f"_refs, {name}", f"{key} is not a version")
    return value


MAIN: Final = "main"
_NAME: Final = re.compile(r"[\w.-]+(/[\w.-]+)*")


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch that begins with `first_version`, whose rows are those of its parent.

    `identity`: distinguishes it from an earlier branch of the same name.
    """

    name: str
    first_version: int
    identity: str


def folder_of(name: str) -> str:
    """Return the folder of the branch `name`, below that of the dataset."""
    return f"tree/{name}"


def parse_branch(text: str | None, where: str) -> str | None:
    """Return the name of a branch; None for the main one. Raises `ConfigError` naming `where`."""
    if text in (None, MAIN):
        return None
    if _NAME.fullmatch(text) is None or ".." in text or text.endswith(".lock"):
        remedy = "Names have letters, digits, '.', '-' and '_', and '/' between two of them."
        raise ConfigError(where, f"{text!r} is not the name of a branch", remedy)
    return text


async def read_branch(store: ObjectStore, name: str) -> Branch:
    """Read a branch of the dataset at the root of `store`. Raises `ConfigError` where there is none, `LogCorrupt`."""
    document = await read_ref(store, "branches", name, "branch")
    first_version = number_of(document, "parentVersion", store, name)
    identifier = document.get("identifier")
    mapping = identifier.get("version_mapping") if isinstance(identifier, dict) else None
    if isinstance(mapping, list) and mapping and isinstance(mapping[-1], list):
        return Branch(name, first_version, str(mapping[-1][-1]))
    return Branch(name, first_version, str(document.get("createAt")))  # it was given no id


async def read_tag(store: ObjectStore, name: str, branch: str | None, where: str) -> int:
    """Return the version of a tag of the dataset at the root of `store`, which must be one of `branch` (None: main).

    Raises `ConfigError` naming `where`, `LogCorrupt`.
    """
    document = await read_ref(store, "tags", name, where)
    own = document.get("branch")
    if not isinstance(own, str | None):
        raise LogCorrupt(store.uri, f"_refs, {name}", "branch is not a name")
    version = number_of(document, "version", store, name)
    if (None if own == MAIN else own) != branch:
        reason = f"{name!r} is a tag of the branch {own or MAIN}"
        raise ConfigError(where, reason, f"Follow that branch: branch = {own or MAIN!r}.")
    return version
