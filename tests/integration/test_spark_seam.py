"""PySpark executors run a plan's tasks and give the rows of `LocalEngine`, in the same order.

This needs determinism (invariant 4): a plan survives JSON and pickle. Planning and executing a version again, with
other threads, other batches or from the middle, gives the same rows at the same positions.
"""

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tailer.engine.local import LocalEngine
from tailer.plan import ChangePlan, Position
from tailer.read.execute import execute
from tailer.read.parquet import batch_sizes
from tests.support.follow import Followed, plans, run_plan
from tests.support.histories.random_history import History, Shape, quick
from tests.support.oracle.rows import Row, rows_in_order
from tests.support.tables.golden import golden_delta

pytestmark = pytest.mark.golden

GOLDEN: Final = (
    "cdf-table",
    "cdf-table-with-dv",
    "cdf-table-with-cdc-and-dvs",
    "dv-partitioned-with-checkpoint",
    "parquet-all-types",
)

Rows = list[tuple[Position, Row]]


@pytest.fixture(scope="module")
def history(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> History:
    """A table with change files, deletion vectors, partitions and columns of every kind."""
    shape = Shape(feed=True, vectors=True, partitioned=True, rich=True)
    with quick(spark):
        made = History(spark, tmp_path_factory.mktemp("seam") / "table", 7, shape)
        for where in ("pmod(id, 5) = 1", "pmod(id, 5) = 2"):
            made.sql(f"DELETE FROM {{table}} WHERE {where}")
        made.sql("UPDATE {table} SET n = -n WHERE pmod(id, 3) = 0")
        made.sql("RESTORE TABLE {table} TO VERSION AS OF 2")
    return made


def placed(followed: Followed) -> Rows:
    """Return every row with its position, in delivery order."""
    return list(zip(followed.positions, rows_in_order(followed.table), strict=True))


def on_executors(spark: SparkSession, plan: ChangePlan, partitions: int) -> Rows:
    """Return a plan's rows with their positions, read by executors and joined in task order."""

    def rows(pickled: bytes) -> Iterator[tuple[tuple[int, int, int], bytes]]:
        # A nested function is pickled by value: executors cannot import this module.
        for batch in execute(pickle.loads(pickled)):
            for at, row in enumerate(batch.row_index.to_pylist()):
                sink = pa.BufferOutputStream()
                with pa.ipc.new_stream(sink, batch.rows.schema) as stream:
                    stream.write_batch(batch.rows.slice(at, 1))
                yield (batch.version, batch.task, row), sink.getvalue().to_pybytes()

    tasks = [pickle.dumps(task) for task in plan.tasks]
    collected = spark.sparkContext.parallelize(tasks, partitions).flatMap(rows).collect()
    return [(Position(*place), rows_in_order(pa.ipc.open_stream(data).read_all())[0]) for place, data in collected]


def tables(history: History) -> list[Path]:
    """Return the tables for these tests."""
    return [*map(golden_delta, GOLDEN), history.path]


def test_executors_give_the_rows_of_the_local_engine(spark: SparkSession, history: History) -> None:
    tried = 0
    for path in tables(history):
        for plan in plans(path):
            if plan.tasks:
                expected = placed(run_plan(plan))
                assert on_executors(spark, plan, 3) == expected, f"{path.name} version {plan.version}"
                tried += len(expected)
    assert tried > 100


def test_a_plan_survives_json(history: History) -> None:
    for path in tables(history):
        for plan in plans(path):
            again = ChangePlan.from_json(plan.to_json())
            assert again == plan
            assert again.to_json() == plan.to_json()
            assert placed(run_plan(again)) == placed(run_plan(plan))


def test_planned_and_run_again_gives_the_same(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in tables(history):
        first = [(plan, placed(run_plan(plan, LocalEngine(1)))) for plan in plans(path)]
        with monkeypatch.context() as patch:
            patch.setattr(batch_sizes, "BATCH_BYTES", 1)
            second = [(plan, placed(run_plan(plan, LocalEngine(4)))) for plan in plans(path)]
        assert second == first, path.name


def test_positions_ascend_and_any_of_them_can_be_gone_on_from(history: History) -> None:
    for path in tables(history):
        for plan in plans(path):
            rows = placed(run_plan(plan))
            positions = [position for position, _ in rows]
            assert positions == sorted(set(positions))
            for at in range(0, len(rows), max(1, len(rows) // 7)):
                assert placed(run_plan(plan, after=positions[at])) == rows[at + 1 :]
            assert placed(run_plan(plan, after=Position.end(plan.version))) == []
            assert placed(run_plan(plan, after=Position.end(plan.version - 1))) == rows
