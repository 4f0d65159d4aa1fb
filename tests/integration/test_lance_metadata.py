"""Metadata of Lance datasets that pylance writes: every version of each history is what pylance says it is."""

import random
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance import DatasetBasePath

from tailer.formats.lance.fragment import DeletionKind
from tailer.formats.lance.manifest import Manifest
from tailer.formats.lance.transaction import parse_transaction
from tests.support.seeds import seeds
from tests.support.tables.lance_oracle import compare, read_manifests


def rows(first: int, end: int) -> pa.Table:
    """Return rows with consecutive keys."""
    keys = range(first, end)
    return pa.table({"key": pa.array(keys, pa.int64()), "text": [str(key) for key in keys]})


def operations(manifests: list[Manifest]) -> list[str | None]:
    """Return the operation of each version."""
    return [parse_transaction(each.transaction or b"").operation for each in manifests]


@pytest.mark.parametrize("is_v2", [True, False])
@pytest.mark.parametrize("is_stable", [True, False])
def test_a_long_history(tmp_path: Path, is_v2: bool, is_stable: bool) -> None:
    dataset = lance.write_dataset(
        rows(0, 300), tmp_path, max_rows_per_file=100, enable_stable_row_ids=is_stable, enable_v2_manifest_paths=is_v2
    )
    dataset.delete("key in (7, 205)")
    dataset.delete("key >= 100 and key < 199")
    dataset.update({"text": "'new'"}, where="key % 50 = 3")
    merge = dataset.merge_insert("key").when_matched_update_all().when_not_matched_insert_all()
    merge.execute(rows(290, 310))
    dataset = lance.write_dataset(rows(400, 410), tmp_path, mode="append")
    dataset.create_scalar_index("key", "BTREE")
    dataset.optimize.compact_files(target_rows_per_fragment=10_000)
    dataset.add_columns({"twice": "key * 2"})
    dataset.alter_columns({"path": "text", "name": "label"})  # type: ignore[dict-item]
    dataset.alter_columns({"path": "twice", "data_type": pa.int32()})  # type: ignore[dict-item]
    dataset.drop_columns(["twice"])
    dataset.update_config({"lance.auto_cleanup.interval": "100"})
    dataset.update_metadata({"owner": "us"})
    lance.dataset(tmp_path, version=3).restore()  # type: ignore[no-untyped-call]
    lance.write_dataset(rows(0, 3).append_column("more", pa.array([1.0, 2.0, None])), tmp_path, mode="overwrite")
    found = compare(tmp_path)
    assert operations(found) == [
        *["Overwrite", "Delete", "Delete", "Update", "Update", "Append", "CreateIndex"],
        *["ReserveFragments", "Rewrite", "Merge", "Project", "Merge", "Project", "UpdateConfig", "UpdateConfig"],
        *["Restore", "Overwrite"],
    ]
    assert [each.fields[0].id for each in found] == [0] * len(found)


def test_dense_deletions_are_bitmaps(tmp_path: Path) -> None:
    dataset = lance.write_dataset(rows(0, 40_000), tmp_path)
    dataset.delete("key = 1")
    dataset.delete("key % 3 = 0")
    kinds = [each.fragments[0].deletion for each in compare(tmp_path)]
    assert [each and each.kind for each in kinds] == [None, DeletionKind.ARROW, DeletionKind.BITMAP]


def test_row_ids_that_are_not_one_range(tmp_path: Path) -> None:
    dataset = lance.write_dataset(rows(0, 3000), tmp_path, max_rows_per_file=500, enable_stable_row_ids=True)
    for where in ("key % 2 = 0 and key < 500", "key in (501, 900, 1999)", "key > 2000 and key % 97 != 0"):
        dataset.update({"text": "'moved'"}, where=where)
        dataset.delete(f"key % 10 = 9 and {where}")
        dataset.optimize.compact_files(target_rows_per_fragment=2000)
    compare(tmp_path)


