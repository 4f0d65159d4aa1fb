"""Rows of Iceberg tables in a form that can be compared, whoever has read them.

Values have the field ids of their columns on every level, and nulls in structs are left out: so rows of before a change
of the columns are those of after it, as far as they have the same fields.
"""

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

from tailer.events import is_variant
from tailer.schema.columns import FIELD_ID
from tailer.variant.value import Variant

__all__ = ["DELETED", "Value", "plain", "restated", "row_of"]

Value = Any
DELETED: Final = ("delete", "update_preimage")


def number_of(column: pa.Field) -> str:
    """Return the field id of a column."""
    return str((column.metadata or {})[FIELD_ID].decode())


def plain(value: Any, kind: pa.DataType) -> Value:
    """Return a value, ours or Spark's, in a form that equal values share."""
    if value is None:
        return None
    if is_variant(kind):
        return _variant(value)
    if pa.types.is_struct(kind):
        values = ((number_of(child), plain(value[child.name], child.type)) for child in kind)
        return frozenset((number, each) for number, each in values if each is not None)
    if pa.types.is_list(kind):
        return tuple(plain(each, kind.value_type) for each in value)
    if pa.types.is_map(kind):
        return frozenset((plain(key, kind.key_type), plain(each, kind.item_type)) for key, each in value)
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).replace(tzinfo=None)
    if isinstance(value, UUID):
        return value.bytes
    if isinstance(value, str) and pa.types.is_fixed_size_binary(kind):
        return UUID(value).bytes
    return value


def _variant(value: Any) -> Value:
    if isinstance(value, dict):
        return repr(Variant(value["metadata"], value["value"]).to_python())
    return repr(value[1])


def restated(value: Value, kind: pa.DataType | pa.Schema) -> Value:
    """Return a value of before as one of a type of now: fields that are no longer there are left out."""
    if value is None or (isinstance(kind, pa.DataType) and is_variant(kind)):
        return value
    if isinstance(kind, pa.Schema) or pa.types.is_struct(kind):
        kinds = {number_of(child): child.type for child in kind}
        fields = ((number, restated(each, kinds[number])) for number, each in value if number in kinds)
        return frozenset(fields)
    if pa.types.is_list(kind):
        return tuple(restated(each, kind.value_type) for each in value)
    if pa.types.is_map(kind):
        return frozenset((key, restated(each, kind.item_type)) for key, each in value)
    return value


def row_of(values: Mapping[str, Any], schema: pa.Schema) -> Value:
    """Return a row of ours, or of Spark."""
    row = ((number_of(column), plain(values[column.name], column.type)) for column in schema)
    return frozenset((number, value) for number, value in row if value is not None)
