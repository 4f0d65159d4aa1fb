"""`replace` and `translate`, held against Spark: random texts and arguments."""

import random
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tailer.shape.functions import FUNCTIONS
from tests.support.seeds import repeats, seeds

CHARACTERS: Final = "aaabbbcA1_ -.$\\&^é😀\n\r\t\v\u0085\u2028\u0301\u0661\0\u00a0\U00010400\U0010ffff"


class Cases:
    """Random texts."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def text(self, most: int = 12) -> str:
        """Return a text, often an empty one."""
        return "".join(self._random.choices(CHARACTERS, k=self._random.randint(0, most)))

    def texts(self) -> tuple[str, str]:
        """Return two short texts."""
        return self.text(3), self.text(3)


@pytest.mark.parametrize("function", ["replace", "translate"])
@pytest.mark.parametrize("seed", seeds(1))
def test_replacements_are_sparks(spark: SparkSession, tmp_path: Path, seed: int, function: str) -> None:
    cases = Cases(seed)
    rows = []
    for _ in range(repeats(1000)):
        first, second = cases.texts()
        texts = pa.array([*(cases.text() for _ in range(8)), first * 2, "", None], pa.string())
        ours = FUNCTIONS[function].run(pa.string(), texts, pa.scalar(first), pa.scalar(second))
        rows += [
            (text, first, second, result) for text, result in zip(texts.to_pylist(), ours.to_pylist(), strict=True)
        ]
    columns = [pa.array(values, pa.string()) for values in zip(*rows, strict=True)]
    pq.write_table(pa.table(columns, ["text", "first", "second", "ours"]), tmp_path / "cases.parquet")
    found = spark.read.parquet(str(tmp_path / "cases.parquet"))
    found = found.selectExpr("*", f"{function}(text, first, second) AS sparks")
    assert found.where("ours IS NULL").count() == repeats(1000)
    assert found.where("ours <> text").count() > repeats(500)
    assert [row.asDict() for row in found.where("NOT sparks <=> ours").limit(5).collect()] == []
