"""A process that follows a table with Spark and appends its changes to another: for `test_spark_follow_kill`.

python -m tests.faults.follow_writer SOURCE TARGET CHECKPOINT SCRATCH
"""

import sys
from pathlib import Path

from pyspark.sql import SparkSession

import tailer.spark
from tailer.spark.recipes import append_once
from tailer.spark.session import close_session, open_session
from tests.faults.executor_writer import settings

__all__ = ["append_all"]


def append_all(session: SparkSession, source: Path, target: Path, checkpoint: Path) -> None:
    """Append all changes that are there, some files at a time."""
    query = tailer.spark.follow(
        session, source, append_once(str(target), "orders"), start=0, maxFilesPerTrigger=6, maxRowsPerTrigger=900
    )
    query.trigger(availableNow=True).option("checkpointLocation", str(checkpoint)).start().awaitTermination()


def _main(source: Path, target: Path, checkpoint: Path, scratch: Path) -> None:
    session = open_session(settings(scratch))
    try:
        append_all(session, source, target, checkpoint)
    finally:
        close_session(session)


if __name__ == "__main__":
    _main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]))
