"""Spilled bitmaps: tasks load the stored row selections, until the block ends."""

import resource
import tempfile
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from tailer.changelog.spill.bitmaps import SpilledBitmaps
from tailer.errors import StorageUnavailable
from tailer.files.deletion_vector import load
from tailer.plan import DeletionVectorRef
from tailer.read.execute import execute
from tests.support.tables.log_files import task

ROWS = st.sets(st.integers(0, 200_000), max_size=50) | st.sets(st.integers(0, 2**62), max_size=5)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def left(folder: Path) -> list[Path]:
    """Names in this process's spill folder, without its lock."""
    return [path for path in folder.glob("lake-tailer-*/**/*") if path.name != "lock"]


def read(uri: str, offset: int, length: int) -> bytes:
    return Path(uri).read_bytes()[offset : offset + length]


def loaded(ref: DeletionVectorRef | None) -> BitMap64 | None:
    return None if ref is None else load(ref, task("f", schema=None), read)


@given(st.lists(ROWS, max_size=5))
def test_stored_bitmaps_are_read_back(rows: list[set[int]]) -> None:
    with SpilledBitmaps() as selections:
        refs = [selections.store(BitMap64(each)) for each in rows]
        assert [loaded(ref) for ref in refs] == [BitMap64(each) if each else None for each in rows]


def test_many_rows(folder: Path) -> None:
    rows = BitMap64(range(0, 3_000_000, 3)) | BitMap64(range(5_000_000, 9_000_000))
    with SpilledBitmaps() as selections:
        assert loaded(selections.store(rows)) == rows
        assert sum(path.stat().st_size for path in left(folder)) < 500_000


def test_a_task_finds_its_rows(folder: Path) -> None:
    path = folder / "f.parquet"
    pq.write_table(pa.table({"a": [1, 2, 3, 4]}), path)
    with SpilledBitmaps() as selections:
        refs = [selections.store(BitMap64(rows)) for rows in ([3], [0, 1, 2], [2])]
        job = task(path, pa.schema([("a", pa.int64())]), include=refs[1], exclude=refs[2])
        (batch,) = execute(job)
        assert batch.rows["a"].to_pylist() == [1, 2]


def test_nothing_takes_no_file(folder: Path) -> None:
    with SpilledBitmaps() as selections:
        assert (selections.store(None), selections.store(BitMap64())) == (None, None)
        assert list(folder.iterdir()) == []


def test_the_file_is_removed_after_the_block(folder: Path) -> None:
    with suppress(KeyError), SpilledBitmaps() as selections:
        selections.store(BitMap64([1]))
        selections.store(BitMap64([2]))
        assert len([path for path in left(folder) if path.is_file()]) == 1
        raise KeyError
    assert left(folder) == []


def test_a_file_removed_meanwhile_is_no_error(folder: Path) -> None:
    with SpilledBitmaps() as selections:
        ref = selections.store(BitMap64([1]))
        assert ref is not None
        Path(str(ref.uri)).unlink()
    assert left(folder) == []


@pytest.mark.parametrize("place", ["missing", "file"])
def test_nowhere_to_put_them(folder: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    (folder / "file").write_bytes(b"")
    monkeypatch.setattr(tempfile, "tempdir", str(folder / place))
    with SpilledBitmaps() as selections, pytest.raises(StorageUnavailable, match=place):
        selections.store(BitMap64([1]))


@pytest.mark.parametrize("free_bytes", [0, 1, 20])
def test_a_full_disk(folder: Path, free_bytes: int) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with SpilledBitmaps() as selections:
        resource.setrlimit(resource.RLIMIT_FSIZE, (free_bytes, before[1]))
        try:
            with pytest.raises(StorageUnavailable, match="File too large"):
                selections.store(BitMap64([1, 2, 3]))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert left(folder) == []
