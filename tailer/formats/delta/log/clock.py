"""From a time to a version: search over commit timestamps (PROTOCOL.md, "In-Commit Timestamps", reader rules).

A history may have two halves. Commits before in-commit timestamps were enabled have their files' modification times,
made monotonic. Later commits have in-commit timestamps. A time belongs to the second half unless it is before the
enablement timestamp.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import accumulate
from typing import Final

from tailer.errors import ConfigError, LogCorrupt
from tailer.formats.delta.log.actions import scan_commit
from tailer.formats.delta.log.listing import LogListing, LogPath
from tailer.stores.port import ObjectStore, OpenObject

__all__ = ["CommitClock", "has_in_commit_timestamps"]

_ENABLED: Final = "delta.enableInCommitTimestamps"
_SINCE_VERSION: Final = "delta.inCommitTimestampEnablementVersion"
_SINCE_MS: Final = "delta.inCommitTimestampEnablementTimestamp"


def has_in_commit_timestamps(configuration: Mapping[str, str | None]) -> bool:
    """Return whether commits of a table with this configuration have their time inside."""
    return (configuration.get(_ENABLED) or "").lower() == "true"


class CommitClock:
    """Timestamps of the commits in a listing. `configuration` is the table's at the latest version."""

    def __init__(self, store: ObjectStore, listing: LogListing, configuration: Mapping[str, str | None]) -> None:
        self._store = store
        self._listing = listing
        earliest = listing.earliest
        commits = [path for path in listing.commits if path.version >= earliest]
        since, self._since_ms = len(commits), None
        if has_in_commit_timestamps(configuration):
            first = self._number(configuration, _SINCE_VERSION)
            since = sum(path.version < first for path in commits)
            self._since_ms = self._number(configuration, _SINCE_MS)
        self._by_file = commits[:since]
        self._by_commit = commits[since:]
        times = (path.modified_ms for path in self._by_file)
        self._file_ms = list(accumulate(times, lambda before_ms, ms: max(ms, before_ms + 1)))

    async def first_at_or_after(self, moment_ms: int) -> int:
        """Return the first version at or after `moment_ms`. Raises `ConfigError` where there is none."""
        if self._since_ms is None or moment_ms < self._since_ms:
            index = bisect_left(self._file_ms, moment_ms)
            commits = (self._by_file[index:] or self._by_commit)[:1]
        else:
            commits = self._by_commit[await self._count_before(moment_ms) :][:1]
        if not commits:
            reason = f"{_text(moment_ms)} is after the latest commit, version {self._listing.latest}"
            raise ConfigError("start", reason, "Give an earlier time, or `latest` to start with new commits.")
        return commits[0].version

    async def last_at_or_before(self, moment_ms: int) -> int:
        """Return the last version at or before `moment_ms`. Raises `ConfigError` where there is none."""
        if self._since_ms is None or moment_ms < self._since_ms:
            commits = self._by_file[: bisect_right(self._file_ms, moment_ms)]
        else:
            commits = self._by_file + self._by_commit[: await self._count_before(moment_ms + 1)]
        if not commits:
            reason = f"{_text(moment_ms)} is before the earliest commit, version {self._listing.earliest}"
            raise ConfigError("end", reason, "Give a later time.")
        return commits[-1].version

    def _number(self, configuration: Mapping[str, str | None], key: str) -> int:
        """Parse a numeric property; 0 where it is not set."""
        text = configuration.get(key) or "0"
        try:
            return int(text)
        except ValueError:
            listing = self._listing
            raise LogCorrupt(listing.table, "metaData", f"{key} is {text!r}, not a number", listing.latest) from None

    async def _count_before(self, moment_ms: int) -> int:
        """Count the commits with an in-commit timestamp before `moment_ms`: a binary search, one read per step."""
        low, high = 0, len(self._by_commit)
        while low < high:
            middle = (low + high) // 2
            if await self._in_commit_ms(self._by_commit[middle]) < moment_ms:
                low = middle + 1
            else:
                high = middle
        return low

    async def _in_commit_ms(self, path: LogPath) -> int:
        table = self._listing.table

        def decode(opened: OpenObject) -> int | None:
            modified_ms = opened.meta.modified_ms
            commit = scan_commit(opened.file, table, path.name, path.version, modified_ms, lambda _: False)
            return commit.info.in_commit_timestamp if commit.info is not None else None

        timestamp_ms = await self._store.scan(path.name, decode)
        if timestamp_ms is None:
            raise LogCorrupt(table, path.name, "no inCommitTimestamp, though the table has them enabled", path.version)
        return timestamp_ms


def _text(moment_ms: int) -> str:
    return datetime.fromtimestamp(moment_ms / 1000, UTC).isoformat()
