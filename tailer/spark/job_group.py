"""Groups of Spark's jobs, by which jobs are stopped from another thread."""

from contextlib import suppress
from types import TracebackType
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tailer.spark.session import is_remote

__all__ = ["SPARK_ERRORS", "STOP_AGAIN_S", "JobGroup"]

SPARK_ERRORS: Final = (PySparkException, Py4JError, OSError)
STOP_AGAIN_S: Final = 0.2  # a job that reaches Spark only after the stop is stopped at the next try


class JobGroup:
    """The jobs that a thread starts inside the block. `name` must be unique; `description` is for Spark's pages."""

    def __init__(self, session: SparkSession, name: str, description: str) -> None:
        self._session = session
        self._name = name
        self._description = description

    def __enter__(self) -> "JobGroup":
        if is_remote(self._session):
            self._session.addTag(self._name)
        else:
            self._session.sparkContext.setJobGroup(self._name, self._description, interruptOnCancel=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with suppress(*SPARK_ERRORS):
            if is_remote(self._session):
                self._session.removeTag(self._name)
            else:
                self._session.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]

    def stop(self) -> None:
        """Stop the jobs that run now. Callable from any thread, any number of times."""
        with suppress(*SPARK_ERRORS):
            if is_remote(self._session):
                self._session.interruptTag(self._name)
            else:
                self._session.sparkContext.cancelJobGroup(self._name)
