"""Ranges of columns in which conditions cannot hold: cases with literal answers, and random ones against the mask."""

import random
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tailer.errors import ExpressionFailed
from tailer.schema.columns import ColumnRange
from tailer.shape.parse.texts import parse_condition
from tests.support.cases import cases
from tests.support.seeds import repeats, seeds

NAN: Final = float("nan")
SCHEMA: Final = pa.schema(
    [
        ("a", pa.int32()),
        ("b", pa.int64()),
        ("x", pa.float64()),
        ("s", pa.string()),
        ("day", pa.date32()),
        ("flag", pa.bool_()),
        ("n", pa.struct([("c", pa.int32())])),
    ]
)
VALUES: Final[dict[str, list[Any]]] = {
    "a": [-2, -1, 0, 1, 2, 3, None],
    "b": [0, 1, 2, 3, None],
    "x": [-1.0, -0.0, 0.0, 1.0, 2.0, NAN, None],
    "s": ["", "a", "ab", "abc", "b", "é", None],
    "day": [0, 1, 2, None],
    "flag": [True, False, None],
}


def spread(kind: pa.DataType, low: Any, high: Any, *, nulls: bool = False, values: bool = True) -> ColumnRange:
    """Return the range between two values."""
    bounds = [None if each is None else pa.scalar(each, kind) for each in (low, high)]
    return ColumnRange(bounds[0], bounds[1], may_be_null=nulls, may_have_values=values)


A: Final = {("a",): spread(pa.int32(), 5, 10)}
SOME: Final = {("a",): spread(pa.int32(), 5, 10, nulls=True)}
ONE: Final = {("a",): spread(pa.int32(), 5, 5)}
NONE: Final = {("a",): spread(pa.int32(), None, None, nulls=True, values=False)}
B: Final = {("b",): spread(pa.int64(), 1, 10)}
TEXT: Final = {("s",): spread(pa.string(), "ab", "b")}
X: Final = {("x",): spread(pa.float64(), 1.0, 2.0)}
NESTED: Final = {("n", "c"): spread(pa.int32(), 5, 10, nulls=True)}


@cases(
    ("condition", "ranges", "expected"),
    [
        ("a = 4", A, False),
        ("a = 5", A, True),
        ("a <> 5", A, True),
        ("a <> 5", ONE, False),
        ("a < 5", A, False),
        ("a <= 5", A, True),
        ("a > 10", A, False),
        ("11 <= a", A, False),
        ("NOT a >= 5", A, False),
        ("NOT a >= 5", SOME, False),
        ("(a >= 5) IS NOT TRUE", A, False),
        ("(a >= 5) IS NOT TRUE", SOME, True),
        ("a > 10.5", A, False),
        ("a > 1e2", A, False),
        ("a IN (1, 2)", A, False),
        ("a IN (1, 7)", A, True),
        ("a NOT IN (5)", ONE, False),
        ("a NOT IN (1, NULL)", A, False),
        ("a BETWEEN 1 AND 4", A, False),
        ("a IS NULL", A, False),
        ("a IS NULL", SOME, True),
        ("a IS NOT NULL", NONE, False),
        ("a = 5", NONE, False),
        ("a <=> NULL", A, False),
        ("a <=> NULL", NONE, True),
        ("NOT (a <=> 5)", NONE, True),
        ("a = 4 AND b = 1", A, False),
        ("a = 4 OR b = 1", A, True),
        ("a = 4 OR a = 11", A, False),
        ("a = 7 AND FALSE", A, False),
        ("(a = 7 AND b > 0) IS NOT TRUE", NONE | B, True),
        ("a + 1 = 6", ONE, True),
        ("a + 1 = 7", ONE, False),
        ("a + 1 = 7", A, True),
        ("CASE WHEN a = 5 THEN FALSE ELSE TRUE END", ONE, False),
        ("coalesce(a, 1) = 1", NONE, True),
        ("coalesce(a, 1) = 2", NONE, False),
        ("1 / (a - 5) = 1", ONE, True),
        ("a = 4", {}, True),
        ("s LIKE 'ac%'", TEXT, True),
        ("s LIKE 'aa%'", TEXT, False),
        ("s LIKE 'c%'", TEXT, False),
        ("startswith(s, 'aa')", TEXT, False),
        ("s LIKE '%c'", TEXT, True),
        ("s > 'b'", TEXT, False),
        ("s > 'a\\u00e9'", TEXT, True),
        ("s = 'é'", TEXT, False),
        ("x > 5", X, True),
        ("x < 1", X, False),
        ("NOT x > 0", X, False),
        ("x = 0", {("x",): spread(pa.float64(), -0.0, -0.0)}, True),
        ("x = 5", {("x",): spread(pa.float64(), NAN, NAN)}, True),
        ("n.c = 4", NESTED, False),
        ("n.c = 5", NESTED, True),
    ],
)
def test_a_condition_is_ruled_out_where_no_value_can_fulfil_it(condition: str, ranges: Any, expected: bool) -> None:
    assert parse_condition(condition, SCHEMA).may_hold(ranges) is expected


