"""The `RowReader` of Lance: a task's rows are those of a fragment, which pylance reads by itself."""

from collections.abc import Hashable, Iterator, Sequence
from typing import Final

from typing_extensions import override

from tailer.errors import DataCorrupt
from tailer.events import ChangeBatch
from tailer.formats.lance.rows.fragments import count_rows, execute_fragment, rows_in_part
from tailer.formats.lance.rows.small_files import names_file
from tailer.plan import ChangeTask, FragmentRef
from tailer.read.data_files import Files, check_task
from tailer.read.port import RowReader

__all__ = ["FRAGMENTS"]


class _Fragments(RowReader):
    @override
    def opens_each_version(self, task: ChangeTask) -> bool:
        """Return False where the plan names a file that is read by itself."""
        return not names_file(task)

    @override
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
        """Yield the rows; pylance has threads of its own."""
        check_task(task, files)
        fragment = _fragment(task)
        part = rows_in_part(fragment, task.size_bytes, first_byte, end_byte)
        rows = range(max(part.start, after_row + 1), min(part.stop, through_row + 1))
        return execute_fragment(task, fragment, rows, files)

    @override
    def row_groups(self, task: ChangeTask, files: Files) -> list[int]:
        """Return one: that of the fragment."""
        check_task(task, files)
        return [count_rows(task, _fragment(task), files)]

    @override
    def needed_files(
        self, task: ChangeTask, after_row: int, through_row: int, first_byte: int, end_byte: int
    ) -> Sequence[tuple[str, int]]:
        """Return none: pylance opens files by itself."""
        return ()

    @override
    def file_of(self, task: ChangeTask) -> Hashable:
        """Return the fragment: all tasks have the location of the dataset."""
        fragment = _fragment(task)
        return task.uri, fragment.version, fragment.number


def _fragment(task: ChangeTask) -> FragmentRef:
    if task.fragment is None:
        raise DataCorrupt(task.table, task.version, task.uri, "the task names no fragment")
    return task.fragment


FRAGMENTS: Final[RowReader] = _Fragments()
