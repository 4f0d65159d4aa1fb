"""The Data Catalog of AWS Glue, which knows the locations of tables by name: `glue://DATABASE/TABLE`. Names
are literal: percent signs in them are not escapes.

Only the location comes from the catalog. Everything else of a table, its id too, comes from the table's own log. The
client comes with the extra `s3`, and is imported when it is used.
"""

import re
from dataclasses import dataclass
from typing import Final

from tailer.errors import ConfigError, missing_client
from tailer.stores.port import in_thread
from tailer.stores.s3 import S3Options

__all__ = [
    "SCHEME",
    "GlueOptions",
    "check_prefix",
    "find_location",
    "is_named",
    "list_tables",
    "parse_name",
]


@dataclass(frozen=True, slots=True)
class GlueOptions:
    """Address and login of the catalog for one database; see `S3Options`. None: as AWS's own tools would."""

    endpoint: str | None = None
    region: str | None = None
    profile: str | None = None
    role_arn: str | None = None
    external_id: str | None = None
    name: str | None = None

    @property
    def login(self) -> S3Options:
        """The options of a client of AWS. Raises `ConfigError` as `S3Options`."""
        return S3Options(
            endpoint=self.endpoint,
            region=self.region,
            profile=self.profile,
            role_arn=self.role_arn,
            external_id=self.external_id,
            name=self.name,
        )


SCHEME: Final = "glue://"
_NAME: Final = re.compile(r"glue://(.*)", re.DOTALL | re.IGNORECASE)
_LONGEST_BYTES: Final = 255
_REMEDY: Final = "Give glue://DATABASE/TABLE."
_PREFIX_REMEDY: Final = "Give glue://DATABASE."


def is_named(table: str) -> bool:
    """Return whether `parse_name` returned `table`: it is no location."""
    return table.startswith(SCHEME)


def parse_name(text: str, where: str) -> str:
    """Return the name that `text` is; its table may be a pattern. No I/O. Raises `ConfigError` naming `where`."""
    match = _NAME.fullmatch(text)
    parts = match[1].rstrip("/").split("/") if match is not None else []
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
    match = _NAME.fullmatch(text)
    if match is None:
        return None
    database = match[1].rstrip("/")
    if "/" in database or "*" in database or not _may_be_a_name(database):
        raise ConfigError(where, "is not a database of Glue", _PREFIX_REMEDY)
    return SCHEME + database


def _may_be_a_name(text: str) -> bool:
    return bool(text) and text.isprintable() and len(text.encode("utf-8", "surrogateescape")) <= _LONGEST_BYTES


async def find_location(name: str, options: GlueOptions) -> str | None:
    """Return the location of the Delta table with this name; None: the catalog has no such table.

    Raises `NotATable` for a table of another kind, or without a location that can be read; `StorageError` where Glue
    refuses or does not answer; `ConfigError` where the extra `s3` is not installed.
    """
    await in_thread(_import_client, name)
    from tailer.stores.glue import catalog  # noqa: PLC0415 - an extra

    return await catalog.find_location(name, options)


async def list_tables(database: str, options: GlueOptions) -> list[str]:
    """Return the names of the Delta tables of a database, `glue://DATABASE`, below it.

    Raises `ObjectNotFound` where there is no such database, and otherwise as `find_location`.
    """
    await in_thread(_import_client, database)
    from tailer.stores.glue import catalog  # noqa: PLC0415 - an extra

    return await catalog.list_tables(database, options)


def _import_client(name: str) -> None:
    """Import the client, which takes a second."""
    try:
        from tailer.stores.glue import catalog  # noqa: F401, PLC0415 - an extra
    except ImportError as error:
        raise missing_client("s3", name, error) from error
