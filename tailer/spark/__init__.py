"""lake-tailer on Spark: the same plans and the same `execute`, on as many machines as there are.

    source       the data source `tailer`, for batches and streams; `options`, `views`, `places` are its parts
    typed, envelope   rows as Spark takes them
    session, executors   a Spark to work on, and work for it; classic Spark and Spark Connect
    engine       the daemon's engine on executors

`register` makes the data source known to a session::

    import tailer.spark
    tailer.spark.register(spark)
    spark.readStream.format("tailer").load("/data/orders")

Executors need lake-tailer: an environment that has it (`spark.pyspark.python`, an image), or the wheel beside one that
has what it depends on (`spark.submit.pyFiles`). `local[*]` has it.
"""

from pyspark.sql import SparkSession

from tailer.spark.source.data_source import TailerSource

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make `format("tailer")` known to a session, classic or of Spark Connect. Doing so again changes nothing."""
    spark.dataSource.register(TailerSource)
