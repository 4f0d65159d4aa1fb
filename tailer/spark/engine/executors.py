"""Runs functions on executors and returns their results in order; the only module that knows how Spark does this.

A job is an RDD with one partition for each item. A task returns bytes, or the error that `work` raised. The error is
raised on the driver with its class and fields. Spark does not repeat that task, because only the pipeline retries.
Spark does repeat tasks of a lost executor, and may run a task twice at once: one answer of each item arrives.

Items are divided into jobs, several of which run at the same time. The next jobs have begun while the results of one
are consumed, so no core waits for the driver. At most a window of two items for each core is held. Within the window
Spark may run items in any order. Measured on 2 cores: Spark needs 30 ms for each task and each job.
"""

import logging
import pickle
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from itertools import groupby
from operator import itemgetter
from threading import Lock
from typing import Any, Final, Generic, TypeVar
from uuid import uuid4

from pyspark import cloudpickle
from pyspark.sql import SparkSession

from tailer.config.shapes import SparkSettings
from tailer.errors import ConfigError, EngineUnavailable, TailerError
from tailer.spark.release import SameRelease, our_task, unfit_executors
from tailer.spark.session import SPARK_ERRORS, close_session, engine_name, first_sentence, is_alive, open_session

__all__ = ["Executors", "Run", "SharedSpark"]

T = TypeVar("T")
Work = Callable[[T], Iterator[bytes]]

# A window has two items for each core, in at most so many jobs: as few as keep the cores busy, for each job costs.
JOBS: Final = 8
ITEMS_PER_CORE: Final = 2
# A job that reaches Spark only after its group was cancelled is cancelled at the next try.
CANCEL_AGAIN_S: Final = 0.2
DESCRIPTION: Final = "lake-tailer: rows of changes"

# Kinds of answers: a chunk, a pickled error, or the end of an item. An item without its end was cut off: if a JVM
# is killed while it hands over results, PySpark takes the part that arrived for all of them.
CHUNK: Final = 0
FAILURE: Final = 1
DONE: Final = 2

# The item's number in the job, the kind of answer, and the data.
Answer = tuple[int, int, bytes]
_ERRORS: Final = (*SPARK_ERRORS, EOFError)


class Executors:
    """The executors of a session, for any number of concurrent runs. `close` it when done."""

    def __init__(self, session: SparkSession) -> None:
        self._jobs = _Jobs(session)
        self._threads = ThreadPoolExecutor(JOBS, "spark-job")
        self._runs: set[Run[Any]] = set()

    @property
    def parallelism(self) -> int:
        """The number of tasks that run in parallel, as far as Spark knows now. Raises `EngineUnavailable`."""
        try:
            return max(1, self._jobs.parallelism())
        except _ERRORS as error:
            raise self._jobs.translate(error) from error

    def run(self, work: Work[T], items: Sequence[T]) -> "Run[T]":
        """Run `work` for each of `items` on executors, in parallel.

        `work` and the items must survive pickling; `work` is best a function of a module that executors have. Raises
        `EngineUnavailable`; all other errors are raised by the result.
        """
        run = Run(self._jobs, self._threads, work, items, self.parallelism * ITEMS_PER_CORE)
        self._runs = {old for old in self._runs if not old.is_over} | {run}
        return run

    def cancel(self) -> None:
        """Close all open runs. Callable from any thread."""
        for run in tuple(self._runs):
            run.close()

    def close(self) -> None:
        """Close all runs and release the threads; the session stays open."""
        self.cancel()
        self._threads.shutdown()


