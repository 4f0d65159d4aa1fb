"""Bounds and nulls of columns by the footer of a Parquet file."""

from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from tailer.events import VARIANT
from tailer.plan import add_row_ids
from tailer.read.execute import open_footer
from tailer.read.parquet.footer import ChunkStatistics, Footer
from tailer.read.parquet.statistics import GroupRanges
from tailer.schema.columns import CHAR, DEFAULT, FIELD_ID, PHYSICAL_NAME, ColumnRange, Ranges
from tailer.schema.variant_paths import with_paths
from tests.support.oracle.ranges import columns_of, ranges_of_groups
from tests.support.tables.log_files import parquet, task

LONG, TEXT = pa.int64(), pa.string()
ALL_NULL: Final = ColumnRange(None, None, may_have_values=False)


def written(tmp_path: Path, kind: pa.DataType, values: Sequence[Any], wanted: pa.DataType, **options: Any) -> Ranges:
    """Return the ranges of a file with one column `a`, which the table has as `wanted`."""
    path = parquet(tmp_path / "f", pa.table({"a": pa.array(values, kind)}), **options)
    return ranges_of_groups(task(path, pa.schema([("a", wanted)])))[0]


def values_of(found: ColumnRange) -> tuple[Any, Any, bool, bool]:
    low, high = (None if bound is None else bound.as_py() for bound in (found.low, found.high))
    return low, high, found.may_be_null, found.may_have_values


UTC_US, PLAIN_US = pa.timestamp("us", "UTC"), pa.timestamp("us")
NOON = datetime(2026, 3, 1, 12, 0, 0, 1, tzinfo=UTC)
PLAIN = datetime(2026, 3, 1, 12, 0, 0, 1)  # noqa: DTZ001
MIDNIGHT = PLAIN.replace(hour=0, microsecond=0)
MILLIS = PLAIN.replace(microsecond=2000)


@pytest.mark.parametrize(
    ("kind", "wanted", "values", "low", "high"),
    [
        (LONG, LONG, [3, -7, 5], -7, 5),
        (pa.int8(), pa.int8(), [3, -7, 5], -7, 5),
        (pa.int16(), LONG, [300, -7], -7, 300),
        (pa.int32(), pa.float64(), [3, -7], -7.0, 3.0),
        (pa.int32(), pa.decimal128(12, 2), [3, -7], Decimal("-7.00"), Decimal("3.00")),
        (pa.bool_(), pa.bool_(), [True, True], True, True),
        (pa.float32(), pa.float64(), [0.1, 2.5], 0.10000000149011612, 2.5),
        (pa.float64(), pa.float64(), [1.0, float("inf")], 1.0, float("inf")),
        (TEXT, TEXT, ["b", "a", "\U0001f600", "\uffee"], "a", "\U0001f600"),
        (pa.large_string(), TEXT, ["b", "a"], "a", "b"),
        (pa.date32(), pa.date32(), [date(1, 1, 1), date(2026, 3, 1)], date(1, 1, 1), date(2026, 3, 1)),
        (pa.date32(), PLAIN_US, [date(2026, 3, 1)], MIDNIGHT, MIDNIGHT),
        (UTC_US, UTC_US, [NOON], NOON, NOON),
        (pa.timestamp("ms"), PLAIN_US, [MILLIS], MILLIS, MILLIS),
        (pa.timestamp("ns"), PLAIN_US, [PLAIN], PLAIN, PLAIN),
    ],
    ids=str,
)  # fmt: skip
def test_bounds(tmp_path: Path, kind: Any, wanted: Any, values: Any, low: Any, high: Any) -> None:
    found = written(tmp_path, kind, values, wanted)[("a",)]
    assert values_of(found) == (low, high, False, True)
    assert found.low is not None
    assert found.low.type == wanted
    assert values_of(written(tmp_path, kind, [*values, None], wanted)[("a",)]) == (low, high, True, True)


def test_bounds_of_decimals(tmp_path: Path) -> None:
    """Stored as bytes they have none: polars joined bounds of pages as if the bytes had no sign."""
    values, bounds = [Decimal("-1.25"), Decimal("99.01"), Decimal("0.00")], (Decimal("-1.25"), Decimal("99.01"))
    for precision, as_integers, expected in (
        (4, True, bounds),
        (12, True, bounds),
        (12, False, (None, None)),
        (30, True, (None, None)),
    ):
        kind = pa.decimal128(precision, 2)
        for wanted in (kind, pa.decimal128(precision + 4, 4)):
            found = written(tmp_path, kind, values, wanted, store_decimal_as_integer=as_integers)
            assert values_of(found[("a",)]) == (*expected, False, True)


