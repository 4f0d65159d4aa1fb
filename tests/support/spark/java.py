"""Options of Java for Spark in tests, and an archive of Spark's classes.

python -m tests.support.spark.java     makes the archive, as make does
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import pyspark

from tests.support.shared_classes import archive_classes, share_classes
from tests.support.spark.session import build_spark

__all__ = ["CLASS_PATH", "shared_classes", "small_work"]

_JARS: Final = Path(pyspark.__file__).parent / "jars"
# That of Spark's own scripts, with which the archive is made.
CLASS_PATH: Final = (f"{_JARS.parent / 'conf'}", f"{next(_JARS.glob('slf4j-api-*.jar'))}", f"{_JARS}{os.sep}*")
_ARCHIVE: Final = Path(sys.prefix) / "spark-classes.jsa"

# For many small queries, where optimising code that runs once would take most of the time. The first compiler alone
# takes a fifth less; by default its code cache has 48 MB, which Spark with Delta soon fills, and then nothing is
# compiled any more. Hardly any object outlives its query, so a large young generation means less copying. Without the
# last setting, loading Spark's classes triggers full collections. Not for measurements.
_SMALL_WORK: Final = (
    "-XX:TieredStopAtLevel=1",
    "-XX:ReservedCodeCacheSize=256m",
    "-XX:+UseSerialGC",
    "-Xmn512m",
    "-XX:MetaspaceSize=512m",
)


def small_work() -> tuple[str, ...]:
    """Return the options for sessions of tests."""
    return (*_SMALL_WORK, *shared_classes())


def shared_classes() -> tuple[str, ...]:
    """Return the options to use the archive; none if there is none."""
    return share_classes(_ARCHIVE)


def _make() -> None:
    """Do what most tests do with Spark, and write the archive."""
    os.environ["SPARK_SUBMIT_OPTS"] = " ".join((*_SMALL_WORK, *archive_classes(_ARCHIVE)))
    with tempfile.TemporaryDirectory() as folder:
        spark = build_spark(Path(folder))
        spark.range(1000).write.format("delta").save(f"{folder}/table")
        spark.sql(f"DELETE FROM delta.`{folder}/table` WHERE id < 5")
        spark.read.format("delta").load(f"{folder}/table").orderBy("id").collect()
        spark.stop()
        # Java ends with its input, and then writes the archive.
        java: subprocess.Popen[bytes] = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
        java.communicate()


if __name__ == "__main__":
    _make()
