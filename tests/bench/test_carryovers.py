"""Ten changed rows in two rewritten files of a million rows, without a change feed: lake-tailer and Spark's CHANGES.

Spark writes the table once with row tracking, which CHANGES requires, and once without. One run measures both for the
twenty rows of the version, and reading the version's four files and nothing else. Nothing is asserted about time. `make
bench` prints the table; quoted figures come from here.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.rules import Carryovers, PairingRules
from tailer.engine.local import LocalEngine
from tailer.events import ChangeBatch
from tests.bench.rewritten import CHANGED, CONDITION, FILES, REWRITE, ROWS, SPARK_COLUMNS, pass_rewrite
from tests.support.spark.session import build_spark

RUNS: Final = 3
BATCH_ROWS: Final = 8192  # as `tailer.read.execute` reads rows of this size
CHANGES: Final = "Spark's CHANGES, row tracking"
READING: Final = "pyarrow reading the files"


@pytest.fixture(scope="module")
def fast_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A Spark without the settings for small tests."""
    session = build_spark(tmp_path_factory.mktemp("spark"))
    session.conf.set("spark.databricks.delta.changelogV2.enabled", "true")
    yield session
    session.stop()


def written(spark: SparkSession, path: Path, tracked: bool) -> Path:
    """Write a table with one file per partition; an UPDATE rewrites both files."""
    frame = spark.range(0, FILES * ROWS, 1, FILES).selectExpr(*SPARK_COLUMNS).write.format("delta")
    for name, on in {"ChangeDataFeed": False, "DeletionVectors": False, "RowTracking": tracked}.items():
        frame = frame.option(f"delta.enable{name}", str(on).lower())
    frame.save(str(path))
    spark.sql(f"UPDATE delta.`{path}` SET total = -1 WHERE {CONDITION}").collect()
    return path


def ours(path: Path, rules: PairingRules) -> int:
    """Read the version with lake-tailer; return the number of rows."""
    rows = 0

    def take(batch: ChangeBatch) -> None:
        nonlocal rows
        rows += len(batch)

    pass_rewrite(path, ChangelogEngine(LocalEngine(), rules), take)
    return rows


def peak_mb(path: Path) -> float:
    """Return the peak resident memory of a separate process."""
    command = [sys.executable, "-m", "tests.integration.carryover_reader", str(path), "{}"]
    process = subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=Path(__file__).parents[2])
    return float(json.loads(process.stdout)["peak_bytes"]) / 2**20


def changes(spark: SparkSession, path: Path) -> int:
    """Read the version with Spark's CHANGES, which drops carry-overs by row id and row commit version."""
    query = f"SELECT * FROM delta.`{path}` CHANGES FROM VERSION {REWRITE} TO VERSION {REWRITE}"
    return int(spark.sql(query).toArrow().num_rows)


def reading(path: Path) -> int:
    """Decode and drop every row that the version wrote or removed."""
    rows = 0
    for file in path.glob("*.parquet"):
        with pq.ParquetFile(file) as parquet:
            rows += sum(batch.num_rows for batch in parquet.iter_batches(BATCH_ROWS))
    return rows


def seconds(work: Callable[[], int], rows: int) -> float:
    """Return the time that `work` takes; it must give all the rows."""
    start = time.perf_counter()
    assert work() == rows
    return time.perf_counter() - start


def test_carryovers(fast_spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tracked = written(fast_spark, tmp_path / "tracked", tracked=True)
    plain = written(fast_spark, tmp_path / "plain", tracked=False)
    updates = PairingRules(compute_updates=True, key=("id",))
    contenders: dict[str, tuple[Callable[[], int], int]] = {
        CHANGES: (lambda: changes(fast_spark, tracked), 2 * CHANGED),
        READING: (lambda: reading(plain), 2 * FILES * ROWS),
        "lake-tailer, row tracking": (lambda: ours(tracked, PairingRules()), 2 * CHANGED),
        "lake-tailer, by value": (lambda: ours(plain, PairingRules()), 2 * CHANGED),
        "lake-tailer, by value, updates by key": (lambda: ours(plain, updates), 2 * CHANGED),
        "lake-tailer, carry-overs kept": (lambda: ours(plain, PairingRules(Carryovers.KEEP)), 2 * FILES * ROWS),
    }
    # Compilation by Java in the first run does not count.
    runs = [{name: seconds(*contender) for name, contender in contenders.items()} for _ in range(1 + RUNS)][1:]
    with capsys.disabled():
        print(f"\n{CHANGED} of {FILES * ROWS:,} rows changed, {FILES} files rewritten; medians of {RUNS} runs")
        for name in contenders:
            times = {peer: statistics.median(run[name] / run[peer] for run in runs) for peer in (CHANGES, READING)}
            ratios = ", ".join(f"{ratio:.2f} x {peer}" for peer, ratio in times.items())
            print(f"{name}: {statistics.median(run[name] for run in runs):.2f} s = {ratios}")
        peaks = ", ".join(
            f"{name} {peak_mb(path):.0f} MB" for name, path in (("row tracking", tracked), ("by value", plain))
        )
        print(f"lake-tailer, resident at most: {peaks}")
