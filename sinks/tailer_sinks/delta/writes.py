"""The way delta-rs writes: VARIANT columns, in one stream of rows, and with statistics that come out right.

delta-rs creates tables with VARIANT columns, adds such columns, and appends rows whose Variants are structs of two
required fields. It reports that struct as the Arrow type of a VARIANT column, so the types of a table are found in
Delta's own schema. If it merges schemas in an append (`schema_mode`), it replaces VARIANT in the table by the struct.
So rows for a table with VARIANT columns have all its columns, and new columns are added in a commit before.

delta-rs divides the rows of a write among as many streams as the thread that calls it may use processors. Each stream
joins batches to 8,192 rows, which are gigabytes if values are large (invariant 7). No option of delta-rs changes that.

The log gives the least and greatest values of each file, and filtering readers skip files by them. delta-rs takes them
from the Parquet file, and gets some wrong (`tailer_sinks.delta.schema.measured`). So a file has statistics only of
columns that come out right, and none of nested columns.
"""

import json
import os
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import ColumnProperties, Schema, WriterProperties

from tailer.events import VARIANT, has_variant, is_variant
from tailer.variant.nested import changed, changes_where

__all__ = ["delta_schema", "has_variants", "rows_in_one_stream", "rows_schema_of", "writable", "writing"]

_NAME: Final = "variant"
_WRITTEN: Final = pa.struct([pa.field(field.name, pa.binary(), nullable=False) for field in VARIANT])


def has_variants(schema: pa.Schema) -> bool:
    """Return whether there are Variants on any level."""
    return any(has_variant(field.type) for field in schema)


def delta_schema(schema: pa.Schema) -> Schema:
    """Return Delta's schema for a new table with these columns."""
    plain = Schema.from_arrow(pa.schema([field.with_type(_written_type(field.type)) for field in schema]))
    if not has_variants(schema):
        return plain
    return Schema.from_json(json.dumps(_named(json.loads(plain.to_json()), pa.struct(list(schema)))))


def rows_schema_of(schema: Schema) -> pa.Schema:
    """Return the schema of rows of a table with Delta's `schema`."""
    schema_there = pa.schema(schema.to_arrow())
    columns = json.loads(schema.to_json())["fields"]
    return pa.schema(
        [
            field.with_type(_read(column["type"], field.type))
            for field, column in zip(schema_there, columns, strict=True)
        ]
    )


def writable(rows: pa.RecordBatchReader) -> pa.RecordBatchReader:
    """Return rows as delta-rs writes them to a table with VARIANT columns."""
    schema = pa.schema([field.with_type(_written_type(field.type)) for field in rows.schema])
    if not has_variants(rows.schema):
        return rows
    converted = ([_to_delta(column) for column in batch.columns] for batch in rows)
    batches = (pa.RecordBatch.from_arrays(columns, schema=schema) for columns in converted)
    return pa.RecordBatchReader.from_batches(schema, batches)


def _written_type(kind: pa.DataType) -> pa.DataType:
    return _to_delta(pa.array([], kind)).type if has_variant(kind) else kind


def _to_delta(column: pa.Array) -> pa.Array:
    return changed(column, changes_where(column.type, is_variant, _required))


def _required(column: pa.StructArray) -> pa.StructArray:
    """Return Variants as structs of required fields."""
    children = [pc.struct_field(column, field.name).cast(field.type) for field in _WRITTEN]
    return pa.StructArray.from_arrays(children, fields=list(_WRITTEN), mask=column.is_null())


def _named(delta: Any, kind: pa.DataType) -> Any:
    """Return Delta's type with VARIANT in every place where `kind` has a Variant."""
    if is_variant(kind):
        return _NAME
    if not has_variant(kind):
        return delta
    if pa.types.is_struct(kind):
        pairs = zip(delta["fields"], kind, strict=True)
        return {**delta, "fields": [{**column, "type": _named(column["type"], field.type)} for column, field in pairs]}
    if pa.types.is_map(kind):
        key, value = _named(delta["keyType"], kind.key_type), _named(delta["valueType"], kind.item_type)
        return {**delta, "keyType": key, "valueType": value}
    return {**delta, "elementType": _named(delta["elementType"], kind.value_type)}


def _read(delta: Any, kind: pa.DataType) -> pa.DataType:
    """Return `kind` with a Variant in every place where Delta's type has VARIANT."""
    if delta == _NAME:
        return VARIANT
    if isinstance(delta, str):
        return kind
    if delta["type"] == "struct":
        pairs = zip(delta["fields"], kind, strict=True)
        return pa.struct([field.with_type(_read(column["type"], field.type)) for column, field in pairs])
    if delta["type"] == "map":
        key, value = _read(delta["keyType"], kind.key_type), _read(delta["valueType"], kind.item_type)
        return pa.map_(kind.key_field.with_type(key), kind.item_field.with_type(value))
    return pa.list_(kind.value_field.with_type(_read(delta["elementType"], kind.value_type)))


def writing(measured: Iterable[str], group_rows: int | None = None) -> WriterProperties:
    """Return the properties of files that have statistics of the columns `measured` alone.

    `group_rows`: the rows of a row group, which delta-rs keeps in memory; None: as many as it likes.
    """
    return WriterProperties(
        max_row_group_size=group_rows,
        compression="SNAPPY",
        default_column_properties=ColumnProperties(statistics_enabled="NONE"),
        column_properties={name: ColumnProperties(statistics_enabled="PAGE") for name in measured},
    )


@contextmanager
def rows_in_one_stream() -> Iterator[None]:
    """Let this thread use one processor in the block; other threads of delta-rs still use all.

    Without effect where the system cannot do that.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    with suppress(OSError):
        os.sched_setaffinity(0, {random.choice(sorted(allowed))})
    try:
        yield
    finally:
        with suppress(OSError):
            os.sched_setaffinity(0, allowed)
