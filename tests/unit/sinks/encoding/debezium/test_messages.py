"""Debezium messages: some written by hand, and random changes against a reference that works row by row."""

import base64
import json
import re
from collections.abc import Sequence
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tailer.errors import SinkRejected
from tailer.events import CHANGE_TYPE, COMMIT_TIMESTAMP, METADATA_FIELDS, VARIANT, ChangeBatch
from tailer.plan import SNAPSHOT_TASKS
from tailer_sinks.encoding.debezium.messages import DebeziumEncoder, Source
from tailer_sinks.encoding.debezium.operations import NEW_KEY, OLD_KEY
from tailer_sinks.encoding.debezium.schema import envelope_schema, key_schema, not_finite
from tailer_sinks.encoding.messages import Messages
from tailer_sinks.encoding.values import DecimalForm, JsonForms, row_texts
from tests.support.cases import cases
from tests.support.seeds import repeats
from tests.support.tables.change_rows import DELETE, INSERT, POST, PRE, Row, changes, histories, people, updates

SOURCE = Source("0.1.0", "lake", "sales", "orders", "s3://bucket/orders", db="main")
MOMENT_US = 1772366400000005  # of version 5 in `change_batch`
NOW_MS = 1772366401234

Message = tuple[str | None, str | None, str | None, str | None]


def encoder(batch: ChangeBatch, key: Sequence[str] = ("id",), **options: Any) -> DebeziumEncoder:
    return DebeziumEncoder("kafka", batch.rows.schema, SOURCE, key, **options)


def listed(messages: Messages | None) -> list[Message]:
    """Return key, value, and name and value of the header of each message, as text."""
    if messages is None:
        return []
    columns = [messages.values, *(column for _, column in messages.headers)]
    columns += [] if messages.keys is None else [messages.keys]
    assert {column.type for column in columns} == {pa.large_binary()}
    assert {len(column) for column in [*columns, messages.row_index]} == {len(messages)}
    assert messages.row_index.type == pa.int64()
    keys = [None] * len(messages) if messages.keys is None else messages.keys.to_pylist()
    headers: list[tuple[str | None, str | None]] = [(None, None)] * len(messages)
    for name, column in messages.headers:
        for number, value in enumerate(column.to_pylist()):
            if value is not None:
                assert headers[number] == (None, None)
                headers[number] = (name, value.decode())
    rows = zip(keys, messages.values.to_pylist(), headers, strict=True)
    return [(key and key.decode(), value and value.decode(), *header) for key, value, header in rows]


def encoded(made: DebeziumEncoder, *batches: ChangeBatch) -> list[Message]:
    """Return the messages of all batches, after the final flush."""
    messages = [message for batch in batches for message in listed(made.encode(batch, NOW_MS))]
    messages += listed(made.flush(NOW_MS))
    assert made.pending is None
    return messages


def outline(messages: list[Message], column: str = "name") -> list[str]:
    """Return each message in short: operation, old and new value of `column`, row index."""
    lines = []
    for _, text, _, _ in messages:
        if text is None:
            lines.append("tombstone")
            continue
        value = json.loads(text)
        images = [image and image[column] for image in (value["before"], value["after"])]
        lines.append(f"{value['op']} {images[0]} {images[1]} {value['source']['row_index']}")
    return lines


def outlined(
    kinds: Sequence[str], ids: list[int | None], row_index: Sequence[int] | None = None, key: Sequence[str] = ("id",)
) -> list[str]:
    """Return the messages of rows with these ids, named a, b, c and so on; rows one by one must give the same."""
    batch = changes(kinds, people(ids, [chr(97 + number) for number in range(len(ids))]), row_index)
    messages = encoded(encoder(batch, key), batch)
    assert encoded(encoder(batch, key), *(batch.slice(number, 1) for number in range(len(batch)))) == messages
    return outline(messages)


# Messages field by field.


