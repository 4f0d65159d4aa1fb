"""JSON forms of values, literally; both encoders must agree on every case."""

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tailer.errors import SinkRejected
from tailer.events import VARIANT, Gap, SchemaChange
from tailer_sinks.encoding import FlatEncoder, event_line, event_values, row_texts, slices
from tailer_sinks.encoding.values import JsonForms, NoText, value_text
from tailer_sinks.testing import DELTA_TYPES
from tests.support.cases import cases

DAY = 86_400_000_000


def encoded(rows: pa.RecordBatch) -> list[str]:
    """Return the texts of the rows, after checking that all three encoders agree."""
    encoder = FlatEncoder("out", rows.schema)
    texts = [text.decode() for text in encoder.rows(rows).to_pylist()]
    assert texts == list(row_texts(rows))
    assert encoder.lines(rows).to_pybytes() == "".join(f"{text}\n" for text in texts).encode()
    return texts


def values(array: pa.Array) -> list[str]:
    """Return the texts of an array's values."""
    return [text.removeprefix('{"v":').removesuffix("}") for text in encoded(pa.record_batch({"v": array}))]


@cases(
    ("kind", "cases"),
    [
        (pa.null(), {None: "null"}),
        (pa.bool_(), {True: "true", False: "false", None: "null"}),
        (pa.int64(), {2**63 - 1: "9223372036854775807", -(2**63): "-9223372036854775808", None: "null"}),
        (pa.uint64(), {2**64 - 1: "18446744073709551615"}),
        (pa.int8(), {-128: "-128"}),
        (pa.string(), {"": '""', "é€😀": '"é€😀"', 'a"b\\c': r'"a\"b\\c"', None: "null"}),
        (pa.string(), {"\n\t\r\b\f\x00\x1f": r'"\n\t\r\b\f\u0000\u001f"', "\x7f\u2028": '"\x7f\u2028"'}),
        (pa.string_view(), {"x": '"x"', "a long string, not inlined\n": r'"a long string, not inlined\n"'}),
        (pa.large_string(), {"null": '"null"', None: "null"}),
        (pa.binary(), {b"": '""', b"\xff\x00": '"/wA="', None: "null"}),
        (pa.large_binary(), {b"abc": '"YWJj"'}),
        (pa.binary(2), {b"ab": '"YWI="', None: "null"}),
        (
            pa.float16(),
            {0.0999755859375: "0.099975586", 65504.0: "65504.0", 2.0**-24: "5.9604645e-8", -0.0: "-0.0", None: "null"},
        ),
        (pa.float16(), {float("inf"): '"Infinity"', float("nan"): '"NaN"'}),
        (pa.date64(), {0: '"1970-01-01"', -DAY // 1000: '"1969-12-31"', 2932897 * DAY // 1000: '"+10000-01-01"'}),
        (pa.time32("s"), {0: '"00:00:00"', 86399: '"23:59:59"', None: "null"}),
        (pa.time32("ms"), {0: '"00:00:00.000"', 86399999: '"23:59:59.999"'}),
        (pa.time64("us"), {1: '"00:00:00.000001"', DAY - 1: '"23:59:59.999999"'}),
        (pa.time64("ns"), {1: '"00:00:00.000000001"', DAY * 1000 - 1: '"23:59:59.999999999"', None: "null"}),
        (pa.duration("s"), {0: '"PT0S"', 90061: '"PT90061S"', -(2**63): '"-PT9223372036854775808S"', None: "null"}),
        (pa.duration("ms"), {1500: '"PT1.500S"', -1: '"-PT0.001S"'}),
        (pa.duration("us"), {-1_000_000: '"-PT1.000000S"'}),
        (pa.duration("ns"), {1: '"PT0.000000001S"', 2**63 - 1: '"PT9223372036.854775807S"', None: "null"}),
        (pa.timestamp("s"), {0: '"1970-01-01T00:00:00"', 2932897 * 86_400: '"+10000-01-01T00:00:00"', None: "null"}),
        (pa.timestamp("ms", "UTC"), {-1: '"1969-12-31T23:59:59.999Z"', 2**63 - 1: '"+292278994-08-17T07:12:55.807Z"'}),
        (pa.timestamp("ns", "+01:00"), {1: '"1970-01-01T00:00:00.000000001Z"', None: "null"}),
        (
            pa.timestamp("ns"),
            {2**63 - 1: '"2262-04-11T23:47:16.854775807"', -(2**63): '"1677-09-21T00:12:43.145224192"'},
        ),
    ],
)
def test_plain_values(kind: pa.DataType, cases: dict[Any, str]) -> None:
    assert values(pa.array(list(cases), kind)) == list(cases.values())


@cases(
    ("number", "text"),
    [
        (1.0, "1.0"),
        (-0.0, "-0.0"),
        (0.1, "0.1"),
        (5e-324, "5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
        (9999999999.0, "9999999999.0"),
        (9999999999.5, "9999999999.5"),
        (1e10, "1e+10"),
        (123456789012345.0, "1.23456789012345e+14"),
        (-1234567890123456.0, "-1.234567890123456e+15"),
        (0.000001, "0.000001"),
        (0.00000015, "1.5e-7"),
        (float("nan"), '"NaN"'),
        (float("inf"), '"Infinity"'),
        (float("-inf"), '"-Infinity"'),
    ],
)
def test_doubles(number: float, text: str) -> None:
    assert values(pa.array([number, None])) == [text, "null"]


@cases(
    ("number", "text"),
    [
        (0.1, "0.1"),
        (16777216.0, "16777216.0"),
        (3.4028234663852886e38, "3.4028235e+38"),
        (1.401298464324817e-45, "1e-45"),
        (9999999999.0, "1e+10"),
        (float("nan"), '"NaN"'),
    ],
)
def test_floats_have_the_digits_of_their_own_width(number: float, text: str) -> None:
    assert values(pa.array([number, None], pa.float32())) == [text, "null"]


@cases(
    ("kind", "number", "text"),
    [
        (pa.decimal128(5, 2), "1.5", "1.50"),
        (pa.decimal128(38, 0), "-99999999999999999999999999999999999999", None),
        (pa.decimal128(38, 38), "1E-38", "0." + "0" * 37 + "1"),
        (pa.decimal128(38, 8), "0", "0.00000000"),
        (pa.decimal128(38, 8), "-0.00000001", "-0.00000001"),
        (pa.decimal128(10, -2), "12300", "12300"),
        (pa.decimal256(76, 10), "1.0000000001", "1.0000000001"),
        (pa.decimal64(12, 2), "1", "1.00"),
    ],
)
def test_decimals_keep_every_digit(kind: pa.DataType, number: str, text: str | None) -> None:
    assert values(pa.array([Decimal(number), None], kind)) == [f'"{text or number}"', "null"]


@cases(
    ("days", "text"),
    [
        (0, "1970-01-01"),
        (-1, "1969-12-31"),
        (11016, "2000-02-29"),
        (-719162, "0001-01-01"),
        (-719528, "0000-01-01"),
        (-719529, "-0001-12-31"),
        (2932896, "9999-12-31"),
        (2932897, "+10000-01-01"),
        (2**31 - 1, "+5881580-07-11"),
        (-(2**31), "-5877641-06-23"),
    ],
)
def test_dates(days: int, text: str) -> None:
    assert values(pa.array([days, None], pa.date32())) == [f'"{text}"', "null"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin", "+05:30", "No/Such_Zone"])
@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0, "1970-01-01T00:00:00.000000"),
        (1_700_000_000_123_456, "2023-11-14T22:13:20.123456"),
        (-1, "1969-12-31T23:59:59.999999"),
        (-719162 * DAY, "0001-01-01T00:00:00.000000"),
        (2932897 * DAY - 1, "9999-12-31T23:59:59.999999"),
        (2932897 * DAY, "+10000-01-01T00:00:00.000000"),
        (2**63 - 1, "+294247-01-10T04:00:54.775807"),
        (-(2**63), "-290308-12-21T19:59:05.224192"),
    ],
)
def test_timestamps(us: int, text: str, zone: str | None) -> None:
    array = pa.array([us, None], pa.int64()).view(pa.timestamp("us", zone))
    assert values(array) == [f'"{text}Z"' if zone else f'"{text}"', "null"]


def test_nested_values() -> None:
    kind = pa.struct([("a", pa.list_(pa.struct([("b", pa.float32())]))), ('k"', pa.string())])
    array = pa.array([{"a": [{"b": 0.1}, None, {"b": None}], 'k"': "x"}, None, {"a": []}, {"a": None}], kind)
    assert values(array) == [
        r'{"a":[{"b":0.1},null,{"b":null}],"k\"":"x"}',
        "null",
        r'{"a":[],"k\"":null}',
        r'{"a":null,"k\"":null}',
    ]


def test_maps() -> None:
    by_name = pa.array([[("a", 1), ('"', None)], [], None], pa.map_(pa.string(), pa.int32()))
    assert values(by_name) == [r'{"a":1,"\"":null}', "{}", "null"]
    by_number = pa.array([[(1, "x"), (2, None)], [], None], pa.map_(pa.int32(), pa.string()))
    assert values(by_number) == ['[{"key":1,"value":"x"},{"key":2,"value":null}]', "[]", "null"]


def test_lists_of_fixed_size() -> None:
    array = pa.array([[1, 2], None, [3, None]], pa.list_(pa.int8(), 2))
    assert values(array) == ["[1,2]", "null", "[3,null]"]
    assert values(array.slice(2)) == ["[3,null]"]


def test_dictionaries_are_their_values() -> None:
    array = pa.DictionaryArray.from_arrays(pa.array([1, None, 0, 2]), pa.array(["a", 'b"', None]))
    assert values(array) == [r'"b\""', "null", '"a"', "null"]
    assert values(array.slice(0, 1)) == [r'"b\""']


@cases("name", DELTA_TYPES)
def test_a_column_of_one_value_has_that_in_every_row(name: str) -> None:
    kind, values = DELTA_TYPES[name]
    for value in [*values, None]:
        same = pa.array([value] * 3, kind)
        rows = pa.record_batch({"a": same, "b": pa.array([1, 2, 3]), "c": same, "d": same.slice(0, 3)})
        texts = [json.loads(text) for text in FlatEncoder("sink", rows.schema).rows(rows).to_pylist()]
        assert texts == [json.loads(text) for text in row_texts(rows)]
        alone = pa.record_batch({"a": same})
        assert FlatEncoder("sink", alone.schema).rows(alone).cast(pa.string()).to_pylist() == list(row_texts(alone))


def test_hidden_values_of_nulls_do_not_show() -> None:
    array = pa.StructArray.from_arrays([pa.array([1, 2])], names=["a"], mask=pa.array([False, True]))
    assert values(array) == ['{"a":1}', "null"]
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 3], pa.int32()), array.field(0).take(pa.array([0, 1, 1])))
    masked = pa.ListArray.from_arrays(lists.offsets, lists.values, mask=pa.array([False, True]))
    assert values(masked) == ["[1]", "null"]


