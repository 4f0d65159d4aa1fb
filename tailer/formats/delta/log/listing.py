"""The files of a `_delta_log`: their names, and the segment of files that makes up a state.

Names follow PROTOCOL.md ("File Types"). Other files in the folder are ignored: checksums, hidden files, staged commits,
leftovers of other tools. Log compaction files are ignored too: they drop `cdc` and `commitInfo` actions, so they cannot
replace the commits they cover.

`LogSegment` guarantees, checked when it is made:
  1. commits are strictly consecutive;
  2. they begin right after the checkpoint, or at version 0 where there is none;
  3. the checkpoint is complete: one file, or all parts of a multi-part one, all of one version;
  4. the segment ends at `version` and contains everything needed for the state there.

A log may be long: `CommitLog.recent` lists it from slightly before the checkpoint that `_last_checkpoint` names. Such a
listing covers the end of the log and refuses questions about earlier versions.
"""

import re
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from itertools import groupby, pairwise
from typing import Final, NamedTuple, Self, TypeVar

from tailer.errors import NotATable, ObjectNotFound, StorageUnavailable, VersionAhead, VersionGone
from tailer.formats.delta.checkpoints.hint import read_last_checkpoint
from tailer.formats.registry import no_table
from tailer.stores.port import ObjectMeta, ObjectStore, OpenObject, in_thread

__all__ = [
    "COMMIT_FILE",
    "LOG",
    "CommitLog",
    "LogFileKind",
    "LogListing",
    "LogPath",
    "LogSegment",
    "commit_exists",
    "commit_name",
]

T = TypeVar("T")

LOG: Final = "_delta_log"
REUSE_S: Final = 10.0
_LAST_FILES: Final = 128
COMMIT_FILE: Final = re.compile(r"([0-9]{20})\.json")


class LogFileKind(IntEnum):
    """Kinds of log files; of two checkpoints of one version the greater kind is preferred."""

    COMMIT = 0
    CHECKPOINT = 1
    CHECKPOINT_PART = 2
    CHECKPOINT_V2 = 3


_UUID: Final = "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_CHECKPOINTS: Final[tuple[tuple[LogFileKind, re.Pattern[str]], ...]] = (
    (LogFileKind.CHECKPOINT, re.compile(r"([0-9]{20})\.checkpoint\.parquet")),
    (LogFileKind.CHECKPOINT_PART, re.compile(r"([0-9]{20})\.checkpoint\.([0-9]{10})\.([0-9]{10})\.parquet")),
    (LogFileKind.CHECKPOINT_V2, re.compile(rf"([0-9]{{20}})\.checkpoint\.{_UUID}\.(?:json|parquet)")),
)


def commit_name(version: int) -> str:
    """Return the object name of a version's commit file."""
    return f"{LOG}/{version:020d}.json"


class LogPath(NamedTuple):
    """A commit file, a checkpoint or a part of one. A named tuple, because a log may have very many."""

    version: int
    kind: LogFileKind
    meta: ObjectMeta  # from the listing
    part: int = 1
    parts: int = 1

    @property
    def name(self) -> str:
        return self.meta.name

    @property
    def modified_ms(self) -> int:
        """Time of modification, in milliseconds since 1970."""
        return self.meta.modified_ms

    @property
    def size_bytes(self) -> int:
        """Size; 0: unknown."""
        return self.meta.size_bytes

    @classmethod
    def parse(cls, meta: ObjectMeta) -> Self | None:
        """Parse the file's name; None for a file that is neither a commit nor a checkpoint."""
        base = meta.name.rpartition("/")[2]
        if commit := COMMIT_FILE.fullmatch(base):  # nearly every file is one, and there may be very many
            return cls(int(commit[1]), LogFileKind.COMMIT, meta)
        for kind, pattern in _CHECKPOINTS:
            match = pattern.fullmatch(base)
            if match:
                numbers = [int(group) for group in match.groups()]
                part, parts = numbers[1:] if kind is LogFileKind.CHECKPOINT_PART else (1, 1)
                return cls(numbers[0], kind, meta, part, parts)
        return None


@dataclass(frozen=True, slots=True)
class LogSegment:
    """The files that make up the state at `version`: a checkpoint (none, one file or all its parts), then commits."""

    table: str
    version: int
    checkpoint: tuple[LogPath, ...]
    commits: tuple[LogPath, ...]

    def __post_init__(self) -> None:
        expected = self.checkpoint[0].version + 1 if self.checkpoint else 0
        for part, path in enumerate(self.checkpoint, start=1):
            if path.version != expected - 1 or path.part != part or path.parts != len(self.checkpoint):
                raise ValueError(f"{path.name} does not belong to the checkpoint of version {expected - 1}")
        for path in self.commits:
            if path.version != expected:
                raise VersionGone(self.table, expected, self.commits[0].version, self.commits[-1].version)
            expected += 1
        if expected != self.version + 1:
            raise VersionGone(self.table, expected, None, self.version)