def source_text(row: int, rest: str = '"row_id":null,"row_commit_version":null') -> str:
    return (
        '{"version":"0.1.0","connector":"delta","name":"lake","ts_ms":1772366400000,"snapshot":"false","db":"main",'
        rf'"sequence":"[\"5\",\"3\",\"{row}\"]","ts_us":1772366400000005,"ts_ns":1772366400000005000,"schema":"sales",'
        '"table":"orders","table_id":"table","table_uri":"s3://bucket/orders","commit_version":5,"operation":null,'
        f'"txn_id":null,"file":null,"row_index":{row},{rest}}}'
    )


END = '"ts_ms":1772366401234,"ts_us":1772366401234000,"ts_ns":1772366401234000000}'


def value_text(before: str, after: str, op: str, row: int) -> str:
    return f'{{"before":{before},"after":{after},"source":{source_text(row)},"transaction":null,"op":"{op}",{END}'


def test_an_insert_an_update_and_a_delete() -> None:
    batch = changes([INSERT, PRE, POST, DELETE], people([1, 2, 2, 3], ["Ann", "Bob", 'Bo"b', "Cid"]), [7, 8, 9, 12])
    assert encoded(encoder(batch), batch) == [
        ('{"id":1}', value_text("null", '{"id":1,"name":"Ann"}', "c", 7), None, None),
        ('{"id":2}', value_text('{"id":2,"name":"Bob"}', r'{"id":2,"name":"Bo\"b"}', "u", 9), None, None),
        ('{"id":3}', value_text('{"id":3,"name":"Cid"}', "null", "d", 12), None, None),
        ('{"id":3}', None, None, None),
    ]


def test_another_key_is_a_delete_and_a_new_row_that_name_each_other() -> None:
    batch = changes([PRE, POST], people([1, 2], ["Ann", "Ann"]), [7, 8])
    before, after = '{"id":1,"name":"Ann"}', '{"id":2,"name":"Ann"}'
    expected: list[Message] = [
        ('{"id":1}', value_text(before, "null", "d", 7), NEW_KEY, '{"id":2}'),
        ('{"id":1}', None, NEW_KEY, '{"id":2}'),
        ('{"id":2}', value_text("null", after, "c", 8), OLD_KEY, '{"id":1}'),
    ]
    assert encoded(encoder(batch), batch) == expected
    assert encoded(encoder(batch, tombstones=False), batch) == [expected[0], expected[2]]
    assert (NEW_KEY, OLD_KEY) == ("__debezium.newkey", "__debezium.oldkey")


def test_without_a_key_there_are_no_keys_and_no_tombstones() -> None:
    batch = changes([DELETE, PRE, POST], people([1, 2, 3], ["Ann", "Bob", "Cid"]))
    assert encoded(encoder(batch, key=()), batch) == [
        (None, value_text('{"id":1,"name":"Ann"}', "null", "d", 0), None, None),
        (None, value_text('{"id":2,"name":"Bob"}', '{"id":3,"name":"Cid"}', "u", 2), None, None),
    ]


def test_rows_of_a_snapshot_are_read_and_not_created() -> None:
    batch = changes([INSERT], people([1], ["Ann"]), task=SNAPSHOT_TASKS)
    ((_, text, _, _),) = listed(encoder(batch).encode(batch, NOW_MS))
    source = source_text(0).replace('"snapshot":"false"', '"snapshot":"true"')
    source = source.replace(r"\"3\"", rf"\"{SNAPSHOT_TASKS}\"")
    assert text == value_text("null", '{"id":1,"name":"Ann"}', "r", 0).replace(source_text(0), source)


def test_row_tracking_goes_to_the_source_block() -> None:
    ids = {"_row_id": pa.array([10, 11, 11, None]), "_row_commit_version": pa.array([1, 2, 5, None], pa.int64())}
    batch = changes([INSERT, PRE, POST, DELETE], {"id": pa.array([1, 2, 2, 3]), **ids})
    values = [json.loads(value) for _, value, _, _ in encoded(encoder(batch), batch) if value]
    found = [(value["source"]["row_id"], value["source"]["row_commit_version"]) for value in values]
    assert found == [(10, 1), (11, 5), (None, None)]
    assert values[0]["after"] == {"id": 1}
    batch = changes([INSERT], {"_row_id": pa.array([1]), "id": pa.array([1])})
    assert json.loads(str(encoded(encoder(batch), batch)[0][1]))["after"] == {"_row_id": 1, "id": 1}


