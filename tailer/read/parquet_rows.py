"""The `RowReader` of Parquet files: the one of all formats whose tasks name no other."""

from collections.abc import Hashable, Iterator, Sequence
from typing import Final

from tailer.events import ChangeBatch
from tailer.plan import ChangeTask
from tailer.read.data_files import Files
from tailer.read.execute import execute, needed_bytes, row_groups
from tailer.read.port import RowReader

__all__ = ["PARQUET"]


class _ParquetRows:
    opens_each_version = False

    def execute(
        self,
        task: ChangeTask,
        after_row: int,
        through_row: int,
        first_byte: int,
        end_byte: int,
        *,
        files: Files,
        use_threads: bool,
    ) -> Iterator[ChangeBatch]:
        """See `RowReader.execute`."""
        return execute(task, after_row, through_row, first_byte, end_byte, files=files, use_threads=use_threads)

    def row_groups(self, task: ChangeTask, files: Files) -> list[int]:
        """See `RowReader.row_groups`."""
        return row_groups(task, files)

    def needed_files(
        self, task: ChangeTask, after_row: int, through_row: int, first_byte: int, end_byte: int
    ) -> Sequence[tuple[str, int]]:
        """See `RowReader.needed_files`."""
        return ((task.uri, needed_bytes(task, after_row, through_row, first_byte, end_byte)),)

    def file_of(self, task: ChangeTask) -> Hashable:
        """See `RowReader.file_of`."""
        return task.uri


PARQUET: Final[RowReader] = _ParquetRows()
