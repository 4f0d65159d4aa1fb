"""Each type and each rule of the encoding, literally."""

from datetime import UTC, date, datetime
from datetime import time as time_of_day
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from tailer.variant import Date, InvalidVariant, Timestamp, Variant, VariantType
from tests.support.cases import cases
from tests.support.variant.encoder import Layout, Scalar, array, encode, metadata, object_of

NONE = metadata([])
DAY = 86_400_000_000


def value(number: int, content: Any) -> Variant:
    """Return a primitive value."""
    return Variant(NONE, encode(Scalar(number, content, ""), [], iter([])))


@cases(
    ("number", "content", "kind", "python", "json"),
    [
        (0, None, "null", None, "null"),
        (1, None, "true", True, "true"),
        (2, None, "false", False, "false"),
        (3, -128, "int8", -128, "-128"),
        (4, 32_767, "int16", 32_767, "32767"),
        (5, -(2**31), "int32", -(2**31), "-2147483648"),
        (6, 2**63 - 1, "int64", 2**63 - 1, "9223372036854775807"),
        (7, 0.1, "double", 0.1, "0.1"),
        (7, 1e300, "double", 1e300, "1e+300"),
        (7, float("inf"), "double", float("inf"), '"Infinity"'),
        (7, float("-inf"), "double", float("-inf"), '"-Infinity"'),
        (8, "0.00", "decimal4", Decimal("0.00"), '"0.00"'),
        (8, "-9.99999999", "decimal4", Decimal("-9.99999999"), '"-9.99999999"'),
        (9, "123456789012345678", "decimal8", Decimal(123456789012345678), '"123456789012345678"'),
        (10, "9" * 38, "decimal16", Decimal("9" * 38), f'"{"9" * 38}"'),
        (10, f"-0.{'9' * 38}", "decimal16", Decimal(f"-0.{'9' * 38}"), f'"-0.{"9" * 38}"'),
        (11, -1, "date", date(1969, 12, 31), '"1969-12-31"'),
        (11, 2_932_897, "date", Date(2_932_897), '"+10000-01-01"'),
        (11, -(2**31), "date", Date(-(2**31)), '"-5877641-06-23"'),
        (12, 0, "timestamp", datetime(1970, 1, 1, tzinfo=UTC), '"1970-01-01T00:00:00.000000Z"'),
        (12, 2**63 - 1, "timestamp", Timestamp(2**63 - 1, 6, True), '"+294247-01-10T04:00:54.775807Z"'),
        (13, -1, "timestamp_ntz", datetime.fromisoformat("1969-12-31T23:59:59.999999"), '"1969-12-31T23:59:59.999999"'),
        (14, 0.1, "float", pytest.approx(0.1), "0.1"),
        (14, 16_777_216.0, "float", 16_777_216.0, "16777216.0"),
        (14, 1e-45, "float", pytest.approx(1e-45), "1e-45"),
        (15, b"\xff\x00", "binary", b"\xff\x00", '"/wA="'),
        (16, 'é"\n', "string", 'é"\n', r'"é\"\n"'),
        (17, DAY - 1, "time", time_of_day(23, 59, 59, 999_999), '"23:59:59.999999"'),
        (18, 1, "timestamp_nanos", Timestamp(1, 9, True), '"1970-01-01T00:00:00.000000001Z"'),
        (19, -1, "timestamp_ntz_nanos", Timestamp(-1, 9, False), '"1969-12-31T23:59:59.999999999"'),
        (20, bytes(range(16)), "uuid", UUID(bytes=bytes(range(16))), '"00010203-0405-0607-0809-0a0b0c0d0e0f"'),
    ],
)
def test_primitives(number: int, content: Any, kind: str, python: Any, json: str) -> None:
    found = value(number, content)
    assert (found.type, found.to_json()) == (kind, json)
    assert found.to_python() == python
    assert type(found.to_python()) is type(python) or number == 14


def test_nan_is_a_text_in_json() -> None:
    assert value(7, float("nan")).to_json() == '"NaN"'
    assert value(14, float("nan")).to_json() == '"NaN"'


def test_what_python_cannot_hold_prints_as_in_json() -> None:
    assert str(Date(2_932_897)) == "+10000-01-01"
    assert str(Timestamp(1, 9, True)) == "1970-01-01T00:00:00.000000001Z"


def test_decimals_are_numbers_on_demand() -> None:
    assert value(8, "12.50").to_json(quote_decimals=False) == "12.50"


def test_objects_are_ordered_by_the_bytes_of_their_names() -> None:
    names = ["😀", "\uff00", "b", "a"]  # Java orders the first two the other way
    data = object_of([0, 1, 2, 3], [b"\x0c\x01", b"\x0c\x02", b"\x0c\x03", b"\x0c\x04"])
    assert Variant(metadata(names), data).to_json() == '{"a":4,"b":3,"\uff00":2,"😀":1}'


def test_values_may_come_in_any_order_and_leave_gaps() -> None:
    backwards = object_of([0, 1], [b"\x0c\x01", b"\x0c\x02"], Layout(backwards=True))
    assert Variant(metadata(["a", "b"]), backwards).to_json() == '{"a":1,"b":2}'
    gap = bytes([3, 1, 2, 4]) + b"\xff\xff\x0c\x07"
    assert Variant(NONE, gap).to_json() == "[7]"


