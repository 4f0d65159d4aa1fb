"""Where the work of pipelines is done: in this process, or on Spark.

Apart from `tailer.spark` because settings are read, and `tailer check` runs, where PySpark is not installed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

__all__ = ["DEFAULT_SHARDS", "LOCAL_MASTER", "MOST_SHARDS", "EngineKind", "SparkSettings", "Writers"]

LOCAL_MASTER: Final = "local[*]"
DEFAULT_SHARDS: Final = 4
MOST_SHARDS: Final = 1024


class EngineKind(StrEnum):
    """Who makes a plan's rows."""

    LOCAL = "local"  # threads of this process
    SPARK = "spark"  # executors
    AUTO = "auto"  # executors where a version is large enough to be worth it, else threads


class Writers(StrEnum):
    """Who hands a pipeline's rows to its sink."""

    DRIVER = "driver"  # this process
    EXECUTORS = "executors"  # Spark's, side by side


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """Which Spark, and how it is set.

    `remote`: the address of a Spark Connect server (`sc://...`), of which nothing but its host may be shown: a token
    can be part of it. `master`: the cluster to start a driver for, of no meaning where there is a `remote`. `conf`: any
    of Spark's settings, in Spark's own text; they may hold secrets and are never shown.
    """

    master: str = LOCAL_MASTER
    remote: str | None = field(default=None, repr=False)
    conf: Mapping[str, str] = field(default_factory=dict, repr=False)