def test_values_are_those_of_flat_json() -> None:
    columns = {
        "id": pa.array([Decimal("1.50")]),
        "at": pa.array([MOMENT_US], pa.timestamp("us", "UTC")),
        "raw": pa.array([b"\xff"]),
        "map": pa.array([[(1, "x")]], pa.map_(pa.int32(), pa.string())),
    }
    batch = changes([INSERT], columns)
    ((key, value, _, _),) = encoded(encoder(batch, ["id", "at"]), batch)
    assert key == '{"id":"1.50","at":"2026-03-01T12:00:00.000005Z"}'
    assert value == value_text(
        "null",
        '{"id":"1.50","at":"2026-03-01T12:00:00.000005Z","raw":"/w==","map":[{"key":1,"value":"x"}]}',
        "c",
        0,
    )


# Pairing of images.


@cases(
    ("kinds", "ids", "row_index", "expected"),
    [
        ([PRE, POST], [1, 1], [4, 5], ["u a b 5"]),
        ([POST, PRE], [1, 1], [4, 5], ["u b a 5"]),
        ([PRE, POST], [1, 1], [4, 4], ["u a b 4"]),
        ([PRE, POST], [1, 2], [4, 4], ["d a None 4", "tombstone", "c None b 4"]),
        ([POST, PRE], [1, 2], [4, 5], ["d b None 4", "tombstone", "c None a 5"]),
        ([POST], [1], [4], ["c None a 4"]),
        ([PRE], [1], [4], ["d a None 4", "tombstone"]),
        ([PRE, POST], [1, 1], [4, 6], ["d a None 4", "tombstone", "c None b 6"]),
        ([PRE, INSERT, POST], [1, 1, 1], [4, 5, 6], ["d a None 4", "tombstone", "c None b 5", "c None c 6"]),
        # A preimage is missing: the equal key decides.
        ([POST, PRE, POST], [1, 2, 2], [4, 5, 6], ["c None a 4", "u b c 6"]),
        ([POST, PRE, POST], [1, 1, 1], [4, 5, 5], ["c None a 4", "u b c 5"]),
        ([PRE, POST, PRE, POST], [1, 1, 1, 1], [4, 5, 6, 7], ["u a b 5", "u c d 7"]),
        ([POST, PRE, POST, PRE], [1, 1, 1, 1], [4, 5, 6, 7], ["u b a 5", "u d c 7"]),
        # Two keys change, one after the other.
        (
            [PRE, POST, PRE, POST],
            [1, 2, 3, 4],
            [4, 5, 6, 7],
            ["d a None 4", "tombstone", "c None b 5", "d c None 6", "tombstone", "c None d 7"],
        ),
        ([PRE, PRE, POST], [1, 2, 3], [4, 5, 6], ["d a None 4", "tombstone", "d b None 5", "tombstone", "c None c 6"]),
        ([PRE, PRE, POST], [1, 2, 2], [4, 5, 6], ["d a None 4", "tombstone", "u b c 6"]),
        # All preimages come first, then all postimages: the adjacent ones in the middle are of different rows.
        (
            [PRE, PRE, POST, POST],
            [1, 2, 1, 2],
            [4, 5, 6, 7],
            ["d a None 4", "tombstone", "d b None 5", "tombstone", "c None c 6", "c None d 7"],
        ),
    ],
)
def test_images(kinds: list[str], ids: list[int | None], row_index: list[int], expected: list[str]) -> None:
    assert outlined(kinds, ids, row_index) == expected


