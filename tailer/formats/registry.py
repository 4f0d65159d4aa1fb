"""The table formats there are, which one a location has, and why it may have none: a typing mistake, a log.

Formats of this package are in `_OWN`, those of other packages are found through the entry-point group `tailer.formats`.
Entry points are in the metadata of all installed packages, which takes long to read. So that is done only for a name or
a location that is of none of our own formats. The first format is the default, for locations that do not tell theirs.
"""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from pathlib import Path
from typing import Final

from tailer.errors import ConfigError, NotATable, did_you_mean
from tailer.formats import LOADED
from tailer.formats.port import TableFormat, TableNames
from tailer.stores.location import is_local, parse_location, split_location
from tailer.stores.port import ObjectStore, in_thread

__all__ = [
    "check_choices",
    "default_format",
    "find_format",
    "folder_of_log",
    "format_of",
    "formats",
    "known_format",
    "misplaced",
    "named_format",
    "names_of",
    "no_table",
    "parse_table",
]

ENTRY_POINTS: Final = "tailer.formats"
_OWN: Final = {
    "delta": "tailer.formats.delta.format:DELTA",
    "lance": "tailer.formats.lance.format:LANCE",
    "iceberg": "tailer.formats.iceberg.format:ICEBERG",
}


_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


@cache
def _installed() -> EntryPoints:
    """Return the entry points of other packages."""
    return entry_points(group=ENTRY_POINTS)


def format_names() -> list[str]:
    """Return the names of all formats, the default first."""
    return [*_OWN, *sorted(_installed().names - _OWN.keys())]


def formats() -> Iterator[TableFormat]:
    """Yield all formats, the default first. They are imported one by one."""
    yield from map(_load, _OWN)
    yield from map(_load, sorted(_installed().names - _OWN.keys()))


def default_format() -> TableFormat:
    """Return the format of locations that do not tell theirs."""
    return _load(next(iter(_OWN)))


def named_format(name: str) -> TableFormat:
    """Return the format called `name`. Raises `ConfigError`."""
    if name in _OWN or name in _installed().names:
        return _load(name)
    names = format_names()
    remedy = did_you_mean(name, names) or f"Give {', '.join(names[:-1])} or {names[-1]}."
    raise ConfigError("table_format", f"{name!r} is no format of a table", remedy)


def names_of(table: str) -> TableNames | None:
    """Return the catalogs of which `table` is a name or a pattern of names; None: it is a location."""
    scheme = _SCHEME.match(table)
    if scheme is None or split_location(table) is not None:
        return None
    wanted = scheme[1].lower()
    return next((other.names for other in formats() if other.names and other.names.scheme == wanted), None)


def parse_table(text: str, beside: Path, where: str) -> str:
    """Return the location of a table to follow, or its name in a catalog; a path is relative to `beside`. No I/O.

    A name may be a pattern. Raises `ConfigError` naming `where`.
    """
    names = names_of(text)
    return parse_location(text, beside, where) if names is None else names.parse(text, where)


def format_of(location: str) -> TableFormat:
    """Return the format of the table at a location, as `parse_location` returns it.

    A folder of this machine is looked at: the first format whose log it has. The name decides in a store, without any
    I/O, and where the location is a file.
    """
    try:
        if is_local(location) and not Path(location).is_file():
            return next((other for other in formats() if _has_log(other, location)), default_format())
    except OSError:  # a folder above cannot be entered
        return default_format()
    others = (other for other in formats() if other is not default_format())
    return next((other for other in others if other.may_be_at(location)), default_format())


def _has_log(table_format: TableFormat, location: str) -> bool:
    return Path(location, table_format.log_folder).is_dir()


async def find_format(
    store: ObjectStore, folder: str = "", wanted: str | None = None, *, whatever_the_name: bool = False
) -> TableFormat | None:
    """Return the format of the table in the folder of a store; None: there is none.

    `wanted`: the name of the format to look for; None: any that the name of the folder allows, or `whatever_the_name`.
    One request for each format that is looked for. Raises `StorageError`.
    """
    location = f"{store.uri}/{folder}".removesuffix("/")
    every_name = whatever_the_name or wanted is not None or store.blocking() is not None
    for table_format in await in_thread(list, formats()) if wanted is None else [named_format(wanted)]:
        if (every_name or table_format.may_be_at(location)) and await table_format.is_in(store, folder):
            return table_format
    return None


