"""Metadata of old datasets of Lance's own project: every version is what pylance says it is."""

import pytest

from tailer.errors import LogCorrupt
from tests.support.tables.golden import golden
from tests.support.tables.lance_oracle import compare, read_manifests

DATASETS = {
    "v0.7.5/with_deletions": [1, 2],
    "v0.8.0/migrated_from_v0.7.5": [1, 2, 3],
    "v0.8.14/corrupt_index": [1, 2, 3, 4, 5],
    "v0.10.5/corrupt_schema": [1, 2, 3, 4, 5, 6],
    "v0.15.0/v1_no_files.lance": [1],
    "v0.15.0/v1_with_files.lance": [1],
    "v0.15.0/v2_no_files.lance": [1],
    "v0.15.0/v2_with_files.lance": [1],
    "v0.16.0/wrong_data_version_can_fix.lance": [1, 2],
    "v0.16.0/wrong_data_version_no_fix.lance": [1, 2],
    "v0.21.0/bad_index_fragment_bitmap": [4],
    "v0.27.1/pq_in_schema": [1, 2],
}


@pytest.mark.parametrize("name", DATASETS)
def test_versions_are_as_pylance_reads_them(name: str) -> None:
    assert [each.version for each in compare(golden("lance", name))] == DATASETS[name]


def test_every_dataset_is_compared() -> None:
    root = golden("lance")
    assert {str(each.parent.relative_to(root)) for each in root.rglob("_versions")} == set(DATASETS)


def test_a_repeated_fragment_id_is_refused_by_name() -> None:
    first, second = read_manifests(golden("lance", "v0.16.0", "wrong_data_version_no_fix.lance"))
    assert first.fragments_by_id("t") == {}
    with pytest.raises(LogCorrupt, match=r"t: _versions \(version 2\): two fragments have the id 1"):
        second.fragments_by_id("t")


def test_a_wrong_number_of_physical_rows_is_carried_as_it_is() -> None:
    *_, latest = read_manifests(golden("lance", "v0.8.0", "migrated_from_v0.7.5"))
    assert [each.physical_rows for each in latest.fragments] == [90, 2]  # the first has 100
