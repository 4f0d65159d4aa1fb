"""Conditions over nasty values, as we and as Spark answer them for every row."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tailer.errors import ConfigError
from tailer.shape.evaluate import compiled
from tailer.shape.parse.texts import parse_condition
from tailer.shape.tree import BatchRows

__all__ = ["SCHEMA", "differences", "nasty_rows"]

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
# Spark computes the first operand of these before the condition around them, for all rows, so it fails for more rows.
COMPUTED_AHEAD: Final = re.compile(r"\bBETWEEN\b|\bnullif\(")
SCHEMA: Final = pa.schema([pa.field(name, kind) for name, (kind, _) in COLUMNS.items()])


# With these rules, Spark leaves out parts of a condition that would fail for a row.
SIMPLIFICATIONS: Final = (
    "BooleanSimplification",
    "SimplifyConditionals",
    "SimplifyBinaryComparison",
    "NullPropagation",
    "UnwrapCastInBinaryComparison",
)


def table() -> pa.RecordBatch:
    """Return rows with every value of every column, in many combinations."""
    arrays = [
        pa.array([values[(row * (place + 1) + row // 7) % len(values)] for row in range(ROWS)], kind)
        for place, (kind, values) in enumerate(COLUMNS.values())
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


@contextmanager
def nasty_rows(spark: SparkSession, folder: Path) -> Iterator[pa.RecordBatch]:
    """Return the rows of the view `nasty`; Spark evaluates conditions over it as they are written."""
    found = table()
    path = folder / "rows.parquet"
    numbered = pa.Table.from_batches([found]).append_column("id", pa.array(range(ROWS), pa.int32()))
    pq.write_table(numbered, path)
    spark.read.parquet(str(path)).createOrReplaceTempView("nasty")
    excluded = "spark.sql.optimizer.excludedRules"
    spark.conf.set(excluded, ",".join(f"org.apache.spark.sql.catalyst.optimizer.{rule}" for rule in SIMPLIFICATIONS))
    yield found
    spark.conf.unset(excluded)


def ours(text: str, rows: pa.RecordBatch) -> list[bool | None] | str:
    """Return the answer for every row; if the condition fails for one, what it says."""
    try:
        expression = parse_condition(text, SCHEMA).expression
    except ConfigError as error:
        return error.reason  # a constant part that fails: `accepted`
    try:
        found = compiled(expression)(BatchRows(rows))
    except pa.ArrowInvalid as error:
        return str(error)
    return [found.as_py()] * len(rows) if isinstance(found, pa.Scalar) else list(found.to_pylist())


def sparks(spark: SparkSession, texts: Sequence[str]) -> list[list[bool | None] | str]:
    """Return what `ours` does, from Spark."""
    if not texts:
        return []
    listed = ", ".join(f"({text}\n) AS c{number}" for number, text in enumerate(texts))
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
            if isinstance(theirs, str) and (isinstance(mine[text], str) or COMPUTED_AHEAD.search(text)):
                continue
            if theirs != mine[text]:
                found.append(f"{text}\n  ours:  {mine[text]}\n  Spark: {theirs}")
    return found