@dataclass(frozen=True, slots=True)
class LogListing:
    """An ordered listing of the log. `since`: the first version that was listed.

    Where that is not 0, versions before `since` and states without a checkpoint in the listing are unknown, but may
    exist. Asking for them raises `ValueError`.
    """

    table: str
    commits: tuple[LogPath, ...]
    checkpoints: tuple[tuple[LogPath, ...], ...]
    since: int = 0

    @classmethod
    def of(cls, table: str, objects: Iterable[ObjectMeta], since: int = 0) -> Self:
        """Build a listing from a folder's objects. Incomplete multi-part checkpoints are left out.

        Raises `NotATable` where the folder has neither a commit nor a checkpoint.
        """
        paths = [path for path in map(LogPath.parse, objects) if path is not None]
        commits = sorted((p for p in paths if p.kind is LogFileKind.COMMIT), key=lambda p: p.version)
        checkpoints = _whole_checkpoints([p for p in paths if p.kind is not LogFileKind.COMMIT])
        if not commits and not checkpoints:
            raise NotATable(table)
        return cls(table, tuple(commits), checkpoints, since)

    @property
    def latest(self) -> int:
        """The newest version."""
        return max([path.version for path in self.commits[-1:]] + [files[0].version for files in self.checkpoints[-1:]])

    @property
    def earliest(self) -> int:
        """The first version whose changes can be read: its state is known and its commit exists.

        Raises `VersionGone` where no commit is left.
        """
        self._check_known(0)
        roots = {0} | {offset + files[0].version for files in self.checkpoints for offset in (0, 1)}
        starts = [path.version for path in self.commits if path.version in roots]
        if not starts:
            first = self.commits[0].version if self.commits else self.latest
            raise VersionGone(self.table, 0, first, self.latest)
        return starts[0]

    def segment(self, version: int, without: Collection[str] = ()) -> LogSegment:
        """Return the files of the state at `version`, from the nearest checkpoint without a file named in `without`.

        Raises `VersionAhead` after the latest version and `VersionGone` where files of it are missing.
        """
        if version > self.latest:
            raise VersionAhead(self.table, version, self.latest)
        usable = (
            files
            for files in reversed(self.checkpoints)
            if files[0].version <= version and not any(path.name in without for path in files)
        )
        checkpoint = next(usable, ())
        if not checkpoint:
            self._check_known(0)
        after = checkpoint[0].version if checkpoint else -1
        commits = tuple(path for path in self.commits if after < path.version <= version)
        return LogSegment(self.table, version, checkpoint, commits)

    @property
    def gaps(self) -> frozenset[tuple[int, int]]:
        """Pairs of versions between which commits are missing; the version after the latest counts as present."""
        if self.commits and self.commits[0].version + len(self.commits) == self.latest + 1:
            return frozenset()
        versions = [*(path.version for path in self.commits), self.latest + 1]
        return frozenset((low, high) for low, high in pairwise(versions) if high != low + 1)

    def _check_known(self, version: int) -> None:
        if self.since and version < self.since:
            raise ValueError(f"the log of {self.table} was listed from version {self.since} on, not from {version}")


@dataclass(frozen=True, slots=True)
class _Made:
    """A listing and what it was made of. `mark`: of the folder, before `at_s`, a monotonic time in seconds."""

    since: int
    objects: list[ObjectMeta]
    listing: LogListing
    mark: Hashable | None
    at_s: float


