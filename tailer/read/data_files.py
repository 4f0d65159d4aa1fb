"""Files of a table, opened by their location: local ones, and objects of a store.

Arrow could read objects by itself (`pyarrow.fs.S3FileSystem`), and so could obstore. Our own ranges are used instead,
because then a store has one source of credentials and one set of errors, by which the pipeline decides to wait, to
stop, or to look for lost files; because requester pays and every other option of a store hold for data files too;
because no second client of S3 is needed; and because the bytes in memory are bounded whatever a row group has. Arrow
reads either a whole row group ahead, or one column after the other, each megabyte after a round trip, as it does
through obstore. At 20 ms a request, 12 columns of a file of 218 MB take 1.1 times as long as from a local disk, 2.8
times with Arrow's whole row groups, and 6 times with a megabyte at a time by Arrow or obstore, on two processors shared
with the server.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa
from typing_extensions import override

from tailer.errors import (
    ChangesUnavailable,
    DataCorrupt,
    ExpressionFailed,
    FileVacuumed,
    ObjectNotFound,
    StorageRefused,
    StorageUnavailable,
)
from tailer.plan import ChangeTask
from tailer.schema.columns import refuse_names
from tailer.stores.folders import is_lasting
from tailer.stores.pieces import Limits
from tailer.stores.ranges import ObjectRanges
from tailer.stores.read_ahead import LIMITS, ReadAhead, open_ahead

__all__ = ["LOCAL", "DataFile", "DataFiles", "Files", "check_task", "translated"]

_OPEN_AHEAD: Final = 16


class DataFile:
    """A file open for reading. `read_ahead`: of an object of a store; None for a local file, or an object in memory."""

    __slots__ = ("_handle", "read_ahead", "source")

    def __init__(self, source: pa.NativeFile, handle: "_Handle | None" = None) -> None:
        self.source = source
        self._handle = handle
        self.read_ahead = None if handle is None else handle.read_ahead

    def __enter__(self) -> "DataFile":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close the file. Raise the first error of the store, if any, in place of what a reader made of it."""
        self.source.close()
        handle = self._handle
        if handle is not None and handle.failure is not None and (kind is None or issubclass(kind, Exception)):
            raise handle.failure


