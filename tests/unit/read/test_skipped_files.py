"""Files that are skipped: by partition values, so that no row which fulfils a condition is lost."""

from pathlib import Path
from typing import Final

import anyio
import pyarrow as pa
import pytest
from deltalake import write_deltalake

import tailer
from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.rules import PairingRules
from tailer.engine.local import LocalEngine
from tailer.errors import ConfigError
from tailer.formats.delta.table import DeltaTableLog
from tailer.pipeline.policy import Policy
from tailer.plan import ChangePlan, SkippedFiles
from tailer.stores.local import LocalStore
from tests.support.follow import plans, run_plan

COUNTRIES: Final = ["DE", "FR", None]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = {"id": [1, 2, 3], "country": pa.array(COUNTRIES, pa.string())}
    write_deltalake(path := tmp_path / "t", pa.table(rows), partition_by=["country"])
    return path


@pytest.mark.parametrize(
    ("where", "ids", "read"),
    [
        ("country = 'DE'", [1], {"DE"}),
        ("country IS NULL", [3], {None}),
        ("country IS NOT NULL", [1, 2], {"DE", "FR"}),
        ("NOT country = 'DE'", [2], {"FR"}),
        ("country <=> NULL OR country > 'E'", [2, 3], {"FR", None}),
        ("lower(country) = 'fr'", [2], {"FR"}),
        ("country = 'XX'", [], set()),
        ("id > 1", [2, 3], {"DE", "FR", None}),
        ("id > 1 AND country IN ('DE', 'FR')", [2], {"DE", "FR"}),
    ],
)
def test_files_of_other_partitions(table: Path, where: str, ids: list[int], read: set[str | None]) -> None:
    [whole] = plans(table)
    plan = Policy(where=where).shape(whole)
    assert {value for task in plan.tasks for _, value in task.partition_values} == read
    skipped = [task for task in whole.tasks if task.partition_values[0][1] not in read]
    assert plan.skipped == (SkippedFiles(len(skipped), sum(task.size_bytes for task in skipped)) if skipped else None)
    found = [row["id"] for batch in tailer.changes(table, where=where) for row in batch.to_pylist()]
    assert sorted(found) == ids


def test_a_part_of_a_snapshot_without_files_does_not_stop_those_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the snapshot goes on after a row of a later part."""
    for country in ("DE", "FR", "DE"):
        rows = pa.table({"id": pa.array(range(4), pa.int64()), "country": [country] * 4})
        write_deltalake(path := tmp_path / "t", rows, partition_by=["country"], mode="append")
    monkeypatch.setattr("tailer.formats.delta.table.PAGE_FILES", 1)

    async def pages(where: str) -> list[ChangePlan]:
        log = DeltaTableLog(LocalStore(path))
        return [Policy(where=where).shape(page) async for page in log.snapshot_plans(2)]

    engine = ChangelogEngine(LocalEngine(), PairingRules())
    parts = anyio.run(pages, "country = 'DE'")
    assert [len(page.tasks) for page in parts] == [1, 0, 1]
    whole = [position for page in parts for position in run_plan(page, engine).positions]
    for number, after in enumerate(whole):
        rest = [position for page in parts for position in run_plan(page, engine, after).positions]
        assert rest == whole[number + 1 :]
    with pytest.raises(ConfigError, match="delivered in part"):
        run_plan(anyio.run(pages, "country > 'A'")[0], engine, whole[1])
