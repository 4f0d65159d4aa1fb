"""Texts that a parser of many databases reads, held against Spark's: what is accepted has Spark's answers.

Known texts, and random ones: conditions with tokens left out, put in, exchanged.
"""

import random
import re
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tailer.errors import ConfigError
from tailer.shape.parse.texts import parse_condition, parse_select
from tests.support.oracle.nasty_rows import SCHEMA, differences, nasty_rows
from tests.support.seeds import repeats, seeds

ACCEPTED: Final = r"""
s = 'it''s'
s = "a""b"
s > 'a' /* /* ' */ */ 'b'
s <> 'a' r'\'
s < '\uD83D\uDE00x'
s < '\uD83D' '\uDE00x'
s = '\141\x'
DATE r'2024-02-29' = day
TIMESTAMP"1970-01-01" = at
-128Y = b
- /* c */ 128Y < b
i - -1 = 2
i -1 = 0
-1::string = '-1'
-1::int::string = cast(i AS string)
-0.5::double < d
- -1 = i
+ -1 = i
-+1 = i
1bd = m
.5BD < m
5.D = d
5.e1 > d
1E3F > f
cast('1' AS dec(3,1)) = m
cast(i AS DECIMAL ( 12 , 0 )) = i
cast(i AS long) = l
s::varchar(3) = 'abc'
flag IS UNKNOWN
NOT NOT flag
! ! flag
! i = 1
i /* c */ <=> 1
i IS NOT DISTINCT FROM 1
i NOT BETWEEN -1 AND 2 - 1 OR flag
i == 1 AND `i` != 2 -- c
s LIKE 'a' || '%' ESCAPE '/' AND flag
CASE flag WHEN true THEN i ELSE CASE WHEN i > 0 THEN 1 END END = 1
n . `x` = 1
b BETWEEN 1 AND 2 AND flag OR b = 5
d IN (1.5, NULL, -0.0) OR f NOT IN (0.1, 2, 3)
x IN (X'', X'61') AND x < X'FF'
abs(m) = 1.5 OR cast(m AS decimal(5,0)) > 0
if(flag, b, 1.5) = coalesce(b, d, 5)
substring(s, 1, 2) || s LIKE '%a_c%'
at BETWEEN TIMESTAMP'1800-01-01' AND '1970-01-01'
n.t NOT LIKE 'a%' OR n IS NULL AND NOT flag
1.5 + b * 2 % 3 - l / 2 > 1e0
CAST(/* c */ i AS /* c */ int) = 1
"""
REFUSED: Final = r"""
TRY_CAST(s AS int) = 1
SAFE_CAST(s AS int) = 1
TRYCAST(s AS int) = 1
CAST(s, 'int') = 1
CAST(i AS int DEFAULT 3 ON CONVERSION ERROR) = 1
CAST(i AS int FORMAT 'x') = 1
CAST(i AS int = 1
CAST(i AS int4) = 1
CAST(i AS int8) = 1
CAST(i AS text) = '1'
CAST(i AS `int`) = 1
CAST(i AS int()) = 1
CAST(i AS number) = 1
CAST(i AS decimal()) = 1
CAST(i AS decimal(5,0,1)) = 1
CAST(i AS decimal(5 1,0)) = 1
CAST(i AS decimal(x,0)) = 1
CAST(i AS varchar) = '1'
CAST(i AS double precision) = 1
CAST(i AS bool)
CAST(s AS string COLLATE UTF8_LCASE) = 'a'
CAST(s AS timestamp with time zone) = at
CAST('2024-01-01' AS timestamp without time zone) = at
i::int8 = 1
i::varchar = '1'
s::string COLLATE UTF8_LCASE = 'a'
INT '1' = i
int 1 = i
i = double.5
STRING 'a' = s
DATE'2024-' '01-01' = day
TIMESTAMP '2024-01-01' ' 00:00:00' = at
s = '\U00110000'
s = '\UFFFFFFFF'
s = '\uD83D'
s = '\uDE00\uD83D'
x = X'0x'
1.5L = l
1.5S = i
.5L = l
. 5 = d
128Y = b
CASE i WHEN 1 THEN 'x' WHEN 128Y THEN 'y' END = 'x'
1e39F = f
-3.5e38F = f
.2.3 = d
+s = 'a'
+'a' = s
flag <=> ! NULL
flag = NOT flag
flag ! IS UNKNOWN
12 IS UNKNOWN
i ISNULL
i NOTNULL
i NOT NULL
i IS NULL = flag
i NOT IN (1) IS NOT NULL
s ~~ 'a'
i BETWEEN 1 2
i BETWEEN SYMMETRIC 2 AND 1
i BETWEEN ASYMMETRIC 1 AND 2
i IN (1,)
i IN (, 1)
i IN [1]
abs(i,) = 1
if(flag, , 1) = 1
{fn abs(b)} = 1
CASE WHEN flag 1 END = 1
CASE WHEN flag THEN 1 = 1
flag -- c \
-- c \
flag
/*+ c */ flag
flag;
- /*+ c */ 1 = i
s = 'a' /*+ c */ 'b'
i = 1 :
i : NOT BETWEEN -1 AND 2
f : IN (1)
year(at) = . 1883
INTERVAL DAY'1' = i
'a'{: 1} = s
s->5BD'a' = s
"""
TOKEN: Final = re.compile(r"\s+|'(?:[^'\\]|\\.)*'|\"[^\"]*\"|`[^`]*`|\w+|[<>=!]+|::|\|\||.", re.DOTALL)
ODD: Final = [
    *(
        "int",
        "text",
        "number",
        "UNKNOWN",
        "ISNULL",
        "NOT",
        "!",
        "::",
        ":",
        ".",
        ",",
        ";",
        "[",
        "{",
        "(",
        ")",
        "~~",
        "?",
    ),
    *("+", "-", "'a'", "128Y", "1e39F", "1.5L", "/*+c*/", "COLLATE", "DEFAULT"),
]
SELECTED: Final = [
    *("b AS x, i", "b x, i AS `y z`", "* EXCEPT (b, i)", "n.x AS x", "b, -1 AS i", "s AS string", "+b AS x"),
    *("b AS x,", "b, , i", "b 'x'", "b AS 'x'", "b i s", "* EXCEPT (b,)", "b AS x y", "int 1 AS x", "* EXCEPT b"),
    *("b, i -- x\n", "i, 'a' AS s", "b AS int", "b AS x.y"),
]


