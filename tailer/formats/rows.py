"""Rows of any task, by the reader that the task names: what engines, comparisons and Spark call.

A task travels to other processes, so it names its reader by the name of a format. Only that format is imported there.
"""

from collections.abc import Hashable, Iterator, Sequence
from functools import cache, partial

from tailer.events import ChangeBatch
from tailer.formats.port import RowReader
from tailer.formats.registry import named_format
from tailer.plan import END, ChangeTask
from tailer.read.data_files import LOCAL, Files
from tailer.read.shaping import fulfilling, selected

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
    if task.where is not None and not task.where.holds_always and task.reader is not None:
        # The reader of Parquet files finds out about conditions by itself, and reads less.
        read = partial(fulfilling, read=read)
    yield from read(task) if task.select is None else selected(task, read)


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
    return _reader_of(task).opens_each_version(task)


def _reader_of(task: ChangeTask) -> RowReader:
    return _parquet() if task.reader is None else named_format(task.reader).row_reader()


@cache
def _parquet() -> RowReader:
    """Return the reader of Parquet files. A process that only plans, as Spark's driver does for a query, needs none."""
    from tailer.read import execute as parquet  # noqa: PLC0415

    return parquet
