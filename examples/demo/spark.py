"""A local Spark with Delta for the demonstration, with all files in one folder and no output."""

import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Final

from delta import configure_spark_with_delta_pip
from pyspark import SparkContext
from pyspark.sql import SparkSession

from tailer.errors import ConfigError

__all__ = ["local_spark"]

END_S: Final = 15.0
JARS_VARIABLE: Final = "LAKE_TAILER_JARS"
# A minute of small queries: the time goes into starting, planning and compiling.
JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SETTINGS: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    "spark.default.parallelism": "1",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


@contextmanager
def local_spark(scratch: Path) -> Iterator[SparkSession]:
    """A Spark session with Delta that keeps its files and its log under `scratch`.

    Delta's jars come from the folder that LAKE_TAILER_JARS names, or else through Spark's resolver.
    Raises `ConfigError` if Java or the jars are missing, or if Spark does not start.
    """
    if not (os.environ.get("JAVA_HOME") or shutil.which("java")):
        raise ConfigError("demo", "Java is not installed", "Install Java 17 or newer, or set JAVA_HOME.")
    builder = _builder(scratch)
    with _quiet():
        try:
            yield _start(builder, scratch / "spark.log")
        finally:
            _end()


def _start(builder: SparkSession.Builder, log: Path) -> SparkSession:
    try:
        with _uninterrupted(), _stderr_to(log):
            return builder.getOrCreate()
    except Exception as error:
        said = [line for line in log.read_text().splitlines() if line and not line.startswith("\tat ")]
        telling = [line for line in said if "Exception" in line] or said
        reason = f"Spark does not start: {' '.join(telling[-1:])}"
        remedy = f"It needs Java 17 or newer, and Delta's jars in {JARS_VARIABLE} or access to Maven Central."
        raise ConfigError("demo", reason, remedy) from error


def _builder(scratch: Path) -> SparkSession.Builder:
    for folder in ("local", "tmp"):
        (scratch / folder).mkdir()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_DIRS"] = str(scratch / "local")
    quiet = scratch / "log4j2.properties"
    quiet.write_text("rootLogger.level = error\n")
    places = f"-Djava.io.tmpdir={scratch / 'tmp'} -Dlog4j2.configurationFile={quiet.as_uri()}"
    builder = SparkSession.builder.master("local[*]").appName("lake-tailer demo")
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    builder = builder.config("spark.driver.extraJavaOptions", f"{JAVA_OPTIONS} {places}")
    builder = builder.config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
    folder = os.environ.get(JARS_VARIABLE, "")
    if not folder:
        return configure_spark_with_delta_pip(builder)
    jars = sorted(str(jar) for jar in Path(folder).glob("*.jar"))
    if not jars:
        raise ConfigError(JARS_VARIABLE, f"no jars in {folder}", "Run `make demo`, which fetches them, or unset it.")
    return builder.config("spark.jars", ",".join(jars))


def _end() -> None:
    """Stop Spark and its JVM, which PySpark would keep until this process ends."""
    gateway = SparkContext._gateway  # noqa: SLF001 - there is no public way to the JVM
    with suppress(Exception):
        if spark := SparkSession.getActiveSession():
            spark.stop()
    if gateway is None:
        return
    gateway.proc.stdin.close()
    try:
        gateway.proc.wait(END_S)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Defer Ctrl-C and SIGTERM: PySpark would lose track of a JVM that is starting."""
    came: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        came.append(number)

    kept = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        # Also in the place of the one that PySpark installs: when we are interrupted everything ends.
        for number, handle in kept.items():
            signal.signal(number, handle)
        if came:
            raise KeyboardInterrupt


@contextmanager
def _quiet() -> Iterator[None]:
    """Disable logging: py4j reports every connection that an interrupt breaks."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Redirect standard error to a file while the JVM starts, which inherits it."""
    kept = os.dup(2)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
