"""Conditions over nasty values, held against Spark: the same answer for every row, or both fail.

Spark gets the same text, so the order in which operators bind is compared as well.
"""

import random
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tailer.shape.functions import FUNCTIONS, UNSTABLE
from tailer.shape.parse.texts import condition_faults
from tests.support.oracle.nasty_rows import SCHEMA, differences, nasty_rows
from tests.support.seeds import seeds

FAILS_ALWAYS: Final = "this fails for every row"
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

WRITTEN: Final = """\
NOT b = 1 AND flag
NOT b = 1 OR flag AND i > 0
NOT flag IS NULL
NOT b IS NULL AND flag
NOT b BETWEEN 1 AND 2 AND flag
! b = 1
b BETWEEN 1 AND 2 AND flag OR b = 5
-b = 1
- b BETWEEN -5 AND 2
-b - -1 = 2
b = 1 IS NULL
b = 1 IS NOT TRUE
b + 1 * 2 = 3
i % 3 = 1
i - 1 - 1 = 8
l / 2 / 5 = 1
l % 3 - 1 = 0
f = 0.1
f = 0.1D
f = 0.1F
cast(f AS double) = 0.1D
d = 0.1
d = 0.1F
d IN (0.0, 1.5)
d IN (-0.0)
d IN (-1, 0)
i IN (1.5, 1e0, 0)
w IN (1e0, 0)
d IN (1.5, NULL)
f IN (0.1, 2, 3)
l = 9007199254740993D
l = 9007199254740993.0
l = 9.007199254740993E15
w = 1.5
w = 1
w > m
w = l
m IN (1.5, 2)
m = 1.500
m + 1 = 2.5
m * 2.0 = 3
m - 0.1 = 0
b + h > 0
b * b > 0
b + 1 > 0
b + 1Y > 0
f + f > 1
f * i > 1
f + 1 > 2
f / 2 = 1
b / h = 1
10 / d > 1
10 % b = 1
l % -1 = 0
i % -1 = 0
b % 3Y = 2
abs(b) = 1
abs(l) > 0
abs(d) > 1
abs(m) = 1.5
-m = 1.5
-d = -1.5
-f < 0
cast(d AS int) = 1
cast(f AS bigint) = 1
cast(2.5 AS int) = 2
cast(-2.5 AS int) = -2
cast(-0.9 AS int) = b
cast(m AS int) = 1
cast(m AS decimal(10,1)) = 1.5
cast(m AS decimal(5,0)) > 0
cast(m AS decimal(9,0)) = 2
cast(w AS double) > 1
cast(w AS float) > 1
cast(l AS double) = 9007199254740992
cast(l AS float) > 1
cast(i AS string) = '1'
cast(b AS string) || 'x' = '1x'
cast(l AS string) LIKE '-%'
cast(flag AS string) = 'true'
cast(flag AS int) = 1
cast(i AS boolean)
cast(m AS string) = '1.50'
cast(day AS string) = '1970-01-01'
cast(at AS string) > '1969'
cast(at AS string) = '1883-11-18 12:03:58.000001'
cast(ntz AS string) LIKE '%.000%'
cast(at AS date) = day
cast(at AS date) = '1969-12-31'
cast(ntz AS date) = '1969-12-31'
cast(day AS timestamp) = at
at = ntz
at > day
ntz > day
day = '1970-01-01'
at = '1970-01-01'
ntz = '1969-12-31 23:59:59.999999'
at BETWEEN '1800-01-01' AND '1970-01-01'
day IN ('1970-01-01', '2024-02-29', NULL)
CASE WHEN flag THEN day ELSE '2024-02-29' END = day
coalesce(day, '1970-01-01') = day
year(day) = 9999
year(day) < 1970
year(at) = 1883
month(day) = 12
month(at) + day(at) > 20
day(day) = 31
dayofmonth(ntz) = 31
hour(at) = 23
hour(at) = 12
hour(ntz) > 1
upper(s) = 'SS'
upper(s) = 'FI'
lower(s) = 'abc'
upper(s) = s
replace(s, 'a', 'bb') = 'bbbc'
replace(s, '') = s
REPLACE(s, '\\\\') = ''
replace(s, NULL, 'x') IS NULL
translate(s, 'acx', 'x') LIKE '%x%'
translate(s, '😀é', 'é') = 'éx'
length(s) = 2
length(s) = 3
length(x) = 2
char_length(s) = 1
trim(s) = 'pad'
ltrim(s) = 'pad '
rtrim(s) = ' pad'
left(s, 1) = 'a'
left(s, 0) = ''
left(s, -1) = ''
right(s, 1) = 'c'
right(s, 0) = ''
right(s, 100) = s
startswith(s, 'a')
startswith(s, '')
endswith(s, 'c')
contains(s, '_')
s LIKE 'a_c'
s LIKE 'a\\\\_c'
s LIKE 'a/_c' ESCAPE '/'
s LIKE '%\\\\%'
s LIKE '%\\\\%%'
s LIKE '\\\\\\\\'
s LIKE '_'
s LIKE '__'
s LIKE 'a_b'
s LIKE 'a%b'
s LIKE '%'
s LIKE ''
s NOT LIKE '%a%'
s LIKE 'a.c'
s || s = 'aa'
s || NULL = 'a'
concat(s) = 'a'
concat(s, 'x', s) LIKE '%x%'
sha2(s, 256) = 'ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb'
sha2(x, 0) = sha2(s, 256)
sha2(s, 512) LIKE 'a%'
sha2(s, 224) LIKE 'a%'
sha2(s, 384) LIKE 'a%'
s < 'a'
s > 'é'
s > '\\uFB01'
s = '\\U0001F600x'
s = '\\x'
s = 'a\\_c'
s = '100\\%'
s = '\\141'
s = "a"
s = r'\\'
x = X'61'
x < X'FF'
x > X'00'
x IN (X'', X'61')
x BETWEEN X'00' AND X'62'
flag
NOT flag
flag = TRUE
flag <=> NULL
flag > FALSE
flag IN (TRUE, NULL)
flag IS UNKNOWN
flag IS NOT FALSE
n IS NULL
n IS NOT NULL
n.x = 1
n.X IS NULL
n.t = 'a'
N.T LIKE 'a%'
i <=> NULL
i IS DISTINCT FROM 1
i IS NOT DISTINCT FROM 1
i IN (1, 1.0, 1D)
i IN (l, 1)
i NOT IN (1, NULL)
NULL
NULL = NULL
NULL <=> NULL
NULL IN (1)
1 IN (NULL)
1 = 1
i = NULL
coalesce(NULL, i, 5) = 5
coalesce(i, l, 5.0) = 5
coalesce(b, d) = 1
nullif(i, 1) IS NULL
nullif(i, l) = 10
ifnull(s, 'none') = 'none'
nvl(i, 0) = 0
if(flag, i, l) = 1
if(flag, b, 1.5) = 1.5
if(flag, f, i) = 1.5
CASE WHEN flag THEN 1 WHEN NOT flag THEN 2 END = 1
CASE i WHEN 1 THEN 'x' WHEN l THEN 'y' ELSE s END = 'x'
CASE WHEN i = 0 THEN FALSE ELSE 10 / i > 0 END
i <> 0 AND 10 / i > 0
i = 0 OR 10 / i > 0
i + 1 > 0
l + 1 > 0
l * 2 > 0
i * 2 > 0
-i > 0
-l > 0
abs(i) > 0
1 / 0 = 1
1 % 0 = 1
CASE WHEN i IS NULL THEN 1/0 ELSE 1 END = 1
CASE WHEN f IS NULL THEN f > 2147483647 + 1 END
CASE WHEN i IS NULL THEN i + 1/0 > 0 END
CASE WHEN i IS NULL THEN i = cast('x' AS int) END
CASE WHEN i IS NULL THEN i <=> cast('x' AS int) END
CASE WHEN i IS NULL THEN (2147483647 + 1) / i > 0 END
CASE WHEN i IS NULL THEN (2147483647 + 1) % i = 0 END
CASE WHEN i IS NULL THEN (2147483647 + 1) * i = 0 END
i + l / (b - 1) > 0
cast(l AS int) = 1
cast(i AS tinyint) = 1
cast('12' AS int) = 12
cast('abc' AS int) = 1
cast(cast(i AS string) AS int) = i
cast(cast(l AS string) AS bigint) = l
cast(cast(b AS string) AS double) = b
cast(s AS int) = 1
cast(cast(day AS string) AS date) = day
cast(cast(flag AS string) AS boolean) = flag
cast('1.5' AS decimal(10,2)) = 1.5
cast(i AS decimal(10,0)) = i
cast(i AS decimal(5,0)) = 1
cast(l AS decimal(38,18)) > 0
cast(b AS decimal(3,0)) = 1
1.5 = 1.50
.5 = 0.5
5. = 5
1e2 = 100
1E-2 = 0.01
1.0E1D = 10
5BD = 5
1.5BD = m
128 = b
-128 = b
- 128 = b
-2147483648 = i
-9223372036854775808 = l
-9223372036854775808L = l
9223372036854775807 + 0 = l
2147483647 + 1 > 0
2147483648 + 1 > 0
i /* c */ = 1
+i = 1
i == 1
i != 1
DATE'2024-02-29' = day
date '2024-02-29' = day
TIMESTAMP '1970-01-01' = at
TIMESTAMP '1970-01-01T00:00:00Z' = at
TIMESTAMP_NTZ '1969-12-31 23:59:59.999999' = ntz
TIMESTAMP_LTZ '1970-01-01 00:00:00' = at
i::bigint = l
i::string = '1'
-1::int = i
true AND NULL
false AND NULL
true OR NULL
NOT NULL
i BETWEEN 1 AND NULL
i NOT BETWEEN 5 AND NULL
s BETWEEN 'a' AND 'b'
d > 1.5
d >= d
f > d
f = d
f <=> d
d BETWEEN 1 AND cast('NaN' AS double)
cast(d AS float) = f
cast(d AS float) > 0
cast(f AS double) > 0
cast(d AS bigint) > 0
cast(cast(1e10 AS float) AS int) > 0
h = 32767S
h > 100L
"""


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
                *("replace({0}, 'a', 'bc')", "translate({0}, 'ab1', 'x')"),
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

    def _constant(self) -> str:
        """Return a condition with parts that need no row, some of which fail."""
        number, text = (self._random.choice(LITERALS[kind]) for kind in ("number", "text"))
        column = self._random.choice(KINDS["number"])
        forms = ["1/0 = 1", "CAST('x' AS INT) = 1", "TRUE", "FALSE", "NULL IS NULL", "1 = 1", "length('abc') = 3"]
        forms += [f"{number} NOT IN (0.3)", f"{number} = {number}", f"coalesce({column}, 1/0) > 0", "1 IN (1, 1/0)"]
        forms += [f"coalesce(NULL, {number}, 1/0) >= {column}", f"{column} IN (1, 2 % 0, {number})", "s = 'it''s'"]
        forms += [f"CASE WHEN FALSE THEN 1/0 ELSE {number} END < {column}", f"if(flag, 1/0, {column}) = {number}"]
        forms += [f"CASE WHEN flag THEN {column} WHEN TRUE THEN {number} ELSE 1/0 END > 0", "s || 'x' 'y' > 'a' \"b\""]
        forms += [f"nullif({number}, 1/0) = {column}", f"{text} || s = r'a' 'b'", f"{column} > 2147483647 + 1"]
        return self._random.choice(forms)

    def condition(self, depth: int) -> str:
        """Return a condition."""
        if not depth:
            return self.predicate(1) if self._random.random() < 0.8 else self._constant()
        first, second = self.condition(depth - 1), self.condition(depth - 1)
        forms = ["{0} AND {1}", "{0} OR {1}", "NOT {0}", "({0}) OR NOT ({1})", "NOT ({0} AND {1})", "! {0}"]
        forms += ["CASE WHEN {0} THEN {1} END", "{0}"]
        return self._random.choice(forms).format(first, second)


@pytest.fixture(scope="module")
def rows(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[pa.RecordBatch]:
    """The rows of the view `nasty`."""
    with nasty_rows(spark, tmp_path_factory.mktemp("conditions")) as found:
        yield found


def accepted(text: str) -> bool:
    """Return whether a condition is not refused. Then it has no fault without a table either."""
    faults = list(condition_faults(text, SCHEMA))
    assert faults or not list(condition_faults(text)), text
    return all(FAILS_ALWAYS in fault.reason for fault in faults)


def test_written_conditions_have_sparks_answers(spark: SparkSession, rows: pa.RecordBatch) -> None:
    texts = WRITTEN.splitlines()
    texts += [
        f"substring(s, {position}, {length}) = '{expected}'"
        for position in (-5, -3, -2, -1, 0, 1, 2, 4)
        for length in (-1, 0, 1, 2, 5)
        for expected in ("a", "bc")
    ]
    assert len(texts) > 300
    assert not differences(spark, rows, texts)


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
