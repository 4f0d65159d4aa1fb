"""Damaged and unusual tables: each stops with an error that names the fault, or gives exactly the right rows."""

import json
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap64

from tailer.errors import DataCorrupt, FileVacuumed, LogCorrupt, TailerError, UnsupportedFeature
from tailer.plan import Regime
from tests.support.follow import Followed, follow, follow_until_error
from tests.support.tables.handwritten import HandwrittenTable
from tests.support.tables.log_files import z85

PORTABLE = struct.pack("<i", 1681511377)


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


def test_same_path_re_added_without_a_vector_changes_nothing(table: HandwrittenTable) -> None:
    table.commit(table.remove("part-0.parquet"), table.add("part-0.parquet"))
    assert last(table) == []
    table.commit(table.add("part-1.parquet".replace("1", "0")))
    assert last(table) == [("insert", row) for row in range(10)]


def test_deletes_come_before_inserts_whatever_the_order_in_the_log(table: HandwrittenTable) -> None:
    table.commit(table.add(table.data("part-1.parquet", [1])), table.remove("part-0.parquet"))
    kinds = [kind for kind, _ in last(table)]
    assert kinds == ["delete"] * 10 + ["insert"]


def test_rearranged_files_change_nothing(table: HandwrittenTable) -> None:
    new = table.add(table.data("part-1.parquet", range(10)), dataChange=False)
    table.commit(table.remove("part-0.parquet", dataChange=False), new)
    assert last(table) == []


def test_change_files_are_read_alone_even_when_other_actions_disagree(table: HandwrittenTable) -> None:
    table.data("_change_data/c.parquet", [1, 2, 1], _change_type=["insert", "delete", "update_preimage"])
    cdc = {"path": "_change_data/c.parquet", "partitionValues": {}, "size": 1, "dataChange": False}
    table.commit({"cdc": cdc}, table.remove("part-0.parquet"))
    assert last(table) == [("delete", 2), ("insert", 1), ("update_preimage", 1)]


def test_a_column_of_a_data_file_called_change_type_is_not_ours(table: HandwrittenTable) -> None:
    table.commit(table.add(table.data("part-1.parquet", [1], _change_type=["delete"])))
    assert last(table) == [("insert", 1)]


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


def test_a_commit_with_only_an_unknown_action_changes_nothing(table: HandwrittenTable) -> None:
    table.commit({"somethingNew": {"path": "part-0.parquet", "dataChange": True}})
    version = follow(table.path)[table.version]
    assert version.plan.regime is Regime.NONE
    assert version.plan.tasks == ()


def test_missing_commit_info(table: HandwrittenTable) -> None:
    assert "commitInfo" not in table.commit_file().read_text()
    assert follow(table.path)[1].plan.operation is None
    assert last(table) == [("insert", row) for row in range(10)]


@pytest.mark.parametrize(
    "line",
    [
        '{"add": {"path": "x", "partitionValues": {}, "size": 1}}',
        '{"add": {"path": 7, "partitionValues": {}, "size": 1, "dataChange": true}}',
        '{"remove": {"dataChange": true}}',
        '{"cdc": {"path": "x"}}',
        '{"metaData": {"id": "x"}}',
        '{"protocol": {}}',
        '{"add": ',
        "[]",
        "nonsense",
    ],
)
def test_a_malformed_action_is_named_by_path_version_and_line(table: HandwrittenTable, line: str) -> None:
    table.commit_text('{"commitInfo": {}}\n\n' + line + "\n")
    error = stopped(table)
    assert isinstance(error, LogCorrupt)
    assert error.path.endswith(f"{table.version:020d}.json")
    assert error.line == 3


