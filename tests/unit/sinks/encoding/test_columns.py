"""Random schemas and values: the column encoder equals the reference, and JSON parsers agree.

Both may share a mistake where they share a function. So Python's own JSON parser must also return the original values.
"""

import base64
import json
import struct
from datetime import UTC, datetime
from decimal import Decimal
from math import isnan
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tailer_sinks.encoding import FlatEncoder, row_texts
from tailer_sinks.encoding.values import value_text
from tests.support.seeds import examples

NAMES = st.text(min_size=0, max_size=6)
TEXTS = st.one_of(st.text(max_size=12), st.text('"\\/\n\x00\x1f\x7f\u2028😀e.N', max_size=8))


def single(number: float) -> float:
    """Return the nearest float32."""
    return float(struct.unpack("<f", struct.pack("<f", number))[0])


EDGES = [0, 1, -1, -719528, -719529, 2932896, 2932897]
MICROSECONDS = [edge * 86_400_000_000 + offset for edge in EDGES for offset in (-1, 0)]
MAGNITUDES = st.builds(
    lambda digits, power: float(f"{digits}e{power}"), st.integers(-(10**9), 10**9), st.integers(-30, 28)
)
DOUBLES = st.one_of(st.floats(), MAGNITUDES, st.integers(-(2**53), 2**53).map(float))
SINGLES = st.one_of(st.floats(width=32), st.integers(-(2**24), 2**24).map(float), MAGNITUDES.map(single))


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    """All decimals of that size, small ones more often."""
    units = st.one_of(st.integers(-(10**precision) + 1, 10**precision - 1), st.integers(-20, 20))
    return units.map(lambda unit: Decimal((unit < 0, tuple(map(int, str(abs(unit)))), -scale)))


LEAVES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.null(), st.none()),
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-(2**7), 2**7 - 1)),
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.float32(), SINGLES),
    (pa.float64(), DOUBLES),
    (pa.decimal128(38, 10), decimals(38, 10)),
    (pa.decimal128(9, 2), decimals(9, 2)),
    (pa.decimal128(38, 38), decimals(38, 38)),
    (pa.decimal256(60, 7), decimals(60, 7)),
    (pa.string(), TEXTS),
    (pa.large_string(), TEXTS),
    (pa.string_view(), TEXTS),
    (pa.binary(), st.binary(max_size=10)),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.date32(), st.one_of(st.integers(-(2**31), 2**31 - 1), st.sampled_from(EDGES))),
    (pa.timestamp("us", "UTC"), st.one_of(st.integers(-(2**63), 2**63 - 1), st.sampled_from(MICROSECONDS))),
    (pa.timestamp("us"), st.one_of(st.integers(-(2**55), 2**58), st.sampled_from(MICROSECONDS))),
]

UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
ANY_COUNT = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-(10**10), 10**10))
# By their bits: hypothesis discards most of the half floats that it draws itself.
HALF_FLOATS = st.integers(0, 2**16 - 1).map(lambda bits: float(struct.unpack("<e", bits.to_bytes(2, "little"))[0]))
LEAVES += [
    (pa.float16(), HALF_FLOATS),
    (pa.large_binary(), st.binary(max_size=10)),
    (pa.date64(), st.one_of(st.integers(-(10**11), 10**11), st.sampled_from(EDGES)).map(lambda day: day * 86_400_000)),
    *((pa.duration(unit), ANY_COUNT) for unit in UNITS),
    *(
        (kind(unit), st.integers(0, 86_400 * UNITS[unit] - 1))
        for kind, units in ((pa.time32, ("s", "ms")), (pa.time64, ("us", "ns")))
        for unit in units
    ),
    *(
        (pa.timestamp(unit, zone), st.one_of(ANY_COUNT, st.sampled_from([us * size // 10**6 for us in MICROSECONDS])))
        for unit, size in UNITS.items()
        if unit in ("s", "ms")
        for zone in (None, "UTC")
    ),
    (pa.timestamp("ns", "Europe/Berlin"), ANY_COUNT),
    (pa.timestamp("ns"), ANY_COUNT),
]

Typed = tuple[pa.DataType, st.SearchStrategy[Any]]


def nullable(typed: Typed) -> st.SearchStrategy[Any]:
    return st.one_of(typed[1], typed[1], st.none())


def a_list(item: Typed) -> Typed:
    return pa.list_(item[0]), st.lists(nullable(item), max_size=3)


def a_pair(item: Typed) -> Typed:
    return pa.list_(item[0], 2), st.lists(nullable(item), min_size=2, max_size=2)


def a_map(key: Typed, item: Typed) -> Typed:
    entries = st.lists(st.tuples(key[1], nullable(item)), max_size=3)
    return pa.map_(key[0], item[0]), entries


def a_struct(fields: dict[str, Typed]) -> Typed:
    kind = pa.struct([(name, typed[0]) for name, typed in fields.items()])
    return kind, st.fixed_dictionaries({name: nullable(typed) for name, typed in fields.items()})


KEY_TYPES = (pa.string(), pa.int32(), pa.date32(), pa.float64(), pa.time64("ns"), pa.duration("ms"))
KEYS = st.sampled_from([leaf for leaf in LEAVES if leaf[0] in KEY_TYPES])
TYPES: st.SearchStrategy[Typed] = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: st.one_of(
        inner.map(a_list),
        inner.map(a_pair),
        st.builds(a_map, KEYS, inner),
        st.dictionaries(NAMES, inner, min_size=1, max_size=3).map(a_struct),
    ),
    max_leaves=5,
)


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    """A few rows of a few columns of any type, sliced out of a longer batch."""
    columns = draw(st.dictionaries(NAMES, TYPES, min_size=1, max_size=4))
    length = draw(st.integers(0, 8))
    arrays = []
    for typed in columns.values():
        values = draw(st.lists(nullable(typed), min_size=length, max_size=length))
        array = pa.array(values, typed[0])
        plain = not pa.types.is_nested(typed[0]) and not pa.types.is_null(typed[0])
        arrays.append(array.dictionary_encode() if plain and draw(st.integers(0, 3)) == 0 else array)
    rows = pa.record_batch(arrays, names=list(columns))
    start = draw(st.integers(0, length))
    return rows.slice(start, draw(st.integers(0, length - start)))


@settings(max_examples=examples(100))
@given(batches())
def test_columns_equal_the_reference(rows: pa.RecordBatch) -> None:
    encoder = FlatEncoder("out", rows.schema)
    expected = list(row_texts(rows))
    assert [text.decode() for text in encoder.rows(rows).to_pylist()] == expected
    assert encoder.lines(rows).to_pybytes() == "".join(f"{text}\n" for text in expected).encode()
    for text in expected:
        assert "\n" not in text
        assert list(json.loads(text)) == rows.schema.names


@settings(max_examples=examples(75))
@given(st.lists(DOUBLES, min_size=5))
def test_doubles_have_one_text_which_reads_back(numbers: list[float]) -> None:
    array = pa.array(numbers)
    columnwise = plain_texts(array)
    assert columnwise == [value_text(value) for value in array]
    for number, text in zip(numbers, columnwise, strict=True):
        assert struct.pack("<d", float(text.strip('"'))) == struct.pack("<d", number) or isnan(number)


@settings(max_examples=examples(75))
@given(st.lists(SINGLES, min_size=5))
def test_floats_have_one_text_which_reads_back(numbers: list[float]) -> None:
    array = pa.array(numbers, pa.float32())
    columnwise = plain_texts(array)
    assert columnwise == [value_text(value) for value in array]
    for number, text in zip(numbers, columnwise, strict=True):
        assert single(float(text.strip('"'))) == number or isnan(number)


@settings(max_examples=examples(50))
@given(st.lists(TEXTS), st.lists(st.binary()), st.lists(decimals(38, 20)))
def test_text_bytes_and_decimals_read_back_as_what_they_were(
    strings: list[str], binaries: list[bytes], numbers: list[Decimal]
) -> None:
    assert texts(pa.array(strings, pa.string())) == strings
    assert texts(pa.array(numbers, pa.decimal128(38, 20))) == [format(number, "f") for number in numbers]
    assert [Decimal(text) for text in texts(pa.array(numbers, pa.decimal128(38, 20)))] == numbers
    assert list(map(base64_to_bytes, texts(pa.array(binaries, pa.binary())))) == binaries


@settings(max_examples=examples(50))
@given(st.lists(HALF_FLOATS, min_size=5))
def test_half_floats_read_back_as_half_floats_and_as_floats(numbers: list[float]) -> None:
    for number, text in zip(numbers, plain_texts(pa.array(numbers, pa.float16())), strict=True):
        found = float(text.strip('"'))
        assert isnan(number) or single(found) == number
        assert isnan(number) or struct.pack("<e", found) == struct.pack("<e", number)


@settings(max_examples=examples(50))
@given(st.sampled_from(list(UNITS)), st.lists(ANY_COUNT))
def test_durations_read_back_as_what_they_were(unit: str, counts: list[int]) -> None:
    for count, text in zip(counts, texts(pa.array(counts, pa.duration(unit))), strict=True):
        seconds = text.removeprefix("-").removeprefix("PT").removesuffix("S")
        assert Decimal(seconds) * UNITS[unit] == abs(count)
        assert text.startswith("-") == (count < 0)


@settings(max_examples=examples(50))
@given(st.lists(ANY_COUNT))
def test_nanoseconds_read_back_as_what_they_were(counts: list[int]) -> None:
    for count, text in zip(counts, texts(pa.array(counts, pa.timestamp("ns", "UTC"))), strict=True):
        moment, fraction = text.removesuffix("Z").split(".")
        second = datetime.fromisoformat(f"{moment}+00:00") - datetime(1970, 1, 1, tzinfo=UTC)
        assert (second.days * 86_400 + second.seconds) * 10**9 + int(fraction) == count
        assert len(fraction) == 9


def plain_texts(array: pa.Array) -> list[str]:
    """Return the texts of an array's values."""
    lines = FlatEncoder("out", pa.schema([("v", array.type)])).rows(pa.record_batch({"v": array})).to_pylist()
    return [line.decode()[len('{"v":') : -1] for line in lines]


def texts(array: pa.Array) -> list[Any]:
    """Return the values of an array as a JSON parser reads them."""
    rows = pa.record_batch({"v": array})
    return [json.loads(line)["v"] for line in FlatEncoder("out", rows.schema).rows(rows).to_pylist()]


def base64_to_bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
