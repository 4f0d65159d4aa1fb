"""Small fragments whose rows are all in one file: read from the file, and no version of the dataset is opened.

To open a version, pylance reads its manifest, which names every fragment: of a dataset with a thousand of them that
takes longer than to read a few rows. What a file lacks is in the manifest: deletions, row ids, the kinds of blobs, the
ids of nested columns. Plans name the files that need none of that (`FragmentRef.path`).
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyroaring import BitMap64

from tailer.formats.lance.rows.columns import Columns, has_row_ids
from tailer.formats.lance.rows.opened import open_folder
from tailer.plan import ChangeTask, FragmentRef
from tailer.read.data_files import Files

if TYPE_CHECKING:
    from lance.file import LanceFileReader

__all__ = ["SmallFile", "names_file", "open_small_file"]

_BATCH_BYTES: Final = 4 * 2**20


def names_file(task: ChangeTask) -> bool:
    """Return whether `open_small_file` may open a file for the task."""
    return task.fragment is not None and task.fragment.path is not None and not has_row_ids(task)


def open_small_file(task: ChangeTask, fragment: FragmentRef, files: Files) -> "SmallFile | None":
    """Open the file of a task; None where the plan names none, or it is not as the plan has it. Raises as pylance."""
    if fragment.path is None or not names_file(task):
        return None
    reader = open_folder(task, files).open_reader(fragment.path)
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