def test_a_commit_cut_short_is_corrupt(table: HandwrittenTable) -> None:
    whole = json.dumps(table.add("part-0.parquet"))
    table.commit_text(whole[: len(whole) // 2])
    assert isinstance(stopped(table), LogCorrupt)


def test_bytes_that_are_not_text_are_corrupt(table: HandwrittenTable) -> None:
    table.commit_text("")
    table.commit_file().write_bytes(b'{"commitInfo": {"operation": "\xff\xfe"}}\n')
    assert isinstance(stopped(table), LogCorrupt)


def test_an_empty_commit_file_is_corrupt(table: HandwrittenTable) -> None:
    table.commit_text("")
    assert isinstance(stopped(table), LogCorrupt)


@pytest.mark.parametrize("action", ["add", "remove"])
def test_two_actions_of_one_path_are_refused(table: HandwrittenTable, action: str) -> None:
    once = table.add("part-0.parquet") if action == "add" else table.remove("part-0.parquet")
    table.commit(once, once)
    error = stopped(table)
    assert isinstance(error, LogCorrupt)
    assert "part-0.parquet" in str(error)


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


def test_a_column_of_another_type(table: HandwrittenTable) -> None:
    table.data("part-1.parquet", [1])
    (table.path / "part-1.parquet").unlink()
    pq.write_table(pa.table({"id": ["text"]}), table.path / "part-1.parquet")
    table.commit(table.add("part-1.parquet"))
    assert isinstance(stopped(table), DataCorrupt)


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


def test_a_checksum_that_does_not_match(table: HandwrittenTable) -> None:
    delete(table, table.vector(1, [3]))
    file = table.vector_file(1)
    file.write_bytes(file.read_bytes()[:-1] + b"\x00")
    error = stopped(table)
    assert isinstance(error, DataCorrupt)
    assert "CRC" in error.reason
    assert error.path == str(file)


@pytest.mark.parametrize("off", [-1, 1, 4, 1_000_000])
def test_a_vector_of_another_size_than_the_log_says(table: HandwrittenTable, off: int) -> None:
    vector = table.vector(1, [3])
    delete(table, {**vector, "sizeInBytes": vector["sizeInBytes"] + off})
    assert isinstance(stopped(table), DataCorrupt)


def test_a_vector_of_another_cardinality_than_the_log_says(table: HandwrittenTable) -> None:
    delete(table, {**table.vector(1, [3]), "cardinality": 2})
    assert isinstance(stopped(table), DataCorrupt)


@pytest.mark.parametrize("keep", [0, 1, 4, 20])
def test_a_vector_file_cut_short(table: HandwrittenTable, keep: int) -> None:
    delete(table, table.vector(1, [3]))
    table.vector_file(1).write_bytes(table.vector_file(1).read_bytes()[:keep])
    assert isinstance(stopped(table), DataCorrupt)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        PORTABLE,
        b"\x00\x00\x00\x00" + BitMap64([3]).serialize(),
        PORTABLE + BitMap64([3]).serialize()[:-1],
        PORTABLE + struct.pack("<Q", 2**40),
        PORTABLE + b"\xff" * 40,
        struct.pack("<i", 1681511376) + struct.pack("<i", 2**30),
        struct.pack("<i", 1681511376) + struct.pack("<ii", 1, 400) + b"\x3a",
    ],
)
def test_a_checked_vector_that_is_no_bitmap(table: HandwrittenTable, data: bytes) -> None:
    """Size and checksum are valid, so only the bitmap's own checks fail."""
    delete(table, table.raw_vector(1, data, 1))
    assert isinstance(stopped(table), DataCorrupt)


def test_a_vector_that_marks_rows_the_file_does_not_have(table: HandwrittenTable) -> None:
    delete(table, table.vector(1, [3, 10]))
    assert isinstance(stopped(table), DataCorrupt)


def inline(text: str, size: int, cardinality: int) -> dict[str, Any]:
    """Make an inline descriptor."""
    return {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": size, "cardinality": cardinality}


def test_inline_vectors(table: HandwrittenTable) -> None:
    data = PORTABLE + BitMap64([1, 8]).serialize()
    padded = data + bytes(-len(data) % 4)
    delete(table, inline(z85(padded), len(data), 2))
    assert last(table) == [("delete", 1), ("delete", 8)]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("~~~~~", 4),
        ("é" * 5, 4),
        ("#####", 4),
        ("%nSc1", 4),
        ("0000", 4),
        ("", 4),
        ("00000", 40),
        ("00000", 0),
    ],
)
def test_inline_text_that_is_no_vector(table: HandwrittenTable, text: str, size: int) -> None:
    delete(table, inline(text, size, 1))
    assert isinstance(stopped(table), DataCorrupt | LogCorrupt)


@pytest.mark.parametrize(
    "wrong",
    [
        {"storageType": "r"},
        {"storageType": "u", "pathOrInlineDv": "short"},
        {"storageType": "u", "pathOrInlineDv": "~" * 20},
        {"sizeInBytes": -1},
        {"cardinality": -1},
    ],
)
def test_a_descriptor_the_protocol_does_not_know(table: HandwrittenTable, wrong: dict[str, Any]) -> None:
    delete(table, {**table.vector(1, [3]), **wrong})
    assert isinstance(stopped(table), LogCorrupt | UnsupportedFeature)


def test_a_negative_offset(table: HandwrittenTable) -> None:
    delete(table, {**table.vector(1, [3]), "offset": -1})
    assert isinstance(stopped(table), DataCorrupt | LogCorrupt)
