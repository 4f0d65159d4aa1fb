"""Ranges of the values in files by the log, and the files that a plan then lacks."""

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from tailer.plan import HELD, ChangePlan, ChangeTask, Regime, SkippedFiles, TaskKind
from tailer.read.pruning import prune
from tailer.schema.columns import CHAR, PHYSICAL_NAME, ColumnRange
from tailer.shape.parse.texts import parse_condition
from tests.support.cases import cases
from tests.support.oracle.ranges import task_ranges
from tests.support.tables.log_files import task

LONG, TEXT, US, ZONED = pa.int64(), pa.string(), pa.timestamp("us"), pa.timestamp("us", "UTC")
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MIDNIGHT: Final = datetime(2026, 3, 1)  # noqa: DTZ001
NOON: Final = datetime(2026, 3, 1, 12, tzinfo=UTC)
CUT: Final = timedelta(minutes=1) - timedelta(microseconds=1)
Found = tuple[Any, Any, bool, bool]


def with_stats(fields: pa.Schema, stats: Any, **options: Any) -> ChangeTask:
    text = stats if isinstance(stats, str) or stats is None else json.dumps(stats)
    return replace(task(Path("/t/f"), fields, **options), stats=text)


def values_of(found: ColumnRange) -> Found:
    low, high = (None if bound is None else bound.as_py() for bound in (found.low, found.high))
    return low, high, found.may_be_null, found.may_have_values


def bounds(
    kind: pa.DataType, low: str, high: str, metadata: dict[bytes, bytes] | None = None
) -> tuple[Any, Any] | None:
    """Return the bounds of a column for JSON values in the log; None where these contradict each other."""
    fields = pa.schema([pa.field("a", kind, metadata=metadata)])
    text = f'{{"numRecords":3,"minValues":{{"a":{low}}},"maxValues":{{"a":{high}}},"nullCount":{{"a":0}}}}'
    found = task_ranges(with_stats(fields, text), fields).get(("a",))
    return None if found is None else values_of(found)[:2]


@cases(("kind", "low", "high", "expected"), [
        (LONG, "-7", "5", (-7, 5)),
        (pa.int8(), "-7", "300", (-7, None)),
        (LONG, "-9007199254740992", "9007199254740992", (-9007199254740994, 9007199254740994)),  # a double
        (LONG, "-9223372036854775807", "9223372036854775807", (None, None)),
        (LONG, "-7.5", '"5"', (None, None)),
        (LONG, "false", "true", (None, None)),
        (LONG, "9" * 30, "null", (None, None)),
        (pa.bool_(), "false", "true", (False, True)),
        (pa.bool_(), "0", "1", (None, None)),
        (TEXT, '"a"', '"b\U0010ffff"', ("a", "b\U0010ffff")),
        (TEXT, f'"{"a" * 32}"', f'"{"b" * 31}"', ("a" * 32, "b" * 31)),
        (TEXT, '"a"', f'"{"b" * 32}"', ("a", "b" * 31 + "c")),  # cut off, as the protocol has it
        (TEXT, '"a"', f'"{"ä" * 16}"', ("a", "ä" * 15 + "å")),  # after 32 bytes
        (TEXT, '"a"', f'"{"b" * 32}\U0010ffff"', ("a", "b" * 31 + "c")),  # as Spark cuts now,
        (TEXT, '"a"', f'"{"b" * 32}\ufffd"', ("a", "b" * 31 + "c")),  # and before, where more may follow than U+FFFD
        (TEXT, '"a\U0001f600"', '"b\ufe0f"', ("a", "c")),  # compared by UTF-16
        (TEXT, '"\U0001f600"', '"\uff5e"', ("", None)),
        (TEXT, '"a"', json.dumps("\U0010ffff" * 8), ("a", None)),
        (TEXT, '"a"', json.dumps("b" + "\ud7ff" * 32), ("a", "b" + "\ud7ff" * 31 + "\ue000")),
        (TEXT, "7", "true", (None, None)),
        (pa.binary(), '"a"', '"b"', (None, None)),
        (pa.decimal128(5, 2), "-1.25", "7", (Decimal("-1.25"), Decimal("7.00"))),
        (pa.decimal128(5, 2), "-1.251", "7.001", (Decimal("-1.26"), Decimal("7.01"))),
        (pa.decimal128(5, 2), "-1e9", "1e999999999", (None, None)),
        (pa.decimal128(20, 0), "1.2345678901234568e19", "2e19",
         (Decimal(12345678901234555654), Decimal(20000000000000020000))),
        (pa.date32(), '"1900-01-01"', '"2026-03-01"', (date(1900, 1, 1), date(2026, 3, 1))),
        (pa.date32(), '"1582-10-04"', '"1899-12-31"', (None, None)),
        (ZONED, '"2026-03-01T12:00:00.000Z"', '"2026-03-01T12:00:00.001-02:00"',
         (NOON - CUT, NOON + timedelta(hours=2, milliseconds=1) + CUT)),
        (ZONED, '"1970-01-01T00:00:00.000Z"', '"1969-12-31T23:59:59.999Z"',
         (EPOCH - CUT, EPOCH - timedelta(milliseconds=1) + CUT)),
        (ZONED, '"1959-12-31T23:15:40.000-00:44"', '"1930-01-01T00:19:42.000+00:19"', None),
        (ZONED, '"1930-01-01T00:19:42.000+00:19"', '"1959-12-31T23:15:40.000-00:44"',
         (datetime(1929, 12, 31, 23, 59, 42, 1, tzinfo=UTC), datetime(1960, 1, 1, 0, 0, 39, 999999, tzinfo=UTC))),
        (ZONED, '"2026-03-01T12:00:00.000"', '"2026-03-01"', (None, None)),
        (ZONED, '"1890-01-01T00:00:00.000Z"', '"2026-13-01T00:00:00.000Z"', (None, None)),
        (US, '"2026-03-01"', '"2026-03-01T12:00:00.000"', (MIDNIGHT - CUT, MIDNIGHT.replace(hour=12) + CUT)),
        (US, '"2026-03-01T12:00:00.000Z"', '"2026-03-01T12:00:00+01:00"', (None, None)),
        (pa.float64(), '"-Infinity"', '"Infinity"', (None, None)),
        (pa.float64(), '"NaN"', "1e999", (None, None)),
        (pa.float32(), "-1e39", "3.41e38", (None, None)),
        (pa.float64(), "-1e39", "3.41e38", (-1e39, None)),
    ])  # fmt: skip
