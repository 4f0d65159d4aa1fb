"""Files that cannot have a row for a condition, by what the log says of their values before they are read."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import isnan
from typing import TYPE_CHECKING

import pyarrow as pa

from tailer.errors import ChangesUnavailable
from tailer.events import is_struct
from tailer.files.partition_values import partition_scalar
from tailer.plan import HELD, ROW_TRACKING, ChangePlan, ChangeTask, SkippedFiles
from tailer.read.log_statistics import LogStatistics, Paths
from tailer.schema.columns import ColumnRange, Ranges, physical_name
from tailer.schema.variant_paths import path_of

if TYPE_CHECKING:
    from tailer.shape.condition import Condition

__all__ = ["LoggedColumns", "fields_of", "partition_range", "paths_of", "prune"]

_Path = tuple[str, ...]


def prune(plan: ChangePlan) -> ChangePlan:
    """Leave out the tasks of files without a row that can fulfil the task's condition. The others keep their numbers.

    Of the columns of a condition, those that the rows of a task do not have are unknown. The tasks that stay lose
    their statistics: they are large, and nobody needs them again.
    """
    kept, skipped = [], {}
    pruners: dict[tuple[int, int], _Pruner] = {}
    for task in plan.tasks:
        if task.where is not None:
            key = id(task.where), id(task.schema)
            if key not in pruners:
                pruners[key] = _Pruner(task.where, task.schema)
            if not pruners[key].may_hold(task):
                skipped[task.uri, task.fragment] = task.size_bytes
                continue
        kept.append(task if task.stats is None else replace(task, stats=HELD))
    read = {(task.uri, task.fragment) for task in kept}  # a file may have several tasks
    sizes = [size for file, size in skipped.items() if file not in read]
    return replace(plan, tasks=tuple(kept), skipped=SkippedFiles(len(sizes), sum(sizes)) if skipped else None)


class _Pruner:
    """A condition, held against the files with rows of one schema."""

    def __init__(self, condition: "Condition", schema: pa.Schema) -> None:
        from tailer.shape.tree import columns_of  # noqa: PLC0415 - only for a condition

        own = set(map(physical_name, schema))
        fields = pa.schema([field for field in condition.fields if physical_name(field) in own])
        self._condition = condition
        self._columns = LoggedColumns(fields, {column.path for column in columns_of(condition.expression)})
        self._by_partition: dict[tuple[str | None, ...], bool] = {}

    def may_hold(self, task: ChangeTask) -> bool:
        """Return False only where no row of the task's file fulfils the condition."""
        texts = self._columns.partition_texts(task)
        if texts is None:
            return self._condition.may_hold(self._columns.ranges(task))
        if texts not in self._by_partition:
            self._by_partition[texts] = self._condition.may_hold(self._columns.ranges(task))
        return self._by_partition[texts]


class LoggedColumns:
    """Values of some columns in each file, as far as the log has them, by their `paths`.

    `fields`: the columns of the table at the time of the rows, with metadata as in `ChangeTask.schema`.
    """

    def __init__(self, fields: pa.Schema, paths: Iterable[_Path]) -> None:
        by_path = {path: columns for path in paths if (columns := fields_of(fields, path))}
        self._columns = {path: (columns, tuple(map(physical_name, columns))) for path, columns in by_path.items()}
        leaves = (names for columns, names in self._columns.values() if not is_struct(columns[-1].type))
        self._leaves: Paths = tuple(sorted(leaves))

    def partition_texts(self, task: ChangeTask) -> tuple[str | None, ...] | None:
        """Return the values in the log if all columns are partition columns; None: they are not."""
        logged = dict(task.partition_values)
        names = [names[0] for _, names in self._columns.values()]
        return tuple(logged[name] for name in names) if all(name in logged for name in names) else None

    def ranges(self, task: ChangeTask) -> Ranges:
        """Return what the log says of the values in a task's file."""
        logged, ranges = dict(task.partition_values), {}
        stats = None if task.stats is None else LogStatistics.parse(task.stats, self._leaves)
        for path, (columns, names) in self._columns.items():
            if names[0] in logged:
                column_range = partition_range(task, columns[0], logged[names[0]]) if len(columns) == 1 else None
            else:
                column_range = None if stats is None or names not in self._leaves else stats.range(columns, names)
            if column_range is not None:
                ranges[path] = column_range
        return ranges


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
    columns: list[pa.Field] = []
    level = list(fields)
    for name in path:
        named = [field for field in level if field.name == name]
        if len(named) != 1:
            return []
        columns.append(named[0])
        level = list(named[0].type) if is_struct(named[0].type) else []
    is_own = bool(columns) and ROW_TRACKING not in (columns[0].metadata or {}) and path_of(columns[0]) is None
    return columns if is_own else []


def paths_of(fields: pa.Schema | pa.StructType, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the paths of all columns and of their fields in structs."""
    for field in fields:
        path = (*above, field.name)
        yield path
        if is_struct(field.type):
            yield from paths_of(field.type, path)