def test_names_are_escaped() -> None:
    rows = pa.record_batch([pa.array([1]), pa.array([2])], names=['a"\n', "é"])
    assert encoded(rows) == ['{"a\\"\\n":1,"é":2}']
    assert json.loads(encoded(rows)[0]) == {'a"\n': 1, "é": 2}


def test_no_rows_and_no_columns() -> None:
    assert encoded(pa.record_batch({"v": pa.array([], pa.list_(pa.string()))})) == []
    assert values(pa.array([{}, None], pa.struct([]))) == ["{}", "null"]


@pytest.mark.parametrize(
    "kind",
    [
        pa.month_day_nano_interval(),
        pa.list_view(pa.int8()),
        pa.run_end_encoded(pa.int32(), pa.string()),
        pa.dense_union([pa.field("a", pa.int8())]),
        pa.uuid(),
    ],
    ids=str,
)
def test_a_type_without_a_rule_is_refused_by_name(kind: pa.DataType) -> None:
    nested = pa.schema([("id", pa.int64()), ("s", pa.struct([("t", pa.list_(kind))]))])
    with pytest.raises(SinkRejected, match=r"sink out: column s\.t has type .*no JSON form") as raised:
        FlatEncoder("out", nested)
    assert "Leave the column out" in raised.value.hint


