"""A table with a column of every type, written by Spark and Delta."""

from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from sinks.testing.rows import DELTA_TYPES

__all__ = ["write_all_types"]


def write_all_types(spark: SparkSession, path: Path) -> Path:
    """Write values from the edges of each type, nulls on every level, deletes and updates, with a feed."""
    types = {name: entry for name, entry in DELTA_TYPES.items() if name != "void"}
    height = max(len(values) for _, values in types.values()) + 1
    columns = {
        name: pa.array([*values, *[None] * (height - len(values))], kind) for name, (kind, values) in types.items()
    }
    source = spark.createDataFrame(pa.table({"id": pa.array(range(height), pa.int64()), **columns}))
    fields = ", ".join(f"`{name}` {kind}" for name, kind in source.dtypes[1:])
    properties = "'delta.enableChangeDataFeed' = 'true', 'delta.columnMapping.mode' = 'name'"
    spark.sql(
        f"CREATE TABLE delta.`{path}` (id BIGINT NOT NULL, {fields}, deep ARRAY<MAP<INT, ARRAY<STRUCT<"
        f"`x y`: DECIMAL(3,3), n: STRUCT<t: TIMESTAMP, d: DATE>>>>>) USING delta TBLPROPERTIES ({properties})"
    )
    deep = (
        "CASE id WHEN 0 THEN array(map(1, array(named_struct('x y', 0.125, 'n', named_struct('t', TIMESTAMP"
        "'1582-10-15 00:00:00', 'd', DATE'1582-10-04')), NULL), 2, NULL), NULL, map()) WHEN 1 THEN array() END"
    )
    source.selectExpr("*", f"{deep} AS deep").write.format("delta").mode("append").save(str(path))
    spark.sql(f"UPDATE delta.`{path}` SET string = 'new' WHERE id < 2")
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 2")
    return path
