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
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tailer.errors import CommitUnknown, SinkFenced, SinkRejected, SinkUnavailable
from tailer.formats.delta.folders import table_around
from tailer.plan import Position
from tailer.sink import instance_name, process_of
from tailer.stores.folders import CHOOSE_ANOTHER, creation_obstacle, is_lasting
from tailer_sinks.files.port import PLACE, after_place, beginning, place, position_of

__all__ = ["StreamDirectory", "check_free", "has_streams", "translated"]

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


def check_free(sink: str, root: Path, stream: Path, *, adopt: bool) -> None:
    """Refuse (`SinkRejected`) to begin `stream` in a `root` with foreign files.

    An existing stream continues. `adopt`: allow other files in `root`. The folder of a Delta table is always refused.
    Also raises `SinkUnavailable` as `translated` does.
    """
    with translated(sink, root):
        if (stream / LOCK).exists() or has_streams(sink, stream.parent):
            return
        if root.is_symlink() and not root.exists():
            remedy = "Create the folder it leads to, or choose another path."
            raise SinkRejected(sink, f"{root} is a link that leads nowhere", remedy)
        if table := table_around(stream):
            place = (
                "is the folder of a Delta table"
                if str(table) == os.path.realpath(root)
                else f"is inside the Delta table {table}"
            )
            reason = f"{root} {place}, whose VACUUM would delete the files"
            raise SinkRejected(sink, reason, "Choose a path outside of that folder.")
        if adopt or next(root.glob(f"*/*/{LOCK}"), None) is not None:
            return
        if foreign := _foreign(root):
            remedy = "Choose another path; or set adopt = true to put streams beside the other files."
            raise SinkRejected(
                sink, f"{root} is not empty (it holds {foreign}), and has no stream of lake-tailer", remedy
            )


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


