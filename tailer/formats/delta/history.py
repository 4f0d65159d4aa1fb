"""Protocol, metadata and table id at a version, read from the log.

Commits are read backwards from the requested version, only as far as needed: to the newest protocol and metadata, or to
the checkpoint before them. Each commit is parsed completely, because a damaged one must not pass for one without
protocol and metadata. The last result is cached with the first version it holds for: a session asks for the latest
version first, and then for a slightly earlier one.
"""

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial

from tailer.errors import LogCorrupt, StorageUnavailable, TailerError, VersionAhead, VersionGone
from tailer.formats.delta.checkpoints.checkpoint import from_sound_checkpoint, read_state
from tailer.formats.delta.checkpoints.live_files import find_files
from tailer.formats.delta.log.actions import NOTHING_SET, Commit, Metadata, Protocol, RemoveFile
from tailer.formats.delta.log.clock import CommitClock, has_in_commit_timestamps
from tailer.formats.delta.log.commit_reader import CommitReader, settled_before_ms
from tailer.formats.delta.log.listing import CommitLog, LogListing, LogPath, LogSegment, commit_exists, commit_name
from tailer.formats.delta.log.removes import FilesBefore
from tailer.formats.delta.snapshot import CLOCK_WINDOW, Snapshot
from tailer.stores.port import ObjectStore, in_thread

__all__ = ["TableHistory", "has_commit"]


@dataclass(frozen=True, slots=True)
class Found:
    """Protocol and metadata of every version from `since` to `version`; None where the log lacks them.

    `times` are the file times of the commits up to `version` that its timestamp depends on. `dated_ms` is the
    version's timestamp where these do not give it.
    """

    version: int
    since: int
    protocol: Protocol | None
    metadata: Metadata | None
    times: tuple[int, ...]
    dated_ms: int | None

    @property
    def is_settled(self) -> bool:
        """Return whether other files cannot have the same times."""
        return max(self.times, default=self.dated_ms or 0) < settled_before_ms()


