"""Files of a plan in which no row can fulfil the condition, found without reading them."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pyarrow as pa

from tailer.errors import ChangesUnavailable
from tailer.files.partition_values import partition_scalar
from tailer.plan import ChangePlan, ChangeTask, SkippedFiles
from tailer.schema.columns import physical_name
from tailer.shape.ranges import ColumnRange

__all__ = ["prune", "task_ranges"]


def prune(plan: ChangePlan) -> ChangePlan:
    """Return the plan without the tasks of files in which no row can fulfil the task's condition."""
    kept = [task for task in plan.tasks if task.where is None or task.where.may_hold(task_ranges(task))]
    if len(kept) == len(plan.tasks):
        return plan
    read = {id(task) for task in kept}
    sizes = [task.size_bytes for task in plan.tasks if id(task) not in read]
    return replace(plan, tasks=tuple(kept), skipped=SkippedFiles(len(sizes), sum(sizes)))


def task_ranges(task: ChangeTask) -> Mapping[tuple[str, ...], ColumnRange]:
    """Return what is known of the columns of the task's condition in its file."""
    return dict(_partition_ranges(task, task.where.fields)) if task.where is not None else {}


def _partition_ranges(task: ChangeTask, fields: pa.Schema) -> Iterator[tuple[tuple[str, ...], ColumnRange]]:
    values = dict(task.partition_values)
    for field in fields:
        name = physical_name(field)
        if name in values:
            try:
                value = partition_scalar(values[name], field, task.table, task.version, task.uri)
            except ChangesUnavailable:  # whoever reads the file raises it
                continue
            if value.is_valid:
                yield (field.name,), ColumnRange(value, value, may_be_null=False)
            else:
                yield (field.name,), ColumnRange(None, None, may_have_values=False)
