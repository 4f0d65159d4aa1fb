"""Debezium's messages, field by field: documents written by hand from Debezium's description of its envelope.

Values are compared as text, so that the order of fields counts. The names and the order of the fields are also listed
on their own, with and without schemas.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tailer.events import ChangeBatch
from tailer.plan import SNAPSHOT_TASKS
from tailer_sinks.encoding.debezium.messages import DebeziumEncoder, Source
from tailer_sinks.encoding.messages import Messages
from tests.support.tables.change_rows import DELETE, INSERT, POST, PRE, changes

SOURCE = Source("1.2.3", "lake", "sales", "orders", "s3://bucket/orders", db="main")
NOW_MS = 1772366401234

Message = tuple[str | None, str | None, dict[str, str]]

ENVELOPE = ["before", "after", "source", "transaction", "op", "ts_ms", "ts_us", "ts_ns"]
COMMON_SOURCE = ["version", "connector", "name", "ts_ms", "snapshot", "db", "sequence", "ts_us", "ts_ns"]
OUR_SOURCE = [
    *("schema", "table", "table_id", "table_uri", "commit_version", "operation", "txn_id", "file"),
    *("row_index", "row_id", "row_commit_version"),
]

ORDERS: dict[str, tuple[pa.Field, Sequence[Any]]] = {
    "id": (pa.field("id", pa.int64(), nullable=False), [1, 1, 2, 2, 3, 4, 5]),
    "amount": (
        pa.field("amount", pa.decimal128(12, 2)),
        [Decimal("10.00"), Decimal("10.00"), Decimal("-0.50"), Decimal("9999999999.99"), None, Decimal("1.10"), None],
    ),
    "placed": (
        pa.field("placed", pa.timestamp("us", "UTC")),
        [1772366400000005, 1772366400000005, 0, -1, None, 253402300799999999, None],
    ),
    "shipped": (
        pa.field("shipped", pa.timestamp("us")),
        [1772366400000000, None, None, 1772366400000001, None, 1, None],
    ),
    "day": (pa.field("day", pa.date32()), [20513, 20513, None, 0, None, -1, None]),
    "weight": (pa.field("weight", pa.float64()), [1.5, 1.5, float("nan"), 1e300, None, float("-inf"), None]),
    "seal": (pa.field("seal", pa.binary()), [b"\x00\xff", b"", None, b"abc", None, b"a", None]),
    "tags": (pa.field("tags", pa.list_(pa.string())), [["a", None], [], None, ["b"], None, ["ü\n"], None]),
    "to": (
        pa.field("to", pa.struct([("zip", pa.int32()), ("lines", pa.list_(pa.string()))])),
        [{"zip": 1, "lines": ["x"]}, {"zip": None, "lines": None}, None, {"zip": 2, "lines": []}, None, None, None],
    ),
    "notes": (
        pa.field("notes", pa.map_(pa.string(), pa.int64())),
        [[("k", 1)], [], None, [("k", None), ("l", 2**53 + 1)], None, [], None],
    ),
    "ranks": (pa.field("ranks", pa.map_(pa.int32(), pa.string())), [[(1, "a")], [], None, [(2, None)], None, [], None]),
}
KINDS = [PRE, POST, PRE, POST, DELETE, INSERT, INSERT]
ROW_INDEX = [4, 4, 7, 8, 9, 11, 12]


def orders(task: int = 3, kinds: Sequence[str] = KINDS) -> ChangeBatch:
    columns = {name: pa.array(values, field.type) for name, (field, values) in ORDERS.items()}
    batch = changes(kinds, columns, ROW_INDEX, task)
    fields = [field for field, _ in ORDERS.values()] + list(batch.rows.schema)[len(ORDERS) :]
    rows = pa.RecordBatch.from_arrays(batch.rows.columns, schema=pa.schema(fields))
    return ChangeBatch(batch.table_id, batch.version, batch.task, rows, batch.row_index)


def encoded(batch: ChangeBatch, key: Sequence[str], **options: Any) -> list[Message]:
    """Return key, value and headers of each message."""
    encoder = DebeziumEncoder("kafka", batch.rows.schema, SOURCE, key, **options)
    messages = [encoder.encode(batch, NOW_MS), encoder.flush(NOW_MS)]
    return [message for part in messages if part is not None for message in listed(part)]


def listed(messages: Messages) -> list[Message]:
    keys = [None] * len(messages) if messages.keys is None else messages.keys.to_pylist()
    found = []
    for number, (key, value) in enumerate(zip(keys, messages.values.to_pylist(), strict=True)):
        headers = {
            name: column[number].as_py().decode() for name, column in messages.headers if column[number].is_valid
        }
        found.append((key and key.decode(), value and value.decode(), headers))
    return found


def compact(document: str) -> str:
    """Return a document written in lines as the text it is in a message."""
    return json.dumps(json.loads(document), ensure_ascii=False, separators=(",", ":"))


ONE_BEFORE = """{
    "id": 1, "amount": "10.00", "placed": "2026-03-01T12:00:00.000005Z", "shipped": "2026-03-01T12:00:00.000000",
    "day": "2026-03-01", "weight": 1.5, "seal": "AP8=", "tags": ["a", null], "to": {"zip": 1, "lines": ["x"]},
    "notes": {"k": 1}, "ranks": [{"key": 1, "value": "a"}]
}"""
ONE_AFTER = """{
    "id": 1, "amount": "10.00", "placed": "2026-03-01T12:00:00.000005Z", "shipped": null,
    "day": "2026-03-01", "weight": 1.5, "seal": "", "tags": [], "to": {"zip": null, "lines": null},
    "notes": {}, "ranks": []
}"""
TWO_BEFORE = """{
    "id": 2, "amount": "-0.50", "placed": "1970-01-01T00:00:00.000000Z", "shipped": null,
    "day": null, "weight": "NaN", "seal": null, "tags": null, "to": null, "notes": null, "ranks": null
}"""
TWO_AFTER = """{
    "id": 2, "amount": "9999999999.99", "placed": "1969-12-31T23:59:59.999999Z",
    "shipped": "2026-03-01T12:00:00.000001", "day": "1970-01-01", "weight": 1e+300, "seal": "YWJj", "tags": ["b"],
    "to": {"zip": 2, "lines": []}, "notes": {"k": null, "l": 9007199254740993}, "ranks": [{"key": 2, "value": null}]
}"""
THREE = """{
    "id": 3, "amount": null, "placed": null, "shipped": null, "day": null, "weight": null, "seal": null, "tags": null,
    "to": null, "notes": null, "ranks": null
}"""
FOUR = """{
    "id": 4, "amount": "1.10", "placed": "9999-12-31T23:59:59.999999Z", "shipped": "1970-01-01T00:00:00.000001",
    "day": "1969-12-31", "weight": "-Infinity", "seal": "YQ==", "tags": ["ü\\n"], "to": null, "notes": {}, "ranks": []
}"""
FIVE = THREE.replace('"id": 3', '"id": 5')


def document(op: str, before: str, after: str, row: int, task: int = 3, snapshot: str = "false") -> str:
    return f"""{{
        "before": {before},
        "after": {after},
        "source": {{
            "version": "1.2.3",
            "connector": "delta",
            "name": "lake",
            "ts_ms": 1772366400000,
            "snapshot": "{snapshot}",
            "db": "main",
            "sequence": "[\\"5\\",\\"{task}\\",\\"{row}\\"]",
            "ts_us": 1772366400000005,
            "ts_ns": 1772366400000005000,
            "schema": "sales",
            "table": "orders",
            "table_id": "table",
            "table_uri": "s3://bucket/orders",
            "commit_version": 5,
            "operation": null,
            "txn_id": null,
            "file": null,
            "row_index": {row},
            "row_id": null,
            "row_commit_version": null
        }},
        "transaction": null,
        "op": "{op}",
        "ts_ms": 1772366401234,
        "ts_us": 1772366401234000,
        "ts_ns": 1772366401234000000
    }}"""


# The changes of the rows above: (operation, before, after, row); a tombstone is None.
BY_ID = [
    ("u", ONE_BEFORE, ONE_AFTER, 4),
    ("u", TWO_BEFORE, TWO_AFTER, 8),
    ("d", THREE, "null", 9),
    None,
    ("c", "null", FOUR, 11),
    ("c", "null", FIVE, 12),
]


def test_messages_of_a_table_with_a_key() -> None:
    keys = [f'{{"id":{number}}}' for number in (1, 2, 3, 3, 4, 5)]
    values = [event and compact(document(*event)) for event in BY_ID]
    assert encoded(orders(), ["id"]) == [(key, value, {}) for key, value in zip(keys, values, strict=True)]


def test_messages_of_a_table_without_a_key() -> None:
    assert encoded(orders(), []) == [(None, compact(document(*event)), {}) for event in BY_ID if event]


def test_a_key_of_several_columns_that_changes() -> None:
    two_before = '{"id":2,"shipped":null}'
    two_after = '{"id":2,"shipped":"2026-03-01T12:00:00.000001"}'
    one_before = '{"id":1,"shipped":"2026-03-01T12:00:00.000000"}'
    one_after = '{"id":1,"shipped":null}'
    new, old = "__debezium.newkey", "__debezium.oldkey"
    assert encoded(orders(), ["id", "shipped"])[:6] == [
        (one_before, compact(document("d", ONE_BEFORE, "null", 4)), {new: one_after}),
        (one_before, None, {new: one_after}),
        (one_after, compact(document("c", "null", ONE_AFTER, 4)), {old: one_before}),
        (two_before, compact(document("d", TWO_BEFORE, "null", 7)), {new: two_after}),
        (two_before, None, {new: two_after}),
        (two_after, compact(document("c", "null", TWO_AFTER, 8)), {old: two_before}),
    ]


def test_messages_of_a_snapshot() -> None:
    task = SNAPSHOT_TASKS + 2
    messages = encoded(orders(task, [INSERT] * 7), ["id"])
    rows = [ONE_BEFORE, ONE_AFTER, TWO_BEFORE, TWO_AFTER, THREE, FOUR, FIVE]
    documents = [document("r", "null", row, index, task, "true") for row, index in zip(rows, ROW_INDEX, strict=True)]
    assert [value for _, value, _ in messages] == [compact(text) for text in documents]


@pytest.mark.parametrize("embed_schemas", [False, True])
def test_the_fields_and_their_order(embed_schemas: bool) -> None:
    for _, value, _ in encoded(finite_orders(), ["id"], embed_schemas=embed_schemas):
        if value is None:
            continue
        message = json.loads(value)
        payload = message["payload"] if embed_schemas else message
        assert list(payload) == ENVELOPE
        assert list(payload["source"]) == COMMON_SOURCE + OUR_SOURCE
        if embed_schemas:
            assert list(message) == ["schema", "payload"]
            fields = message["schema"]["fields"]
            assert [field["field"] for field in fields] == ENVELOPE
            assert [field["field"] for field in fields[2]["fields"]] == COMMON_SOURCE + OUR_SOURCE


STRING = '{"type": "string", "optional": true}'
ROW_FIELDS = f"""[
    {{"type": "int64", "optional": false, "field": "id"}},
    {{"type": "string", "optional": true, "field": "amount"}},
    {{"type": "string", "optional": true, "name": "io.debezium.time.ZonedTimestamp", "version": 1, "field": "placed"}},
    {{"type": "string", "optional": true, "field": "shipped"}},
    {{"type": "string", "optional": true, "field": "day"}},
    {{"type": "double", "optional": true, "field": "weight"}},
    {{"type": "bytes", "optional": true, "field": "seal"}},
    {{"type": "array", "items": {STRING}, "optional": true, "field": "tags"}},
    {{"type": "struct", "fields": [
        {{"type": "int32", "optional": true, "field": "zip"}},
        {{"type": "array", "items": {STRING}, "optional": true, "field": "lines"}}
    ], "optional": true, "field": "to"}},
    {{"type": "map", "keys": {{"type": "string", "optional": false}},
      "values": {{"type": "int64", "optional": true}}, "optional": true, "field": "notes"}},
    {{"type": "array", "items": {{"type": "struct", "fields": [
        {{"type": "int32", "optional": false, "field": "key"}},
        {{"type": "string", "optional": true, "field": "value"}}
    ], "optional": false}}, "optional": true, "field": "ranks"}}
]"""
ENVELOPE_SCHEMA = f"""{{
    "type": "struct",
    "fields": [
        {{"type": "struct", "fields": {ROW_FIELDS}, "optional": true, "name": "lake.sales.orders.Value",
          "field": "before"}},
        {{"type": "struct", "fields": {ROW_FIELDS}, "optional": true, "name": "lake.sales.orders.Value",
          "field": "after"}},
        {{"type": "struct", "fields": [
            {{"type": "string", "optional": false, "field": "version"}},
            {{"type": "string", "optional": false, "field": "connector"}},
            {{"type": "string", "optional": false, "field": "name"}},
            {{"type": "int64", "optional": false, "field": "ts_ms"}},
            {{"type": "string", "optional": true, "name": "io.debezium.data.Enum", "version": 1,
              "parameters": {{"allowed":
                  "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"}},
              "default": "false", "field": "snapshot"}},
            {{"type": "string", "optional": false, "field": "db"}},
            {{"type": "string", "optional": true, "field": "sequence"}},
            {{"type": "int64", "optional": true, "field": "ts_us"}},
            {{"type": "int64", "optional": true, "field": "ts_ns"}},
            {{"type": "string", "optional": true, "field": "schema"}},
            {{"type": "string", "optional": false, "field": "table"}},
            {{"type": "string", "optional": false, "field": "table_id"}},
            {{"type": "string", "optional": true, "field": "table_uri"}},
            {{"type": "int64", "optional": false, "field": "commit_version"}},
            {{"type": "string", "optional": true, "field": "operation"}},
            {{"type": "string", "optional": true, "field": "txn_id"}},
            {{"type": "string", "optional": true, "field": "file"}},
            {{"type": "int64", "optional": false, "field": "row_index"}},
            {{"type": "int64", "optional": true, "field": "row_id"}},
            {{"type": "int64", "optional": true, "field": "row_commit_version"}}
        ], "optional": false, "name": "io.debezium.connector.delta.Source", "version": 1, "field": "source"}},
        {{"type": "struct", "fields": [
            {{"type": "string", "optional": false, "field": "id"}},
            {{"type": "int64", "optional": false, "field": "total_order"}},
            {{"type": "int64", "optional": false, "field": "data_collection_order"}}
        ], "optional": true, "name": "event.block", "version": 1, "field": "transaction"}},
        {{"type": "string", "optional": false, "field": "op"}},
        {{"type": "int64", "optional": true, "field": "ts_ms"}},
        {{"type": "int64", "optional": true, "field": "ts_us"}},
        {{"type": "int64", "optional": true, "field": "ts_ns"}}
    ],
    "optional": false,
    "name": "lake.sales.orders.Envelope",
    "version": 2
}}"""
KEY_SCHEMA = """{
    "type": "struct",
    "fields": [{"type": "int64", "optional": true, "field": "id"}],
    "optional": false,
    "name": "lake.sales.orders.Key"
}"""


def test_messages_with_their_schemas() -> None:
    expected: list[Message] = []
    for event, number in zip(BY_ID, (1, 2, 3, 3, 4, 5), strict=True):
        key = compact(f'{{"schema": {KEY_SCHEMA}, "payload": {{"id": {number}}}}}')
        value = event and compact(f'{{"schema": {ENVELOPE_SCHEMA}, "payload": {document(*event)}}}')
        expected.append((key, value and finite(value), {}))
    assert encoded(finite_orders(), ["id"], embed_schemas=True) == expected


def finite_orders() -> ChangeBatch:
    """Make orders with finite numbers only: messages with schemas have no form for others."""
    batch = orders()
    weights = batch.rows.column("weight")
    finite_weights = pc.if_else(pc.is_finite(weights), weights, 2.5)
    rows = batch.rows.set_column(batch.rows.schema.get_field_index("weight"), "weight", finite_weights)
    return replace(batch, rows=rows)


def finite(text: str) -> str:
    """Return a message of `orders` as one of `finite_orders`."""
    return text.replace('"NaN"', "2.5").replace('"-Infinity"', "2.5")


def test_row_tracking_is_in_the_source_block() -> None:
    columns = {
        "id": pa.array([1, 1, 2]),
        "_row_id": pa.array([70, 70, None], pa.int64()),
        "_row_commit_version": pa.array([3, 5, None], pa.int64()),
    }
    messages = encoded(changes([PRE, POST, INSERT], columns, [4, 4, 5]), ["id"])
    update = document("u", '{"id": 1}', '{"id": 1}', 4).replace('"row_id": null', '"row_id": 70')
    update = update.replace('"row_commit_version": null', '"row_commit_version": 5')
    assert [value for _, value, _ in messages] == [
        compact(update),
        compact(document("c", "null", '{"id": 2}', 5)),
    ]
