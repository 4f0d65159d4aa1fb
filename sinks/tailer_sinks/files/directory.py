"""The directory of one stream in the `files` sink: its file names are its log.

    00000000000000000000-00000000000000000006.jsonl    all rows of versions 0 to 6
    00000000000000000007-00000000000000000007.jsonl    version 7; the file exists even if it has no rows
    00000000000000000042.reset                         set by an operator: continue with version 42
    .lock                                              held by the only writer, whose name is in it
    .1f0c….tmp                                         uncommitted rows

A snapshot may be too large for one transaction. Then a file ends, and the next one begins, inside a version: after a
row of a file of the snapshot. Both numbers also have 20 digits, here only two:

    07-07.03.99.jsonl          the snapshot of version 7, up to row 99 of its file number 3
    07.03.99-07.11.42.jsonl    what comes after that row, up to row 42 of its file number 11
    07.11.42-09.jsonl          the rest of it, which closes version 7, and the changes of versions 8 and 9

A data file appears whole. Rows go to a hidden file, which is synced and then named by a hard link, one step that never
replaces a file. Then the directory is synced. So the names give exactly what was delivered (invariants 1 and 2), and
`read_end` checks that they follow each other without gap or overlap (invariant 3): each file begins where the previous
one ends. Names start with their beginning, and `-` sorts before `.`, so the byte order of the names is the order of the
rows.

Consumers may remove files from the front. The last one must stay: it is the progress.
"""

import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from anyio import to_thread
from typing_extensions import override

from tailer.errors import CommitUnknown, SinkFenced, SinkRejected, SinkUnavailable
from tailer.formats.delta.folders import table_around
from tailer.plan import Position
from tailer.sink import instance_name, process_of
from tailer.stores.folders import CHOOSE_ANOTHER, creation_obstacle, is_lasting
from tailer_sinks.files.formats import Draft, HiddenFile
from tailer_sinks.files.port import (
    PLACE,
    StreamFolder,
    after_place,
    beginning,
    directory_name,
    in_table,
    not_empty,
    place,
    position_of,
    sync_folder,
)

__all__ = ["LocalFolders"]

LOCK: Final = ".lock"
_LONGEST_NAME: Final = 500  # of an instance, in bytes
DATA_FILE: Final = re.compile(rf"{PLACE}-{PLACE}\.(?:jsonl|parquet)")
RESET: Final = re.compile(r"(\d{20})\.reset")


@contextmanager
def translated(sink: str, path: Path) -> Iterator[None]:
    """Raise `SinkUnavailable` for a temporary `OSError` (a full disk), `SinkRejected` for a permanent one."""
    try:
        yield
    except OSError as error:
        where = error.filename or path
        if obstacle := creation_obstacle(path):
            raise SinkRejected(sink, f"{path}: {obstacle}", CHOOSE_ANOTHER) from error
        if is_lasting(error):
            remedy = f"Check that {path} is a directory on a local file system and that this user may write to it."
            raise SinkRejected(sink, f"{where}: {error.strerror}", remedy) from error
        raise SinkUnavailable(sink, f"{where}: {error.strerror or error}") from error


def has_streams(sink: str, folder: Path) -> bool:
    """Return whether anything was ever delivered to a stream whose directory is in `folder`.

    Raises `SinkUnavailable` and `SinkRejected` as `translated` does.
    """
    with translated(sink, folder), suppress(FileNotFoundError):
        return any(_FileRange.of(path.name) is not None for path in folder.glob("*/*"))
    return False


def _foreign(root: Path) -> Path | None:
    """Find an entry of `root` that is neither a directory of a stream nor left by a writer killed at its start."""
    for pipeline in _visible(root):
        if not pipeline.is_dir():
            return pipeline
        for stream in _visible(pipeline):
            if not stream.is_dir():
                return stream
            if strange := next((path for path in _visible(stream) if _FileRange.of(path.name) is None), None):
                return strange
    return None


def _visible(folder: Path) -> list[Path]:
    with suppress(FileNotFoundError):
        return [path for path in folder.iterdir() if not path.name.startswith(".") and path.name != "lost+found"]
    return []


@dataclass(frozen=True, slots=True)
class _FileRange:
    """The content of a name: everything after `after` up to `end`; `after` None: a reset to `end`."""

    after: Position | None
    end: Position
    name: str

    @classmethod
    def of(cls, name: str) -> "_FileRange | None":
        """Parse `name`. None: not one of our names."""
        if match := RESET.fullmatch(name):
            return cls(None, Position.end(int(match[1]) - 1), name)
        if match := DATA_FILE.fullmatch(name):
            return cls(after_place(*match.groups()[:3]), position_of(*match.groups()[3:]), name)
        return None


