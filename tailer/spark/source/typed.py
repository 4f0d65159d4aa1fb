"""Typed rows for Spark: the columns of the table with Spark's types, then those of Delta's change feed.

A Spark query has one schema from beginning to end, so it is fixed when the table is loaded: the *read schema*. Rows of
older and newer versions are converted to it as far as possible (`TypedRows.restate`). Columns are matched by their
identity over time: one that a version does not have yet is null, a narrower type is cast up, a renamed column has its
new name. If that would lose values, nothing is delivered and the query ends.

The batches have exactly the Arrow schema that Spark derives from its own, nullability included: Spark hands Arrow's
buffers to the JVM and checks only the first batch. Every column is nullable there, on every level, as in all that Spark
reads.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tailer.errors import SchemaChanged
from tailer.events import ChangeBatch, is_struct
from tailer.plan import ChangePlan, output_schema
from tailer.schema.columns import dropped_column, physical_name, restated, restates, widens
from tailer.schema.identity import is_mapped
from tailer.spark.source.spark_types import spark_column, spark_schema

__all__ = ["ReadSchemaLeft", "TypedRows", "typed_schema"]


@dataclass(eq=False)
class ReadSchemaLeft(SchemaChanged):
    """Rows of a version do not fit into the columns that a query reads."""

    sentence: ClassVar[str] = "{table}: version {version} does not fit the columns that are read: {reason}"
    next_step: ClassVar[str] = (
        'Read with the option schema = "envelope", whose columns never change; or load the table again and restart '
        "the query, to read with its current columns; or give the option columns, for some that stay as they are."
    )


def typed_schema(columns: pa.Schema) -> StructType:
    """Return the Spark schema of change rows of a table with `columns`: these, then those of Delta's change feed.

    `columns`: as in `tailer.plan.ChangeTask.schema`. All are nullable, on every level except keys of maps.
    """
    return spark_schema(pa.schema([field.with_nullable(True) for field in output_schema(columns)]))


class TypedRows:
    """The conversion of change rows to the read schema `columns`. Survives pickle.

    `columns`: as in `tailer.plan.ChangeTask.schema`. `chosen`: whether the user has chosen them, so that other columns
    of the table are not missed. `since`: the version with these columns; None: a version after all delivered ones.
    """

    def __init__(self, columns: pa.Schema, chosen: bool = False, since: int | None = None) -> None:
        self.columns = columns
        self._chosen = chosen
        self._since = since
        self._schema = _spark_arrow(columns)
        self._newest: _Restated | None = None

    def __getstate__(self) -> dict[str, object]:
        """Return the state for executors, which restate nothing."""
        return {**self.__dict__, "_newest": None}

    def restate(self, plan: ChangePlan) -> ChangePlan:
        """Return the plan with the read schema as its schema.

        Raises `ReadSchemaLeft` if it has rows with a column that the read schema lacks, or with a type that cannot be
        read as the one there, or if column mapping was removed between the two. Rows that are deleted by the same
        version that drops a column are delivered without it, but compared in all columns.
        """
        schemas = {id(task.schema): task.schema for task in plan.tasks}
        ours = {key: self._restated(plan, schema) for key, schema in schemas.items()}
        pairs = ((task, ours[id(task.schema)]) for task in plan.tasks)
        tasks = tuple(replace(task, schema=own.schema, compared=own.compared) for task, own in pairs)
        return replace(plan, schema=self.columns, tasks=tasks)

    def moves_away(self, before: pa.Schema | None, after: pa.Schema) -> tuple[str, ...]:
        """Describe the changes of a version that lead away from the read schema, one sentence each.

        `before`, `after`: the table's schemas before it (None: unknown) and at it, not restated. A version leads away
        if it drops or renames a column that is read, gives it a type that does not fit, or adds one that is not read.
        """
        then = None if before is None else pa.struct(list(before))
        read, now = pa.struct(list(self.columns)), pa.struct(self._read_of(after))
        return tuple(_columns_away(read, then, now, ""))

    def batches(self, batch: ChangeBatch) -> pa.RecordBatch:
        """Convert a batch of a restated plan to exactly the Arrow schema that Spark has for `typed_schema`.

        Shares memory with the batch where types agree; elsewhere values are cast without loss.
        """
        pairs = zip(map(spark_column, batch.rows.columns), self._schema.types, strict=True)
        columns = [column if column.type.equals(kind) else column.cast(kind) for column, kind in pairs]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def check_names(self, plan: ChangePlan, then: pa.Schema) -> None:
        """Raise `ReadSchemaLeft` if the columns `then` cannot be matched with those that are read.

        A table that removes column mapping gives all columns other names, whatever these meant before.
        """
        later = self._since is not None and plan.version > self._since
        older, newer = (self.columns, then) if later else (then, self.columns)
        if is_mapped(older) and not is_mapped(newer):
            raise ReadSchemaLeft(plan.table, plan.version, "column mapping was removed between it and these")

    def _restated(self, plan: ChangePlan, then: pa.Schema) -> "_Restated":
        self.check_names(plan, then)
        newest = self._newest
        # Most versions of a table share their schema objects.
        if newest is None or newest.then is not then or newest.now is not plan.schema:
            # A column that this version drops cannot be missed: those it keeps are in its own schema.
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
            schema = restated(then, self.columns)
            lost = not self._chosen and dropped_column(then, self.columns) is not None
            self._newest = newest = _Restated(then, plan.schema, schema, then if lost else None)
        return newest

    def _read_of(self, schema: pa.Schema) -> list[pa.Field]:
        """Return the columns of a version that must not be missing."""
        if not self._chosen:
            return list(schema)
        chosen = {physical_name(field) for field in self.columns}
        return [field for field in schema if physical_name(field) in chosen]


@dataclass(frozen=True, slots=True)
class _Restated:
    """The `schema` in which rows of `then` are read, in a version whose schema is `now`.

    `compared`: the schema in which they are compared where a column would be lost that nobody chose to leave out.
    """

    then: pa.Schema
    now: pa.Schema
    schema: pa.Schema
    compared: pa.Schema | None


@lru_cache(maxsize=16)
def _spark_arrow(columns: pa.Schema) -> pa.Schema:
    return to_arrow_schema(typed_schema(columns), timezone="UTC")


def _by_identity(kind: pa.DataType | None) -> Mapping[str, pa.Field]:
    """Map the fields of a struct by their identity over time; empty if it is not a struct."""
    return {physical_name(field): field for field in kind} if kind is not None and is_struct(kind) else {}


def _columns_away(read: pa.StructType, before: pa.DataType | None, after: pa.StructType, above: str) -> Iterator[str]:
    """Yield the changes to the fields of a struct that lead away from the fields that are read.

    `above`: the prefix of names. `before`: None if the struct did not exist, or is unknown.
    """
    wanted, then, now = _by_identity(read), _by_identity(before), _by_identity(after)
    for key, field in wanted.items():
        name, old, new = above + field.name, then.get(key), now.get(key)
        if new is not None:
            if old is not None and old.name == field.name != new.name:
                yield f"column {name} was renamed to {above}{new.name}"
            yield from _types_away(field.type, old.type if old is not None else None, new.type, name)
        elif old is not None:
            yield f"column {name} was dropped"
    for key, field in now.items():
        if key not in wanted and key not in then:
            yield f"column {above}{field.name} {field.type} was added"


def _types_away(read: pa.DataType, before: pa.DataType | None, after: pa.DataType, name: str) -> Iterator[str]:
    if is_struct(read) and is_struct(after):
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
