"""SIGKILL of all executors in the middle of a version of a Lance dataset: Spark's stream has each change once.

On every landing: executors of a local Spark that read plain rows (`integration/test_spark_executors.py`), and Lance
without kills (`integration/test_spark_lance.py`).
"""

import sys
import time
from collections import Counter
from pathlib import Path
from typing import Final

import lance
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import tailer
import tailer.spark
from tests.support.spark.cluster import Driver, StandaloneCluster

pytestmark = pytest.mark.spark

PATIENCE_S: Final = 600
FRAGMENTS: Final = 40
COLUMNS: Final = ("_commit_version", "_change_type", "id", "name")
Changes = Counter[tuple[object, ...]]


def stream(session: SparkSession, path: Path, folder: Path) -> None:
    """Follow the dataset to its end, with a split of a version in each task."""
    tailer.spark.register(session)
    query = session.readStream.format("tailer").option("startingVersion", "earliest").load(str(path)).writeStream
    query = query.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    query.option("path", str(folder / "out")).trigger(availableNow=True).start().awaitTermination()


def streamed(session: SparkSession, folder: Path) -> Changes:
    """Return the change rows in the stream's target."""
    rows = session.read.parquet(str(folder / "out")).select(*COLUMNS).collect()
    return Counter(tuple(row) for row in rows)


def expected(path: Path) -> Changes:
    """Return the change rows as threads of one process read them."""
    rows = (row for batch in tailer.changes(path) for row in batch.to_pylist())
    return Counter(tuple(row[name] for name in COLUMNS) for row in rows)


@pytest.mark.nightly
def test_executors_killed_in_the_middle_of_a_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once while rows are inserted, once while a version is compared with the one before."""
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    path, ids = tmp_path / "items.lance", range(100 * FRAGMENTS)
    rows = pa.table({"id": pa.array(ids, pa.int64()), "name": [f"n{each}" for each in ids]})
    lance.write_dataset(rows, path, enable_stable_row_ids=True, max_rows_per_file=100)
    cluster = StandaloneCluster(tmp_path / "cluster")
    try:
        with Driver(cluster.settings()) as driver:
            for batch in range(2):
                before = len(files := list((tmp_path / "out").glob("part-*.parquet")))
                running, deadline = driver.start(stream, path, tmp_path), time.monotonic() + PATIENCE_S
                while len(files) == before:
                    assert not running.done() or running.result() is None
                    assert time.monotonic() < deadline, "no executor has written anything"
                    files = list((tmp_path / "out").glob("part-*.parquet"))
                executors = cluster.executor_pids()
                assert executors
                for pid in executors:
                    cluster.kill_executor(pid)
                assert not (tmp_path / "out" / "_spark_metadata" / str(batch)).exists(), "the version was over"
                running.result(PATIENCE_S)
                assert driver.call(streamed, tmp_path) == expected(path)
                lance.dataset(path).update({"name": "concat(name, '!')"}, where="id % 3 = 0")
    finally:
        cluster.close()
