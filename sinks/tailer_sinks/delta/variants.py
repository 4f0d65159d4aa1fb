"""VARIANT columns of a target table, as delta-rs takes them.

delta-rs creates tables with VARIANT columns, adds such columns, and appends rows whose Variants are structs of two
required fields. It reports that struct as the Arrow type of a VARIANT column, so the types of a table are found in
Delta's own schema.

If it merges schemas in an append (`schema_mode`), it replaces VARIANT in the table by the struct. So rows for a table
with VARIANT columns have all its columns, and new columns are added in a commit before.
"""

import json
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import Schema

from tailer.events import VARIANT, has_variant, is_variant
from tailer.variant.nested import changed, changes_where

__all__ = ["delta_schema", "has_variants", "rows_schema_of", "writable"]

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
    return pa.RecordBatchReader.from_batches(schema, _convert(rows, schema)) if has_variants(rows.schema) else rows


def _convert(rows: pa.RecordBatchReader, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for batch in rows:
        yield pa.RecordBatch.from_arrays([_to_delta(column) for column in batch.columns], schema=schema)


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
