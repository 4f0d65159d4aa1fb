"""A process with a Spark that keeps a copy of a table by `foreachBatch` and MERGE, as the manuals show it.

Arguments: SCRATCH. Each input line is an order, as JSON: the table, whose change feed is read; the copy; the folder of
the stream's checkpoint. The answer is a line with the seconds that the stream took, and those of processors.
"""

import json
import sys
import time
from pathlib import Path

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql.functions import col, row_number

from tests.bench.process_costs import cpu_s
from tests.support.spark.session import build_spark

__all__: list[str] = []

_ADDED = ("_change_type", "_commit_version", "_commit_timestamp")


def _merge(copy: str, changes: DataFrame) -> None:
    newest = Window.partitionBy("id").orderBy(col("_commit_version").desc(), (col("_change_type") == "delete").asc())
    images = changes.where("_change_type <> 'update_preimage'").withColumn("nth", row_number().over(newest))
    source = images.where("nth = 1").drop("nth")
    values: dict[str, str | Column] = {name: f"s.{name}" for name in changes.columns if name not in _ADDED}
    merging = DeltaTable.forPath(changes.sparkSession, copy).alias("t").merge(source.alias("s"), "t.id = s.id")
    merging = merging.whenMatchedDelete("s._change_type = 'delete'").whenMatchedUpdate(set=values)
    merging.whenNotMatchedInsert("s._change_type <> 'delete'", values=values).execute()


def _follow(spark: SparkSession, table: str, copy: str, checkpoint: str) -> None:
    if not Path(copy).exists():
        schema = spark.read.format("delta").load(table).schema
        spark.createDataFrame([], schema).write.format("delta").save(copy)
    options = {"readChangeFeed": True, "startingVersion": 0, "maxFilesPerTrigger": 100_000}
    rows = spark.readStream.format("delta").options(**options).load(table)
    writer = rows.writeStream.foreachBatch(lambda changes, _: _merge(copy, changes))
    writer.trigger(availableNow=True).option("checkpointLocation", checkpoint).start().awaitTermination()


if __name__ == "__main__":
    spark = build_spark(Path(sys.argv[1]), "local[2]")
    print("{}", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        begun_s, before_s = time.perf_counter(), sum(cpu_s().values())
        _follow(spark, order["table"], order["copy"], order["checkpoint"])
        print(json.dumps([time.perf_counter() - begun_s, sum(cpu_s().values()) - before_s]), flush=True)
    spark.stop()
