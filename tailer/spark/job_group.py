"""Groups of Spark's jobs, by which jobs are stopped from another thread."""

from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Final, TypeVar

import anyio
from anyio import to_thread
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tailer.engine.background import background

__all__ = ["SPARK_ERRORS", "STOP_AGAIN_S", "JobGroup", "run_stoppable"]

T = TypeVar("T")

SPARK_ERRORS: Final = (PySparkException, Py4JError, OSError)
STOP_AGAIN_S: Final = 0.2  # a job that reaches Spark only after the stop is stopped at the next try


class JobGroup:
    """The jobs that a thread starts inside the block. `name` must be unique; `description` is for Spark's pages."""

    def __init__(self, session: SparkSession, name: str, description: str) -> None:
        self._context = session.sparkContext
        self._name = name
        self._description = description

    def __enter__(self) -> "JobGroup":
        self._context.setJobGroup(self._name, self._description, interruptOnCancel=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with suppress(*SPARK_ERRORS):
            self._context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]

    def stop(self) -> None:
        """Stop the jobs that run now. Callable from any thread, any number of times."""
        with suppress(*SPARK_ERRORS):
            self._context.cancelJobGroup(self._name)


async def run_stoppable(run: Callable[[], T], stop: Callable[[], None]) -> T:
    """Return what `run` returns, in a worker thread. If cancelled, `stop` it and return when it has ended.

    `stop` is called again until then: a job that reaches Spark late is not stopped by the first call.
    """
    ended = anyio.Event()

    async def stop_when_cancelled() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                while not ended.is_set():
                    await to_thread.run_sync(stop)
                    with anyio.move_on_after(STOP_AGAIN_S):
                        await ended.wait()

    async with background() as group:
        group.start_soon(stop_when_cancelled)
        try:
            return await to_thread.run_sync(run)
        finally:
            ended.set()
