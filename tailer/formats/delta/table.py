"""A Delta table's log behind the `TableLog` port.

The log is listed at the start, when a named start point is resolved, and when a gap is suspected. Otherwise the next
version is found by requesting its commit file, so the cost of a version does not depend on the length of the log.
Fetching, parsing and planning a version is one call in a worker thread; small versions of a local backlog share one.

A missing commit file means "not yet", unless a listing showed it or a later one. `tailer.formats.delta.log.following`
decides when the log is checked all the same. This distinguishes a quiet table from a lost version, and from a log that
went back. A commit does not name its predecessor. So before the next commit is used, the predecessor's file is checked:
if it is still the file that was read, the log is still the same. In a store whose objects appear whole, a listing that
has both files as they were read shows the same without a request. Commits of a backlog are fetched ahead there
(`tailer.formats.delta.log.following`)."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Final

import pyarrow as pa
from typing_extensions import override

from tailer.errors import (
    ChangesUnavailable,
    CommitIncomplete,
    ConfigError,
    FileOutsideTable,
    FileVacuumed,
    LogCorrupt,
    LogRewritten,
    NotATable,
    ObjectNotFound,
    StorageUnavailable,
    TableReplaced,
    TailerError,
    UnsupportedFeature,
    VersionAhead,
    VersionGone,
)
from tailer.formats.delta.catalog.port import CommitCatalog, RatifiedLog
from tailer.formats.delta.changes import plan_snapshot
from tailer.formats.delta.checkpoints.checkpoint import from_sound_checkpoint
from tailer.formats.delta.checkpoints.live_files import live_files
from tailer.formats.delta.commit_plan import CommitFile, CommitPlanner, PlannedCommit, read_whole
from tailer.formats.delta.history import TableHistory, has_commit
from tailer.formats.delta.log.following import CommitPrefetch, QuietLog
from tailer.formats.delta.log.listing import COMMIT_FILE, LOG, CommitLog, LogListing, commit_name
from tailer.formats.delta.snapshot import CLOCK_WINDOW, Snapshot
from tailer.plan import ChangePlan, Position
from tailer.start import Start, StartKind, StartPoint
from tailer.stores.port import ObjectMeta, ObjectStore, in_thread, stays
from tailer.stores.wakeup import Wake
from tailer.table_log import TableLog

__all__ = ["DeltaTableLog"]

PAGE_FILES: Final = 4096  # of a snapshot, in one plan
SETTLE_S: Final = 0.1  # for a commit whose last line does not end
REPAIR_S: Final = 1.0  # for one that is also malformed


class DeltaTableLog(TableLog):
    """The log of the Delta table at the root of `store`.

    `catalog`: the catalog that manages the table. Without it, a catalog-managed table is refused. `allowed_roots`:
    locations of files, besides the table's own. `statistics`, `compare`: as for `CommitPlanner`.
    """

    def __init__(
        self,
        store: ObjectStore,
        catalog: CommitCatalog | None = None,
        allowed_roots: tuple[str, ...] = (),
        statistics: bool = False,
        compare: bool = False,
    ) -> None:
        self.uri = store.uri
        self._store = store
        self._managed = catalog is not None
        self._is_atomic = self._managed or store.is_atomic
        self._log = CommitLog(store) if catalog is None else RatifiedLog(store, catalog)
        self._history = TableHistory(store, self._log, catalog is not None)
        self._commits = CommitPrefetch(store, self._log, is_on=store.is_atomic and catalog is None)
        self._quiet = QuietLog(store, catalog is not None)
        self._reads = None if self._managed else store.blocking()
        self._allowed_roots, self._statistics, self._compare = allowed_roots, statistics, compare
        self._next, self._known = 0, -1  # `_known`: newest version in a listing
        self._state: Snapshot | None = None
        self._state_is_early = False  # whether the state already includes the next commit's metadata
        self._predecessor: CommitFile | None = None
        self._newest: CommitFile | None = None  # the last file read, for `confirm`
        self._snapshot: int | None = None  # version of the last snapshot

    @property
    @override
    def retention_ms(self) -> int | None:
        return None if self._state is None else self._state.retention_ms

    @property
    @override
    def state_id(self) -> str | None:
        return None if self._state is None else self._state.metadata.id

    async def table_id(self) -> str:
        """Return `metaData.id` at the newest version whose state is known."""
        return await self._history.newest_id(await self._log.recent(CLOCK_WINDOW))

    async def ids(self, since: int) -> tuple[str, ...]:
        """See `TableLog.ids`. Reads every commit after `since`."""
        listing = await (self._log.listing() if since < 0 else self._log.recent(CLOCK_WINDOW, since))
        return await self._history.ids(listing, since)

    async def latest(self) -> int:
        """Return the newest version."""
        return (await self._log.recent(CLOCK_WINDOW)).latest

    async def resolve(self, start: Start) -> StartPoint:
        """See `TableLog.resolve`. A time after the latest commit raises `ConfigError`, a version `VersionAhead`."""
        listing = await self._log.listing()
        match start.kind:
            case StartKind.EARLIEST:
                return StartPoint(await _first_readable(self._history, self._log, listing, self._planner))
            case StartKind.LATEST:
                return StartPoint(listing.latest + 1)
            case StartKind.SNAPSHOT:
                return StartPoint(listing.latest, snapshot=True)
            case StartKind.VERSION:
                if start.value > listing.latest + 1:
                    raise VersionAhead(self.uri, start.value, listing.latest, is_start=True)
                return StartPoint(start.value)
            case StartKind.TAG:
                raise _no_tags(self.uri, "start")
            case StartKind.TIMESTAMP:
                return StartPoint(await (await self._history.clock(listing)).first_at_or_after(start.value))

    async def resolve_end(self, end: Start) -> int:
        """See `TableLog.resolve_end`. A time before the earliest commit raises `ConfigError`."""
        listing = await self._log.listing()
        match end.kind:
            case StartKind.VERSION:
                return end.value
            case StartKind.TIMESTAMP:
                return await (await self._history.clock(listing)).last_at_or_before(end.value)
            case StartKind.EARLIEST:
                return min(await _first_readable(self._history, self._log, listing, self._planner), listing.latest)
            case StartKind.TAG:
                raise _no_tags(self.uri, "end")
        return listing.latest

    async def seek(self, version: int) -> pa.Schema | None:
        """See `TableLog.seek`. A gap after `version` is raised when it is reached."""
        listing = await self._log.recent(CLOCK_WINDOW, version - 1)
        if version > listing.latest + 1:
            raise await self._history.version_ahead(version - 1, listing.latest)
        if version <= listing.latest and not has_commit(listing, version):
            raise await self._history.version_gone(version)
        self._state, self._state_is_early = await self._history.state_before(listing, version)
        before = (CommitFile(path.meta, None) for path in listing.commits if path.version == version - 1)
        self._predecessor = self._newest if self._snapshot == version - 1 else next(before, None)
        self._snapshot, self._newest = None, self._predecessor
        self._next, self._known = version, listing.latest
        self._commits.begin(listing, version)
        self._log.forget_listing()
        self._quiet.found()
        return None if self._state is None or self._state_is_early else self._state.schema

    async def next_plans(self, most: int) -> Sequence[ChangePlan]:
        """See `TableLog.next_plans`. Small commits of this machine take less time than one call of a thread.

        Raises `TableReplaced` where another table has replaced this one.
        """
        planner = self._planner(self._next, self._state, self._state_is_early)
        commits: list[PlannedCommit] = []
        if most > 1 and self._reads is not None:
            commits = await in_thread(planner.plan_in_turn, self._reads, self._predecessor, most)
        while not commits:
            commit = await self._commits.read(self._next, planner.plan)
            if commit is None:
                is_listed = self._next <= self._known or self._commits.listed(self._next) is not None
                before = None if self._predecessor is None else self._predecessor.meta
                if is_listed or await self._quiet.is_suspicious(self._next, before):
                    await self._check_gap()
                return ()
            if await self._is_whole(commit):
                commits = [await _complete(self._history, planner, commit) if commit.incomplete else commit]
        outcomes = [commit.outcome for commit in commits]
        await self._check_predecessor(commits[0].file, commits[0].predecessor)
        self._predecessor = self._newest = commits[-1].file
        self._state, self._state_is_early = outcomes[-1][0], False
        self._next += len(commits)
        self._quiet.found()
        return [plan for _, plan in outcomes]

    async def confirm(self, delivered: Position | None) -> None:
        """See `TableLog.confirm`. Checks the last file read: a commit that has a successor is complete."""
        read = self._newest
        if read is None or self._is_atomic:
            return
        with suppress(ObjectNotFound):  # cleaned up
            if await read.is_still(self._store):
                return
            if delivered is not None and delivered.is_inside and commit_name(delivered.version) == read.meta.name:
                raise LogRewritten(self.uri, delivered.version, read.meta.name)
            raise CommitIncomplete(f"{self.uri}/{read.meta.name}")

    async def snapshot_plans(self, version: int) -> AsyncGenerator[ChangePlan, None]:
        """See `TableLog.snapshot_plans`. Files are ordered by modification time, then path."""
        listing = await self._log.recent(CLOCK_WINDOW, version)
        find = partial(live_files, self._store, statistics=self._statistics)
        try:
            state = await self._history.dated_state(listing, version)
            self._snapshot, self._newest = version, None
            if not self._managed and has_commit(listing, version):
                self._newest = await _last_commit(self._store, version, version < listing.latest)
            sorted_files = await from_sound_checkpoint(self._log.listing, listing, version, find)
        except VersionGone as error:
            raise await self._history.version_gone(error.version) from None
        with sorted_files as files:
            rest, first = iter(files), 0
            while True:
                page = await in_thread(lambda: list(islice(rest, PAGE_FILES)))
                if page or first == 0:
                    yield await in_thread(plan_snapshot, page, first, state, self.uri, self._allowed_roots)
                if len(page) < PAGE_FILES:
                    return
                first += len(page)

    async def after_loss(self, error: TailerError, version: int) -> int:
        """See `TableLog.after_loss`. After a lost commit, a checkpoint defines the state again."""
        if isinstance(error, FileVacuumed | ChangesUnavailable):
            return version + 1
        if isinstance(error, VersionGone | LogCorrupt):
            after = await self._history.first_after_loss(await self._log.listing(), version)
            if after is not None:
                return after
        raise error

    @override
    def make_wake(self) -> Wake:
        return self._store.make_wake(LOG, COMMIT_FILE)

    def _planner(self, version: int, before: Snapshot | None, is_early: bool) -> CommitPlanner:
        read, reads, compare = self._predecessor, self._reads, self._compare
        stat = partial(reads.stat_now, read.meta.name) if read is not None and reads is not None else None
        return CommitPlanner(
            self.uri, version, before, is_early, self._managed, self._allowed_roots, stat, self._statistics, compare
        )

    async def _is_whole(self, planned: PlannedCommit) -> bool:
        """Return whether a commit file appears to have been read completely.

        A last line without a newline may be complete: some writers leave the newline out. A commit that has a successor
        is complete, and so is one in a store where objects appear whole. Any other file is given some time to grow.
        """
        if planned.is_ended or self._is_atomic or self._next < self._known:
            return True
        with suppress(ObjectNotFound):
            await self._store.stat(commit_name(self._next + 1))
            return True
        return await stays(self._store, planned.file.meta, SETTLE_S if planned.error is None else REPAIR_S)

    async def _check_gap(self) -> None:
        """Raise if the awaited version is lost."""
        try:
            listing = await self._log.recent(CLOCK_WINDOW, self._next - 1)
        except NotATable as error:
            raise NotATable(self.uri, f"{error.reason} any more: was the table moved or deleted?") from None
        if listing.latest < self._next - 1:
            await self._check_identity()
            raise await self._history.version_ahead(self._next - 1, listing.latest)
        self._known = listing.latest
        # The commit may be new; a gap is only a listing with later versions but without this one.
        if self._next <= listing.latest and not has_commit(listing, self._next):
            raise await self._history.version_gone(self._next)

    async def _check_predecessor(self, successor: CommitFile, predecessor: ObjectMeta | None) -> None:
        """Raise unless `predecessor`, as it was found last, is the file that was read, or has been cleaned up since."""
        read = self._predecessor
        if read is None or self._managed or predecessor == read.meta:  # a catalog reports a replaced table itself
            return
        listed = self._commits.listed
        if (listed(self._next - 1), listed(self._next)) == (read.meta, successor.meta):
            return
        with suppress(ObjectNotFound):  # cleaned up, or the whole log was replaced
            if await self._store.stat(read.meta.name) == read.meta:
                return
            if read.digest is not None and not await read.is_still(self._store):
                await self._check_identity()
                raise LogRewritten(self.uri, self._next - 1, read.meta.name)
        # Another table's commit may have the same content.
        await self._check_identity()

    async def _check_identity(self) -> None:
        """Raise `TableReplaced` unless the log still belongs to the same table."""
        if self._state is not None:
            self._history.forget()
            ids = await self.ids(self._next - 1)
            if self._state.metadata.id not in ids:
                raise TableReplaced(self.uri, self._next, self._state.metadata.id, next(iter(ids), "unknown"))


async def _complete(history: TableHistory, planner: CommitPlanner, commit: PlannedCommit) -> PlannedCommit:
    """Plan a commit that needs to know more about the files that it removes. Raises as `CommitPlanner.complete`."""
    return await in_thread(planner.complete, commit, await history.files_before(planner.version, commit.incomplete))


async def _first_readable(
    history: TableHistory,
    log: CommitLog,
    listing: LogListing,
    make_planner: Callable[[int, Snapshot | None, bool], CommitPlanner],
) -> int:
    """Return the first version whose changes can be read.

    Where the log begins with a checkpoint, the commit of its version may need the state before it.
    """
    try:
        version = listing.earliest
    except VersionGone as error:
        raise await history.version_gone(error.version) from None
    if version > 0:
        with suppress(LogCorrupt, VersionGone, UnsupportedFeature, FileOutsideTable):  # reported when it is read
            planner = make_planner(version, *await history.state_before(listing, version))
            try:
                commit = await log.read(version, planner.plan)
                if commit is not None and commit.incomplete:
                    await _complete(history, planner, commit)
            except ChangesUnavailable:
                return version + 1
    return version


async def _last_commit(store: ObjectStore, version: int, has_successor: bool) -> CommitFile:
    """Read the last commit of a snapshot of `version` to its end.

    Raises `StorageUnavailable` where the commit file was removed since the listing.
    """
    while True:
        try:
            file, is_ended = await store.scan(commit_name(version), read_whole)
        except ObjectNotFound as error:
            raise StorageUnavailable(error.path, "it was removed while the log was being read") from error
        if is_ended or has_successor or store.is_atomic or await stays(store, file.meta, SETTLE_S):
            return file


def _no_tags(uri: str, where: str) -> ConfigError:
    return ConfigError(where, f"{uri} is a Delta table, which has no tags", "Give a version or a timestamp.")
