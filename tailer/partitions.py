"""Which tasks are about the same partition of their table. Rows of different ones are never equal: its columns differ.

Values of partition columns are text in the log (PROTOCOL.md, "Partition Value Serialization"), and one value may be
written in several ways: what is compared are the values.
"""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tailer.delta.schema import partition_scalar, physical_name
from tailer.plan import ChangeTask

__all__ = ["by_partition"]


def by_partition(tasks: Sequence[ChangeTask], schema: pa.Schema) -> list[list[int]]:
    """The indices of tasks, those of one partition together, each in order; all together where there is no partition.

    `schema`: the columns by which rows are compared: a partition column that is not among them tells nothing apart.
    Raises `DataCorrupt` for a value that is none of its type.
    """
    columns = _columns(tasks, schema)
    values: dict[tuple[str | None, ...], tuple[Any, ...]] = {}  # the texts of many files are the same
    found: dict[tuple[Any, ...], list[int]] = {}
    for index, task in enumerate(tasks):
        told = dict(task.partition_values)
        texts = tuple(told[physical_name(field)] for field in columns)
        if texts not in values:
            values[texts] = _values(task, texts, columns)
        found.setdefault(values[texts], []).append(index)
    return list(found.values())


def _columns(tasks: Sequence[ChangeTask], schema: pa.Schema) -> list[pa.Field]:
    """The columns that are compared and have one value in each of the files, the same in whatever way written."""
    names = [{name for name, _ in task.partition_values} for task in tasks]
    fixed = set.intersection(*names) if names else set()
    fields = [field for field in schema if physical_name(field) in fixed]
    return [field for field in fields if not pa.types.is_floating(field.type)]


def _values(task: ChangeTask, texts: Sequence[str | None], columns: Sequence[pa.Field]) -> tuple[Any, ...]:
    pairs = zip(texts, columns, strict=True)
    return tuple(partition_scalar(text, field.type, task.table, task.version, task.uri) for text, field in pairs)
