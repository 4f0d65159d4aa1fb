"""Settings for the place of work: this process, or Spark.

They are outside `tailer.spark` because `tailer check` reads them without PySpark.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

__all__ = ["AHEAD_BYTES", "DEFAULT_SHARDS", "LOCAL_MASTER", "MOST_SHARDS", "EngineKind", "SparkSettings", "Writers"]

LOCAL_MASTER: Final = "local[*]"
AHEAD_BYTES: Final = 256 * 2**20  # of Arrow memory of the process, up to which the daemon reads ahead
DEFAULT_SHARDS: Final = 4
MOST_SHARDS: Final = 1024


class EngineKind(StrEnum):
    """The engine that reads the rows of a plan."""

    LOCAL = "local"  # threads of this process
    SPARK = "spark"  # executors
    AUTO = "auto"  # executors where a version is large enough to be worth it, else threads


class Writers(StrEnum):
    """The process that writes a pipeline's rows to its sink."""

    DRIVER = "driver"  # this process
    EXECUTORS = "executors"  # Spark's, side by side


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """The address of Spark, and its settings.

    `master`: the cluster to start a driver for. `conf`: any of Spark's settings as text; they may hold secrets and are
    never shown.
    """

    master: str = LOCAL_MASTER
    conf: Mapping[str, str] = field(default_factory=dict, repr=False)
