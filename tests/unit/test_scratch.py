"""The disk a process uses for what does not fit into memory: its own, and nobody's when it is gone."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tailer.errors import StorageUnavailable
from tailer.scratch import scratch_folder

PROGRAM = """
import os, signal, sys
from tailer.scratch import scratch_folder

folder = scratch_folder()
(folder / "much").write_bytes(bytes(1000))
print(folder, flush=True)
sys.stdin.readline()
if sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def process(end: str) -> tuple[subprocess.Popen[str], Path]:
    """One that has a folder, and its folder; it ends when it is told so."""
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
def test_what_is_in_use_stays() -> None:
    other, used = process("returns")
    with other:
        scratch_folder()
        assert (used / "much").stat().st_size == 1000
        other.communicate("\n")
    assert not used.exists()


def test_what_is_not_ours_stays(parent: Path) -> None:
    (parent / "lake-tailer-notes").mkdir()
    (parent / "lake-tailer.toml").touch()
    scratch_folder()
    assert (parent / "lake-tailer-notes").exists()
    assert (parent / "lake-tailer.toml").exists()


@pytest.mark.usefixtures("parent")
def test_a_folder_that_somebody_took_away_is_made_anew() -> None:
    first = scratch_folder().parent
    (first / "lock").unlink()
    for folder in first.iterdir():
        folder.rmdir()
    first.rmdir()
    assert scratch_folder().is_dir()


def test_no_place_for_it(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(parent / "missing"))
    with pytest.raises(StorageUnavailable, match="missing"):
        scratch_folder()
