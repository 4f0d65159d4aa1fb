"""A schema as an Arrow schema, with field ids on every level (Iceberg specification, "Schemas and Data Types").

The physical name of a field is its id: names may change, and may come back for another field. Files are read by field
ids, and where they have none, by the names of the table's name mapping.

Single values of partitions (from Avro) and defaults (from JSON) become the text that tasks carry them in
(`tailer.files.partition_values`).
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

from tailer.errors import LogCorrupt, UnsupportedFeature
from tailer.events import VARIANT
from tailer.formats.iceberg.metadata.document import Document
from tailer.schema.columns import DEFAULT, FIELD_ID, FILE_NAMES, PHYSICAL_NAME

__all__ = ["SchemaReader", "identifier_columns", "new_defaults", "partition_text"]

_PRIMITIVES: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", tz="UTC"),
    "timestamp_ns": pa.timestamp("ns"),
    "timestamptz_ns": pa.timestamp("ns", tz="UTC"),
    "string": pa.string(),
    "uuid": pa.binary(16),
    "binary": pa.binary(),
    "variant": VARIANT,
}
_DECIMAL: Final = re.compile(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)")
_FIXED: Final = re.compile(r"fixed\[(\d+)\]")
_NOT_A_SCHEMA: Final = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)

# The names of each field in files without field ids, and the same of the fields in it.
_Names = Mapping[int, tuple[str, ...]]


class SchemaReader:
    """Converts the schemas of one table, each once, as long as its id stands for the same schema."""

    def __init__(self, table: str) -> None:
        self._table = table
        self._schemas: dict[tuple[int | None, str | None], tuple[dict[str, Any], pa.Schema]] = {}

    def schema(self, document: Document, schema_id: int | None, version: int) -> pa.Schema:
        """Return a schema as in `ChangeTask.schema`; None: that of now.

        Raises `UnsupportedFeature` for a type that cannot be read, `LogCorrupt` for what is no schema.
        """
        key = document.current_schema_id if schema_id is None else schema_id, document.name_mapping
        try:
            content = document.schema(schema_id)
            parsed = self._schemas.get(key)
            # Metadata that was set back, or a table that was made again, may use an id again.
            if parsed is None or parsed[0] != content:
                mapping = document.name_mapping
                names = None if mapping is None else dict(_mapped(json.loads(mapping)))
                parser = _Parser(names, self._table, version)
                parsed = self._schemas[key] = content, pa.schema(parser.fields(content))
        except _NOT_A_SCHEMA as error:
            raise LogCorrupt(self._table, "metadata", f"not a schema: {error!r}", version) from error
        return parsed[1]

    def all(self, document: Document, version: int) -> Iterator[pa.Schema]:
        """Yield all schemas of the table, the one of now first, then the newest first. Raises as `schema`.

        One that nobody asks for may have a type that cannot be read.
        """
        numbers = [document.current_schema_id, *(one.get("schema-id", 0) for one in reversed(document.schemas))]
        for number in dict.fromkeys(numbers) if document.schemas else (None,):
            yield self.schema(document, number, version)


def identifier_columns(schema: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the columns that a schema says identify a row; none where one is a field in a struct."""
    wanted = schema.get("identifier-field-ids") or ()
    names = {field["id"]: field["name"] for field in schema["fields"]}
    return tuple(names[number] for number in wanted) if all(number in names for number in wanted) else ()


def new_defaults(before: Iterable[pa.Field], after: Iterable[pa.Field]) -> Iterator[str]:
    """Yield the fields in which rows of `before` get the default that a new field has in `after`, on any level."""
    former = {_place(field): field for field in before}
    for field in after:
        old = former.get(_place(field))
        if old is not None:
            yield from new_defaults(_children(old), _children(field))
        elif DEFAULT in (field.metadata or {}):  # a new struct without one is null in rows of before
            yield field.name


def _children(field: pa.Field) -> list[pa.Field]:
    return [field.type.field(index) for index in range(field.type.num_fields)]


def _place(field: pa.Field) -> bytes | str:
    """Return the id of a field; the name of an element, a key or a value."""
    return (field.metadata or {}).get(FIELD_ID) or str(field.name)


