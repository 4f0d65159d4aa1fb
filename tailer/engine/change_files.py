"""Change files, each decoded once for both of its tasks.

A change file has two tasks: one for its `delete` rows, one for all others. All deletes of a version are delivered
first. While they are read, the other rows of the same files are decoded, too, and kept in memory until they are
delivered, up to `KEPT_BYTES` for each version. Rows beyond that are decoded again when they are delivered.

Nothing is kept of files beyond the first `_FILE_BYTES` of a version, of tasks with a condition or with rows that were
compared, and of files whose deletes were delivered, at least in part, before the version is continued.
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
from tailer.read.execute import execute_with
from tailer.read.shaped_rows import selected

__all__ = ["KEPT_BYTES", "ChangeFiles"]

KEPT_BYTES: Final = 64 * 2**20  # of Arrow memory
_FILE_BYTES: Final = 16 * 2**20  # of all files whose rows are kept


@dataclass(slots=True)
class _Kept:
    """The decoded rows of `task`, in `batches`.

    `last_row`: the position of the last one; -1: there is none; `END`: all rows of the task were decoded. `is_full`:
    whether some rows were not kept.
    """

    task: ChangeTask
    batches: list[ChangeBatch] = field(default_factory=list)
    last_row: int = -1
    is_full: bool = False


class ChangeFiles:
    """Executes tasks. Where both tasks of a change file are among them, the first one decodes it for both.

    `tasks`: those of a plan in order, each with the row after which to continue. The second task of a file may be
    executed only after the first one has ended. `has_room`: whether the process has memory for rows that are not due
    yet. May be used by several threads, each with tasks of its own.
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
            return execute_with(task, [(others, partial(self._keep, kept))], files=files, use_threads=use_threads)

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
    """Return what is kept of each file that is decoded once, by its location."""
    deletes = (task for task, after_row in tasks if task.kind is TaskKind.CDC_DELETES and after_row == -1)
    first = {task.uri for task in deletes if not _chooses(task)}
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
