"""Local folders: comparison of paths, and checks before a folder is used as a destination.

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

from tailer.errors import ConfigError

__all__ = [
    "CHOOSE_ANOTHER",
    "Folder",
    "creation_obstacle",
    "foreign_entry",
    "is_lasting",
    "local_folder",
]

CHOOSE_ANOTHER: Final = "Choose another path, or let this user create folders there."

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


def _identities(path: Path) -> Iterator[tuple[int, int]]:
    """Yield device and inode numbers of `path` and each of its parents; nothing where `path` cannot be read."""
    for folder in (path, *path.parents):
        try:
            stat = folder.stat()
        except OSError:
            if folder == path:
                return
            continue
        yield stat.st_dev, stat.st_ino


def _ignores_case(folder: Path) -> bool:
    """Return whether the file system ignores case, as far as the name of `folder` can show it."""
    other = folder.with_name(folder.name.swapcase()) if folder.name else folder
    try:
        return other.name != folder.name and other.samefile(folder)
    except OSError:
        return False