@pytest.fixture(scope="module")
def rows(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[pa.RecordBatch]:
    """The rows of the view `nasty`."""
    with nasty_rows(spark, tmp_path_factory.mktemp("texts")) as found:
        yield found


def texts_of(listed: str) -> list[str]:
    """Return the texts of a list; a line that ends with a backslash goes on in the next one."""
    return re.split(r"(?<!\\)\n", listed.strip())


def mine(text: str) -> bool:
    """Return whether a text is a condition of ours."""
    try:
        parse_condition(text, SCHEMA)
    except ConfigError:
        return False
    return True


def test_known_texts(spark: SparkSession, rows: pa.RecordBatch) -> None:
    accepted, refused = texts_of(ACCEPTED), texts_of(REFUSED)
    assert [text for text in accepted if not mine(text)] == []
    assert [text for text in refused if mine(text)] == []
    assert not differences(spark, rows, accepted)


def mutants(chance: random.Random) -> Iterator[str]:
    """Yield conditions in which a token or two are others."""
    texts = texts_of(ACCEPTED)
    words = sorted({token for text in texts for token in TOKEN.findall(text) if token.strip()}) + ODD * 5
    while True:
        tokens = TOKEN.findall(chance.choice(texts))
        for _ in range(chance.choice([1, 1, 1, 2])):
            at = chance.randrange(len(tokens))
            tokens[at : at + chance.randrange(3)] = [f" {chance.choice(words)} "] * chance.randrange(2)
            tokens = tokens or ["flag"]
        yield "".join(tokens)


@pytest.mark.parametrize("seed", seeds(1))
def test_random_texts(spark: SparkSession, rows: pa.RecordBatch, seed: int) -> None:
    chance = random.Random(seed)
    made = mutants(chance)
    accepted = sorted({text for text in (next(made) for _ in range(repeats(10_000))) if mine(text)})
    assert len(accepted) > 300
    parser = spark._jsparkSession.sessionState().sqlParser()  # the only way to it
    unread = []
    for text in accepted:
        try:
            parser.parseExpression(text)
        except Exception:  # noqa: BLE001 - one of Java
            unread.append(text)
    assert unread == []
    assert not differences(spark, rows, chance.sample(accepted, 120))


def test_texts_of_columns(spark: SparkSession, rows: pa.RecordBatch) -> None:
    """Refuse in a SELECT what Spark refuses, with Spark's names for the rest."""
    del rows  # the view `nasty`
    for text in SELECTED:
        try:
            theirs = spark.sql(f"SELECT {text}\nFROM nasty").columns
        except PySparkException:
            with pytest.raises(ConfigError):
                parse_select(text, SCHEMA)
        else:
            names = [name for name in theirs if name != "id"]
            assert [name for name, _ in parse_select(text, SCHEMA).outputs] == names, text
