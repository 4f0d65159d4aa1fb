"""Delta schemas and partition values as Arrow's (PROTOCOL.md, "Schema Serialization Format", "Partition Value
Serialization", "Column Mapping", "Type Widening").

The Arrow schema of a table has logical names in table order. Where the table maps columns, each field's metadata says
what the column is called in files (`PHYSICAL_NAME`) and, in id mode, its Parquet field id, on every level of nesting.
That is also what tells columns apart over time: the one of a physical name is the same column, whatever it is called.
Where columns lose their physical names, or a physical name its column, `tailer.delta.identity` says which is which.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from tailer.delta.features import type_refusal
from tailer.delta.years import days_since_epoch, micros_since_epoch
from tailer.errors import DataCorrupt, LogCorrupt, UnsupportedFeature
from tailer.events import METADATA_FIELDS

__all__ = [
    "COLUMN_ID",
    "FIELD_ID",
    "PHYSICAL_NAME",
    "arrow_schema",
    "column_id",
    "dropped_column",
    "is_absent",
    "partition_scalar",
    "physical_name",
    "restated",
    "restates",
    "widens",
]

PHYSICAL_NAME: Final = b"delta.columnMapping.physicalName"
FIELD_ID: Final = b"PARQUET:field_id"
COLUMN_ID: Final = b"tailer.column"  # what `tailer.delta.identity` found of a field
_MAPPING_ID: Final = "delta.columnMapping.id"
_TYPE_CHANGES: Final = "delta.typeChanges"

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


def arrow_schema(
    schema_string: str, mapping_mode: str, table: str, version: int, maps_columns: bool = True
) -> pa.Schema:
    """The Arrow schema of a `schemaString`.

    `mapping_mode` is `none`, `name` or `id`. `maps_columns`: whether the protocol supports column mapping; where it
    does not, the mode must not be honoured, and columns are found by their names.

    Raises `UnsupportedFeature` for a type or a change of type we do not know and for columns called as those that
    change rows have besides, `LogCorrupt` for text that is not a schema, and where files would have other names for
    columns if the mode were honoured after all: readers disagree on such a table.
    """
    parser = _Parser(mapping_mode if maps_columns else "none", mapping_mode != "none", table, version)
    try:
        schema = pa.schema(parser.fields(json.loads(schema_string)))
    except _NOT_A_SCHEMA as error:
        reason = f"not a schema: {error!r}"
        if isinstance(error, RecursionError):
            reason = "not a schema that can be read: it is nested too deeply"
        elif isinstance(error, UnicodeEncodeError):
            reason = f"not a schema: {error.object!r} has half of a surrogate pair, which is no character"
        raise LogCorrupt(table, "metaData.schemaString", reason, version) from error
    for name in schema.names:
        if name.lower() in _TAKEN:
            raise UnsupportedFeature(table, f"column {name}", version, "change rows have a column of that name")
    return schema


def dropped_column(before: pa.Schema, after: pa.Schema) -> str | None:
    """A column, or a field of one, that `before` has and `after` has not, whatever it is called there."""
    kept = _columns(pa.struct(list(after)))
    return next((name for path, name in _columns(pa.struct(list(before))).items() if path not in kept), None)


def column_id(field: pa.Field) -> str:
    """The field's identity over time: as `tailer.delta.identity` found it, else its physical name."""
    told = (field.metadata or {}).get(COLUMN_ID)
    return physical_name(field) if told is None else str(told.decode())


def is_absent(field: pa.Field) -> bool:
    """Whether `restated` put the field there, for rows that did not have it."""
    return physical_name(field).startswith(_ABSENT)


def physical_name(field: pa.Field) -> str:
    """What the column is called in data files and in partition values."""
    mapped = (field.metadata or {}).get(PHYSICAL_NAME)
    return field.name if mapped is None else str(mapped.decode())


def restated(before: pa.Schema, after: pa.Schema) -> pa.Schema:
    """`after`, for reading rows of the table when its columns were `before`: those it did not have then are null.

    A file may have values for them, from a time when the table had them before. Columns are read as the table had them
    then, by their physical names and field ids. The result is `after` itself where that is the same.
    """
    fields = [_restated(old, field) for old, field in _by_identity(before, after)]
    found = pa.schema(fields)
    return after if found.equals(after, check_metadata=True) else found