def _mapped(fields: list[dict[str, Any]]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the names in files by field id."""
    for field in fields:
        if field.get("field-id") is not None:
            yield field["field-id"], tuple(field.get("names", ()))
        yield from _mapped(field.get("fields") or [])


class _Parser:
    """Converts schema JSON to Arrow fields. `names`: None where files must have field ids."""

    def __init__(self, names: _Names | None, table: str, version: int) -> None:
        self._names = names
        self._table = table
        self._version = version

    def fields(self, struct: Mapping[str, Any]) -> list[pa.Field]:
        """Convert the fields of a struct, or the columns of the table."""
        fields = [self._field(field) for field in struct["fields"]]
        if len({field.name for field in fields}) < len(fields):
            raise ValueError("two fields have one name")
        return fields

    def _field(self, field: Mapping[str, Any]) -> pa.Field:
        kind, number = self._type(field["type"], field["name"]), str(int(field["id"])).encode()
        metadata = {PHYSICAL_NAME: number, FIELD_ID: number}
        if self._names is not None:
            metadata[FILE_NAMES] = json.dumps(self._names.get(field["id"], ())).encode()
        default = field.get("initial-default")
        if default is not None:
            if not isinstance(field["type"], str):
                raise self._unsupported(f"the default of column {field['name']}, which is nested")
            text = default_text(default, kind, field["type"])
            metadata[DEFAULT] = text.encode(errors="surrogateescape")
        return pa.field(field["name"], kind, not field.get("required", False), metadata)

    def _type(self, kind: Any, name: str) -> pa.DataType:
        if isinstance(kind, str):
            if kind in _PRIMITIVES:
                return _PRIMITIVES[kind]
            if (decimal := _DECIMAL.fullmatch(kind)) is not None:
                return pa.decimal128(int(decimal[1]), int(decimal[2]))
            if (fixed := _FIXED.fullmatch(kind)) is not None:
                return pa.binary(int(fixed[1]))
            raise self._unsupported(f"column {name}, of type {kind}")
        match kind["type"]:
            case "struct":
                return pa.struct(self.fields(kind))
            case "list":
                nullable = not kind.get("element-required", False)
                return pa.list_(pa.field("element", self._type(kind["element"], name), nullable))
            case "map":
                value = pa.field("value", self._type(kind["value"], name), not kind.get("value-required", False))
                return pa.map_(self._type(kind["key"], name), value)
        return self._type(kind["type"], name)

    def _unsupported(self, feature: str) -> UnsupportedFeature:
        return UnsupportedFeature(self._table, feature, self._version, "lake-tailer cannot read it")


_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - of all zones
_HEX: Final = re.compile(r"(?:[0-9A-Fa-f]{2})*")


def partition_text(value: Any, kind: pa.DataType) -> str | None:
    """Return a value of a partition, as Avro has it, as text. Raises `ValueError` for one of a type that has none.

    `kind`: of the column. Avro has no type for nanoseconds, and writers leave out others: then values are numbers.
    """
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case int():
            return _number_text(value, kind)
        case str():
            return value
        case float():
            return repr(value)
        case Decimal():
            return format(value, "f")
        case datetime():
            return (value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)).isoformat()
        case date() | time():
            return value.isoformat()
        case UUID() | bytes():
            return _text(value.bytes if isinstance(value, UUID) else value)
    raise ValueError(f"a partition value is a {type(value).__name__}")


def _number_text(value: int, kind: pa.DataType) -> str:
    if pa.types.is_date(kind):
        return (_EPOCH + timedelta(days=value)).date().isoformat()
    if not pa.types.is_timestamp(kind):
        return str(value)
    micros, nanos = divmod(value, 1000) if kind.unit == "ns" else (value, 0)
    moment = (_EPOCH + timedelta(microseconds=micros)).isoformat(timespec="microseconds")
    return f"{moment}{nanos:03}" if nanos else moment


def default_text(value: Any, kind: pa.DataType, name: str) -> str:
    """Return a default, as JSON has it, as text. `name`: of the type in the schema. Raises `ValueError`."""
    if isinstance(value, bool) or pa.types.is_boolean(kind):
        if isinstance(value, bool) and pa.types.is_boolean(kind):
            return "true" if value else "false"
        raise ValueError(f"{value!r} is no {name}")
    if name == "uuid":
        return _text(UUID(value).bytes)
    if pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        if not _HEX.fullmatch(value):
            raise ValueError(f"{value!r} is not hexadecimal")
        return _text(bytes.fromhex(value))
    if isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return partition_text(value, kind) or ""
    raise ValueError(f"{value!r} is no {name}")


def _text(data: bytes) -> str:
    return data.decode(errors="surrogateescape")
