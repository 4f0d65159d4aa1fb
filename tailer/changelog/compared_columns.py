"""The columns in which change rows are compared: all that their table has in the versions they are from.

Rows of different versions have different columns. They are equal if they are in every column that either has: one that
a row does not have is null to it. So a row that differs from another in a column that is dropped meanwhile, or replaced
by one of the same name, is not taken for that other row.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import pyarrow as pa

from tailer.plan import ROW_TRACKING, ChangePlan
from tailer.schema.columns import dropped_column, restated, restates
from tailer.schema.identity import identified, united

__all__ = ["ComparedColumns"]


@dataclass(frozen=True, slots=True)
class ComparedColumns:
    """Identified columns: those of the rows of each task, those of the last version, and all that there are.

    `whole`: whether the last version has them all.
    """

    then: tuple[pa.Schema, ...]
    latest: pa.Schema
    every: pa.Schema
    whole: bool
    _known: dict[int, pa.Schema] = field(default_factory=dict)

    @classmethod
    def of(cls, plans: Sequence[ChangePlan], own: bool = False) -> Self:
        """Those of consecutive plans; `own`: without what row tracking says of rows."""
        chain: list[pa.Schema] = []
        places: list[int] = []
        for plan in plans:
            places += _places(chain, plan)
        found = identified(map(_own, chain) if own else chain)
        every = united(found) if len(found) > 1 else found[-1]
        whole = all(dropped_column(schema, found[-1]) is None for schema in found)
        return cls(tuple(found[place] for place in places), found[-1], every, whole)

    def as_then(self, index: int, schema: pa.Schema) -> pa.Schema:
        """`schema` as the rows of a task have its columns; `schema` itself where that is the same."""
        return restated(self.then[index], schema)

    def compared(self, index: int) -> pa.Schema:
        """All columns as the rows of a task have them; `every` itself where that is the same."""
        key = id(self.then[index])
        if key not in self._known:
            self._known[key] = self.as_then(index, self.every)
        return self._known[key]

    def comparable(self) -> list[int]:
        """The tasks whose rows have a meaning in all columns."""
        every = pa.struct(list(self.every))
        known = {id(then): restates(pa.struct(list(then)), every) for then in self.then}
        return [index for index, then in enumerate(self.then) if known[id(then)]]


def _places(chain: list[pa.Schema], plan: ChangePlan) -> list[int]:
    """Put the schemas of a plan behind those of the versions before it; returns where that of each task is."""
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
