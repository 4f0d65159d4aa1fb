"""Conditions over nasty values, held against Spark: the same answer for every row, or both fail.

Spark gets the same text, so the order in which operators bind is compared as well.
"""

import random
import unicodedata
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tailer.errors import ConfigError
from tailer.shape.condition import parse_condition
from tailer.shape.evaluate import compiled
from tailer.shape.kernels.functions import FUNCTIONS
from tailer.shape.kernels.texts import UNSTABLE
from tailer.shape.rows import BatchRows
from tests.support.seeds import seeds

NAN: Final = float("nan")
INF: Final = float("inf")


UTC_MOMENT: Final = pa.timestamp("us", tz="UTC")
MOMENTS: Final = [
    "1970-01-01T00:00:00",
    "1969-12-31T23:59:59.999999",
    "1883-11-18T12:03:58.000001",
    "2024-02-29T12:30:00.000005",
    "0001-01-01T00:00:00",
    "9999-12-31T23:59:59.999999",
    None,
]
TEXTS: Final = ["", "a", "A", "abc", "a_c", "100%", "ß", "\U0001f600x", " pad ", "a\nb", "\\", "é", None, "\ufb01"]
DAYS: Final = ["1970-01-01", "1969-12-31", "0001-01-01", "9999-12-31", "2024-02-29", None]
SMALL: Final = ["0", "1.50", "-1.50", "99999999.99", "0.10", "2.00", "10"]
WIDE: Final = ["0", "1.5", "-1", f"{10**19}.1", "0.000000000000000001"]

COLUMNS: Final[dict[str, tuple[pa.DataType, list[Any]]]] = {
    "b": (pa.int8(), [0, 1, -1, 127, -128, None, 5, 2]),
    "h": (pa.int16(), [0, 1, -1, 32767, -32768, None, 7]),
    "i": (pa.int32(), [0, 1, -1, 2**31 - 1, -(2**31), None, 10, 1, 3]),
    "l": (pa.int64(), [0, 1, -1, 2**63 - 1, -(2**63), None, 2**53, 2**53 + 1, 2**53 - 1, 10, 3]),
    "f": (pa.float32(), [0.0, -0.0, 1.5, NAN, INF, -INF, None, 0.1, 16777216.0, 3.4e38, 1e-45, 2.0, 3.0]),
    "d": (pa.float64(), [0.0, -0.0, 1.5, NAN, INF, -INF, None, 0.1, 9007199254740992.0, 1.7e308, 5e-324, 2.5, -1.0]),
    "m": (pa.decimal128(10, 2), [*map(Decimal, SMALL), None]),
    "w": (pa.decimal128(38, 18), [*map(Decimal, WIDE), None]),
    "s": (pa.string(), TEXTS),
    "x": (pa.binary(), [b"", b"a", b"\x00", b"\xff\xfe", b"abc", None]),
    "flag": (pa.bool_(), [True, False, None, True, False]),
    "day": (pa.date32(), [each and date.fromisoformat(each) for each in DAYS]),
    "at": (UTC_MOMENT, [each and datetime.fromisoformat(each).replace(tzinfo=UTC) for each in MOMENTS]),
    "ntz": (pa.timestamp("us"), [each and datetime.fromisoformat(each) for each in [*MOMENTS[1:4], None]]),
    "n": (
        pa.struct([("x", pa.int64()), ("t", pa.string())]),
        [{"x": 1, "t": "a"}, {"x": None, "t": "b"}, None, {"x": 5, "t": None}],
    ),
}
ROWS: Final = 40
SCHEMA: Final = pa.schema([pa.field(name, kind) for name, (kind, _) in COLUMNS.items()])

