"""One schema for rows of several: which types fit, and that no value changes."""

import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailer.events import METADATA_FIELDS, Gap
from tailer_sinks.encoding.typed import GAP, Misfit, conform, fits, gap_row, unite
from tests.support.cases import cases

NTZ = pa.timestamp("us")


def decimal(precision: int, scale: int) -> pa.DataType:
    return pa.decimal128(precision, scale)


@cases(
    ("narrow", "wide"),
    [
        (pa.int8(), pa.int16()),
        (pa.int8(), pa.int64()),
        (pa.int32(), pa.int64()),
        (pa.int32(), pa.float64()),
        (pa.float32(), pa.float64()),
        (pa.int8(), decimal(3, 0)),
        (pa.int32(), decimal(12, 2)),
        (pa.int64(), decimal(21, 2)),
        (decimal(5, 1), decimal(5, 1)),
        (decimal(5, 1), decimal(6, 2)),
        (decimal(5, 0), decimal(38, 33)),
        (pa.date32(), NTZ),
        (pa.null(), pa.string()),
    ],
)
def test_one_way_only(narrow: pa.DataType, wide: pa.DataType) -> None:
    assert fits(narrow, wide)
    assert fits(wide, narrow) == (wide == narrow)
    for first, second in ((narrow, wide), (wide, narrow)):
        assert unite(pa.schema([("c", first)]), pa.schema([("c", second)])) == pa.schema([("c", wide)])


@cases(
    ("first", "second"),
    [
        (pa.int64(), pa.float64()),  # 2^53 + 1 is not a double
        (pa.int32(), pa.float32()),
        (pa.int64(), decimal(20, 2)),
        (pa.int32(), decimal(11, 2)),
        (decimal(5, 1), decimal(5, 2)),
        (pa.date32(), pa.timestamp("us", tz="UTC")),  # midnight of which zone?
        (NTZ, pa.timestamp("us", tz="UTC")),
        (pa.string(), pa.binary()),
        (pa.int32(), pa.string()),
        (pa.bool_(), pa.int8()),
        (pa.list_(pa.int8()), pa.int8()),
        (pa.struct([("a", pa.int8())]), pa.map_(pa.string(), pa.int8())),
    ],
)
def test_no_union(first: pa.DataType, second: pa.DataType) -> None:
    assert not fits(first, second)
    assert not fits(second, first)
    with pytest.raises(Misfit, match=r"column l\.element\.c is .* in some rows and .* in others"):
        unite(
            *(pa.schema([("l", pa.list_(pa.field("element", pa.struct([("c", kind)]))))]) for kind in (first, second))
        )


def test_columns_are_united_by_name_on_every_level() -> None:
    first = pa.schema(
        [
            pa.field("id", pa.int32(), nullable=False),
            pa.field("old", pa.string(), nullable=False),
            ("s", pa.struct([pa.field("x", pa.int64(), nullable=False)])),
            ("m", pa.map_(pa.int32(), pa.struct([("x", pa.int8())]))),
            *METADATA_FIELDS,
        ]
    )
    second = pa.schema(
        [
            ("m", pa.map_(pa.int64(), pa.struct([("y", pa.int8()), ("x", pa.int16())]))),
            pa.field("new", pa.date32(), nullable=False),
            ("s", pa.struct([pa.field("y", pa.int64(), nullable=False), pa.field("x", pa.int32(), nullable=False)])),
            pa.field("id", pa.int64(), nullable=False),
            *METADATA_FIELDS,
        ]
    )
    assert unite(first, second) == pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("old", pa.string()),
            ("s", pa.struct([pa.field("x", pa.int64(), nullable=False), ("y", pa.int64())])),
            ("m", pa.map_(pa.int64(), pa.struct([("x", pa.int16()), ("y", pa.int8())]))),
            ("new", pa.date32()),
            *METADATA_FIELDS,
        ]
    )
    assert unite(pa.schema([]), first) == unite(first, first) == first


def test_rows_of_slices_and_nulls_keep_their_places() -> None:
    inner = pa.struct([("x", pa.int32())])
    rows = pa.record_batch(
        {
            "s": pa.array([{"x": 1}, None, {"x": None}, {"x": 4}], inner),
            "l": pa.array([[{"x": 1}], None, [], [None, {"x": 2}]], pa.list_(inner)),
            "m": pa.array([[("a", 1)], None, [], [("b", None)]], pa.map_(pa.string(), pa.int8())),
        }
    ).slice(1)
    wider = pa.struct([("y", pa.string()), ("x", pa.int64())])
    other = pa.schema(
        [("n", pa.bool_()), ("l", pa.list_(wider)), ("m", pa.map_(pa.string(), pa.int64())), ("s", wider)]
    )
    found = conform(rows, unite(other, rows.schema))
    assert found.schema.names == ["n", "l", "m", "s"]
    assert found.to_pylist() == [
        {"n": None, "s": None, "l": None, "m": None},
        {"n": None, "s": {"y": None, "x": None}, "l": [], "m": []},
        {"n": None, "s": {"y": None, "x": 4}, "l": [None, {"y": None, "x": 2}], "m": [("b", None)]},
    ]


def test_a_value_beyond_the_wider_type_is_named() -> None:
    rows = pa.record_batch({"day": pa.array([2**31 - 1], pa.date32())})
    with pytest.raises(Misfit, match="column day has a value that is not a valid timestamp"):
        conform(rows, pa.schema([("day", NTZ)]))


def test_a_gap_has_nulls_in_all_columns_but_its_own() -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.null()), *METADATA_FIELDS])
    row = gap_row(Gap("t", 3, 5, 1_772_366_400_000, "why", snapshot=True), schema)
    row.validate(full=True)
    assert unite(schema, row.schema).field("id").nullable
    values = row.to_pylist()[0]
    assert (values["id"], values["v"], values["_change_type"], values["_commit_version"]) == (None, None, GAP, 5)
    assert values["_commit_timestamp"].isoformat() == "2026-03-01T12:00:00+00:00"


LEAVES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int8(): st.integers(-(2**7), 2**7 - 1),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    decimal(5, 2): st.decimals(-999, 999, places=2),
    decimal(22, 3): st.decimals(-(10**18), 10**18, places=3),
    pa.date32(): st.dates(),
    NTZ: st.datetimes(),
    pa.null(): st.none(),
    pa.string(): st.text(st.characters(codec="utf-8")),
}


@given(st.data())
def test_a_value_that_fits_arrives_as_it_was(data: st.DataObject) -> None:
    narrow, wide = data.draw(st.sampled_from([(a, b) for a in LEAVES for b in LEAVES if fits(a, b)]))
    values = data.draw(st.lists(st.one_of(st.none(), LEAVES[narrow])))
    rows = pa.record_batch({"c": pa.array(values, narrow), "l": pa.array([values] * len(values), pa.list_(narrow))})
    back = conform(rows, pa.schema([("l", pa.list_(wide)), ("c", wide)]))
    assert back.schema.types == [pa.list_(wide), wide]
    for column in (back["c"], *(each.values for each in back["l"])):
        for found, given_value in zip(column.to_pylist(), values, strict=True):
            both_nan = isinstance(found, float) and math.isnan(found) and str(given_value) == "nan"
            assert found == given_value or both_nan or (narrow, wide) == (pa.date32(), NTZ)
        if narrow not in (
            pa.null(),
            pa.float32(),
            pa.float64(),
        ):  # void has no cast back, NaN is unequal to itself
            assert column.cast(narrow).equals(pa.array(values, narrow))