@cases(
    ("kinds", "row_index", "expected"),
    [
        ([POST], [4], ["u None a 4"]),
        ([PRE], [4], ["u a None 4"]),
        ([PRE, POST], [4, 6], ["u a None 4", "u None b 6"]),
        ([PRE, INSERT, DELETE, POST], [4, 5, 6, 7], ["u a None 4", "c None b 5", "d c None 6", "u None d 7"]),
        ([PRE, PRE, POST, POST], [4, 5, 6, 7], ["u a None 4", "u b None 5", "u None c 6", "u None d 7"]),
        ([POST, PRE], [4, 5], ["u b a 5"]),
        ([PRE, PRE, POST], [4, 5, 6], ["u a None 4", "u b None 5", "u None c 6"]),
        ([PRE, POST, POST], [4, 5, 6], ["u a None 4", "u None b 5", "u None c 6"]),
        ([PRE, POST, PRE], [4, 5, 6], ["u a b 5", "u c None 6"]),
        ([POST, PRE, POST], [4, 5, 6], ["u None a 4", "u b c 6"]),
        ([POST, PRE, POST, PRE], [4, 5, 6, 7], ["u None a 4", "u b c 6", "u d None 7"]),
    ],
)
def test_images_without_a_key(kinds: list[str], row_index: list[int], expected: list[str]) -> None:
    assert outlined(kinds, [1] * len(kinds), row_index, key=()) == expected


def test_an_image_that_is_alone_ends_or_begins_its_key() -> None:
    batch = changes([PRE, INSERT, POST], people([1, 2, 3], ["Ann", "Bob", "Cid"]), [7, 8, 9])
    ann, bob, cid = '{"id":1,"name":"Ann"}', '{"id":2,"name":"Bob"}', '{"id":3,"name":"Cid"}'
    expected: list[Message] = [
        ('{"id":1}', value_text(ann, "null", "d", 7), None, None),
        ('{"id":1}', None, None, None),
        ('{"id":2}', value_text("null", bob, "c", 8), None, None),
        ('{"id":3}', value_text("null", cid, "c", 9), None, None),
    ]
    assert encoded(encoder(batch), batch) == expected
    del expected[1]
    assert encoded(encoder(batch, tombstones=False), batch) == expected


def test_an_update_may_be_cut_in_two() -> None:
    batch = changes([INSERT, PRE, POST], people([1, 2, 2], ["a", "b", "c"]))
    made = encoder(batch)
    assert outline(listed(made.encode(batch.slice(0, 2), NOW_MS))) == ["c None a 0"]
    assert made.pending is not None
    assert made.pending.row_index.to_pylist() == [1]
    assert len(made.encode(batch.slice(2, 1), NOW_MS)) == 0
    assert made.pending.row_index.to_pylist() == [1, 2]
    assert len(made.encode(batch.slice(0, 0), NOW_MS)) == 0
    assert outline(listed(made.flush(NOW_MS))) == ["u b c 2"]
    assert made.pending is None
    assert made.flush(NOW_MS) is None


@pytest.mark.parametrize("kind", [pa.dictionary(pa.int32(), pa.string()), pa.string_view(), pa.null()], ids=str)
def test_halves_of_an_update_are_put_together_in_any_layout(kind: pa.DataType) -> None:
    halves = [
        changes([change], {"id": pa.array([1]), "name": pa.array([None if kind == pa.null() else name], kind)}, [row])
        for row, (change, name) in enumerate([(PRE, "old"), (POST, "a name of more than twelve bytes")])
    ]
    names = (None, None) if kind == pa.null() else ("old", "a name of more than twelve bytes")
    assert outline(encoded(encoder(halves[0]), *halves)) == [f"u {names[0]} {names[1]} 1"]


