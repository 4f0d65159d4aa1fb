"""A local Spark with Delta for the demonstration: every file under one folder, nothing on the screen."""

import logging
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tailer.errors import ConfigError

try:
    from delta import configure_spark_with_delta_pip
    from pyspark.sql import SparkSession
except ImportError as missing:
    raise ConfigError(
        "tailer demo", f"Spark is not installed: {missing}", "Run: pip install 'lake-tailer[spark,delta]'"
    ) from missing

__all__ = ["local_spark"]

JARS_VARIABLE: Final = "LAKE_TAILER_JARS"
SETTINGS: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    # Small data: starting, planning and compiling are what takes time.
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


@contextmanager
def local_spark(scratch: Path) -> Iterator[SparkSession]:
    """A Spark session with Delta that keeps its files and its log under `scratch`.

    Delta's jars come from the folder LAKE_TAILER_JARS names, or else from where Spark's resolver finds them.
    Raises `ConfigError` where Java or the jars are missing, or Spark does not start.
    """
    if not (os.environ.get("JAVA_HOME") or shutil.which("java")):
        raise ConfigError(
            "tailer demo", "Java is not installed", "Install Java 17 or newer, or set JAVA_HOME."
        )
    builder = _builder(scratch)
    log = scratch / "spark.log"
    try:
        with _stderr_to(log):
            spark = builder.getOrCreate()
    except Exception as error:  # whatever it is, Spark has said it in its log
        reason = f"Spark does not start: {str(error).splitlines()[0]}"
        remedy = "Spark needs Java 17 or newer; it said: " + " | ".join(log.read_text().splitlines()[-5:])
        raise ConfigError("tailer demo", reason, remedy) from error
    # After an interrupt py4j reports each of its broken connections; what matters is that Spark is stopped.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    try:
        yield spark
    finally:
        with suppress(Exception):
            spark.stop()


def _builder(scratch: Path) -> SparkSession.Builder:
    for folder in ("local", "tmp"):
        (scratch / folder).mkdir()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_DIRS"] = str(scratch / "local")
    quiet = scratch / "log4j2.properties"
    quiet.write_text("rootLogger.level = error\n")
    options = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djava.io.tmpdir={scratch / 'tmp'} -Dlog4j2.configurationFile={quiet.as_uri()}"
    builder = SparkSession.builder.master("local[*]").appName("lake-tailer demo")
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    builder = builder.config("spark.driver.extraJavaOptions", options)
    builder = builder.config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
    folder = os.environ.get(JARS_VARIABLE)
    if not folder:
        return configure_spark_with_delta_pip(builder)
    jars = sorted(str(jar) for jar in Path(folder).glob("*.jar"))
    if not jars:
        raise ConfigError(
            JARS_VARIABLE, f"no jars in {folder}", "Run `make demo`, which fetches them, or unset it."
        )
    return builder.config("spark.jars", ",".join(jars))


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Send what child processes say on standard error to a file: the JVM inherits it, and keeps it."""
    kept = os.dup(2)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
