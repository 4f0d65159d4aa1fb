"""Rows in Spark's form: through a real data source, compared with Delta's own change feed of the same table."""

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tailer.errors import SchemaChanged
from tailer.events import METADATA_FIELDS
from tailer.plan import ChangePlan
from tailer.read.execute import execute
from tailer.spark.source.envelope import ENVELOPE, EnvelopeRows
from tailer.spark.source.typed import TypedRows, typed_schema
from tailer_sinks.testing.rows import flat_rows
from tests.support.follow import plans
from tests.support.oracle.rows import assert_same, rows_of
from tests.support.spark.table import write_all_types

METADATA: Final = [field.name for field in METADATA_FIELDS]


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


def test_columns_without_a_type(spark: SparkSession, tmp_path: Path) -> None:
    """Void is also a type of Spark, and no file has a value of it."""
    properties = "'delta.enableChangeDataFeed' = 'true'"
    spark.sql(f"CREATE TABLE delta.`{tmp_path}` (a INT, v VOID, b INT) USING delta TBLPROPERTIES ({properties})")
    spark.range(3).selectExpr("int(id) AS a", "int(id) AS b").write.format("delta").mode("append").save(str(tmp_path))
    work = plans(tmp_path)
    found = typed(spark, "void_column", work, work[-1].schema)
    assert_reads_alike(found, delta_feed(spark, tmp_path))


def test_rows_of_older_versions_have_the_names_and_types_of_the_newest(spark: SparkSession, tmp_path: Path) -> None:
    table = f"delta.`{tmp_path}`"
    columns = "id INT, name STRING, day DATE, s STRUCT<x: SMALLINT>, l ARRAY<INT>, p INT"
    properties = "'delta.columnMapping.mode' = 'name', 'delta.enableTypeWidening' = 'true'"
    third = "3000000000, 'three', TIMESTAMP_NTZ'2026-01-01 00:00:00.000001', named_struct('x', 0.25, 'y', NULL)"
    steps = [
        f"CREATE TABLE {table} ({columns}) USING delta PARTITIONED BY (p) TBLPROPERTIES ({properties})",
        f"INSERT INTO {table} VALUES (1, 'one', DATE'2026-01-01', named_struct('x', 1S), array(1, NULL), 5)",
        f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.feature.timestampNtz' = 'supported')",
        f"ALTER TABLE {table} ADD COLUMNS (extra DOUBLE, s.y MAP<STRING, INT>)",
        f"ALTER TABLE {table} RENAME COLUMN name TO title",
        f"INSERT INTO {table} VALUES (2, 'two', NULL, named_struct('x', 2S, 'y', map('k', 7)), array(), NULL, 0.5)",
        f"ALTER TABLE {table} ALTER COLUMN id TYPE BIGINT",
        f"ALTER TABLE {table} ALTER COLUMN s.x TYPE DECIMAL(12, 2)",
        f"ALTER TABLE {table} ALTER COLUMN l.element TYPE DOUBLE",
        f"ALTER TABLE {table} ALTER COLUMN day TYPE TIMESTAMP_NTZ",
        f"INSERT INTO {table} VALUES ({third}, array(0.5D), 6, 1.5)",
    ]
    for step in steps:
        spark.sql(step)
    work = plans(tmp_path)
    found = typed(spark, "restated", work, work[-1].schema)
    rows = spark.read.format("delta").load(str(tmp_path))
    assert found.drop(*METADATA).dtypes == rows.dtypes
    assert_same(rows_of(found.toArrow(), METADATA), rows_of(rows.toArrow()), "restated")
    spark.sql(f"ALTER TABLE {table} DROP COLUMN extra")
    spark.sql(f"DELETE FROM {table} WHERE title = 'one'")
    work = plans(tmp_path)
    rows_then = TypedRows(work[-1].schema)
    with pytest.raises(SchemaChanged, match="has a column extra"):
        rows_then.restate(work[5])
    assert rows_then.restate(work[1]).tasks
    assert typed(spark, "after_the_drop", work[-1:], work[-1].schema).drop(*METADATA).columns == work[-1].schema.names


def test_the_envelope_has_every_row_of_every_type(spark: SparkSession, all_types: Path) -> None:
    work = plans(all_types)
    found = load(spark, "enveloped", ENVELOPE, work, EnvelopeRows())
    assert found.schema == ENVELOPE
    rows = found.toArrow()
    assert len(set(rows["_event_id"].to_pylist())) == rows.num_rows
    batches = [batch for plan in work for task in plan.tasks for batch in execute(task)]
    expected = {
        f"{batch.table_id}/{batch.version}/{batch.task}/{row}/{values['_change_type']}": values
        for batch in batches
        for row, values in zip(batch.row_index.to_pylist(), flat_rows(batch.rows), strict=True)
    }
    for row in rows.to_pylist():
        values = expected.pop(row["_event_id"])
        assert json.loads(row["value"]) == {name: value for name, value in values.items() if name not in METADATA}
        place = f"{row['_table_id']}/{row['_commit_version']}/{row['_task']}/{row['_row']}/{row['_change_type']}"
        assert place == row["_event_id"]
    assert not expected
