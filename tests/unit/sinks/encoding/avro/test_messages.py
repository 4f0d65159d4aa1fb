"""Avro messages: every type read back by fastavro, and every message equal to the JSON encoders'."""

import io
import json
import struct
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from fastavro import schemaless_reader, schemaless_writer
from hypothesis import given, settings
from hypothesis import strategies as st

from tailer.errors import SinkRejected
from tailer.events import CHANGE_TYPE, METADATA_FIELDS, VARIANT, ChangeBatch
from tailer.plan import SNAPSHOT_TASKS
from tailer_sinks.encoding.avro.columns import joined, writer_for
from tailer_sinks.encoding.avro.messages import DebeziumAvroEncoder, FlatAvroEncoder
from tailer_sinks.encoding.avro.schema import avro_name, full_name, record_schema
from tailer_sinks.encoding.columns import NoText
from tailer_sinks.encoding.debezium.images import PairingEncoder
from tailer_sinks.encoding.debezium.messages import DebeziumEncoder, Source
from tailer_sinks.encoding.debezium.operations import NEW_KEY, OLD_KEY
from tailer_sinks.encoding.flat_messages import FlatMessages
from tailer_sinks.encoding.messages import Messages
from tailer_sinks.testing import change_batch
from tailer_sinks.testing.rows import DELTA_TYPES
from tests.support.cases import cases
from tests.support.seeds import repeats

KINDS = ["insert", "delete", "update_preimage", "update_postimage"]
SOURCE = Source("0.1.0", "lake", "sales", "orders", "s3://bucket/orders", db="main")
NOW_MS = 1772366401234


class Registered:
    """A registry whose ids begin with 300, which takes two bytes."""

    def __init__(self) -> None:
        self.schemas: dict[str, dict[str, Any]] = {}
        self.by_id: dict[int, dict[str, Any]] = {}

    def __call__(self, subject: str, schema: str) -> int:
        number = 300 + len(self.by_id)
        self.schemas[subject] = self.by_id[number] = json.loads(schema)
        return number

    def read(self, message: bytes | None) -> Any:
        """Read a message as a consumer with the registry does."""
        if message is None:
            return None
        assert message[:1] == b"\x00"
        return read(message[5:], self.by_id[int.from_bytes(message[1:5], "big")])


def read(data: bytes, schema: Any) -> Any:
    """Read the value, which must take all the bytes."""
    buffer = io.BytesIO(data)
    value = schemaless_reader(buffer, schema, None)
    assert buffer.read() == b""
    return value


def plain(schema: Any) -> Any:
    """Return the schema without logical types."""
    if isinstance(schema, list):
        return [plain(branch) for branch in schema]
    if isinstance(schema, dict):
        return {name: plain(value) for name, value in schema.items() if name != "logicalType"}
    return schema


def encoded(column: pa.Array, nullable: bool = True) -> tuple[list[bytes], dict[str, Any]]:
    """Encode a column's values as records of one field; return them and the schema."""
    field = pa.field("v", column.type, nullable)
    rows = pa.StructArray.from_arrays([column], fields=[field])
    parts = writer_for(pa.struct([field]), nullable=False)(rows)
    return joined(parts, len(rows)).to_pylist(), record_schema("t.Value", [field])


def values_of(column: pa.Array, nullable: bool = True) -> list[Any]:
    texts, schema = encoded(column, nullable)
    return [read(text, schema)["v"] for text in texts]


