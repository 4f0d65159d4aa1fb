"""Versions of datasets, and folders of data files, that pylance has open.

pylance is an extra, so it is imported here where it is used.
"""

import os
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from tailer.errors import ConfigError
from tailer.errors.extras import how_to_install
from tailer.plan import ChangeTask, FragmentRef
from tailer.read.data_files import Files

if TYPE_CHECKING:
    import lance
    from lance.file import LanceFileSession

__all__ = ["open_dataset", "open_folder"]

_CACHE_BYTES: Final = 16 * 2**20  # of file metadata, for all datasets

_Login = tuple[tuple[str, str], ...]


def open_dataset(task: ChangeTask, fragment: FragmentRef, files: Files) -> "lance.LanceDataset":
    """Return the dataset as of the fragment's version. Raises `ConfigError` where pylance is not installed."""
    return _dataset(task.uri, fragment.version, task.timestamp_ms, _login(task, files))


def open_folder(task: ChangeTask, files: Files) -> "LanceFileSession":
    """Return the folder of the dataset's data files. Raises as `open_dataset`."""
    return _folder(f"{task.uri}/data", _login(task, files))


def _login(task: ChangeTask, files: Files) -> _Login:
    return tuple(sorted(files.login(task.uri).items()))


@lru_cache(maxsize=8)
def _dataset(uri: str, version: int, _timestamp_ms: int, login: _Login) -> "lance.LanceDataset":
    """Open a version of a dataset. `_timestamp_ms`: of the commit that is read; another dataset may take the place."""
    options = dict(login) or None
    dataset: lance.LanceDataset = _pylance().dataset(uri, version=version, storage_options=options, session=_session())
    return dataset


@lru_cache(maxsize=8)
def _folder(uri: str, login: _Login) -> "LanceFileSession":
    folder: LanceFileSession = _pylance().file.LanceFileSession(uri, storage_options=dict(login) or None)
    return folder


@lru_cache(maxsize=1)
def _session() -> Any:
    return _pylance().Session(index_cache_size_bytes=0, metadata_cache_size_bytes=_CACHE_BYTES)


def _pylance() -> Any:
    """Import pylance with its readers of files."""
    # Its warnings, about indexes and the like, would go to standard error.
    os.environ.setdefault("LANCE_LOG", "error")
    try:
        import lance  # noqa: PLC0415 - an extra
        import lance.file  # noqa: PLC0415
    except ImportError:
        raise ConfigError(
            "pylance", "is needed to read Lance datasets, and is not installed", how_to_install("lance")
        ) from None
    return lance
