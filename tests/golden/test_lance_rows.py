"""Rows of old datasets of Lance's own project: each version is the one before with its changes, as pylance reads it."""

from collections import Counter
from pathlib import Path

import lance
import pytest

import tailer
from tailer.errors import ChangesUnavailable, LogCorrupt
from tests.support.tables.golden import golden
from tests.support.tables.lance_histories import Rows, changes_of, rows_of

READABLE = {
    "v0.7.5/with_deletions": 2,
    "v0.8.0/migrated_from_v0.7.5": 3,
    "v0.8.14/corrupt_index": 5,
    "v0.15.0/v1_no_files.lance": 1,
    "v0.15.0/v1_with_files.lance": 1,
    "v0.15.0/v2_no_files.lance": 1,
    "v0.15.0/v2_with_files.lance": 1,
    "v0.16.0/wrong_data_version_can_fix.lance": 2,
    "v0.27.1/pq_in_schema": 2,
}


@pytest.mark.parametrize("name", READABLE)
def test_every_version(name: str) -> None:
    path = golden("lance", name)
    found, state = changes_of(tailer.changes(path)), Rows()
    for version in range(1, READABLE[name] + 1):
        for kind, row in found.get(version, []):
            state[row] += -1 if kind == "delete" else 1
        assert +state == rows_of(lance.dataset(path, version=version).to_table())


def test_ten_rows_are_deleted() -> None:
    changes = changes_of(tailer.changes(golden("lance", "v0.7.5", "with_deletions"), start=2))[2]
    assert changes == [("delete", (("x", value),)) for value in range(10, 20)]


def test_columns_come_and_go() -> None:
    """Six versions: columns are added and dropped without a row, and rows are inserted in version 4."""
    path = golden("lance", "v0.10.5", "corrupt_schema")
    found = changes_of(tailer.changes(path))
    assert {version: len(changes) for version, changes in found.items()} == {1: 2, 4: 2}
    assert [name for name, _ in found[4][0][1]] == ["a", "x", "y", "z"]
    snapshot = changes_of(tailer.changes(path, start="snapshot"))
    assert Counter(row for _, row in snapshot[6]) == rows_of(lance.dataset(path).to_table())


def test_two_fragments_with_one_id_are_refused() -> None:
    with pytest.raises(LogCorrupt, match="two fragments have the id 1"):
        list(tailer.changes(golden("lance", "v0.16.0", "wrong_data_version_no_fix.lance")))


def test_a_version_without_the_one_before_has_no_changes() -> None:
    """Only version 4 is left: its rows can be read, and what it changed cannot."""
    path: Path = golden("lance", "v0.21.0", "bad_index_fragment_bitmap")
    with pytest.raises(ChangesUnavailable, match="version 3, from which it began, was cleaned up"):
        list(tailer.changes(path, start=4))
    assert sum(batch.num_rows for batch in tailer.changes(path, start="snapshot")) == 288