def test_held_back_rows_are_not_paired_with_another_task() -> None:
    first = changes([PRE], people([1], ["a"]), [4], task=1)
    second = changes([POST, INSERT], people([1, 2], ["b", "c"]), [5, 6], task=2)
    made = encoder(first)
    assert len(made.encode(first, NOW_MS)) == 0
    with pytest.raises(ValueError, match=r"\('table', 5, 1\) are held back, but rows of \('table', 5, 2\) follow"):
        made.encode(second, NOW_MS)
    assert outline(listed(made.flush(NOW_MS))) == ["d a None 4", "tombstone"]
    assert outline(listed(made.encode(second, NOW_MS))) == ["c None b 5", "c None c 6"]


# Refusals.


def test_a_change_type_without_an_operation_is_refused_and_nothing_is_lost() -> None:
    good, bad = changes([PRE], people([1], ["a"]), [4]), changes(["merged"], people([1], ["b"]), [5])
    made = encoder(good)
    made.encode(good, NOW_MS)
    with pytest.raises(SinkRejected, match="the format has no operation for rows of change type merged"):
        made.encode(bad, NOW_MS)
    assert made.pending is not None
    assert outline(listed(made.flush(NOW_MS))) == ["d a None 4", "tombstone"]


def test_columns_without_a_json_form_or_schema_and_missing_ones_are_refused() -> None:
    interval = pa.array([None], pa.month_day_nano_interval())
    with pytest.raises(SinkRejected, match="column v has type month_day_nano_interval"):
        encoder(changes([INSERT], {"v": interval}), [])
    batch = changes([INSERT], {"v": pa.array([{"n": 1}], pa.struct([("n", pa.uint64())]))})
    assert len(encoded(encoder(batch, []), batch)) == 1
    with pytest.raises(SinkRejected, match=r"column v.n has type uint64, which Kafka Connect's schemas do not have"):
        encoder(batch, [], embed_schemas=True)
    batch = changes([INSERT], {"v": pa.array([{"metadata": b"\1\0\0", "value": b"\0"}], VARIANT)})
    assert len(encoded(encoder(batch, []), batch)) == 1
    with pytest.raises(SinkRejected, match="column v has Variants, which need the option variant"):
        encoder(batch, [], embed_schemas=True)
    batch = changes([INSERT], {"v": pa.array([{"n": 1}], pa.struct([("n", pa.uint64())]))})
    with pytest.raises(SinkRejected, match="no column b, which is part of the key") as caught:
        encoder(batch, ["v", "b"])
    assert caught.value.remedy == "Choose key columns that the table has, and a new topic."
    with pytest.raises(SinkRejected, match="no column _commit_version, which is part of the key"):
        encoder(batch, ["_commit_version"])
    for forms in (JsonForms(decimal="number"), JsonForms(int64="string")):
        with pytest.raises(SinkRejected, match="decimals are strings, and integers of 64 bits numbers"):
            DebeziumEncoder("kafka", batch.rows.schema, SOURCE, embed_schemas=True, forms=forms)
    with pytest.raises(SinkRejected, match="rows of another schema"):
        encoder(batch, []).encode(changes([INSERT], people([1], ["a"])), NOW_MS)
    text = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.array([0, 1], pa.int32()).buffers()[1], pa.py_buffer(b"\xff")]
    )
    batch = changes([INSERT], {"v": text})
    with pytest.raises(SinkRejected, match="column v holds a string that is not UTF-8"):
        encoder(batch, []).encode(batch, NOW_MS)


@pytest.mark.parametrize("moments", [[1, 2], [None, None]])
def test_the_commit_timestamp_is_one(moments: list[int | None]) -> None:
    batch = changes([INSERT] * 2, people([1, 2], ["a", "b"]))
    column = pa.array(moments, METADATA_FIELDS[2].type)
    rows = batch.rows.set_column(batch.rows.schema.get_field_index(COMMIT_TIMESTAMP), METADATA_FIELDS[2], column)
    with pytest.raises(SinkRejected, match="version 5 do not share one commit timestamp"):
        encoder(batch).encode(ChangeBatch("table", 5, 0, rows, batch.row_index), NOW_MS)


# Schemas.


