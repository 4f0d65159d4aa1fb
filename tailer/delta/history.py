"""What a log says of the table's past: its protocol, metadata and identity at a version.

Commits are read backwards from the version asked for, only as far as needed: to the newest protocol and metadata, or to
the checkpoint before them. Each of them is parsed as a whole on the way, because one that is damaged must not pass for
one that says nothing. What was found last is kept with how far back it is true, since a session asks for the latest
version first and then for one a little earlier.

Where a commit before the version is lost and no checkpoint follows it, the commits after the gap may still tell the
state: those that set protocol and metadata, and those with a version checksum.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from tailer.delta.catalog.port import CommitLog
from tailer.delta.checkpoints.checkpoint import from_sound_checkpoint, read_state
from tailer.delta.log.actions import Commit, Metadata, Protocol, scan_commit
from tailer.delta.log.listing import LogListing, LogPath, LogSegment
from tailer.delta.log.version_checksum import read_checksum
from tailer.delta.snapshot import CLOCK_WINDOW, Snapshot
from tailer.errors import LogCorrupt, ObjectNotFound, StorageUnavailable, VersionGone
from tailer.stores.local import ObjectStore, OpenObject, in_thread

__all__ = ["Found", "TableHistory", "has_commit"]


_Told = tuple[Protocol | None, Metadata | None]


@dataclass(frozen=True, slots=True)
class Found:
    """Protocol and metadata of every version from `since` to `version`; None where the log lacks them.

    `times` are those of the commits up to `version` that its clock looks at; `dated_ms` is the version's own, where
    these do not tell it.
    """

    version: int
    since: int
    protocol: Protocol | None
    metadata: Metadata | None
    times: tuple[int, ...]
    dated_ms: int | None


class TableHistory:
    """The past of the table in `store`, whose commits `log` finds. `managed`: whether a catalog hands them out."""

    def __init__(self, store: ObjectStore, log: CommitLog, managed: bool) -> None:
        self._store = store
        self._log = log
        self._managed = managed
        self._kept: Found | None = None
        self._told: dict[tuple[str, int], _Told] = {}  # commits after a gap

    def forget(self) -> None:
        """Believe nothing that was read before: the log may be another one."""
        self._kept = None
        self._told.clear()

    async def state(self, listing: LogListing, version: int) -> Snapshot:
        """State at `version`.

        Raises `VersionGone` where the log does not tell it, `LogCorrupt`, `UnsupportedFeature`, `StorageUnavailable`.
        """
        found = await self.find(listing, version)
        begin = partial(Snapshot.begin, managed=self._managed)
        return await in_thread(
            begin, self._store.uri, version, found.protocol, found.metadata, found.times, found.dated_ms
        )

    async def find(self, listing: LogListing, version: int) -> Found:
        """What the log says of `version`, whether or not we can read such a table. Raises as `state` does."""
        kept, times = self._kept, _times(listing.commits, version)
        if kept is not None and _times(listing.commits, kept.version) == kept.times:
            if version == kept.version:
                return kept
            if times and kept.since <= version < kept.version:
                return Found(version, kept.since, kept.protocol, kept.metadata, times, None)
        read = partial(self._read, times)
        try:
            self._kept = kept = await from_sound_checkpoint(self._log.listing, listing, version, read)
        except (VersionGone, LogCorrupt):
            after_gap = await self._read_after_gap(listing, version, times)
            if after_gap is None:
                raise
            self._kept = kept = after_gap
        return kept

    async def known_after(self, listing: LogListing, version: int) -> int | None:
        """The first version after `version` whose state the commits from there on tell by themselves; None for none.

        Raises `StorageUnavailable`.
        """
        protocol: Protocol | None = None
        metadata: Metadata | None = None
        expected = version + 1
        for path in listing.commits:
            if path.version > version:
                told = await self._tells(listing, path)
                if told is None or path.version != expected:
                    protocol = metadata = None
                expected = path.version + 1
                if told is not None:
                    protocol, metadata = told[0] or protocol, told[1] or metadata
                if protocol is not None and metadata is not None:
                    return path.version
        return None

    async def newest_id(self, listing: LogListing) -> str:
        """The table's id at the newest version that the log tells of: behind what is lost or damaged it tells nothing.

        Raises `VersionGone` or `LogCorrupt` where it tells of none.
        """
        version, first = listing.latest, None
        while True:
            try:
                return self._id(await self.find(listing, version))
            except (VersionGone, LogCorrupt) as error:
                first = first or error
                if error.version is None or not 0 < error.version <= version:
                    raise first from None
                version = error.version - 1

    async def ids(self, listing: LogListing, since: int) -> tuple[str, ...]:
        """Ids the table had at `since` and later, newest first. Damaged commits, and lost ones, tell of none.

        Raises `StorageUnavailable`: an id that is missed for a moment may be the one that has our progress.
        """
        ids: dict[str, None] = {}
        for path in reversed(listing.commits):
            if path.version > since:
                try:
                    commit = await self.commit(path)
                except LogCorrupt:
                    continue
                if commit.metadata is not None:
                    ids[commit.metadata.id] = None
        begins = 0 if has_commit(listing, 0) else min((files[0].version for files in listing.checkpoints), default=0)
        with suppress(VersionGone, LogCorrupt):
            ids[self._id(await self.find(listing, max(min(since, listing.latest), begins)))] = None
        return tuple(ids)

    async def commit(self, path: LogPath) -> Commit:
        """The commit at `path`, which a listing named, without the files in it.

        Raises `LogCorrupt`, and `StorageUnavailable` if it is gone.
        """

        def parse(opened: OpenObject) -> Commit:
            modified_ms = opened.meta.modified_ms
            return scan_commit(opened.file, self._store.uri, path.name, path.version, modified_ms, lambda _: False)

        try:
            return await self._store.scan(path.name, parse)
        except ObjectNotFound as error:
            raise StorageUnavailable(error.path, "it was removed while the log was being read") from error

    async def _read(self, times: tuple[int, ...], segment: LogSegment) -> Found:
        protocol: Protocol | None = None
        metadata: Metadata | None = None
        since = segment.checkpoint[0].version if segment.checkpoint else 0
        for path in reversed(segment.commits):
            commit = await self.commit(path)
            protocol, metadata = protocol or commit.protocol, metadata or commit.metadata
            if commit.protocol is not None or commit.metadata is not None:
                since = max(since, path.version)
            if protocol is not None and metadata is not None:
                break
        else:
            older_protocol, older_metadata = await read_state(self._store, segment)
            protocol, metadata = protocol or older_protocol, metadata or older_metadata
        dated_ms = None if times else segment.checkpoint[0].modified_ms
        return Found(segment.version, since, protocol, metadata, times, dated_ms)

    async def _read_after_gap(self, listing: LogListing, version: int, times: tuple[int, ...]) -> Found | None:
        """What the consecutive commits up to `version` tell by themselves; None where that is not enough."""
        protocol: Protocol | None = None
        metadata: Metadata | None = None
        since = 0
        commits = reversed([path for path in listing.commits if path.version <= version])
        for expected, path in zip(range(version, -1, -1), commits, strict=False):
            told = await self._tells(listing, path)
            if told is None or path.version != expected:
                break
            if told != (None, None):
                since = max(since, path.version)
            protocol, metadata = protocol or told[0], metadata or told[1]
            if protocol is not None and metadata is not None:
                return Found(version, since, protocol, metadata, times, None)
        return None

    async def _tells(self, listing: LogListing, path: LogPath) -> _Told | None:
        """Protocol and metadata that a commit sets, or its checksum holds; None for one that is damaged."""
        key = (path.name, path.modified_ms)
        if key not in self._told:
            try:
                commit = await self.commit(path)
            except LogCorrupt:
                return None
            told = (commit.protocol, commit.metadata)
            if None in told and (checksum := await read_checksum(self._store, commit)) is not None:
                told = (checksum.protocol, checksum.metadata)
            if None in told and path.version == listing.latest:
                return told  # its checksum may come in a moment
            self._told[key] = told
        return self._told[key]

    def _id(self, found: Found) -> str:
        if found.metadata is None:
            raise LogCorrupt(self._store.uri, "_delta_log", "no metaData action up to here", found.version)
        return found.metadata.id


def has_commit(listing: LogListing, version: int) -> bool:
    """Whether the commit of `version` is there."""
    return any(path.version == version for path in listing.commits)


def _times(commits: Sequence[LogPath], version: int) -> tuple[int, ...]:
    """Modification times of the commits up to `version`, as far back as the clock looks."""
    first = version - CLOCK_WINDOW
    return tuple(path.modified_ms for path in commits if first <= path.version <= version)
