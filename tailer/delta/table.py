"""A Delta table's log behind the `TableLog` port.

The log is listed at the start, when a place in it is asked for by name, and when a gap is suspected; from then on the
next version is found by asking for its commit file, so the cost of a version does not depend on the length of the log.
Fetching, parsing and planning a version is one hop to a worker thread.

A missing commit file means "not yet". After `GAP_CHECK_MISSES` of these in a row the log is listed once, to tell a
quiet table from one whose next version was lost, or from a log that went backwards.
"""

from dataclasses import replace
from functools import partial
from typing import Final

import pyarrow as pa

from tailer.delta.actions import AddFile, Commit, DeletionVector, Metadata, Protocol, parse_commit
from tailer.delta.changes import locate, plan_changes, plan_snapshot
from tailer.delta.checkpoint import read_adds, read_state
from tailer.delta.clock import CommitClock
from tailer.delta.log import LogListing, LogSegment, commit_name, list_log
from tailer.delta.snapshot import CLOCK_WINDOW, Snapshot
from tailer.errors import ObjectNotFound, VersionAhead, VersionGone
from tailer.plan import ChangePlan, Start, StartKind, StartPoint
from tailer.storage import ObjectStore, StoredObject, in_thread

__all__ = ["GAP_CHECK_MISSES", "DeltaTableLog"]

GAP_CHECK_MISSES: Final = 16


