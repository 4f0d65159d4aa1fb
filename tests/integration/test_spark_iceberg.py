"""Iceberg tables on Spark: executors give the rows that threads of one process do, across gaps between versions."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import tailer
import tailer.spark
from tests.support.iceberg.table import COLUMNS, IcebergTable

pytestmark = pytest.mark.spark


@pytest.fixture
def table(tmp_path: Path) -> IcebergTable:
    """A table with row ids whose rows are inserted, deleted in all ways, rewritten, and get a column."""
    table = IcebergTable(tmp_path / "items", 3)
    first = table.data({"id": [*range(20)], "name": [f"n{number}" for number in range(20)]})
    table.commit([first])
    table.commit([table.vector(table.file(first.path), [1, 5])])
    table.commit([table.data({"id": [99], "name": ["other"]})], branch="dev")
    second = table.data({"id": [7], "name": ["new"]})
    table.commit([table.equality({"id": [7, 8]}, {"id": 1}), second])
    table.columns = (*COLUMNS, {"id": 3, "name": "c", "type": "long"})
    kept = [number for number in range(20) if number not in {1, 5, 7, 8, 9}]
    again = table.data({"id": kept, "name": [f"n{number}" for number in kept], "c": [5] * len(kept)})
    last = table.data({"id": [7], "name": ["new"], "c": [5]})
    table.commit([again, last], [first, second])
    return table


def values(row: dict[str, Any]) -> tuple[object, ...]:
    """Return the values of a change row; on Spark, one of before the newest column has null there."""
    return (*(row[name] for name in ("_commit_version", "_change_type", "id", "name")), row.get("c"))


def test_executors_read_what_threads_read(spark: SparkSession, table: IcebergTable) -> None:
    tailer.spark.register(spark)
    for options, begin in (({"startingVersion": "earliest"}, 0), ({"startingVersion": "3"}, 3)):
        found = spark.read.format("tailer").options(**options).load(str(table.path)).collect()
        wanted = [row for batch in tailer.changes(table.path, start=begin) for row in batch.to_pylist()]
        assert Counter(values(row.asDict()) for row in found) == Counter(map(values, wanted))
        assert {row["_commit_version"] for row in found} <= {1, 2, 4, 5}
