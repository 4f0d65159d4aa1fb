"""A query's view of a table: its columns, the form of its rows, and the versions that it can follow.

A view has two sides. On the driver it restricts plans to the wanted columns (`tailer.spark.source.plan_cache.View`). On
executors it converts the rows of splits to batches for Spark. Both are one object, small enough to travel.

`columns`: those wanted; empty: all.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, Protocol

import pyarrow as pa
from pyspark.sql.types import LongType, StructField, StructType
from typing_extensions import override

from tailer.errors import ConfigError
from tailer.events import ChangeBatch, SchemaChange
from tailer.plan import ChangePlan, add_row_ids, select_columns
from tailer.read.shaping import with_condition
from tailer.schema.columns import physical_name
from tailer.schema.identity import is_mapped
from tailer.schema.variant_paths import with_paths, with_same_paths
from tailer.spark.source.envelope import ENVELOPE, EnvelopeRows
from tailer.spark.source.plan_cache import View
from tailer.spark.source.typed import ReadSchemaLeft, TypedRows, typed_schema

__all__ = ["POSITIONS", "EnvelopeView", "SparkView", "TypedView"]

POSITIONS: Final = StructType([StructField("_task", LongType()), StructField("_row", LongType())])
"""The place of a row in its version: the number of its task, and its physical position in the task's file."""


class SparkView(View, Protocol):
    """A view with both sides."""

    @property
    def spark_schema(self) -> StructType: ...

    def rows(self, batch: ChangeBatch) -> Iterator[pa.RecordBatch]:
        """Convert change rows for Spark, on an executor."""
        ...

    def change(self, event: SchemaChange) -> Iterator[pa.RecordBatch]:
        """Convert a schema change, if the form has a place for it, on an executor."""
        ...


class TypedView(SparkView):
    """Rows with the columns of `table`, a schema of the table.

    `since`: the version with that schema. `follows`: whether the view ends at the first later version that changes it.
    `positions`: whether rows have their place in the version, too (`POSITIONS`). `where`: the condition that rows must
    fulfil; its names are those in `table`.
    """

    def __init__(
        self,
        table: pa.Schema,
        columns: Sequence[str],
        *,
        row_ids: bool = False,
        since: int,
        follows: bool = False,
        positions: bool = False,
        where: str | None = None,
    ) -> None:
        self.positions: Final = positions
        self._chosen = bool(columns)
        self._row_ids = row_ids
        self._since = since
        self._follows = follows
        self._first: int | None = None  # the first version with rows
        self._where = where
        self._table = table
        table = with_paths(table, columns)
        self._read = select_columns(table, tuple(columns) or tuple(table.names))
        self._shown = _with_ids(self._read, row_ids)
        self._own = TypedRows(self._read, self._chosen, since)

    @property
    def columns(self) -> pa.Schema:
        """The table's columns in the rows, as in `tailer.plan.ChangeTask.schema`."""
        return self._shown

    @property
    @override
    def spark_schema(self) -> StructType:
        return StructType([*typed_schema(self._shown), *(POSITIONS if self.positions else ())])

    @override
    def plan(self, plan: ChangePlan, before: pa.Schema | None) -> ChangePlan:
        """Raise also `SchemaChanged`."""
        own = self._own
        self._check_removal(plan, before)
        plan.check_change_files()
        plan = plan if self._where is None else with_condition(plan, self._where, self._table)
        plan, before = plan.with_schemas(self._with_paths), None if before is None else self._with_paths(before)
        later = self._follows and plan.version > self._since
        if later:
            own.check_names(plan, plan.schema)
        if later and (changes := own.moves_away(before, plan.schema)):
            raise ReadSchemaLeft(plan.table, plan.version, "; ".join(changes))
        read, there = {physical_name(field) for field in self._read}, map(physical_name, plan.schema)
        if self._chosen and plan.tasks and not plan.is_bare and read.isdisjoint(there):
            reason = f"it has none of the columns {', '.join(self._read.names)}, as they are now"
            raise ReadSchemaLeft(plan.table, plan.version, reason)
        plan = own.restate(plan)
        plan.check_reserved()
        return plan.with_row_ids() if self._row_ids else plan

    def _with_paths(self, schema: pa.Schema) -> pa.Schema:
        return with_same_paths(schema, self._read)

    def _check_removal(self, plan: ChangePlan, before: pa.Schema | None) -> None:
        """Raise `SchemaChanged` if rows from before and after a removal of column mapping would be read.

        The same name may belong to another column before it.
        """
        removed = before is not None and is_mapped(before) and not is_mapped(plan.schema)
        if removed and plan.version <= self._since and self._first is not None and self._first < plan.version:
            reason = f"it removes column mapping, and a name may be another column's in version {self._first}"
            raise ReadSchemaLeft(plan.table, plan.version, reason)
        if plan.tasks and (self._first is None or plan.version < self._first):
            self._first = plan.version

    @override
    def schema(self, schema: pa.Schema) -> pa.Schema:
        return self._shown

    @override
    def rows(self, batch: ChangeBatch) -> Iterator[pa.RecordBatch]:
        rows = TypedRows(self._shown).batches(batch)
        if self.positions:
            task = pa.repeat(pa.scalar(batch.task, pa.int64()), len(batch))
            for field, column in zip(POSITIONS, (task, batch.row_index), strict=True):
                rows = rows.append_column(field.name, column)
        yield rows

    @override
    def change(self, event: SchemaChange) -> Iterator[pa.RecordBatch]:
        """Yield nothing: the columns show the change."""
        return iter(())


