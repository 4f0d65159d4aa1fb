"""A process that follows a table with Spark and appends its changes to another: for `test_spark_follow_kill`.

python -m tests.faults.follow_writer SOURCE TARGET CHECKPOINT SCRATCH
"""

import sys
from pathlib import Path

from pyspark.sql import SparkSession

import tailer.spark
from tailer.config.shapes import SparkSettings
from tailer.spark.recipes import append_once
from tailer.spark.session import close_session, open_session
from tests.support.spark.session import delta_conf

__all__ = ["append_all"]


def append_all(session: SparkSession, source: Path, target: Path, checkpoint: Path) -> None:
    """Append all changes that are there, some files at a time."""
    query = tailer.spark.follow(
        session, source, append_once(str(target), "orders"), start=0, maxFilesPerTrigger=6, maxRowsPerTrigger=900
    )
    query.trigger(availableNow=True).option("checkpointLocation", str(checkpoint)).start().awaitTermination()


def _settings(scratch: Path) -> SparkSettings:
    """Settings of a small local Spark with Delta."""
    quiet = scratch / "log4j2.properties"
    quiet.write_text("rootLogger.level = off\n")
    conf = {
        **delta_conf(),
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": (
            f"-Dderby.system.home={scratch / 'derby'} -Dlog4j2.configurationFile={quiet.as_uri()} "
            "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
        ),
    }
    return SparkSettings("local[2]", conf=conf)


def _main(source: Path, target: Path, checkpoint: Path, scratch: Path) -> None:
    session = open_session(_settings(scratch))
    try:
        append_all(session, source, target, checkpoint)
    finally:
        close_session(session)


if __name__ == "__main__":
    _main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]))
