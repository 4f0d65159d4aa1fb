"""Names of tables in Glue, as users write them and as we do: `glue://DATABASE/TABLE`.

Names are literal: percent signs in them are not escapes.
"""

import re
from pathlib import Path
from typing import Final, NamedTuple

from tailer.errors import ConfigError
from tailer.stores.location import parse_location

__all__ = ["SCHEME", "TableName", "check_prefix", "is_named", "parse_table", "split_name"]

SCHEME: Final = "glue://"
_NAME: Final = re.compile(r"glue://(.*)", re.DOTALL | re.IGNORECASE)
_LONGEST_BYTES: Final = 255
_REMEDY: Final = "Give glue://DATABASE/TABLE."
_PREFIX_REMEDY: Final = "Give glue://DATABASE."


class TableName(NamedTuple):
    """The parts of a name."""

    database: str
    table: str


def is_named(table: str) -> bool:
    """Return whether `parse_table` returned a name in the catalog, not a location."""
    return table.startswith(SCHEME)


def split_name(name: str) -> TableName:
    """Split a name as `parse_table` returns it."""
    return TableName(*name.removeprefix(SCHEME).split("/"))


def parse_table(text: str, beside: Path, where: str) -> str:
    """Return the location of a table to follow, or its name in the catalog; a path is relative to `beside`. No I/O.

    The table of a name may be a pattern. Raises `ConfigError` naming `where`.
    """
    found = _NAME.fullmatch(text)
    if found is None:
        return parse_location(text, beside, where)
    parts = found[1].rstrip("/").split("/")
    if len(parts) != 2 or not all(map(_may_be_a_name, parts)):
        raise ConfigError(where, "is not the name of a table in Glue", _REMEDY)
    if "*" in parts[0]:
        remedy = "Add a pipeline for each database."
        raise ConfigError(where, "has a * in the name of a database, but it may only be in that of a table", remedy)
    return SCHEME + "/".join(parts)


def check_prefix(text: str, where: str) -> str | None:
    """Return the database that `text` names, `glue://DATABASE`; None for the location of another store.

    Raises `ConfigError` naming `where`.
    """
    found = _NAME.fullmatch(text)
    if found is None:
        return None
    database = found[1].rstrip("/")
    if "/" in database or "*" in database or not _may_be_a_name(database):
        raise ConfigError(where, "is not a database of Glue", _PREFIX_REMEDY)
    return SCHEME + database


def _may_be_a_name(text: str) -> bool:
    return bool(text) and text.isprintable() and len(text.encode("utf-8", "surrogateescape")) <= _LONGEST_BYTES
