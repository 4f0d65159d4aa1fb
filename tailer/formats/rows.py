"""Rows of any task, by the reader that the task names: what engines, comparisons and Spark call.

A task travels to other processes, so it names its reader by the name of a format. Only that format is imported there.
"""

import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from tailer.events import ChangeBatch
from tailer.files.row_bitmaps import bitmap_of, positions_of, span
from tailer.formats.registry import named_format
from tailer.plan import END, ROW_TRACKING, ChangeTask
from tailer.read import execute as parquet
from tailer.read.data_files import LOCAL, Files
from tailer.read.port import RowReader
from tailer.shape.select import Select

Read = Callable[[ChangeTask], Iterator[ChangeBatch]]
"""Yields the rows of a task."""

__all__ = ["execute", "file_of", "needed_files", "opens_each_version", "row_groups"]


def execute(
    task: ChangeTask,
    after_row: int = -1,
    through_row: int = END,
    first_byte: int = 0,
    end_byte: int = END,
    *,
    files: Files = LOCAL,
    use_threads: bool = False,
) -> Iterator[ChangeBatch]:
    """Yield change rows of a task: see `tailer.read.execute.execute`. Raises also what the task's reader raises."""
    read = partial(
        _reader_of(task).execute,
        after_row=after_row,
        through_row=through_row,
        first_byte=first_byte,
        end_byte=end_byte,
        files=files,
        use_threads=use_threads,
    )
    if task.where is not None and task.reader is not None:
        # The reader of Parquet files finds out about conditions by itself, and reads less.
        read = partial(_fulfilling, read=read)
    yield from read(task) if task.select is None else _selected(task, task.select, read)


def _selected(task: ChangeTask, select: Select, read: Read) -> Iterator[ChangeBatch]:
    """Yield the rows of a task with columns that are made from those of the table."""
    columns = _columns_of(select, task.schema)
    for batch in read(replace(task, schema=columns.read, select=None)):
        yield replace(batch, rows=columns.made.apply(batch.rows))


@dataclass(frozen=True, slots=True)
class _Columns:
    """Columns of a task: `schema` has some of those that `select` makes, `made` makes them from the columns `read`."""

    select: Select
    schema: pa.Schema
    made: Select
    read: pa.Schema


_last: Final = threading.local()


def _columns_of(select: Select, schema: pa.Schema) -> _Columns:
    """Return how to make the columns of a task. Each thread keeps its last answer, for tasks that are alike."""
    kept: _Columns | None = getattr(_last, "kept", None)
    if kept is None or kept.select is not select or kept.schema is not schema:
        tracking = [field for field in schema if field.metadata and ROW_TRACKING in field.metadata]
        made = select.only([field.name for field in schema if field not in tracking])
        _last.kept = kept = _Columns(select, schema, made, pa.schema([*made.fields, *tracking]))
    return kept


def _fulfilling(task: ChangeTask, read: Read) -> Iterator[ChangeBatch]:
    """Yield the rows of a task that fulfil its condition: read the condition's columns first, then those rows."""
    condition, fulfilling = task.where, BitMap64()
    assert condition is not None, "asked by the caller"
    for batch in read(replace(task, schema=condition.fields, where=None)):
        fulfilling |= bitmap_of(batch.row_index.filter(condition.mask(batch.rows)))
    for batch in read(replace(task, where=None)) if fulfilling else ():
        some = fulfilling & span(batch.row_index[0].as_py(), batch.last_row + 1)
        kept = pc.is_in(batch.row_index, value_set=positions_of(some))
        if kept.true_count:
            yield replace(batch, rows=batch.rows.filter(kept), row_index=batch.row_index.filter(kept))


def row_groups(task: ChangeTask, files: Files = LOCAL) -> list[int]:
    """See `RowReader.row_groups`."""
    return _reader_of(task).row_groups(task, files)


def needed_files(
    task: ChangeTask, after_row: int = -1, through_row: int = END, first_byte: int = 0, end_byte: int = END
) -> Sequence[tuple[str, int]]:
    """See `RowReader.needed_files`."""
    return _reader_of(task).needed_files(task, after_row, through_row, first_byte, end_byte)


def file_of(task: ChangeTask) -> Hashable:
    """See `RowReader.file_of`."""
    return _reader_of(task).file_of(task)


def opens_each_version(task: ChangeTask) -> bool:
    """See `RowReader.opens_each_version`."""
    return _reader_of(task).opens_each_version


def _reader_of(task: ChangeTask) -> RowReader:
    return parquet if task.reader is None else named_format(task.reader).row_reader()
