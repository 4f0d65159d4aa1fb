"""The directory of one stream, as the `files` sink keeps it: its names are its log.

    00000000000000000000-00000000000000000006.jsonl    all rows of versions 0 to 6
    00000000000000000007-00000000000000000007.jsonl    version 7; it may have no rows, the file is there all the same
    00000000000000000042.reset                         an operator's word: goes on with version 42
    .lock                                              held by the one writer
    .1f0c….tmp                                         rows that are not committed

A data file comes into being whole: rows go to a hidden file, which is synced and then given its name by a hard link,
one step that never replaces a file; then the directory is synced. So the names that are there say exactly what was
delivered (invariants 1 and 2), and `read_end` checks that they follow each other without gap or overlap (invariant 3).

Consumers may take files away from the front. The last one must stay: it is the progress.
"""

import errno
import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from tailer.errors import CommitUnknown, SinkFenced, SinkRejected, SinkUnavailable

__all__ = ["StreamDirectory", "directory_name", "translated"]

DATA_FILE: Final = re.compile(r"(\d{20})-(\d{20})\.(?:jsonl|parquet)")
RESET: Final = re.compile(r"(\d{20})\.reset")

# What does not pass by itself: somebody must change a path, a permission or the file system.
LASTING: Final = frozenset(
    (
        errno.EACCES,
        errno.EEXIST,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENOTDIR,
        errno.EOPNOTSUPP,
        errno.EPERM,
        errno.EROFS,
    )
)


@contextmanager
def translated(sink: str, path: Path) -> Iterator[None]:
    """Raise `SinkUnavailable` for an `OSError` that may pass (a full disk), `SinkRejected` for one that will not."""
    try:
        yield
    except OSError as error:
        where = error.filename or path
        if error.errno in LASTING:
            remedy = f"Check that {path} is a directory on a local file system and that this user may write to it."
            raise SinkRejected(sink, f"{where}: {error.strerror}", remedy) from error
        raise SinkUnavailable(sink, f"{where}: {error.strerror or error}") from error


def directory_name(part: str) -> str:
    """A part of an app_id as a file name: percent-encoded but for letters, digits, `-`, `_`, `~` and inner points."""
    name = quote(part, safe="")
    return f"%2E{name[1:]}" if name.startswith(".") else name or "%"


@dataclass(frozen=True, slots=True)
class _Span:
    """What a name stands for: versions `first` to `last`, or (None) the word that all up to `last` is behind us."""

    first: int | None
    last: int
    name: str


class StreamDirectory:
    """The directory at `path`, which belongs to the sink `sink`. Blocking: for worker threads.

    Besides what they name, methods raise `SinkUnavailable` and `SinkRejected` as `translated` does.
    """

    def __init__(self, sink: str, path: Path) -> None:
        self.path = path
        self._sink = sink
        self._lock: int | None = None
        self._end: tuple[int | None] | None = None

    def lock(self) -> None:
        """Become the one writer until `unlock`, creating the directory if need be; again is no error (invariant 6).

        Raises `SinkFenced` where another instance is, in this process or elsewhere.
        """
        if self._lock is not None:
            return
        with translated(self._sink, self.path):
            _make_directory(self.path)
            handle = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(handle)
                raise SinkFenced(self._sink, f"it holds {self.path / '.lock'}") from None
            except OSError:
                os.close(handle)
                raise
            self._lock = handle
            for stale in self.path.glob(".*.tmp"):  # of a writer that was killed, since the lock is ours
                stale.unlink()

    def unlock(self) -> None:
        """Let the next writer in."""
        self.forget()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def forget(self) -> None:
        """Ask the directory again next time."""
        self._end = None

    def end(self) -> int | None:
        """As `read_end`, for the holder of the lock: while nobody else writes, a list is needed only once."""
        if self._end is None:
            self._end = (self.read_end(),)
        return self._end[0]

    def read_end(self) -> int | None:
        """The last version delivered, None if there is none.

        Raises `SinkRejected` where the names contradict each other.
        """
        try:
            return self._check(self._spans())
        except SinkRejected:
            # A list made while another instance commits may show its newer file only. A real gap stays.
            return self._check(self._spans())

    def put_reset(self, end: int) -> None:
        """Record that all versions up to `end` are behind us.

        Raises `SinkRejected` where files hold later versions, which would come a second time.
        """
        self.forget()
        spans = self._spans()
        if later := [span.name for span in spans if span.first is not None and span.last > end]:
            remedy = f"Move {later[0]} and the files after it out of {self.path}, then reset again."
            raise SinkRejected(self._sink, f"{self.path / later[0]} holds versions after {end}", remedy)
        hidden = self.hidden_path()
        with translated(self._sink, self.path):
            try:
                hidden.touch(exist_ok=False)
                with suppress(FileExistsError):
                    os.link(hidden, self.path / f"{end + 1:020d}.reset")
            finally:
                hidden.unlink(missing_ok=True)
            for span in spans:
                if span.last > end:
                    (self.path / span.name).unlink()
            _sync(self.path)

    def hidden_path(self) -> Path:
        """A name for rows that are not committed."""
        return self.path / f".{secrets.token_hex(8)}.tmp"

    def publish(self, hidden: Path, first: int, last: int, suffix: str) -> None:
        """Commit the synced file `hidden` as the one that holds versions `first` to `last` (invariant 1).

        Raises `SinkFenced` where that file is there, `CommitUnknown` where it may not survive a crash.
        """
        self.forget()
        final = self.path / f"{first:020d}-{last:020d}.{suffix}"
        with translated(self._sink, self.path):
            try:
                os.link(hidden, final)
            except FileExistsError:
                raise SinkFenced(self._sink, f"it wrote {final}") from None
        try:
            _sync(self.path)
        except OSError as error:
            raise CommitUnknown(self._sink, f"{self.path}: {error.strerror}") from error
        self._end = (last,)

    def _spans(self) -> list[_Span]:
        """What the names say, in order; names that are not ours say nothing."""
        with translated(self._sink, self.path):
            try:
                names = [entry.name for entry in self.path.iterdir()]
            except FileNotFoundError:
                return []
        spans = []
        for name in names:
            if found := DATA_FILE.fullmatch(name):
                spans.append(_Span(int(found[1]), int(found[2]), name))
            elif found := RESET.fullmatch(name):
                spans.append(_Span(None, int(found[1]) - 1, name))
        return sorted(spans, key=lambda span: (span.last, span.first is None))

    def _check(self, spans: list[_Span]) -> int | None:
        end: int | None = None
        for span in spans:
            if span.first is not None and span.first > span.last:
                raise self._contradiction(f"{span.name} ends before it begins")
            if span.first is not None and end is not None and span.first != end + 1:
                missing = f"nothing there holds versions {end + 1} to {span.first - 1}"
                twice = f"{span.name} holds versions that other files hold too"
                raise self._contradiction(missing if span.first > end else twice)
            end = span.last
        return end

    def _contradiction(self, reason: str) -> SinkRejected:
        remedy = f"Put the missing files back into {self.path}, or take away what does not belong there."
        return SinkRejected(self._sink, f"{self.path}: {reason}", remedy)


def _make_directory(path: Path) -> None:
    """Create `path` and what is above it, durably."""
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
