"""Spark sessions as configured, with a driver in this process, and groups of their jobs.

A process has one Spark. If one already runs (a user's driver, a notebook) and matches the settings, it is used, and
left running afterwards. A session that does not match is never changed or stopped.

How executors get lake-tailer: with a `local` master they run this interpreter (`PYSPARK_PYTHON` is set to it unless it
is set), so they have the same packages. On a cluster the driver's variable `PYSPARK_PYTHON` names a Python on the
executors' machines. It must have the same minor version, and lake-tailer in its environment: an image, a path on every
machine, or a packed environment in `spark.archives` (`env.tar.gz#env`, and `PYSPARK_PYTHON=env/bin/python`). Spark
plans Python data sources with that same Python on the driver, so the path must exist in the driver's folder, too. The
wheel alone, in `spark.submit.pyFiles`, suffices if the environment has all of its dependencies: lake-tailer is pure
Python, but pyarrow, pyroaring, duckdb and msgspec are not. PySpark imports from files named `.zip`, not from `.whl`, so
the wheel is renamed.
Executors with another release of lake-tailer than the driver are refused (`tailer.spark.release`).

Secrets: settings that Spark itself would redact (`spark.redaction.regex`) are kept off the command line of the driver's
JVM, where PySpark puts all settings. No error contains the value of a setting.
"""

import os
import re
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Final, TypeVar
from weakref import WeakSet

import anyio
from anyio import to_thread
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from tailer.config.shapes import SparkSettings
from tailer.engine import background
from tailer.errors import ConfigError, EngineUnavailable

__all__ = [
    "SPARK_ERRORS",
    "STOP_AGAIN_S",
    "JobGroup",
    "close_session",
    "engine_name",
    "first_sentence",
    "is_alive",
    "open_session",
    "run_stoppable",
]

T = TypeVar("T")

SPARK_ERRORS: Final = (PySparkException, Py4JError, OSError)
# The progress bar is for people who wait for one job; we run many, and need the terminal.
DEFAULTS: Final = {"spark.app.name": "lake-tailer", "spark.ui.showConsoleProgress": "false"}
STOP_AGAIN_S: Final = 0.2  # a job that reaches Spark only after the stop is stopped at the next try
# Spark's own default.
_SECRET: Final = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)
_OURS: Final[WeakSet[SparkSession]] = WeakSet()


def open_session(settings: SparkSettings) -> SparkSession:
    """Open a session and block until Spark is up, which may take a minute. Call `close_session` when done.

    Raises `ConfigError` if a person must act and `EngineUnavailable` if Spark cannot be reached.
    """
    if "SPARK_REMOTE" in os.environ:
        reason = "makes every session one of Spark Connect"
        raise ConfigError("environment SPARK_REMOTE", reason, "Unset it, and set master in the table [spark].")
    # PySpark keeps calling a killed JVM for as long as the process lives.
    process = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001 - no public API
    if process is not None and process.poll() is not None:
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None  # noqa: SLF001
        SparkSession._instantiatedSession = SparkSession._activeSession = None  # noqa: SLF001
    if SparkContext._active_spark_context is not None:  # noqa: SLF001 - the public API knows only sessions of this thread
        return _use_running(SparkSession(SparkContext.getOrCreate()), settings)
    if settings.master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    wanted = {**DEFAULTS, **settings.conf, "spark.master": settings.master}
    if "JAVA_HOME" not in os.environ and shutil.which("java") is None:
        raise _no_java("is not on the PATH, and JAVA_HOME is not set")
    try:
        # Secret settings are kept off the JVM's command line.
        public = [(key, value) for key, value in wanted.items() if not _SECRET.search(key)]
        open_ones = SparkConf(loadDefaults=False).setAll(public)
        gateway = None if SparkContext._gateway else launch_gateway(open_ones)  # type: ignore[no-untyped-call]  # noqa: SLF001
        settled = SparkConf(loadDefaults=False).setAll(list(wanted.items()))
        session = SparkSession(SparkContext(conf=settled, gateway=gateway))
    except SPARK_ERRORS as error:
        raise _not_started(error, settings) from None
    _OURS.add(session)
    return session


def close_session(session: SparkSession) -> None:
    """Stop a session that `open_session` started. Earlier sessions are left alone; a second call does nothing."""
    if session not in _OURS:
        return
    _OURS.discard(session)
    try:
        session.stop()
    except SPARK_ERRORS:
        # Its JVM is gone: nothing is left to stop.
        return


def is_alive(session: SparkSession) -> bool:
    """Return whether the session still answers; blocks for as long as a call of the JVM takes."""
    try:
        context = session.sparkContext
        return context._jsc is not None and not context._jsc.sc().isStopped()  # noqa: SLF001 - no public API
    except (Py4JError, OSError):
        return False


def engine_name(session: SparkSession) -> str:
    return f"Spark at {session.sparkContext.master}"


def first_sentence(error: Exception) -> str:
    """Return the text of one of Spark's errors without stack traces; it may contain values of settings.

    For an exception of Python on an executor it is the last line of its traceback, which says what it was.
    """
    text = str(error)
    raised = re.search(r"^\w.*$", text.partition("Traceback (most recent call last):")[2], re.MULTILINE)
    if raised is not None:
        return raised[0][:500]
    if isinstance(error, Py4JJavaError):
        # Below "An error occurred while calling ...": the class of the exception and its message.
        text = text.partition("\n: ")[2] or text
    text = re.sub(r"^(?:[\w$]+\.)+[\w$]+(?:Exception|Error): ", "", text.strip())
    return text.partition("\n")[0].partition("Driver stacktrace:")[0].strip()[:500]


def _use_running(running: SparkSession, settings: SparkSettings) -> SparkSession:
    """Return the session that is already running. Raises `ConfigError` if it does not match the settings."""
    there = running.sparkContext.getConf()
    if (master := running.sparkContext.master) != settings.master:
        reason = f"Spark runs in this process already, at {master}"
        raise ConfigError("spark.master", reason, f'Set master = "{master}", or stop that session first.')
    for key, value in settings.conf.items():
        if value not in (there.get(key), running.conf.get(key, None)):
            reason = "Spark runs in this process already, with another value"
            raise ConfigError(f"spark.conf.{key}", reason, "Set it where that session is made, and leave it out here.")
    return running


def _not_started(error: Exception, settings: SparkSettings) -> ConfigError | EngineUnavailable:
    text = str(error)
    if "JAVA_GATEWAY_EXITED" in text or isinstance(error, OSError):
        fetched = settings.conf.get("spark.jars.packages")
        more = f' If it could not fetch {fetched}, give its jars as "spark.jars".' if fetched else ""
        return _no_java("did not start; what it said is in the log", more)
    if "Could not parse Master URL" in text or "Master must either be" in text:
        remedy = 'Give "local[*]", "spark://HOST:7077", "yarn" or "k8s://...".'
        return ConfigError("spark.master", "is not the address of a cluster", remedy)
    if "IllegalArgumentException" in text or "SparkIllegalArgument" in text:
        return ConfigError("spark.conf", _without_values(first_sentence(error), settings), "Correct the setting.")
    return EngineUnavailable(f"Spark at {settings.master}", _without_values(first_sentence(error), settings))


def _no_java(reason: str, more: str = "") -> ConfigError:
    remedy = f"Install Java 17 or newer, or set JAVA_HOME.{more}"
    return ConfigError("engine", f"Spark needs Java, which {reason}", remedy)


def _without_values(text: str, settings: SparkSettings) -> str:
    for key, value in settings.conf.items():
        if value and _SECRET.search(key):
            text = text.replace(value, "***")
    return text


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