def test_bounds(kind: pa.DataType, low: str, high: str, expected: tuple[Any, Any] | None) -> None:
    assert bounds(kind, low, high) == expected


@cases("text", ["0.1", "-0.1", "0", "-0.0", "1e-45", "16777217", "3.3e38", "1.17549435E-38"])
def test_bounds_of_floats_hold_for_numbers_of_32_bits(text: str) -> None:
    for kind in (pa.float32(), pa.float64()):
        found = bounds(kind, text, text)
        assert found is not None
        low, high = found
        number = pa.scalar(float(text), pa.float32()).as_py()
        assert low < number < high
        assert low <= float(text) <= high
        assert high - low <= max(abs(number) * 1e-6, 1e-44)


def test_chars_have_no_bounds() -> None:
    assert bounds(TEXT, '"a"', '"b"', {CHAR: b'{"": 3}'}) == (None, None)


@cases(
    ("stats", "expected"),
    [
        ({"numRecords": 3, "nullCount": {"a": 1}}, (None, None, True, True)),
        ({"numRecords": 3, "nullCount": {"a": 0}}, (None, None, False, True)),
        ({"numRecords": 3, "nullCount": {"a": 3}}, None),
        ({"numRecords": 3, "nullCount": {"a": 3}, "minValues": {}, "maxValues": {}}, (None, None, True, False)),
        ({"nullCount": {"a": 3}}, (None, None, True, True)),
        ({"minValues": {"a": 1}}, (1, None, True, True)),
        ({"maxValues": {"a": 1}, "tightBounds": False}, (None, 1, True, True)),
        ({"numRecords": 3}, None),
        ({"numRecords": 0, "nullCount": {"a": 0}}, None),
        ({"numRecords": 3, "nullCount": {"a": 4}}, None),
        ({"numRecords": 3, "nullCount": {"a": -1}}, None),
        ({"numRecords": 3, "nullCount": {"a": True}}, None),
        ({"numRecords": -3, "nullCount": {"a": 0}}, None),
        ({"numRecords": "3", "nullCount": {"a": 0}}, None),
        ({"numRecords": 3, "nullCount": {"a": 3}, "minValues": {"a": 1}}, None),
        ({"numRecords": 3, "nullCount": {"a": 0}, "minValues": {"a": 2}, "maxValues": {"a": 1}}, None),
        ({"numRecords": 3, "nullCount": {"a": {"a": 0}}}, None),
        ({"numRecords": 3, "nullCount": 0, "minValues": [1], "maxValues": None}, None),
        ('{"numRecords":3,"nullCount":{"a":0},"maxValues":{"a":NaN}}', None),
        ('{"numRecords":3,"nullCount":{"a":0},"maxValues":{"a":"\\ud800"}}', None),
        ('{"minValues":{"b":[{}],"a":1},"x":{"a":2},"maxValues":null}', (1, None, True, True)),
        ([1], None),
        (None, None),
        ("", None),
        ("{", None),
        ("[" * 100_000, None),
        ('{"numRecords":' + "9" * 10_000 + "}", None),
    ],
)
def test_what_writers_leave_out_or_get_wrong_is_unknown(stats: Any, expected: Found | None) -> None:
    fields = pa.schema([("a", LONG)])
    found = task_ranges(with_stats(fields, stats), fields).get(("a",))
    assert (None if found is None else values_of(found)) == expected


