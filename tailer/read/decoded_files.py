"""Files that are decoded once for all who need their rows, which are kept in the memory of one `Budget`.

Rows are needed more than once in three cases, and in each the first reader decodes them for all:

- *A version that is compared* is read by some columns, then maybe by others, and then delivered. Its rows are kept with
  all columns if they are few rows of a file, by a deletion vector, or all of a small file (`compared_tasks`).
- *Versions of a backlog* need different rows of the same files, where these are marked by deletion vectors. They are
  known (`DecodedFiles.expect`), so the first version that reads a file decodes it for the others, too. Versions are
  expected until their rows take about `_EXPECTED_BYTES`, by the average of those before.
- *A change file* has two tasks: one for its `delete` rows, one for all others (`change_file_tasks`). All deletes of a
  version are delivered first, and the others are decoded with them.

A task is kept whole or not at all. Where there is no room for its rows, the tasks that are due last are given up first.
If it is the last one itself, it is not kept, nor are the tasks of its version that were not read yet. A task that is
not in memory is read from its file whenever it is needed. Where a file cannot be read for several tasks together,
each reads it alone: an error of a task is raised by that task, and by no other.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Lock
from typing import Any, Final

from tailer.events import ROW_ID, ChangeBatch
from tailer.plan import ChangePlan, ChangeTask, TaskKind, add_row_ids, output_schema
from tailer.read.data_files import LOCAL, Files
from tailer.read.execute import execute
from tailer.read.kept_columns import KeptColumns
from tailer.read.shaping import selected

__all__ = ["MOST_TASKS", "Budget", "DecodedFiles", "ReadTask", "change_file_tasks", "compared_tasks"]

BUDGET_BYTES: Final = 64 * 2**20  # of Arrow memory
_EXPECTED_BYTES: Final = BUDGET_BYTES * 3 // 8
MOST_TASKS: Final = 2**10  # that are expected of a backlog at a time
_FIRST_ROWS: Final = 2**10  # as if so many had been decoded, of `_FIRST_BYTES` each
_FIRST_BYTES: Final = 2**8
_FEW_ROWS: Final = 200_000  # of a task with a deletion vector
_SMALL_FILE_BYTES: Final = 2**20
_CHANGE_FILE_BYTES: Final = 16 * 2**20  # of all change files of a version whose rows are kept

ReadTask = Callable[[ChangeTask], Iterator[ChangeBatch]]
"""Yields the rows of a task, as `tailer.read.execute.execute` does."""

Execute = Callable[..., Iterator[ChangeBatch]]
"""`tailer.formats.rows.execute`."""

_Key = tuple[int, int]


@dataclass(slots=True)
class Budget:
    """The memory of kept rows, up to `BUDGET_BYTES`. `has_room`: whether the process may keep more rows at all.

    May be used by several threads.
    """

    has_room: Callable[[], bool] = lambda: True
    used_bytes: int = 0
    _lock: Lock = field(default_factory=Lock)

    def add(self, size_bytes: int) -> bool:
        """Take so much memory if it is free, and return whether it was. A negative size gives memory back."""
        with self._lock:
            fits = size_bytes <= 0 or (self.used_bytes + size_bytes <= BUDGET_BYTES and self.has_room())
            self.used_bytes += size_bytes if fits else 0
        return fits


@dataclass(slots=True, eq=False, kw_only=True)
class _Rows:
    """The rows of an expected task. `batches`: None where they were not decoded, or were given up."""

    task: ChangeTask
    key: _Key
    columns: KeptColumns
    batches: list[ChangeBatch] | None = None
    size_bytes: int = 0
    is_whole: bool = False


@dataclass(slots=True)
class _File:
    """The tasks of a file that are expected, by version and index. `lock`: is held while rows are read into memory."""

    expected: dict[_Key, _Rows] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)


class DecodedFiles:
    """Reads tasks by `execute`, from `files`, and those that are expected from memory, in `budget`.

    May be used by several threads, by each for other versions.
    """

    def __init__(
        self, execute: Execute, budget: Budget | None = None, files: Files = LOCAL, use_threads: bool = False
    ) -> None:
        self._execute = execute
        self._budget = budget or Budget()
        self._source = files
        self._use_threads = use_threads
        self._files: dict[str, _File] = {}
        self._marked: dict[_Key, int] = {}  # rows of the expected tasks that a deletion vector chooses
        self._decoded_rows, self._decoded_bytes = _FIRST_ROWS, _FIRST_ROWS * _FIRST_BYTES
        self._lock = Lock()

    def expect(self, tasks: Iterable[ChangeTask]) -> bool:
        """Note tasks that will be read after those that were noted before, or were noted already.

        Return whether to note those of the next version, too: some of these have yet to be decoded together with other
        versions, and there is room for more.
        """
        with self._lock:
            noted: list[_Rows] = []
            for task in tasks:
                expected = self._files.setdefault(task.uri, _File()).expected
                rows = expected.get(key := (task.version, task.index))
                if rows is None or rows.task != task:
                    if rows is not None:
                        self._give_up(rows)
                    expected[key] = rows = _Rows(task=task, key=key, columns=KeptColumns(task))
                if task.include is not None and _is_shared(task):
                    self._marked[key] = scattered_rows(task)
                    noted.append(rows)
            size_bytes = sum(self._marked.values()) * self._decoded_bytes // self._decoded_rows
            has_room = size_bytes < _EXPECTED_BYTES and len(self._marked) < MOST_TASKS
        return has_room and any(rows.batches is None for rows in noted)

    def read(self, task: ChangeTask) -> Iterator[ChangeBatch]:
        """Yield the rows of a task, which may ask for some of its columns, for the rows at some of its positions
        (`ChangeTask.include`), and for what is left of it after a comparison (`ChangeTask.refinement`).

        Raises what `execute` raises, and `ScratchUnavailable` for lost spill files.
        """
        rows = self._noted(task)
        batches = self._load(rows) if rows is not None and rows.columns.include(task) else None
        if rows is None or batches is None:
            yield from self._execute(task, files=self._source, use_threads=self._use_threads)
        else:
            yield from rows.columns.choose(batches, task)

    def may_have(self, task: ChangeTask) -> bool:
        """Return whether a task may have rows; unless they are expected, it is not read for that."""
        rows = self._noted(task)
        batches = None if rows is None else self._load(rows)
        return batches is None or bool(batches)

    def has(self, task: ChangeTask) -> bool:
        """Return whether the rows of a task are in memory."""
        rows = self._noted(task)
        return rows is not None and rows.is_whole

    def expects(self, task: ChangeTask) -> bool:
        """Return whether a task was noted, and not read for the last time yet."""
        return self._noted(task) is not None

    def is_second(self, task: ChangeTask) -> bool:
        """Return whether the rows of a change file's task are kept when those of the other one are delivered."""
        return task.kind is TaskKind.CDC_OTHERS and self.expects(task)

    def deliver(
        self, task: ChangeTask, after_row: int = -1, *, files: Files, use_threads: bool
    ) -> Iterator[ChangeBatch]:
        """Yield the rows of a task after `after_row` for the last time, and keep those of the file's other tasks.

        Of a task that was noted, all rows are yielded. Raises as `execute` does.
        """
        rows = self._noted(task)
        decode = partial(execute, files=files, use_threads=use_threads)
        if rows is not None and rows.is_whole:
            yield from _made(task, lambda raw: self._free(rows, partial(decode, raw)))
            return
        if rows is not None and (others := self._begin(rows)):
            yield from _made(task, lambda raw: decode(raw, others=self._kept_of(raw, others)))
            with self._lock:
                for other in others:
                    other.is_whole = other.batches is not None
        else:
            yield from self._execute(task, after_row, files=files, use_threads=use_threads)

    def release(self, version: int | None = None) -> None:
        """Forget a version, or all."""
        with self._lock:
            for uri, file in list(self._files.items()):
                for key in [key for key in file.expected if version in (None, key[0])]:
                    self._give_up(file.expected.pop(key))
                if not file.expected:
                    del self._files[uri]
            self._marked = {key: rows for key, rows in self._marked.items() if version not in (None, key[0])}

    def _noted(self, task: ChangeTask) -> _Rows | None:
        file = self._files.get(task.uri)
        return None if file is None else file.expected.get((task.version, task.index))

    def _begin(self, rows: _Rows, keep: bool = False) -> list[_Rows]:
        """Return the tasks whose rows to keep while a task is decoded; `keep`: it, too, else it is due no more."""
        with self._lock:
            file = self._files.get(rows.task.uri, _File())
            if file.expected.get(rows.key) is not rows:
                return []
            if not keep:
                del file.expected[rows.key]
            begun = [rows] if keep else []
            # Where little room is left, rows that are not due would be decoded and given up at once.
            is_roomy = self._budget.used_bytes < BUDGET_BYTES * 7 // 8 and self._budget.has_room()
            others = file.expected.values() if is_roomy else ()
            begun += [
                entry for entry in others if entry is not rows and entry.batches is None and _go_with(rows, entry)
            ]
            for entry in begun:
                entry.batches = []
        return begun

    def _load(self, rows: _Rows) -> list[ChangeBatch] | None:
        """Return the rows of a task from memory, where they are read first; None if they are not kept there."""
        if (file := self._files.get(rows.task.uri)) is None:
            return None
        with file.lock:
            if rows.batches is None and (begun := self._begin(rows, keep=True)):
                decoded: Sequence[_Rows] = ()
                try:
                    decoded = self._decode(rows, begun[1:])
                finally:
                    with self._lock:
                        for entry in decoded:
                            entry.is_whole = entry.batches is not None
                    if not rows.is_whole:
                        self._refuse(begun)
            with self._lock:
                return rows.batches if rows.is_whole else None

    def _decode(self, rows: _Rows, others: Sequence[_Rows]) -> Sequence[_Rows]:
        """Decode a task with the `others`, unless one of these cannot be read. Return which were; none without room."""
        options: dict[str, Any] = {"files": self._source, "use_threads": self._use_threads}
        if others:
            with suppress(Exception):  # is raised below, if it is one of this task
                batches = execute(rows.task, **options, others=self._kept_of(rows.task, others))
                return (rows, *others) if all(self._keep(rows, batch) for batch in batches) else ()
            with self._lock:
                is_due = rows.batches is not None
                for entry in (rows, *others):
                    self._give_up(entry)
                rows.batches = [] if is_due else None
        return (rows,) if all(self._keep(rows, batch) for batch in self._execute(rows.task, **options)) else ()

    def _kept_of(
        self, task: ChangeTask, others: Sequence[_Rows]
    ) -> list[tuple[ChangeTask, Callable[[ChangeBatch], bool]]]:
        """Return what `execute` takes of tasks that are decoded with `task`, in its columns."""
        return [(replace(other.task, schema=task.schema, select=None), partial(self._keep, other)) for other in others]

    def _keep(self, rows: _Rows, batch: ChangeBatch) -> bool:
        """Keep rows of a task, if need be in place of tasks that are due later. Return whether they are kept."""
        with self._lock:
            while rows.batches is not None:
                if self._budget.add(batch.size_bytes):
                    rows.batches.append(batch)
                    rows.size_bytes += batch.size_bytes
                    self._decoded_rows += len(batch)
                    self._decoded_bytes += batch.size_bytes
                    return True
                every = (entry for file in self._files.values() for entry in file.expected.values() if entry.size_bytes)
                self._give_up(max((rows, *every), key=lambda entry: entry.key))
        return False

    def _give_up(self, rows: _Rows) -> None:
        """Free the rows of a task: it is decoded again when it is read."""
        self._budget.add(-rows.size_bytes)
        rows.batches, rows.size_bytes, rows.is_whole = None, 0, False

    def _refuse(self, begun: Sequence[_Rows]) -> None:
        """Free what was decoded. Expect the first task no more, nor those of its version that were not decoded yet."""
        with self._lock:
            for entry in begun:
                self._give_up(entry)
            for file in self._files.values():
                for key, entry in list(file.expected.items()):
                    if key[0] == begun[0].task.version and entry.batches is None:
                        del file.expected[key]

    def _free(self, rows: _Rows, decode: Callable[[], Iterator[ChangeBatch]]) -> Iterator[ChangeBatch]:
        """Yield the rows of a task, then free them. `decode`: reads them if they were given up meanwhile."""
        with self._lock:
            batches = rows.batches if rows.is_whole else None
        yield from decode() if batches is None else batches
        with self._lock:
            self._give_up(rows)


