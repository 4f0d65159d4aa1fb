"""Damaged and unusual tables: each stops with an error that names the fault, or gives exactly the right rows."""

import json
from pathlib import Path
from typing import Any

import pytest

from tailer.errors import DataCorrupt, FileVacuumed, TailerError
from tests.support.follow import Followed, follow, follow_until_error
from tests.support.tables.handwritten import HandwrittenTable


@pytest.fixture
def table(tmp_path: Path) -> HandwrittenTable:
    """A table with ten rows in one file, added by version 1."""
    made = HandwrittenTable(tmp_path / "table")
    made.commit(made.add(made.data("part-0.parquet", range(10))))
    return made


def changes(version: Followed) -> list[tuple[str, int]]:
    """Return change type and id of every row, in delivery order."""
    rows = version.table.select(["_change_type", "id"]).to_pylist()
    return [(row["_change_type"], row["id"]) for row in rows]


def last(table: HandwrittenTable) -> list[tuple[str, int]]:
    """Return the changes of the newest version."""
    return changes(follow(table.path)[table.version])


def stopped(table: HandwrittenTable) -> TailerError:
    """Return the error of the newest version; all earlier ones must be readable."""
    versions, error = follow_until_error(table.path)
    assert [version.plan.version for version in versions] == list(range(table.version)), error
    assert isinstance(error, TailerError), repr(error)
    assert error.fields.get("version") == table.version
    return error


def delete(table: HandwrittenTable, vector: dict[str, Any]) -> None:
    """Commit a delete of the rows that `vector` marks."""
    table.commit(table.remove("part-0.parquet"), table.add("part-0.parquet", vector))


# --- pairs of one path -----------------------------------------------------------------------------------------------


@pytest.mark.sampled(3)
@pytest.mark.parametrize("add_first", [True, False])
@pytest.mark.parametrize(
    ("removed", "added", "expected"),
    [
        ([], [2, 3], [("delete", 2), ("delete", 3)]),
        ([2, 3], [], [("insert", 2), ("insert", 3)]),
        ([2, 3], [3, 9], [("delete", 9), ("insert", 2)]),
        ([2, 3], [2, 3], []),
        ([], [], []),
        (None, [2, 9], [("insert", row) for row in range(10) if row not in (2, 9)]),
        ([2, 9], None, [("delete", row) for row in range(10) if row not in (2, 9)]),
        (None, [], [("insert", row) for row in range(10)]),
        ([], None, [("delete", row) for row in range(10)]),
    ],
)
@pytest.mark.parametrize("row_group_size", [None, 3])
def test_pairs(
    tmp_path: Path,
    removed: list[int] | None,
    added: list[int] | None,
    expected: list[tuple[str, int]],
    row_group_size: int | None,
    add_first: bool,
) -> None:
    table = HandwrittenTable(tmp_path / "table")
    table.data("part-0.parquet", range(10), row_group_size)
    actions = []
    if removed is not None:
        actions.append(table.remove("part-0.parquet", table.vector(1, removed) if removed else None))
    if added is not None:
        actions.insert(0 if add_first else 1, table.add("part-0.parquet", table.vector(2, added) if added else None))
    table.commit(*actions)
    assert last(table) == expected


@pytest.mark.parametrize(
    ("action", "values", "value"),
    [("add", {}, None), ("add", {"p": None}, None), ("remove", {"p": None}, None), ("remove", {"p": ""}, "")],
)
def test_the_partition_value_of_the_log_counts(
    tmp_path: Path, action: str, values: dict[str, Any], value: str | None
) -> None:
    """Spark leaves nulls out of the partition values of adds that it derives: restores and clones.

    The data file may have the column nevertheless, with '' for such a row.
    """
    table = HandwrittenTable(tmp_path / "table")
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in (("id", "long"), ("p", "string"))
    ]
    schema = json.dumps({"type": "struct", "fields": fields})
    table.commit({"metaData": {**table.metadata, "schemaString": schema, "partitionColumns": ["p"]}})
    name = table.data("p=__HIVE_DEFAULT_PARTITION__/part-0.parquet", [1], p=[""])
    make = table.add if action == "add" else table.remove
    table.commit(make(name, partitionValues=values))
    (row,) = follow(table.path)[table.version].table.to_pylist()
    assert (row["id"], row["p"]) == (1, value)


# --- commits ---------------------------------------------------------------------------------------------------------


def test_a_gap_that_opens_while_following_is_found(table: HandwrittenTable) -> None:
    table.commit({"commitInfo": {}})
    table.commit({"commitInfo": {}})
    table.commit_file(2).unlink()
    versions, error = follow_until_error(table.path)
    assert [version.plan.version for version in versions] == [0, 1]
    assert getattr(error, "version", None) == 2


# --- missing and corrupt files
# ------------------------------------------------------------------------------------------


def test_missing_data_file(table: HandwrittenTable) -> None:
    table.commit(table.add("part-9.parquet"))
    error = stopped(table)
    assert isinstance(error, FileVacuumed)
    assert error.path == f"{table.path}/part-9.parquet"


def test_missing_change_file(table: HandwrittenTable) -> None:
    table.commit({"cdc": {"path": "_change_data/x.parquet", "partitionValues": {}, "size": 1, "dataChange": False}})
    assert isinstance(stopped(table), FileVacuumed)


def test_missing_deletion_vector_file(table: HandwrittenTable) -> None:
    delete(table, table.vector(1, [3]))
    table.vector_file(1).unlink()
    error = stopped(table)
    assert isinstance(error, FileVacuumed)
    assert error.path == str(table.vector_file(1))


@pytest.mark.parametrize("keep", [0, 3, 100])
def test_data_file_cut_short(table: HandwrittenTable, keep: int) -> None:
    table.commit(table.add(table.data("part-1.parquet", range(1000))))
    file = table.path / "part-1.parquet"
    file.write_bytes(file.read_bytes()[:keep])
    error = stopped(table)
    assert isinstance(error, DataCorrupt)
    assert error.path == str(file)


# --- deletion vectors ------------------------------------------------------------------------------------------------


def test_every_damaged_byte_of_a_vector_file_is_noticed(table: HandwrittenTable) -> None:
    delete(table, table.vector(1, [3, 7]))
    file = table.vector_file(1)
    whole = file.read_bytes()
    for at in range(len(whole)):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        _, error = follow_until_error(table.path, table.version)
        assert isinstance(error, DataCorrupt), f"byte {at}: {error!r}"
    file.write_bytes(whole)
    assert last(table) == [("delete", 3), ("delete", 7)]


def test_a_vector_that_marks_rows_the_file_does_not_have(table: HandwrittenTable) -> None:
    delete(table, table.vector(1, [3, 10]))
    assert isinstance(stopped(table), DataCorrupt)