def expected(value: Any, kind: pa.DataType) -> Any:
    """Return the value that fastavro must give for an Arrow value."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: expected(value[field.name], field.type) for field in kind}
    if pa.types.is_map(kind):
        entries = [(key, expected(item, kind.item_type)) for key, item in value]
        if pa.types.is_string(kind.key_type):
            return dict(entries)
        return [{"key": key, "value": item} for key, item in entries]
    if pa.types.is_list(kind):
        return [expected(item, kind.value_type) for item in value]
    if isinstance(value, float):
        return struct.pack("<d", value)
    return value


def comparable(value: Any) -> Any:
    return struct.pack("<d", value) if isinstance(value, float) else value


@cases("name", DELTA_TYPES)
def test_every_type_is_read_back(name: str) -> None:
    kind, values = DELTA_TYPES[name]
    for column in (
        pa.array([*values, None], kind),
        pa.array([None, *values, None, *values], kind).slice(2, len(values)),
        pa.array(values[:1] * 3, kind),
        pa.array([None, None], kind),
        pa.array([], kind),
    ):
        decoded = [comparable(value) for value in values_of(column)]
        assert decoded == [expected(value, kind) for value in column.to_pylist()]
    if kind != pa.null():
        column = pa.array(values, kind)
        decoded = [comparable(value) for value in values_of(column, nullable=False)]
        assert decoded == [expected(value, kind) for value in column.to_pylist()]


@settings(max_examples=repeats(20))
@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1) | st.integers(-70_000, 70_000), max_size=20))
def test_integers_have_the_bytes_that_fastavro_writes(numbers: list[int | None]) -> None:
    texts, schema = encoded(pa.array(numbers, pa.int64()))
    assert texts == [written({"v": number}, schema) for number in numbers]


@settings(max_examples=repeats(20))
@given(st.lists(st.none() | st.lists(st.none() | st.text(max_size=200), max_size=4), max_size=8))
def test_lists_have_the_bytes_that_fastavro_writes(lists: list[list[str | None] | None]) -> None:
    texts, schema = encoded(pa.array(lists, pa.list_(pa.string())))
    assert texts == [written({"v": items}, schema) for items in lists]


@cases("number", [0, 63, 64, 8191, 8192, 2**20, 2**27 - 1, 2**27, 2**41, 2**55, 2**62, 2**63 - 1])
def test_integers_at_the_edges_of_their_groups(number: int) -> None:
    numbers = [number, -number, -number - 1, number // 2, 0]
    texts, schema = encoded(pa.array(numbers, pa.int64()), nullable=False)
    assert texts == [written({"v": value}, schema) for value in numbers]


def written(value: Any, schema: Any) -> bytes:
    buffer = io.BytesIO()
    schemaless_writer(buffer, schema, value)
    return buffer.getvalue()


def test_days_and_moments_of_any_year() -> None:
    days = [-719_529, 108_000_000, -(2**31), 2**31 - 1, None]  # year -1, year 297664
    moments = [-62_167_219_200_000_001, 9_404_000_000_000_000_000 // 10 * 9, -(2**63), 2**63 - 1, None]
    for kind, numbers in ((pa.date32(), days), (pa.timestamp("us"), moments), (pa.timestamp("us", "UTC"), moments)):
        integers = pa.array(numbers, pa.int32() if kind == pa.date32() else pa.int64())
        texts, schema = encoded(integers.view(kind))
        assert [read(text, plain(schema))["v"] for text in texts] == numbers


def test_signs_of_nothing_and_of_no_number() -> None:
    bits = [0x7FF8_0000_0000_0001, 0xFFF0_0000_0000_0000, 0x8000_0000_0000_0000]
    texts, _ = encoded(pa.array(bits, pa.uint64()).view(pa.float64()), nullable=False)
    assert texts == [struct.pack("<Q", number) for number in bits]


@cases(
    ("column", "values"),
    [
        (pa.array(["a", None, "b", "a"]).dictionary_encode(), ["a", None, "b", "a"]),
        (pa.array(["a", "b", "c"], pa.string_view()).dictionary_encode().slice(1, 1), ["b"]),
        (pa.DictionaryArray.from_arrays(pa.array([0, 1, 1]), pa.array([None, 7])), [None, 7, 7]),
        (pa.array(["a", None], pa.string_view()), ["a", None]),
        (pa.array([b"a", None], pa.binary_view()), [b"a", None]),
        (pa.array([b"ab", None], pa.binary(2)), [b"ab", None]),
        (pa.array(["a", None], pa.large_string()), ["a", None]),
        (pa.array([[1], None, []], pa.large_list(pa.int8())), [[1], None, []]),
        (pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int32(), 2)).slice(1), [None, [3, 4]]),
        (pa.array([Decimal("1.5"), Decimal("-9.9")], pa.decimal32(2, 1)), [Decimal("1.5"), Decimal("-9.9")]),
        (pa.array([Decimal("-" + 60 * "9")], pa.decimal256(60, 0)), [Decimal("-" + 60 * "9")]),
        (pa.array([255, 0], pa.uint8()), [255, 0]),
        (
            pa.ListArray.from_arrays(pa.array([0, 2, 3]), pa.array(["a", None, "a"]).dictionary_encode()),
            [["a", None], ["a"]],
        ),
        (pa.array([2**32 - 1, 0], pa.uint32()), [2**32 - 1, 0]),
        (pa.array([{"metadata": b"m", "value": b"v"}, None], VARIANT), [{"metadata": b"m", "value": b"v"}, None]),
    ],
)
def test_other_layouts(column: pa.Array, values: list[Any]) -> None:
    assert values_of(column) == values


def test_values_under_a_null_struct_are_not_encoded() -> None:
    fields = [pa.field("n", pa.int64(), nullable=False), pa.field("s", pa.string())]
    below = [pa.array([1, None, 3], pa.int64()), pa.array(["a", "hidden", "c"])]
    column = pa.StructArray.from_arrays(below, fields=fields, mask=pa.array([False, True, False]))
    assert values_of(column) == [{"n": 1, "s": "a"}, None, {"n": 3, "s": "c"}]


def test_a_struct_without_fields() -> None:
    column = pa.array([{}, None], pa.struct([]))
    assert values_of(column) == [{}, None]


def test_nulls_that_must_not_be() -> None:
    with pytest.raises(NoText, match="column v holds null, but is declared without nulls"):
        encoded(pa.array([1, None]), nullable=False)
    with pytest.raises(NoText, match="column v holds null"):
        encoded(pa.array(["a", None]).dictionary_encode(), nullable=False)
    with pytest.raises(NoText, match="column v holds null"):
        encoded(pa.array([[1, None]], pa.list_(pa.field("item", pa.int64(), nullable=False))))
    with pytest.raises(NoText, match="column v holds null"):
        encoded(pa.array([[None]], pa.list_(pa.field("item", pa.struct([("a", pa.int64())]), nullable=False))))
    with pytest.raises(NoText, match="column v holds null"):
        encoded(pa.DictionaryArray.from_arrays(pa.array([0]), pa.array([None], pa.string())), nullable=False)


def test_values_that_their_type_does_not_have() -> None:
    one = pa.array([Decimal("123.45")], pa.decimal128(10, 2))
    with pytest.raises(NoText, match="column v holds a number of more than the 4 digits of its type"):
        encoded(pa.Array.from_buffers(pa.decimal128(4, 2), 1, one.buffers()))
    text = pa.array([b"\xff"]).view(pa.string())
    with pytest.raises(NoText, match="column v holds a string that is not UTF-8"):
        encoded(text)


EDGES = [0, 1, -1, 10**9, 2**62 // 10**6, -(2**62) // 10**6, None]
TIMES = [0, 1, 86_399, None]


@cases(
    ("kind", "counts", "factor", "form"),
    [
        (pa.timestamp("s"), EDGES, 1000, ("long", "local-timestamp-millis")),
        (pa.timestamp("ms", "UTC"), EDGES, 1, ("long", "timestamp-millis")),
        (pa.timestamp("us"), EDGES, 1, ("long", "local-timestamp-micros")),
        (pa.timestamp("ns"), [*EDGES, 2**63 - 1, -(2**63)], 1, ("long", "local-timestamp-nanos")),
        (pa.timestamp("ns", "Europe/Berlin"), [*EDGES, 2**63 - 1], 1, ("long", "timestamp-nanos")),
        (pa.time32("s"), TIMES, 1000, ("int", "time-millis")),
        (pa.time32("ms"), [*TIMES, 86_399_999], 1, ("int", "time-millis")),
        (pa.time64("us"), [*TIMES, 86_399_999_999], 1, ("long", "time-micros")),
        (pa.time64("ns"), [*TIMES, 86_399_999_999_999], 1, ("long", "io.debezium.time.NanoTime")),
        (pa.duration("s"), EDGES, 10**6, ("long", "io.debezium.time.MicroDuration")),
        (pa.duration("ms"), EDGES, 10**3, ("long", "io.debezium.time.MicroDuration")),
        (pa.duration("us"), [*EDGES, 2**63 - 1, -(2**63)], 1, ("long", "io.debezium.time.MicroDuration")),
        (pa.duration("ns"), [*EDGES, 2**63 - 1, -(2**63)], 1, ("long", "io.debezium.time.NanoDuration")),
        (pa.date64(), [0, 86_400_000, -86_400_000, 86_400_000 * (2**31 - 1), None], 1 / 86_400_000, ("int", "date")),
        (pa.uint64(), [0, 1, 2**64 - 1, None], 1, ("bytes", "decimal")),
    ],
)
def test_types_that_delta_lacks(
    kind: pa.DataType, counts: list[int | None], factor: float, form: tuple[str, str]
) -> None:
    """The numbers are exact, the type names their unit."""
    numbers = pa.array(
        counts, pa.int32() if kind.bit_width == 32 else pa.uint64() if kind == pa.uint64() else pa.int64()
    )
    column = numbers.view(kind)
    wanted = [None if count is None else round(count * factor) for count in counts]
    for some, expected in ((column, wanted), (column.slice(1, 2), wanted[1:3]), (column.dictionary_encode(), wanted)):
        texts, schema = encoded(some)
        inner = schema["fields"][0]["type"][1]
        assert (inner["type"], inner.get("logicalType") or inner["connect.name"]) == form
        found = [read(text, plain(schema) if form[1] != "decimal" else schema)["v"] for text in texts]
        assert found == expected


def test_half_floats_are_floats() -> None:
    numbers = [0.0999755859375, -0.0, 65504.0, 2.0**-24, float("inf"), None]
    column = pa.array(numbers, pa.float16())
    assert [comparable(value) for value in values_of(column)] == [comparable(value) for value in numbers]
    vectors = pa.array([[0.5, None], None, [1.5, -2.0]], pa.list_(pa.float16(), 2))
    assert values_of(vectors) == [[0.5, None], None, [1.5, -2.0]]
    assert encoded(vectors)[1]["fields"][0]["type"][1] == {"type": "array", "items": ["null", "float"]}


@cases(
    ("kind", "count", "reason"),
    [
        (pa.time32("s"), 86_400, "a time that is not between 00:00 and 24:00"),
        (pa.time64("ns"), -1, "a time that is not between 00:00 and 24:00"),
        (pa.date64(), 1, "a date that is not midnight"),
        (pa.date64(), 86_400_000 * 2**31, "a date that Avro's days do not reach"),
        (pa.timestamp("s"), 2**62, r"a timestamp\[s\] that does not fit 64 bits with 3 digits of a second"),
        (pa.duration("ms"), -(2**62), r"a duration\[ms\] that does not fit 64 bits with 6 digits of a second"),
    ],
)
def test_counts_that_their_form_does_not_have(kind: pa.DataType, count: int, reason: str) -> None:
    with pytest.raises(NoText, match=f"column v holds {reason}"):
        encoded(pa.array([0, count], pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind))


@pytest.mark.parametrize("kind", [pa.month_day_nano_interval(), pa.list_view(pa.int8()), pa.decimal128(5, -2)])
def test_types_without_a_form_are_refused(kind: pa.DataType) -> None:
    batch = change_batch(1, {"s": pa.array([None], pa.struct([("x", pa.list_(kind))]))})
    with pytest.raises(SinkRejected, match=r"column s\.x has type .* Avro") as caught:
        FlatAvroEncoder("kafka", batch.rows.schema, "t", Registered())
    assert "Leave the column out" in caught.value.hint


def test_names() -> None:
    assert avro_name("a_1") == "a_1"
    assert avro_name("1a b") == "_u0031a_u0020b"
    assert avro_name("é😀") == "_u00e9_ud83d_ude00"
    assert avro_name("") == "_"
    assert full_name("lake.my-db.t", "Value") == "lake.my_u002ddb.t.Value"
    schema = record_schema("t.Value", [pa.field("a b", pa.int64()), pa.field("c", pa.int64())])
    assert schema["fields"] == [
        {"name": "a_u0020b", "type": ["null", "long"], "default": None, "column": "a b"},
        {"name": "c", "type": ["null", "long"], "default": None},
    ]


def test_two_columns_of_one_name() -> None:
    batch = change_batch(1, {"a b": pa.array([1]), "a_u0020b": pa.array([2])})
    with pytest.raises(SinkRejected, match="a_u0020b has the same name in Avro, a_u0020b, as the column a b"):
        FlatAvroEncoder("kafka", batch.rows.schema, "t", Registered())


def test_records_of_one_schema_have_different_names() -> None:
    inner = pa.struct([("item", pa.struct([("x", pa.int64())]))])
    fields = [
        pa.field("a", pa.list_(inner)),
        pa.field("b", pa.map_(pa.string(), inner)),
        pa.field("c", pa.map_(pa.int32(), inner)),
        pa.field("item", inner),
    ]
    assert fastavro.parse_schema(record_schema("t.Value", fields))


def test_schemas_do_not_depend_on_what_is_in_the_table() -> None:
    registered = Registered()
    columns = {"id": pa.array([1], pa.int64()), "price": pa.array([None], pa.decimal128(10, 2))}
    batch = change_batch(5, columns)
    FlatAvroEncoder("kafka", batch.rows.schema, "lake.orders", registered, ["id"])
    assert registered.schemas == {
        "lake.orders-key": {
            "type": "record",
            "name": "Key",
            "namespace": "lake.orders",
            "fields": [{"name": "id", "type": ["null", "long"], "default": None}],
            "connect.name": "lake.orders.Key",
        },
        "lake.orders-value": {
            "type": "record",
            "name": "Value",
            "namespace": "lake.orders",
            "fields": [
                {"name": "id", "type": ["null", "long"], "default": None},
                {
                    "name": "price",
                    "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}],
                    "default": None,
                },
                {"name": "_change_type", "type": ["null", "string"], "default": None},
                {"name": "_commit_version", "type": ["null", "long"], "default": None},
                {
                    "name": "_commit_timestamp",
                    "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}],
                    "default": None,
                },
            ],
        },
    }


def changes(kinds: Sequence[str], columns: dict[str, pa.Array], task: int = 3) -> ChangeBatch:
    """Make rows of version 5 with these change types."""
    batch = change_batch(5, columns, task)
    rows = batch.rows.set_column(
        batch.rows.schema.get_field_index(CHANGE_TYPE), METADATA_FIELDS[0], pa.array(kinds, pa.string())
    )
    return ChangeBatch(batch.table_id, batch.version, batch.task, rows, batch.row_index)


def listed(messages: Messages, tell: Any) -> list[Any]:
    """Return key, value, row index and headers of each message."""
    length = len(messages)
    keys = [None] * length if messages.keys is None else messages.keys.to_pylist()
    headers = {name: column.to_pylist() for name, column in messages.headers}
    named = [
        [tell(headers[name][row]) if name in headers else None for name in (NEW_KEY, OLD_KEY)] for row in range(length)
    ]
    values = messages.values.to_pylist()
    return list(zip(map(tell, keys), map(tell, values), messages.row_index.to_pylist(), named, strict=True))


def decoded(encoder: PairingEncoder, batches: Sequence[ChangeBatch], tell: Any) -> list[Any]:
    """Return the messages of all batches of a task."""
    found = [message for batch in batches for message in listed(encoder.encode(batch, NOW_MS), tell)]
    last = encoder.flush(NOW_MS)
    assert encoder.pending is None
    return found if last is None else found + listed(last, tell)


def from_json(text: bytes | None) -> Any:
    return None if text is None else json.loads(text)


def without_time(value: Any) -> Any:
    """Return a flat value without the field whose JSON form differs."""
    return value and {name: field for name, field in value.items() if name != "_commit_timestamp"}


ROWS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 2), st.none() | st.text(max_size=3)), max_size=8)


def cut(rows: list[tuple[str, int, str | None]], at: int, task: int = 3) -> list[ChangeBatch]:
    kinds, numbers, names = zip(*rows, strict=True) if rows else ((), (), ())
    columns = {"id": pa.array(numbers, pa.int64()), "name": pa.array(names, pa.string())}
    batch = changes(kinds, columns, task)
    return [batch.slice(0, min(at, len(batch))), batch.slice(at, max(0, len(batch) - at))]


@pytest.mark.parametrize("key", [[], ["id"]])
@settings(max_examples=repeats(20))
@given(rows=ROWS, at=st.integers(0, 8), tombstones=st.booleans())
def test_flat_messages_are_those_of_json(
    key: list[str], rows: list[tuple[str, int, str | None]], at: int, tombstones: bool
) -> None:
    batches = cut(rows, at)
    registered = Registered()
    schema = batches[0].rows.schema
    avro = decoded(FlatAvroEncoder("kafka", schema, "t", registered, key, tombstones), batches, registered.read)
    text = decoded(FlatMessages("kafka", schema, key, tombstones), batches, from_json)
    assert [(k, without_time(v), r, h) for k, v, r, h in avro] == [(k, without_time(v), r, h) for k, v, r, h in text]


@pytest.mark.parametrize("key", [[], ["id"]])
@pytest.mark.parametrize("task", [3, SNAPSHOT_TASKS])
@settings(max_examples=repeats(20))
@given(rows=ROWS, at=st.integers(0, 8), tombstones=st.booleans())
def test_debezium_messages_are_those_of_json(
    key: list[str], task: int, rows: list[tuple[str, int, str | None]], at: int, tombstones: bool
) -> None:
    batches = cut(rows, at, task)
    registered = Registered()
    schema = batches[0].rows.schema
    made = DebeziumAvroEncoder("kafka", schema, SOURCE, "topic", registered, key, tombstones)
    text = DebeziumEncoder("kafka", schema, SOURCE, key, tombstones=tombstones)
    assert decoded(made, batches, registered.read) == decoded(text, batches, from_json)
    assert list(registered.schemas) == (["topic-key"] if key else []) + ["topic-value"]


def test_row_tracking_goes_to_the_source_block() -> None:
    columns = {
        "id": pa.array([1, 2, 2], pa.int64()),
        "_row_id": pa.array([7, None, 9], pa.int64()),
        "_row_commit_version": pa.array([5, 4, 2**40], pa.int64()),
    }
    batch = changes(["insert", "update_preimage", "update_postimage"], columns)
    registered = Registered()
    schema = batch.rows.schema
    made = DebeziumAvroEncoder("kafka", schema, SOURCE, "topic", registered, ["id"])
    messages = decoded(made, [batch], registered.read)
    assert messages == decoded(DebeziumEncoder("kafka", schema, SOURCE, ["id"]), [batch], from_json)
    assert messages[0][1]["source"]["row_id"] == 7


def test_the_envelope_is_that_of_debezium() -> None:
    registered = Registered()
    batch = change_batch(5, {"id": pa.array([1], pa.int64())})
    DebeziumAvroEncoder("kafka", batch.rows.schema, SOURCE, "topic", registered, ["id"])
    envelope = registered.schemas["topic-value"]
    assert (envelope["namespace"], envelope["name"]) == ("lake.sales.orders", "Envelope")
    assert (envelope["connect.name"], envelope["connect.version"]) == ("lake.sales.orders.Envelope", 2)
    fields = {field["name"]: field for field in envelope["fields"]}
    assert list(fields) == ["before", "after", "source", "transaction", "op", "ts_ms", "ts_us", "ts_ns"]
    row = fields["before"]["type"][1]
    assert (row["namespace"], row["name"], row["connect.name"]) == (
        "lake.sales.orders",
        "Value",
        f"{SOURCE.topic}.Value",
    )
    assert fields["after"] == {"name": "after", "type": ["null", "lake.sales.orders.Value"], "default": None}
    source = fields["source"]["type"]
    assert source["connect.name"] == "io.debezium.connector.delta.Source"
    assert source["fields"][4] == {
        "name": "snapshot",
        "type": [
            {
                "type": "string",
                "connect.version": 1,
                "connect.parameters": {
                    "allowed": "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"
                },
                "connect.default": "false",
                "connect.name": "io.debezium.data.Enum",
            },
            "null",
        ],
        "default": "false",
    }
    assert fields["op"]["type"] == "string"
    assert fields["ts_ms"] == {"name": "ts_ms", "type": ["null", "long"], "default": None}
    assert registered.schemas["topic-key"]["connect.name"] == "lake.sales.orders.Key"


def test_a_header_has_the_bytes_of_the_key_it_names() -> None:
    batch = changes(["update_preimage", "update_postimage"], {"id": pa.array([1, 2], pa.int64())})
    batch = ChangeBatch(batch.table_id, batch.version, batch.task, batch.rows, pa.array([4, 4], pa.int64()))
    made = DebeziumAvroEncoder("kafka", batch.rows.schema, SOURCE, "topic", Registered(), ["id"])
    assert len(made.encode(batch, NOW_MS)) == 0
    messages = made.flush(NOW_MS)
    assert messages is not None
    assert messages.keys is not None
    old, tombstone, new = messages.keys.to_pylist()
    assert old == tombstone
    assert {name: column.to_pylist() for name, column in messages.headers} == {
        NEW_KEY: [new, new, None],
        OLD_KEY: [None, None, old],
    }


def test_a_refused_batch_leaves_the_encoder_unchanged() -> None:
    columns = {"id": pa.array([1]), "s": pa.array([b"\xff"]).view(pa.string())}
    bad = changes(["insert"], columns)
    good = changes(["insert"], {"id": pa.array([1]), "s": pa.array(["x"])})
    schema = good.rows.schema
    flat = FlatAvroEncoder("kafka", schema, "t", Registered())
    encoders: list[PairingEncoder] = [flat, FlatAvroEncoder("kafka", schema, "t", Registered(), ["id"])]
    encoders.append(DebeziumAvroEncoder("kafka", schema, SOURCE, "t", Registered(), ["id"]))
    for encoder in encoders:
        with pytest.raises(SinkRejected, match="column s holds a string that is not UTF-8"):
            encoder.encode(bad, NOW_MS)
        assert len(encoder.encode(good, NOW_MS)) == 1
        with pytest.raises(SinkRejected, match="another schema than was announced"):
            encoder.encode(changes(["insert"], {"id": pa.array([1])}), NOW_MS)


def test_a_key_of_no_column() -> None:
    schema = change_batch(1, {"id": pa.array([1])}).rows.schema
    with pytest.raises(SinkRejected, match="no column nr, which is part of the key"):
        FlatAvroEncoder("kafka", schema, "t", Registered(), ["nr"])
    with pytest.raises(SinkRejected, match="no column nr, which is part of the key"):
        DebeziumAvroEncoder("kafka", schema, SOURCE, "t", Registered(), ["nr"])


def test_a_location_that_is_no_text() -> None:
    source = Source("0.1.0", "lake", None, "t", "file:///tables/\udcff")
    batch = change_batch(5, {"id": pa.array([1])})
    registered = Registered()
    made = DebeziumAvroEncoder("kafka", batch.rows.schema, source, "t", registered)
    (value,) = made.encode(batch, NOW_MS).values.to_pylist()
    assert registered.read(value)["source"]["table_uri"] == r"file:///tables/\udcff"
