"""Branches: a history of its own from some version on, in the folder `tree/NAME` of the dataset.

The folder is that of a dataset: `_versions`, `data` and so on. Its first manifest has the number and the rows of the
version that the branch was made from, and a base path to the dataset, for the files that both share.
"""

import re
from dataclasses import dataclass
from typing import Any, Final

from tailer.errors import ConfigError
from tailer.formats.lance.refs.ref_files import number_of, read_ref
from tailer.stores.port import ObjectStore

__all__ = ["MAIN", "Branch", "folder_of", "parse_branch", "read_branch"]

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
    found = await read_ref(store, "branches", name, "branch")
    return Branch(name, number_of(found, "parentVersion", store, name), _identity(found))


def _identity(found: dict[str, Any]) -> str:
    """Return the id that the branch was given, or else the time when it was made."""
    identifier = found.get("identifier")
    mapping = identifier.get("version_mapping") if isinstance(identifier, dict) else None
    if isinstance(mapping, list) and mapping and isinstance(mapping[-1], list):
        return str(mapping[-1][-1])
    return str(found.get("createAt"))
