"""Typed rows for Spark: the columns of the table as Spark's own, with those of Delta's change feed behind them.

A Spark query has one schema from beginning to end, so that is fixed when the table is loaded: the *read schema*. The
rows of older and newer versions are given in it as far as they have a meaning there (`TypedRows.restate`), columns
matched by what tells them apart over time: one that a version does not have yet is null, a narrower type is cast up, a
renamed column has its new name. Where that would leave out values, nothing is given and the query ends.

What Spark gets is in the schema it derives from its own, to the last nullability: it hands Arrow's buffers over to the
JVM and checks that of the first batch only. Every column may be null there, on every level, as in all that Spark reads.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from tailer.errors import SchemaChanged
from tailer.events import ChangeBatch
from tailer.plan import ChangePlan, output_schema
from tailer.schema.columns import dropped_column, physical_name, restated, restates, widens
from tailer.schema.identity import is_mapped

__all__ = ["ReadSchemaLeft", "TypedRows", "typed_schema"]


@dataclass(eq=False)
class ReadSchemaLeft(SchemaChanged):
    """The rows of a version do not fit into the columns that a query reads."""

    sentence: ClassVar[str] = "{table}: version {version} does not fit the columns that are read: {reason}"
    next_step: ClassVar[str] = (
        'Read with the option schema = "envelope", whose columns never change; or load the table anew and start the '
        "query again, to read with the columns that it has now; or give the option columns, for some that stay as they "
        "are."
    )


def typed_schema(columns: pa.Schema) -> StructType:
    """The Spark schema of change rows of a table with `columns`: these, then those of Delta's change feed.

    `columns`: as in `tailer.plan.ChangeTask.schema`. All may be null, on every level but the keys of maps.
    """
    return from_arrow_schema(pa.schema([field.with_nullable(True) for field in output_schema(columns)]))


class TypedRows:
    """Change rows in the read schema `columns` (as in `tailer.plan.ChangeTask.schema`). Survives pickle.

    `chosen`: whether these are the columns somebody asked for: what else the table has is left out and not missed.
    `since`: the version whose columns they are; None: one behind all that are given.
    """

    def __init__(self, columns: pa.Schema, chosen: bool = False, since: int | None = None) -> None:
        self.columns = columns
        self._chosen = chosen
        self._since = since
        self._schema = _spark_arrow(columns)

    def restate(self, plan: ChangePlan) -> ChangePlan:
        """The same plan for rows in the read schema, which is its schema then.

        Raises `ReadSchemaLeft` where it has rows with a column that the read schema lacks, or with one of a type that
        is not read as the one there; and where the table stopped to map its columns between the two. Rows that are
        deleted by the very version that drops a column are given without, but compared with others in all columns.
        """
        schemas = {id(task.schema): task.schema for task in plan.tasks}
        made = {key: self._restated(plan, schema) for key, schema in schemas.items()}
        compared = {key: schema if self._loses(schema) else None for key, schema in schemas.items()}
        tasks = tuple(
            replace(task, schema=made[id(task.schema)], compared=compared[id(task.schema)]) for task in plan.tasks
        )
        return replace(plan, schema=self.columns, tasks=tasks)

    def moves_away(self, before: pa.Schema | None, after: pa.Schema) -> tuple[str, ...]:
        """What a version does to the columns that leads away from the read schema, a sentence each.

        `before`, `after`: the table's schemas before it (None: not known) and at it, not restated. It leads away where
        it drops or renames a column that is read, gives it a type that does not fit, or adds one that is not read.
        """
        then = None if before is None else pa.struct(list(before))
        read, now = pa.struct(list(self.columns)), pa.struct(self._read_of(after))
        return tuple(_columns_away(read, then, now, ""))

    def batches(self, batch: ChangeBatch) -> pa.RecordBatch:
        """The rows of a batch of a restated plan, in exactly the Arrow schema that Spark has for `typed_schema`.

        Shares memory with the batch wherever types agree; where they do not, values are cast and none is changed.
        """
        pairs = zip(batch.rows.columns, self._schema.types, strict=True)
        columns = [column if column.type.equals(kind) else column.cast(kind) for column, kind in pairs]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def check_names(self, plan: ChangePlan, then: pa.Schema) -> None:
        """Raise `ReadSchemaLeft` where nothing tells which of the columns `then` are those read.

        A table that stops to map its columns gives other names to all of them, whatever these meant before.
        """
        behind = self._since is not None and plan.version > self._since
        older, newer = (self.columns, then) if behind else (then, self.columns)
        if is_mapped(older) and not is_mapped(newer):
            raise ReadSchemaLeft(plan.table, plan.version, "column mapping was removed between it and these")

    def _loses(self, then: pa.Schema) -> bool:
        """Whether rows lose a column that they have that nobody chose to leave out."""
        return not self._chosen and dropped_column(then, self.columns) is not None

    def _restated(self, plan: ChangePlan, then: pa.Schema) -> pa.Schema:
        self.check_names(plan, then)
        # What this very version drops cannot be missed: what it keeps is in its own schema.
        kept = then if dropped_column(then, plan.schema) is None else plan.schema
        missed = dropped_column(pa.schema(self._read_of(kept)), self.columns)
        if missed is not None:
            reason = f"it has a column {missed}, which is not among them"
            raise ReadSchemaLeft(plan.table, plan.version, reason)
        had = _by_identity(pa.struct(list(then)))
        for field in self.columns:
            old = had.get(physical_name(field))
            if old is not None and not restates(old.type, field.type):
                reason = f"its column {old.name} is {old.type}, which does not read as {field.type}"
                raise ReadSchemaLeft(plan.table, plan.version, reason)
        return restated(then, self.columns)

    def _read_of(self, schema: pa.Schema) -> list[pa.Field]:
        """The columns of a version that must not be missed."""
        if not self._chosen:
            return list(schema)
        chosen = {physical_name(field) for field in self.columns}
        return [field for field in schema if physical_name(field) in chosen]


@lru_cache(maxsize=16)
def _spark_arrow(columns: pa.Schema) -> pa.Schema:
    return to_arrow_schema(typed_schema(columns), timezone="UTC")


def _by_identity(kind: pa.DataType | None) -> Mapping[str, pa.Field]:
    """The fields of a struct by what tells them apart over time; none of what is not a struct."""
    return {physical_name(field): field for field in kind} if kind is not None and pa.types.is_struct(kind) else {}


def _columns_away(read: pa.StructType, before: pa.DataType | None, after: pa.StructType, above: str) -> Iterator[str]:
    """What is done to the fields of a struct that leads away from those that are read. `above`: what names begin with.

    `before`: None where it was not there, or is not known.
    """
    known, then, now = _by_identity(read), _by_identity(before), _by_identity(after)
    for key, field in known.items():
        name, old, new = above + field.name, then.get(key), now.get(key)
        if new is not None:
            if old is not None and old.name == field.name != new.name:
                yield f"column {name} was renamed to {above}{new.name}"
            yield from _types_away(field.type, old.type if old is not None else None, new.type, name)
        elif old is not None:
            yield f"column {name} was dropped"
    for key, field in now.items():
        if key not in known and key not in then:
            yield f"column {above}{field.name} {field.type} was added"


def _types_away(read: pa.DataType, before: pa.DataType | None, after: pa.DataType, name: str) -> Iterator[str]:
    if pa.types.is_struct(read) and pa.types.is_struct(after):
        yield from _columns_away(read, before, after, f"{name}.")
    elif pa.types.is_list(read) and pa.types.is_list(after):
        element = before.value_type if before is not None and pa.types.is_list(before) else None
        yield from _types_away(read.value_type, element, after.value_type, f"{name}.element")
    elif pa.types.is_map(read) and pa.types.is_map(after):
        key, value = (
            (before.key_type, before.item_type) if before is not None and pa.types.is_map(before) else (None, None)
        )
        yield from _types_away(read.key_type, key, after.key_type, f"{name}.key")
        yield from _types_away(read.item_type, value, after.item_type, f"{name}.value")
    elif not restates(after, read) and (before is None or restates(before, read)):
        was = read if before is None else before
        how = "was widened" if widens(was, after) else "changed its type"
        yield f"column {name} {how} from {was} to {after}"
