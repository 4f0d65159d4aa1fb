"""Disk for what does not fit into memory: one folder for each process, below the one that `TMPDIR` names.

The folder goes with its process. One that was killed cannot take it along: the next process that needs a folder sweeps
away those that nobody holds a lock in any more.
"""

import atexit
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from threading import Lock
from typing import Final

from tailer.errors import ScratchUnavailable

__all__ = ["scratch_folder"]

_PREFIX: Final = "lake-tailer-"
_LOCK: Final = "lock"
_turn: Final = Lock()
_folders: Final[dict[int, Path]] = {}  # by process: one that forked off has none yet


def scratch_folder() -> Path:
    """A new, empty folder. Raises `ScratchUnavailable` where there can be none."""
    try:
        with _turn:
            folder = _folders.get(os.getpid())
            if folder is None or folder.parent != Path(tempfile.gettempdir()) or not folder.is_dir():
                folder = _begin()
        return Path(tempfile.mkdtemp(dir=folder))
    except OSError as error:
        raise ScratchUnavailable(tempfile.gettempdir(), error.strerror or str(error)) from error


def _begin() -> Path:
    parent = Path(tempfile.gettempdir())
    for other in parent.glob(f"{_PREFIX}*"):
        if _is_left(other):
            shutil.rmtree(other, ignore_errors=True)
    # Locked under a name that nobody sweeps, and held as long as the process lives.
    draft = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}"))
    fcntl.flock(os.open(draft / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC), fcntl.LOCK_EX)
    folder = draft.rename(parent / draft.name.removeprefix("."))
    _folders[os.getpid()] = folder
    atexit.register(_end, folder, os.getpid())
    return folder


def _end(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # not one that forked off
        shutil.rmtree(folder, ignore_errors=True)


def _is_left(folder: Path) -> bool:
    try:
        handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False  # not ours to judge
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True
