"""The columns in which change rows are compared: all columns that the table has in the compared versions.

Rows of different versions may have different columns. They are equal if they are equal in every column that either row
has, where a missing column counts as null. So rows that differ in a column that is dropped later, or replaced by
another column with the same name, are not equal.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import pyarrow as pa

from tailer.plan import ROW_TRACKING, ChangePlan
from tailer.schema.char_types import char_lengths
from tailer.schema.columns import column_id, dropped_column, restated, restates
from tailer.schema.identity import identified, united

__all__ = ["ComparedColumns"]


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
        found = identified(map(_own, chain) if own else chain)
        every = united(found) if len(found) > 1 else found[-1]
        whole = all(dropped_column(schema, found[-1]) is None for schema in found)
        return cls(tuple(found[index] for index in indices), found[-1], every, whole)

    def as_of_task(self, index: int, schema: pa.Schema) -> pa.Schema:
        """Return `schema` with the columns as a task's rows have them; `schema` itself where that is the same."""
        return restated(self.by_task[index], schema)

    def compared(self, index: int) -> pa.Schema:
        """Return every column as a task's rows have them; `every` itself where that is the same."""
        key = id(self.by_task[index])
        if key not in self._known:
            self._known[key] = self.as_of_task(index, self.every)
        return self._known[key]

    def comparable(self) -> list[int]:
        """Return the tasks whose rows can be converted to every column."""
        every = pa.struct(list(self.every))
        known = {id(schema): restates(pa.struct(list(schema)), every) for schema in self.by_task}
        return [index for index, schema in enumerate(self.by_task) if known[id(schema)]]

    def pads_alike(self, index: int) -> bool:
        """Return whether CHARs in a task's rows are as long as in the last version, or not CHARs in both."""
        known = {column_id(column): char_lengths(column) for column in self.latest}
        columns = [(column_id(column), char_lengths(column)) for column in self.by_task[index]]
        return all(known.get(name, lengths) == lengths for name, lengths in columns)


def _append_schemas(chain: list[pa.Schema], plan: ChangePlan) -> list[int]:
    """Append a plan's schemas to `chain`, after earlier versions; return the index in `chain` of each task's schema."""
    of_tasks = [task.compared or task.schema for task in plan.tasks]
    schemas = {id(schema): schema for schema in of_tasks}
    begin = max(len(chain) - 1, 0)
    found: dict[int, int] = {}
    for key, schema in schemas.items():
        if not _same(schema, plan.schema):
            known = (place for place in range(begin, len(chain)) if _same(schema, chain[place]))
            found[key] = next(known, len(chain))
            if found[key] == len(chain):
                chain.append(schema)
    if not chain or not _same(chain[-1], plan.schema):
        chain.append(plan.schema)
    return [found.get(id(schema), len(chain) - 1) for schema in of_tasks]


def _same(one: pa.Schema, other: pa.Schema) -> bool:
    return one is other or bool(one.equals(other, check_metadata=True))


def _own(schema: pa.Schema) -> pa.Schema:
    return pa.schema([column for column in schema if ROW_TRACKING not in (column.metadata or {})])