def test_get() -> None:
    names = ["a", "b c", "d"]
    inner = object_of([1], [array([b"\x0c\x01", b"\x00"])])
    found = Variant(metadata(names), object_of([0, 2], [inner, b"\x05x"]))
    assert found.type is VariantType.OBJECT
    picked = found.get("$.a['b c'][0]")
    assert picked is not None
    assert picked.to_python() == 1
    null = found.get('$.a["b c"][1]')
    assert null is not None
    assert (null.type, null.to_python()) == (VariantType.NULL, None)
    assert found.get("$") is not None
    for missing in ("$.b", "$.a.d", "$.a['b c'][2]", "$.d.x", "$[0]", "$.a.x.y"):
        assert found.get(missing) is None, missing


@cases("name", ["", "\n", "a.b", "[0]", "$", 'say "a"', "é"])
def test_any_name_can_be_quoted(name: str) -> None:
    found = Variant(metadata([name]), object_of([0], [b"\x0c\x07"])).get(f"$['{name}']")
    assert found is not None
    assert found.to_python() == 7


@cases("path", ["", "a", "$a", "$.", "$..a", "$[", "$[a]", "$[-1]", "$['a]"])
def test_malformed_paths(path: str) -> None:
    with pytest.raises(ValueError, match=r"path|begin"):
        Variant(NONE, b"\x00").get(path)


@cases(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"\x00\x00\x00", "version 0"),
        (b"\x02\x00\x00", "version 2"),
        (b"\x01", "shorter"),
        (b"\x01\x02\x00\x01", "shorter"),
        (b"\xc1\xff\xff\xff\xff", "shorter"),
        (b"\x01\x02\x00\x02\x01ab", "decrease"),
        (b"\x01\x01\x01\x01a", "decrease"),
        (b"\x01\x01\x00\x02a", "take"),
        (b"\x01\x01\x00\x01ab", "take"),
        (b"\x01\x01\x00\x01\xff", "UTF-8"),
    ],
)
def test_broken_metadata(data: bytes, reason: str) -> None:
    with pytest.raises(InvalidVariant, match=reason):
        Variant(data, b"\x00")


@cases(
    ("data", "reason"),
    [
        (b"", "ends early"),
        (b"\x00\x00", "1 bytes follow"),
        (bytes([21 << 2]), "unknown type 21"),
        (bytes([63 << 2]), "unknown type 63"),
        (b"\x0c", "ends early"),
        (b"\x09a", "longer"),
        (b"\x05\xff", "UTF-8"),
        (bytes([16 << 2]) + b"\xff\xff\xff\xffa", "longer"),
        (bytes([16 << 2]) + b"\x01", "longer"),
        (bytes([16 << 2]) + b"\x01\x00\x00\x00\xc3", "UTF-8"),
        (bytes([8 << 2, 39]) + bytes(4), "scale 39"),
        (bytes([8 << 2, 0]) + (10**9).to_bytes(4, "little"), "9 digits"),
        (bytes([9 << 2, 0]) + (10**18).to_bytes(8, "little"), "18 digits"),
        (bytes([10 << 2, 0]) + (-(10**38)).to_bytes(16, "little", signed=True), "38 digits"),
        (bytes([8 << 2, 0, 1]), "ends early"),
        (bytes([17 << 2]) + DAY.to_bytes(8, "little"), "time of day"),
        (bytes([17 << 2]) + (-1).to_bytes(8, "little", signed=True), "time of day"),
        (b"\x03", "ends early"),
        (b"\x03\x01\x00", "does not fit"),
        (b"\x13\xff\xff\xff\xff\x00", "does not fit"),
        (b"\x03\x01\x00\x09\x00", "longer"),
        (b"\x03\x01\x01\x01\x00", "ends early"),
        (b"\x03\x01\x00\x01\x0c\x05", "longer|early|follow"),
        (b"\x02\x01\x00\x00\x01\x00", "name number 0 of 0"),
        (b"\x03\x02\x00\x00\x01\x00", "share"),
    ],
)
def test_broken_values(data: bytes, reason: str) -> None:
    broken = Variant(NONE, data)
    with pytest.raises(InvalidVariant, match=reason):
        broken.to_json()
    with pytest.raises(InvalidVariant, match=reason):
        broken.to_python()


def test_an_object_with_two_fields_of_one_name() -> None:
    for names, ids in ((["a"], [0, 0]), (["a", "a"], [0, 1])):
        twice = Variant(metadata(names), object_of(ids, [b"\x00", b"\x00"]))
        with pytest.raises(InvalidVariant, match="one name"):
            twice.to_json()
        with pytest.raises(InvalidVariant, match="one name"):
            twice.get("$.a")


def test_depth() -> None:
    data = b"\x00"
    for _ in range(127):
        data = array([data], Layout(offsets=2))
    assert Variant(NONE, data).to_json() == "[" * 127 + "null" + "]" * 127
    with pytest.raises(InvalidVariant, match="128"):
        Variant(NONE, array([data], Layout(offsets=2))).to_json()


def test_children_that_share_their_bytes() -> None:
    """Each level has two children at one place: 2^40 values in a few hundred bytes, which would never end."""
    data = b"\x00"
    for _ in range(40):
        size = len(data)
        data = bytes([3 | 1 << 2, 2]) + b"".join(n.to_bytes(2, "little") for n in (0, 0, size)) + data
    with pytest.raises(InvalidVariant, match="share"):
        Variant(NONE, data).to_json()


def test_counts_beyond_the_buffer_allocate_nothing() -> None:
    for data in (b"\x1f\xff\xff\xff\xff" + bytes(100), b"\x7e\xff\xff\xff\xff" + bytes(100)):
        with pytest.raises(InvalidVariant, match="does not fit"):
            Variant(NONE, data).to_json()
