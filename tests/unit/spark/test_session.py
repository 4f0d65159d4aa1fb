"""Errors of Spark in the words of lake-tailer, and sessions that are refused. No Spark is started."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.clientserver import ClientServer
from pyspark.errors import PySparkRuntimeError

import tailer.spark
from tailer.config.shapes import SparkSettings
from tailer.errors import ConfigError
from tailer.spark.session import _not_started, first_sentence

TRACEBACK = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "worker.py", line 1, in main
    process()
tailer.errors.DataCorrupt: part-0.parquet: a page is damaged

\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1)
"""


def test_an_exception_of_python_is_named() -> None:
    assert first_sentence(RuntimeError(TRACEBACK)) == "tailer.errors.DataCorrupt: part-0.parquet: a page is damaged"


def test_other_errors_lose_their_class_and_their_stack() -> None:
    error = RuntimeError("org.apache.spark.SparkException: Job aborted. Driver stacktrace:\n\tat a.b(c.scala:1)")
    assert first_sentence(error) == "Job aborted."


def test_java_that_ends_may_lack_packages() -> None:
    ended = PySparkRuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number.")
    assert _not_started(ended, SparkSettings()).hint == "Install Java 17 or newer, or set JAVA_HOME."
    settings = SparkSettings(conf={"spark.jars.packages": "a:b:1"})
    given = 'If it could not fetch a:b:1, give its jars as "spark.jars".'
    assert given in _not_started(ended, settings).hint


CALLS: list[Callable[[Any], object]] = [
    lambda session: tailer.spark.changes(session, "orders"),
    lambda session: tailer.spark.follow(session, "orders", lambda *_: None),
]


@pytest.mark.parametrize(
    ("session", "said"),
    [
        (SimpleNamespace(), "Spark Connect"),
        (SimpleNamespace(_jsparkSession=None, version="4.3.0"), r"Spark 4\.3\.0"),
    ],
)
@pytest.mark.parametrize("call", CALLS)
def test_other_sessions_have_the_data_source_alone(call: Callable[[Any], object], session: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        call(session)
    assert 'format("tailer")' in refused.value.hint


@pytest.mark.parametrize("setting", ["PYSPARK_PIN_THREAD", "enableSourceEvolution"])
def test_a_setting_that_keeps_spark_from_calling_python_is_named(setting: str) -> None:
    gateway = None if setting == "PYSPARK_PIN_THREAD" else object.__new__(ClientServer)
    conf = {"spark.sql.streaming.queryEvolution.enableSourceEvolution": "true"}
    context = SimpleNamespace(_gateway=gateway)
    session: Any = SimpleNamespace(_jsparkSession=None, version="4.2.0", sparkContext=context, conf=conf)
    with pytest.raises(ConfigError) as refused:
        tailer.spark.follow(session, "orders", lambda *_: None)
    assert setting in refused.value.where