def plain(field: str, kind: str, optional: bool = False, **more: Any) -> dict[str, Any]:
    return {"type": kind, "optional": optional, **more, "field": field}


def test_embedded_schemas() -> None:
    columns = people([1], ["Ann"])
    batch = changes([INSERT], columns)
    ((key, value, _, _),) = encoded(encoder(batch, embed_schemas=True), batch)
    name = "lake.sales.orders"
    fields = [plain("id", "int64", optional=True), plain("name", "string", optional=True)]
    row = {"type": "struct", "fields": fields, "optional": True, "name": f"{name}.Value"}
    key_as_json = {
        "schema": {"type": "struct", "fields": [fields[0]], "optional": False, "name": f"{name}.Key"},
        "payload": {"id": 1},
    }
    assert key == json.dumps(key_as_json, separators=(",", ":"))
    allowed = {"allowed": "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"}
    source = [
        plain("version", "string"),
        plain("connector", "string"),
        plain("name", "string"),
        plain("ts_ms", "int64"),
        {
            "type": "string",
            "optional": True,
            "name": "io.debezium.data.Enum",
            "version": 1,
            "parameters": allowed,
            "default": "false",
            "field": "snapshot",
        },
        plain("db", "string"),
        plain("sequence", "string", optional=True),
        plain("ts_us", "int64", optional=True),
        plain("ts_ns", "int64", optional=True),
        plain("schema", "string", optional=True),
        plain("table", "string"),
        plain("table_id", "string"),
        plain("table_uri", "string", optional=True),
        plain("commit_version", "int64"),
        plain("operation", "string", optional=True),
        plain("txn_id", "string", optional=True),
        plain("file", "string", optional=True),
        plain("row_index", "int64"),
        plain("row_id", "int64", optional=True),
        plain("row_commit_version", "int64", optional=True),
    ]
    transaction = [plain("id", "string"), plain("total_order", "int64"), plain("data_collection_order", "int64")]
    schema = {
        "type": "struct",
        "fields": [
            {**row, "field": "before"},
            {**row, "field": "after"},
            {
                "type": "struct",
                "fields": source,
                "optional": False,
                "name": "io.debezium.connector.delta.Source",
                "version": 1,
                "field": "source",
            },
            {
                "type": "struct",
                "fields": transaction,
                "optional": True,
                "name": "event.block",
                "version": 1,
                "field": "transaction",
            },
            plain("op", "string"),
            plain("ts_ms", "int64", optional=True),
            plain("ts_us", "int64", optional=True),
            plain("ts_ns", "int64", optional=True),
        ],
        "optional": False,
        "name": f"{name}.Envelope",
        "version": 2,
    }
    text = json.dumps(schema, separators=(",", ":"))
    payload = value_text("null", '{"id":1,"name":"Ann"}', "c", 0)
    assert value == f'{{"schema":{text},"payload":{payload}}}'