def check_choices(
    table_format: str | None, branch: str | None = None, *, location: str = "", is_managed: bool = False
) -> str | None:
    """Return the name of the format that is chosen; None: none.

    A `branch` chooses one that has any: that of the table at `location`, or the first. `is_managed`: whether a catalog
    manages the commits. Raises `ConfigError`, naming the option, where there is no such format, or the choices do not
    go together.
    """
    chosen = None if table_format is None else named_format(table_format)
    in_place = chosen if branch is None and not is_managed else known_format(table_format, location)
    if branch is not None:
        chosen = in_place or next(candidate for candidate in formats() if candidate.has_branches)
        if not chosen.has_branches:
            raise ConfigError("branch", f"is given, but {chosen.title} has no branches", "Leave out one of the two.")
        chosen.root("", branch)
    managed = chosen or in_place
    if is_managed and managed is not None and not managed.has_catalogs:
        where = "branch" if branch is not None else "table" if chosen is None else "table_format"
        reason = f"names {managed.title}, whose commits no such catalog manages"
        raise ConfigError(where, reason, "Leave out one of the two.")
    return None if chosen is None else chosen.name


def known_format(table_format: str | None, location: str) -> TableFormat | None:
    """Return the format called `table_format`, or else that of the table at `location`; None: it is not known yet.

    Raises `ConfigError` as `named_format`.
    """
    if table_format is not None or not location:
        return None if table_format is None else named_format(table_format)
    likely = format_of(location)
    with suppress(OSError):
        is_there = likely is not default_format() or (is_local(location) and _has_log(likely, location))
        return likely if is_there else None
    return None


def _load(name: str) -> TableFormat:
    if name not in LOADED:
        own = _OWN.get(name)
        entry = next(iter(_installed().select(name=name))) if own is None else EntryPoint(name, own, ENTRY_POINTS)
        LOADED[name] = entry.load()
    return LOADED[name]


@dataclass(frozen=True)
class Misplaced:
    """A location at which no table can come to be: the reason, and what to give in its place."""

    reason: str
    remedy: str


def folder_of_log(location: str) -> str | None:
    """Return the folder of the table whose log `location` is, by its name; None: it is no log."""
    above, _, name = location.rpartition("/")
    return (above or "/") if name in _log_folders() else None


def misplaced(location: str) -> Misplaced | None:
    """Return why no table can come to be at `location`; None: one may. Blocking; in a store, by its name alone."""
    if (table := folder_of_log(location)) is not None:
        return Misplaced("it is the log of a table", _give(table))
    if (table := folder_of_log(location.rpartition("/")[0])) is not None:
        return Misplaced("it is part of the log of a table", _give(table))
    if not location.startswith("/"):
        return None
    folders = [Path(location), *Path(location).parents]
    around = next(filter(_holds_log, folders[1:]), None)
    remedy = "Give the folder of a table." if around is None else _give(str(around))
    there = next(filter(os.path.exists, folders))
    if not os.path.isdir(there):  # noqa: PTH112 - Path.is_dir may raise
        subject = "it" if there == folders[0] else str(there)
        return Misplaced(f"{subject} is a file, not a folder", remedy)
    if around is None or _holds_log(folders[0]):
        return None
    return Misplaced(f"it is a folder in the table {around}", remedy)


def _give(table: str) -> str:
    return f"Give the folder of the table: {table}"


def _holds_log(folder: Path) -> bool:
    return any(os.path.isdir(folder / name) for name in _log_folders())  # noqa: PTH112 - Path.is_dir may raise


def no_table(uri: str, log: str, lacks: str, expected: str) -> NotATable:
    """Build the error for the location of a table whose folder `log` has nothing that is needed.

    `lacks`: what a log without it lacks. `expected`: as in `NotATable`.
    """
    if (mistake := misplaced(uri)) is not None:
        return NotATable(uri, mistake.reason, expected, mistake.remedy)
    if not uri.startswith("/"):
        return NotATable(uri, lacks, expected)
    folder = Path(uri)
    if not os.path.lexists(folder):
        return NotATable(uri, "there is no such folder", expected, f"Check the path. {_similar(folder)}".rstrip())
    other = next((name for name in _log_folders() if name != log and (folder / name).is_dir()), None)
    if other is not None:
        return NotATable(uri, f"{lacks}, but it has {other}", expected)
    if not (folder / log).is_dir():
        folders = ", that of ".join(f"{kind.title} contains {kind.log_folder}" for kind in formats())
        remedy = f"Check the path: the folder of {folders}."
        return NotATable(uri, f"it has no {log}", expected, remedy)
    return NotATable(uri, lacks, expected, "Check the path, and whether the table's writer has made it already.")


def _similar(path: Path) -> str:
    """Return a question with a similar name beside `path`; empty where there is none."""
    try:
        return did_you_mean(path.name, [entry.name for entry in os.scandir(path.parent) if entry.is_dir()])
    except OSError:
        return ""


def _log_folders() -> list[str]:
    """Return the names that tell a log by themselves: others are names of folders of any kind."""
    folders = (table_format.log_folder for table_format in formats())
    return [folder for folder in folders if folder.startswith("_")]