class Files(Protocol):
    """Opens files by their location."""

    def has(self, uri: str) -> bool:
        """Return whether `uri` is a location that `open` understands."""
        ...

    def open(self, uri: str, needed_bytes: int = 0) -> DataFile:
        """Open a file. `needed_bytes`: its size if all of it will be read; 0: unknown.

        Raises `OSError` for a local one, and what `ObjectRanges` raises for any other.
        """
        ...

    def read(self, uri: str, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from `offset` on; fewer only where the file ends there. Raises as `open`."""
        ...

    def login(self, uri: str) -> Mapping[str, str]:
        """Return the options, credentials among them, for a library that opens `uri` by itself."""
        ...


@dataclass(frozen=True, slots=True)
class DataFiles(Files):
    """Opens files. Survives pickle if `ranges` does.

    `ranges`: opens the object at a location; None: all files are local. `logins`: returns what `Files.login` returns.
    """

    ranges: Callable[[str], ObjectRanges] | None = None
    limits: Limits = LIMITS
    logins: Callable[[str], Mapping[str, str]] | None = None

    def is_local(self, uri: str) -> bool:
        """Return whether a file is one of this machine."""
        return self.ranges is None or uri.startswith("/")

    @override
    def has(self, uri: str) -> bool:
        return uri.startswith("/") or self.ranges is not None

    @override
    def open(self, uri: str, needed_bytes: int = 0) -> DataFile:
        if self.ranges is None or uri.startswith("/"):
            return DataFile(pa.OSFile(uri))
        return _data_file(ReadAhead(self.ranges(uri), self.limits, needed_bytes))

    @override
    def read(self, uri: str, offset: int, length: int) -> bytes:
        if self.ranges is not None and not uri.startswith("/"):
            return self.ranges(uri).read(offset, length) if offset >= 0 and length > 0 else b""
        with pa.OSFile(uri) as file:
            size = file.size()
            if offset >= size:
                return b""
            file.seek(offset)
            data: bytes = file.read(min(length, size - offset))
            return data

    @override
    def login(self, uri: str) -> Mapping[str, str]:
        return {} if self.logins is None or uri.startswith("/") else self.logins(uri)

    def in_turn(self, files: Iterable[tuple[str, int]]) -> "FilesInTurn":
        """Open files that are read one after the other.

        `files`: locations, each with what `Files.open` takes as `needed_bytes`.
        """
        return FilesInTurn(self, () if self.ranges is None else files)


LOCAL: Final = DataFiles()


class FilesInTurn(Files):
    """Opens files whose order is known, some objects ahead of their turn."""

    def __init__(self, files: DataFiles, following: Iterable[tuple[str, int]]) -> None:
        self._files = files
        self._following = deque(following)
        self._opening: deque[tuple[str, Future[ReadAhead]]] = deque()

    @override
    def has(self, uri: str) -> bool:
        return self._files.has(uri)

    @override
    def read(self, uri: str, offset: int, length: int) -> bytes:
        return self._files.read(uri, offset, length)

    @override
    def login(self, uri: str) -> Mapping[str, str]:
        return self._files.login(uri)

    def open(self, uri: str, needed_bytes: int = 0) -> DataFile:
        """See `Files.open`. A file out of turn is opened by itself."""
        opening = self._opening.popleft()[1] if self._opening and self._opening[0][0] == uri else None
        if opening is None and self._following and self._following[0][0] == uri:
            self._following.popleft()
        self.open_ahead()
        if opening is None or opening.cancel():
            return self._files.open(uri, needed_bytes)
        return _data_file(opening.result())

    def close(self) -> None:
        """Cancel what is being opened."""
        for _, opening in self._opening:
            opening.cancel()

    def open_ahead(self) -> None:
        """Begin to open the next files."""
        ranges, limits = self._files.ranges, self._files.limits
        while ranges is not None and self._following and len(self._opening) < _OPEN_AHEAD:
            uri, needed_bytes = self._following.popleft()
            if not uri.startswith("/"):
                self._opening.append((uri, open_ahead(ranges(uri), limits, needed_bytes)))


def _data_file(read_ahead: ReadAhead) -> DataFile:
    if (whole := read_ahead.whole) is not None:
        # Arrow then reads without the interpreter's lock, and copies nothing.
        return DataFile(pa.BufferReader(whole))
    handle = _Handle(read_ahead)
    return DataFile(pa.PythonFile(handle, "r"), handle)


class _Handle:
    """An object with the methods that Arrow calls on a file. After an error, each read raises that error."""

    closed = False

    def __init__(self, read_ahead: ReadAhead) -> None:
        self.read_ahead = read_ahead
        self.failure: Exception | None = None
        self._at = 0

    def read(self, length: int) -> bytes | memoryview:
        if self.failure is not None:
            raise self.failure
        try:
            content = self.read_ahead.read(self._at, length)
        except Exception as error:
            self.failure = error
            raise
        self._at += len(content)
        return content

    def seek(self, offset: int, whence: int = 0) -> int:
        position = offset + (0, self._at, self.read_ahead.size_bytes)[whence]
        if position < 0:
            raise pa.ArrowInvalid(f"there is nothing at {position}")
        self._at = position
        return position

    def tell(self) -> int:
        return self._at

    def close(self) -> None:
        self.closed = True
        self.read_ahead.close()


def check_task(task: ChangeTask, files: Files) -> None:
    """Raise unless it is known where every file of the task is: a name alone would mean one in our own folder.

    Raises `ChangesUnavailable`, and `UnsupportedFeature` for columns that have a name of ours.
    """
    for uri in (task.uri, *(vector.uri for vector in (task.include, task.exclude) if vector is not None)):
        if uri is not None and not files.has(uri):
            raise ChangesUnavailable(task.table, task.version, f"{uri} is not a local path")
    refuse_names(task.schema, task.table, task.version)


@contextmanager
def translated(task: ChangeTask, path: str) -> Iterator[None]:
    """Translate errors of reading `path` into ours."""
    try:
        yield
    except ExpressionFailed as error:
        raise error.of_file(task.table, task.version, path) from None
    except (FileNotFoundError, NotADirectoryError, ObjectNotFound):
        raise FileVacuumed(task.table, task.version, path, (task.logged or "") * (path == task.uri)) from None
    except (pa.ArrowException, UnicodeError) as error:
        raise DataCorrupt(task.table, task.version, path, str(error)) from error
    except OSError as error:
        # Arrow reports broken Parquet pages as an OSError without an errno; the system's own errors have one.
        if error.errno is None:
            raise DataCorrupt(task.table, task.version, path, str(error)) from error
        raise (StorageRefused if is_lasting(error) else StorageUnavailable)(path, os.strerror(error.errno)) from error
