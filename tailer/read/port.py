"""The port of readers of rows: a task of a plan becomes change rows.

Most formats have their rows in Parquet files, which `tailer.read.execute` reads. A format whose rows are elsewhere
has a reader of its own, and names itself in its tasks (`ChangeTask.reader`).
"""

from collections.abc import Hashable, Iterator, Sequence
from typing import Protocol

from tailer.events import ChangeBatch
from tailer.plan import ChangeTask
from tailer.read.data_files import Files

__all__ = ["RowReader"]


class RowReader(Protocol):
    """A reader of rows. Synchronous; runs on threads, in other processes and on Spark's executors."""

    def opens_each_version(self, task: ChangeTask) -> bool:
        """Return whether reading a task has a fixed cost, however small its version is.

        If so, reading the next version begins early, and small versions are not read together.
        """
        ...

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
        """Yield change rows of a task, in ascending order of positions: see `tailer.read.execute.execute`."""
        ...

    def row_groups(self, task: ChangeTask, files: Files) -> list[int]:
        """Return the number of rows of each part of a task's file that is read at once. Raises as `execute`."""
        ...

    def needed_files(
        self, task: ChangeTask, after_row: int, through_row: int, first_byte: int, end_byte: int
    ) -> Sequence[tuple[str, int]]:
        """Return what `execute` opens by `files` in turn, each with the `needed_bytes` of `Files.open`."""
        ...

    def file_of(self, task: ChangeTask) -> Hashable:
        """Return what counts as one file of the table where files are counted."""
        ...
