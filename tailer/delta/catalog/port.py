"""Where commits are found: in the log, or where the table's catalog says (PROTOCOL.md, "Catalog-managed tables").

`CommitLog` is what reading a table needs of its commits: what there is now, and the one of a version. `PublishedLog`
answers from the folder alone. `RatifiedLog` asks a `CommitCatalog` first, because commits are ratified by the catalog
and reach the folder later, if ever:
  1. the catalog is asked before the folder is listed: what the catalog has let go of by then is published, and seen;
  2. the commit that the catalog names for a version is the one, whether or not that version is published too;
  3. nothing later than the catalog's latest version exists, whatever lies in the folder;
  4. staged commits that the catalog does not name are attempts that failed or are under way, and are never read.

What a catalog said of a version stays true, so it is asked again only for versions beyond those it told, or where a
file it named is gone. Inline commits, which a catalog keeps to itself, are no part of the port: no catalog gives any.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeVar

from tailer.delta.log.listing import LOG, LogFileKind, LogListing, LogPath, commit_name, list_log, list_recent
from tailer.errors import ObjectNotFound, VersionGone
from tailer.stores.local import ObjectStore, OpenObject

__all__ = ["CommitCatalog", "CommitLog", "PublishedLog", "RatifiedCommits", "RatifiedLog", "StagedCommit", "merge"]

T = TypeVar("T")

_STAGED: Final = f"{LOG}/_staged_commits"
_STAGED_FILE: Final = re.compile(r"([0-9]{20})\.[^/]+\.json")


@dataclass(frozen=True, slots=True)
class StagedCommit:
    """A ratified commit that may not be published. `file`: below `_delta_log/_staged_commits`; times in milliseconds.

    `timestamp_ms` is the in-commit timestamp; of a published commit only its modification time would be known, which
    says when it was published.
    """

    version: int
    file: str
    timestamp_ms: int

    @property
    def path(self) -> LogPath:
        """The file as one of the log."""
        return LogPath(self.version, LogFileKind.COMMIT, f"{_STAGED}/{self.file}", self.timestamp_ms)


@dataclass(frozen=True, slots=True)
class RatifiedCommits:
    """What a catalog says of a table at one moment: its latest version, and the commits up to it not yet published.

    Consecutive up to `latest`, in order; none where all are published. Raises `ValueError` where that is not so.
    """

    latest: int
    staged: tuple[StagedCommit, ...] = ()

    def __post_init__(self) -> None:
        versions = [commit.version for commit in self.staged]
        if versions != list(range(self.latest + 1 - len(versions), self.latest + 1)):
            raise ValueError(f"commits {versions} of a table that is at version {self.latest}")
        for commit in self.staged:
            # What a catalog names is read as a commit: it must not lead out of the folder of staged commits.
            match = _STAGED_FILE.fullmatch(commit.file)
            if match is None or int(match[1]) != commit.version:
                raise ValueError(f"{commit.file!r} is not a staged commit of version {commit.version}")

    def name(self, version: int) -> str:
        """The object that holds the commit of `version`, which is not later than `latest`."""
        return next((each.path.name for each in self.staged if each.version == version), commit_name(version))


class CommitCatalog(Protocol):
    """Ratifies the commits of one table."""

    async def ratified(self, location: str) -> RatifiedCommits:
        """What the catalog has ratified by now. `location`: the table's, which must be where the catalog has it.

        Raises `StorageUnavailable` where the catalog does not answer as it should, `ConfigError` where it refuses or
        means another table, `TableReplaced` where it answered for another table before.
        """
        ...


class CommitLog(Protocol):
    """The commits of one table."""

    async def listing(self) -> LogListing:
        """All there is now. Raises `NotATable`, `VersionGone`, `StorageUnavailable`, and what the catalog raises."""
        ...

    async def recent(self, behind: int, version: int | None = None) -> LogListing:
        """What there is now, as far back as `list_recent` goes with these arguments. Raises as `listing`."""
        ...

    async def read(self, version: int, decode: Callable[[OpenObject], T]) -> T | None:
        """The commit of `version`, open, decoded in a worker thread; None while there is none.

        Raises `VersionGone` where there is one and its file is gone, `StorageUnavailable`, and what the catalog raises.
        """
        ...


class PublishedLog:
    """The commits of a table that no catalog manages: those in its log."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    async def listing(self) -> LogListing:
        """See `CommitLog.listing`."""
        return await list_log(self._store)

    async def recent(self, behind: int, version: int | None = None) -> LogListing:
        """See `CommitLog.recent`."""
        return await list_recent(self._store, behind, version)

    async def read(self, version: int, decode: Callable[[OpenObject], T]) -> T | None:
        """See `CommitLog.read`. Whether a file that is not there is lost, only a listing tells."""
        try:
            return await self._store.scan(commit_name(version), decode)
        except ObjectNotFound:
            return None


class RatifiedLog:
    """The commits of the catalog-managed table in `store`: those its catalog has ratified."""

    def __init__(self, store: ObjectStore, catalog: CommitCatalog) -> None:
        self._store = store
        self._catalog = catalog
        self._known = RatifiedCommits(-1)

    async def listing(self) -> LogListing:
        """See `CommitLog.listing`."""
        self._known = known = await self._catalog.ratified(self._store.uri)
        return merge(await list_log(self._store), known)

    async def recent(self, behind: int, version: int | None = None) -> LogListing:
        """See `CommitLog.recent`. A checkpoint later than the catalog's latest version is not one to begin with."""
        self._known = known = await self._catalog.ratified(self._store.uri)
        upto = known.latest if version is None else min(version, known.latest)
        return merge(await list_recent(self._store, behind, upto), known)

    async def read(self, version: int, decode: Callable[[OpenObject], T]) -> T | None:
        """See `CommitLog.read`."""
        tried: str | None = None
        if version > self._known.latest:
            self._known = await self._catalog.ratified(self._store.uri)
        while version <= self._known.latest:
            name = self._known.name(version)
            if name == tried:
                raise VersionGone(self._store.uri, version, None, self._known.latest)
            try:
                return await self._store.scan(name, decode)
            except ObjectNotFound:
                # Published and tidied away since the catalog named it? Then it does not name it any more.
                tried = name
                self._known = await self._catalog.ratified(self._store.uri)
        return None


def merge(listing: LogListing, ratified: RatifiedCommits) -> LogListing:
    """The log that `ratified` makes of the published files in `listing`, which was taken afterwards.

    Raises `VersionGone` where the catalog's latest version is neither published nor named by the catalog. A commit that
    is missing before that is missed when it is needed, as in every listing.
    """
    commits = {path.version: path for path in listing.commits if path.version <= ratified.latest}
    commits |= {commit.version: commit.path for commit in ratified.staged}
    checkpoints = tuple(files for files in listing.checkpoints if files[0].version <= ratified.latest)
    merged = replace(listing, commits=tuple(commits[version] for version in sorted(commits)), checkpoints=checkpoints)
    newest = merged.latest if commits or checkpoints else -1
    if newest != ratified.latest:
        raise VersionGone(listing.table, newest + 1, min(commits, default=None), newest if newest >= 0 else None)
    return merged