def test_files_under_other_roots(tmp_path: Path) -> None:
    source = lance.write_dataset(rows(0, 100), tmp_path / "source")
    source.delete("key < 10")
    clone = source.shallow_clone(tmp_path / "clone", 2)
    clone.delete("key = 50")
    lance.write_dataset(rows(100, 110), clone, mode="append")
    found = compare(tmp_path / "clone")
    assert [len(each.base_paths) for each in found] == [1] * len(found)
    bases = DatasetBasePath(str(tmp_path / "other"), "other", False, 7)
    lance.write_dataset(rows(0, 5), tmp_path / "spread", initial_bases=[bases], target_bases=["other"])
    (spread,) = compare(tmp_path / "spread")
    assert [file.base_id for each in spread.fragments for file in each.files] == [7]


def test_branches_name_themselves(tmp_path: Path) -> None:
    dataset = lance.write_dataset(rows(0, 10), tmp_path)
    branch = dataset.create_branch("side")
    branch.delete("key = 1")
    assert [each.branch for each in read_manifests(tmp_path)] == [None]
    assert [each.branch for each in read_manifests(tmp_path / "tree" / "side")] == ["side", "side"]


def test_versions_that_are_left_after_a_cleanup(tmp_path: Path) -> None:
    dataset = lance.write_dataset(rows(0, 10), tmp_path)
    for key in range(3):
        dataset.delete(f"key = {key}")
    dataset.tags.create("kept", 2)
    dataset.cleanup_old_versions(older_than=timedelta(0), error_if_tagged_old_versions=False)
    assert [each.version for each in compare(tmp_path)] == [2, 4]


@pytest.mark.parametrize("seed", seeds(4))
def test_random_histories(tmp_path: Path, seed: int) -> None:
    choose = random.Random(seed)
    dataset = lance.write_dataset(
        rows(0, 2000), tmp_path, max_rows_per_file=choose.choice([100, 700, 5000]), enable_stable_row_ids=seed % 4 != 0
    )
    for end in range(2100, 3600, 100):
        first = choose.randrange(end)
        some = (
            f"key >= {first} and key < {first + choose.choice([3, 90, 1500])} and key % {choose.choice([1, 2, 9])} = 0"
        )
        match choose.choice(["append", "delete", "delete", "update", "merge", "compact", "restore", "add"]):
            case "append":
                lance.write_dataset(rows(end, end + choose.randrange(1, 100)), dataset, mode="append")
            case "delete":
                dataset.delete(some)
            case "update":
                dataset.update({"text": f"'{end}'"}, where=some)
            case "merge":
                merge = dataset.merge_insert("key").when_matched_update_all().when_not_matched_insert_all()
                merge.execute(rows(end - 50, end + 50).slice(choose.randrange(50)))
            case "compact":
                dataset.optimize.compact_files(target_rows_per_fragment=choose.choice([50, 1000, 10_000]))
            case "restore":
                earlier = lance.dataset(tmp_path, version=choose.randint(1, dataset.latest_version))
                earlier.restore()  # type: ignore[no-untyped-call]
            case "add" if "more" not in dataset.schema.names:
                dataset.add_columns({"more": "key + 1"})
                dataset.drop_columns(["more"])
        dataset = lance.dataset(tmp_path)
    compare(tmp_path)


def test_many_scattered_row_ids(tmp_path: Path) -> None:
    dataset = lance.write_dataset(rows(0, 60_000), tmp_path, enable_stable_row_ids=True)
    dataset.update({"text": "'moved'"}, where="key * 7919 % 1000 < 300")
    dataset.delete("key * 104729 % 1000 < 20")
    dataset.optimize.compact_files()
    keys = random.Random(1).sample(range(60_000), 20_000)
    merge = dataset.merge_insert("key").when_matched_update_all()
    merge.execute(pa.table({"key": pa.array(keys, pa.int64()), "text": ["merged"] * len(keys)}))
    compare(tmp_path)