class StreamDirectory:
    """The directory at `path`, which belongs to the sink `sink`. Blocking: for worker threads.

    Besides the errors they name, methods raise `SinkUnavailable` and `SinkRejected` as `translated` does.
    """

    def __init__(self, sink: str, path: Path) -> None:
        self.path = path
        self._sink = sink
        self._lock: int | None = None
        self._folder: int | None = None
        self._end: tuple[Position | None] | None = None

    def lock(self) -> None:
        """Become the only writer until `unlock`, creating the directory if necessary (invariant 6). May be repeated.

        Raises `SinkFenced` if another instance is the writer, in this process or elsewhere.
        """
        if self._lock is not None:
            self._check_there()
            return
        with translated(self._sink, self.path):
            _make_directory(self.path)
            handle = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                other = process_of(os.pread(handle, _LONGEST_NAME, 0).decode(errors="replace"))
                os.close(handle)
                raise SinkFenced(self._sink, f"it holds {self.path / '.lock'}", other) from None
            except OSError:
                os.close(handle)
                raise
            self._lock = handle
            _sign(handle)
            self._folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            for stale in self.path.glob(".*.tmp"):  # left by a killed writer, since the lock is ours
                stale.unlink()

    def unlock(self) -> None:
        """Release the lock."""
        self.forget()
        for handle in (self._lock, self._folder):
            if handle is not None:
                os.close(handle)
        self._lock = self._folder = None

    def disappeared(self, left: str) -> SinkRejected:
        """Make the error for a directory whose files have disappeared; `left`: its state as this instance left it."""
        remedy = "Restore its files. To deliver into a new directory from the pipeline's start, run it again."
        return SinkRejected(self._sink, f"{self.path} was deleted or replaced while in use: {left}", remedy)

    def forget(self) -> None:
        """Read the directory again next time."""
        self._end = None

    def end(self) -> Position | None:
        """Return `read_end`, cached for the holder of the lock, because nobody else writes."""
        self._check_there()
        if self._end is None:
            self._end = (self.read_end(),)
        return self._end[0]

    def read_end(self) -> Position | None:
        """Read the end of the delivered positions. None: nothing delivered.

        Raises `SinkRejected` if the names contradict each other.
        """
        self._check_there()
        try:
            return self._check(self._ranges())
        except SinkRejected:
            # A listing made during another instance's commit may show only its newer file. A real gap remains.
            return self._check(self._ranges())

    def put_reset(self, end: Position) -> None:
        """Record that everything up to `end`, which closes a version, counts as delivered.

        Raises `SinkRejected` if files hold later rows, which would be duplicated.
        """
        self.forget()
        ranges = self._ranges()
        if later := [entry.name for entry in ranges if entry.after is not None and entry.end > end]:
            remedy = f"Move {later[0]} and the files after it out of {self.path}, then reset again."
            reason = f"{self.path / later[0]} holds versions after {end.version}"
            raise SinkRejected(self._sink, reason, remedy)
        hidden = self.hidden_path()
        with translated(self._sink, self.path):
            try:
                hidden.touch(exist_ok=False)
                with suppress(FileExistsError):
                    os.link(hidden, self.path / f"{end.version + 1:020d}.reset")
            finally:
                hidden.unlink(missing_ok=True)
            for entry in ranges:
                if entry.end > end:
                    (self.path / entry.name).unlink()
            _sync(self.path)

    def hidden_path(self) -> Path:
        """Make a name for uncommitted rows."""
        return self.path / f".{secrets.token_hex(8)}.tmp"

    def publish(self, hidden: Path, after: Position, end: Position, suffix: str) -> None:
        """Commit the synced file `hidden` as the one with everything after `after`, up to `end` (invariant 1).

        Raises `SinkFenced` if that file exists, `CommitUnknown` if it may not survive a crash.
        """
        self.forget()
        final = self.path / f"{beginning(after)}-{place(end)}.{suffix}"
        with translated(self._sink, self.path):
            try:
                os.link(hidden, final)
            except FileExistsError:
                raise SinkFenced(self._sink, f"it wrote {final}") from None
        try:
            _sync(self.path)
        except OSError as error:
            raise CommitUnknown(self._sink, f"{self.path}: {error.strerror}") from error
        self._end = (end,)

    def _check_there(self) -> None:
        """Raise `SinkRejected` if the path no longer leads to the locked directory."""
        if self._folder is None:
            return
        with translated(self._sink, self.path):
            try:
                there, held = self.path.stat(), os.fstat(self._folder)
            except FileNotFoundError:
                raise self.disappeared("it no longer exists") from None
        if (there.st_dev, there.st_ino) != (held.st_dev, held.st_ino):
            raise self.disappeared("another directory is there now")

    def _ranges(self) -> list[_FileRange]:
        """Parse the names, in order; names that are not ours are ignored."""
        with translated(self._sink, self.path):
            try:
                names = [entry.name for entry in self.path.iterdir()]
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
                missing = f"no file holds {_between(end, entry.after)}"
                twice = f"{entry.name} holds versions that other files hold too"
                raise self._contradiction(missing if entry.after > end else twice)
            end = entry.end
        return end

    def _contradiction(self, reason: str) -> SinkRejected:
        remedy = f"Restore the missing files in {self.path}, or remove those that do not belong there."
        return SinkRejected(self._sink, f"{self.path}: {reason}", remedy)


def _between(end: Position, after: Position) -> str:
    """Describe the versions after `end`, up to `after`."""
    if end.closes_version and after.closes_version:
        return f"versions {end.version + 1} to {after.version}"
    return f"the rows between {place(end)} and {place(after)}"


def _sign(lock: int) -> None:
    """Write who holds the lock, for people: a full disk, for one, stops nobody here."""
    with suppress(OSError):
        os.ftruncate(lock, 0)
        os.pwrite(lock, instance_name().encode(), 0)


def _make_directory(path: Path) -> None:
    """Create `path` and the folders above it, durably."""
    if not path.is_dir():
        _make_directory(path.parent)
        path.mkdir(exist_ok=True)
        _sync(path.parent)


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
