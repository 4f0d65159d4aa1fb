"""The reference implementation as a test oracle: one local Spark with Delta, with the same settings in every suite.

Its jars were fetched by `make` and are passed to Spark file by file. Spark's own resolver is not used: it needs the
network at every start and fails with a local Maven repository that has a pom without its jar.
"""

import atexit
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from tests.jars.where import jars_dir
from tests.tiers import using

__all__ = ["build_spark", "delta_conf", "delta_jars"]

_DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
_SETTINGS = {
    **_DELTA,
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
    # Tests vacuum files that are seconds old, on purpose.
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
    # Over TCP each Python task loses 40 ms (delayed ACK).
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}

# Important events are exceptions. Without an appender Spark falls back to its verbose defaults.
_LOG4J = """\
rootLogger.level = fatal
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
"""


class MissingJarsError(RuntimeError):
    """The Java libraries of Delta have not been fetched."""


def delta_jars() -> list[Path]:
    """Return every jar that Spark needs for Delta beyond its own."""
    jars = sorted(jars_dir().glob("*.jar"))
    if not jars:
        message = f"no jars in {jars_dir()}: `make setup` fetches them"
        raise MissingJarsError(message)
    return jars


def delta_conf() -> dict[str, str]:
    """Return the settings with which any Spark writes to Delta tables."""
    return {**_DELTA, "spark.jars": ",".join(map(str, delta_jars()))}


def build_spark(scratch: Path, master: str = "local[2]", jars: Sequence[Path] = ()) -> SparkSession:
    """Build a Spark session with all files under `scratch`, and `jars` in addition to Delta's. The caller stops it."""
    using("spark")
    os.environ["PYSPARK_PYTHON"] = str(_python(scratch / "python"))
    os.environ["SPARK_LOCAL_DIRS"] = str(scratch / "local")
    quiet = scratch / "log4j2.properties"
    quiet.write_text(_LOG4J)
    builder = SparkSession.builder.master(master).appName("lake-tailer tests")
    for key, value in _SETTINGS.items():
        builder = builder.config(key, value)
    return (
        builder.config("spark.jars", ",".join(str(jar) for jar in (*delta_jars(), *jars)))
        .config("spark.python.unix.domain.socket.dir", _sockets())
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config(
            "spark.driver.extraJavaOptions",
            f"-Dderby.system.home={scratch / 'derby'} -Dlog4j2.configurationFile={quiet.as_uri()}",
        )
        .getOrCreate()
    )


def _python(path: Path) -> Path:
    """Write the command for Spark's Python processes: this Python, without Spark's archives before its packages.

    The archives have no bytecode, so each process would compile what it imports from them: two thirds of its start. On
    a busy machine that is longer than the ten seconds that Spark waits for one.
    """
    archives = ("*/pyspark.zip:", "*-src.zip:")
    stripped = "\n".join(f'PYTHONPATH="${{PYTHONPATH#{each}}}"' for each in archives)
    path.write_text(f'#!/bin/sh\n{stripped}\nexec {shlex.quote(sys.executable)} "$@"\n')
    path.chmod(0o755)
    return path


def _sockets() -> str:
    """Make a folder for sockets, with a short name: their paths have 108 characters at most."""
    path = tempfile.mkdtemp(prefix="spark-")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path