def test_floats_without_order(tmp_path: Path) -> None:
    nan = float("nan")
    for kind in (pa.float32(), pa.float64()):
        found = written(tmp_path, kind, [1.5, nan, 2.5], kind)[("a",)]
        assert values_of(found) == (1.5, 2.5, False, True)
        assert values_of(written(tmp_path, kind, [nan, nan], kind)[("a",)]) == (None, None, False, True)
        for zero in (0.0, -0.0):
            zeros = written(tmp_path, kind, [zero], kind)[("a",)]
            assert list(map(str, values_of(zeros)[:2])) == ["-0.0", "0.0"]


@pytest.mark.parametrize(
    ("kind", "values", "wanted"),
    [
        (pa.uint32(), [1], LONG),
        (pa.uint64(), [1], pa.decimal128(20, 0)),
        (LONG, [1], pa.int32()),
        (pa.binary(), [b"a"], TEXT),
        (pa.binary(), [b"a"], pa.binary()),
        (pa.dictionary(pa.int32(), TEXT), ["a"], TEXT),
        (pa.decimal128(9, 4), [Decimal(1)], pa.decimal128(9, 2)),
        (pa.list_(LONG), [[1]], pa.list_(LONG)),
        (pa.struct([("b", LONG)]), [{"b": 1}], pa.struct([("b", LONG)])),
    ],
    ids=str,
)
def test_unknown(tmp_path: Path, kind: Any, values: Any, wanted: Any) -> None:
    assert ("a",) not in written(tmp_path, kind, values, wanted)


def test_no_statistics(tmp_path: Path) -> None:
    assert values_of(written(tmp_path, LONG, [1], LONG, write_statistics=False)[("a",)]) == (None, None, True, True)
    found = written(tmp_path, PLAIN_US, [PLAIN], PLAIN_US, use_deprecated_int96_timestamps=True)
    assert values_of(found[("a",)])[:2] == (None, None)


def test_small_groups_are_not_looked_at(tmp_path: Path) -> None:
    for rows, known in ((10, {("b",)}), (10_000, {("a",), ("b",)})):
        path = parquet(tmp_path / "f", pa.table({"a": range(rows)}))
        each = task(path, pa.schema([("a", LONG), ("b", LONG)]))
        with pa.OSFile(str(path)) as source, open_footer(each) as file:
            columns = columns_of(each, file, each.schema)
            assert set(GroupRanges(columns, file, Footer(source), 0)) == known


def test_groups_and_nulls(tmp_path: Path) -> None:
    path = parquet(tmp_path / "f", pa.table({"a": pa.array([1, 2, None, 4, None, None])}), row_group_size=2)
    groups = ranges_of_groups(task(path, pa.schema([("a", LONG), ("b", LONG), ("n", pa.null())])))
    assert [values_of(group[("a",)]) for group in groups] == [
        (1, 2, False, True),
        (4, 4, True, True),
        (None, None, True, False),
    ]
    assert [(group[("b",)], group[("n",)]) for group in groups] == [(ALL_NULL, ALL_NULL)] * 3
    with_default = pa.field("b", LONG, metadata={DEFAULT: b"1"})
    assert ("b",) not in ranges_of_groups(task(path, pa.schema([with_default])))[0]


def test_structs(tmp_path: Path) -> None:
    inner = pa.field("b", LONG, nullable=False)
    column = pa.array(
        [{"b": 1, "c": {"d": "x"}}, None, {"b": 3, "c": None}], pa.struct([inner, ("c", pa.struct([("d", TEXT)]))])
    )
    path = parquet(tmp_path / "f", pa.table({"l": [[1], [2], [3]], "a": column, "e": [1, 2, 3]}))
    table = pa.schema([("e", LONG), ("a", pa.struct([("c", pa.struct([("d", TEXT), ("f", TEXT)])), ("b", LONG)]))])
    (found,) = ranges_of_groups(task(path, table))
    assert {path: values_of(each) for path, each in found.items()} == {
        ("e",): (1, 3, False, True),
        ("a", "c", "d"): ("x", "x", True, True),
        ("a", "c", "f"): (None, None, True, False),
        ("a", "b"): (1, 3, True, True),
    }
    (all_null,) = ranges_of_groups(task(path, pa.schema([("z", pa.struct([("b", LONG)]))])))
    assert all_null == {("z",): ALL_NULL, ("z", "b"): ALL_NULL}


def test_names_of_the_file(tmp_path: Path) -> None:
    """Columns are found by field id, or by physical name without regard to case, and called as the table calls them."""
    stored = pa.schema([pa.field("x", LONG, metadata={FIELD_ID: b"1"}), pa.field("Y", LONG, metadata={FIELD_ID: b"2"})])
    path = parquet(tmp_path / "f", pa.table({"x": [1], "Y": [2]}, schema=stored))
    by_id = pa.schema(
        [
            pa.field(name, LONG, metadata={PHYSICAL_NAME: b"?", FIELD_ID: number})
            for name, number in (("a", b"2"), ("b", b"3"))
        ]
    )
    (found,) = ranges_of_groups(task(path, by_id))
    assert (values_of(found[("a",)]), found[("b",)]) == ((2, 2, False, True), ALL_NULL)
    by_name = pa.schema([pa.field("x", LONG, metadata={PHYSICAL_NAME: b"y"})])
    assert values_of(ranges_of_groups(task(path, by_name))[0][("x",)])[0] == 2


