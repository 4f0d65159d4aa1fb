"""Local folders: comparison of paths, checks before a folder is used as a destination, and why one is no table.

Paths are compared by the folders they refer to, not by their text. Links are followed, a folder mounted twice counts as
one folder, and case is ignored where the file system ignores it. A folder that does not exist yet is identified by its
nearest existing parent.
"""

import errno
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tailer.errors import ConfigError, NotATable, did_you_mean

__all__ = [
    "CHOOSE_ANOTHER",
    "Folder",
    "creation_obstacle",
    "folder_of_log",
    "foreign_entry",
    "is_lasting",
    "local_folder",
    "misplaced",
    "no_table",
]

CHOOSE_ANOTHER: Final = "Choose another path, or let this user create folders there."

_LOGS: Final = ("_delta_log", "_versions")
_HIDDEN: Final = (".", "_")
# Entries in the root folder of a file system.
_SYSTEM_ENTRIES: Final = frozenset({"lost+found"})
_LASTING: Final = frozenset(
    (
        errno.EACCES,
        errno.EEXIST,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENOTDIR,
        errno.EOPNOTSUPP,
        errno.EPERM,
        errno.EROFS,
    )
)
_VARIABLE: Final = re.compile(r"\$(?:[A-Za-z_]\w*|\{\w+\})", re.ASCII)
_FILE_URI: Final = re.compile(r"file:(?://(?:localhost)?)?(/(?!/).*)", re.DOTALL | re.IGNORECASE)


def local_folder(text: str, beside: Path, where: str) -> Path:
    """Return the absolute path that `text` names, relative to `beside`; no I/O. Raises `ConfigError` naming `where`.

    `~` is the home folder. A file URI stands for the path in it, as in Hadoop: percent signs in it are not escapes, and
    names such as `$HOME` are literal; elsewhere these are refused, because nothing replaces them.
    """
    if not text or "\0" in text:
        raise ConfigError(where, "has a null character" if text else "is empty", "Give the path of a folder.")
    uri = _FILE_URI.fullmatch(text)
    if uri is None and (name := next(filter(_VARIABLE.fullmatch, text.split("/")), None)) is not None:
        remedy = (
            f"Write the path itself, with ~ for the home folder; for a folder of that name, write file:/.../{name}."
        )
        raise ConfigError(where, f"{name} is not replaced by the variable of the environment", remedy)
    text = uri[1] if uri is not None else text
    if "://" in text:
        # The rest of an address may hold a secret.
        raise ConfigError(where, f"{text.partition('://')[0]}:// is not a local path", "Give a folder of this machine.")
    try:
        return Path(os.path.normpath(beside.absolute() / Path(text).expanduser()))
    except RuntimeError as error:
        name = text.partition("/")[0]
        remedy = f"Write the path itself; for a folder of that name, write file:/.../{name}."
        raise ConfigError(where, f"{name} names a user that this machine does not have", remedy) from error


@dataclass(frozen=True, slots=True)
class Folder:
    """A path as a chain of folders. `ancestors`: the existing ones, nearest first; `rest`: the names below them."""

    ancestors: tuple[tuple[int, int], ...]
    rest: tuple[str, ...]

    @classmethod
    def at(cls, path: Path) -> "Folder":
        """Resolve `path`. A component that cannot be read counts as one that does not exist yet."""
        above = Path(os.path.realpath(path))
        rest: list[str] = []
        ancestors = tuple(_identities(above))
        while not ancestors:
            rest.insert(0, above.name)
            above = above.parent
            ancestors = tuple(_identities(above))
        if rest and _ignores_case(above):
            rest = [name.casefold() for name in rest]
        return cls(ancestors, tuple(rest))

    def lies_in(self, other: "Folder") -> bool:
        """Return whether this is `other`, or a folder below it."""
        if other.rest:
            return self.ancestors[0] == other.ancestors[0] and self.rest[: len(other.rest)] == other.rest
        return other.ancestors[0] in self.ancestors


def is_lasting(error: OSError | int | None) -> bool:
    """Return whether a system error, or its number, lasts until the path, a permission or the disk is changed."""
    return (error.errno if isinstance(error, OSError) else error) in _LASTING


def creation_obstacle(path: Path) -> str | None:
    """Explain why the missing folder `path` could not be created, and cannot be; None if it exists, or may be created.

    For use after a failure: a working file system may report no room at all.
    """
    above = path
    while not os.path.exists(above):  # noqa: PTH110 - Path.exists raises where a folder above cannot be entered
        above = above.parent
    if above == path:
        return None
    if not above.is_dir():
        return f"{above} is a file, not a folder"
    if not os.access(above, os.W_OK | os.X_OK):
        return f"this user may not write to {above}"
    return None if os.statvfs(above).f_blocks else f"{above} has no room for files"


def foreign_entry(path: Path) -> str | None:
    """Return the name of a visible entry in the folder at `path`; None where it is empty or does not exist.

    Raises `OSError` where the folder cannot be listed.
    """
    try:
        with os.scandir(path) as entries:
            visible = (entry.name for entry in entries if not entry.name.startswith(_HIDDEN))
            return next((name for name in visible if name not in _SYSTEM_ENTRIES), None)
    except FileNotFoundError:
        return None


@dataclass(frozen=True)
class Misplaced:
    """A location at which no table can come to be: the reason, and what to give in its place."""

    reason: str
    remedy: str


def folder_of_log(location: str) -> str | None:
    """Return the folder of the table whose log `location` is, by its name; None: it is no log."""
    above, _, name = location.rpartition("/")
    return (above or "/") if name in _LOGS else None


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
    return any(os.path.isdir(folder / name) for name in _LOGS)  # noqa: PTH112 - Path.is_dir may raise


def no_table(uri: str, log: str, lacks: str, expected: str) -> NotATable:
    """Build the error for the location of a table whose folder `log` has nothing that is needed.

    `lacks`: what a log without it lacks. `expected`: as in `NotATable`.
    """
    if (found := misplaced(uri)) is not None:
        return NotATable(uri, found.reason, expected, found.remedy)
    if not uri.startswith("/"):
        return NotATable(uri, lacks, expected)
    folder = Path(uri)
    if not os.path.lexists(folder):
        return NotATable(uri, "there is no such folder", expected, f"Check the path. {_similar(folder)}".rstrip())
    other = next((each for each in _LOGS if each != log and (folder / each).is_dir()), None)
    if other is not None:
        return NotATable(uri, f"{lacks}, but it has {other}", expected)
    if not (folder / log).is_dir():
        remedy = "Check the path: the folder of a Delta table contains _delta_log, that of a Lance dataset _versions."
        return NotATable(uri, f"it has no {log}", expected, remedy)
    return NotATable(uri, lacks, expected, "Check the path, and whether the table's writer has made it already.")


def _similar(path: Path) -> str:
    """Return a question with a similar name beside `path`; empty where there is none."""
    try:
        return did_you_mean(path.name, [each.name for each in os.scandir(path.parent) if each.is_dir()])
    except OSError:
        return ""


def _identities(path: Path) -> Iterator[tuple[int, int]]:
    """Yield device and inode numbers of `path` and each of its parents; nothing where `path` cannot be read."""
    for folder in (path, *path.parents):
        try:
            found = folder.stat()
        except OSError:
            if folder == path:
                return
            continue
        yield found.st_dev, found.st_ino


def _ignores_case(folder: Path) -> bool:
    """Return whether the file system ignores case, as far as the name of `folder` can show it."""
    other = folder.with_name(folder.name.swapcase()) if folder.name else folder
    try:
        return other.name != folder.name and other.samefile(folder)
    except OSError:
        return False
