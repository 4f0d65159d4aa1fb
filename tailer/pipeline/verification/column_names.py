"""The names of a source's columns at a later version, as a history has them: renamed ones are renamed in all states."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass

import pyarrow as pa

from tailer.pipeline.policy import Policy
from tailer.plan import ChangePlan
from tailer.schema.changes import former_names
from tailer.schema.columns import METADATA_NAMES
from tailer.table_log import TableLog

__all__ = ["ColumnNames", "delivered_columns", "first_page", "later_names"]


@dataclass(frozen=True, slots=True)
class ColumnNames:
    """The columns of a version, each with its name in the mirror. `added`: those that came later, and are there."""

    names: Mapping[str, str]
    added: frozenset[str] = frozenset()

    def lower(self) -> "ColumnNames":
        """Return the columns, with the names in lower case that the mirror has."""
        names = {column: name.lower() for column, name in self.names.items()}
        return ColumnNames(names, frozenset(map(str.lower, self.added)))


async def first_page(table: TableLog, version: int) -> ChangePlan:
    """Return the first plan of all rows of a version."""
    async with aclosing(table.snapshot_plans(version)) as pages:
        return await anext(pages)


def delivered_columns(policy: Policy, plan: ChangePlan) -> pa.Schema:
    """Return the columns of the rows of a plan, without their metadata."""
    return pa.schema([column for column in policy.shape(plan).schema if column.name not in METADATA_NAMES])


async def later_names(table: TableLog, policy: Policy, version: int, schema: pa.Schema, later: int) -> ColumnNames:
    """Return the name at version `later` of each column of `schema`, that of `version`: the last one if it is dropped.

    Every commit between the two is read if a column was dropped there.
    """
    newest = delivered_columns(policy, await first_page(table, later))
    names, dropped, before = _renamed(schema, newest), set[str](), schema
    added = frozenset(newest.names).difference(names.values())
    if all(name in names for name in schema.names):
        return ColumnNames(names, added)
    names = {name: name for name in schema.names}
    async with aclosing(_later_schemas(table, policy, version, later)) as schemas:
        async for after in schemas:
            renamed = _renamed(before, after)
            dropped |= {column for column, name in names.items() if name not in renamed}
            names |= {column: renamed[name] for column, name in names.items() if column not in dropped}
            before = after
    return ColumnNames(names, added)


def _renamed(before: pa.Schema, after: pa.Schema) -> dict[str, str]:
    return {old: new for new, old in former_names(before, after).items()}


async def _later_schemas(table: TableLog, policy: Policy, version: int, later: int) -> AsyncGenerator[pa.Schema, None]:
    """Yield the schemas of the versions after `version`, up to `later`."""
    await table.seek(version + 1)
    while version < later and (plan := await table.next_plan()) is not None:
        version = plan.version
        if (schema := policy.shape_schema(plan.schema, table.uri, version)) is not None:
            yield schema
