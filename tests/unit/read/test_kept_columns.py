"""A small version is read once, and its rows are the same wherever they come from."""

from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pytest

from tailer.changelog.carryovers import refine
from tailer.changelog.equal_rows.row_index import RowIndex
from tailer.changelog.rules import PairingRules
from tailer.changelog.spill import SpilledBitmaps, SpilledPreimages
from tailer.errors import ScratchUnavailable
from tailer.events import CHANGE_TYPE, ChangeBatch
from tailer.plan import ChangePlan, DeletionVectorRef, Refinement, Regime, RowTracking, TaskKind
from tailer.read import decoded_files
from tailer.read.data_files import LOCAL, DataFile, DataFiles, Files
from tailer.read.decoded_files import DecodedFiles, compared_tasks
from tailer.read.execute import execute
from tests.support.tables.log_files import parquet, task, vector_file

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
RULES = PairingRules(compute_updates=True, key=("id",))
Image = tuple[str, int, str]


class Counted(DataFiles):
    """Local files; `opened`: the names of those that were opened, in order."""

    opened: ClassVar[list[str]] = []

    def open(self, uri: str, needed_bytes: int = 0) -> DataFile:
        self.opened.append(Path(uri).name)
        return super().open(uri, needed_bytes)


def kept_rows(plan: ChangePlan, files: Files = LOCAL) -> DecodedFiles:
    """Return what keeps the rows of a version."""
    kept = DecodedFiles(execute, files=files)
    kept.expect(compared_tasks(plan))
    return kept


def rows(ids: range, text: str) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "v": [text] * len(ids)}, schema=SCHEMA)


def vector(folder: Path, positions: range) -> DeletionVectorRef:
    (made,) = vector_file(folder, positions)
    found = next(folder.glob("deletion_vector_*.bin"))
    return DeletionVectorRef(str(found), None, made["offset"], made["sizeInBytes"], made["cardinality"])


@pytest.fixture
def plan(tmp_path: Path) -> ChangePlan:
    """A version that updates the rows from 100 to 109 of a file by a deletion vector, and writes row 109 unchanged."""
    whole = parquet(tmp_path / "whole.parquet", rows(range(100_000), "a"))
    new = pa.concat_tables([rows(range(100, 109), "b"), rows(range(109, 110), "a")])
    gone = replace(task(whole, SCHEMA, TaskKind.DELETE, include=vector(tmp_path, range(100, 110))), size_bytes=2**30)
    none = replace(task(whole, SCHEMA, TaskKind.INSERT, include=vector(tmp_path, range(100, 110))), size_bytes=2**30)
    none = replace(none, exclude=none.include)
    come = task(parquet(tmp_path / "new.parquet", new), SCHEMA)
    tasks = tuple(replace(each, index=index) for index, each in enumerate((gone, none, come)))
    return ChangePlan("t", "id", 3, 1000, None, Regime.FILES, SCHEMA, tasks)


def images(batches: list[ChangeBatch]) -> list[Image]:
    return [(row[CHANGE_TYPE], row["id"], row["v"]) for batch in batches for row in batch.rows.to_pylist()]


def compared(plan: ChangePlan, kept: DecodedFiles) -> tuple[list[Image], bool]:
    """Return the rows of the refined plan, and whether they came from memory."""
    with SpilledBitmaps() as bitmaps, SpilledPreimages() as preimages:
        found, counts = refine(plan, RULES, RowIndex(), bitmaps, preimages, kept)
        assert (counts.carryovers, counts.updates) == (2, 9)
        given = [batch for each in found.tasks for batch in kept.read(each)]
        return images([piece for batch in given for piece in preimages.joined(batch)]), all(map(kept.has, found.tasks))


UPDATED = [
    (f"update_{side}", number, text)
    for number in range(100, 109)
    for side, text in (("preimage", "a"), ("postimage", "b"))
]


def test_each_file_is_read_once(plan: ChangePlan) -> None:
    Counted.opened.clear()
    assert compared(plan, kept_rows(plan, Counted())) == (UPDATED, True)
    assert Counted.opened == ["whole.parquet", "new.parquet"]


@pytest.mark.parametrize("most_bytes", [0, 200, 400])
def test_rows_that_take_too_much_are_read_again(
    plan: ChangePlan, monkeypatch: pytest.MonkeyPatch, most_bytes: int
) -> None:
    """Wherever the limit is reached: before the first row, or after some."""
    monkeypatch.setattr(decoded_files, "BUDGET_BYTES", most_bytes)
    assert compared(plan, kept_rows(plan)) == (UPDATED, False)


def test_many_rows_and_large_files_are_not_kept(plan: ChangePlan) -> None:
    large = [replace(plan.tasks[2], size_bytes=2**30), replace(plan.tasks[2], size_bytes=0)]
    assert plan.tasks[0].include is not None
    many = replace(plan.tasks[0].include, cardinality=2**20)
    change_file = replace(plan.tasks[2], kind=TaskKind.CDC_OTHERS)
    for each in (*large, replace(plan.tasks[0], include=many), change_file):
        only = replace(plan, tasks=(each,))
        kept = kept_rows(only)
        assert kept.may_have(each)
        assert not kept.has(each)


def test_a_column_that_is_named_as_one_of_ours(tmp_path: Path) -> None:
    """It is read as it always was, whether the table tracks rows or not."""
    name = "_row_commit_version"
    schema = pa.schema([("id", pa.int64()), (name, pa.int64())])
    path = parquet(tmp_path / "a.parquet", pa.table({"id": [1, 2], name: [7, 8]}, schema=schema))
    one = replace(task(path, schema), tracking=RowTracking(base_row_id=5))
    plan = ChangePlan("t", "id", 3, 1000, None, Regime.FILES, schema, (one,))
    (found,) = kept_rows(plan).read(one)
    assert [column.to_pylist() for column in found.rows.columns[:2]] == [[1, 2], [7, 8]]


def test_lost_results_of_a_comparison_are_no_error_of_the_table(plan: ChangePlan, tmp_path: Path) -> None:
    lost = Refinement(dropped=DeletionVectorRef(str(tmp_path / "gone.bin"), None, 1, 10, 1))
    with pytest.raises(ScratchUnavailable):
        list(kept_rows(plan).read(replace(plan.tasks[2], refinement=lost)))