def test_structs_have_physical_names() -> None:
    def named(name: str, kind: pa.DataType) -> pa.Field:
        return pa.field(name, kind, metadata={PHYSICAL_NAME: f"col-{name}".encode()})

    fields = pa.schema(
        [named("s", pa.struct([named("a", LONG), named("t", pa.struct([named("b", TEXT)]))])), named("x", LONG)]
    )
    stats = {
        "numRecords": 3,
        "minValues": {"x": 1, "col-s": {"col-a": 1, "col-t": {"col-b": "x"}}},
        "maxValues": {"x": 2, "col-s": {"col-a": 2, "col-t": {"col-b": "y"}}},
        "nullCount": {"x": 0, "col-s": {"col-a": 1, "col-t": {"col-b": 0}}},
    }
    found = task_ranges(with_stats(fields, stats), fields)
    assert {path: values_of(each) for path, each in found.items()} == {
        ("s", "a"): (1, 2, True, True),
        ("s", "t", "b"): ("x", "y", True, True),  # kernel-rs did not count nulls of a struct as those of its fields
    }


@pytest.mark.parametrize("kind", [pa.bool_(), pa.float64(), pa.decimal128(5, 2), pa.binary(), pa.list_(LONG)], ids=str)
def test_nulls_alone_prove_nothing_where_writers_leave_out_bounds(kind: pa.DataType) -> None:
    """Polars counted nulls once for each page."""
    fields = pa.schema([("a", kind)])
    assert task_ranges(with_stats(fields, {"numRecords": 3, "nullCount": {"a": 3}}), fields) == {}


def test_partition_values_are_exact() -> None:
    fields = pa.schema([("p", LONG), ("q", LONG), ("d", pa.float64()), ("n", pa.float64()), ("z", LONG)])
    logged = (("p", "7"), ("q", None), ("d", "-0.0"), ("n", "NaN"), ("z", "seven"))
    stats = {"numRecords": 1, "minValues": {"p": 1, "z": 1}, "maxValues": {"p": 2, "z": 1}, "nullCount": {"p": 0}}
    found = task_ranges(with_stats(fields, stats, partition_values=logged), fields)
    assert {path: str(values_of(each)) for (path,), each in found.items()} == {
        "p": "(7, 7, False, True)",
        "q": "(None, None, True, False)",
        "d": "(-0.0, 0.0, False, True)",
        "n": "(None, None, False, True)",
    }


def plan_of(fields: pa.Schema, *tasks: ChangeTask) -> ChangePlan:
    return ChangePlan("t", "id", 7, 0, None, Regime.FILES, fields, tasks)


def where_five(task: ChangeTask, fields: pa.Schema) -> ChangeTask:
    return replace(task, where=parse_condition("a = 5", fields))


def stats_of(**values: int) -> Mapping[str, Any]:
    return {"numRecords": 3, "minValues": values, "maxValues": values, "nullCount": dict.fromkeys(values, 0)}


def test_files_without_a_row_are_left_out() -> None:
    fields = pa.schema([("a", LONG), ("p", TEXT)])
    tasks = [
        replace(
            where_five(with_stats(fields, stats), fields),
            index=number,
            uri=f"/t/{number}",
            partition_values=(("p", "x"),),
        )
        for number, stats in enumerate([stats_of(a=4), stats_of(a=5), None, stats_of(b=4), stats_of(a=6)])
    ]
    found = prune(plan_of(fields, *tasks))
    assert found.skipped == SkippedFiles(2, 2 * tasks[0].size_bytes)
    assert [(each.index, each.stats) for each in found.tasks] == [(1, HELD), (2, None), (3, HELD)]
    assert found.tasks[0] == replace(tasks[1], stats=HELD)
    assert found.tasks[1] is tasks[2]


def test_deleted_rows_have_the_columns_of_their_own_schema() -> None:
    """REPLACE TABLE may give a name to another column."""
    before = pa.schema([pa.field("a", LONG, metadata={PHYSICAL_NAME: b"old"})])
    after = pa.schema([pa.field("a", LONG, metadata={PHYSICAL_NAME: b"new"})])
    other = pa.schema([pa.field("b", LONG, metadata={PHYSICAL_NAME: b"old"})])
    stats = stats_of(old=5, new=4)
    tasks = [
        replace(where_five(with_stats(before, stats), before), kind=TaskKind.DELETE),
        replace(where_five(with_stats(other, stats_of(old=4, new=4)), after), kind=TaskKind.DELETE, index=1),
        replace(where_five(with_stats(after, stats), after), index=2),
    ]
    assert [each.index for each in prune(plan_of(after, *tasks)).tasks] == [0, 1]


def test_tasks_travel_with_statistics() -> None:
    fields = pa.schema([("a", LONG)])
    each = with_stats(fields, stats_of(a=1))
    assert ChangeTask.from_dict(json.loads(json.dumps(each.to_dict()))) == each
    assert "stats" not in replace(each, stats=None).to_dict()