@cases(
    ("kind", "schema"),
    [
        (pa.bool_(), {"type": "boolean"}),
        (pa.int8(), {"type": "int8"}),
        (pa.int16(), {"type": "int16"}),
        (pa.int32(), {"type": "int32"}),
        (pa.uint8(), {"type": "int16"}),
        (pa.uint32(), {"type": "int64"}),
        (pa.float32(), {"type": "float"}),
        (pa.float64(), {"type": "double"}),
        (pa.string_view(), {"type": "string"}),
        (pa.binary(2), {"type": "bytes"}),
        (pa.decimal128(38, 2), {"type": "string"}),
        (pa.date32(), {"type": "string"}),
        (pa.timestamp("us"), {"type": "string"}),
        (pa.timestamp("ns"), {"type": "string"}),
        (pa.timestamp("ns", "UTC"), {"type": "string", "name": "io.debezium.time.ZonedTimestamp", "version": 1}),
        (pa.timestamp("s", "UTC"), {"type": "string", "name": "io.debezium.time.ZonedTimestamp", "version": 1}),
        (pa.date64(), {"type": "string"}),
        (pa.time32("s"), {"type": "string"}),
        (pa.time64("ns"), {"type": "string"}),
        (pa.duration("us"), {"type": "string"}),
        (pa.float16(), {"type": "float"}),
        (pa.list_(pa.float16(), 2), {"type": "array", "items": {"type": "float", "optional": True}}),
        (pa.timestamp("us", "UTC"), {"type": "string", "name": "io.debezium.time.ZonedTimestamp", "version": 1}),
        (pa.dictionary(pa.int32(), pa.string()), {"type": "string"}),
        (pa.null(), {"type": "string"}),
        (pa.list_(pa.int32()), {"type": "array", "items": {"type": "int32", "optional": True}}),
        (pa.struct([("a", pa.int8())]), {"type": "struct", "fields": [plain("a", "int8", optional=True)]}),
        (
            pa.map_(pa.string(), pa.int32()),
            {
                "type": "map",
                "keys": {"type": "string", "optional": False},
                "values": {"type": "int32", "optional": True},
            },
        ),
        (
            pa.map_(pa.int64(), pa.string()),
            {
                "type": "array",
                "items": {
                    "type": "struct",
                    "fields": [plain("key", "int64"), plain("value", "string", optional=True)],
                    "optional": False,
                },
            },
        ),
    ],
)
def test_types_in_schemas(kind: pa.DataType, schema: dict[str, Any]) -> None:
    (field,) = json.loads(key_schema("t", [pa.field("v", kind)]))["fields"]
    assert field == {**schema, "optional": True, "field": "v"}


def test_columns_of_the_key_are_optional_so_that_its_bytes_stay() -> None:
    keys = {key_schema("t", [pa.field("v", pa.int64(), nullable=nullable)]) for nullable in (False, True)}
    (key,) = keys
    assert json.loads(key)["fields"] == [plain("v", "int64", optional=True)]


def test_a_topic_without_a_schema() -> None:
    assert Source("1", "lake", None, "orders").topic == "lake.orders"


# Random changes, row by row.


def reference(rows: list[Row], task: int, tombstones: bool, schemas: tuple[str, str] | None) -> list[Message]:
    """Build the messages of all rows of a task."""
    seconds = set(updates(rows))
    messages: list[Message] = []
    created = "c" if task < SNAPSHOT_TASKS else "r"

    def framed(text: str, which: int) -> str:
        return text if schemas is None else f'{{"schema":{schemas[which]},"payload":{text}}}'

    def add(op: str, before: Row | None, after: Row | None, index: int, other: tuple[str, str | None] | None) -> None:
        owner = before or after
        assert owner is not None
        key = owner.key and framed(owner.key, 0)
        source = json.loads(source_text(index))
        source["snapshot"] = "false" if created == "c" else "true"
        source["sequence"] = f'["5","{task}","{index}"]'
        members = {
            "before": before.image if before else "null",
            "after": after.image if after else "null",
            "source": json.dumps(source, separators=(",", ":")),
            "transaction": "null",
            "op": json.dumps(op),
            "ts_ms": str(NOW_MS),
            "ts_us": str(NOW_MS * 1000),
            "ts_ns": str(NOW_MS * 1000_000),
        }
        header = (other[0], framed(str(other[1]), 0)) if other else (None, None)
        value = "{" + ",".join(f'"{name}":{text}' for name, text in members.items()) + "}"
        messages.append((key, framed(value, 1), *header))
        if op == "d" and key is not None and tombstones:
            messages.append((key, None, *header))

    for number, row in enumerate(rows):
        if row.kind == INSERT:
            add(created, None, row, row.index, None)
        elif row.kind == DELETE:
            add("d", row, None, row.index, None)
        elif number in seconds:
            earlier = rows[number - 1]
            before, after = (earlier, row) if row.kind == POST else (row, earlier)
            if before.key == after.key:
                add("u", before, after, row.index, None)
            else:
                add("d", before, None, earlier.index, (NEW_KEY, after.key))
                add("c", None, after, row.index, (OLD_KEY, before.key))
        elif number + 1 not in seconds:
            op = "u" if row.key is None else "d" if row.kind == PRE else created
            add(op, row if row.kind == PRE else None, row if row.kind == POST else None, row.index, None)
    return messages


