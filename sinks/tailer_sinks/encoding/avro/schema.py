"""The Avro schemas of rows: names and types.

====================  ===========================================================================================
Arrow                 Avro
====================  ===========================================================================================
bool                  `boolean`
int8, int16, int32    `int`; the first two say so in `connect.type`, as Kafka Connect does
int64, uint32         `long`; smaller unsigned ones are `int`
uint64                `bytes` with `decimal`, 20 digits
float, double         the same, with NaN and the infinities; a half float is a `float`
decimal               `bytes` with `decimal`, its precision and scale
string, binary        `string`, `bytes`
JSON                  `string`, marked as Debezium marks JSON
date                  `int` with `date`: days since 1970-01-01, of any year
timestamp             `long` with `timestamp-micros`, without a time zone with `local-timestamp-micros`; with `-nanos`
                      or `-millis` if these are its unit, and `-millis` also for seconds
time                  `long` with `time-micros`; `int` with `time-millis`, also for seconds; nanoseconds are a `long`
                      that is marked as Debezium's `io.debezium.time.NanoTime`
duration              `long`, marked as Debezium's `io.debezium.time.MicroDuration`, or `NanoDuration` if nanoseconds
                      are its unit: Avro's own counts milliseconds
list                  `array`
struct                `record`
map                   `map` where keys are strings, otherwise an `array` of records `key`, `value`, marked as Kafka
                      Connect marks a map's
null                  `null`
dictionary            the form of its value
====================  ===========================================================================================

What may be null is a union of `null` and its type, with the default null: such a column can come and go under every
level of compatibility. A column that may not be null has no default.

Avro's names consist of ASCII letters, digits and underscores. In other names each character that cannot stand where it
stands is written `_u` and four hexadecimal digits for each of its UTF-16 units (`unit price` is `unit_u0020price`), as
Debezium does, and the field has the column's own name in the attribute `column`. Two columns that would get one name
are refused. Records are named after where they are, so that no two of a schema have one name: the rows of topic
`lake.sales.orders` are `lake.sales.orders.Value`, a struct `address` in them `lake.sales.orders.Value.address`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from tailer_sinks.encoding.columns import NoText
from tailer_sinks.encoding.values import is_binary, is_list, is_plain_string, is_string

__all__ = ["avro_name", "full_name", "record_schema"]

Schema = str | Mapping[str, Any] | Sequence[Any]

LETTERS: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_")
DIGITS: Final = frozenset("0123456789")

_MICROSECONDS: Final = {"type": "long", "connect.version": 1, "connect.name": "io.debezium.time.MicroDuration"}
_PLAIN: Final[dict[pa.DataType, Schema]] = {
    pa.null(): "null",
    pa.bool_(): "boolean",
    pa.int8(): {"type": "int", "connect.type": "int8"},
    pa.int16(): {"type": "int", "connect.type": "int16"},
    pa.int32(): "int",
    pa.int64(): "long",
    pa.uint8(): "int",
    pa.uint16(): "int",
    pa.uint32(): "long",
    pa.uint64(): {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 0},
    pa.float16(): "float",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): {"type": "int", "logicalType": "date"},
    pa.date64(): {"type": "int", "logicalType": "date"},
    pa.time32("s"): {"type": "int", "logicalType": "time-millis"},
    pa.time32("ms"): {"type": "int", "logicalType": "time-millis"},
    pa.time64("us"): {"type": "long", "logicalType": "time-micros"},
    pa.time64("ns"): {"type": "long", "connect.version": 1, "connect.name": "io.debezium.time.NanoTime"},
    pa.duration("s"): _MICROSECONDS,
    pa.duration("ms"): _MICROSECONDS,
    pa.duration("us"): _MICROSECONDS,
    pa.duration("ns"): {"type": "long", "connect.version": 1, "connect.name": "io.debezium.time.NanoDuration"},
    pa.json_(pa.large_string()): {"type": "string", "connect.version": 1, "connect.name": "io.debezium.data.Json"},
}
_UNITS: Final = {"s": "millis", "ms": "millis", "us": "micros", "ns": "nanos"}


def avro_name(name: str) -> str:
    """Return `name` as a valid Avro name that no other name has, unless it looks like an escaped one."""
    escaped = ""
    for place, letter in enumerate(name):
        if letter in LETTERS or (place and letter in DIGITS):
            escaped += letter
        else:
            units = letter.encode("utf-16-be", "surrogatepass")
            escaped += "".join(f"_u{units[start : start + 2].hex()}" for start in range(0, len(units), 2))
    return escaped or "_"


def full_name(*parts: str) -> str:
    """Join a record's name with its namespace; parts may contain dots themselves, such as a topic's."""
    return ".".join(avro_name(name) for part in parts for name in part.split("."))


def record_schema(name: str, fields: Iterable[pa.Field], **attributes: Any) -> dict[str, Any]:
    """Build a record named `name` (`full_name`). Raises `NoText` for an unknown type, and for names that collide."""
    namespace, _, last = name.rpartition(".")
    by_name: dict[str, dict[str, Any]] = {}
    for field in fields:
        entry = avro_field(name, field)
        if (other := by_name.get(entry["name"])) is not None:
            other_name = other.get("column", other["name"])
            raise NoText(f"has the same name in Avro, {entry['name']}, as the column {other_name}", field.name)
        by_name[entry["name"]] = entry
    placed = {"namespace": namespace} if namespace else {}
    return {"type": "record", "name": last, **placed, "fields": list(by_name.values()), **attributes}


def avro_field(record: str, field: pa.Field) -> dict[str, Any]:
    """Build a field of the record named `record`. Raises `NoText`."""
    name = avro_name(field.name)
    try:
        kind = _nullable(field, f"{record}.{name}")
    except NoText as error:
        raise error.below(field.name) from None
    default = {"default": None} if field.nullable or kind == "null" else {}
    named = {} if name == field.name else {"column": field.name}
    return {"name": name, "type": kind, **default, **named}


def _nullable(field: pa.Field, path: str) -> Schema:
    kind = _schema(field.type, path)
    return ["null", kind] if field.nullable and kind != "null" else kind


def _schema(kind: pa.DataType, path: str) -> Schema:
    """Build the schema of a value of `kind` that is not null; records in it are named after `path`."""
    if pa.types.is_dictionary(kind):
        return _schema(kind.value_type, path)
    if is_plain_string(kind):
        return "string"
    if is_binary(kind):
        return "bytes"
    if pa.types.is_decimal(kind):
        return _decimal(kind)
    if pa.types.is_timestamp(kind):
        zone = "local-" if kind.tz is None else ""
        return {"type": "long", "logicalType": f"{zone}timestamp-{_UNITS[kind.unit]}"}
    if is_list(kind):
        return {"type": "array", "items": _nullable(kind.value_field, f"{path}.item")}
    if pa.types.is_struct(kind):
        return record_schema(path, kind)
    if pa.types.is_map(kind):
        return _map(kind, path)
    if kind in _PLAIN:
        return _PLAIN[kind]
    raise NoText(f"has type {kind}, which has no Avro form")


def _decimal(kind: pa.DataType) -> Schema:
    if not 0 <= kind.scale <= kind.precision:
        raise NoText(f"has type {kind}, whose scale Avro cannot have")
    return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}


def _map(kind: pa.DataType, path: str) -> Schema:
    if is_string(kind.key_type):
        return {"type": "map", "values": _nullable(kind.item_field, f"{path}.value")}
    entry = [
        pa.field("key", kind.key_type, nullable=False),
        pa.field("value", kind.item_type, kind.item_field.nullable),
    ]
    return {"type": "array", "items": record_schema(f"{path}.entry", entry, **{"connect.internal.type": "MapEntry"})}