def test_values_of_partitions_are_those_of_the_log(tmp_path: Path) -> None:
    path = parquet(tmp_path / "f", pa.table({"p": [1], "q": [1]}))
    each = task(path, pa.schema([("p", LONG), ("q", LONG)]), partition_values=(("p", "7"), ("q", None)))
    (found,) = ranges_of_groups(each)
    assert (values_of(found[("p",)]), found[("q",)]) == ((7, 7, False, True), ALL_NULL)


def test_columns_that_are_no_columns_of_the_file(tmp_path: Path) -> None:
    path = parquet(tmp_path / "f", pa.table({"c": ["x"]}))
    char = pa.schema([pa.field("c", TEXT, metadata={CHAR: b'{"": 3}'})])
    assert ranges_of_groups(task(path, char)) == [{}]
    assert set(ranges_of_groups(task(path, add_row_ids(pa.schema([("c", TEXT)]))))[0]) == {("c",)}


def test_variants(tmp_path: Path) -> None:
    path = parquet(tmp_path / "f", pa.table({"v": pa.array([{"metadata": b"\1\0\0", "value": b"\0"}], VARIANT)}))
    fields = with_paths(pa.schema([("v", VARIANT)]), ["v:$.a"])
    assert ranges_of_groups(task(path, fields)) == [{}]


def test_old_calendar(tmp_path: Path) -> None:
    schema = pa.schema([("d", pa.date32()), ("a", LONG)]).with_metadata({b"org.apache.spark.version": b"2.4.0"})
    path = parquet(tmp_path / "f", pa.table({"d": [date(2026, 3, 1)], "a": [1]}, schema=schema))
    assert set(ranges_of_groups(task(path, schema))[0]) == {("a",)}


def chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: pa.DataType, value: Any, noted: ChunkStatistics | None
) -> Ranges:
    path = parquet(tmp_path / "f", pa.table({"a": pa.array([value] * 2, kind)}))
    with monkeypatch.context() as patch:
        patch.setattr(Footer, "statistics", lambda *_: noted)
        return ranges_of_groups(task(path, pa.schema([("a", kind)])))[0]


@pytest.mark.parametrize(
    ("kind", "noted", "expected"),
    [
        (LONG, None, None),
        (LONG, ChunkStatistics(3, 0), None),
        (LONG, ChunkStatistics(2, 3), None),
        (LONG, ChunkStatistics(2, -1), None),
        (LONG, ChunkStatistics(2, 2, b"\1" + b"\0" * 7, b"\1" + b"\0" * 7), None),
        (LONG, ChunkStatistics(2, 0, b"\2" + b"\0" * 7, b"\1" + b"\0" * 7), None),
        (LONG, ChunkStatistics(2, 0, b"\2", b"\1" + b"\0" * 7), (None, 1, False, True)),
        (TEXT, ChunkStatistics(2, 0, b"a\xc3", b"a\xc3\xa4"), (None, "aä", False, True)),
        (TEXT, ChunkStatistics(2, 0, b"a", b"b"), ("a", "b", False, True)),
        (TEXT, ChunkStatistics(2, None, b"", b"b"), ("", "b", True, True)),
        (pa.decimal128(30, 0), ChunkStatistics(2, 0, b"\0" * 13, b"\0" * 13), (None, None, False, True)),
        (pa.decimal128(30, 0), ChunkStatistics(2, 2), None),  # polars counts nulls once for each page
        (pa.float64(), ChunkStatistics(2, 2), None),
        (LONG, ChunkStatistics(2, 2, b"\1" + b"\0" * 7), None),
        (pa.float64(), ChunkStatistics(2, 0, b"\0" * 6 + b"\xf8\x7f", b"\0" * 8), (None, None, False, True)),
        (pa.bool_(), ChunkStatistics(2, 0, b"\0", b"\2"), (False, None, False, True)),
        (pa.int8(), ChunkStatistics(2, 0, b"\0\1\0\0", b"\0\2\0\0"), (None, None, False, True)),
        (pa.int8(), ChunkStatistics(2, 0, b"\1\0\0\0", b"\0\2\0\0"), (1, None, False, True)),
    ],
    ids=str,
)  # fmt: skip
def test_nonsense(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any, noted: Any, expected: Any) -> None:
    value = {TEXT: "a", pa.bool_(): True}.get(kind, 1)
    found = chunk(tmp_path, monkeypatch, kind, value, noted).get(("a",))
    assert (None if found is None else values_of(found)) == expected