LITERALS: Final = {
    "number": [
        *("0", "1", "-1", "127", "128", "-2147483648", "2147483647", "2147483648", "9007199254740993", "1L", "5S"),
        *("3Y", "1.5", "-1.50", "0.1", "99999999.99", "2.000", "1e0", "0.1D", "1.5F", "1e300", "9007199254740993.0"),
        "NULL",
    ],
    "text": ["''", "'a'", "'abc'", "'A'", "'\\u00e9'", "'ß'", "'😀x'", "'a\\nb'", "' pad '", "'\\\\'", "'a_c'", "NULL"],
    "bytes": ["X''", "X'61'", "X'00'", "x'FFFE'", "NULL"],
    "boolean": ["TRUE", "false", "NULL"],
    "day": ["DATE'1970-01-01'", "'1969-12-31'", "DATE '2024-02-29'", "'0001-01-01'", "NULL"],
    "at": [
        "TIMESTAMP'1970-01-01 00:00:00'",
        "'1883-11-18 12:03:58.000001'",
        "TIMESTAMP '2024-02-29 13:30:00.000005+01:00'",
        "DATE'1970-01-01'",
        "'2024-02-29'",
        "NULL",
    ],
}
KINDS: Final = {
    "number": ["b", "h", "i", "l", "f", "d", "m", "w", "n.x"],
    "text": ["s", "n.t", "N.T", "`s`"],
    "bytes": ["x"],
    "boolean": ["flag"],
    "day": ["day"],
    "at": ["at", "ntz", "day"],
}
PATTERNS: Final = ["'a%'", "'%'", "''", "'_'", "'%b%'", "'a\\\\_c'", "'%\\\\%'", "'_x'", "'%c'", "'a_b'", "'a%c'"]


