"""SIGKILL of an executor while all executors compare a rewritten version; the rows are those of one process.

Each moment is another stage: while executors compute fingerprints, while Spark exchanges them, and while the rows that
are left are read. Slow tasks run a second time beside the first (speculation).

On every landing: comparisons without kills (`integration/test_spark_comparing.py`), and executors that are killed while
they write to Kafka and Delta.
"""

import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark import SparkStageInfo
from pyspark.sql import SparkSession

import tailer
import tailer.spark
from tailer.spark.native import comparing
from tests.support.spark.cluster import WORKERS, Driver, StandaloneCluster
from tests.support.spark.event_log import LOST, Stage, event_log_settings, stages
from tests.support.spark.stage_kills import WATCHED, StageKiller, await_executors

pytestmark = [pytest.mark.spark, pytest.mark.nightly]

FILES: Final = 4
ROWS: Final = 40_000  # in a file; there are several splits
VALUES: Final = 500  # of the rows that are there many times
SPECULATION: Final = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.minTaskRuntime": "0ms",
}


@dataclass(frozen=True)
class Table:
    """A table whose last version rewrites all of its files."""

    path: Path
    last: int


@dataclass(frozen=True)
class Read:
    """The rows that a driver has read, when they were planned, and whether an executor was killed."""

    rows: pa.Table
    planned_ms: float
    killed: bool


class Moment:
    """Accepts the stage to kill in: `when` says which."""

    def __init__(self, when: str) -> None:
        self._when: Final = when
        self.is_planned = False

    def __call__(self, stage: SparkStageInfo, shuffles: bool) -> bool:
        """Return whether this is the moment."""
        if self._when == "fingerprints":
            return stage.numCompletedTasks > 0
        return self.is_planned if self._when == "rows" else shuffles and not self.is_planned


def fits(when: str, stage: Stage, planned_ms: float) -> bool:
    """Return whether a stage is one of the moment `when`."""
    if stage.begun_ms > planned_ms:
        return when == "rows"
    return when == ("exchange" if stage.shuffles else "fingerprints")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """Rows of which half are alone and half are there many times; an update makes some equal to others."""
    path, chance = tmp_path_factory.mktemp("table"), random.Random(7)
    for number in range(FILES):
        ids = pa.array(range(number * ROWS, (number + 1) * ROWS), pa.int64())
        half = pc.less(pc.bit_wise_and(ids, 1), 1)
        keys = pc.if_else(half, ids, pa.scalar(-1, pa.int64()))
        few = pc.subtract(ids, pc.multiply(pc.divide(ids, VALUES), VALUES))
        texts = pa.array([f"{chance.getrandbits(480):0120x}" if alone else "" for alone in half.to_pylist()])
        write_deltalake(path, pa.table({"k": keys, "few": few, "v": texts}), mode="append")
    DeltaTable(path).update(predicate="few % 2 = 0", updates={"few": "few + 100"})
    return Table(path, FILES)


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the driver's event log."""
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """A master and two workers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        with StandaloneCluster(tmp_path_factory.mktemp("cluster")) as found:
            yield found


@pytest.fixture(scope="module")
def driver(cluster: StandaloneCluster, events: Path) -> Iterator[Driver]:
    """A driver with speculation."""
    conf = {**SPECULATION, **WATCHED, **event_log_settings(events), "spark.sql.shuffle.partitions": "4"}
    with Driver(cluster.settings(conf)) as found:
        yield found


def wait(session: SparkSession) -> None:
    """Return when all executors are ready."""
    await_executors(session, WORKERS)


def read(session: SparkSession, table: Table, options: Mapping[str, Any], pids: list[int], when: str) -> Read:
    """Read the last version, of which all executors compare the rows, and kill one of them at a moment."""
    comparing.SHARED_BYTES = 0  # type: ignore[misc]
    moment = Moment(when)
    with StageKiller(session, pids, moment) as killer:
        found = tailer.spark.changes(session, table.path, start=table.last, **options)
        moment.is_planned, planned_ms = True, 1000 * time.time()
        rows = found.toArrow()
    return Read(rows, planned_ms, killer.killed)


def counted(rows: pa.Table) -> Counter[tuple[Any, ...]]:
    """Count equal rows, in columns by name."""
    names = sorted(rows.column_names)
    return Counter(zip(*(rows[name].to_pylist() for name in names), strict=True))


@pytest.mark.parametrize(
    ("when", "by_key"), [("exchange", True), ("exchange", False), ("fingerprints", False), ("rows", True)]
)
def test_an_executor_dies(
    driver: Driver, cluster: StandaloneCluster, table: Table, events: Path, when: str, by_key: bool
) -> None:
    driver.call(wait)
    earlier = stages(events)
    key = ["k"] if by_key else []
    found = driver.call(
        read, table, {"computeUpdates": True, "key": key} if by_key else {}, cluster.executor_pids(), when
    )
    hit = [stage for number, stage in stages(events).items() if number not in earlier and stage.ends[LOST]]
    assert found.killed
    assert any(fits(when, stage, found.planned_ms) for stage in hit), f"it ran no task of the stage: {hit}"
    expected = tailer.changes(table.path, start=table.last, compute_updates=by_key, key=key).to_arrow()
    assert counted(found.rows) == counted(expected)
