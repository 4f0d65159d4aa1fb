"""Spill directories: each process has its own, and another process removes it after its owner's death."""

import errno
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyroaring import BitMap64

from tailer.changelog.equal_rows.database_index import DatabaseIndex
from tailer.changelog.spill import SpilledBitmaps, SpilledPreimages, scratch_folder
from tailer.errors import Retry, ScratchUnavailable
from tailer.formats.delta.checkpoints.sorted_runs import SpillingSort

PROGRAM = """
import os, signal, sys
from tailer.changelog.spill import scratch_folder

folder = scratch_folder()
(folder / "much").write_bytes(bytes(1000))
print(folder, flush=True)
sys.stdin.readline()
if sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def process(end: str) -> tuple[subprocess.Popen[str], Path]:
    """Start a process that has a spill directory; yield both. It ends on request."""
    command = [sys.executable, "-c", PROGRAM, end]
    started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    return started, Path(started.stdout.readline().strip())


def test_every_folder_is_a_new_one(parent: Path) -> None:
    folders = [scratch_folder() for _ in range(3)]
    assert len(set(folders)) == 3
    assert {folder.parent.parent for folder in folders} == {parent}
    assert [list(folder.iterdir()) for folder in folders] == [[], [], []]


@pytest.mark.usefixtures("parent")
@pytest.mark.parametrize("end", ["returns", "killed"])
def test_nothing_is_left_of_a_process_that_is_gone(end: str) -> None:
    gone, left = process(end)
    with gone:
        gone.communicate("\n")
    assert left.exists() == (end == "killed")
    scratch_folder()
    assert not left.parent.exists()


@pytest.mark.usefixtures("parent")
def test_directories_in_use_are_kept() -> None:
    other, used = process("returns")
    with other:
        scratch_folder()
        assert (used / "much").stat().st_size == 1000
        other.communicate("\n")
    assert not used.exists()


def test_foreign_files_are_kept(parent: Path) -> None:
    (parent / "lake-tailer-notes").mkdir()
    (parent / "lake-tailer.toml").touch()
    scratch_folder()
    assert (parent / "lake-tailer-notes").exists()
    assert (parent / "lake-tailer.toml").exists()


@pytest.mark.usefixtures("parent")
def test_a_removed_folder_is_created_again() -> None:
    first = scratch_folder().parent
    (first / "lock").unlink()
    for folder in first.iterdir():
        folder.rmdir()
    first.rmdir()
    assert scratch_folder().is_dir()


def test_no_place_for_it(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(parent / "missing"))
    with pytest.raises(ScratchUnavailable, match=r"missing: cannot write temporary files") as raised:
        scratch_folder()
    assert "TMPDIR" in raised.value.hint


def full(*_: object, **__: object) -> None:
    """The error of a full disk."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def sort_much() -> None:
    batch = pa.record_batch({"id": [1]})
    with SpillingSort(batch.schema, ["id"], run_bytes=1) as entries:
        entries.add(batch)


def select_rows() -> None:
    with SpilledBitmaps() as selections:
        selections.store(BitMap64([1]))


def keep_preimages() -> None:
    batch = pa.record_batch({"id": [1]})
    ranks = iter([pa.record_batch({"rank": pa.array([0], pa.int64())})])
    with SpilledPreimages() as preimages:
        preimages.keep([batch], ranks, {0: BitMap64([0])})


@pytest.mark.parametrize("spill", [sort_much, select_rows, keep_preimages, scratch_folder, DatabaseIndex])
def test_a_full_disk_is_named_at_every_write(
    parent: Path, monkeypatch: pytest.MonkeyPatch, spill: Callable[[], object]
) -> None:
    """The error names the temporary folder, not the source or the target."""
    monkeypatch.setattr("tempfile.mkdtemp", full)
    monkeypatch.setattr("tempfile.TemporaryFile", full)
    with pytest.raises(ScratchUnavailable) as raised:
        spill()
    assert str(raised.value) == f"{parent}: cannot write temporary files: No space left on device"
    assert raised.value.hint == "Free space there, or set TMPDIR to a folder on a disk with free space."
    assert raised.value.retry is Retry.TIMED
