"""The next commit of a log: fetched before it is planned in a backlog, and looked for where it does not come.

A backlog is what a listing showed: the one made when the log was entered, or one made after `LIST_AFTER` versions were
found in a row. Nothing is fetched beyond it. A window is fetched when its first commit is needed, and held until each
of its commits is. The first is one commit, and each window has twice as many as the one before, as only few may be
wanted; commits larger than a window are read when they are due. Commits that could not be fetched, and those after
them, are fetched again when they are due, so an error comes at its version.

A missing commit file alone means "not yet". In a folder of this machine checks cost nothing and follow after a few
looks. In another store a check is one listing of what follows the last commit, at most every `CHECK_S` seconds; the
looks between are one request each.
"""

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from itertools import count, islice, takewhile
from typing import Final, TypeVar

from tailer.errors import ObjectNotFound
from tailer.formats.delta.log.commit_reader import WINDOW_FILES, read_together, window
from tailer.formats.delta.log.listing import LOG, CommitLog, LogFileKind, LogListing, LogPath, commit_name
from tailer.stores.port import ObjectMeta, ObjectStore, OpenObject, in_thread

__all__ = ["CHECK_S", "GAP_CHECK_MISSES", "GONE_CHECK_MISSES", "LIST_AFTER", "CommitPrefetch", "QuietLog"]

T = TypeVar("T")

GAP_CHECK_MISSES: Final = 8
GONE_CHECK_MISSES: Final = 4  # after which a look at one file shows whether the whole log may be gone
CHECK_S: Final = 300.0
LIST_AFTER: Final = 16
_MOST_LISTED: Final = 10_000  # kept of one listing


@dataclass(frozen=True, slots=True)
class _Held:
    meta: ObjectMeta
    data: bytes


class CommitPrefetch:
    """The commits of `log` in order, fetched ahead from `store` where `is_on`; otherwise read when they are due."""

    def __init__(self, store: ObjectStore, log: CommitLog, is_on: bool) -> None:
        self._store = store
        self._log = log
        self._is_on = is_on
        self._listed: dict[int, LogPath] = {}
        self._held: dict[int, _Held] = {}
        self._unlisted = 0  # versions found in a row after the listed ones
        self._width = 1  # of the next window

    def begin(self, listing: LogListing, version: int) -> None:
        """Forget everything held, and begin at `version` of `listing`."""
        self._held.clear()
        self._unlisted, self._width = 0, 1
        self._note(path for path in listing.commits if path.version >= version - 1)

    def listed(self, version: int) -> ObjectMeta | None:
        """Return the metadata of a commit about to be planned, or of the one before it, from the same listing."""
        path = self._listed.get(version)
        return None if path is None else path.meta

    async def read(self, version: int, decode: Callable[[OpenObject], T]) -> T | None:
        """See `CommitLog.read`. Versions are asked for in order; each may be asked for again."""
        if self._is_on and version not in self._held:
            await self._fetch(version)
        self._listed.pop(version - 2, None)
        held = self._held.pop(version, None)
        if held is not None:
            return await in_thread(decode, OpenObject(held.meta, BytesIO(held.data)))
        result = await self._log.read(version, decode)
        self._unlisted = 0 if result is None or version in self._listed else self._unlisted + 1
        return result

    async def _fetch(self, version: int) -> None:
        """Hold the window that begins with `version`, unless it is that commit alone."""
        if self._unlisted >= LIST_AFTER:
            self._unlisted = 0
            paths = await _list_after(self._store, version - 2)
            self._note(path for path in paths if path.kind is LogFileKind.COMMIT and path.version >= version - 1)
        ahead = takewhile(lambda number: number in self._listed and number not in self._held, count(version))
        wanted = window((self._listed[number] for number in ahead), self._width)
        self._width = min(2 * self._width, WINDOW_FILES)

        async def hold(path: LogPath) -> _Held:
            return await self._store.scan(path.name, lambda opened: _Held(opened.meta, opened.file.read()))

        if len(wanted) > 1:
            with suppress(ObjectNotFound):  # reading it again shows whether it is missing
                for path, held in zip(wanted, await read_together(wanted, hold), strict=False):
                    self._held[path.version] = held

    def _note(self, paths: Iterable[LogPath]) -> None:
        self._listed = {path.version: path for path in islice(paths, _MOST_LISTED)} if self._is_on else {}


class QuietLog:
    """The checks of the log in `store`. `managed`: whether a catalog names its commits. `clock`: in seconds."""

    def __init__(self, store: ObjectStore, managed: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._managed = managed
        self._clock = clock
        self.found()

    def found(self) -> None:
        """Note that nothing is missing: the next version was found, or the log was listed."""
        self._misses = 0
        self._checked_s = self._clock()

    async def is_suspicious(self, version: int, predecessor: ObjectMeta | None) -> bool:
        """Return whether the whole log should be checked, now that `version` was looked for in vain.

        `predecessor`: the commit before it, as far as it is known.
        """
        self._misses += 1
        if not self._store.is_atomic:
            is_due = self._misses % GONE_CHECK_MISSES == 0
            return self._misses % GAP_CHECK_MISSES == 0 or (is_due and await self._is_gone(predecessor))
        if self._clock() - self._checked_s < CHECK_S:
            return False
        self._checked_s = self._clock()
        if self._managed:
            return True
        paths = await _list_after(self._store, version - 2)
        is_there = any(path.kind is LogFileKind.COMMIT and path.version == version - 1 for path in paths)
        return not is_there or any(path.version >= version for path in paths)

    async def _is_gone(self, predecessor: ObjectMeta | None) -> bool:
        if predecessor is None or self._managed:
            return False
        try:
            await self._store.stat(predecessor.name)
        except ObjectNotFound:
            return True
        return False


async def _list_after(store: ObjectStore, version: int) -> list[LogPath]:
    """List the files of a log after the commit of a version."""
    objects = await store.list(LOG, commit_name(version) if version >= 0 else "")
    return [path for path in map(LogPath.parse, objects) if path is not None]
