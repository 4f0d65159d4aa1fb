"""Updates of Lance datasets that change no value: what pylance lists, and what is delivered."""

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import tailer

Rows = list[tuple[int, str, int]]


@pytest.fixture(params=[True, False], ids=["stable ids", "addresses"])
def dataset(tmp_path: Path, request: pytest.FixtureRequest) -> lance.LanceDataset:
    """A dataset whose versions 2 and 3 write one row each with the values that it has; version 4 changes one of two."""
    rows = pa.table({"id": [1, 2, 3], "v": [1.0, float("nan"), None]})
    lance.write_dataset(rows, path := tmp_path / "t", enable_stable_row_ids=request.param)
    found = lance.dataset(path)
    found.update({"v": "v"}, where="id = 2")
    found.merge_insert("id").when_matched_update_all().execute(rows.slice(2, 1))
    some = pa.table({"id": [1, 2], "v": [7.0, float("nan")]})
    found.merge_insert("id").when_matched_update_all().execute(some)
    return found


def changes(dataset: lance.LanceDataset, **options: Any) -> Rows:
    rows = (row for batch in tailer.changes(dataset.uri, start=2, **options) for row in batch.to_pylist())
    return [(row["_commit_version"], row["_change_type"], row["id"]) for row in rows]


def listed(dataset: lance.LanceDataset, version: int) -> list[int]:
    """Return the rows that pylance lists as updated by a version."""
    opened = lance.dataset(dataset.uri, version=version)
    found = opened.delta(compared_against=version - 1).get_updated_rows()
    return sorted(row["id"] for batch in found for row in batch.to_pylist())


def pair(dataset: lance.LanceDataset, version: int, *ids: int) -> Rows:
    """Return both images of some rows, as they come with and without stable row ids."""
    stable = dataset.has_stable_row_ids
    kinds = ("update_preimage", "update_postimage") if stable else ("delete", "insert")
    return sorted((version, kind, each) for kind in kinds for each in ids)


def test_an_update_that_changes_no_value_is_no_change(dataset: lance.LanceDataset) -> None:
    """With and without stable row ids, as for a Delta table without a feed; pylance lists it with stable ids alone."""
    stable = dataset.has_stable_row_ids
    assert [listed(dataset, version) for version in (2, 3, 4)] == ([[2], [3], [1, 2]] if stable else [[], [], []])
    assert sorted(changes(dataset)) == sorted(changes(dataset, changes="compare")) == pair(dataset, 4, 1)
    assert sorted(changes(dataset, compute_updates=True, key=["id"])) == [
        (4, "update_postimage", 1),
        (4, "update_preimage", 1),
    ]


NOW_NS = 1_700_000_000_123_456_789
CLOSE: list[tuple[pa.DataType, int, int]] = [
    *((pa.timestamp(unit, zone), NOW_NS, NOW_NS + 1) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC")),
    *((pa.duration(unit), 2**60, 2**60 + 1) for unit in ("s", "ms", "us", "ns")),
    (pa.duration("ns"), 0, -1),
    *((kind, 1, 2) for kind in (pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"))),
    (pa.date64(), 0, 86_400_000),
    (pa.date64(), 0, 1),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("stable", [True, False], ids=["stable ids", "addresses"])
@pytest.mark.parametrize("vector", [False, True], ids=["plain", "vector"])
@pytest.mark.parametrize(("kind", "old", "new"), CLOSE, ids=str)
def test_the_smallest_difference_is_a_change(
    tmp_path: Path, kind: pa.DataType, old: int, new: int, vector: bool, stable: bool
) -> None:
    """Values that are equal after rounding to microseconds are not taken for carry-overs."""

    def rows(*counts: int) -> pa.Table:
        values = pa.array(counts, pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)
        column = pa.FixedSizeListArray.from_arrays(values, 1) if vector else values
        return pa.table({"id": range(len(counts)), "x": column})

    lance.write_dataset(rows(old, old), path := tmp_path / "t", enable_stable_row_ids=stable)
    lance.dataset(path).merge_insert("id").when_matched_update_all().execute(rows(new))
    lance.write_dataset(rows(old, old), path, mode="overwrite")
    for options in ({}, {"compute_updates": True, "key": ["id"]}):
        found = [batch for batch in tailer.changes(path, start=2, **options) if len(batch)]  # type: ignore[arg-type]
        ids = [(version, each) for batch in found for version, each in zip(*numbers(batch), strict=True)]
        assert ids == [(2, 0), (2, 0), (3, 0), (3, 0)]


def numbers(batch: pa.RecordBatch) -> tuple[list[int], list[int]]:
    return batch["_commit_version"].to_pylist(), batch["id"].to_pylist()


def test_it_is_delivered_where_carry_overs_are_kept(dataset: lance.LanceDataset) -> None:
    expected = [*pair(dataset, 2, 2), *pair(dataset, 3, 3), *pair(dataset, 4, 1, 2)]
    assert sorted(changes(dataset, carryovers="keep")) == expected


def test_a_compaction_is_no_update(dataset: lance.LanceDataset) -> None:
    before = changes(dataset, carryovers="keep")
    dataset.optimize.compact_files()
    assert changes(dataset, carryovers="keep") == before
