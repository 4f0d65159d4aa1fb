"""Variants through the data source: VARIANT columns in Spark, as Delta's own reader gives them."""

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import tailer.spark
from tests.support.oracle.recorded import CASES_DATA, read


def texts(frame: DataFrame) -> Counter[str]:
    """Return the rows as Spark's JSON, each as often as it occurs."""
    return Counter(row.text for row in frame.selectExpr("to_json(struct(*)) AS text").collect())


@pytest.mark.parametrize(
    "case",
    [
        "variants_shredded-copies-feed",
        "variants_plain-vectors-feed",
        "nested_variants_shredded",
        "nested_variants_plain",
    ],
)
def test_rows_are_those_of_delta(spark: SparkSession, tmp_path: Path, case: str) -> None:
    tailer.spark.register(spark)
    path = str(read(CASES_DATA / f"{case}.1.tar.xz", tmp_path).path)
    first = 3 if case.startswith("nested") else 0
    expected = spark.read.format("delta").options(readChangeFeed=True, startingVersion=first).load(path)
    found = spark.read.format("tailer").options(startingVersion=first).load(path)
    assert found.schema.simpleString() == expected.schema.simpleString()
    assert texts(found) == texts(expected)
    assert len(texts(found)) > 0
    envelope = spark.read.format("tailer").options(startingVersion=first, schema="envelope").load(path)
    assert envelope.count() == expected.count()
