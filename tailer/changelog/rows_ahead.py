"""Rows of the next versions of a backlog, decoded together with those of the version that is due.

With deletion vectors, a version has a few rows of files that stay. To find them, their row groups are decoded, and the
next version may need other rows of the same ones. In a backlog these versions are known (`RowsAhead.expect`), so the
first one that reads a file decodes it for all. The rows of the others are kept until they are compared.

Versions are expected until their rows take about `_EXPECTED_BYTES`, by the average of those before. If rows that are
kept take more than `KEPT_BYTES`, or there is no room for them in the process, the last versions read by themselves.
They all do so where a file cannot be read for them together: an error of a version is raised when that version reads,
and by no other.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Final

from tailer.events import ChangeBatch
from tailer.formats.rows import execute
from tailer.plan import ChangePlan, ChangeTask
from tailer.read.data_files import DataFiles
from tailer.read.execute import execute_with
from tailer.read.kept_rows import scattered_rows, whole_tasks

__all__ = ["KEPT_BYTES", "MOST_TASKS", "RowsAhead"]

KEPT_BYTES: Final = 32 * 2**20  # of Arrow memory, for each pipeline
_EXPECTED_BYTES: Final = KEPT_BYTES * 3 // 4
MOST_TASKS: Final = 2**10  # that are expected at a time
_FIRST_ROWS: Final = 2**10  # as if so many had been read, of `_FIRST_BYTES` each
_FIRST_BYTES: Final = 2**8


@dataclass(slots=True)
class _Expected:
    """A task that has not been read yet. `batches`: its rows, once they were decoded; None: not so far, or given up."""

    task: ChangeTask
    batches: list[ChangeBatch] | None = None
    size_bytes: int = 0


@dataclass(slots=True)
class _File:
    """The tasks of a file that are expected, by version and index. `lock`: is held while the file is decoded."""

    expected: dict[tuple[int, int], _Expected] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)


class RowsAhead:
    """Executes tasks of versions that are compared. Where several are expected of a file, the first decodes it for all.

    `files`: opens what tasks name. `has_room`: whether the process has memory for rows that are not due yet.
    May be used by several threads.
    """

    def __init__(self, files: DataFiles, has_room: Callable[[], bool]) -> None:
        self._data_files = files
        self._has_room = has_room
        self._files: dict[str, _File] = {}
        self._sizes: dict[int, tuple[int, int]] = {}  # tasks and rows that are expected of each version
        self._bytes = 0  # of rows that are kept
        self._read_rows, self._read_bytes = _FIRST_ROWS, _FIRST_ROWS * _FIRST_BYTES
        self._lock = Lock()

    def expect(self, plan: ChangePlan) -> bool:
        """Note a plan that will be compared after those that were noted before, or was noted already.

        Return whether to note the one after it, too: rows of this one have yet to be decoded, and there is room.
        """
        tasks = [task for task in whole_tasks(plan) if task.include is not None and task.where is None is task.select]
        if not tasks:
            return False
        with self._lock:
            noted = [
                self._files.setdefault(task.uri, _File()).expected.setdefault(
                    (task.version, task.index), _Expected(task)
                )
                for task in tasks
            ]
            self._sizes[plan.version] = len(tasks), sum(map(scattered_rows, tasks))
            count, rows = map(sum, zip(*self._sizes.values(), strict=True))
            has_room = rows * self._read_bytes < _EXPECTED_BYTES * self._read_rows and count < MOST_TASKS
        return has_room and any(each.batches is None for each in noted)

    def release(self, version: int) -> None:
        """Forget a version: it was compared."""
        with self._lock:
            self._sizes.pop(version, None)
            for uri, file in list(self._files.items()):
                for key in [key for key in file.expected if key[0] == version]:
                    self._bytes -= file.expected.pop(key).size_bytes
                if not file.expected:
                    del self._files[uri]

    def read(self, task: ChangeTask) -> Iterator[ChangeBatch]:
        """Yield the rows of a task, as `tailer.formats.rows.execute` does. Raises as that does.

        Close the iterator if you do not read to its end: other threads may wait for the file.
        """
        key, file = (task.version, task.index), self._files.get(task.uri)
        if file is None or (known := file.expected.get(key)) is None or not _are_alike(known.task, task):
            yield from execute(task, files=self._data_files, use_threads=True)
            return
        with file.lock:
            with self._lock:
                known = file.expected.pop(key, known)
                self._bytes -= known.size_bytes
                others = [each for each in file.expected.values() if each.batches is None]
            if known.batches is None:
                yield from self._read_with(task, [each for each in others if _are_alike(each.task, task)])
                return
        yield from known.batches

    def _read_with(self, task: ChangeTask, others: list[_Expected]) -> Iterator[ChangeBatch]:
        """Yield the rows of a task, and keep those of `others`, which are in the order of their versions."""
        if not others:
            yield from execute(task, files=self._data_files, use_threads=True)
            return
        last_row, waiting = -1, list(others)
        for each in others:
            each.batches = []
        try:
            passed = [(each.task, partial(self._keep, waiting, each)) for each in others]
            for batch in execute_with(task, passed, files=self._data_files, use_threads=True):
                last_row = batch.last_row
                yield batch
        except Exception:  # noqa: BLE001 - raised again by the task that has it
            self._give_up(waiting, 0)
            yield from execute(task, last_row, files=self._data_files, use_threads=True)
        except BaseException:
            self._give_up(waiting, 0)
            raise

    def _keep(self, waiting: list[_Expected], each: _Expected, batch: ChangeBatch) -> bool:
        """Keep rows of a task. While there is no room, the last of those that are `waiting` is given up."""
        if each.batches is None:
            return False
        with self._lock:
            self._bytes += batch.size_bytes
            self._read_rows += len(batch)
            self._read_bytes += batch.size_bytes
        each.size_bytes += batch.size_bytes
        each.batches.append(batch)
        while waiting and (self._bytes > KEPT_BYTES or not self._has_room()):
            self._give_up(waiting, len(waiting) - 1)
        return each.batches is not None

    def _give_up(self, waiting: list[_Expected], first: int) -> None:
        """Free the rows of tasks from the `first` of `waiting` on: they are decoded when these tasks are executed."""
        for each in waiting[first:]:
            with self._lock:
                self._bytes -= each.size_bytes
            each.batches, each.size_bytes = None, 0
        del waiting[first:]


def _are_alike(task: ChangeTask, other: ChangeTask) -> bool:
    """Return whether two tasks of a file have the same columns, and the same values in rows that both have."""
    values, others = ((each.table_id, each.partition_values, each.tracking) for each in (task, other))
    is_whole = other.refinement is None and other.where is None and other.select is None
    return is_whole and values == others and task.schema.equals(other.schema, check_metadata=True)
