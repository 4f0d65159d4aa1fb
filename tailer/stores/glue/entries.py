"""Entries of the catalog: which are Delta tables, and the locations of those. No I/O.

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
from typing import Any, Final

from tailer.errors import ConfigError, NotATable
from tailer.stores.location import is_local, parse_location, split_location

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
        remedy = f"Give the location of the table: {above}" if mark and _readable(above) else _OTHER_REMEDY
        raise NotATable(name, "Glue has only a symlink manifest, which lists its files at one moment", remedy=remedy)
    if not is_delta(entry):
        raise NotATable(name, f"in Glue it is {_title(entry)}", remedy=_OTHER_REMEDY)
    path, described = _path(entry), _described(entry)
    if described.rstrip("/").endswith(_PLACEHOLDER):
        described = ""
    found = [_parse(name, each) for each in (path, described) if each]
    if not found:
        raise NotATable(name, "Glue has no location of it", remedy=_LOCATION_REMEDY)
    if found[0] != found[-1]:
        reason = f"Glue has two locations of it: {found[0]} for Spark, and {found[-1]} for others"
        raise NotATable(name, reason, remedy=_LOCATION_REMEDY)
    return found[0]


def _kinds(entry: Entry) -> list[str]:
    parameters = {str(key).lower(): str(value).lower() for key, value in (entry.get("Parameters") or {}).items()}
    return [parameters[key] for key in _KINDS if parameters.get(key)]


def _title(entry: Entry) -> str:
    if str(entry.get("TableType", "")).upper() == "VIRTUAL_VIEW":
        return "a view"
    if (target := entry.get("TargetTable")) is not None:
        return f"a link to the table {target.get('Name')} of the database {target.get('DatabaseName')}"
    kinds = _kinds(entry)
    known = next((_TITLES[kind] for kind in kinds if kind in _TITLES), None)
    if known is not None:
        return known
    return f"a table of the kind {kinds[0]!r}" if kinds else "a table of an unknown kind"


def _is_manifest(entry: Entry) -> bool:
    format_ = str((entry.get("StorageDescriptor") or {}).get("InputFormat") or "")
    return format_.endswith(_MANIFEST_FORMAT) or _MANIFEST_FOLDER in _described(entry).split("/")


def _described(entry: Entry) -> str:
    return str((entry.get("StorageDescriptor") or {}).get("Location") or "")


def _path(entry: Entry) -> str:
    parameters = ((entry.get("StorageDescriptor") or {}).get("SerdeInfo") or {}).get("Parameters") or {}
    return next((str(value) for key, value in parameters.items() if str(key).lower() == "path"), "")


def _parse(name: str, location: str) -> str:
    """Return a location in our spelling. Old ones of `s3n:` hold keys, so none of their text is shown."""
    try:
        found = parse_location(location, Path("/"), name)
    except ConfigError as error:
        reason = error.reason if split_location(location) is None else "does not name a bucket, or holds credentials"
        raise NotATable(name, f"its location in Glue {reason}", remedy=_LOCATION_REMEDY) from None
    if is_local(found):
        raise NotATable(name, "its location in Glue is not in a store", remedy=_LOCATION_REMEDY)
    return found


def _readable(location: str) -> bool:
    try:
        return not is_local(parse_location(location, Path("/"), ""))
    except ConfigError:
        return False
