"""Compare the delivered events with Spark, in two independent ways.

The delivered events must be those of Spark's own change feed, each as often. Their fold must be the table: an insert or
a postimage adds a row, a delete or a preimage removes one.
"""

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from examples.demo.writer import CHANGE, EFFECTS, METADATA, Verdict

__all__ = ["judge"]


def judge(spark: SparkSession, table: Path, copy: Path) -> Verdict:
    """Compare the change rows in the Delta table `copy` with the history of `table`."""
    delivered = spark.read.format("delta").load(str(copy)).cache()
    feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 0).load(str(table))
    now = spark.read.format("delta").load(str(table))
    kinds = {row[CHANGE]: row["count"] for row in delivered.groupBy(CHANGE).count().collect()}
    missing, unexpected = _difference(_counted(feed, 1), _counted(delivered.select(*feed.columns), -1))
    effect = f.create_map(*[f.lit(part) for pair in EFFECTS.items() for part in pair])[f.col(CHANGE)]
    folded = delivered.withColumn("n", -effect).drop(*METADATA)
    lacking, left_over = _difference(_counted(now, 1), folded)
    return Verdict(kinds, missing, unexpected, now.count(), lacking, left_over)


def _counted(rows: DataFrame, n: int) -> DataFrame:
    return rows.withColumn("n", f.lit(n))


def _difference(wanted: DataFrame, actual: DataFrame) -> tuple[int, int]:
    """Return the number of missing and of unexpected rows; rows in `actual` are counted negatively."""
    columns = [column for column in wanted.columns if column != "n"]
    sums = wanted.unionByName(actual).groupBy(*columns).agg(f.sum("n").alias("n"))
    more = f.coalesce(f.sum(f.greatest(f.col("n"), f.lit(0))), f.lit(0))
    less = f.coalesce(f.sum(f.greatest(-f.col("n"), f.lit(0))), f.lit(0))
    result = sums.agg(more.alias("more"), less.alias("less")).collect()[0]
    return int(result["more"]), int(result["less"])
