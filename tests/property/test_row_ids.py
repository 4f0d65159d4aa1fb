"""Row ids and row commit versions equal Spark's, in changes and snapshots, before and after a rewrite."""

from pathlib import Path

import anyio
import pyarrow as pa
import pytest

from tailer.events import ROW_COMMIT_VERSION, ROW_ID
from tailer.formats.delta.table import DeltaTableLog
from tailer.plan import ChangePlan, Regime
from tailer.stores.local import LocalStore
from tests.support.follow import plans, run_plan
from tests.support.oracle.rows import METADATA, Rows, assert_same, fold, rows_of
from tests.support.spark.table import Table

TRACKED = "'delta.enableRowTracking' = 'true'"


def with_ids(plan: ChangePlan) -> pa.Table:
    """Return the rows of a plan with their ids."""
    return run_plan(plan.with_row_ids()).table


def spark_rows(table: Table, version: int) -> Rows:
    """Return all rows of a version with their ids, as Spark reads them."""
    frame = table.spark.read.format("delta").option("versionAsOf", version).load(str(table.path))
    ids = {"_metadata.row_id": ROW_ID, "_metadata.row_commit_version": ROW_COMMIT_VERSION}
    return rows_of(frame.selectExpr("*", *(f"{ours} AS {name}" for ours, name in ids.items())).toArrow())


def snapshot_rows(path: Path, version: int) -> Rows:
    """Return all rows of a version with their ids, as lake-tailer reads them."""

    async def pages() -> list[ChangePlan]:
        return [plan async for plan in DeltaTableLog(LocalStore(path)).snapshot_plans(version)]

    return sum((rows_of(with_ids(plan), METADATA) for plan in anyio.run(pages)), Rows())


@pytest.mark.parametrize(("vectors", "mapping"), [(True, "none"), (False, "id")])
@pytest.mark.sampled(2)
def test_ids_are_spark_s(table: Table, vectors: bool, mapping: str) -> None:
    properties = f"{TRACKED}, 'delta.columnMapping.mode' = '{mapping}'"
    rows = "SELECT id, 'x', CAST(id % 2 AS INT) FROM range(20)"
    table.create("id BIGINT, v STRING, p INT", rows, feed=False, vectors=vectors, partition="p", properties=properties)
    table.sql("DELETE FROM {t} WHERE id IN (3, 4, 7)")
    table.sql("UPDATE {t} SET v = 'y' WHERE id IN (0, 1, 12)")
    table.sql("OPTIMIZE {t}")
    table.sql("INSERT INTO {t} SELECT id, 'z', 0 FROM range(100, 105)")
    table.sql(
        "MERGE INTO {t} AS t USING (SELECT id FROM range(10, 110, 5)) AS s ON t.id = s.id "
        "WHEN MATCHED AND s.id < 50 THEN UPDATE SET v = 'm' WHEN MATCHED THEN DELETE "
        "WHEN NOT MATCHED THEN INSERT (id, v, p) VALUES (s.id, 'n', 1)"
    )
    table.sql("RESTORE TABLE {t} TO VERSION AS OF 3")
    table.sql("DELETE FROM {t}")
    before, seen = Rows(), set[Regime]()
    for plan in plans(table.path):
        where = f"version {plan.version} ({plan.operation})"
        after = spark_rows(table, plan.version)
        assert_same(fold(before, with_ids(plan), where), after, where)
        assert_same(snapshot_rows(table.path, plan.version), after, f"snapshot, {where}")
        before = after
        seen.add(plan.regime)
    assert seen >= {Regime.FILES, Regime.NONE}


def test_rows_of_change_files_have_none(table: Table) -> None:
    table.create("id BIGINT, v INT", "SELECT id, 1 FROM range(5)", properties=TRACKED)
    table.sql("UPDATE {t} SET v = 2 WHERE id = 1")
    _, inserted, updated = plans(table.path)
    assert with_ids(inserted).column(ROW_ID).to_pylist() == [0, 1, 2, 3, 4]
    assert with_ids(inserted).column(ROW_COMMIT_VERSION).to_pylist() == [1] * 5
    assert updated.regime is Regime.CDC
    assert with_ids(updated).column(ROW_ID).to_pylist() == [None, None]


def test_a_table_that_begins_to_track_its_rows(table: Table) -> None:
    """Ids from before row tracking are not delivered, even if the log has some."""
    table.create("id BIGINT", "SELECT id FROM range(3)", feed=False, vectors=True)
    table.sql("ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableRowTracking' = 'true')")
    table.sql("DELETE FROM {t} WHERE id = 1")
    table.sql("INSERT INTO {t} VALUES (7)")
    found = [with_ids(plan) for plan in plans(table.path)]
    assert found[1].column(ROW_ID).to_pylist() == [None] * 3
    deleted, inserted = (rows for rows in found[2:] if rows.num_rows)
    assert rows_of(deleted, METADATA) <= spark_rows(table, table.latest - 2)
    assert rows_of(inserted, METADATA) <= spark_rows(table, table.latest)