def compared_tasks(plan: ChangePlan) -> list[ChangeTask]:
    """Return those tasks of a version that are worth keeping while it is compared, with all columns that may be asked.

    None of a table with a column that is named as one of ours: they are found by name.
    """
    kinds = TaskKind.DELETE, TaskKind.INSERT
    whole = [task for task in plan.tasks if task.kind in kinds and task.reader is None and task.refinement is None]
    tasks = [
        task
        for task in whole
        if (0 < task.size_bytes <= _SMALL_FILE_BYTES if task.include is None else scattered_rows(task) <= _FEW_ROWS)
    ]
    with_ids = {
        id(task.schema): task.schema if ROW_ID in task.schema.names else add_row_ids(task.schema) for task in tasks
    }
    wide = (task if task.tracking is None else replace(task, schema=with_ids[id(task.schema)]) for task in tasks)
    return [task for task in wide if len(set(names := output_schema(task.schema).names)) == len(names)]


def change_file_tasks(tasks: Sequence[tuple[ChangeTask, int]]) -> list[ChangeTask]:
    """Return both tasks of each change file that is worth decoding once. `tasks`: each with the row to continue after.

    None of tasks whose rows are chosen by more than their change types, nor of files whose deletes were delivered, at
    least in part, before the version is continued.
    """
    whole = [task for task, after in tasks if task.kind is TaskKind.CDC_DELETES and after == -1]
    deletes = {task.uri: task for task in whole if _is_shared(task)}
    shared_tasks: list[ChangeTask] = []
    size_bytes = 0
    for task, _ in tasks:
        if task.kind is TaskKind.CDC_OTHERS and task.uri in deletes and _is_shared(task):
            size_bytes += task.size_bytes
            shared_tasks += [deletes[task.uri], task] if size_bytes <= _CHANGE_FILE_BYTES else []
    return shared_tasks


