"""Tests for `tailer.formats.lance.manifest`; pylance is the oracle of what a reader may open."""

from dataclasses import replace
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from tailer.errors import UnsupportedFeature
from tailer.formats.lance.manifest import FLAGS, Answer, Manifest, parse_manifest, refuse_unknown, uses_stable_row_ids
from tests.support.tables.lance_files import field, manifest_file, reflagged

BITS = [1 << place for place in range(64)]
STABLE = 2
# pylance reads such datasets, or refuses them for another reason; the format's pages explain the first flag alone.
ONLY_OURS = [1 << 11, 1 << 14, 1 << 15]


def flagged(reader: int, writer: int) -> Manifest:
    """Return a manifest with feature flags."""
    file = manifest_file(field(3, 4) + field(9, reader) + field(10, writer))
    return parse_manifest(file, "t/_versions/4.manifest")


def test_flags_that_are_not_refused_are_those_that_pylance_reads(tmp_path: Path) -> None:
    for bit in BITS:
        check_flag(tmp_path / str(bit), bit)


def check_flag(tmp_path: Path, bit: int) -> None:
    """Check that we read a dataset with a flag where pylance does."""
    lance.write_dataset(pa.table({"a": [1]}), tmp_path, enable_stable_row_ids=bit == STABLE)
    (path,) = (tmp_path / "_versions").glob("*.manifest")
    reflagged(path, reader=bit, writer=bit)
    manifest = parse_manifest(path.read_bytes(), str(path))
    flag = FLAGS.get(bit)
    if flag is not None and flag.answer is not Answer.REFUSED:
        refuse_unknown(manifest, "t")
        assert lance.dataset(tmp_path).to_table().to_pydict() == {"a": [1]}
        return
    with pytest.raises(UnsupportedFeature, match=f"t: version 1 needs the reader feature flag {bit}"):
        refuse_unknown(manifest, "t")
    if bit not in ONLY_OURS:
        with pytest.raises((ValueError, OSError), match="Flags"):
            lance.dataset(tmp_path)


def test_a_refused_flag_is_named() -> None:
    with pytest.raises(UnsupportedFeature) as caught:
        refuse_unknown(flagged(64 | 1, 0), "t")
    assert caught.value.feature == "the reader feature flag 64 (data overlay files)"
    with pytest.raises(UnsupportedFeature, match="flag 4096: lake-tailer does not know it"):
        refuse_unknown(flagged(4096, 0), "t")


@pytest.mark.parametrize("bit", [bit for bit, flag in FLAGS.items() if flag.is_paired])
def test_a_flag_for_readers_alone_is_refused_where_the_format_says_so(bit: int) -> None:
    refuse_unknown(flagged(bit, bit), "t")
    with pytest.raises(UnsupportedFeature, match=f"flag {bit} .*: without the flag for writers it has no meaning"):
        refuse_unknown(flagged(bit, 0), "t")


def test_flags_of_writers_do_not_matter() -> None:
    refuse_unknown(flagged(0, 2**64 - 1), "t")


def test_stable_row_ids_are_a_flag() -> None:
    assert uses_stable_row_ids(flagged(STABLE | 1, 0))
    assert not uses_stable_row_ids(flagged(1, STABLE))
    assert not uses_stable_row_ids(replace(flagged(STABLE, 0), reader_feature_flags=0))
