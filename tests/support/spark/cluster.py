"""Spark as several processes, from PySpark's own jars: a standalone cluster, and a Connect server.

A process has one classic session, and the tests' own is the shared one of `tests.conftest`. So the driver of a cluster
is a separate process, a `Driver`, that runs functions of the test modules. Clients of a Connect server need none.
"""

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar

import psutil  # type: ignore[import-untyped]
import pyspark
from pyspark.sql import SparkSession

from tailer.config.shapes import SparkSettings
from tailer.errors import TailerError
from tailer.spark.session import close_session, open_session
from tests.support.servers.guard import Guard
from tests.support.servers.ports import free_ports
from tests.support.spark.java import CLASS_PATH, shared_classes
from tests.tiers import using

__all__ = ["ConnectServer", "Driver", "SparkDownError", "StandaloneCluster"]

P = ParamSpec("P")
T = TypeVar("T")

PATIENCE_S: Final = 600
WORKERS: Final = 2
_HOST: Final = "127.0.0.1"
_JARS: Final = Path(pyspark.__file__).parent / "jars"
_SCALA: Final = next(_JARS.glob("spark-core_*.jar")).name.removeprefix("spark-core_").partition("-")[0]
_EXECUTOR: Final = "CoarseGrainedExecutorBackend"

