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

from dataclasses import replace
from typing import Final, Literal

import pyarrow as pa
from typing_extensions import override

from tailer.errors import SinkRejected
from tailer.events import ChangeBatch, has_variant, is_variant
from tailer.variant import InvalidVariant, json_texts
from tailer.variant.nested import Change, changed, changes_where
from tailer_sinks.encoding.messages import Sent, TopicEncoder

__all__ = ["VariantForm", "VariantsIn", "form_schema", "in_form"]

VariantForm = Literal["encoded", "json"]

JSON: Final = pa.json_(pa.large_string())
# Not the type `VARIANT`, so JSON writes the fields in place of the value.
ENCODED: Final = pa.struct([pa.field(name, pa.large_binary(), nullable=False) for name in ("metadata", "value")])


def form_schema(schema: pa.Schema, form: VariantForm | None) -> pa.Schema:
    """Return the schema of rows of `schema` after `in_form`."""
    if form is None:
        return schema
    return pa.schema([field.with_type(_type(field.type, form)) for field in schema], schema.metadata)


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


class VariantsIn(TopicEncoder):
    """A `TopicEncoder` of rows whose Variants are given to `encoder` in a form. That is made for `form_schema`."""

    sample = None

    def __init__(self, sink: str, form: VariantForm, schema: pa.Schema, encoder: TopicEncoder) -> None:
        self._encoder = encoder
        self._sink = sink
        self._form = form
        self._schema = schema

    @property
    @override
    def pending(self) -> ChangeBatch | None:
        return self._encoder.pending

    @override
    def encode(self, batch: ChangeBatch, now_ms: int) -> Sent:
        if not batch.rows.schema.equals(self._schema):
            raise SinkRejected(self._sink, f"rows of another schema than was announced: {batch.rows.schema.names}")
        return self._encoder.encode(replace(batch, rows=in_form(self._sink, batch.rows, self._form)), now_ms)

    @override
    def flush(self, now_ms: int) -> Sent:
        return self._encoder.flush(now_ms)


def _type(kind: pa.DataType, form: VariantForm) -> pa.DataType:
    return _column(pa.array([], kind), form).type if has_variant(kind) else kind


def _column(column: pa.Array, form: VariantForm) -> pa.Array:
    return changed(column, changes_where(column.type, is_variant, _CHANGES[form]))


def _encoded(column: pa.StructArray) -> pa.Array:
    fields = [column.field(index) for index in range(len(ENCODED))]
    return pa.StructArray.from_arrays(fields, fields=list(ENCODED), mask=column.is_null())


def _texts(column: pa.StructArray) -> pa.Array:
    return pa.ExtensionArray.from_storage(JSON, pa.array(json_texts(column), JSON.storage_type))


_CHANGES: Final[dict[VariantForm, Change]] = {"encoded": _encoded, "json": _texts}