def table() -> pa.RecordBatch:
    """Return rows with every value of every column, in many combinations."""
    arrays = [
        pa.array([values[(row * (place + 1) + row // 7) % len(values)] for row in range(ROWS)], kind)
        for place, (kind, values) in enumerate(COLUMNS.values())
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


class Conditions:
    """Random conditions as text, with parentheses only here and there."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def value(self, kind: str, depth: int = 1) -> str:
        """Return a column, a literal, or an expression of numbers or text."""
        pick = self._random.random()
        if depth and kind == "number" and pick < 0.25:
            return self._arithmetic(depth - 1)
        if depth and kind == "text" and pick < 0.25:
            return self._text(depth - 1)
        if depth and pick < 0.35:
            first, second = self.value(kind, 0), self.value(kind, 0)
            form = self._random.choice(["coalesce({0}, {1})", "if({2}, {0}, {1})", "nullif({0}, {1})"])
            return form.format(first, second, self.predicate(0))
        return self._random.choice(KINDS[kind] if pick < 0.75 else LITERALS[kind])

    def _arithmetic(self, depth: int) -> str:
        first, second = self.value("number", depth), self.value("number", depth)
        form = self._random.choice(
            [
                *("{0} + {1}", "{0} - {1}", "{0} * {1}", "{0} / {1}", "{0} % {1}", "-{0}", "abs({0})", "length({2})"),
                *("cast({0} AS int)", "{0}::double", "cast({0} AS decimal(20,4))", "cast({0} AS bigint)", "(-{0})"),
            ]
        )
        return form.format(first, second, self.value("text", 0))

    def _text(self, depth: int) -> str:
        text = self.value("text", depth)
        form = self._random.choice(
            [
                *("{0} || {1}", "lower({0})", "upper({0})", "trim({0})", "left({0}, 2)", "right({0}, 1)"),
                *("concat({0}, {1})", "substring({0}, {2}, {3})", "ltrim({0})", "rtrim({0})", "substr({0}, {2})"),
                "cast({4} AS string)",
            ]
        )
        numbers = [self._random.choice([-5, -2, -1, 0, 1, 2, 3]), self._random.choice([-1, 0, 1, 2])]
        return form.format(text, self.value("text", 0), *numbers, self._random.choice(["b", "l", "flag", "day", "at"]))

    def predicate(self, depth: int) -> str:
        """Return a condition without AND, OR and NOT around it."""
        kind = self._random.choice(["number"] * 5 + ["text"] * 3 + ["at", "day", "bytes", "boolean"])
        first, second, third = (self.value(kind, depth) for _ in range(3))
        operator = self._random.choice(["=", "<>", "!=", "<", "<=", ">", ">=", "<=>", "=="])
        forms = [f"{first} {operator} {second}"] * 6
        forms += [f"{first} BETWEEN {second} AND {third}", f"{first} NOT BETWEEN {second} AND {third}"]
        forms += [f"{first} IN ({second}, {third})", f"{first} NOT IN ({', '.join(LITERALS[kind][:3])})"]
        forms += [f"{first} IS NULL", f"{first} IS NOT NULL", f"({first} {operator} {second}) IS NOT TRUE"]
        if kind == "text":
            pattern = self._random.choice(PATTERNS)
            forms += [f"{first} LIKE {pattern}", f"{first} NOT LIKE {pattern}", f"contains({first}, 'a')"] * 2
        if kind == "boolean":
            forms += [first, f"{first} IS TRUE", f"{first} IS NOT FALSE", f"{first} IS UNKNOWN"]
        return self._random.choice(forms)

    def condition(self, depth: int) -> str:
        """Return a condition."""
        if not depth:
            return self.predicate(1)
        first, second = self.condition(depth - 1), self.condition(depth - 1)
        forms = ["{0} AND {1}", "{0} OR {1}", "NOT {0}", "({0}) OR NOT ({1})", "NOT ({0} AND {1})", "! {0}"]
        forms += ["CASE WHEN {0} THEN {1} END", "{0}"]
        return self._random.choice(forms).format(first, second)


@pytest.fixture(scope="module")
def rows(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> pa.RecordBatch:
    """The rows of `nasty`, which Spark reads from a file."""
    found = table()
    path = tmp_path_factory.mktemp("conditions") / "rows.parquet"
    numbered = pa.Table.from_batches([found]).append_column("id", pa.array(range(ROWS), pa.int32()))
    pq.write_table(numbered, path)
    spark.read.parquet(str(path)).createOrReplaceTempView("nasty")
    return found


def ours(text: str, rows: pa.RecordBatch) -> list[bool | None] | str:
    """Return the answer for every row; if the condition fails for one, what it says."""
    evaluate = compiled(parse_condition(text, SCHEMA).expression)
    try:
        found = evaluate(BatchRows(rows))
    except pa.ArrowInvalid as error:
        return str(error)
    return [found.as_py()] * len(rows) if isinstance(found, pa.Scalar) else list(found.to_pylist())


def sparks(spark: SparkSession, texts: Sequence[str]) -> list[list[bool | None] | str]:
    """Return what `ours` does, from Spark."""
    if not texts:
        return []
    listed = ", ".join(f"({text}) AS c{number}" for number, text in enumerate(texts))
    try:
        found = spark.sql(f"SELECT {listed} FROM nasty ORDER BY id").collect()
    except PySparkException as error:
        if len(texts) == 1:
            return [str(error).split("\n", maxsplit=1)[0]]
        half = len(texts) // 2
        return sparks(spark, texts[:half]) + sparks(spark, texts[half:])
    return [[row[number] for row in found] for number in range(len(texts))]


def differences(spark: SparkSession, rows: pa.RecordBatch, texts: Sequence[str]) -> list[str]:
    """Return the conditions of which Spark has another answer."""
    found = []
    mine = {text: ours(text, rows) for text in texts}
    good = [text for text in texts if not isinstance(mine[text], str)]
    failing = [text for text in texts if isinstance(mine[text], str)]
    groups = [good[first : first + 20] for first in range(0, len(good), 20)] + [[text] for text in failing]
    for group in groups:
        for text, theirs in zip(group, sparks(spark, group), strict=True):
            if isinstance(theirs, str) and isinstance(mine[text], str):
                continue
            if theirs != mine[text]:
                found.append(f"{text}\n  ours:  {mine[text]}\n  Spark: {theirs}")
    return found


def accepted(text: str) -> bool:
    """Return whether a condition is not refused."""
    try:
        parse_condition(text, SCHEMA)
    except ConfigError:
        return False
    return True


@pytest.mark.parametrize("seed", seeds(1))
def test_random_conditions_have_sparks_answers(spark: SparkSession, rows: pa.RecordBatch, seed: int) -> None:
    make = Conditions(seed)
    texts = [make.condition(depth) for depth in (0, 0, 0, 0, 1, 1, 2) for _ in range(60)]
    taken = [text for text in dict.fromkeys(texts) if accepted(text)]
    assert len(taken) > 200
    assert not differences(spark, rows, taken)


def test_the_case_of_every_character_is_sparks(spark: SparkSession, tmp_path: Path) -> None:
    known = [chr(code) for code in range(0x20000) if not 0xD800 <= code < 0xE000]
    known = [each for each in known if unicodedata.category(each) != "Cn" and each not in UNSTABLE]
    forms = ["{}", "a\u03a3{}", "{}\u03a3"]
    texts = pa.array([form.format(each) for form in forms for each in known])
    upper, lower = (FUNCTIONS[name].run(texts.type, texts) for name in ("upper", "lower"))
    pq.write_table(pa.table({"c": texts, "u": upper, "l": lower}), tmp_path / "characters.parquet")
    characters = spark.read.parquet(str(tmp_path / "characters.parquet"))
    assert characters.count() > 200_000
    assert not characters.where("upper(c) <> u OR lower(c) <> l").collect()
