"""Files that are skipped: by partition values, so that no row which fulfils a condition is lost."""

from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
from deltalake import write_deltalake

import tailer
from tailer.pipeline.policy import Policy
from tailer.plan import SkippedFiles
from tests.support.follow import plans

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
