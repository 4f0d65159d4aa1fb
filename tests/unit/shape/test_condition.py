"""Conditions over hand-written rows, with literal answers; errors and where they point; conditions as text."""

import pickle
import subprocess
import sys
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pytest

from tailer.errors import ConfigError, ExpressionFailed
from tailer.events import VARIANT
from tailer.schema.columns import CHAR
from tailer.shape.condition import Condition
from tailer.shape.parse.texts import condition_faults, parse_condition
from tailer.shape.tree import Literal
from tests.support.cases import cases

NAN: Final = float("nan")
SCHEMA: Final = pa.schema(
    [
        pa.field("a", pa.int32(), metadata={"PARQUET:field_id": "1"}),
        ("big", pa.int64()),
        ("x", pa.float64()),
        ("s", pa.string()),
        ("m", pa.decimal128(10, 2)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("flag", pa.bool_()),
        ("n", pa.struct([("b", pa.int64()), ("Name", pa.string())])),
        ("odd name", pa.int32()),
        ("Case", pa.int32()),
        ("CASE", pa.int32()),
        ("tags", pa.list_(pa.string())),
        ("v", VARIANT),
        ("code", pa.dictionary(pa.int8(), pa.string())),
        pa.field("fixed", pa.string(), metadata={CHAR: b'{"": 3}'}),
    ]
)


def rows(**columns: list[Any]) -> pa.RecordBatch:
    """Return rows with values in some columns, and nulls in the others."""
    length = len(next(iter(columns.values())))
    arrays = [pa.array(columns.get(field.name.replace(" ", "_"), [None] * length), field.type) for field in SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def answers(condition: str, **columns: list[Any]) -> list[bool]:
    """Return which rows fulfil a condition, which has no fault without a table either."""
    assert not list(condition_faults(condition))
    found = parse_condition(condition, SCHEMA).mask(rows(**columns))
    assert isinstance(found, pa.BooleanArray)
    assert not found.null_count
    return list(found.to_pylist())


@cases(
    ("condition", "expected"),
    [
        ("a = 1", [True, False, False]),
        ("a <> 1", [False, True, False]),
        ("a <=> 1", [True, False, False]),
        ("a <=> NULL", [False, False, True]),
        ("not a <=> 1", [False, True, True]),
        ("a = NULL", [False, False, False]),
        ("a IS NULL", [False, False, True]),
        ("a IS NOT NULL AND a > 1", [False, True, False]),
        ("(a = 1) IS NOT TRUE", [False, True, True]),
        ("(a = 1) IS FALSE", [False, True, False]),
        ("a = 1 OR a IS NULL", [True, False, True]),
        ("a IN (1, 3)", [True, False, False]),
        ("a NOT IN (1, NULL)", [False, False, False]),
        ("NOT a IN (1)", [False, True, False]),
        ("a BETWEEN 2 AND 3", [False, True, False]),
        ("a NOT BETWEEN 2 AND 3", [True, False, False]),
        ("a > 1.5", [False, True, False]),
        ("a < 1e1", [True, True, False]),
        ("2 > a", [True, False, False]),
        ("TRUE", [True, True, True]),
        ("NULL", [False, False, False]),
    ],
)
def test_conditions_over_an_integer(condition: str, expected: list[bool]) -> None:
    assert answers(condition, a=[1, 2, None]) == expected


@cases(
    ("condition", "expected"),
    [
        ("x = 0", [False, True, True, False]),
        ("x > 1e308", [True, False, False, False]),
        ("x <= 0", [False, True, True, False]),
        ("x = x", [True, True, True, False]),
        ("x <> x", [False, False, False, False]),
        ("x IN (0.0, 1)", [False, True, True, False]),
        ("x >= x", [True, True, True, False]),
        ("x <= CAST('NaN' AS DOUBLE)", [True, True, True, False]),
        ("NOT x < CAST('NaN' AS DOUBLE)", [True, False, False, False]),
    ],
)
def test_nan_is_the_greatest_number_and_equals_itself(condition: str, expected: list[bool]) -> None:
    assert answers(condition, x=[NAN, -0.0, 0.0, None]) == expected


def test_a_list_of_floating_point_numbers_has_both_zeros_and_nothing_else() -> None:
    assert answers("x IN (0, 1)", x=[-1.0, 1.0, -0.0, 0.0]) == [False, True, True, True]
    assert answers("x IN (-0.0)", x=[-1.0, 1.0, -0.0, 0.0]) == [False, False, True, True]


def test_a_bigint_is_compared_with_a_double_as_a_double_and_with_a_decimal_exactly() -> None:
    big = [2**53, 2**53 + 1]
    assert answers("big = 9007199254740992D", big=big) == [True, True]
    assert answers("big = 9007199254740992.0", big=big) == [True, False]
    assert answers("m = 1.5", m=[Decimal("1.50"), Decimal("1.51")]) == [True, False]


@cases(
    ("condition", "expected"),
    [
        ("s LIKE 'a%'", [True, True, False, False]),
        ("s LIKE 'a_b'", [False, True, False, False]),
        ("s LIKE '%b'", [False, True, False, False]),
        ("s LIKE '%\\n%'", [False, True, False, False]),
        ("s LIKE '\\\\%'", [False, False, True, False]),
        ("s LIKE '%/%' ESCAPE '/'", [False, False, True, False]),
        ("s LIKE ''", [False, False, False, False]),
        ("s NOT LIKE 'a%'", [False, False, True, False]),
        ("s < 'ä'", [True, True, True, False]),
        ("s = 'a\\u00e4'", [True, False, False, False]),
        ("s = r'%'", [False, False, True, False]),
    ],
)
def test_conditions_over_text(condition: str, expected: list[bool]) -> None:
    assert answers(condition, s=["aä", "a\nb", "%", None]) == expected


def test_texts_of_dates_and_times_are_in_utc() -> None:
    assert answers("day >= '1969-12-31' AND day < DATE'1970-01-02'", day=[-2, -1, 0, 1]) == [False, True, True, False]
    assert answers("at = '1900-01-01 00:00:00.000001+01:00'", at=[-2208992400000000 + 1, 0]) == [True, False]
    assert answers("at > day", at=[0, 86_400_000_001], day=[1, 1]) == [False, True]


def test_columns_and_fields_are_found_in_any_case() -> None:
    nested = [{"b": 1, "Name": "x"}, {"b": None, "Name": "x"}, None]
    assert answers("N.B = 1", n=nested) == [True, False, False]
    assert answers("n.b IS NULL AND n.name = 'x'", n=nested) == [False, True, False]
    assert answers("n IS NULL", n=nested) == [False, False, True]
    assert answers("code = 'x'", code=["x", "y", None]) == [True, False, False]
    assert answers("`odd name` = 5", odd_name=[5, 6, None]) == [True, False, False]
    assert answers("`CASE` = 1 AND `Case` = 2", CASE=[1, 1], Case=[2, 1]) == [True, False]


def test_a_condition_has_the_columns_that_it_reads_with_their_metadata() -> None:
    found = parse_condition("n.b = 1 OR a = 2", SCHEMA)
    assert found.fields.equals(pa.schema([SCHEMA.field("a"), SCHEMA.field("n")]), check_metadata=True)
    assert found.mask(rows(a=[2], n=[None]).select(["n", "a"])).to_pylist() == [True]


@cases(
    ("condition", "reason", "hint"),
    [
        ("cas = 1", "the table has no column cas, at character 1: cas = 1", "Did you mean 'CASE'?"),
        ("a = 1\nAND n.c = 1", "the table has no column n.c, at character 13: c = 1", "It has b"),
        ("`cAse` = 1", "cAse could be each of Case, CASE, at character 1", "exactly"),
        ("a = 'x'", "int and string have no type in common", "Write CAST"),
        ("a = TRUE", "int and boolean have no type in common", "Write CAST"),
        ("day = '2024-1-1'", "'2024-1-1' is not read as date: write it as 2024-12-31, at character 7: ", ""),
        ("at = '2024-01-01 25:00:00'", "there is no such time of day", ""),
        ("a", "a is int32, not boolean, at character 1: ", "Write a condition"),
        ("a = s = 'x'", "a = s is an operand of another condition", "parentheses"),
        ("a = a IN (1)", "a IN (1) is an operand of another condition", "parentheses"),
        ("a = 1 AND", "this is no SQL expression, at character 7: ", ""),
        ("", "this is not one SQL expression", ""),
        ("a = 1; a = 2", "this is not one SQL expression", ""),
        ("n = 1", "n is struct<b: int64, Name: string>, which has no literals, at character 1: ", "IS NULL"),
        ("a.b = 1", "a is int32, which has no fields, at character 3: ", ""),
        ("v.value = X'00'", "v is variant, which has no fields, at character 3: ", ""),
        ("v = 1", "v is variant, which has no literals", "v:a.b::string"),
        ("v:a.b = 'x'", "a path into a Variant needs a type, at character 1: ", "::string"),
        ("v:a.b::float = 1", "a Variant as float is not supported", "double"),
        ("s:a::string = 'x'", "s is string, not VARIANT, at character 1: ", ""),
        ("variant_get(v, 'a', 'int') = 1", "'a' does not begin with $", ""),
        ("variant_get(v, '$.a', 'variant') = 1", "'variant' is no type, at character 23: ", "'string'"),
        ("variant_get(v, '$.a') = 'x'", "takes 3 arguments, and has 2", ""),
        ("variant_get(v, s, 'int') = 1", "s is not a constant", ""),
        ("_commit_version > 3", "_commit_version is a metadata column", "beside"),
        ("tags = 1", "tags is list<", "IS NULL"),
        ("fixed = 'a'", "fixed is CHAR, which is not supported", "Compare another column"),
        ("a IN (SELECT 1)", "IN QUERY is not supported in expressions", ""),
        ("s LIKE 'a\\\\b'", "the escape character '\\\\' is before 'b', at character 8: ", "twice"),
        ("s LIKE s", "the pattern of LIKE must be a text in quotes", ""),
        ("1/0 = 1", "this fails for every row: a division by zero, at character 1: 1/0 = 1", "a value in its place"),
        ("a = 1 OR 1/0 = 1", "this fails for every row: a division by zero, at character 10: 1/0 = 1", ""),
        ("NOT (CAST('x' AS INT) = 1)", "this fails for every row: a value cannot be converted", ""),
        ("a IN (1, 1/0)", "this fails for every row: a division by zero", ""),
        ("try_cast(a AS bigint) = 1", "TRY_CAST is not supported", ""),
        ("1e400 = x", "1e400 is beyond the largest double", ""),
    ],
)
def test_what_is_wrong_is_shown_in_the_condition(condition: str, reason: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_condition(condition, SCHEMA, option="--where")
    assert str(next(condition_faults(condition, SCHEMA, option="--where"))) == str(caught.value)
    assert caught.value.where == "--where"
    assert reason in caught.value.reason
    assert hint in caught.value.hint


def test_a_row_for_which_the_condition_fails_stops_with_a_named_error() -> None:
    condition = parse_condition("CAST(big AS int) = 1", SCHEMA)
    assert condition.mask(rows(big=[1])).to_pylist() == [True]
    with pytest.raises(ExpressionFailed, match="it fails for a row"):
        condition.mask(rows(big=[1, 2**40]))
    assert answers("big < 10 AND CAST(big AS int) = 1", big=[2**40, 1, None]) == [False, True, False]
    assert answers("big > 10 OR CAST(big AS int) = 1", big=[2**40, 1, None]) == [True, True, False]


def test_a_condition_travels_as_text_and_by_pickle() -> None:
    text = "a = 1 AND (m > 1.5 OR s LIKE 'x%' OR x <=> 1e0) AND day = '2024-01-01' AND n.b IN (1, NULL)"
    condition = parse_condition(text, SCHEMA)
    assert pickle.loads(pickle.dumps(condition)) == condition
    again = Condition.from_text(condition.to_text())
    assert again == condition
    assert again.fields.equals(condition.fields, check_metadata=True)


def test_a_condition_is_read_and_evaluated_without_its_parser() -> None:
    text = parse_condition("a > 1", SCHEMA).to_text()
    program = (
        "import sys, pyarrow as pa; from tailer.shape.condition import Condition\n"
        "rows = pa.RecordBatch.from_arrays([pa.array([1, 2], pa.int32())], names=['a'])\n"
        "print(Condition.from_text(sys.argv[1]).mask(rows).to_pylist(), 'sqlglot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program, text], check=True, capture_output=True, text=True)
    assert done.stdout == "[False, True] False\n"


def test_the_text_of_a_condition_is_persisted() -> None:
    expected = '["call","=","boolean",["column","a"],["literal","int",1]]'
    assert f'"expression":{expected}' in parse_condition("a = 1", SCHEMA).to_text()
    with pytest.raises(ValueError, match="a condition of format 2"):
        Condition.from_text('{"format":2}')


@cases(
    ("text", "expected"),
    [
        ("TRUE", True),
        ("NULL IS NULL", True),
        ("length('abc') = 3", True),
        ("50 NOT IN (0.3)", True),
        ("TRUE OR 1/0 = 1", True),
        ("CAST(-0.9 AS INT) = 0 AND CAST(0.99999999999999999999999999999999999999 AS INT) = 0", True),
        ("a = 1 OR TRUE", True),
        ("CASE WHEN FALSE THEN 1/0 END IS NULL", True),
        ("coalesce(1, 1/0) = 1", True),
        ("FALSE", False),
        ("FALSE AND 1/0 = 1", False),
        ("a = 1 AND 1 = 2", False),
        ("NULL = 1", None),
        ("NULL > abs(a)", None),
        ("nullif(NULL, 1/a) + 1/a = a", None),
    ],
)
def test_a_condition_that_needs_no_row_is_a_constant(text: str, expected: bool | None) -> None:
    found = parse_condition(text, SCHEMA)
    assert found.expression == Literal(expected, pa.bool_())
    assert (found.holds_always, found.may_hold({})) == (expected is True, expected is True)
    assert not found.fields.names


def test_a_branch_that_fails_does_so_for_the_rows_that_need_it() -> None:
    for text in ("coalesce(a, 1/0) > 0", "CASE WHEN a < 0 THEN 1/0 ELSE 1 END = 1", "if(a = 0, 1/0, 1) = 1"):
        assert answers(text, a=[1]) == [True]
    with pytest.raises(ExpressionFailed, match="a division by zero"):
        answers("CASE WHEN a < 0 THEN 1/0 ELSE 1 END = 1", a=[-1])


@cases(
    ("text", "expected"),
    [
        ("'O''Brien'", "O'Brien"),
        ('"a""b"', 'a"b'),
        ("""'a""b'""", 'a""b'),
        (r"""'a' "b" r'\n'""", r"ab\n"),
        ("r'a''b'", "ab"),
        (r"r'a\' 'b\n'", "a\\b\n"),
        (r"'a\\''b'", r"a\'b"),
        ("'a'/* c' */'b'", "ab"),
        ("''''", "'"),
    ],
)
def test_quotes_are_sparks(text: str, expected: str) -> None:
    assert answers(f"s = {text}", s=[expected, text]) == [True, False]