def test_the_reference_refuses_too() -> None:
    with pytest.raises(TypeError, match="no JSON form"):
        value_text(pa.scalar((1, 2, 3), pa.month_day_nano_interval()))


@cases(
    ("kind", "count", "reason"),
    [
        (pa.time32("s"), 86_400, "a time that is not between 00:00 and 24:00"),
        (pa.time32("ms"), -1, "a time that is not between 00:00 and 24:00"),
        (pa.time64("us"), DAY, "a time that is not between 00:00 and 24:00"),
        (pa.time64("ns"), -(2**63), "a time that is not between 00:00 and 24:00"),
        (pa.date64(), 1, "a date that is not midnight"),
        (pa.date64(), -1, "a date that is not midnight"),
    ],
)
def test_values_that_their_type_does_not_have(kind: pa.DataType, count: int, reason: str) -> None:
    numbers = pa.array([0, count], pa.int32() if kind.bit_width == 32 else pa.int64())
    rows = pa.record_batch({"v": numbers.view(kind)})
    with pytest.raises(SinkRejected, match=f"column v holds {reason}"):
        FlatEncoder("out", rows.schema).lines(rows)
    with pytest.raises(NoText, match=reason):
        list(row_texts(rows))
    assert values(rows["v"].slice(0, 1))[0].startswith('"')


