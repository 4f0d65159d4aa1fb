"""Variants to JSON texts: the strict decoder, many values at once, Spark's decoder in Python, and DuckDB over Arrow.

One run measures all of them, one after another, in seconds of the processor on one thread, so that other work on the
machine counts little. DuckDB's texts differ in decimals, times, NaN and null. Nothing is asserted about time. `make
bench` prints the table; quoted figures come from here.
"""

import random
import statistics
import time
from collections.abc import Callable
from itertools import cycle
from typing import Any, Final

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql.variant_utils import VariantUtils

from tailer.variant import UNSHREDDED, Variant, compare_keys, json_texts, unshred
from tests.support.variant.encoder import Layout, Scalar, encode, metadata, names_in
from tests.support.variant.shredder import Shredding, shred

RUNS: Final = 5
ROWS: Final = 10_000
SPARK_ROWS: Final = 500  # of those
STRICT: Final = "one by one"
BATCHES: Final = "json_texts"
KEYS: Final = "compare_keys"
SPARK: Final = "pyspark"
DUCKDB: Final = "DuckDB"

CHANCE: Final = random.Random(17)
TAGGED: Final = pa.schema([pa.field("v", UNSHREDDED, metadata={"ARROW:extension:name": "arrow.parquet.variant"})])


def scalar(number: int, content: Any = None) -> Scalar:
    """Return a primitive value."""
    return Scalar(number, content, "", short=number == 16 and len(content) < 64)


def text(least: int, most: int) -> Scalar:
    """Return a random text of letters."""
    return scalar(16, "".join(CHANCE.choices("abcdefghijklmnopqrstuvwxyz  ", k=CHANCE.randint(least, most))))


def order(number: int) -> dict[str, Any]:
    """Return an object of 17 leaves, three of them in an object and two in an array."""
    return {
        "id": scalar(6, 2**40 + number),
        "customer": {"name": text(4, 14), "email": text(10, 25), "age": scalar(3, CHANCE.randint(18, 99))},
        "amount": scalar(8, f"{CHANCE.randint(1, 99_999)}E-2"),
        "score": scalar(7, CHANCE.random() * 100),
        "ratio": scalar(7, CHANCE.randint(0, 100) / 4),
        "at": scalar(12, 1_700_000_000_000_000 + number * 12_345_678),
        "day": scalar(11, 19_000 + number % 999),
        "tags": [text(3, 8), text(3, 8)],
        "city": text(8, 8),
        "note": text(20, 80),
        "comment": scalar(0),
        "quantity": scalar(4, CHANCE.randint(200, 9999)),
        "paid": scalar(1 + number % 2),
        "code": scalar(5, CHANCE.randint(70_000, 10**9)),
    }


def deep(levels: int) -> Any:
    """Return objects and arrays in each other."""
    inner: Any = scalar(3, CHANCE.randint(0, 99))
    for level in range(levels):
        inner = [inner, scalar(3, level)] if level % 2 else {"inner": inner, "level": scalar(3, level)}
    return inner


CORPORA: Final[dict[str, Callable[[int], Any]]] = {
    "objects of 17 leaves": order,
    "objects of 3 leaves": lambda n: {"id": scalar(5, 10**6 + n), "kind": text(4, 9), "ok": scalar(1)},
    "texts": lambda _: text(5, 100),
    "integers": lambda n: scalar(6, n * 10**9),
    "float64": lambda _: scalar(7, CHANCE.random() * 1000),
    "20 levels": lambda _: deep(20),
}


def seconds(work: Callable[[], object]) -> float:
    """Return the time of the processor that `work` takes."""
    start = time.process_time()
    work()
    return time.process_time() - start


def duckdb_texts(database: duckdb.DuckDBPyConnection, column: pa.StructArray) -> list[str | None]:
    """Return the texts that DuckDB makes of a column."""
    relation = database.from_arrow(pa.Table.from_arrays([column], schema=TAGGED))
    found: list[str | None] = relation.project("v::JSON::VARCHAR AS v").to_arrow_table()["v"].to_pylist()
    return found


def contenders(column: pa.StructArray) -> dict[str, tuple[Callable[[], object], int]]:
    """Return what makes texts of a column, and of how many rows."""
    database = duckdb.connect(config={"threads": 1})
    pairs = list(zip(column.field("metadata").to_pylist(), column.field("value").to_pylist(), strict=True))
    return {
        STRICT: (lambda: [Variant(names, value).to_json() for names, value in pairs], ROWS),
        BATCHES: (lambda: json_texts(column), ROWS),
        KEYS: (lambda: compare_keys(column), ROWS),
        SPARK: (lambda: [VariantUtils.to_json(value, names) for names, value in pairs[:SPARK_ROWS]], SPARK_ROWS),
        DUCKDB: (lambda: duckdb_texts(database, column), ROWS),
    }


def measured(works: dict[str, tuple[Callable[[], object], int]]) -> dict[str, float]:
    """Return the medians, in microseconds per value. The first run does not count."""
    runs = [{name: seconds(work) / rows * 1e6 for name, (work, rows) in works.items()} for _ in range(1 + RUNS)][1:]
    return {name: statistics.median(run[name] for run in runs) for name in works}


@pytest.mark.parametrize("corpus", CORPORA)
def test_texts(corpus: str, capsys: pytest.CaptureFixture[str]) -> None:
    values = [CORPORA[corpus](number) for number in range(ROWS)]
    names = sorted(names_in(values[0]))
    data = [{"metadata": metadata(names), "value": encode(value, names, cycle([Layout()]))} for value in values]
    column = pa.array(data, UNSHREDDED)
    assert json_texts(column) == [Variant(**each).to_json() for each in data]
    found = measured(contenders(column))
    with capsys.disabled():
        print(f"\n{corpus}: microseconds per value, medians of {RUNS} runs of {ROWS:,} values")
        for name, each in found.items():
            print(f"  {name}: {each:.2f} = {found[SPARK] / each:.1f} x pyspark, {found[DUCKDB] / each:.2f} x DuckDB")


def test_shredded(capsys: pytest.CaptureFixture[str]) -> None:
    """Nine of the 17 leaves are columns of their own."""
    members = {"id": 6, "city": 16, "note": 16, "quantity": 4, "code": 5, "paid": 1}
    person = Shredding(members={"name": Shredding(16), "email": Shredding(16), "age": Shredding(3)})
    shredding = Shredding(members={name: Shredding(number) for name, number in members.items()} | {"customer": person})
    column = shred([order(number) for number in range(ROWS)], shredding, cycle([Layout()]))
    found = measured(
        {
            "unshred": (lambda: unshred(column), ROWS),
            "json_texts": (lambda: json_texts(column), ROWS),
            "unshred, then json_texts": (lambda: json_texts(unshred(column)), ROWS),
        }
    )
    with capsys.disabled():
        print(f"\nshredded objects of 17 leaves: microseconds per value, medians of {RUNS} runs of {ROWS:,} values")
        for name, each in found.items():
            print(f"  {name}: {each:.2f}")
