"""A local directory as an `ObjectStore`."""

import os
import re
import secrets
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from io import BytesIO
from operator import itemgetter
from pathlib import Path
from types import TracebackType
from typing import Final, TypeVar

from anyio import to_thread
from typing_extensions import override

from tailer.errors import ObjectAlreadyExists, ObjectNotFound, StorageError, StorageRefused, StorageUnavailable
from tailer.stores.folders import creation_obstacle, is_lasting
from tailer.stores.port import BlockingScans, Folders, ObjectMeta, Objects, ObjectStore, OpenObject, StoredObject
from tailer.stores.wakeup import LocalWake, Wake

__all__ = ["LocalStore"]

T = TypeVar("T")

SMALL_BYTES: Final = 1 << 16
SETTLED_S: Final = 2.0  # the coarsest time of change that file systems record


class LocalStore(ObjectStore):
    """A local directory. Commits are durable: data and directory are synced before success is reported.

    `uri` is its absolute path.
    """

    is_atomic = False  # other programs may write a file in pieces

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.uri = str(self.root)

    @override
    async def read(self, name: str, decode: Callable[[StoredObject], T]) -> T:
        return await to_thread.run_sync(lambda: decode(self._fetch(name)))

    @override
    async def scan(self, name: str, work: Callable[[OpenObject], T]) -> T:
        return await to_thread.run_sync(self.scan_now, name, work)

    @override
    async def stat(self, name: str) -> ObjectMeta:
        return await to_thread.run_sync(self.stat_now, name)

    @override
    async def list(self, prefix: str, start_after: str = "") -> Objects:
        return await to_thread.run_sync(self._scan, prefix, start_after)

    async def list_folders(self, prefix: str) -> Folders:
        """See `ObjectStore.list_folders`; links to folders count."""
        return await to_thread.run_sync(self._scan_folders, prefix)

    async def put_if_absent(self, name: str, data: bytes) -> None:
        """See `ObjectStore.put_if_absent`; a hard link creates the name."""
        await to_thread.run_sync(self._write, name, data, os.link)

    @override
    async def put(self, name: str, data: bytes) -> None:
        await to_thread.run_sync(self._write, name, data, os.replace)

    @override
    async def delete(self, name: str) -> None:
        await to_thread.run_sync(self._unlink, name)

    def make_wake(self, prefix: str, names: re.Pattern[str]) -> Wake:
        """See `ObjectStore.make_wake`; the operating system notifies."""
        return LocalWake(self.root / prefix, names)

    def scan_now(self, name: str, work: Callable[[OpenObject], T]) -> T:
        """See `BlockingScans.scan_now`."""
        path = f"{self.uri}/{name}"
        with _translated(path):
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                stat = os.fstat(handle)
                meta = ObjectMeta(name, stat.st_size, stat.st_mtime_ns // 1_000_000)
                if stat.st_size <= SMALL_BYTES:  # logs have very many such files: half the time of a file object
                    data = os.read(handle, stat.st_size + 1)
                    if len(data) == stat.st_size:
                        return work(OpenObject(meta, BytesIO(data)))
                    os.lseek(handle, 0, os.SEEK_SET)
                with open(handle, "rb", closefd=False) as file:
                    return work(OpenObject(meta, file))
            finally:
                os.close(handle)

    @override
    async def holds(self, prefix: str, is_wanted: Callable[[str], bool]) -> bool:
        return await to_thread.run_sync(self._holds, prefix, is_wanted)

    async def folder_mark(self, prefix: str) -> Hashable | None:
        """See `ObjectStore.folder_mark`: the folder's time of change, which nobody can set."""
        return await to_thread.run_sync(self._mark, prefix)

    @override
    def blocking(self) -> BlockingScans:
        return self

    def _holds(self, prefix: str, is_wanted: Callable[[str], bool]) -> bool:
        path = self.root / prefix
        try:
            with os.scandir(path) as entries:
                return any(is_wanted(entry.name) for entry in entries)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:  # also of a folder that nobody may read: a table may be there once it is allowed
            raise StorageUnavailable(str(path.parent), error.strerror or str(error)) from error

    def _mark(self, prefix: str) -> Hashable | None:
        with suppress(OSError):
            stat = (self.root / prefix).stat()
            if time.time() - stat.st_ctime > SETTLED_S:
                return stat.st_dev, stat.st_ino, stat.st_ctime_ns
        return None

    def _fetch(self, name: str) -> StoredObject:
        def whole(opened: OpenObject) -> StoredObject:
            data = opened.file.read()
            return StoredObject(opened.meta._replace(size_bytes=len(data)), data)

        return self.scan_now(name, whole)

    def stat_now(self, name: str) -> ObjectMeta:
        """See `BlockingScans.stat_now`."""
        path = f"{self.uri}/{name}"
        with _translated(path):
            file_stat = os.stat(path)  # noqa: PTH116 - as fast as can be
        return ObjectMeta(name, file_stat.st_size, file_stat.st_mtime_ns // 1_000_000)

    def _scan(self, prefix: str, start_after: str) -> Objects:
        objects: Objects = []
        try:
            with _translated(self.root / prefix), os.scandir(self.root / prefix) as entries:
                for entry in entries:
                    name = f"{prefix}/{entry.name}"
                    if name <= start_after:
                        continue
                    # A file may be deleted between listing and `stat`; that must not hide the others.
                    try:
                        if entry.is_file():
                            stat = entry.stat()
                            objects.append(ObjectMeta(name, stat.st_size, stat.st_mtime_ns // 1_000_000))
                    except FileNotFoundError:
                        continue
        except ObjectNotFound:
            return []
        objects.sort(key=itemgetter(0))
        return objects

    def _scan_folders(self, prefix: str) -> Folders:
        with _translated(self.root / prefix), os.scandir(self.root / prefix) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())

    def _unlink(self, name: str) -> None:
        path = self.root / name
        with suppress(ObjectNotFound), _translated(path):
            path.unlink()

    def _write(self, name: str, data: bytes, publish: Callable[[Path, Path], None]) -> None:
        path = self.root / name
        part = path.parent / f".{path.name}.{secrets.token_hex(8)}.tmp"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with part.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            publish(part, path)
            _sync_directory(path.parent)
        except OSError as error:
            if isinstance(error, FileExistsError) and path.parent.is_dir():
                raise ObjectAlreadyExists(str(path)) from None
            if obstacle := creation_obstacle(path.parent):
                raise StorageRefused(str(path), obstacle) from error
            raise _failure(path, error) from error
        finally:
            # An error about the object matters more than one about its temporary file.
            with suppress(OSError):
                part.unlink()


class _translated:  # noqa: N801 - used like a function; a generator takes longer than to open a file
    """Translate system errors about `path` into storage errors."""

    __slots__ = ("_path",)

    def __init__(self, path: Path | str) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            raise ObjectNotFound(str(self._path)) from None
        if isinstance(error, OSError):
            raise _failure(self._path, error) from error


def _failure(path: Path | str, error: OSError) -> StorageError:
    kind = StorageRefused if is_lasting(error) else StorageUnavailable
    return kind(str(path), error.strerror or str(error))


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
