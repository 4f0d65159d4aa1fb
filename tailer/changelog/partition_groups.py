"""Grouping of tasks by partition. Rows of different partitions are never equal: their partition columns differ.

Values of partition columns are text in the log (PROTOCOL.md, "Partition Value Serialization"). One value may have
several texts, so the parsed values are compared.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from tailer.files.partition_values import partition_scalar
from tailer.plan import ChangeTask
from tailer.schema.columns import physical_name

__all__ = ["by_partition"]


def by_partition(tasks: Sequence[ChangeTask], schemas: Sequence[pa.Schema]) -> list[list[int]]:
    """Group the indices of tasks by partition, in order; one group for a table without partitions.

    `schemas`: for each task, the compared columns as its files have them, in the same order for all tasks. Partition
    columns that are not compared are ignored. Raises `ChangesUnavailable` for a value that is not of its column's type.
    """
    partition_values = [dict(task.partition_values) for task in tasks]
    columns = _columns(partition_values, schemas)
    values: dict[tuple[int, tuple[str | None, ...]], tuple[Any, ...]] = {}  # many files have the same texts
    found: dict[tuple[Any, ...], list[int]] = {}
    for index, (task, schema) in enumerate(zip(tasks, schemas, strict=True)):
        fields = [schema.field(column) for column in columns]
        texts = tuple(partition_values[index][physical_name(field)] for field in fields)
        key = id(schema), texts  # a CHAR may have been a STRING in another schema
        if key not in values:
            pairs = zip(texts, fields, strict=True)
            values[key] = tuple(
                partition_scalar(text, field, task.table, task.version, task.uri) for text, field in pairs
            )
        found.setdefault(values[key], []).append(index)
    return list(found.values())


def _columns(partition_values: Sequence[Mapping[str, str | None]], schemas: Sequence[pa.Schema]) -> list[int]:
    """Return the numbers of the columns that are partition columns in every file, except floating point columns."""
    fixed = set(range(len(schemas[0]))) if schemas else set()
    known: dict[tuple[int, frozenset[str]], set[int]] = {}
    for values, schema in zip(partition_values, schemas, strict=True):
        key = (id(schema), frozenset(values))
        if key not in known:
            known[key] = {number for number, field in enumerate(schema) if physical_name(field) in values}
        fixed &= known[key]
    return [number for number in sorted(fixed) if not pa.types.is_floating(schemas[0].field(number).type)]
