"""Comparisons of the daemon that executors share (`tailer.spark.native.shared_index`).

A comparison that is stopped, as when the daemon ends, stops its jobs.
"""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from threading import Event, Thread
from typing import Final
from uuid import uuid4

from pyspark.sql import SparkSession
from typing_extensions import override

from tailer.changelog.equal_rows.port import SharedIndexes, Stopped
from tailer.changelog.equal_rows.row_index import RowIndex
from tailer.errors import EngineUnavailable
from tailer.plan import ChangePlan
from tailer.read.data_files import LOCAL, DataFiles
from tailer.spark.job_group import SPARK_ERRORS, STOP_AGAIN_S, JobGroup
from tailer.spark.native import comparing
from tailer.spark.native.shared_index import SharedIndex
from tailer.spark.session import engine_name, first_sentence

__all__ = ["SparkComparisons"]

DESCRIPTION: Final = "lake-tailer: rows that did not change"


class SparkComparisons(SharedIndexes):
    """`tailer.changelog.equal_rows.port.SharedIndexes` of a session, whose executors open files with `files`.

    `session` is called in a worker thread, because Spark may have to start first.
    """

    def __init__(self, session: Callable[[], SparkSession], files: DataFiles = LOCAL) -> None:
        self._session = session
        self._files = files

    @override
    def is_worth(self, plan: ChangePlan) -> bool:
        if plan.size_bytes < comparing.SHARED_BYTES:
            return False
        session = self._session()
        try:
            return comparing.is_worth(session, [plan])
        except SPARK_ERRORS as error:
            raise EngineUnavailable(engine_name(session), first_sentence(error)) from error

    @contextmanager
    @override
    def index(self, local: RowIndex) -> Iterator[SharedIndex]:
        session = self._session()
        group = JobGroup(session, f"lake-tailer-{uuid4()}", DESCRIPTION)
        try:
            with (
                group,
                _stopping(local, group),
                closing(SharedIndex(session, local, comparing.FEW_ROWS, self._files)) as index,
            ):
                yield index
        except SPARK_ERRORS as error:
            if local.stopped:
                raise Stopped from None
            raise EngineUnavailable(engine_name(session), first_sentence(error)) from error


@contextmanager
def _stopping(local: RowIndex, group: JobGroup) -> Iterator[None]:
    """Stop the jobs of `group` when `local` is stopped."""
    ended = Event()

    def watch() -> None:
        while not ended.wait(STOP_AGAIN_S):
            if local.stopped:
                group.stop()

    watcher = Thread(target=watch, name="tailer-comparison", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
