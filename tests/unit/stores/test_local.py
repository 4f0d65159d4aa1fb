"""Local directories with other programs and system errors; `tests/contract/test_stores.py` tests every store."""

import errno
import os
import stat
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from tailer.errors import (
    ObjectAlreadyExists,
    Retry,
    StorageRefused,
    StorageUnavailable,
    TailerError,
)
from tailer.stores import local
from tailer.stores.local import SMALL_BYTES, LocalStore
from tailer.stores.port import ObjectStore, OpenObject, StoredObject

pytestmark = pytest.mark.anyio


def content(stored: StoredObject) -> bytes:
    return stored.data


async def names(store: ObjectStore, prefix: str = "log", start_after: str = "") -> list[str]:
    return [meta.name for meta in await store.list(prefix, start_after)]


async def test_links_in_a_circle_are_not_tried_again(tmp_path: Path) -> None:
    (tmp_path / "log").symlink_to("log")
    store = LocalStore(tmp_path)
    asks: list[Callable[[], Awaitable[object]]] = [
        partial(store.read, "log/a", content),
        partial(store.scan, "log/a", lambda _: None),
        partial(store.list, "log"),
        partial(store.stat, "log/a"),
        partial(store.delete, "log/a"),
    ]
    for ask in asks:
        with pytest.raises(StorageRefused, match="Too many levels of symbolic links") as caught:
            await ask()
        assert (caught.value.retry, "symbolic links" in caught.value.hint) == (Retry.MANUAL, True)


async def test_a_name_too_long_is_not_tried_again(tmp_path: Path) -> None:
    with pytest.raises(StorageRefused, match="name too long"):
        await LocalStore(tmp_path).read("x" * 5000, content)


