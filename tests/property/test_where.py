"""Conditions and projections over the changes of tables: they are the changes of what is left (invariant 8).

Recorded histories of Spark, each version with random texts, and files with statistics as any writer notes them: the
fold of the events turns what leaves of the rows before a version into what leaves of those after it. Rows are read by
threads, and by pieces of Spark's data source, without Spark; with it: `test_spark_where`.
"""

import random
import re
from pathlib import Path
from typing import Final

import anyio
import pyarrow as pa
import pytest

import tailer
from tailer.engine.local import LocalEngine
from tailer.errors import SchemaChanged
from tailer.formats.delta.table import DeltaTableLog
from tailer.pipeline.policy import Policy
from tailer.plan import ChangePlan, Regime
from tailer.stores.local import LocalStore
from tests.support.follow import plans, run_plan
from tests.support.oracle.column_identity import restate
from tests.support.oracle.conditions import comparable_columns, random_condition, widened_columns
from tests.support.oracle.noted_statistics import note_again
from tests.support.oracle.projections import Shape, named_projection, random_projection
from tests.support.oracle.recorded import CASES_DATA, HISTORIES, RecordedTable, read
from tests.support.oracle.rows import Rows, rows_of
from tests.support.seeds import repeats
from tests.support.spark.queries import read_batch

pytestmark = pytest.mark.long

HISTORY: Final = sorted(HISTORIES.glob("*.tar.xz"))
VARIANTS: Final = sorted([*CASES_DATA.glob("*variants*.tar.xz"), *CASES_DATA.glob("*shredding*.tar.xz")])


@pytest.mark.sampled(9)
@pytest.mark.parametrize("archive", HISTORY, ids=lambda archive: archive.name[:2])
def test_the_changes_of_what_is_left(archive: Path, tmp_path: Path) -> None:
    assert judged_versions(archive, tmp_path) >= 10


@pytest.mark.sampled(5)
@pytest.mark.parametrize("archive", VARIANTS, ids=lambda archive: archive.name.split(".")[0])
def test_the_changes_of_what_is_left_beside_variants(archive: Path, tmp_path: Path) -> None:
    assert judged_versions(archive, tmp_path)


def judged_versions(archive: Path, folder: Path) -> int:
    """Judge each version of a recorded table with random texts; return how many."""
    recorded, judged = read(archive, folder), 0
    chance = random.Random(archive.name)
    note_again(recorded.path, chance)
    for plan in plans(recorded.path, recorded.first + 1):
        columns = comparable_columns(recorded.schemas[plan.version - 1], recorded.schemas[plan.version])
        if not columns or plan.operation == "RESTORE":
            continue
        before, after = (rows_of(recorded.answers[plan.version - back].snapshot) for back in (1, 0))
        rows = sorted({*before, *after}, key=repr)
        compared = columns | widened_columns(recorded.schemas[plan.version - 1], recorded.schemas[plan.version])
        for _ in range(repeats(1)):
            shape = Shape(random_condition(chance, compared, rows), random_projection(chance, columns, rows))
            _judge(recorded, plan, shape, before)
            names = [name for name in columns if re.fullmatch(r"\w+", name)]
            if names:
                chosen = named_projection(chance.sample(names, chance.randint(1, len(names))))
                _judge_source(recorded, plan.version, Shape(shape.wanted, chosen))
        judged += 1
    return judged


def _judge(recorded: RecordedTable, plan: ChangePlan, shape: Shape, before: Rows) -> None:
    at, where, select = plan.version, shape.wanted.text, ", ".join(shape.projection.texts)
    policy = Policy(where=where, select=select)
    old, new = recorded.schemas[at - 1], recorded.schemas[at]
    deleted = new if plan.regime is Regime.CDC else old
    shape.judge(recorded, at, deleted, run_plan(policy.shape(plan), LocalEngine()).tables, "each file")
    if deleted is new or restate(before, old, new) == before:
        # else its updates have the columns of the version in both images
        found = tailer.changes(
            recorded.path, start=at, end=at, where=where, select=select, allowed_roots=["/"], compute_updates=True
        )
        shape.judge(recorded, at, deleted, [pa.Table.from_batches([batch]) for batch in found], "compared")
    shape.judge_snapshot(recorded, at, _snapshot(recorded.path, at, policy))


def _snapshot(path: Path, version: int, policy: Policy) -> list[pa.Table]:
    async def pages() -> list[ChangePlan]:
        log = DeltaTableLog(LocalStore(path), allowed_roots=("/",), statistics=True)
        return [policy.shape(page) async for page in log.snapshot_plans(version)]

    return [table for page in anyio.run(pages) for table in run_plan(page).tables]


def _judge_source(recorded: RecordedTable, at: int, shape: Shape) -> None:
    """Judge the data source, which gives all rows the columns of the version, and refuses where it cannot."""
    names = ",".join(output.name for output in shape.projection.outputs)
    options = {"where": shape.wanted.text, "columns": names}
    try:
        found = read_batch(path=recorded.path, startingVersion=at, endingVersion=at, allowedRoots="/", **options)
    except SchemaChanged:
        assert recorded.schemas[at - 1] != recorded.schemas[at]
        return
    shape.judge(recorded, at, recorded.schemas[at], [found], "data source")
