"""Change files that are decoded once, although their rows are due at two times: all deletes of a version come first.

A change file has two tasks: its `delete` rows, and all others. Where the first one is read, the other rows are decoded
with it. They are kept until they are due, up to `KEPT_BYTES` of a version. What comes after that is read again, and so
are the rows of large files, of tasks that choose rows, and of versions that are continued after some of their rows.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Lock
from typing import Final

from tailer.events import ChangeBatch
from tailer.formats.rows import execute, needed_files
from tailer.plan import END, ChangeTask, TaskKind
from tailer.read.data_files import Files
from tailer.read.execute import execute_both
from tailer.read.shaped_rows import selected

__all__ = ["KEPT_BYTES", "ChangeFiles"]

KEPT_BYTES: Final = 64 * 2**20  # of Arrow memory
_FILE_BYTES: Final = 16 * 2**20  # of all files whose rows are kept


@dataclass(slots=True)
class _Kept:
    """Rows of `task` that are decoded, and the position of the last one; `END`: there are no more."""

    task: ChangeTask
    batches: list[ChangeBatch] = field(default_factory=list)
    last_row: int = -1
    is_full: bool = False


class ChangeFiles:
    """Executes tasks, those of a change file together.

    `tasks`: those of a plan in order, each with the row after which to continue. `has_room`: whether rows that nobody
    waits for may be held. May be used by several threads, each with tasks of its own.
    """

    def __init__(self, tasks: Sequence[tuple[ChangeTask, int]], has_room: Callable[[], bool]) -> None:
        self._kept = _pairs(tasks)
        self._has_room = has_room
        self._bytes = 0
        self._lock = Lock()

    def keeps(self, task: ChangeTask) -> bool:
        """Return whether the rows of a task are decoded with those of an earlier one."""
        return task.kind is TaskKind.CDC_OTHERS and task.uri in self._kept

    def needed_files(self, task: ChangeTask, after_row: int) -> Sequence[tuple[str, int]]:
        """Return what `execute` opens, as `tailer.formats.rows.needed_files` does."""
        if task.uri not in self._kept:
            return needed_files(task, after_row)
        return () if self.keeps(task) else ((task.uri, max(task.size_bytes, 0)),)

    def execute(self, task: ChangeTask, after_row: int, *, files: Files, use_threads: bool) -> Iterator[ChangeBatch]:
        """Yield the rows of a task, as `tailer.formats.rows.execute` does. Raises as that does."""
        read = partial(execute, files=files, use_threads=use_threads)
        kept = self._kept.get(task.uri)
        if kept is None:
            yield from read(task, after_row)
        elif task.kind is TaskKind.CDC_DELETES:
            yield from self._deletes(task, kept, files, use_threads)
        else:
            yield from _of(task, partial(self._release, kept))
            if kept.last_row < END:
                yield from read(task, max(kept.last_row, after_row))

    def _deletes(self, task: ChangeTask, kept: _Kept, files: Files, use_threads: bool) -> Iterator[ChangeBatch]:
        def read(task: ChangeTask) -> Iterator[ChangeBatch]:
            others = replace(kept.task, schema=task.schema, select=task.select)
            return execute_both(task, others, partial(self._keep, kept), files=files, use_threads=use_threads)

        yield from _of(task, read)
        if not kept.is_full:
            kept.last_row = END

    def _keep(self, kept: _Kept, batch: ChangeBatch) -> bool:
        with self._lock:
            kept.is_full = self._bytes + batch.size_bytes > KEPT_BYTES or not self._has_room()
            if not kept.is_full:
                self._bytes += batch.size_bytes
        if not kept.is_full:
            kept.batches.append(batch)
            kept.last_row = batch.last_row
        return not kept.is_full

    def _release(self, kept: _Kept, task: ChangeTask) -> Iterator[ChangeBatch]:
        kept.batches.reverse()
        while kept.batches:
            batch = kept.batches.pop()
            with self._lock:
                self._bytes -= batch.size_bytes
            yield batch


def _pairs(tasks: Sequence[tuple[ChangeTask, int]]) -> dict[str, _Kept]:
    """Return the files whose rows are decoded once."""
    first = {task.uri for task, after_row in tasks if task.kind is TaskKind.CDC_DELETES and after_row == -1}
    pairs: dict[str, _Kept] = {}
    size = 0
    for task, _ in tasks:
        if task.kind is TaskKind.CDC_OTHERS and task.uri in first and not _chooses(task):
            size += task.size_bytes
            if size <= _FILE_BYTES:
                pairs[task.uri] = _Kept(task)
    return pairs


def _chooses(task: ChangeTask) -> bool:
    """Return whether rows of the task are chosen by more than their change types."""
    return task.reader is not None or task.where is not None or task.refinement is not None


def _of(task: ChangeTask, read: Callable[[ChangeTask], Iterator[ChangeBatch]]) -> Iterator[ChangeBatch]:
    return read(task) if task.select is None else selected(task, read)
