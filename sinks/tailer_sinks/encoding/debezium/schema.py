"""The parts of Debezium's messages besides the rows: the source block, and the schemas that JSON messages can carry.

A message's schema is in the format of Kafka Connect's JSON converter. It describes *our* JSON
(`tailer_sinks.encoding.values`), so decimals, dates, times and the like are strings in it. A name tells a reader how to
interpret such a string. It is given only if readers of that name accept our form: `io.debezium.time.ZonedTimestamp` for
timestamps with a zone. Debezium's `IsoDate`, `IsoTime` and `IsoTimestamp` demand a zone, which our dates, our times and
our timestamps without one do not have; and its `Interval` has another form than our durations. NaN and the infinities
have no form in such a field that Kafka Connect can read: it turns the strings of its own converter into zeros
(`not_finite`).

`operation`, `txn_id` and `file` of the source block are null, because rows do not identify their commit so. So is the
`transaction` block: its `total_order` and `data_collection_order` count the events of a version from the first, which
is impossible for a reader that begins in the middle of the version.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tailer.events import is_variant
from tailer_sinks.encoding.columns import NoText
from tailer_sinks.encoding.values import (
    Int64Form,
    integer,
    is_binary,
    is_float,
    is_json,
    is_list,
    is_string,
    is_temporal,
    json_bytes,
)

__all__ = ["Source", "envelope_schema", "json_text", "key_schema", "not_finite", "source_texts"]

ENVELOPE_VERSION: Final = 2
CONNECTOR: Final = "delta"
SNAPSHOT_VALUES: Final = "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"
Schema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Source:
    """The source of a table's messages.

    `version`: of lake-tailer. `name`: the prefix of topics. `db`: the catalog, if any.
    """

    version: str
    name: str
    schema: str | None
    table: str
    table_uri: str | None = None
    db: str = ""

    @property
    def topic(self) -> str:
        """The topic of the table, after which schemas are named."""
        return ".".join(part for part in (self.name, self.schema, self.table) if part)


def source_texts(
    source: Source, is_snapshot: bool, place: tuple[str, int, int], timestamp_us: int, int64: Int64Form = "number"
) -> tuple[str, str, str]:
    """Return the parts of the source block that are the same for all rows.

    They are the text before the row number of `sequence`, from there to `row_index`, and the name of `row_id`.
    `is_snapshot`: whether rows are of a snapshot. `place`: table id, version, task.
    """
    table_id, version, task = place
    first = {
        "version": source.version,
        "connector": CONNECTOR,
        "name": source.name,
        "ts_ms": integer(timestamp_us // 1000, int64),
        "snapshot": "true" if is_snapshot else "false",
        "db": source.db,
    }
    second = {
        "ts_us": integer(timestamp_us, int64),
        "ts_ns": integer(timestamp_us * 1000, int64),
        "schema": source.schema,
        "table": source.table,
        "table_id": table_id,
        "table_uri": source.table_uri,
        "commit_version": integer(version, int64),
        "operation": None,
        "txn_id": None,
        "file": None,
    }
    quote = '"' * (int64 == "string")
    return (
        rf'{json_text(first)[:-1]},"sequence":"[\"{version}\",\"{task}\",\"',
        rf'\"]",{json_text(second)[1:-1]},"row_index":{quote}',
        f'{quote},"row_id":',
    )


def json_text(value: Any) -> str:
    """Encode compact JSON. Path bytes that are not text are escaped."""
    return json_bytes(value).decode()


def key_schema(topic: str, columns: Iterable[pa.Field]) -> str:
    """Build the schema of keys, as JSON. Raises `NoText` for a type without a schema.

    Its fields are always optional: messages carry the schema, and a key whose bytes change goes to another partition.
    """
    fields = [_column(column.with_nullable(True)) for column in columns]
    return json_text(_struct(fields, optional=False, name=f"{topic}.Key"))


def envelope_schema(topic: str, columns: Iterable[pa.Field]) -> str:
    """Build the schema of values, as JSON. Raises `NoText` for a type without a schema."""
    row = _struct(map(_column, columns), optional=True, name=f"{topic}.Value")
    fields = [
        row | {"field": "before"},
        row | {"field": "after"},
        _SOURCE | {"field": "source"},
        _TRANSACTION | {"field": "transaction"},
        _plain("string", "op"),
        *(_plain("int64", name, optional=True) for name in ("ts_ms", "ts_us", "ts_ns")),
    ]
    envelope = _struct(fields, optional=False, name=f"{topic}.Envelope", version=ENVELOPE_VERSION)
    return json_text(envelope)


def not_finite(column: pa.Array) -> bool:
    """Return whether the column contains NaN or an infinity, which fields with a schema cannot hold."""
    kind = column.type
    if is_float(kind):
        return not pc.all(pc.is_finite(column), min_count=0).as_py()
    if pa.types.is_dictionary(kind):
        return not_finite(column.dictionary)
    if pa.types.is_struct(kind):
        return any(map(not_finite, column.flatten()))
    if pa.types.is_map(kind):
        entries = column.slice(0).filter(column.is_valid())
        return not_finite(entries.keys) or not_finite(entries.items)
    return is_list(kind) and not_finite(column.flatten())


def _plain(kind: str, field: str, optional: bool = False) -> Schema:
    return {"type": kind, "optional": optional, "field": field}


def _struct(fields: Iterable[Schema], optional: bool, **names: Any) -> Schema:
    return {"type": "struct", "fields": list(fields), "optional": optional, **names}


_SNAPSHOT: Final = {
    "type": "string",
    "optional": True,
    "name": "io.debezium.data.Enum",
    "version": 1,
    "parameters": {"allowed": SNAPSHOT_VALUES},
    "default": "false",
    "field": "snapshot",
}
_SOURCE: Final = _struct(
    [
        *(_plain("string", name) for name in ("version", "connector", "name")),
        _plain("int64", "ts_ms"),
        _SNAPSHOT,
        _plain("string", "db"),
        _plain("string", "sequence", optional=True),
        *(_plain("int64", name, optional=True) for name in ("ts_us", "ts_ns")),
        _plain("string", "schema", optional=True),
        *(_plain("string", name) for name in ("table", "table_id")),
        _plain("string", "table_uri", optional=True),
        _plain("int64", "commit_version"),
        *(_plain("string", name, optional=True) for name in ("operation", "txn_id", "file")),
        _plain("int64", "row_index"),
        *(_plain("int64", name, optional=True) for name in ("row_id", "row_commit_version")),
    ],
    optional=False,
    name=f"io.debezium.connector.{CONNECTOR}.Source",
    version=1,
)

_TRANSACTION: Final = _struct(
    [_plain("string", "id"), _plain("int64", "total_order"), _plain("int64", "data_collection_order")],
    optional=True,
    name="event.block",
    version=1,
)

_PLAIN: Final = {
    pa.null(): "string",
    pa.bool_(): "boolean",
    pa.int8(): "int8",
    pa.int16(): "int16",
    pa.int32(): "int32",
    pa.int64(): "int64",
    pa.uint8(): "int16",
    pa.uint16(): "int32",
    pa.uint32(): "int64",
    pa.float16(): "float",
    pa.float32(): "float",
    pa.float64(): "double",
}


def _column(field: pa.Field) -> Schema:
    """Build the schema of a struct's field."""
    try:
        return _schema(field.type, field.nullable) | {"field": field.name}
    except NoText as error:
        raise error.below(field.name) from None