def scattered_rows(task: ChangeTask) -> int:
    """Estimate how many rows a task with deletion vectors has, by what the log says of these."""
    include, exclude = (0 if vector is None else vector.cardinality for vector in (task.include, task.exclude))
    return max(include - exclude, 0)


def _is_shared(task: ChangeTask) -> bool:
    """Return whether other tasks may need rows of the same file: all are chosen by positions or change types alone."""
    if task.reader is not None or task.where is not None or task.refinement is not None:
        return False
    if task.kind in (TaskKind.DELETE, TaskKind.INSERT):
        return task.include is not None and task.select is None
    return True


def _go_with(rows: _Rows, other: _Rows) -> bool:
    """Return whether two tasks of a file have the same columns, and the same values in rows that both have."""
    if not (_is_shared(rows.task) and _is_shared(task := other.task)):
        return False
    values, others = ((side.table_id, side.partition_values, side.tracking) for side in (rows.task, task))
    is_alike = values == others and rows.task.select is task.select
    return is_alike and rows.task.schema.equals(task.schema, check_metadata=True)


def _made(task: ChangeTask, read: ReadTask) -> Iterator[ChangeBatch]:
    """Yield the rows of a task, with the columns that it makes of those in the file."""
    return read(task) if task.select is None else selected(task, read)
