"""Writes that overwrite a table or a part of it, and change its columns: whether a condition may go on with them."""

from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

import tailer
from tailer.errors import ConfigError
from tests.support.follow import plans
from tests.support.spark.table import Table

NEW: Final = "SELECT CAST(3 AS INT) AS id, 2 AS p, CAST(0.1 AS DOUBLE) AS v"
CONDITION: Final = "v * 3 > 0"


def spark_writes(**options: str) -> Callable[[Table], None]:
    """Return what overwrites a table by Spark, with wider columns."""

    def write(table: Table) -> None:
        writer = table.spark.sql(NEW).write.format("delta").mode("overwrite").options(**options)
        writer.save(str(table.path))

    return write


def delta_rs_writes(predicate: str | None) -> Callable[[Table], None]:
    """Return what overwrites a table, or a part of it, by delta-rs, with other columns."""

    def write(table: Table) -> None:
        rows = pa.table({"id": pa.array([3], pa.int32()), "p": pa.array([2], pa.int32()), "v": [0.1]})
        write_deltalake(str(table.path), rows, mode="overwrite", schema_mode="overwrite", predicate=predicate)

    return write


def spark_inserts(text: str) -> Callable[[Table], None]:
    """Return what runs an INSERT that may widen columns."""
    return lambda table: table.sql(text)


@pytest.mark.parametrize(
    ("write", "stays"),
    [
        pytest.param(spark_writes(mergeSchema="true"), False, id="overwrite"),
        pytest.param(spark_writes(overwriteSchema="true"), False, id="overwriteSchema"),
        pytest.param(spark_writes(mergeSchema="true", replaceWhere="p = 2"), True, id="replaceWhere"),
        pytest.param(spark_writes(mergeSchema="true", partitionOverwriteMode="dynamic"), True, id="dynamic"),
        pytest.param(spark_inserts(f"INSERT OVERWRITE {{t}} {NEW}"), False, id="INSERT OVERWRITE"),
        pytest.param(spark_inserts(f"INSERT INTO {{t}} REPLACE WHERE p = 2 {NEW}"), True, id="REPLACE WHERE"),
        pytest.param(delta_rs_writes(None), False, id="delta-rs"),
        pytest.param(delta_rs_writes("p = 2"), True, id="delta-rs with a predicate"),
    ],
)
def test_a_condition_goes_on_where_no_row_stays(
    spark: SparkSession, table: Table, write: Callable[[Table], None], stays: bool
) -> None:
    """`v * 3` of a row that stays is another number once v is a double, and no change reports that."""
    widening = "'delta.enableTypeWidening' = 'true'" if "delta_rs" not in write.__qualname__ else ""
    rows = "SELECT id, id AS p, CAST(0.1 AS FLOAT) AS v FROM VALUES (1), (2) AS t(id)"
    table.create("id INT, p INT, v FLOAT", rows, feed=False, partition="p", properties=widening)
    spark.conf.set("spark.databricks.delta.schema.autoMerge.enabled", "true")
    try:
        write(table)
    finally:
        spark.conf.unset("spark.databricks.delta.schema.autoMerge.enabled")
    (plan,) = plans(table.path, 2)
    assert plan.widened == ((("v",),) if stays else ())
    found = tailer.changes(table.path, start=2, end=2, where=CONDITION)
    if stays:
        with pytest.raises(ConfigError, match=r"version 2 of .* widens the column v"):
            list(found)
    else:
        assert sorted(kind for batch in found for kind in batch["_change_type"].to_pylist()) == [
            "delete",
            "delete",
            "insert",
        ]
