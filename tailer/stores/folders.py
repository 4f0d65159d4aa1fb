"""Folders of this machine: whether two paths lead to one, and whether one may be taken for something new.

Paths are compared by the folders they lead to, not by their text: links are followed, a folder that is mounted in two
places is one, and where letter case does not matter it does not matter here. A folder that does not exist yet is
identified by the nearest one above it that does.
"""

import errno
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tailer.errors import ConfigError

__all__ = ["Folder", "foreign_entry", "holds_table", "is_lasting", "local_folder", "table_around"]

_LOG: Final = "_delta_log"
_VERSION_DIGITS: Final = 20
_HIDDEN: Final = (".", "_")
# What is in the top folder of a file system of its own.
_OF_THE_SYSTEM: Final = frozenset({"lost+found"})
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
_FILE_URI: Final = re.compile(r"file:(?://(?:localhost)?)?(/(?!/).*)", re.DOTALL | re.IGNORECASE)


def local_folder(text: str, beside: Path, where: str) -> Path:
    """The absolute path `text` names, relative to `beside`; no I/O. Raises `ConfigError` naming `where`.

    A file URI is the path in it, as Hadoop reads it: what looks like an escape is not one.
    """
    if not text:
        raise ConfigError(where, "is empty", "Give the path of a folder.")
    uri = _FILE_URI.fullmatch(text)
    text = uri[1] if uri is not None else text
    if "://" in text:
        # The rest of an address may hold a secret.
        raise ConfigError(where, f"{text.partition('://')[0]}:// is not a local path", "Give a folder of this machine.")
    return Path(os.path.normpath(beside.absolute() / Path(text).expanduser()))


@dataclass(frozen=True, slots=True)
class Folder:
    """A path as the folders it leads through. `lineage`: those that exist, nearest first; `rest`: names below them."""

    lineage: tuple[tuple[int, int], ...]
    rest: tuple[str, ...]

    @classmethod
    def at(cls, path: Path) -> "Folder":
        """Look where `path` leads. What cannot be looked at counts as a name that does not exist yet."""
        above = Path(os.path.realpath(path))
        rest: list[str] = []
        lineage = tuple(_identities(above))
        while not lineage:
            rest.insert(0, above.name)
            above = above.parent
            lineage = tuple(_identities(above))
        if rest and _ignores_case(above):
            rest = [name.casefold() for name in rest]
        return cls(lineage, tuple(rest))

    def lies_in(self, other: "Folder") -> bool:
        """Whether this is `other`, or a folder below it."""
        if other.rest:
            return self.lineage[0] == other.lineage[0] and self.rest[: len(other.rest)] == other.rest
        return other.lineage[0] in self.lineage


def is_lasting(error: OSError | int | None) -> bool:
    """Whether an error of the system, or its number, stays until somebody changes a path, a right or the disk."""
    return (error.errno if isinstance(error, OSError) else error) in _LASTING


def holds_table(path: Path) -> bool:
    """Whether a Delta table lies at `path`: its log has a commit or a checkpoint. An empty log is none yet."""
    try:
        with os.scandir(path / _LOG) as entries:
            return any(entry.name[:_VERSION_DIGITS].isdigit() for entry in entries)
    except OSError:
        return False


def table_around(path: Path) -> Path | None:
    """The nearest folder above `path`, links followed, that holds a Delta table; None where there is none."""
    return next(filter(holds_table, Path(os.path.realpath(path)).parents), None)


def foreign_entry(path: Path) -> str | None:
    """The name of something in the folder at `path`, hidden entries apart; None where there is nothing, or no folder.

    Raises `OSError` where the folder cannot be listed.
    """
    try:
        with os.scandir(path) as entries:
            visible = (entry.name for entry in entries if not entry.name.startswith(_HIDDEN))
            return next((name for name in visible if name not in _OF_THE_SYSTEM), None)
    except FileNotFoundError:
        return None


def _identities(path: Path) -> Iterator[tuple[int, int]]:
    """What identifies `path` and each folder above it; nothing where `path` cannot be looked at."""
    for folder in (path, *path.parents):
        try:
            found = folder.stat()
        except OSError:
            if folder == path:
                return
            continue
        yield found.st_dev, found.st_ino


def _ignores_case(folder: Path) -> bool:
    """Whether names that differ only in letter case are one, as far as the name of `folder` shows it."""
    other = folder.with_name(folder.name.swapcase()) if folder.name else folder
    try:
        return other.name != folder.name and other.samefile(folder)
    except OSError:
        return False
