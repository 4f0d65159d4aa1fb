"""Tests for the names of `tailer.formats.lance.manifest`."""

import pytest

from tailer.errors import LogCorrupt
from tailer.formats.lance.manifest import manifests

V2_OF_1 = "18446744073709551614.manifest"
V2_OF_12 = "18446744073709551603.manifest"


def test_v1_names_are_sorted_as_numbers() -> None:
    found = manifests("t", ["10.manifest", "9.manifest", "1.manifest"])
    assert list(found.items()) == [(1, "1.manifest"), (9, "9.manifest"), (10, "10.manifest")]


def test_v2_names_count_down() -> None:
    assert list(manifests("t", [V2_OF_12, V2_OF_1]).items()) == [(1, V2_OF_1), (12, V2_OF_12)]


@pytest.mark.parametrize(
    "name",
    [
        ".tmp_2.manifest",
        "2.manifest-6c3f1ad8-6b9b-4f4e-9a5e-2f8a5c0f1b11",
        "d9223372036854775810.manifest",
        "latest_version_hint.json",
        "2.manifest.crc",
    ],
)
def test_other_names_are_ignored(name: str) -> None:
    assert manifests("t", [name, "1.manifest"]) == {1: "1.manifest"}


def test_no_manifest_is_no_version() -> None:
    assert manifests("t", []) == {}


def test_a_mixture_of_schemes_is_refused_by_name() -> None:
    with pytest.raises(LogCorrupt, match=rf"t: _versions/2\.manifest: named by version, but {V2_OF_1} is not"):
        manifests("t", [V2_OF_1, "2.manifest"])


@pytest.mark.parametrize(
    "name", ["0.manifest", "01.manifest", "18446744073709551615.manifest", "99999999999999999999.manifest"]
)
def test_numbers_that_are_no_version_are_refused(name: str) -> None:
    with pytest.raises(LogCorrupt, match="not the number of a version"):
        manifests("t", [name])


def test_detached_numbers_are_refused_in_plain_names() -> None:
    with pytest.raises(LogCorrupt, match="not the number of a version"):
        manifests("t", ["00000000000000000001.manifest"])
