"""Small fragments of Lance datasets are read from their files, and their rows are those that pylance reads."""

from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import tailer
from tailer.config.tables import TableRef
from tailer.formats.lance.rows import fragments
from tailer.plan import ChangePlan

PLAIN = pa.table(
    {
        "id": pa.array([1, 2, 3], pa.int64()),
        "text": ["a", None, "c" * 1000],
        "kind": pa.array(["x", "y", "x"]).dictionary_encode(),
        "vector": pa.array([[1, 2], None, [5, 6]], pa.list_(pa.float32(), 2)),
        "price": pa.array([Decimal("1.50"), None, Decimal("-3.25")], pa.decimal128(9, 2)),
        "day": pa.array([date(2026, 1, 1), None, date(1969, 12, 31)]),
        "data": pa.array([b"", b"\x00", None], pa.large_binary()),
        "ok": [True, None, False],
    }
)


NOT_PLAIN = {
    "struct": pa.array([{"x": 1}, None, {"x": None}], pa.struct([("x", pa.int32())])),
    "list": pa.array([[1], [], None], pa.list_(pa.int8())),
    "json": pa.array(['{"a": 1}', None, "[]"], pa.json_()),
}


async def plans_of(path: Path) -> list[ChangePlan]:
    log = TableRef(str(path)).open()
    await log.seek(1)
    found = []
    while (plan := await log.next_plan()) is not None:
        found.append(plan)
    return found


def rows_of(path: Path) -> list[list[dict[str, object]]]:
    """Return the rows of the new fragments of each version, as pylance reads them."""
    known: set[int] = set()
    found = []
    for version in range(1, lance.dataset(path).version + 1):
        dataset = lance.dataset(path, version=version)
        new = [each for each in dataset.get_fragments() if each.fragment_id not in known]
        known |= {each.fragment_id for each in new}
        found.append([row for each in new for row in each.to_table().to_pylist()])
    return found


def inserts_of(path: Path, versions: int) -> list[list[dict[str, object]]]:
    found: list[list[dict[str, object]]] = [[] for _ in range(versions)]
    for batch in tailer.changes(path):
        for row in batch.to_pylist():
            values = {name: value for name, value in row.items() if not name.startswith("_")}
            found[row["_commit_version"] - 1].append(values)
    return found


@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("storage", ["2.0", "2.1", "2.2"])
def test_no_version_is_opened(tmp_path: Path, storage: Any, stable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t"
    for _ in range(5):
        lance.write_dataset(PLAIN, path, mode="append", data_storage_version=storage, enable_stable_row_ids=stable)
    change: Any = {"path": "text", "name": "label"}
    lance.dataset(path).alter_columns(change)
    lance.write_dataset(PLAIN.rename_columns({"text": "label"}), path, mode="append")
    lance.dataset(path).drop_columns(["id"])
    lance.write_dataset(PLAIN.rename_columns({"text": "label"}).drop_columns("id"), path, mode="append")
    expected = rows_of(path)

    def refuse(*_: object) -> None:
        pytest.fail("a version was opened")

    monkeypatch.setattr(fragments, "open_dataset", refuse)
    assert inserts_of(path, len(expected)) == expected


def test_deleted_rows_are_read_from_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t"
    lance.write_dataset(PLAIN, path)
    lance.dataset(path).delete("id = 2")
    lance.dataset(path).delete("id = 1")
    monkeypatch.setattr(fragments, "open_dataset", lambda *_: pytest.fail("a version was opened"))
    found = [(row["id"], row["_change_type"]) for batch in tailer.changes(path) for row in batch.to_pylist()]
    assert found == [(1, "insert"), (2, "insert"), (3, "insert"), (2, "delete"), (1, "delete")]


@pytest.mark.anyio
@pytest.mark.parametrize("name", NOT_PLAIN)
async def test_columns_that_are_stored_otherwise_need_the_version(tmp_path: Path, name: str) -> None:
    path = tmp_path / "t"
    for _ in range(3):
        lance.write_dataset(PLAIN.append_column(name, NOT_PLAIN[name]), path, mode="append", data_storage_version="2.1")
    paths = {task.fragment.path for plan in await plans_of(path) for task in plan.tasks if task.fragment is not None}
    assert paths == {None}


@pytest.mark.anyio
async def test_files_that_lack_something_need_the_version(tmp_path: Path) -> None:
    """Columns in another file, rows that were deleted before the version, many rows."""
    path = tmp_path / "t"
    lance.write_dataset(PLAIN, path)
    lance.dataset(path).add_columns({"more": "id + 1"})
    lance.dataset(path).delete("id = 2")
    lance.write_dataset(pa.table({"id": range(100_000)}), path, mode="overwrite")
    tasks = [task for plan in await plans_of(path) for task in plan.tasks]
    names = [(task.version, task.fragment is not None and task.fragment.path is not None) for task in tasks]
    assert names == [(1, True), (3, False), (4, False), (4, False)]