def rows_of(make: random.Random) -> pa.RecordBatch:
    """Return a few rows, whose columns have few values."""
    length = make.choice([1, 1, 2, 4])
    arrays = []
    for field in SCHEMA:
        if field.name == "n":
            inner = [make.choice([None, {"c": make.choice([None, 1, 2])}]) for _ in range(length)]
            arrays.append(pa.array(inner, field.type))
        else:
            chosen = make.sample(VALUES[field.name], make.choice([1, 1, 2, 3]))
            arrays.append(pa.array([make.choice(chosen) for _ in range(length)], field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def ranges_of(make: random.Random, rows: pa.RecordBatch) -> dict[tuple[str, ...], ColumnRange]:
    """Return the ranges of some columns, some of them wider than the values."""
    found: dict[tuple[str, ...], ColumnRange] = {}
    columns = {(name,): rows.column(name) for name in VALUES} | {("n", "c"): pc.struct_field(rows.column("n"), [0])}
    for path, column in columns.items():
        known = column.drop_null()
        if path == ("x",):
            known = known.filter(pc.invert(pc.is_nan(known)))
        bounds = pc.min_max(known) if len(known) and path != ("flag",) else {}
        low, high = (bounds[each] if bounds and make.random() < 0.9 else None for each in ("min", "max"))
        if path == ("x",) and bounds and make.random() < 0.2:
            low = pa.scalar(NAN)
        if make.random() < 0.9:
            has_values = len(column) > column.null_count or make.random() < 0.1
            found[path] = ColumnRange(low, high, column.null_count > 0 or make.random() < 0.1, has_values)
    return found


def predicate(make: random.Random) -> str:
    """Return a random condition on one or two columns."""
    column, literals = make.choice(
        [
            ("a", ["-1", "0", "2", "1.5", "1L", "NULL", "b", "1e0"]),
            ("b", ["0", "2", "2.5", "NULL", "a", "x", "2D"]),
            ("x", ["0", "-0.0", "1.5", "1e0", "cast('1' AS double)", "b", "NULL"]),
            ("s", ["'a'", "'ab'", "'b'", "'\\u00e9'", "NULL"]),
            ("day", ["'1970-01-02'", "DATE'1970-01-01'", "NULL"]),
            ("n.c", ["1", "2", "NULL", "a"]),
            ("cast(a AS bigint)", ["1", "b"]),
            ("cast(b AS double)", ["1", "x"]),
            ("coalesce(a, 1)", ["1", "0"]),
            ("a + 1", ["1", "0"]),
        ]
    )
    first, second = make.choice(literals), make.choice(literals)
    operator = make.choice(["=", "<>", "<", "<=", ">", ">=", "<=>"])
    forms = [f"{column} {operator} {first}"] * 4 + [f"{first} {operator} {column}"]
    forms += [f"{column} IN ({first}, {second})", f"{column} BETWEEN {first} AND {second}", f"{column} IS NULL"]
    forms += ["flag", "flag IS NOT TRUE", "flag <=> NULL", "n IS NULL", "100 / a > 10"]
    if column == "s":
        forms += [f"s LIKE '{make.choice(['a%', 'ab', 'a%c', '_b%', '%', 'é%'])}'", "startswith(s, 'ab')"] * 3
    return make.choice(forms)


def condition(make: random.Random, depth: int) -> str:
    """Return a random condition."""
    if not depth:
        return predicate(make)
    first, second = condition(make, depth - 1), condition(make, depth - 1)
    forms = ["({0}) AND ({1})", "({0}) OR ({1})", "NOT ({0})", "({0}) IS FALSE", "({0}) IS NULL"]
    return make.choice([*forms, "CASE WHEN {0} THEN {1} END", "({0}) <=> ({1})"]).format(first, second)


@pytest.mark.parametrize("seed", seeds(4))
def test_a_condition_is_ruled_out_only_where_no_row_fulfils_it(seed: int) -> None:
    make = random.Random(seed)
    ruled_out = 0
    for _ in range(repeats(60)):
        found = parse_condition(condition(make, make.choice([0, 0, 1, 2])), SCHEMA)
        for _ in range(10):
            rows = rows_of(make)
            ranges = ranges_of(make, rows)
            if not found.may_hold(ranges):
                ruled_out += 1
                try:
                    assert not pc.any(found.mask(rows)).as_py(), (found.text, rows.to_pylist(), ranges)
                except ExpressionFailed:
                    assert "/ a" in found.text  # a failing row can be ruled out
    assert ruled_out > repeats(60) // 3
