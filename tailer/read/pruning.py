"""Files that cannot have a row for a condition, by what the log says of their values before they are read."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from math import isnan

import pyarrow as pa

from tailer.errors import ChangesUnavailable
from tailer.events import is_struct
from tailer.files.partition_values import partition_scalar
from tailer.plan import HELD, ROW_TRACKING, ChangePlan, ChangeTask, SkippedFiles
from tailer.read.log_statistics import LogStatistics
from tailer.schema.columns import physical_name
from tailer.schema.variant_paths import path_of
from tailer.shape.ranges import ColumnRange, Ranges

__all__ = ["fields_of", "partition_range", "paths_of", "prune", "task_ranges"]


def prune(plan: ChangePlan) -> ChangePlan:
    """Leave out the tasks of files without a row that can fulfil the task's condition. The others keep their numbers.

    Of the columns of a condition, those that the rows of a task do not have are unknown. The tasks that stay lose
    their statistics: they are large, and nobody needs them again.
    """
    kept, skipped = [], {}
    for task in plan.tasks:
        if task.where is not None and not task.where.may_hold(task_ranges(task, _known(task, task.where.fields))):
            skipped[task.uri, task.fragment] = task.size_bytes
        else:
            kept.append(task if task.stats is None else replace(task, stats=HELD))
    read = {(task.uri, task.fragment) for task in kept}  # a file may have several tasks
    sizes = [size for file, size in skipped.items() if file not in read]
    return replace(plan, tasks=tuple(kept), skipped=SkippedFiles(len(sizes), sum(sizes)) if skipped else None)


def _known(task: ChangeTask, fields: pa.Schema) -> pa.Schema:
    own = set(map(physical_name, task.schema))
    return pa.schema([field for field in fields if physical_name(field) in own])


def task_ranges(task: ChangeTask, fields: pa.Schema) -> Ranges:
    """Return what the log says of the values in a task's file.

    `fields`: the columns of the table at the time of the task's rows, with metadata as in `ChangeTask.schema`.
    Statistics are decoded when a column is first asked for that is no partition column.
    """
    return _TaskRanges(task, fields)


def partition_range(task: ChangeTask, field: pa.Field, text: str | None) -> ColumnRange | None:
    """Return the value of a partition column as a range; None where the log has a text that is no value of it.

    Reading the rows raises an error about such a text.
    """
    try:
        value = partition_scalar(text, field, task.table, task.version, task.uri)
    except ChangesUnavailable:
        return None
    if not value.is_valid:
        return ColumnRange(None, None, may_have_values=False)
    if pa.types.is_floating(field.type):
        number = value.as_py()
        if isnan(number):
            return ColumnRange(None, None, may_be_null=False)
        if number == 0:
            return ColumnRange(pa.scalar(-0.0, field.type), pa.scalar(0.0, field.type), may_be_null=False)
    return ColumnRange(value, value, may_be_null=False)


def fields_of(fields: pa.Schema, path: tuple[str, ...]) -> list[pa.Field]:
    """Return the field of each name of a path through structs; none where the table has no such column of its own."""
    found: list[pa.Field] = []
    level = list(fields)
    for name in path:
        named = [field for field in level if field.name == name]
        if len(named) != 1:
            return []
        found.append(named[0])
        level = list(named[0].type) if is_struct(named[0].type) else []
    is_own = bool(found) and ROW_TRACKING not in (found[0].metadata or {}) and path_of(found[0]) is None
    return found if is_own else []


def paths_of(fields: pa.Schema | pa.StructType, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the paths of all columns and of their fields in structs."""
    for field in fields:
        path = (*above, field.name)
        yield path
        if is_struct(field.type):
            yield from paths_of(field.type, path)


class _TaskRanges(Mapping[tuple[str, ...], ColumnRange]):
    def __init__(self, task: ChangeTask, fields: pa.Schema) -> None:
        self._task = task
        self._fields = fields
        self._logged = dict(task.partition_values)

    def __getitem__(self, path: tuple[str, ...]) -> ColumnRange:
        found = self._find(path)
        if found is None:
            raise KeyError(path)
        return found

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        return (path for path in paths_of(self._fields) if path in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _find(self, path: tuple[str, ...]) -> ColumnRange | None:
        columns = fields_of(self._fields, path)
        if not columns:
            return None
        if (name := physical_name(columns[0])) in self._logged:
            return partition_range(self._task, columns[0], self._logged[name]) if len(columns) == 1 else None
        if self._stats is None or is_struct(columns[-1].type):
            return None
        return self._stats.range(columns)

    @cached_property
    def _stats(self) -> LogStatistics | None:
        return None if self._task.stats is None else LogStatistics.parse(self._task.stats)
