"""Functions, arithmetic and casts of expressions: literal answers over hand-written values."""

from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pytest

from tailer.errors import ConfigError
from tailer.shape.evaluate import compiled
from tailer.shape.parse.bind import binding_over
from tailer.shape.parse.source import Source, parse
from tailer.shape.tree import BatchRows, Expression
from tests.support.cases import cases

SCHEMA: Final = pa.schema(
    [
        ("b", pa.int8()),
        ("i", pa.int32()),
        ("l", pa.int64()),
        ("f", pa.float32()),
        ("d", pa.float64()),
        ("m", pa.decimal128(10, 2)),
        ("w", pa.decimal128(38, 18)),
        ("s", pa.string()),
        ("x", pa.binary()),
        ("flag", pa.bool_()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("u", pa.uint32()),
        ("large", pa.large_string()),
    ]
)


def expression(text: str) -> Expression:
    """Return the typed expression of a text."""
    source = Source("select", text)
    return binding_over(source, SCHEMA).bind(parse(source))


def values(text: str, **columns: list[Any]) -> list[Any]:
    """Return the values of an expression over rows with some columns; the others are null."""
    length = max(map(len, columns.values()), default=1)
    arrays = [pa.array(columns.get(field.name, [None] * length), field.type) for field in SCHEMA]
    rows = pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
    found = compiled(expression(text))(BatchRows(rows))
    assert found.type == expression(text).kind
    return [found.as_py()] * length if isinstance(found, pa.Scalar) else list(found.to_pylist())


@cases(
    ("text", "kind"),
    [
        ("1", pa.int32()),
        ("2147483648", pa.int64()),
        ("9223372036854775808", pa.decimal128(19, 0)),
        ("-9223372036854775808L", pa.int64()),
        ("1.50", pa.decimal128(3, 2)),
        ("0.05", pa.decimal128(2, 2)),
        ("5BD", pa.decimal128(1, 0)),
        ("1e0", pa.float64()),
        ("1.5F", pa.float32()),
        ("X'00'", pa.binary()),
        ("DATE'2024-01-01'", pa.date32()),
        ("b + b", pa.int8()),
        ("b + i", pa.int32()),
        ("i + l", pa.int64()),
        ("i + f", pa.float64()),
        ("f * f", pa.float32()),
        ("f + d", pa.float64()),
        ("i / i", pa.float64()),
        ("f / f", pa.float64()),
        ("i % l", pa.int64()),
        ("m + 1", pa.decimal128(11, 2)),
        ("m + i", pa.decimal128(13, 2)),
        ("m * m", pa.decimal128(21, 4)),
        ("m + d", pa.float64()),
        ("-m", pa.decimal128(10, 2)),
        ("coalesce(b, l)", pa.int64()),
        ("if(flag, i, 1.5)", pa.decimal128(11, 1)),
        ("CASE WHEN flag THEN s END", pa.string()),
        ("length(s)", pa.int32()),
        ("u", pa.int64()),
        ("large", pa.string()),
    ],
)
def test_types_are_sparks(text: str, kind: pa.DataType) -> None:
    assert expression(text).kind == kind


def test_arithmetic_over_rows() -> None:
    assert values("i + 1", i=[1, None]) == [2, None]
    assert values("i / 2", i=[1, None]) == [0.5, None]
    assert values("i % 3", i=[7, -7]) == [1, -1]
    assert values("l % -1", l=[-(2**63), 5]) == [0, 0]
    assert values("-i", i=[1, None]) == [-1, None]
    assert values("m * 2.5", m=[Decimal("1.50"), None]) == [Decimal("3.750"), None]
    assert values("abs(d)", d=[-1.5, None]) == [1.5, None]


@cases(
    ("text", "columns"),
    [
        ("i + 1", {"i": [2**31 - 1]}),
        ("l * 2", {"l": [2**62]}),
        ("-b", {"b": [-128]}),
        ("abs(l)", {"l": [-(2**63)]}),
        ("1 / i", {"i": [0]}),
        ("1 / d", {"d": [-0.0]}),
        ("i % 0", {"i": [1]}),
        ("CAST(l AS int)", {"l": [2**31]}),
        ("CAST(d AS int)", {"d": [float("nan")]}),
        ("CAST(m AS decimal(3,2))", {"m": [Decimal("10.00")]}),
        ("CAST(s AS int)", {"s": ["0x10"]}),
        ("CAST(s AS int)", {"s": [" 1"]}),
        ("CAST(s AS date)", {"s": ["2024-1-1"]}),
        ("CAST(s AS boolean)", {"s": ["maybe"]}),
        ("CAST(day AS string)", {"day": [2932897]}),
        ("upper(s)", {"s": ["\u0378"]}),
        ("lower(s)", {"s": ["\u0295"]}),
    ],
)
def test_a_value_beyond_the_type_fails(text: str, columns: dict[str, list[Any]]) -> None:
    with pytest.raises(pa.ArrowInvalid):
        values(text, **columns)


def test_functions_of_text() -> None:
    texts = ["äß\U0001f600", " a ", "", None]
    assert values("upper(s)", s=texts) == ["ÄSS\U0001f600", " A ", "", None]
    assert values("lower(s)", s=["ÀΣ", "A"]) == ["àς", "a"]
    assert values("length(s)", s=texts) == [3, 3, 0, None]
    assert values("length(x)", x=[b"\xff\x00", None]) == [2, None]
    assert values("trim(s)", s=["\t a ", "  "]) == ["\t a", ""]
    assert values("s || 'x'", s=texts) == ["äß\U0001f600x", " a x", "x", None]
    assert values("left(s, 2)", s=texts) == ["äß", " a", "", None]
    assert values("right(s, 1)", s=texts) == ["\U0001f600", " ", "", None]
    assert values("contains(s, 'a') OR startswith(s, 'ä') OR endswith(s, '?')", s=texts) == [True, True, False, None]
    assert values("replace(s, 'a', 'bb')", s=texts) == ["äß\U0001f600", " bb ", "", None]
    assert values("replace(s, ' ')", s=texts) == ["äß\U0001f600", "a", "", None]
    assert values("replace(s, '', 'x')", s=texts) == texts
    assert values("replace(s, NULL)", s=texts) == [None] * 4
    assert values("translate(s, '\U0001f600äaä', 'x\U0001f600')", s=texts) == ["\U0001f600ßx", "  ", "", None]
    digest = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"
    assert values("sha2(s, 256)", s=["a", None]) == [digest, None]


@cases(
    ("position", "length", "expected"),
    [(1, 2, "ab"), (0, 2, "ab"), (2, 5, "bc"), (4, 1, ""), (-2, 1, "b"), (-5, 3, "a"), (-5, 2, ""), (1, -1, "")],
)
def test_substring_counts_from_one_and_from_the_end(position: int, length: int, expected: str) -> None:
    assert values(f"substring(s, {position}, {length})", s=["abc"]) == [expected]


def test_functions_that_choose() -> None:
    assert values("coalesce(i, b, 7)", i=[1, None, None], b=[5, 6, None]) == [1, 6, 7]
    assert values("nullif(i, 1)", i=[1, 2, None]) == [None, 2, None]
    assert values("if(flag, 'y', 'n')", flag=[True, False, None]) == ["y", "n", "n"]
    assert values("CASE i WHEN 1 THEN 'x' WHEN 2 THEN 'y' END", i=[1, 2, 3]) == ["x", "y", None]
    assert values("CASE WHEN i = 0 THEN -1 ELSE 10 / i END", i=[0, 4]) == [-1, 2.5]
    assert values("coalesce(i, 1 / b)", i=[1, None], b=[0, 2]) == [1, 0.5]


def test_casts() -> None:
    assert values("CAST(i AS string)", i=[-5, None]) == ["-5", None]
    assert values("CAST(m AS string)", m=[Decimal("1.50")]) == ["1.50"]
    assert values("CAST(m AS decimal(10,1))", m=[Decimal("1.25"), Decimal("-1.25")]) == [
        Decimal("1.3"),
        Decimal("-1.3"),
    ]
    assert values("CAST(m AS int)", m=[Decimal("1.99"), Decimal("-1.99")]) == [1, -1]
    assert values("CAST(d AS int)", d=[1.9, -1.9]) == [1, -1]
    assert values("CAST(w AS double)", w=[Decimal("0.1")]) == [0.1]
    assert values("CAST(l AS double)", l=[2**53 + 1]) == [2.0**53]
    assert values("CAST(s AS bigint)", s=["-12", None]) == [-12, None]
    assert values("CAST(s AS boolean)", s=["TRUE", "n", None]) == [True, False, None]
    assert values("CAST(at AS string)", at=[0, -1, 120_000_000]) == [
        "1970-01-01 00:00:00",
        "1969-12-31 23:59:59.999999",
        "1970-01-01 00:02:00",
    ]
    assert values("CAST(at AS date) = day", at=[-1], day=[-1]) == [True]
    assert values("year(day) * 100 + month(day)", day=[-1]) == [196912]
    assert values("hour(at)", at=[-1]) == [23]


@cases(
    ("text", "reason"),
    [
        ("rand()", "the function rand is not supported"),
        ("uper(s)", "the function uper is not supported"),
        ("upper(i)", "i is int, where string is needed"),
        ("s + 1", "s is string, where a number is needed"),
        ("s || i", "i is int, where string is needed"),
        ("m / 2", "/ of decimal(10,2) and int is not supported, as it is not exact"),
        ("w * w", "* of decimal(38,18) and decimal(38,18) is not supported"),
        ("d % 2", "% of double and int is not supported"),
        ("left(s)", "takes 2 arguments, and has 1"),
        ("left(s, i)", "i is not a constant"),
        ("sha2(s, 1)", "SHA-2 has no 1 bits"),
        ("CAST(d AS string)", "CAST from double to string is not supported"),
        ("CAST(i AS array<int>)", "CAST to ARRAY<INT> is not supported"),
        ("sum(i) OVER ()", "WINDOW"),
        ("DATE'2024-02-30'", "'2024-02-30' is not read as date"),
        ("i DIV 2", "DIV is not supported"),
        ("i & 1", "& is not supported"),
        ("s RLIKE 'a'", "RLIKE is not supported"),
        ("interval 1 day", "INTERVAL"),
        ("regexp_replace(s, 'a', 'b')", "regexp_replace is not supported"),
        ("replace(s, s)", "s is not a constant"),
        ("*", "STAR is not supported"),
    ],
)
def test_what_is_not_exact_is_refused_by_name(text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        expression(text)
    assert reason in caught.value.reason
