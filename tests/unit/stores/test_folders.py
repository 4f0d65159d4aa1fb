"""Comparison of folders by paths: links, mounts, letter case, folders that do not exist yet."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from tailer.stores.folders import Folder, creation_obstacle, foreign_entry, is_lasting


def is_one(first: Path, second: Path) -> bool:
    """Return whether both paths lead to one folder."""
    one, other = Folder.at(first), Folder.at(second)
    return one.lies_in(other) and other.lies_in(one)


@pytest.mark.parametrize("exists", [True, False])
def test_spellings_of_one_folder(tmp_path: Path, exists: bool) -> None:
    folder = tmp_path / "a" / "b"
    (folder if exists else tmp_path / "a").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "chain").symlink_to("link")
    (tmp_path / "to").symlink_to(folder)
    for path in ("link/b", "chain/b", "a/../link/b", "a/./b", "to", "link/../a/b"):
        assert is_one(tmp_path / path, folder), path
    for path in ("a", "link", "b", "a/c", "a/b/c"):
        assert not is_one(tmp_path / path, folder), path


@pytest.mark.parametrize("exists", [True, False])
def test_one_folder_in_another(tmp_path: Path, exists: bool) -> None:
    outer, inner = tmp_path / "a" / "outer", tmp_path / "a" / "outer" / "x" / "inner"
    (inner if exists else tmp_path / "a").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    for path in (inner, tmp_path / "link" / "outer" / "x" / "inner", outer):
        assert Folder.at(path).lies_in(Folder.at(outer))
    assert not Folder.at(outer).lies_in(Folder.at(inner))
    assert not Folder.at(tmp_path / "a" / "outer2").lies_in(Folder.at(outer))


def test_a_folder_that_is_in_two_places_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bind mount is the same folder without a link."""
    there, here = tmp_path / "there", tmp_path / "here"
    (there / "x").mkdir(parents=True)
    (here / "x").mkdir(parents=True)
    look = Path.stat

    def mounted(path: Path, **options: bool) -> object:
        return look(there if path == here else path, **options)

    monkeypatch.setattr(Path, "stat", mounted)
    assert is_one(here, there)
    assert Folder.at(here / "x").lies_in(Folder.at(there))
    assert Folder.at(here / "new").lies_in(Folder.at(there))
    assert is_one(here / "new", there / "new")


def test_letter_case_counts_where_it_counts(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    assert not is_one(tmp_path / "data" / "New", tmp_path / "data" / "new")
    (tmp_path / "DATA").symlink_to("data")  # as on a file system that ignores case
    assert is_one(tmp_path / "data" / "New", tmp_path / "DATA" / "new")


def test_a_loop_of_links_is_a_name_that_does_not_exist(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert is_one(tmp_path / "loop", tmp_path / "loop")
    assert not is_one(tmp_path / "loop", tmp_path)


@pytest.mark.parametrize(
    ("make", "entry"),
    [
        (lambda _: None, None),
        (Path.mkdir, None),
        (lambda path: (path / "_delta_log").mkdir(parents=True), None),
        (lambda path: (path / ".trash").mkdir(parents=True), None),
        (lambda path: (path / "lost+found").mkdir(parents=True), None),
        (lambda path: (path / "day=1").mkdir(parents=True), "day=1"),
    ],
)
def test_foreign_entries_are_found(tmp_path: Path, make: Callable[[Path], object], entry: str | None) -> None:
    make(tmp_path / "folder")
    assert foreign_entry(tmp_path / "folder") == entry


def test_a_file_has_no_entries(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        foreign_entry(tmp_path / "file")


def test_why_a_folder_cannot_be_created(tmp_path: Path) -> None:
    assert creation_obstacle(tmp_path) is None
    assert creation_obstacle(tmp_path / "new" / "folder") is None
    (tmp_path / "file").touch()
    assert creation_obstacle(tmp_path / "file" / "a" / "b") == f"{tmp_path / 'file'} is a file, not a folder"
    assert creation_obstacle(Path("/proc/a/b")) == "/proc has no room for files"


def test_errors_that_last() -> None:
    assert is_lasting(PermissionError(errno.EACCES, "Permission denied"))
    assert is_lasting(errno.EROFS)
    assert not is_lasting(OSError(errno.ENOSPC, "No space left on device"))
    assert not is_lasting(OSError("no number"))
    assert not is_lasting(None)
