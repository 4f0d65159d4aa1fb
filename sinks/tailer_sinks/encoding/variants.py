"""The forms that Variants have in messages and files by option.

A change row has a Variant as `tailer.events.VARIANT`. JSON writes its value; everything else writes a struct of the two
binary fields. The option `variant` of a sink chooses a form for all:

=========  =====================================================  ==========================================
option     with types: Avro, Arrow, Parquet, embedded schemas     JSON without schemas
=========  =====================================================  ==========================================
`encoded`  a struct of the binary fields `metadata` and `value`   the same, in base64
`json`     the text of its JSON value, marked as JSON             its JSON value
=========  =====================================================  ==========================================

Arrow's own type marks JSON, so a Parquet file has its logical type JSON. Avro and embedded schemas name it
`io.debezium.data.Json`, as Debezium does.
"""

from typing import Final, Literal

import pyarrow as pa

from tailer.errors import SinkRejected
from tailer.events import has_variant, is_variant
from tailer.variant import InvalidVariant, json_texts
from tailer.variant.nested import Change, changed, changes_where

__all__ = ["VariantForm", "form_schema", "in_form"]

VariantForm = Literal["encoded", "json"]

JSON: Final = pa.json_(pa.large_string())
# Not the type `VARIANT`, so JSON writes the fields in place of the value.
ENCODED: Final = pa.struct([pa.field(name, pa.large_binary(), nullable=False) for name in ("metadata", "value")])


def form_schema(schema: pa.Schema, form: VariantForm | None) -> pa.Schema:
    """Return the schema of rows of `schema` after `in_form`."""
    if form is None:
        return schema
    kinds = [_column(pa.array([], kind), form).type if has_variant(kind) else kind for kind in schema.types]
    return pa.schema([field.with_type(kind) for field, kind in zip(schema, kinds, strict=True)], schema.metadata)


def in_form(sink: str, rows: pa.RecordBatch, form: VariantForm | None) -> pa.RecordBatch:
    """Return rows whose Variants, on any level, have this form; None: as they are.

    Raises `SinkRejected` for a Variant that is not sound.
    """
    if form is None or not any(has_variant(kind) for kind in rows.schema.types):
        return rows
    schema = form_schema(rows.schema, form)
    columns: list[pa.Array] = []
    for field, column in zip(rows.schema, rows.columns, strict=True):
        try:
            columns.append(_column(column, form))
        except InvalidVariant as error:
            reason = f"column {field.name} holds a Variant that is not sound: {error}"
            raise SinkRejected(sink, reason, 'Leave the column out, or set variant = "encoded".') from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(column: pa.Array, form: VariantForm) -> pa.Array:
    return changed(column, changes_where(column.type, is_variant, _CHANGES[form]))


def _encoded(column: pa.StructArray) -> pa.Array:
    fields = [column.field(index) for index in range(len(ENCODED))]
    return pa.StructArray.from_arrays(fields, fields=list(ENCODED), mask=column.is_null())


_CHANGES: Final[dict[VariantForm, Change]] = {
    "encoded": _encoded,
    "json": lambda column: pa.ExtensionArray.from_storage(JSON, pa.array(json_texts(column), JSON.storage_type)),
}