# Packages of Java's modules that Spark's own scripts open.
_MODULES: Final = (
    *(
        f"--add-opens=java.base/{package}=ALL-UNNAMED"
        for package in (
            "java.lang",
            "java.lang.invoke",
            "java.lang.reflect",
            "java.io",
            "java.net",
            "java.nio",
            "java.util",
            "java.util.concurrent",
            "java.util.concurrent.atomic",
            "jdk.internal.ref",
            "sun.nio.ch",
            "sun.nio.cs",
            "sun.security.action",
            "sun.util.calendar",
        )
    ),
    "--add-modules=jdk.incubator.vector",
    "-Djdk.reflect.useDirectMethodHandle=false",
    "-Dio.netty.tryReflectionSetAccessible=true",
)
# The first compiler alone and the simple collector: not for measurements.
_SMALL_WORK: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:ReservedCodeCacheSize=128m")
_LOG4J: Final = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
"""


class SparkDownError(RuntimeError):
    """A server failed; the end of its log is in the message."""


class _Servers:
    """Spark's Java processes with their files below a directory; a context that ends with them."""

    def __init__(self, directory: Path) -> None:
        using("spark")
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._log4j = directory / "log4j2.properties"
        self._log4j.write_text(_LOG4J)
        self._guard = Guard()
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def java_options(self) -> str:
        """Return the Java options of executors and drivers in tests."""
        return f"-Dlog4j2.configurationFile={self._log4j.as_uri()} {' '.join((*_SMALL_WORK, *shared_classes()))}"

    def log(self, name: str) -> str:
        """Return a server's log."""
        return (self.directory / f"{name}.log").read_text(errors="replace")

    def close(self) -> None:
        """Stop everything; return when it is gone."""
        for name in tuple(self._running):
            self._stop(name)
        self._guard.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, name: str, main: str, *arguments: str, heap: str, options: Sequence[str] = ()) -> None:
        environment = {
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_HOME": str(_JARS.parent),
            "SPARK_LOCAL_IP": _HOST,
            "SPARK_LOCAL_DIRS": str(self.directory / "local"),
            # Otherwise workers look for it in a checkout of Spark.
            "SPARK_SCALA_VERSION": _SCALA,
        }
        command = ["java", f"-Xmx{heap}", *self.java_options.split(), *_MODULES, *options]
        command += ["-cp", os.pathsep.join(CLASS_PATH), main, *arguments]
        with (self.directory / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=self.directory)
        self._guard.watch(process.pid)
        self._running[name] = process

    def _stop(self, name: str) -> None:
        process = self._running.pop(name)
        # Executors are children of workers: after a worker's death they end by themselves, a little later.
        children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.wait()
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        psutil.wait_procs(children, timeout=PATIENCE_S)
        self._guard.forget(process.pid)

    def _await(self, name: str, happened: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not happened():
            if self._running[name].poll() is not None or time.monotonic() > deadline_s:
                raise SparkDownError(f"{name} did not start:\n{self.log(name)[-4000:]}")
            time.sleep(0.1)


class StandaloneCluster(_Servers):
    """A master and two workers of one core each, on loopback ports.

    `directory`: the folder for all files of the cluster, new or empty. Raises `SparkDownError`.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        (port,) = free_ports(1)
        self.master: Final = f"spark://{_HOST}:{port}"
        try:
            where = ("--host", _HOST, "--webui-port", "0")
            self._start("master", "org.apache.spark.deploy.master.Master", *where, "--port", str(port), heap="192m")
            self._await("master", lambda: _listens(port))
            for number in range(WORKERS):
                work = ("--cores", "1", "--memory", "1g", "--work-dir", str(directory / f"work-{number}"))
                main = "org.apache.spark.deploy.worker.Worker"
                self._start(f"worker-{number}", main, *where, *work, self.master, heap="192m")
        except BaseException:
            self.close()
            raise

    def settings(self, conf: Mapping[str, str] | None = None) -> SparkSettings:
        """Return the settings of a driver of this cluster, with `conf` over those of the tests."""
        ours = {
            "spark.driver.host": _HOST,
            "spark.driver.bindAddress": _HOST,
            "spark.driver.memory": "512m",
            "spark.driver.extraJavaOptions": self.java_options,
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.executor.extraJavaOptions": self.java_options,
            # Jobs begin when both executors are ready, so that tests know which one runs a task.
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{PATIENCE_S}s",
            "spark.cores.max": str(WORKERS),
            "spark.sql.warehouse.dir": str(self.directory / "warehouse"),
            "spark.ui.enabled": "false",
        }
        return SparkSettings(self.master, conf={**ours, **(conf or {})})

    def executor_pids(self) -> list[int]:
        """Return the processes of the present executors."""
        workers = [psutil.Process(each.pid) for name, each in self._running.items() if name.startswith("worker")]
        found = []
        for child in (child for worker in workers for child in worker.children()):
            with suppress(psutil.NoSuchProcess):
                if any(_EXECUTOR in word for word in child.cmdline()):
                    found.append(child.pid)
        return found

    def kill_executor(self, pid: int) -> None:
        """Kill one; return when it is gone. A worker starts another in its place."""
        with suppress(psutil.NoSuchProcess):
            executor = psutil.Process(pid)
            os.kill(pid, signal.SIGKILL)
            psutil.wait_procs([executor], timeout=PATIENCE_S)


class ConnectServer(_Servers):
    """A Spark Connect server with two cores of its own.

    `directory`: the folder for all its files, new or empty. `conf`: Spark's settings, over our own. Raises
    `SparkDownError`.
    """

    def __init__(self, directory: Path, conf: Mapping[str, str] | None = None) -> None:
        super().__init__(directory)
        (port,) = free_ports(1)
        self.remote: Final = f"sc://{_HOST}:{port}"
        ours = {
            "spark.master": "local[2]",
            "spark.connect.grpc.binding.address": _HOST,
            "spark.connect.grpc.binding.port": str(port),
            "spark.driver.host": _HOST,
            "spark.driver.bindAddress": _HOST,
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
            "spark.ui.enabled": "false",
        }
        options = tuple(f"-D{key}={value}" for key, value in {**ours, **(conf or {})}.items())
        try:
            main = "org.apache.spark.sql.connect.service.SparkConnectServer"
            self._start("connect", main, heap="1g", options=options)
            self._await("connect", lambda: _listens(port))
        except BaseException:
            self.close()
            raise


class Driver:
    """A process with a session, which runs functions of modules; a context that ends with both."""

    def __init__(self, settings: SparkSettings) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._process = ProcessPoolExecutor(1, spawn, _begin, (settings,))

    def start(
        self, function: Callable[Concatenate[SparkSession, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> "Future[T]":
        """Start `function(session, ...)` there; arguments and result are pickled."""
        return self._process.submit(_call, function, *args, **kwargs)  # type: ignore[arg-type]

    def call(self, function: Callable[Concatenate[SparkSession, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `function(session, ...)` there and return its result."""
        return self.start(function, *args, **kwargs).result(PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(Exception):
            self._process.submit(_end).result(PATIENCE_S)
        self._process.shutdown()


# In a driver's process: the session, or the error that prevented it.
_SESSIONS: Final[list[SparkSession | Exception]] = []


def _begin(settings: SparkSettings) -> None:
    try:
        _SESSIONS.append(open_session(settings))
    except TailerError as error:
        _SESSIONS.append(error)


def _call(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    session = _SESSIONS[0]
    if isinstance(session, Exception):
        raise session
    return function(session, *args, **kwargs)


def _end() -> None:
    session = _SESSIONS.pop()
    if not isinstance(session, Exception):
        close_session(session)


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex((_HOST, port)) == 0
