"""Rows in Spark's form: through a real data source, compared with Delta's own change feed of the same table."""

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tailer.plan import ChangePlan
from tailer.read.execute import execute
from tailer.spark.source.typed import TypedRows, typed_schema
from tests.support.follow import plans
from tests.support.oracle.rows import assert_same, rows_of
from tests.support.spark.table import write_all_types


def load(spark: SparkSession, name: str, schema: StructType, work: list[ChangePlan], rows: Any) -> DataFrame:
    """Load a data source that yields the rows of `work`, one partition per plan, with the schema `rows`."""

    # A class inside a function is pickled by value: executors cannot import this module.
    class Reader(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            return [InputPartition(pickle.dumps((plan, rows))) for plan in work]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            plan, rows = pickle.loads(partition.value)
            for task in plan.tasks:
                for batch in execute(task):
                    found = rows.batches(batch)
                    yield from [found] if isinstance(found, pa.RecordBatch) else found

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return name

        def schema(self) -> StructType:
            return schema

        def reader(self, schema: StructType) -> DataSourceReader:
            return Reader()

    spark.dataSource.register(Source)
    return spark.read.format(name).load()


def typed(spark: SparkSession, name: str, work: list[ChangePlan], columns: pa.Schema) -> DataFrame:
    """Return the rows of plans in the read schema `columns`."""
    rows = TypedRows(columns)
    return load(spark, name, typed_schema(columns), [rows.restate(plan) for plan in work], rows)


def delta_feed(spark: SparkSession, path: Path, first: int = 0) -> DataFrame:
    """Read Delta's own change feed."""
    return spark.read.format("delta").options(readChangeFeed="true", startingVersion=first).load(str(path))


def assert_reads_alike(found: DataFrame, expected: DataFrame) -> None:
    """Compare names, types and rows, with Arrow's full validation of every buffer."""
    assert found.dtypes == expected.dtypes
    rows = found.toArrow()
    rows.validate(full=True)
    assert_same(rows_of(rows), rows_of(expected.toArrow()), str(rows.schema.names))


@pytest.fixture(scope="module")
def all_types(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with every type (`write_all_types`)."""
    return write_all_types(spark, tmp_path_factory.mktemp("rows") / "all types")


def test_every_type_reads_as_in_the_feed_of_delta(spark: SparkSession, all_types: Path) -> None:
    work = plans(all_types)
    found = typed(spark, "all_types", work, work[-1].schema)
    assert_reads_alike(found, delta_feed(spark, all_types))
    assert {row["_change_type"] for row in found.select("_change_type").collect()} == {
        "insert",
        "delete",
        "update_preimage",
        "update_postimage",
    }