def as_rows(batch: ChangeBatch, key: Sequence[str], decimal: DecimalForm) -> list[Row]:
    """Return the rows as the reference needs them; `d` is the column of decimals."""
    texts = row_texts(batch.rows.select(batch.rows.schema.names[: -len(METADATA_FIELDS)]))
    if decimal == "number":
        texts = (re.sub(r'"d":"([-.0-9]+)"', r'"d":\1', text) for text in texts)
    keys = row_texts(batch.rows.select(list(key))) if key else iter([None] * len(batch))
    kinds = batch.rows.column(CHANGE_TYPE).to_pylist()
    fields = zip(kinds, batch.row_index.to_pylist(), keys, texts, strict=True)
    return [Row(*row) for row in fields]


@settings(max_examples=repeats(30))
@given(
    histories(),
    st.sampled_from([(), ("id",), ("id2", "id")]),
    st.booleans(),
    st.sampled_from([(False, "string"), (False, "number"), (True, "string")]),
    st.lists(st.integers(0, 14), max_size=4),
)
def test_messages_equal_the_reference_wherever_batches_are_cut(
    batch: ChangeBatch, key: tuple[str, ...], tombstones: bool, form: tuple[bool, DecimalForm], cuts: list[int]
) -> None:
    embed, decimal = form
    schema = batch.rows.schema
    # Embedded schemas have no form of NaN and the infinities: those are refused, which other tests show.
    assume(not embed or not any(map(not_finite, batch.rows.columns)))
    columns = [schema.field(name) for name in schema.names[: -len(METADATA_FIELDS)]]
    schemas = None
    if embed:
        keys = [schema.field(name) for name in key]
        schemas = key_schema(SOURCE.topic, keys), envelope_schema(SOURCE.topic, columns)
    made = DebeziumEncoder("kafka", schema, SOURCE, key, embed, tombstones, JsonForms(decimal=decimal))
    ends = sorted({min(cut, len(batch)) for cut in cuts} | {len(batch)})
    messages = []
    for start, end in pairwise([0, *ends]):
        messages += listed(made.encode(batch.slice(start, end - start), NOW_MS))
        held = made.pending
        assert held is None or held.row_index.equals(batch.row_index.slice(end - len(held), len(held)))
    messages += listed(made.flush(NOW_MS))
    assert messages == reference(as_rows(batch, key, decimal), batch.task, tombstones, schemas)
    for message_key, value, _, header in messages:
        for text in filter(None, (message_key, value, header)):
            parsed = json.loads(text)
            assert not embed or conforms(parsed["payload"], parsed["schema"]), text


def conforms(value: Any, schema: dict[str, Any]) -> bool:
    """Return whether a JSON value matches its schema, as Kafka Connect reads it."""
    if value is None:
        return bool(schema["optional"])
    match schema["type"]:
        case "struct":
            names = [field["field"] for field in schema["fields"]]
            return list(value) == names and all(conforms(value[field["field"]], field) for field in schema["fields"])
        case "array":
            return isinstance(value, list) and all(conforms(item, schema["items"]) for item in value)
        case "map":
            return isinstance(value, dict) and all(conforms(item, schema["values"]) for item in value.values())
        case "bytes":
            return isinstance(base64.b64decode(value, validate=True), bytes)
        case "float" | "double":
            return isinstance(value, float) or value in {"NaN", "Infinity", "-Infinity"}
        case "boolean":
            return isinstance(value, bool)
        case "string":
            return isinstance(value, str)
        case kind:
            bits = int(kind.removeprefix("int"))
            return isinstance(value, int) and -(2 ** (bits - 1)) <= value < 2 ** (bits - 1)
