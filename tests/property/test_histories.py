"""Random histories written by Spark: our rows equal Spark's change feed, and the fold holds with and without a feed.

With a feed, our rows (and their commit timestamps) must equal those of `readChangeFeed`, and must turn delta-rs's
snapshot of each version into the next one. Without a feed, Spark's own snapshots are used. A failure names the seed,
the version and the difference. `tests.support.oracle.recorded` judges histories whose columns change
(`tests.support.histories.schema_evolution`).

`make nightly` continues with new seeds until `LAKE_TAILER_SOAK_VERSIONS` versions (default 5000) were checked,
beginning at a random seed, or at `LAKE_TAILER_SEED`.

On every landing: live histories with a feed, in this module; recorded ones of every shape
(`property/test_written_histories.py`).
"""

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from tests.support.follow import follow, snapshot
from tests.support.histories.random_history import SHAPES, History, Shape
from tests.support.histories.schema_evolution import EVOLVING, EvolvingHistory
from tests.support.oracle.recorded import RecordedTable, judge
from tests.support.oracle.rows import (
    METADATA,
    Rows,
    assert_same,
    delta_rs_snapshot,
    fold,
    rows_of,
    spark_feed,
    spark_snapshot,
    type_name,
)
from tests.support.seeds import seeds

SEED: Final = 20260801
STEPS: Final = 5
CHANGING: Final = (
    Shape(True, True, True, traits=("names", "add", "toggle", "in-commit timestamps")),
    Shape(False, True, False, traits=("replace", "overwrite schema", "widening", "v2 checkpoints")),
)
CHANGING_STEPS: Final = 8
SIDE_BY_SIDE: Final = 2


def check(spark: SparkSession, history: History) -> int:
    """Judge every version of a history; return their number."""
    versions = follow(history.path)
    assert [version.plan.version for version in versions] == list(range(history.latest + 1))
    feed = spark_feed(spark, history.path) if history.shape.feed else None
    before: Rows = Rows()
    for version in versions:
        at = version.plan.version
        where = history.describe(at)
        if feed is None or at == history.latest:
            after = spark_snapshot(spark, history.path, at)
        else:
            after = delta_rs_snapshot(history.path, at)
        assert_same(fold(before, version.table, where), after, f"fold, {where}")
        if feed is not None:
            expected = rows_of(feed[at]) if at in feed else Rows()
            assert_same(rows_of(version.table), expected, f"feed, {where}")
        before = after
    ours = snapshot(history.path)
    assert_same(rows_of(ours.table, METADATA), before, f"snapshot, {history.describe()}")
    if feed:
        theirs = next(iter(feed.values())).schema
        assert [(field.name, type_name(field.type)) for field in ours.table.schema] == [
            (field.name, type_name(field.type)) for field in theirs
        ]
    return len(versions)


def make_and_check(spark: SparkSession, folder: Path, seed: int, shape: Shape, steps: int = STEPS) -> int:
    """Write and judge one history."""
    path = folder / f"{seed}-{shape}"
    if not shape.traits:
        return check(spark, History(spark, path, seed, shape).run(steps))
    return len(judge(RecordedTable.of(EvolvingHistory(spark, path, seed, shape).run(steps))))


WITH_FEED: Final = [shape for shape in SHAPES if shape.feed]
WITHOUT_FEED: Final = [shape for shape in SHAPES if not shape.feed]


@pytest.mark.parametrize(
    "shapes",
    [
        pytest.param(WITH_FEED[::3], id="feed"),
        pytest.param(WITH_FEED[1:3], id="more with a feed", marks=pytest.mark.nightly),
        pytest.param(WITHOUT_FEED, id="no feed", marks=pytest.mark.nightly),
    ],
)
def test_random_histories(quick_spark: SparkSession, tmp_path: Path, shapes: list[Shape]) -> None:
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        done = pool.map(lambda shape: make_and_check(quick_spark, tmp_path, SEED, shape), shapes)
        assert sum(done) >= len(shapes) * STEPS // 2


@pytest.mark.nightly
def test_random_histories_of_tables_that_change(quick_spark: SparkSession, tmp_path: Path) -> None:
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        done = pool.map(lambda shape: make_and_check(quick_spark, tmp_path, SEED, shape, CHANGING_STEPS), CHANGING)
        assert sum(done) >= len(CHANGING) * CHANGING_STEPS


@pytest.mark.nightly
def test_random_histories_for_long(quick_spark: SparkSession, tmp_path: Path) -> None:
    wanted = int(os.environ.get("LAKE_TAILER_SOAK_VERSIONS", "5000"))
    numbers = count(seeds(1).start)

    def one(shape: Shape, seed: int) -> int:
        folder = tmp_path / str(seed)
        folder.mkdir()
        versions = make_and_check(quick_spark, folder, seed, shape, steps=30)
        shutil.rmtree(folder)
        return versions

    def histories() -> Iterator[int]:
        with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            while True:
                yield from pool.map(one, (*SHAPES, *EVOLVING), numbers)

    checked = 0
    for versions in histories():
        checked += versions
        print(f"{checked} versions checked")
        if checked >= wanted:
            return