class CommitLog:
    """The commits of the table in `store`: those in its log. `clock`: a monotonic time in seconds.

    A session begins with several listings, and most find the same objects. A folder with the same mark has the same
    names. Then only the last files are looked at again. Others do not grow, and one that is replaced could have been so
    just after the last listing, which is at most `REUSE_S` old.
    """

    def __init__(self, store: ObjectStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._made: _Made | None = None

    async def listing(self) -> LogListing:
        """List all commits and checkpoints. Raises `NotATable`, `VersionGone`, `StorageUnavailable`, catalog errors."""
        return await self._list_since(0)

    async def recent(self, clock_window: int, version: int | None = None) -> LogListing:
        """List the log as far back as the states at `version` (None: the latest) and later need.

        The listing includes the `clock_window` versions before its first checkpoint, for their timestamps. The whole
        log is listed where `_last_checkpoint` is missing, malformed, later than `version`, or names a missing or
        incomplete checkpoint. Raises as `listing`.
        """
        hint = await read_last_checkpoint(self._store)
        if hint is not None and (version is None or hint <= version):
            with suppress(NotATable):
                listing = await self._list_since(max(hint - clock_window, 0))
                if any(files[0].version == hint for files in listing.checkpoints):
                    return listing
        return await self._list_since(0)

    def forget_listing(self) -> None:
        """Free the memory of the last listing, which makes one of the same objects quick."""
        self._made = None

    async def read(self, version: int, decode: Callable[[OpenObject], T]) -> T | None:
        """Open the commit of `version` and decode it in a worker thread; None while it does not exist.

        Only a listing shows whether a missing file is lost. Raises `StorageUnavailable`; if a catalog ratifies commits,
        `VersionGone` where it exists but its file does not, and what the catalog raises.
        """
        try:
            return await self._store.scan(commit_name(version), decode)
        except ObjectNotFound:
            return None

    async def _list_since(self, since: int) -> LogListing:
        """List the log from a version on.

        Listings are not atomic: one may contain a later commit but miss an earlier one that was written meanwhile. So a
        gap counts only if the next listing has it too.
        """
        gaps: frozenset[tuple[int, int]] = frozenset()
        while True:
            listing = await self._list_sure(since)
            before, gaps = gaps, listing.gaps
            if gaps <= before:
                return listing

    async def _list_sure(self, since: int) -> LogListing:
        """List the log once; twice if the listing is empty, and a file shows that the log is not."""
        try:
            return await self._list(since)
        except NotATable:
            versions = {0, await read_last_checkpoint(self._store) or 0} if since == 0 else set()
            there = [version for version in sorted(versions) if await commit_exists(self._store, version)]
            if not there:
                raise
        try:
            return await self._list(since)  # it was created just now, unless this listing is an old one, too
        except NotATable:
            reason = f"the listing is empty, and {commit_name(there[0])} is there"
            raise StorageUnavailable(f"{self._store.uri}/{LOG}", reason) from None

    async def _list(self, since: int) -> LogListing:
        at_s, mark = self._clock(), await self._store.folder_mark(LOG)
        memo = self._made
        if memo is not None and memo.since == since and mark is not None and mark == memo.mark:
            # Some file systems do not change a folder's time when a file appears, so its last files are listed.
            number = max(len(memo.objects) - _LAST_FILES, 0)
            after = memo.objects[number - 1].name if number else _name_before(since)
            if at_s - memo.at_s < REUSE_S and memo.objects[number:] == await self._store.list(LOG, after):
                return memo.listing
        objects = await self._store.list(LOG, _name_before(since))
        listing = await in_thread(self._listing, objects, since)
        self._made = _Made(since, objects, listing, mark, at_s)
        return listing

    def _listing(self, objects: list[ObjectMeta], since: int) -> LogListing:
        memo = self._made
        if memo is not None and memo.since == since and memo.objects == objects:
            return memo.listing
        self._made = memo = None  # not held while the next one is made
        table = self._store.uri
        try:
            return LogListing.of(table, objects, since)
        except NotATable as error:
            raise no_table(table, LOG, error.reason, error.expected) from None


async def commit_exists(store: ObjectStore, version: int) -> bool:
    """Return whether the commit of a version is there, whatever a listing says: a gateway's may be an old one."""
    try:
        await store.stat(commit_name(version))
    except ObjectNotFound:
        return False
    return True


def _name_before(version: int) -> str:
    return commit_name(version - 1) if version else ""


def _whole_checkpoints(paths: Sequence[LogPath]) -> tuple[tuple[LogPath, ...], ...]:
    """Sort complete checkpoints by version; of several for one version, the preferred one comes last."""
    whole: list[tuple[LogPath, ...]] = []
    single = [path for path in paths if path.kind is not LogFileKind.CHECKPOINT_PART]
    whole.extend((path,) for path in single)
    several = [path for path in paths if path.kind is LogFileKind.CHECKPOINT_PART]
    several.sort(key=lambda path: (path.version, path.parts, path.part))
    for (_, parts), group in groupby(several, key=lambda path: (path.version, path.parts)):
        files = tuple(group)
        if [path.part for path in files] == list(range(1, parts + 1)):
            whole.append(files)
    return tuple(sorted(whole, key=lambda files: (files[0].version, files[0].kind, len(files), files[0].name)))
