"""Spark with Delta: the session settings that let executors write to Delta tables.

Spark needs two settings and jars for Delta. `with_delta` completes the settings of a configuration. Jars are not
fetched if `spark.jars` names them or they are among Spark's own. A session that already runs must have both:
`check_delta` verifies this before anything is written.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Final

import pyspark
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tailer.config.placement import SparkSettings
from tailer.errors import ConfigError

__all__ = ["check_delta", "with_delta"]

EXTENSIONS: Final = "spark.sql.extensions"
CATALOG: Final = "spark.sql.catalog.spark_catalog"
JARS: Final = ("spark.jars", "spark.jars.packages")
DELTA_EXTENSION: Final = "io.delta.sql.DeltaSparkSessionExtension"
DELTA_CATALOG: Final = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
_SCALA: Final = "2.13"
_IS_DELTA: Final = re.compile(r"delta-spark")


def with_delta(settings: SparkSettings) -> SparkSettings:
    """Add the settings that Delta needs, unless they are given."""
    conf = dict(settings.conf)
    extensions = [name for name in conf.get(EXTENSIONS, "").split(",") if name.strip()]
    if DELTA_EXTENSION not in extensions:
        conf[EXTENSIONS] = ",".join([*extensions, DELTA_EXTENSION])
    conf.setdefault(CATALOG, DELTA_CATALOG)
    if not _has_jars(conf):
        packages = [name for name in conf.get(JARS[1], "").split(",") if name.strip()]
        conf[JARS[1]] = ",".join([*packages, delta_package()])
    return replace(settings, conf=conf)


def delta_package() -> str:
    """Return the Maven coordinates of Delta for this PySpark."""
    spark = ".".join(pyspark.__version__.split(".")[:2])
    return f"io.delta:delta-spark_{spark}_{_SCALA}:{version('delta-spark')}"


def check_delta(session: SparkSession) -> None:
    """Raise `ConfigError`, naming the settings, if the session cannot write to Delta tables. Blocks."""
    lacking = [
        f'"{key}" = "{value}"'
        for key, value in ((EXTENSIONS, DELTA_EXTENSION), (CATALOG, DELTA_CATALOG))
        if value not in str(session.conf.get(key, ""))
    ]
    if lacking:
        raise _without_delta("Spark was started without Delta's extension", f"Set {' and '.join(lacking)}")
    try:
        # Without a path nothing can be loaded, but only Delta itself, if present, reports that.
        session.read.format("delta").load()
    except (PySparkException, Py4JError) as error:
        if "DATA_SOURCE_NOT_FOUND" in str(error) or "ClassNotFound" in str(error):
            raise _without_delta("Spark does not have Delta's jars", f'Set "{JARS[1]}" = "{delta_package()}"') from None


def _without_delta(reason: str, remedy: str) -> ConfigError:
    return ConfigError("spark.conf", reason, f"{remedy} in [spark.conf], or where the session is started.")


def _has_jars(conf: Mapping[str, str]) -> bool:
    """Return whether the configuration, or PySpark itself, has Delta's jars."""
    if any(_IS_DELTA.search(conf.get(key, "")) for key in JARS):
        return True
    own = Path(pyspark.__file__).parent / "jars"
    return any(_IS_DELTA.match(jar.name) for jar in own.glob("delta-*.jar"))