def restates(before: pa.DataType, after: pa.DataType) -> bool:
    """Whether every value of `before` has a meaning as `after`: columns, on every level, stay, widen, come or go.

    The rows of a schema are a struct of its fields.
    """
    if pa.types.is_struct(before) and pa.types.is_struct(after):
        pairs = _by_identity(before, after)
        return all(old is None or restates(old.type, field.type) for old, field in pairs)
    if pa.types.is_list(before) and pa.types.is_list(after):
        return restates(before.value_type, after.value_type)
    if pa.types.is_map(before) and pa.types.is_map(after):
        return restates(before.key_type, after.key_type) and restates(before.item_type, after.item_type)
    return before.equals(after) or pa.types.is_null(before) or widens(before, after)


def widens(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Whether a table may change a column from `narrow` to `wide` and keep its files (PROTOCOL.md, "Type Widening").

    Every value of the one is then a value of the other. Nested types change in their parts, not themselves.
    """
    if pa.types.is_signed_integer(narrow):
        if pa.types.is_decimal(wide):
            return bool(wide.scale >= 0 and wide.precision - wide.scale >= (20 if narrow.bit_width == 64 else 10))
        if pa.types.is_float64(wide):
            return bool(narrow.bit_width < 64)
        return bool(pa.types.is_signed_integer(wide) and narrow.bit_width < wide.bit_width)
    if pa.types.is_decimal(narrow) and pa.types.is_decimal(wide):
        scale = wide.scale - narrow.scale
        return bool(0 <= scale <= wide.precision - narrow.precision)
    dates = pa.types.is_date32(narrow) and pa.types.is_timestamp(wide) and wide.tz is None
    return bool(dates or (pa.types.is_float32(narrow) and pa.types.is_float64(wide)))


_ABSENT: Final = "tailer.absent: "  # begins a physical name that no file has
_NO_ID: Final = b"-1"


def _by_identity(before: Iterable[pa.Field], after: Iterable[pa.Field]) -> Iterator[tuple[pa.Field | None, pa.Field]]:
    """Each field of `after` with the one of `before` that it is, if any."""
    old = {column_id(each): each for each in before if not is_absent(each)}
    return ((old.get(column_id(each)), each) for each in after)


def _restated(before: pa.Field | None, after: pa.Field) -> pa.Field:
    metadata = dict(after.metadata or {})
    if before is None:
        metadata |= {PHYSICAL_NAME: f"{_ABSENT}{after.name}".encode()}
        return after.with_metadata(metadata | ({FIELD_ID: _NO_ID} if FIELD_ID in metadata else {}))
    stored, number = physical_name(before), (before.metadata or {}).get(FIELD_ID)
    if stored != after.name or PHYSICAL_NAME in metadata:
        metadata[PHYSICAL_NAME] = stored.encode()
    metadata.pop(FIELD_ID, None)
    metadata |= {} if number is None else {FIELD_ID: number}
    return after.with_type(_restated_type(before.type, after.type)).with_metadata(metadata or None)


def _restated_type(before: pa.DataType, after: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(before) and pa.types.is_struct(after):
        return pa.struct([_restated(old, field) for old, field in _by_identity(before, after)])
    if pa.types.is_list(before) and pa.types.is_list(after):
        return pa.list_(after.value_field.with_type(_restated_type(before.value_type, after.value_type)))
    if pa.types.is_map(before) and pa.types.is_map(after):
        value = after.item_field.with_type(_restated_type(before.item_type, after.item_type))
        return pa.map_(_restated_type(before.key_type, after.key_type), value)
    return after


_TAKEN: Final = frozenset(field.name for field in METADATA_FIELDS)
# What taking apart the wrong JSON raises.
_NOT_A_SCHEMA: Final = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


def _columns(kind: pa.DataType, above: tuple[str, ...] = (), shown: str = "") -> dict[tuple[str, ...], str]:
    """All fields on all levels: the path of identities that tells each, and what to call it in a message."""
    found: dict[tuple[str, ...], str] = {}
    for field in (kind.field(index) for index in range(kind.num_fields)):
        if not is_absent(field):
            path, name = (*above, column_id(field)), f"{shown}.{field.name}".lstrip(".")
            found |= {path: name, **_columns(field.type, path, name)}
    return found


@dataclass(frozen=True, slots=True)
class _Parser:
    """Takes a schema's JSON apart. `renames`: whether the table says that it maps columns, though it may not."""

    mode: str
    renames: bool
    table: str
    version: int

    def fields(self, struct: dict[str, Any]) -> list[pa.Field]:
        """The fields of a struct, or the columns of the table."""
        fields = [self.field(field) for field in struct["fields"]]
        twice = [name for name, count in Counter(field.name for field in fields).items() if count > 1]
        if twice:
            raise ValueError(f"two columns are called {twice[0]!r}")
        for key, what in ((PHYSICAL_NAME, "physical name"), (FIELD_ID, "field id")):
            # Both would have the values of one column of the files.
            keys = Counter(field.metadata[key].decode() for field in fields if key in (field.metadata or {}))
            for value, count in keys.items():
                if count > 1:
                    raise ValueError(f"two columns have the {what} {value!r}")
        return fields

    def field(self, field: dict[str, Any]) -> pa.Field:
        """One field, with what column mapping says of it."""
        name, keys = field["name"], field.get("metadata") or {}
        metadata: dict[bytes, bytes] = {}
        if self.mode != "none":
            metadata[PHYSICAL_NAME] = keys[PHYSICAL_NAME.decode()].encode()
            if self.mode == "id":
                metadata[FIELD_ID] = str(keys[_MAPPING_ID]).encode()
        elif self.renames and keys.get(PHYSICAL_NAME.decode(), name) != name:
            reason = f"column {name} has another name in files, but the protocol does not support column mapping"
            raise LogCorrupt(self.table, "metaData", reason, self.version)
        for change in keys.get(_TYPE_CHANGES) or ():
            self.check_change(name, change)
        return pa.field(name, self.type(field["type"]), field.get("nullable", True), metadata or None)

    def check_change(self, name: str, change: dict[str, Any]) -> None:
        """Refuse a change of type that the protocol does not have: what old files hold would be anybody's guess."""
        before, after = self.type(change["fromType"]), self.type(change["toType"])
        if not (before.equals(after) or widens(before, after)):
            feature = f"column {name} changed from {change['fromType']} to {change['toType']}"
            raise UnsupportedFeature(self.table, feature, self.version, "the protocol has no such change of type")

    def type(self, kind: Any) -> pa.DataType:
        """The Arrow type of a column type."""
        if isinstance(kind, str):
            decimal = _DECIMAL.fullmatch(kind)
            if decimal:
                return pa.decimal128(int(decimal[1]), int(decimal[2]))
            if kind == "decimal":
                return pa.decimal128(10, 0)
            if kind in _PRIMITIVES:
                return _PRIMITIVES[kind]
        elif kind["type"] == "struct":
            return pa.struct(self.fields(kind))
        elif kind["type"] == "array":
            return pa.list_(pa.field("element", self.type(kind["elementType"]), kind.get("containsNull", True)))
        elif kind["type"] == "map":
            value = pa.field("value", self.type(kind["valueType"]), kind.get("valueContainsNull", True))
            return pa.map_(self.type(kind["keyType"]), value)
        else:
            kind = kind["type"]
        raise UnsupportedFeature(self.table, f"column type {kind}", self.version, type_refusal(str(kind)))


def partition_scalar(text: str | None, kind: pa.DataType, table: str, version: int, path: str) -> pa.Scalar:
    """A partition column's value. Null and the empty string both mean null.

    Timestamps are as the protocol has them, without a zone (taken as UTC) or ISO-8601 with one. Years may have a sign
    and more than four digits. Raises `DataCorrupt` naming `path` for text that is not a value of `kind`.
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
        found = _distant(text, kind)
        if found is not None:
            return found
        raise DataCorrupt(table, version, path, f"partition value {text!r} is not a {kind}: {error}") from error


def _timestamp(text: str, kind: pa.TimestampType) -> pa.Scalar:
    zoned = text.endswith("Z") or re.search(r"[+-]\d\d:?\d\d$", text) is not None
    parsed = pa.array([text]).cast(pa.timestamp("us", tz="UTC") if zoned else pa.timestamp("us"))
    return parsed.cast(pa.int64()).cast(kind)[0]


def _distant(text: str, kind: pa.DataType) -> pa.Scalar | None:
    """A date or timestamp in a year that Arrow does not read; None where the text is none, or out of the type's range.

    A timestamp's text may be a date: the column's type was widened.
    """
    if pa.types.is_date32(kind):
        value, limit, storage = days_since_epoch(text), 2**31, pa.int32()
    elif pa.types.is_timestamp(kind):
        value, limit, storage = micros_since_epoch(text), 2**63, pa.int64()
    else:
        return None
    return None if value is None or not -limit <= value < limit else pa.array([value], storage).view(kind)[0]
