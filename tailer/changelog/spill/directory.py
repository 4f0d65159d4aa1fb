"""Spill directory of the process, below the folder that `TMPDIR` names, and the folders in it.

A process deletes its directory when it exits. A killed process cannot. So the next process that needs a directory
deletes those whose lock file is not locked.
"""

import atexit
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Final, Self

from tailer.errors import ScratchUnavailable

__all__ = ["SpillFolder", "scratch_folder", "translated"]

_PREFIX: Final = "lake-tailer-"
_LOCK: Final = "lock"
_lock: Final = Lock()
_folders: Final[dict[int, Path]] = {}  # by process: a forked child has none


class SpillFolder:
    """A folder that is created when it is first needed, and deleted when the block is left."""

    def __init__(self) -> None:
        self._folder: Path | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def folder(self) -> Path:
        """The folder. Raises `ScratchUnavailable` where it cannot be created."""
        if self._folder is None:
            self._folder = scratch_folder()
        return self._folder


def scratch_folder() -> Path:
    """Create an empty folder. Raises `ScratchUnavailable` where that is not possible."""
    with translated():
        with _lock:
            folder = _folders.get(os.getpid())
            if folder is None or folder.parent != Path(tempfile.gettempdir()) or not folder.is_dir():
                folder = _create()
        return Path(tempfile.mkdtemp(dir=folder))


@contextmanager
def translated() -> Iterator[None]:
    """Raise `ScratchUnavailable` where reading or writing spilled data fails."""
    try:
        yield
    except OSError as error:
        raise ScratchUnavailable(tempfile.gettempdir(), error.strerror or str(error)) from error


def _create() -> Path:
    parent = Path(tempfile.gettempdir())
    for other in parent.glob(f"{_PREFIX}*"):
        if _is_abandoned(other):
            shutil.rmtree(other, ignore_errors=True)
    # Lock it under a hidden name, which is never deleted, and hold the lock until the process exits.
    draft = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}"))
    fcntl.flock(os.open(draft / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC), fcntl.LOCK_EX)
    folder = draft.rename(parent / draft.name.removeprefix("."))
    _folders[os.getpid()] = folder
    atexit.register(_delete, folder, os.getpid())
    return folder


def _delete(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # not a forked child
        shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    try:
        handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False  # without a readable lock file it may not be ours
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True
