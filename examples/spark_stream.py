"""Append the changes of a table to Parquet files with Spark Structured Streaming, exactly once.

    pip install 'lake-tailer[spark]'                 # and Java 17
    python spark_stream.py TABLE TARGET CHECKPOINT   # again and again: each run delivers what is new, and ends

The table does not need a change data feed, and reading it needs no jars. Spark keeps the progress in CHECKPOINT. For a
stream that stays, replace the trigger by `.trigger(processingTime="10 seconds")`. `tailer.spark.recipes` has functions
for `foreachBatch`, such as a copy of the table kept up to date by key.
"""

import os
import sys

from pyspark.sql import SparkSession

import tailer.spark


def deliver(table: str, target: str, checkpoint: str) -> None:
    """Deliver the changes that `checkpoint` does not have, and print what `target` then holds."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark's workers run this Python, which has lake-tailer
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    tailer.spark.register(spark)
    changes = (
        spark.readStream.format("tailer")
        .option("startingVersion", "earliest")
        .option("computeUpdates", "true")
        .option("key", "id")
        .option("maxFilesPerTrigger", 100)
        .load(table)
    )
    writer = changes.writeStream.format("parquet").option("path", target).option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()
    spark.read.parquet(target).groupBy("_change_type").count().orderBy("_change_type").show()
    spark.stop()


if __name__ == "__main__":
    deliver(*sys.argv[1:])
