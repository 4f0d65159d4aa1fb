"""Spark's event log: the tasks that ran, how each ended, and what it cost."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

__all__ = ["LOST", "Stage", "event_log_settings", "stages", "writing_event_log"]

LOST: Final = "ExecutorLostFailure"
"""The reason that Spark gives for a task whose executor died while it ran."""


@dataclass
class Stage:
    """The tasks of a stage, all attempts together, and their costs.

    `ends`: how often tasks ended for each reason. `shuffles`: whether it reads what other stages have shuffled.
    """

    name: str = ""
    shuffles: bool = False
    begun_ms: int = 0
    ends: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    wall_ms: int = 0  # from the first submission to the last completion
    run_ms: int = 0
    cpu_ms: float = 0.0
    shuffled_bytes: int = 0
    shuffled_rows: int = 0
    spilled_bytes: int = 0
    result_bytes: int = 0


def event_log_settings(folder: Path) -> Mapping[str, str]:
    """Return the settings with which a driver writes its log to `folder`, as plain text in one file."""
    folder.mkdir(parents=True, exist_ok=True)
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": folder.as_uri(),
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
    }


@contextmanager
def writing_event_log(spark: SparkSession, folder: Path) -> Iterator[None]:
    """Write the log of a driver of this process to `folder`, as long as the block runs."""
    context, java = spark.sparkContext._jsc.sc(), spark.sparkContext._jvm
    assert java is not None
    settings = context.getConf()
    for name, value in event_log_settings(folder).items():
        settings.set(name, value)
    log = java.org.apache.spark.scheduler.EventLoggingListener(
        "tests", java.scala.Option.empty(), java.java.net.URI(folder.as_uri()), settings, context.hadoopConfiguration()
    )
    log.start()
    context.addSparkListener(log)
    try:
        yield
        context.listenerBus().waitUntilEmpty()
    finally:
        context.removeSparkListener(log)
        log.stop()


def stages(folder: Path) -> dict[int, Stage]:
    """Return the stages of all drivers that have written their log to `folder`, also of one that still runs."""
    found: dict[int, Stage] = defaultdict(Stage)
    for event in _events(folder):
        if event["Event"] == "SparkListenerTaskEnd":
            _count(found[event["Stage ID"]], event)
        elif event["Event"] == "SparkListenerStageCompleted":
            info = event["Stage Info"]
            stage = found[info["Stage ID"]]
            stage.name, stage.shuffles = info["Stage Name"], bool(info["Parent IDs"])
            stage.begun_ms = stage.begun_ms or info.get("Submission Time", 0)
            stage.wall_ms += info.get("Completion Time", 0) - info.get("Submission Time", 0)
    return dict(found)


def _events(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue  # checksums
        for line in path.read_text().splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                break  # the line that is being written


def _count(stage: Stage, event: Mapping[str, Any]) -> None:
    stage.ends[event["Task End Reason"]["Reason"]] += 1
    metrics = event.get("Task Metrics")
    if not metrics:
        return
    stage.run_ms += metrics["Executor Run Time"]
    stage.cpu_ms += metrics["Executor CPU Time"] / 1e6
    stage.shuffled_bytes += metrics["Shuffle Write Metrics"]["Shuffle Bytes Written"]
    stage.shuffled_rows += metrics["Shuffle Write Metrics"]["Shuffle Records Written"]
    stage.spilled_bytes += metrics["Disk Bytes Spilled"]
    stage.result_bytes += metrics["Result Size"]