async def test_nothing_is_left_beside_what_was_written(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    await store.put_if_absent("log/a", b"1")
    await store.put("log/a", b"2")
    with suppress(ObjectAlreadyExists):
        await store.put_if_absent("log/a", b"3")
    assert os.listdir(tmp_path / "log") == ["a"]  # noqa: PTH208


async def test_bytes_are_on_the_disk_before_the_object_appears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync, path = os.fsync, tmp_path / "log" / "a"
    synced: list[tuple[object, bool]] = []

    def fsync(handle: int) -> None:
        synced.append((os.stat(handle).st_size if stat.S_ISREG(os.fstat(handle).st_mode) else "folder", path.exists()))
        sync(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    await LocalStore(tmp_path).put_if_absent("log/a", b"two")
    assert synced == [(3, False), ("folder", True)]


async def test_times_are_the_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    os.utime(tmp_path / "a", ns=(0, 1_234_999_999))
    store = LocalStore(tmp_path)
    assert (await store.read("a", lambda stored: stored.meta.modified_ms)) == 1234
    os.utime(tmp_path / "a", ns=(0, -1))
    assert (await store.read("a", lambda stored: stored.meta.modified_ms)) == -1


@pytest.mark.parametrize("size_bytes", [0, 1, SMALL_BYTES - 1, SMALL_BYTES, SMALL_BYTES + 1])
@pytest.mark.parametrize("grows_by", [0, 1, 100_000])
async def test_a_file_that_grows_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size_bytes: int, grows_by: int
) -> None:
    """All that is there is read; the metadata are those of before."""
    (tmp_path / "a").write_bytes(b"x" * size_bytes)
    fstat = os.fstat

    def grow(handle: int) -> os.stat_result:
        found = fstat(handle)
        with (tmp_path / "a").open("ab") as file:
            file.write(b"y" * grows_by)
        return found

    def read(opened: OpenObject) -> tuple[int, bytes, bytes]:
        first = opened.file.read(1)
        opened.file.seek(0)
        return opened.meta.size_bytes, first, opened.file.read()

    monkeypatch.setattr(local, "os", SimpleNamespace(**vars(os) | {"fstat": grow}))
    data = b"x" * size_bytes + b"y" * grows_by
    assert await LocalStore(tmp_path).scan("a", read) == (size_bytes, data[:1], data)


async def test_the_root_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert LocalStore(Path("x/../y")).uri == f"{tmp_path}/x/../y"


async def test_only_files_are_objects(tmp_path: Path) -> None:
    (tmp_path / "log" / "folder").mkdir(parents=True)
    (tmp_path / "log" / "nowhere").symlink_to("gone")
    (tmp_path / "log" / "file").write_bytes(b"")
    (tmp_path / "log" / "link").symlink_to("file")
    os.mkfifo(tmp_path / "log" / "pipe")
    assert await names(LocalStore(tmp_path)) == ["log/file", "log/link"]


def a_folder(path: Path) -> None:
    path.mkdir(parents=True)


def a_loop(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.symlink_to(path)


@pytest.mark.parametrize("make", [a_folder, a_loop])
async def test_a_path_of_another_kind_is_refused_at_once(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """A retry does not help, so the error must not be `StorageUnavailable`."""
    make(tmp_path / "log" / "a")
    for verb in (LocalStore.read, LocalStore.scan):
        with pytest.raises(StorageRefused) as raised:
            await verb(LocalStore(tmp_path), "log/a", lambda _: None)
        assert raised.value.retry is Retry.MANUAL
        assert "answer" not in str(raised.value)


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (errno.EACCES, StorageRefused),
        (errno.EROFS, StorageRefused),
        (errno.EPERM, StorageRefused),
        (errno.ENOSPC, StorageUnavailable),
        (errno.EIO, StorageUnavailable),
    ],
)
async def test_an_error_that_lasts_is_none_of_a_store_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, error: type[TailerError]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    store = LocalStore(tmp_path)
    await store.put("a", b"")
    monkeypatch.setattr("os.fsync", fail)
    monkeypatch.setattr("os.scandir", fail)
    for failing in (store.put("b", b""), store.put_if_absent("c", b""), store.list("")):
        with pytest.raises(error, match=os.strerror(number)) as raised:
            await failing
        assert type(raised.value) is error


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Make a folder that nobody can write to, root included: a file in its place."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_bytes(b"")
    yield
    folder.unlink()


@pytest.mark.parametrize("name", ["log/a", "log/sub/a"])
@pytest.mark.parametrize("verb", [LocalStore.put, LocalStore.put_if_absent])
async def test_writing_into_a_read_only_folder(tmp_path: Path, name: str, verb: Callable[..., object]) -> None:
    with read_only(tmp_path / "log"), pytest.raises(StorageRefused):
        await verb(LocalStore(tmp_path), name, b"")  # type: ignore[misc]
    await LocalStore(tmp_path).put(name, b"")


async def test_a_folder_in_the_place_of_an_object(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    (tmp_path / "log" / "a").mkdir(parents=True)
    with pytest.raises(ObjectAlreadyExists):
        await store.put_if_absent("log/a", b"")
    for failing in (store.put("log/a", b""), store.delete("log/a")):
        with pytest.raises(StorageRefused):
            await failing
    assert await names(store) == []


async def test_a_file_that_goes_while_its_folder_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers rename temporary files all the time; one removed between listing and `stat` must not hide the others."""
    for name in "abc":
        (tmp_path / name).write_bytes(b"")
    entries = list(os.scandir(tmp_path))
    (tmp_path / "b").unlink()
    monkeypatch.setattr("os.scandir", lambda _: nullcontext(entries))
    assert await names(LocalStore(tmp_path.parent), tmp_path.name) == [f"{tmp_path.name}/a", f"{tmp_path.name}/c"]


async def test_files_are_as_readable_as_the_process_makes_them(tmp_path: Path) -> None:
    await LocalStore(tmp_path).put_if_absent("a", b"")
    (tmp_path / "b").write_bytes(b"")
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in "ab"]
    assert modes[0] == modes[1]


async def test_every_failure_has_a_name(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    long = "x" * 300
    for failing in (store.read(long, content), store.put(long, b""), store.put_if_absent(long, b""), store.list(long)):
        with pytest.raises(TailerError):
            await failing
    with pytest.raises(TailerError):
        await store.delete(long)