class Run(Iterator[list[bytes]], Generic[T]):
    """The results of items, one list of chunks for each, in the order of the items.

    Nothing begins before the first `next`, which blocks until the next item is done. It raises the error of an item in
    place of its result, after which the run is over. It raises `ConfigError` if executors cannot run our code at all,
    `EngineUnavailable` if Spark gave up, and `CancelledError` after `close`. A run that is not iterated to its end must
    be closed.
    """

    def __init__(
        self, jobs: "_Jobs", threads: ThreadPoolExecutor, work: Work[T], items: Sequence[T], window: int
    ) -> None:
        self._jobs = jobs
        self._threads = threads
        self._work = work
        self._items = items
        self._window = window
        self._size = -(-window // JOBS)
        self._group = f"lake-tailer-{uuid4()}"
        self._begun = 0
        self._given = 0
        self._running: deque[Future[list[Answer]]] = deque()
        self._ready: deque[list[Answer]] = deque()
        self._lock = Lock()
        self._closed = False

    @property
    def is_over(self) -> bool:
        """Return whether there are no more results."""
        return self._closed or self._given == len(self._items)

    def __next__(self) -> list[bytes]:
        if self._closed:
            raise CancelledError
        while not self._ready:
            if self._given == len(self._items):
                raise StopIteration
            self._begin()
            first = self._running[0]
            try:
                answers = first.result()
            except _ERRORS as error:
                raise self._end(error) from error
            self._running.popleft()
            # An item without an answer has an empty group.
            by_item = {item: list(group) for item, group in groupby(answers, itemgetter(0))}
            size = min(self._size, len(self._items) - self._given)
            self._ready.extend(by_item.get(item, []) for item in range(size))
        *chunks, (_, kind, data) = self._ready.popleft() or [(0, CHUNK, b"")]
        if kind != DONE:
            self.close()
            if kind != FAILURE:
                raise self._jobs.translate(EOFError("results were cut off"))
            raised, trace = pickle.loads(data)
            if trace:
                raised.add_note(f"On an executor:\n{trace}")
            raise raised
        self._given += 1
        if not self.is_over:
            self._begin()
        return [chunk for _, _, chunk in chunks]

    def close(self) -> None:
        """Stop the jobs and return when they have ended. Callable from any thread, any number of times."""
        with self._lock:
            self._closed = True
            running = [job for job in self._running if not job.cancel()]
        while wait(running, timeout=0).not_done:
            with suppress(*_ERRORS):
                self._jobs.cancel(self._group)
            wait(running, timeout=CANCEL_AGAIN_S)

    def _begin(self) -> None:
        """Start as many jobs as the window allows."""
        with self._lock:
            if self._closed:
                raise CancelledError
            while self._begun < len(self._items) and self._begun - self._given + self._size <= self._window:
                items = self._items[self._begun : self._begun + self._size]
                self._running.append(self._threads.submit(self._collect, items))
                self._begun += len(items)

    def _collect(self, items: Sequence[T]) -> list[Answer]:
        if self._closed:
            raise CancelledError
        return self._jobs.collect(self._group, self._work, items)

    def _end(self, error: Exception) -> BaseException:
        """Close the run after an error of Spark. Return what to raise: the run may have been closed before."""
        was_closed = self._closed
        self.close()
        return CancelledError() if was_closed else self._jobs.translate(error)


class _Jobs:
    """The jobs of a session that run functions on executors."""

    def __init__(self, session: SparkSession) -> None:
        self._context = session.sparkContext
        self._name = engine_name(session)

    def parallelism(self) -> int:
        """Return the number of tasks that run in parallel."""
        return self._context.defaultParallelism

    def collect(self, group: str, work: Work[Any], items: Sequence[Any]) -> list[Answer]:
        """Run one job of the group, with a task for each item. Return its answers in the order of items."""
        # The group is a property of the thread, in Python and in Spark.
        self._context.setJobGroup(group, DESCRIPTION, interruptOnCancel=True)
        partitions = self._context.parallelize(items, len(items))
        return partitions.mapPartitionsWithIndex(partial(_answer, SameRelease(), work)).collect()

    def cancel(self, group: str) -> None:
        """Stop the running jobs of the group."""
        self._context.cancelJobGroup(group)

    def translate(self, error: Exception) -> TailerError:
        """Return one of Spark's errors as one of ours."""
        text = str(error)
        if (unfit := unfit_executors(text)) is not None:
            return unfit
        if "PYTHON_VERSION_MISMATCH" in text:
            remedy = "Let PYSPARK_PYTHON name a Python of our minor version on all of their machines."
            return ConfigError("spark", "executors run another Python than this process", remedy)
        if "spark.driver.maxResultSize" in text:
            reason = "is less than what the executors of this cluster make at a time"
            return ConfigError("spark.driver.maxResultSize", reason, "Set a larger one in the table [spark.conf].")
        return EngineUnavailable(self._name, first_sentence(error))


def _answer(_: SameRelease, work: Work[Any], item_number: int, items: Iterable[Any]) -> Iterator[Answer]:
    """Yield the answers of an executor for one item. The release was checked when it was unpickled."""
    try:
        with our_task():
            for item in items:
                for chunk in work(item):
                    yield item_number, CHUNK, chunk
        yield item_number, DONE, b""
    except Exception as error:  # noqa: BLE001 - whatever it is, it is raised on the driver
        yield item_number, FAILURE, _pack_error(error)


def _pack_error(error: Exception) -> bytes:
    trace = "" if isinstance(error, TailerError) else "".join(traceback.format_exception(error))
    try:
        packed: bytes = cloudpickle.dumps((error, trace))  # type: ignore[no-untyped-call]
        pickle.loads(packed)
    except Exception:  # noqa: BLE001 - an exception of any class may do anything when pickled
        packed = pickle.dumps((RuntimeError(f"{type(error).__name__}: {error}"), trace))
    return packed


_log = logging.getLogger(__name__)


class SharedSpark:
    """A session with `settings`, and its executors. Methods block; several threads may call them."""

    def __init__(self, settings: SparkSettings) -> None:
        self._settings = settings
        self._turn = Lock()
        self._session: SparkSession | None = None
        self._executors: Executors | None = None

    def session(self) -> SparkSession:
        """Return the session when Spark is up. Raises `ConfigError` and `EngineUnavailable`."""
        with self._turn:
            if self._session is not None and not is_alive(self._session):
                self._close()
            if self._session is None:
                self._session = open_session(self._settings)
                _log.info("%s is up", engine_name(self._session))
            return self._session

    def executors(self) -> Executors:
        """Return the session's executors. Blocks and raises as `session` does."""
        session = self.session()
        with self._turn:
            if self._executors is None:
                self._executors = Executors(session)
            return self._executors

    def close(self) -> None:
        """Stop everything that was started."""
        with self._turn:
            self._close()

    def _close(self) -> None:
        session, executors = self._session, self._executors
        self._session = self._executors = None
        if executors is not None:
            executors.close()
        if session is not None:
            close_session(session)
