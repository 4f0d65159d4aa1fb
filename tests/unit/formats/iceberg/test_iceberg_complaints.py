"""Complaints about other readers of Iceberg's changes, each with the right value; more are in the other modules."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tailer
from tailer.errors import LogCorrupt
from tests.support.iceberg.table import COLUMNS, IcebergTable


def rows(*ids: int) -> dict[str, list[Any]]:
    """Return rows with these ids."""
    return {"id": list(ids), "name": [f"n{number}" for number in ids]}


def changes(table: IcebergTable, **options: Any) -> list[tuple[int, str, int]]:
    """Return the version, the kind of change and the id of each row."""
    found = [row for batch in tailer.changes(table.path, **options) for row in batch.to_pylist()]
    return sorted((row["_commit_version"], row["_change_type"], row["id"]) for row in found)


def overwritten(table: IcebergTable) -> None:
    """Make apache/iceberg#3265, #3517: an overwrite is skipped with its inserts, or stops the reader."""
    table.commit([table.data(rows(3))], list(table.states[table.id_of(1)]), "overwrite")


def duplicate(table: IcebergTable) -> None:
    """Make apache/iceberg#7326: of two equal rows, one is deleted by a rewrite."""
    table.commit([file := table.data(rows(5, 5))])
    table.commit([table.data(rows(5))], [file], "overwrite")


def misnamed(table: IcebergTable) -> None:
    """Make apache/iceberg#10122: deletes by positions are called an append, and rows a delete."""
    (file,) = table.states[table.id_of(1)]
    table.commit([table.positions([(file, 1)])], [], "append")
    table.commit([table.data(rows(4))], [], "delete")


def upsert(table: IcebergTable) -> None:
    """Make apache/iceberg-rust#1759: keys delete rows of the same sequence number, and the upsert vanishes."""
    table.commit([table.equality({"id": [2]}, {"id": 1}), table.data({"id": [2], "name": ["new"]})])


@pytest.mark.parametrize(
    ("commit", "right"),
    [
        (overwritten, [(2, "delete", 1), (2, "delete", 2), (2, "insert", 3)]),
        (duplicate, [(2, "insert", 5), (2, "insert", 5), (3, "delete", 5)]),
        (misnamed, [(2, "delete", 2), (3, "insert", 4)]),
        (upsert, [(2, "delete", 2), (2, "insert", 2)]),
    ],
)
def test_a_commit_has_its_changes(
    tmp_path: Path, commit: Callable[[IcebergTable], None], right: list[tuple[int, str, int]]
) -> None:
    table = IcebergTable(tmp_path / "t")
    table.commit([table.data(rows(1, 2))])
    commit(table)
    assert changes(table) == [(1, "insert", 1), (1, "insert", 2), *right]


def test_a_rewrite_of_many_files_is_one_step_without_rows(tmp_path: Path) -> None:
    """apache/iceberg#8902: skipping one rewrite takes a step for each of its 300 files."""
    table = IcebergTable(tmp_path / "t")
    for start in range(0, 300, 100):
        table.commit([table.data(rows(number)) for number in range(start, start + 100)])
    files = list(table.states[table.id_of(3)])
    table.commit([table.data(rows(*range(300)))], files, "replace")
    for file in files:
        Path(file.path).unlink()
    table.commit([table.data(rows(300))])
    assert changes(table, start=4) == [(5, "insert", 300)]


def test_rows_have_no_ids_before_the_third_format(tmp_path: Path) -> None:
    """apache/iceberg#17039, #17792: ids and sequence numbers of rows, null before they are numbered."""
    table = IcebergTable(tmp_path / "t")
    table.commit([table.data(rows(1))])
    table.version = 3
    table.commit([table.data(rows(2))])
    found = [row for batch in tailer.changes(table.path, row_ids=True) for row in batch.to_pylist()]
    assert [(row["id"], row["_row_commit_version"] if row["_row_id"] is not None else None) for row in found] == [
        (1, None),
        (2, 2),
    ]


def test_a_vector_in_another_partition_than_its_file_is_named(tmp_path: Path) -> None:
    """apache/iceberg#16957: such a vector deletes nothing, and nobody says so."""
    table = IcebergTable(tmp_path / "t", 3)
    table.columns = (*COLUMNS, {"id": 3, "name": "p", "type": "string"})
    table.specs = [({"name": "p", "source-id": 3, "field-id": 1000, "transform": "identity"},)]
    file = table.data(rows(1, 2), partition=(("p", "a"),))
    table.commit([file])
    table.commit([replace(table.vector(file, [0]), partition=(("p", "b"),))])
    with pytest.raises(LogCorrupt, match="is in another partition"):
        changes(table)