class DeltaTableLog:
    """The log of the Delta table at the root of `store`. `storage` names the options tasks open its files with."""

    def __init__(self, store: ObjectStore, storage: str | None = None) -> None:
        self._store = store
        self._storage = storage
        self._next = 0
        self._state: Snapshot | None = None
        self._misses = 0

    @property
    def uri(self) -> str:
        """The table's location."""
        return self._store.uri

    async def table_id(self) -> str:
        """`metaData.id` at the latest version."""
        listing = await list_log(self._store)
        state = await self._load(listing, listing.segment(listing.latest))
        return state.metadata.id

    async def latest(self) -> int:
        """The newest version there is now."""
        return (await list_log(self._store)).latest

    async def resolve(self, start: Start) -> StartPoint:
        """See `TableLog.resolve`. A moment after the latest commit raises `ConfigError`."""
        listing = await list_log(self._store)
        match start.kind:
            case StartKind.EARLIEST:
                return StartPoint(listing.earliest)
            case StartKind.LATEST:
                return StartPoint(listing.latest + 1)
            case StartKind.SNAPSHOT:
                return StartPoint(listing.latest, snapshot=True)
            case StartKind.VERSION:
                return StartPoint(start.value)
            case StartKind.TIMESTAMP:
                return StartPoint(await (await self._clock(listing)).first_at_or_after(start.value))

    async def resolve_end(self, end: Start) -> int:
        """See `TableLog.resolve_end`. A moment before the earliest commit raises `ConfigError`."""
        listing = await list_log(self._store)
        match end.kind:
            case StartKind.VERSION:
                return end.value
            case StartKind.TIMESTAMP:
                return await (await self._clock(listing)).last_at_or_before(end.value)
            case StartKind.EARLIEST:
                return listing.earliest
        return listing.latest

    async def seek(self, version: int) -> pa.Schema | None:
        """See `TableLog.seek`."""
        listing = await list_log(self._store)
        if version > listing.latest + 1:
            raise VersionAhead(self.uri, version - 1, listing.latest)
        listing.check_contiguous(version)
        self._state = await self._state_before(listing, version)
        self._next = version
        self._misses = 0
        return None if self._state is None else self._state.schema

    async def next_plan(self) -> ChangePlan | None:
        """See `TableLog.next_plan`."""
        try:
            self._state, plan = await self._store.read(commit_name(self._next), self._plan)
        except ObjectNotFound:
            self._misses += 1
            if self._misses % GAP_CHECK_MISSES == 0:
                await self._check_gap()
            return None
        self._next += 1
        self._misses = 0
        return plan

    async def snapshot_plan(self, version: int) -> ChangePlan:
        """See `TableLog.snapshot_plan`."""
        listing = await list_log(self._store)
        segment = listing.segment(version)
        state = await self._dated(listing, await self._load(listing, segment))
        live = _LiveFiles(self.uri)
        for path in reversed(segment.commits):
            live.older(await self._store.read(path.name, partial(self._parse, path.version)))
        await read_adds(self._store, segment, live.older_add)
        return await in_thread(plan_snapshot, live.files, state, self.uri, self._storage)

    async def _clock(self, listing: LogListing) -> CommitClock:
        state = await self._load(listing, listing.segment(listing.latest))
        return await in_thread(CommitClock, self._store, listing, state.metadata.configuration)

    async def _state_before(self, listing: LogListing, version: int) -> Snapshot | None:
        """State to which the commit of `version` is to be applied; None where that commit is the table's first.

        Where the log was cleaned up to a checkpoint at `version` itself, that checkpoint's state serves: it already
        holds what the commit will set again. The time of that commit is yet to come, though.
        """
        if version == 0:
            return None
        try:
            return await self._load(listing, listing.segment(version - 1))
        except VersionGone:
            if not any(files[0].version == version for files in listing.checkpoints):
                raise VersionGone(self.uri, version, _first(listing), listing.latest) from None
        state = await self._load(listing, listing.segment(version))
        return replace(state, version=version - 1, modified_ms=_times(listing, version - 1))

    async def _load(self, listing: LogListing, segment: LogSegment) -> Snapshot:
        """State at the end of `segment`, reading backwards only as far as needed."""
        protocol: Protocol | None = None
        metadata: Metadata | None = None
        for path in reversed(segment.commits):
            commit = await self._store.read(path.name, partial(self._state_commit, path.version))
            if commit is not None:
                protocol = protocol or commit.protocol
                metadata = metadata or commit.metadata
            if protocol is not None and metadata is not None:
                break
        else:
            older_protocol, older_metadata = await read_state(self._store, segment)
            protocol, metadata = protocol or older_protocol, metadata or older_metadata
        times = _times(listing, segment.version)
        dated_ms = None if times else segment.checkpoint[0].modified_ms
        return await in_thread(Snapshot.begin, self.uri, segment.version, protocol, metadata, times, dated_ms)

    async def _dated(self, listing: LogListing, state: Snapshot) -> Snapshot:
        """`state` with the time its own commit gives, whether or not a checkpoint stands for that commit by now."""
        if all(path.version != state.version for path in listing.commits):
            return state
        commit = await self._store.read(commit_name(state.version), partial(self._parse, state.version))
        if commit.info is None or commit.info.in_commit_timestamp is None:
            return state
        return replace(state, timestamp_ms=commit.info.in_commit_timestamp)

    def _state_commit(self, version: int, stored: StoredObject) -> Commit | None:
        """A commit that may say something of the state; most say nothing and need no parsing."""
        if b'"protocol"' in stored.data or b'"metaData"' in stored.data:
            return self._parse(version, stored)
        return None

    def _parse(self, version: int, stored: StoredObject) -> Commit:
        return parse_commit(stored.data, self.uri, stored.meta.name, version, stored.meta.modified_ms)

    def _plan(self, stored: StoredObject) -> tuple[Snapshot, ChangePlan]:
        commit = self._parse(self._next, stored)
        if self._state is None:
            info = commit.info
            state = Snapshot.begin(
                self.uri,
                commit.version,
                commit.protocol,
                commit.metadata,
                [commit.modified_ms],
                info.in_commit_timestamp if info is not None else None,
            )
        else:
            state = self._state.advance(commit)
        return state, plan_changes(commit, state, self.uri, self._storage)

    async def _check_gap(self) -> None:
        """Raise if the version waited for will never come."""
        listing = await list_log(self._store)
        if listing.latest < self._next - 1:
            raise VersionAhead(self.uri, self._next - 1, listing.latest)
        # It may have come since we asked; only a listing that has later ones without it is a gap.
        listing.check_contiguous(self._next)


class _LiveFiles:
    """The files of a snapshot, found by going backwards: what was removed later, or seen, is not live."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._seen: set[tuple[str, str]] = set()
        self.files: list[AddFile] = []

    def older(self, commit: Commit) -> None:
        """Take in the commit before those seen so far. Within a commit, adds stand against removes of older files."""
        for add in commit.adds:
            self.older_add(add)
        for remove in commit.removes:
            self._seen.add(self._key(remove.path, remove.deletion_vector))

    def older_add(self, add: AddFile) -> None:
        """Take in a file that is live unless something later said otherwise."""
        key = self._key(add.path, add.deletion_vector)
        if key not in self._seen:
            self._seen.add(key)
            self.files.append(add)

    def _key(self, path: str, vector: DeletionVector | None) -> tuple[str, str]:
        unique = "" if vector is None else f"{vector.storage_type}{vector.path_or_inline_dv}@{vector.offset}"
        return locate(path, self._root), unique


def _first(listing: LogListing) -> int | None:
    return listing.commits[0].version if listing.commits else None


def _times(listing: LogListing, version: int) -> tuple[int, ...]:
    """Modification times of the commits up to `version`, as far back as the clock looks."""
    first = version - CLOCK_WINDOW
    return tuple(path.modified_ms for path in listing.commits if first <= path.version <= version)
