"""Which tasks are about the same partition of their table. Rows of different ones are never equal: its columns differ.

Values of partition columns are text in the log (PROTOCOL.md, "Partition Value Serialization"), and one value may be
written in several ways: what is compared are the values.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from tailer.delta.partition_values import partition_scalar
from tailer.plan import ChangeTask
from tailer.schema.columns import physical_name

__all__ = ["by_partition"]


def by_partition(tasks: Sequence[ChangeTask], schemas: Sequence[pa.Schema]) -> list[list[int]]:
    """The indices of tasks, those of one partition together, each in order; all together where there is no partition.

    `schemas`: of each task, the columns by which its rows are compared, in one order, as its files have them: a
    partition column that is not among them tells nothing apart. Raises `DataCorrupt` for a value that is none of its
    type.
    """
    told = [dict(task.partition_values) for task in tasks]
    columns = _columns(told, schemas)
    values: dict[tuple[str | None, ...], tuple[Any, ...]] = {}  # the texts of many files are the same
    found: dict[tuple[Any, ...], list[int]] = {}
    for index, (task, schema) in enumerate(zip(tasks, schemas, strict=True)):
        fields = [schema.field(column) for column in columns]
        texts = tuple(told[index][physical_name(field)] for field in fields)
        if texts not in values:
            values[texts] = _values(task, texts, fields)
        found.setdefault(values[texts], []).append(index)
    return list(found.values())


def _columns(told: Sequence[Mapping[str, str | None]], schemas: Sequence[pa.Schema]) -> list[int]:
    """The columns, by number, that have one value in each of the files, the same in whatever way written."""
    fixed = set(range(len(schemas[0]))) if schemas else set()
    known: dict[tuple[int, frozenset[str]], set[int]] = {}
    for values, schema in zip(told, schemas, strict=True):
        key = (id(schema), frozenset(values))
        if key not in known:
            known[key] = {number for number, field in enumerate(schema) if physical_name(field) in values}
        fixed &= known[key]
    return [number for number in sorted(fixed) if not pa.types.is_floating(schemas[0].field(number).type)]


def _values(task: ChangeTask, texts: Sequence[str | None], columns: Sequence[pa.Field]) -> tuple[Any, ...]:
    pairs = zip(texts, columns, strict=True)
    return tuple(partition_scalar(text, field.type, task.table, task.version, task.uri) for text, field in pairs)