class TableHistory:
    """The history of the table in `store`. `log` finds its commits; `managed`: whether a catalog ratifies them."""

    def __init__(self, store: ObjectStore, log: CommitLog, managed: bool) -> None:
        self._store = store
        self._log = log
        self._managed = managed
        self._cached: Found | None = None
        self._commits = CommitReader(store)

    def forget(self) -> None:
        """Discard everything read so far: the log may have been replaced."""
        self._cached = None
        self._commits.forget()

    async def state(self, listing: LogListing, version: int) -> Snapshot:
        """Return the state at `version`.

        Raises `VersionGone` where the log does not define it, `LogCorrupt`, `UnsupportedFeature`, `StorageUnavailable`.
        """
        state = await self.find(listing, version)
        begin = partial(Snapshot.begin, managed=self._managed)
        return await in_thread(
            begin, self._store.uri, version, state.protocol, state.metadata, state.times, state.dated_ms
        )

    async def dated_state(self, listing: LogListing, version: int) -> Snapshot:
        """Return `state` with its commit's in-commit timestamp, whether or not it was read from a checkpoint."""
        state = await self.state(listing, version)
        if not has_commit(listing, version):
            return state
        # A checkpoint says all that a damaged commit would, except the time inside of it.
        with nullcontext() if has_in_commit_timestamps(state.metadata.configuration) else suppress(LogCorrupt):
            info = (await self._commit_of(listing, version)).info
            if info is not None and info.in_commit_timestamp is not None:
                return replace(state, timestamp_ms=info.in_commit_timestamp)
        return state

    async def state_before(self, listing: LogListing, version: int) -> tuple[Snapshot | None, bool]:
        """Return the state to which the commit of `version` applies (None for the table's first commit).

        Where the log was cleaned up to a checkpoint at `version` itself, that checkpoint's state is used. The commit's
        timestamp is not in it. Its metadata is: then the second value is True.
        """
        if version == 0:
            return None, False
        try:
            return await self.state(listing, version - 1), False
        except (VersionGone, LogCorrupt) as error:
            lost = error
        state = None
        if version <= listing.latest:
            with suppress(VersionGone, LogCorrupt):
                state = await self.state(listing, version)
        if state is None:
            raise await self.version_gone(lost.version) if isinstance(lost, VersionGone) else lost
        is_early = (await self._commit_of(listing, version)).metadata is not None
        times = tuple(path.modified_ms for path in listing.commits if path.version < version)
        return replace(state, version=version - 1, modified_ms=times), is_early

    async def files_before(self, version: int, removes: Sequence[RemoveFile]) -> FilesBefore:
        """Return what the state before `version` says of removed files; nothing where the log does not define it.

        Raises `StorageUnavailable`.
        """
        try:
            listing = await self._log.recent(CLOCK_WINDOW, version - 1)
            if version >= listing.latest:
                self._log.forget_listing()  # in a backlog the next version may need the same one
            find = partial(find_files, self._store, removes)
            return await from_sound_checkpoint(self._log.listing, listing, version - 1, find)
        except (VersionGone, LogCorrupt):
            return {}

    async def version_gone(self, version: int) -> TailerError:
        """Build the error for a version that the log lacks, with starts that work; a passing one if it is back."""
        listing = await self._log.listing()
        if has_commit(listing, version) or await self._exists(version):
            return StorageUnavailable(f"{self._store.uri}/{commit_name(version)}", "it exists, but a listing lacked it")
        first = listing.commits[0].version if listing.commits else None
        resume: int | None = None
        starts: list[str] | None = None
        with suppress(TailerError):  # the error is about the version, not about what was looked at for a hint
            resume = _first_of(listing, version, _around_checkpoints(listing))
            resume = await self.first_after_loss(listing, version) if resume is None else resume
            starts = []
            with suppress(VersionGone, LogCorrupt):
                await self.find(listing, listing.latest)
                starts.append("latest")
                listing.segment(listing.latest)
                starts.append("snapshot")
        return VersionGone(
            self._store.uri, version, first, listing.latest, resume, None if starts is None else tuple(starts)
        )

    async def version_ahead(self, version: int, latest: int) -> TailerError:
        """Build the error for a log that ends at `latest`, before `version`; its listing may be out of date."""
        if await self._exists(version):
            return StorageUnavailable(f"{self._store.uri}/{commit_name(version)}", "it exists, but a listing lacks it")
        return VersionAhead(self._store.uri, version, latest)

    async def _exists(self, version: int) -> bool:
        return not self._managed and await commit_exists(self._store, version)

    async def find(self, listing: LogListing, version: int) -> Found:
        """Return protocol and metadata at `version`, supported or not. Raises as `state` does."""
        cached, times = self._cached, _times(listing.commits, version)
        if cached is not None and _times(listing.commits, cached.version) == cached.times:
            if version == cached.version:
                return cached
            if times and cached.since <= version < cached.version:
                return Found(version, cached.since, cached.protocol, cached.metadata, times, None)
        definition = await from_sound_checkpoint(self._log.listing, listing, version, partial(self._read, times))
        self._cached = definition if definition.is_settled else None
        return definition

    async def first_after_loss(self, listing: LogListing, version: int) -> int | None:
        """Return the first version after the lost `version` that can be read from a known state; None: not yet."""
        versions = _around_checkpoints(listing)
        with suppress(VersionGone, LogCorrupt, VersionAhead):
            await self.find(listing, version)
            versions.add(version + 1)
        return _first_of(listing, version, versions)

    async def clock(self, listing: LogListing) -> CommitClock:
        """Return the timestamps of the listed commits. Raises as `state` does."""
        metadata = (await self.find(listing, listing.latest)).metadata
        configuration = metadata.configuration if metadata is not None else {}
        return await in_thread(CommitClock, self._store, listing, configuration)

    async def newest_id(self, listing: LogListing) -> str:
        """Return the table's id at the newest known version: after lost or damaged commits no version is known.

        Raises `VersionGone` or `LogCorrupt` where no version is known.
        """
        version, first = listing.latest, None
        while True:
            try:
                return _id_of(self._store.uri, await self.find(listing, version))
            except (VersionGone, LogCorrupt) as error:
                first = first or error
                if error.version is None or not 0 < error.version <= version:
                    gone = await self.version_gone(first.version) if isinstance(first, VersionGone) else first
                    raise gone from None
                version = error.version - 1

    async def ids(self, listing: LogListing, since: int) -> tuple[str, ...]:
        """Return the table's ids at `since` and later, newest first. Damaged and lost commits are skipped.

        Raises `StorageUnavailable`: an id that is temporarily unreadable may be the one with our progress.
        """
        ids: dict[str, None] = {}
        paths = [path for path in reversed(listing.commits) if path.version > since]
        for number, path in enumerate(paths):
            with suppress(LogCorrupt):
                cached = self._commits.cached_actions(path)  # nearly all are, and waiting takes longer
                _, metadata = cached or await self._commits.state_actions(paths, number)
                if metadata is not None:
                    ids[metadata.id] = None
        begins = 0 if has_commit(listing, 0) else min((files[0].version for files in listing.checkpoints), default=0)
        with suppress(VersionGone, LogCorrupt):
            ids[_id_of(self._store.uri, await self.find(listing, max(min(since, listing.latest), begins)))] = None
        return tuple(ids)

    async def _commit_of(self, listing: LogListing, version: int) -> Commit:
        return await self._commits.commit(next(path for path in listing.commits if path.version == version))

    async def _read(self, times: tuple[int, ...], segment: LogSegment) -> Found:
        protocol: Protocol | None = None
        metadata: Metadata | None = None
        since = segment.checkpoint[0].version if segment.checkpoint else 0
        paths = segment.commits[::-1]
        for number, path in enumerate(paths):
            actions = self._commits.cached_actions(path) or await self._commits.state_actions(paths, number)
            protocol, metadata = protocol or actions[0], metadata or actions[1]
            if actions != NOTHING_SET:
                since = max(since, path.version)
            if protocol is not None and metadata is not None:
                break
        else:
            older_protocol, older_metadata = await read_state(self._store, segment)
            protocol, metadata = protocol or older_protocol, metadata or older_metadata
        dated_ms = None if times else segment.checkpoint[0].modified_ms
        return Found(segment.version, since, protocol, metadata, times, dated_ms)


def _id_of(table: str, definition: Found) -> str:
    if definition.metadata is None:
        raise LogCorrupt(table, "_delta_log", "no metaData action up to this version", definition.version)
    return definition.metadata.id


def has_commit(listing: LogListing, version: int) -> bool:
    return any(path.version == version for path in listing.commits)


def _around_checkpoints(listing: LogListing) -> set[int]:
    """Return the versions that can be read from the state of a checkpoint: its own, and the next one."""
    return {files[0].version + more for files in listing.checkpoints for more in (0, 1)}


def _first_of(listing: LogListing, version: int, versions: set[int]) -> int | None:
    """Return the first of `versions` after `version` that exists, or is the next one; None: none."""
    exist = (other for other in sorted(versions) if other > listing.latest or has_commit(listing, other))
    return next((other for other in exist if other > version), None)


def _times(commits: Sequence[LogPath], version: int) -> tuple[int, ...]:
    """Return modification times of the commits up to `version`, as far back as its timestamp depends on them."""
    first = version - CLOCK_WINDOW
    return tuple(path.modified_ms for path in commits if first <= path.version <= version)