class EnvelopeView(SparkView):
    """Rows as JSON in an envelope that is the same for every version.

    `table`: the table's columns when the query was written. `columns` are names of that time: they stay chosen whatever
    their names at a version, and rows lack a column that their version lacks. `since`: the version of that time.
    `where`: as in `TypedView`.
    """

    spark_schema = ENVELOPE

    def __init__(
        self,
        table: pa.Schema,
        columns: Sequence[str],
        *,
        row_ids: bool = False,
        since: int,
        where: str | None = None,
    ) -> None:
        self._where = where
        self._table = table = with_paths(table, columns)
        self._chosen = tuple((physical_name(table.field(column)), column) for column in columns)
        self._row_ids = row_ids
        self._since = since

    @override
    def plan(self, plan: ChangePlan, before: pa.Schema | None) -> ChangePlan:
        """Raise `ConfigError` if the chosen columns are no longer the same."""
        plan.check_change_files()
        plan = plan if self._where is None else with_condition(plan, self._where, self._table)
        plan = plan.with_schemas(self._with_paths)
        schemas = {id(schema): schema for schema in (plan.schema, *(task.schema for task in plan.tasks))}
        for schema in schemas.values():
            self._check_chosen(plan, schema)
        columns = {key: self._columns(schema) for key, schema in schemas.items()}
        tasks = tuple(replace(task, schema=columns[id(task.schema)]) for task in plan.tasks)
        plan = replace(plan, schema=columns[id(plan.schema)], tasks=tasks)
        plan.check_reserved()
        return plan.with_row_ids() if self._row_ids else plan

    def _check_chosen(self, plan: ChangePlan, schema: pa.Schema) -> None:
        """Raise `ConfigError` if a chosen name belongs to another column than its physical name.

        After a removal of column mapping, names cannot be matched at all.
        """
        older, newer = (self._table, schema) if plan.version > self._since else (schema, self._table)
        if is_mapped(older) and not is_mapped(newer):
            stored = {physical_name(field): field.name for field in schema}
            for key, name in self._chosen:
                if stored.get(key, name) != name:
                    reason = f"names {name!r}, and column mapping was removed between version {plan.version} and now"
                    remedy = "Leave columns out; or read the versions before and after the removal with two queries."
                    raise ConfigError("columns", reason, remedy)

    @override
    def schema(self, schema: pa.Schema) -> pa.Schema:
        return _with_ids(self._columns(self._with_paths(schema)), self._row_ids)

    @override
    def rows(self, batch: ChangeBatch) -> Iterator[pa.RecordBatch]:
        yield from EnvelopeRows().batches(batch)

    @override
    def change(self, event: SchemaChange) -> Iterator[pa.RecordBatch]:
        yield EnvelopeRows().change(event)

    def _with_paths(self, schema: pa.Schema) -> pa.Schema:
        same = with_same_paths(schema, self._table)
        return with_paths(same, [name for key, name in self._chosen if key not in map(physical_name, same)])

    def _columns(self, schema: pa.Schema) -> pa.Schema:
        """Return the chosen columns, in the order of the choice."""
        if not self._chosen:
            return schema
        by_identity = {physical_name(field): field for field in schema}
        by_name = {field.name: field for field in schema}
        # A replaced table may have columns with the same names that are not the same columns.
        fields = [by_identity.get(key) or by_name.get(name) for key, name in self._chosen]
        return pa.schema([field for field in fields if field is not None])


def _with_ids(schema: pa.Schema, row_ids: bool) -> pa.Schema:
    return add_row_ids(schema) if row_ids else schema
