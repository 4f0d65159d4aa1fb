"""Commits of a table that a catalog manages (PROTOCOL.md, "Catalog-managed tables").

`RatifiedLog` is the `CommitLog` of such a table. It asks a `CommitCatalog` first, because the catalog ratifies commits
before they are published, if ever:
  1. the catalog is asked before the folder is listed: a commit that it no longer names is then published and listed;
  2. the commit that the catalog names for a version is the valid one, even if that version is also published;
  3. versions after the catalog's latest version do not exist, even if the folder has files for them;
  4. staged commits that the catalog does not name have failed or are in progress, and are never read.

A catalog's answer about a version stays true. So the catalog is asked again only for later versions, or where a named
file no longer exists. The port does not support inline commits, because no catalog provides them.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeVar

from typing_extensions import override

from tailer.errors import ObjectNotFound, VersionGone
from tailer.formats.delta.log.listing import (
    LOG,
    CommitLog,
    LogFileKind,
    LogListing,
    LogPath,
    commit_name,
)
from tailer.stores.port import ObjectMeta, ObjectStore, OpenObject

__all__ = ["CommitCatalog", "RatifiedCommits", "RatifiedLog", "StagedCommit", "merge"]

T = TypeVar("T")

_STAGED: Final = f"{LOG}/_staged_commits"
_STAGED_FILE: Final = re.compile(r"([0-9]{20})\.[^/]+\.json")


@dataclass(frozen=True, slots=True)
class StagedCommit:
    """A ratified commit that may be unpublished. `file`: below `_delta_log/_staged_commits`; times in milliseconds.

    `timestamp_ms` is the in-commit timestamp. The modification time of a published commit is its time of publication.
    """

    version: int
    file: str
    timestamp_ms: int

    @property
    def path(self) -> LogPath:
        """The staged file as a commit file of the log."""
        return LogPath(self.version, LogFileKind.COMMIT, ObjectMeta(f"{_STAGED}/{self.file}", 0, self.timestamp_ms))


@dataclass(frozen=True, slots=True)
class RatifiedCommits:
    """A catalog's answer at one moment: the table's latest version, and the ratified commits not yet published.

    `staged` is consecutive up to `latest`, in order; empty where all are published. Raises `ValueError` otherwise.
    """

    latest: int
    staged: tuple[StagedCommit, ...] = ()

    def __post_init__(self) -> None:
        versions = [commit.version for commit in self.staged]
        if versions != list(range(self.latest + 1 - len(versions), self.latest + 1)):
            raise ValueError(f"commits {versions} of a table at version {self.latest}")
        for commit in self.staged:
            # The named file is read as a commit, so it must be in the folder of staged commits.
            match = _STAGED_FILE.fullmatch(commit.file)
            if match is None or int(match[1]) != commit.version:
                raise ValueError(f"{commit.file!r} is not a staged commit of version {commit.version}")

    def name(self, version: int) -> str:
        """Return the object name of the commit of `version`, which must not be later than `latest`."""
        return next((commit.path.name for commit in self.staged if commit.version == version), commit_name(version))


class CommitCatalog(Protocol):
    """A catalog that ratifies the commits of one table.

    Each product has a client of its own; Unity Catalog is the first.
    """

    async def ratified(self, location: str) -> RatifiedCommits:
        """Return the commits ratified so far. `location`: the table's, which must match the catalog's.

        Raises `StorageUnavailable` where the catalog does not answer correctly, `ConfigError` where it refuses or has
        another table, `TableReplaced` where it has answered for another table before.
        """
        ...


class RatifiedLog(CommitLog):
    """The commits of the catalog-managed table in `store`: those its catalog has ratified."""

    def __init__(self, store: ObjectStore, catalog: CommitCatalog) -> None:
        super().__init__(store)
        self._catalog = catalog
        self._known = RatifiedCommits(-1)

    @override
    async def listing(self) -> LogListing:
        self._known = commits = await self._catalog.ratified(self._store.uri)
        return merge(await super().listing(), commits)

    async def recent(self, clock_window: int, version: int | None = None) -> LogListing:
        """See `CommitLog.recent`. Checkpoints later than the catalog's latest version are not used."""
        self._known = commits = await self._catalog.ratified(self._store.uri)
        upto = commits.latest if version is None else min(version, commits.latest)
        return merge(await super().recent(clock_window, upto), commits)

    @override
    async def read(self, version: int, decode: Callable[[OpenObject], T]) -> T | None:
        missing: str | None = None
        if version > self._known.latest:
            self._known = await self._catalog.ratified(self._store.uri)
        while version <= self._known.latest:
            name = self._known.name(version)
            if name == missing:
                raise VersionGone(self._store.uri, version, None, self._known.latest)
            try:
                return await self._store.scan(name, decode)
            except ObjectNotFound:
                # If it was published and removed since, the catalog no longer names it.
                missing = name
                self._known = await self._catalog.ratified(self._store.uri)
        return None


def merge(listing: LogListing, ratified: RatifiedCommits) -> LogListing:
    """Combine `ratified` with `listing`, the published files listed after it.

    Raises `VersionGone` where the catalog's latest version is neither published nor named by the catalog. An earlier
    missing commit is reported when it is needed, as in every listing.
    """
    commits = {path.version: path for path in listing.commits if path.version <= ratified.latest}
    commits |= {commit.version: commit.path for commit in ratified.staged}
    checkpoints = tuple(files for files in listing.checkpoints if files[0].version <= ratified.latest)
    merged = replace(listing, commits=tuple(commits[version] for version in sorted(commits)), checkpoints=checkpoints)
    newest = merged.latest if commits or checkpoints else -1
    if newest != ratified.latest:
        raise VersionGone(listing.table, newest + 1, min(commits, default=None), newest if newest >= 0 else None)
    return merged
