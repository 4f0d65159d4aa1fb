"""A condition over the changes of tables: they are the changes of the filtered table (invariant 8).

Recorded histories of Spark, each version with random conditions: the fold of the events that are left turns the rows
that fulfil the condition before a version into those that do so after it.
"""

import random
from pathlib import Path
from typing import Final

import anyio
import pyarrow as pa
import pytest

import tailer
from tailer.engine.local import LocalEngine
from tailer.formats.delta.table import DeltaTableLog
from tailer.pipeline.policy import Policy
from tailer.plan import ChangePlan, Regime
from tailer.stores.local import LocalStore
from tests.support.follow import plans, run_plan
from tests.support.oracle.column_identity import restate
from tests.support.oracle.conditions import Wanted, comparable_columns, random_condition
from tests.support.oracle.recorded import HISTORIES, RecordedTable, read
from tests.support.oracle.rows import METADATA, Rows, assert_same, gone_and_come, rows_of
from tests.support.seeds import repeats

WRITTEN: Final = sorted(HISTORIES.glob("*.tar.xz"))


@pytest.mark.sampled(9)
@pytest.mark.parametrize("archive", WRITTEN, ids=lambda archive: archive.name[:2])
def test_the_changes_of_the_rows_that_fulfil_a_condition(archive: Path, tmp_path: Path) -> None:
    recorded = read(archive, tmp_path)
    chance = random.Random(archive.name)
    judged = 0
    for plan in plans(recorded.path, recorded.first + 1):
        columns = comparable_columns(recorded.schemas[plan.version - 1], recorded.schemas[plan.version])
        if not columns or plan.operation == "RESTORE":
            continue
        before, after = (rows_of(recorded.answers[plan.version - back].snapshot) for back in (1, 0))
        for _ in range(repeats(1)):
            wanted = random_condition(chance, columns, sorted({*before, *after}, key=repr))
            _judge(recorded, plan, wanted, before, after)
            judged += 1
    assert judged >= 10


def _judge(recorded: RecordedTable, plan: ChangePlan, wanted: Wanted, before: Rows, after: Rows) -> None:
    at, policy = plan.version, Policy(where=wanted.text)
    where = recorded.where(at, wanted.text)
    old, new = recorded.schemas[at - 1], recorded.schemas[at]
    deleted = new if plan.regime is Regime.CDC else old
    tables = {
        "each file": run_plan(policy.shape(plan), LocalEngine()).tables,
        "compared": [
            pa.Table.from_batches([batch])
            for batch in tailer.changes(
                recorded.path, start=at, end=at, where=wanted.text, allowed_roots=["/"], compute_updates=True
            )
        ],
    }
    for way, changes in tables.items():
        if way == "compared" and deleted is not new and restate(before, old, new) != before:
            continue  # its updates have the columns of the version in both images
        kept, come = gone_and_come(wanted.rows(restate(before, old, deleted)), changes, f"{where}, {way}")
        found = restate(kept, deleted, new) + come
        assert_same(found, wanted.rows(after), f"{where}, {way}")
    assert_same(_snapshot(recorded.path, at, policy), wanted.rows(after), f"{where}, snapshot")


def _snapshot(path: Path, version: int, policy: Policy) -> Rows:
    async def pages() -> list[ChangePlan]:
        log = DeltaTableLog(LocalStore(path), allowed_roots=("/",))
        return [policy.shape(page) async for page in log.snapshot_plans(version)]

    found = Rows()
    for page in anyio.run(pages):
        for table in run_plan(page).tables:
            found += rows_of(table, METADATA)
    return found
