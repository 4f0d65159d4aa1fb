"""Reasons why there is no table at a location, and the next step: a log in place of its table, a typing mistake."""

import os
from dataclasses import dataclass
from pathlib import Path

from tailer.errors import NotATable, did_you_mean
from tailer.formats.registry import formats

__all__ = ["folder_of_log", "misplaced", "no_table"]


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