def _schema(kind: pa.DataType, optional: bool) -> Schema:
    """Build the schema of the JSON of a value of `kind`."""
    if pa.types.is_dictionary(kind):
        return _schema(kind.value_type, optional)
    if is_list(kind):
        return {"type": "array", "items": _schema(kind.value_type, kind.value_field.nullable), "optional": optional}
    if is_variant(kind):
        raise NoText("has Variants, which need the option variant: Kafka Connect's schemas have no type for any value")
    if pa.types.is_struct(kind):
        return _struct(map(_column, kind), optional)
    if pa.types.is_map(kind):
        return _map(kind, optional)
    if (is_zoned := pa.types.is_timestamp(kind) and kind.tz is not None) or is_json(kind):
        name = "io.debezium.time.ZonedTimestamp" if is_zoned else "io.debezium.data.Json"
        return {"type": "string", "optional": optional, "name": name, "version": 1}
    if is_temporal(kind) or is_string(kind) or pa.types.is_decimal(kind):
        return {"type": "string", "optional": optional}
    if is_binary(kind):
        return {"type": "bytes", "optional": optional}
    if kind in _PLAIN:
        return {"type": _PLAIN[kind], "optional": optional or pa.types.is_null(kind)}
    raise NoText(f"has type {kind}, which Kafka Connect's schemas do not have")


def _map(kind: pa.DataType, optional: bool) -> Schema:
    """Build the schema of a map.

    With keys other than strings our JSON is an array of entries, Connect's an array of arrays.
    """
    keys, values = _schema(kind.key_type, optional=False), _schema(kind.item_type, kind.item_field.nullable)
    if is_string(kind.key_type):
        return {"type": "map", "keys": keys, "values": values, "optional": optional}
    entry = _struct([keys | {"field": "key"}, values | {"field": "value"}], optional=False)
    return {"type": "array", "items": entry, "optional": optional}