class LocalFolders:
    """The folders of streams in the directory `path`; `sink`: the sink's name in errors."""

    def __init__(self, sink: str, path: Path) -> None:
        self._sink = sink
        self._path = path

    def stream(self, app_id: str) -> "LocalFolder":
        """Return the folder of a stream; no I/O."""
        return LocalFolder(self._sink, self._path, self._path.joinpath(*map(directory_name, app_id.split("/"))))

    async def has_streams(self, pipeline: str) -> bool:
        """Return whether anything was ever delivered to a stream of the pipeline."""
        return await to_thread.run_sync(has_streams, self._sink, self._path / directory_name(pipeline))


class LocalFolder(StreamFolder):
    """`StreamFolder` at `path`, below the directory `root` that the user names; `sink`: the sink's name in errors.

    Besides the errors they name, methods raise `SinkUnavailable` and `SinkRejected` as `translated` does.
    """

    def __init__(self, sink: str, root: Path, path: Path) -> None:
        self._sink = sink
        self._root = root
        self._path = path
        self._lock: int | None = None
        self._folder: int | None = None
        self._end: tuple[Position | None] | None = None

    @property
    @override
    def location(self) -> str:
        return str(self._path)

    @override
    async def check_free(self, *, adopt: bool) -> None:
        await to_thread.run_sync(self._check_free, adopt)

    async def open(self) -> None:
        """Become the only writer until `close`, creating the directory if necessary (invariant 6).

        Raises `SinkFenced` if another instance is the writer, in this process or elsewhere.
        """
        await to_thread.run_sync(self._open)

    @override
    async def read_end(self) -> Position | None:
        return await to_thread.run_sync(self._read_end, False)

    @override
    async def end(self) -> Position | None:
        """Return `read_end`, cached for the holder of the lock, because nobody else writes."""
        return await to_thread.run_sync(self._read_end, True)

    @override
    def forget(self) -> None:
        self._end = None

    @override
    def new_file(self) -> HiddenFile:
        return HiddenFile.named(self._hidden_path())

    @override
    def drafting(self) -> AbstractContextManager[None]:
        return translated(self._sink, self._path)

    @override
    async def publish(self, draft: Draft, after: Position, end: Position) -> None:
        """Raise also `SinkFenced` if the file exists, and `CommitUnknown` if it may not survive a crash."""
        await to_thread.run_sync(self._publish, draft, after, end)

    @override
    async def put_reset(self, draft: Draft, end: Position) -> None:
        """Record a reset with a file of another kind."""
        await to_thread.run_sync(self._put_reset, end)

    @override
    def disappeared(self, left: str) -> SinkRejected:
        remedy = "Restore its files. To deliver into a new directory from the pipeline's start, run it again."
        return SinkRejected(self._sink, f"{self._path} was deleted or replaced while in use: {left}", remedy)

    def close(self) -> None:
        """Release the lock."""
        self.forget()
        for handle in (self._lock, self._folder):
            if handle is not None:
                os.close(handle)
        self._lock = self._folder = None

    def _check_free(self, adopt: bool) -> None:
        with translated(self._sink, self._root):
            if (self._path / LOCK).exists() or has_streams(self._sink, self._path.parent):
                return
            if self._root.is_symlink() and not self._root.exists():
                remedy = "Create the folder it leads to, or choose another path."
                raise SinkRejected(self._sink, f"{self._root} is a link that leads nowhere", remedy)
            if table := table_around(self._path):
                is_same = str(table) == os.path.realpath(self._root)
                raise in_table(self._sink, self._root, table, is_same=is_same)
            if adopt or next(self._root.glob(f"*/*/{LOCK}"), None) is not None:
                return
            if foreign := _foreign(self._root):
                raise not_empty(self._sink, self._root, foreign)

    def _open(self) -> None:
        if self._lock is not None:
            self._check_there()
            return
        with self.drafting():
            _make_directory(self._path)
            handle = os.open(self._path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                other = process_of(os.pread(handle, _LONGEST_NAME, 0).decode(errors="replace"))
                os.close(handle)
                raise SinkFenced(self._sink, f"it holds {self._path / '.lock'}", other) from None
            except OSError:
                os.close(handle)
                raise
            self._lock = handle
            with suppress(OSError):  # for people: a full disk, for one, stops nobody here
                os.ftruncate(handle, 0)
                os.pwrite(handle, instance_name().encode(), 0)
            self._folder = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            for stale in self._path.glob(".*.tmp"):  # left by a killed writer, since the lock is ours
                stale.unlink()

    def _read_end(self, cached: bool) -> Position | None:
        """Read the end of the delivered positions; `cached`: unless the holder of the lock has read it before."""
        self._check_there()
        if cached and self._end is not None:
            return self._end[0]
        try:
            end = self._check(self._ranges())
        except SinkRejected:
            # A listing made during another instance's commit may show only its newer file. A real gap remains.
            end = self._check(self._ranges())
        if cached:
            self._end = (end,)
        return end

    def _put_reset(self, end: Position) -> None:
        self.forget()
        ranges = self._ranges()
        if later := [entry.name for entry in ranges if entry.after is not None and entry.end > end]:
            remedy = f"Move {later[0]} and the files after it out of {self._path}, then reset again."
            reason = f"{self._path / later[0]} holds versions after {end.version}"
            raise SinkRejected(self._sink, reason, remedy)
        hidden = self._hidden_path()
        with self.drafting():
            try:
                hidden.touch(exist_ok=False)
                with suppress(FileExistsError):
                    os.link(hidden, self._path / f"{end.version + 1:020d}.reset")
            finally:
                hidden.unlink(missing_ok=True)
            for entry in ranges:
                if entry.end > end:
                    (self._path / entry.name).unlink()
            sync_folder(self._path)

    def _hidden_path(self) -> Path:
        """Make a name for uncommitted rows."""
        return self._path / f".{secrets.token_hex(8)}.tmp"

    def _publish(self, draft: Draft, after: Position, end: Position) -> None:
        """Commit a draft, whose synced file gets its name (invariant 1)."""
        with self.drafting():
            hidden = draft.finish()
        self.forget()
        final = self._path / f"{beginning(after)}-{place(end)}.{draft.suffix}"
        with self.drafting():
            try:
                os.link(hidden, final)
            except FileExistsError:
                raise SinkFenced(self._sink, f"it wrote {final}") from None
        try:
            sync_folder(self._path)
        except OSError as error:
            raise CommitUnknown(self._sink, f"{self._path}: {error.strerror}") from error
        self._end = (end,)

    def _check_there(self) -> None:
        """Raise `SinkRejected` if the path no longer leads to the locked directory."""
        if self._folder is None:
            return
        with self.drafting():
            try:
                there, held = self._path.stat(), os.fstat(self._folder)
            except FileNotFoundError:
                raise self.disappeared("it no longer exists") from None
        if (there.st_dev, there.st_ino) != (held.st_dev, held.st_ino):
            raise self.disappeared("another directory is there now")

    def _ranges(self) -> list[_FileRange]:
        """Parse the names, in order; names that are not ours are ignored."""
        with self.drafting():
            try:
                names = [entry.name for entry in self._path.iterdir()]
            except FileNotFoundError:
                return []
        ranges = filter(None, map(_FileRange.of, names))
        return sorted(ranges, key=lambda entry: (entry.end, entry.after is None))

    def _check(self, ranges: list[_FileRange]) -> Position | None:
        end: Position | None = None
        for entry in ranges:
            if entry.after is not None and entry.after >= entry.end:
                raise self._contradiction(f"{entry.name} ends before it begins")
            if entry.after is not None and end is not None and entry.after != end:
                if entry.after < end:
                    raise self._contradiction(f"{entry.name} holds versions that other files hold too")
                missing = f"the rows between {place(end)} and {place(entry.after)}"
                if end.closes_version and entry.after.closes_version:
                    missing = f"versions {end.version + 1} to {entry.after.version}"
                raise self._contradiction(f"no file holds {missing}")
            end = entry.end
        return end

    def _contradiction(self, reason: str) -> SinkRejected:
        remedy = f"Restore the missing files in {self._path}, or remove those that do not belong there."
        return SinkRejected(self._sink, f"{self._path}: {reason}", remedy)


def _make_directory(path: Path) -> None:
    """Create `path` and the folders above it, durably."""
    if not path.is_dir():
        _make_directory(path.parent)
        path.mkdir(exist_ok=True)
        sync_folder(path.parent)
