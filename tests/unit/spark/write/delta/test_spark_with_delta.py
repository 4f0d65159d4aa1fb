"""Completion of Spark's configuration for Delta, and the error for a session without it."""

from typing import Any

import pytest
from pyspark.errors import AnalysisException

from tailer.config.placement import SparkSettings
from tailer.errors import ConfigError
from tailer.spark.write.delta.spark_with_delta import check_delta, with_delta

EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"


def test_settings_are_completed() -> None:
    made = with_delta(SparkSettings(conf={"spark.executor.memory": "4g"})).conf
    assert made["spark.executor.memory"] == "4g"
    assert made["spark.sql.extensions"] == EXTENSION
    assert made["spark.sql.catalog.spark_catalog"] == CATALOG
    assert made["spark.jars.packages"].startswith("io.delta:delta-spark_4.2_2.13:")


def test_existing_settings_are_kept() -> None:
    given = {
        "spark.sql.extensions": "a.B",
        "spark.sql.catalog.spark_catalog": "c.D",
        "spark.jars.packages": "org.example:e:1",
    }
    made = with_delta(SparkSettings(conf=given)).conf
    assert made["spark.sql.extensions"] == f"a.B,{EXTENSION}"
    assert made["spark.sql.catalog.spark_catalog"] == "c.D"
    assert made["spark.jars.packages"].startswith("org.example:e:1,io.delta:")
    settings = SparkSettings(conf=made)
    assert with_delta(settings) == settings


@pytest.mark.parametrize("key", ["spark.jars", "spark.jars.packages"])
def test_jars_that_are_named_are_not_fetched(key: str) -> None:
    given = {key: "/jars/delta-spark_4.2_2.13-4.4.0.jar"}
    made = with_delta(SparkSettings(conf=given)).conf
    assert {name: made[name] for name in made if "jars" in name} == given


class Session:
    """A session with the used methods only: settings, and the error that loading from Delta raises."""

    def __init__(self, settings: dict[str, str], error: str) -> None:
        self._settings = settings
        self._error = error

    @property
    def conf(self) -> dict[str, str]:
        """Return the object with `get`."""
        return self._settings

    @property
    def read(self) -> Any:
        """Return the object with `format`."""
        return self

    def format(self, name: str) -> Any:
        """Return the object with `load`."""
        assert name == "delta"
        return self

    def load(self) -> None:
        """Raise the error: there is no path."""
        raise AnalysisException(self._error)


WITH_DELTA = {"spark.sql.extensions": EXTENSION, "spark.sql.catalog.spark_catalog": CATALOG}


def test_a_session_without_the_settings_is_refused_with_their_names() -> None:
    session: Any = Session({"spark.sql.extensions": EXTENSION}, "")
    with pytest.raises(ConfigError) as caught:
        check_delta(session)
    assert CATALOG in caught.value.hint
    assert EXTENSION not in caught.value.hint


def test_a_session_without_the_jars_is_refused() -> None:
    session: Any = Session(WITH_DELTA, "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: delta.")
    with pytest.raises(ConfigError, match="jars") as caught:
        check_delta(session)
    assert "spark.jars.packages" in caught.value.hint


def test_a_session_with_delta() -> None:
    session: Any = Session(WITH_DELTA, "'path' is not specified")
    check_delta(session)
