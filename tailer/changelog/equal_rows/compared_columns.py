"""The columns in which change rows are compared: all columns that the table has in the compared versions.

Rows of different versions may have different columns. They are equal if they are equal in every column that either row
has, where a missing column counts as null. So rows that differ in a column that is dropped later, or replaced by
another column with the same name, are not equal.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import pyarrow as pa

from tailer.files.partition_values import partition_scalar
from tailer.plan import ROW_TRACKING, ChangePlan, ChangeTask
from tailer.schema.columns import column_id, dropped_column, physical_name, restated, restates
from tailer.schema.identity import identified, united
from tailer.schema.text_types import char_lengths

__all__ = ["ComparedColumns", "by_partition"]


@dataclass(frozen=True, slots=True)
class ComparedColumns:
    """Columns with identities: `by_task` of each task's rows, `latest` of the last version, and `every` column.

    `whole`: whether the last version has every column.
    """

    by_task: tuple[pa.Schema, ...]
    latest: pa.Schema
    every: pa.Schema
    whole: bool
    _known: dict[int, pa.Schema] = field(default_factory=dict)

    @classmethod
    def of(cls, plans: Sequence[ChangePlan], own: bool = False) -> Self:
        """Collect the columns of consecutive plans; `own`: without the columns of row tracking."""
        chain: list[pa.Schema] = []
        indices: list[int] = []
        for plan in plans:
            indices += _append_schemas(chain, plan)
        if own:
            chain = [
                pa.schema([column for column in schema if ROW_TRACKING not in (column.metadata or {})])
                for schema in chain
            ]
        schemas = identified(chain)
        every = united(schemas) if len(schemas) > 1 else schemas[-1]
        whole = all(dropped_column(schema, schemas[-1]) is None for schema in schemas)
        return cls(tuple(schemas[index] for index in indices), schemas[-1], every, whole)

    def as_of_task(self, index: int, schema: pa.Schema) -> pa.Schema:
        """Return `schema` with the columns as a task's rows have them; `schema` itself where that is the same."""
        return self.compared(index) if schema is self.every else restated(self.by_task[index], schema)

    def compared(self, index: int) -> pa.Schema:
        """Return every column as a task's rows have them; `every` itself where that is the same."""
        key = id(self.by_task[index])
        if key not in self._known:
            self._known[key] = restated(self.by_task[index], self.every)
        return self._known[key]

    def comparable(self) -> list[int]:
        """Return the tasks whose rows can be converted to every column."""
        every = pa.struct(list(self.every))
        restated = {id(schema): restates(pa.struct(list(schema)), every) for schema in self.by_task}
        return [index for index, schema in enumerate(self.by_task) if restated[id(schema)]]

    def pads_alike(self, index: int) -> bool:
        """Return whether CHARs in a task's rows are as long as in the last version, or not CHARs in both."""
        latest_lengths = {column_id(column): char_lengths(column) for column in self.latest}
        columns = [(column_id(column), char_lengths(column)) for column in self.by_task[index]]
        return all(latest_lengths.get(name, lengths) == lengths for name, lengths in columns)


def by_partition(tasks: Sequence[ChangeTask], schemas: Sequence[pa.Schema]) -> list[list[int]]:
    """Group the indices of tasks by partition, in order; one group for a table without partitions.

    Rows of different partitions are never equal, as their partition columns differ. Values of these are text in the log
    (PROTOCOL.md, "Partition Value Serialization"). One value may have several texts, so parsed values are compared.

    `schemas`: for each task, the compared columns as its files have them, in the same order for all tasks. Partition
    columns that are not compared are ignored. Raises `ChangesUnavailable` for a value that is not of its column's type.
    """
    partition_values = [dict(task.partition_values) for task in tasks]
    columns = _partition_columns(partition_values, schemas)
    values: dict[tuple[int, tuple[str | None, ...]], tuple[Any, ...]] = {}  # many files have the same texts
    groups: dict[tuple[Any, ...], list[int]] = {}
    for index, (task, schema) in enumerate(zip(tasks, schemas, strict=True)):
        fields = [schema.field(column) for column in columns]
        texts = tuple(partition_values[index][physical_name(field)] for field in fields)
        key = id(schema), texts  # a CHAR may have been a STRING in another schema
        if key not in values:
            pairs = zip(texts, fields, strict=True)
            values[key] = tuple(
                partition_scalar(text, field, task.table, task.version, task.uri) for text, field in pairs
            )
        groups.setdefault(values[key], []).append(index)
    return list(groups.values())


def _partition_columns(partition_values: Sequence[Mapping[str, str | None]], schemas: Sequence[pa.Schema]) -> list[int]:
    """Return the numbers of the columns that are partition columns in every file, except floating point columns."""
    fixed = set(range(len(schemas[0]))) if schemas else set()
    numbers: dict[tuple[int, frozenset[str]], set[int]] = {}
    for values, schema in zip(partition_values, schemas, strict=True):
        key = (id(schema), frozenset(values))
        if key not in numbers:
            numbers[key] = {number for number, field in enumerate(schema) if physical_name(field) in values}
        fixed &= numbers[key]
    return [number for number in sorted(fixed) if not pa.types.is_floating(schemas[0].field(number).type)]


def _append_schemas(chain: list[pa.Schema], plan: ChangePlan) -> list[int]:
    """Append a plan's schemas to `chain`, after earlier versions; return the index in `chain` of each task's schema."""
    of_tasks = [task.compared or task.schema for task in plan.tasks]
    schemas = {id(schema): schema for schema in of_tasks}
    begin = max(len(chain) - 1, 0)
    places: dict[int, int] = {}
    for key, schema in schemas.items():
        if not _same(schema, plan.schema):
            equal_places = (place for place in range(begin, len(chain)) if _same(schema, chain[place]))
            places[key] = next(equal_places, len(chain))
            if places[key] == len(chain):
                chain.append(schema)
    if not chain or not _same(chain[-1], plan.schema):
        chain.append(plan.schema)
    return [places.get(id(schema), len(chain) - 1) for schema in of_tasks]


def _same(one: pa.Schema, other: pa.Schema) -> bool:
    return one is other or bool(one.equals(other, check_metadata=True))
