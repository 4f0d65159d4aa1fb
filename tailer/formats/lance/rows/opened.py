"""Versions of datasets, and folders of data files, that pylance has open; small fragments read from their file.

To open a version, pylance reads its manifest, which names every fragment: of a dataset with a thousand of them that
takes longer than to read a few rows. So where all rows of a small fragment are in one file, they are read from it, and
no version of the dataset is opened. What a file lacks is in the manifest: deletions, row ids, the kinds of blobs, the
ids of nested columns. Plans name the files that need none of that (`FragmentRef.path`).

pylance is an extra, so it is imported here where it is used.
"""

import os
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyroaring import BitMap64

from tailer.errors import ConfigError, how_to_install
from tailer.formats.lance.rows.columns import Columns, has_row_ids
from tailer.plan import ChangeTask, FragmentRef
from tailer.read.data_files import Files

if TYPE_CHECKING:
    import lance
    from lance.file import LanceFileReader, LanceFileSession

__all__ = ["SmallFile", "names_file", "open_dataset", "open_small_file"]

_CACHE_BYTES: Final = 16 * 2**20  # of file metadata, for all datasets
_BATCH_BYTES: Final = 4 * 2**20

_Login = tuple[tuple[str, str], ...]


def open_dataset(task: ChangeTask, fragment: FragmentRef, files: Files) -> "lance.LanceDataset":
    """Return the dataset as of the fragment's version. Raises `ConfigError` where pylance is not installed."""
    return _dataset(task.uri, fragment.version, task.timestamp_ms, _login(task, files))


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


def names_file(task: ChangeTask) -> bool:
    """Return whether `open_small_file` may open a file for the task."""
    return task.fragment is not None and task.fragment.path is not None and not has_row_ids(task)


def open_small_file(task: ChangeTask, fragment: FragmentRef, files: Files) -> "SmallFile | None":
    """Open the file of a task; None where the plan names none, or it is not as the plan has it. Raises as pylance."""
    if fragment.path is None or not names_file(task):
        return None
    reader = _folder(f"{task.uri}/data", _login(task, files)).open_reader(fragment.path)
    columns = reader.metadata().schema
    is_flat = not any(pa.types.is_nested(kind) and not pa.types.is_fixed_size_list(kind) for kind in columns.types)
    if not is_flat or len(columns) != len(fragment.fields) or reader.num_rows() != fragment.rows:
        return None
    return SmallFile(task, fragment, reader, columns)


class SmallFile:
    """The rows of a file with `columns`."""

    def __init__(self, task: ChangeTask, fragment: FragmentRef, reader: "LanceFileReader", columns: pa.Schema) -> None:
        physical = {number: name for name, number in fragment.columns}
        names = [physical.get(number, str(number)) for number in fragment.fields]
        self.columns = Columns(task, columns, [_named(*pair) for pair in zip(columns, names, strict=True)])
        self._reader = reader
        # No value is larger than the file, unless it is compressed as a whole.
        self._rows = max(_BATCH_BYTES // max(task.size_bytes, 1), 1)

    def batches(self, _wanted: BitMap64 | None) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
        """Yield batches, each with the offsets of its rows: all rows of the file."""
        first = 0
        for batch in self._reader.read_all(batch_size=self._rows, batch_readahead=2).to_batches():
            end = first + batch.num_rows
            yield batch, pa.array(range(first, end), pa.int64())
            first = end


def _named(column: pa.Field, name: str) -> pa.Field:
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    return pa.field(name, kind, column.nullable)
