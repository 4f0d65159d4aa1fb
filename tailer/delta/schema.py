"""Delta schemas and partition values as Arrow's (PROTOCOL.md, "Schema Serialization Format", "Partition Value
Serialization", "Column Mapping").

The Arrow schema of a table has logical names in table order. Where the table maps columns, each field's metadata says
what the column is called in files (`PHYSICAL_NAME`) and, in id mode, its Parquet field id, on every level of nesting.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from tailer.errors import DataCorrupt, LogCorrupt, UnsupportedFeature
from tailer.events import METADATA_FIELDS

__all__ = ["FIELD_ID", "PHYSICAL_NAME", "arrow_schema", "dropped_column", "partition_scalar", "physical_name"]

PHYSICAL_NAME: Final = b"delta.columnMapping.physicalName"
FIELD_ID: Final = b"PARQUET:field_id"
_MAPPING_ID: Final = "delta.columnMapping.id"

_PRIMITIVES: Final[Mapping[str, pa.DataType]] = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "short": pa.int16(),
    "byte": pa.int8(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "void": pa.null(),
    "null": pa.null(),
}
_DECIMAL: Final = re.compile(r"decimal\(\s*(\d+)\s*,\s*(-?\d+)\s*\)")


def arrow_schema(schema_string: str, mapping_mode: str, table: str, version: int) -> pa.Schema:
    """The Arrow schema of a `schemaString`. `mapping_mode` is `none`, `name` or `id`.

    Raises `UnsupportedFeature` for a type we do not know and for columns called as those that change rows have besides,
    `LogCorrupt` for text that is not a schema.
    """
    try:
        schema = pa.schema(_fields(json.loads(schema_string), mapping_mode, table, version))
    except _NOT_A_SCHEMA as error:
        raise LogCorrupt(table, "metaData.schemaString", f"not a schema: {error!r}", version) from error
    for name in schema.names:
        if name.lower() in _TAKEN:
            raise UnsupportedFeature(table, f"column {name}", version, "change rows have a column of that name")
    return schema


def dropped_column(before: pa.Schema, after: pa.Schema) -> str | None:
    """A column, or a field of one, that `before` has and `after` has not, whatever it is called there."""
    kept = _columns(pa.struct(list(after)))
    return next((name for path, name in _columns(pa.struct(list(before))).items() if path not in kept), None)


def physical_name(field: pa.Field) -> str:
    """What the column is called in data files and in partition values."""
    mapped = (field.metadata or {}).get(PHYSICAL_NAME)
    return field.name if mapped is None else str(mapped.decode())


_TAKEN: Final = frozenset(field.name for field in METADATA_FIELDS)
# What taking apart the wrong JSON raises.
_NOT_A_SCHEMA: Final = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


def _columns(kind: pa.DataType, above: tuple[str, ...] = (), shown: str = "") -> dict[tuple[str, ...], str]:
    """All fields on all levels: the path of physical names that tells each, and what to call it in a message."""
    found: dict[tuple[str, ...], str] = {}
    for field in (kind.field(index) for index in range(kind.num_fields)):
        path, name = (*above, physical_name(field)), f"{shown}.{field.name}".lstrip(".")
        found |= {path: name, **_columns(field.type, path, name)}
    return found


def _fields(struct: dict[str, Any], mode: str, table: str, version: int) -> list[pa.Field]:
    fields = [_field(field, mode, table, version) for field in struct["fields"]]
    twice = [name for name, count in Counter(field.name for field in fields).items() if count > 1]
    if twice:
        raise ValueError(f"two columns are called {twice[0]!r}")
    return fields


def _field(field: dict[str, Any], mode: str, table: str, version: int) -> pa.Field:
    metadata: dict[bytes, bytes] = {}
    if mode != "none":
        metadata[PHYSICAL_NAME] = field["metadata"][PHYSICAL_NAME.decode()].encode()
        if mode == "id":
            metadata[FIELD_ID] = str(field["metadata"][_MAPPING_ID]).encode()
    kind = _type(field["type"], mode, table, version)
    return pa.field(field["name"], kind, field.get("nullable", True), metadata or None)


def _type(kind: Any, mode: str, table: str, version: int) -> pa.DataType:
    if isinstance(kind, str):
        decimal = _DECIMAL.fullmatch(kind)
        if decimal:
            return pa.decimal128(int(decimal[1]), int(decimal[2]))
        if kind == "decimal":
            return pa.decimal128(10, 0)
        if kind in _PRIMITIVES:
            return _PRIMITIVES[kind]
    elif kind["type"] == "struct":
        return pa.struct(_fields(kind, mode, table, version))
    elif kind["type"] == "array":
        element = _type(kind["elementType"], mode, table, version)
        return pa.list_(pa.field("element", element, kind.get("containsNull", True)))
    elif kind["type"] == "map":
        key = _type(kind["keyType"], mode, table, version)
        value = _type(kind["valueType"], mode, table, version)
        return pa.map_(key, pa.field("value", value, kind.get("valueContainsNull", True)))
    else:
        kind = kind["type"]
    raise UnsupportedFeature(table, f"column type {kind}", version, "lake-tailer cannot read it")


def partition_scalar(text: str | None, kind: pa.DataType, table: str, version: int, path: str) -> pa.Scalar:
    """A partition column's value. Null and the empty string both mean null.

    Timestamps are as the protocol has them, without a zone (taken as UTC) or ISO-8601 with one.
    Raises `DataCorrupt` naming `path` for text that is not a value of `kind`.
    """
    if text is None or text == "":
        return pa.scalar(None, kind)
    if pa.types.is_binary(kind):
        # Spark writes a binary partition value as if its bytes were UTF-8 text.
        return pa.scalar(text.encode(), kind)
    try:
        if pa.types.is_timestamp(kind):
            return _timestamp(text, kind)
        return pa.array([text]).cast(kind)[0]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DataCorrupt(table, version, path, f"partition value {text!r} is not a {kind}: {error}") from error


def _timestamp(text: str, kind: pa.TimestampType) -> pa.Scalar:
    zoned = text.endswith("Z") or re.search(r"[+-]\d\d:?\d\d$", text) is not None
    parsed = pa.array([text]).cast(pa.timestamp("us", tz="UTC") if zoned else pa.timestamp("us"))
    return parsed.cast(pa.int64()).cast(kind)[0]
