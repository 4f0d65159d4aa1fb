"""Delta schemas as Arrow schemas (PROTOCOL.md, "Schema Serialization Format", "Column Mapping", "Type Widening")."""

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from tailer.errors import LogCorrupt, UnsupportedFeature
from tailer.events import VARIANT
from tailer.formats.delta.features import type_refusal
from tailer.schema.columns import FIELD_ID, PHYSICAL_NAME, widens
from tailer.schema.text_types import collations_from, with_chars

__all__ = ["arrow_schema"]


_MAPPING_ID: Final = "delta.columnMapping.id"
_SQL_TYPE: Final = "__CHAR_VARCHAR_TYPE_STRING"  # of a top-level column with CHAR or VARCHAR, on whatever level
_COLLATIONS: Final = "__COLLATIONS"  # of a field whose texts, also in arrays and maps, have another order than bytes
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
    "variant": VARIANT,
}
_DECIMAL: Final = re.compile(r"decimal\(\s*(\d+)\s*,\s*(-?\d+)\s*\)")
# Exceptions that decoding malformed schema JSON raises.
_NOT_A_SCHEMA: Final = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


def arrow_schema(
    schema_string: str | None, mapping_mode: str, table: str, version: int, maps_columns: bool = True
) -> pa.Schema:
    """Convert a `schemaString` to an Arrow schema; None, as in Spark, to one without columns.

    `mapping_mode` is `none`, `name` or `id`. `maps_columns`: whether the protocol supports column mapping; if not, the
    mode must be ignored, and columns are found by their names.

    Raises `UnsupportedFeature` for an unknown type or type change. Raises `LogCorrupt` for text that is not a schema,
    and where the mode must be ignored but physical names differ from column names: readers disagree on such a table.
    """
    if schema_string is None:
        return pa.schema([])
    parser = _Parser(mapping_mode if maps_columns else "none", mapping_mode != "none", table, version)
    try:
        columns = json.loads(schema_string)
        texts = [(column.get("metadata") or {}).get(_SQL_TYPE) for column in columns["fields"]]
        schema = pa.schema(map(with_chars, parser.fields(columns), texts))
    except _NOT_A_SCHEMA as error:
        reason = f"not a schema: {error!r}"
        if isinstance(error, RecursionError):
            reason = "not a schema: it is nested too deeply"
        elif isinstance(error, UnicodeEncodeError):
            reason = f"not a schema: {error.object!r} contains an unpaired surrogate, which is not a character"
        raise LogCorrupt(table, "metaData.schemaString", reason, version) from error
    return schema


@dataclass(frozen=True, slots=True)
class _Parser:
    """Converts schema JSON to Arrow fields. `renames`: whether the table has a mapping mode, supported or not."""

    mode: str
    renames: bool
    table: str
    version: int

    def fields(self, struct: dict[str, Any]) -> list[pa.Field]:
        """Convert the fields of a struct, or the columns of the table."""
        fields = [self.field(field) for field in struct["fields"]]
        duplicates = [name for name, count in Counter(field.name for field in fields).items() if count > 1]
        if duplicates:
            raise ValueError(f"two columns are called {duplicates[0]!r}")
        for key, what in ((PHYSICAL_NAME, "physical name"), (FIELD_ID, "field id")):
            # Both columns would read the values of the same file column.
            keys = Counter(field.metadata[key].decode() for field in fields if key in (field.metadata or {}))
            for value, count in keys.items():
                if count > 1:
                    raise ValueError(f"two columns have the {what} {value!r}")
        return fields

    def field(self, field: dict[str, Any]) -> pa.Field:
        """Convert one field, with its column mapping and its collations as metadata."""
        name, keys = field["name"], field.get("metadata") or {}
        metadata = collations_from(keys.get(_COLLATIONS) or {})
        if self.mode != "none":
            metadata[PHYSICAL_NAME] = keys[PHYSICAL_NAME.decode()].encode()
            if self.mode == "id":
                metadata[FIELD_ID] = str(keys[_MAPPING_ID]).encode()
        elif self.renames and keys.get(PHYSICAL_NAME.decode(), name) != name:
            reason = f"column {name} has another physical name, but the protocol does not support column mapping"
            raise LogCorrupt(self.table, "metaData", reason, self.version)
        for change in keys.get(_TYPE_CHANGES) or ():
            self.check_change(name, change)
        return pa.field(name, self.type(field["type"]), field.get("nullable", True), metadata or None)

    def check_change(self, name: str, change: dict[str, Any]) -> None:
        """Refuse a type change that the protocol does not define: the types in old files would be a guess."""
        before, after = self.type(change["fromType"]), self.type(change["toType"])
        if not (before.equals(after) or widens(before, after)):
            feature = f"column {name} changed from {change['fromType']} to {change['toType']}"
            raise UnsupportedFeature(self.table, feature, self.version, "the protocol does not define this type change")

    def type(self, kind: Any) -> pa.DataType:
        """Convert a column type to an Arrow type."""
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
