"""A SIGKILL of an executor in the middle of a stage: a thread in the driver's process watches stages and kills.

The driver sees within milliseconds what runs. A process beside it would come too late for short stages.
"""

import os
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Final, Self

import psutil  # type: ignore[import-untyped]
from pyspark import SparkStageInfo
from pyspark.sql import SparkSession

from tests.support.waiting import until

__all__ = ["WATCHED", "StageKiller", "await_executors"]

WATCHED: Final = {"spark.ui.liveUpdate.period": "0"}
"""Settings that make Spark's status fresh: by default it is up to 100 ms old."""

PATIENCE_S: Final = 600
_POLL_S: Final = 0.002

Wanted = Callable[[SparkStageInfo, bool], bool]


class StageKiller:
    """Kills one executor of `pids` while a stage runs that `wanted` accepts; a context.

    `wanted` also gets whether the stage reads what other stages have shuffled. `killed`: whether it happened.
    """

    def __init__(self, session: SparkSession, pids: Sequence[int], wanted: Wanted) -> None:
        self._context = session.sparkContext
        self._ports = {port: pid for pid in pids for port in _ports(pid)}
        self._wanted = wanted
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stage-killer")
        self.killed = False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        tracker = self._context.statusTracker()
        while not self.killed and not self._over.wait(_POLL_S):
            jobs = [job for number in tracker.getActiveJobsIds() if (job := tracker.getJobInfo(number)) is not None]
            for number in tracker.getActiveStageIds():
                stage = tracker.getStageInfo(number)
                shuffles = any(number != min(job.stageIds) for job in jobs if number in job.stageIds)
                if stage is not None and stage.numActiveTasks and self._wanted(stage, shuffles) and self._kill():
                    self.killed = True
                    return

    def _kill(self) -> bool:
        """Kill an executor that is running a task; return whether there was one."""
        for executor in self._context._jsc.sc().statusTracker().getExecutorInfos():
            if executor.numRunningTasks() and (pid := self._ports.get(executor.port())):
                os.kill(pid, signal.SIGKILL)
                return True
        return False


def await_executors(session: SparkSession, count: int) -> None:
    """Return when the session has so many executors."""
    # The driver is one of them.
    until(lambda: session.sparkContext._jsc.sc().getExecutorMemoryStatus().size() > count)


def _ports(pid: int) -> list[int]:
    try:
        connections = psutil.Process(pid).net_connections("tcp")
    except psutil.NoSuchProcess:
        return []  # of a driver that is gone
    return [each.laddr.port for each in connections if each.status == psutil.CONN_LISTEN]