def test_strings_that_are_not_utf8_are_refused() -> None:
    offsets = pa.array([0, 2, 3], pa.int32()).buffers()[1]
    broken = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"ok\xff")])
    rows = pa.record_batch({"s": pa.StructArray.from_arrays([broken], names=["t"])})
    with pytest.raises(SinkRejected, match=r"column s\.t holds a string that is not UTF-8"):
        FlatEncoder("out", rows.schema).lines(rows)


def test_a_repeated_name_is_refused() -> None:
    with pytest.raises(SinkRejected, match="column a appears twice"):
        FlatEncoder("out", pa.schema([("a", pa.int8()), ("a", pa.int8())]))


def test_rows_of_another_schema_are_refused() -> None:
    with pytest.raises(SinkRejected, match="another schema"):
        FlatEncoder("out", pa.schema([("a", pa.int8())])).rows(pa.record_batch({"a": pa.array([1], pa.int16())}))


def test_slices_bound_rows_and_bytes_and_leave_nothing_out() -> None:
    narrow = pa.record_batch({"v": pa.array(range(20_000))})
    assert [len(part) for part in slices(narrow)] == [8192, 8192, 3616]
    middling = pa.record_batch({"v": pa.array(["x" * 1020] * 10_000)})
    assert [len(part) for part in slices(middling)] == [4096, 4096, 1808]
    wide = pa.record_batch({"v": pa.array(["x" * 400_000] * 5)})
    assert [len(part) for part in slices(wide)] == [2, 2, 1]
    assert pa.Table.from_batches(slices(wide)).column("v").to_pylist() == wide.column("v").to_pylist()
    assert list(slices(narrow.slice(0, 0))) == []


def test_events_have_the_metadata_of_rows_first() -> None:
    schema = pa.schema([])
    change = SchemaChange("t", 5, 1_772_366_400_001, schema, schema, ("column é was added", 'column "b" was dropped'))
    assert event_line(change).decode() == (
        '{"_change_type":"schema_change","_commit_version":5,"_commit_timestamp":"2026-03-01T12:00:00.001000Z",'
        '"changes":["column é was added","column \\"b\\" was dropped"]}\n'
    )
    gap = Gap("t", 7, 9, -62_135_596_800_000, "lines\nand\ttabs", snapshot=False)
    assert event_line(gap).decode() == (
        '{"_change_type":"gap","_commit_version":9,"_commit_timestamp":"0001-01-01T00:00:00.000000Z",'
        '"first_version":7,"reason":"lines\\nand\\ttabs","snapshot":false}\n'
    )
    assert json.loads(event_line(gap)) == event_values(gap)


def test_a_path_that_is_no_text_does_not_stop_an_event() -> None:
    gap = Gap("t", 1, 1, 0, b"part-\xff is gone".decode(errors="surrogateescape"), snapshot=True)
    assert json.loads(event_line(gap))["reason"] == gap.reason
    assert event_line(gap).count(b"\n") == 1


EMPTY = b"\1\0\0"  # the metadata of a value without names
OBJECT = {"metadata": b"\1\1\0\1a", "value": b"\2\1\0\0\6\x20\2\x96\0\0\0"}  # {"a": 1.50}, a decimal


def test_variants_are_json_values() -> None:
    rows = [OBJECT, None, {"metadata": EMPTY, "value": b"\0"}, {"metadata": EMPTY, "value": b'\x05"'}]
    assert values(pa.array(rows, VARIANT)) == ['{"a":"1.50"}', "null", "null", r'"\""']
    assert values(pa.array([rows], pa.list_(VARIANT))) == [r'[{"a":"1.50"},null,null,"\""]']
    assert values(pa.array([{"x": rows[0]}, None], pa.struct([("x", VARIANT)]))) == ['{"x":{"a":"1.50"}}', "null"]
    assert values(pa.array([[("k", rows[0])]], pa.map_(pa.string(), VARIANT))) == ['{"k":{"a":"1.50"}}']


def test_decimals_of_variants_as_numbers() -> None:
    rows = pa.record_batch({"v": pa.array([OBJECT], VARIANT)})
    assert FlatEncoder("out", rows.schema, JsonForms(decimal="number")).rows(rows).to_pylist() == [b'{"v":{"a":1.50}}']


def test_a_broken_variant_is_named() -> None:
    broken = {"v": {"metadata": EMPTY, "value": b"\xfc"}}
    rows = pa.record_batch({"s": pa.array([broken], pa.struct([("v", VARIANT)]))})
    with pytest.raises(SinkRejected, match=r"column s\.v holds a Variant that is not sound: row 0: "):
        FlatEncoder("out", rows.schema).rows(rows)
