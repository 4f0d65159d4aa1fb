"""Checks of a log whose next version does not come: is it quiet, or is a version lost, or the whole log?

A missing commit file alone means "not yet". In a folder of this machine checks cost nothing and follow after a few
looks. In another store a check is one listing of what follows the last commit, at most every `CHECK_S` seconds; the
looks between are one request each.
"""

import time
from collections.abc import Callable
from typing import Final

from tailer.errors import ObjectNotFound
from tailer.formats.delta.log.listing import LOG, LogFileKind, LogPath, commit_name
from tailer.stores.port import ObjectMeta, ObjectStore

__all__ = ["CHECK_S", "GAP_CHECK_MISSES", "GONE_CHECK_MISSES", "QuietLog"]

GAP_CHECK_MISSES: Final = 8
GONE_CHECK_MISSES: Final = 4  # after which a look at one file shows whether the whole log may be gone
CHECK_S: Final = 300.0


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
        return self._managed or not await self._ends_before(version)

    async def _is_gone(self, predecessor: ObjectMeta | None) -> bool:
        if predecessor is None or self._managed:
            return False
        try:
            await self._store.stat(predecessor.name)
        except ObjectNotFound:
            return True
        return False

    async def _ends_before(self, version: int) -> bool:
        """Return whether the commit before `version` is the last file of the log."""
        objects = await self._store.list(LOG, commit_name(version - 2) if version > 1 else "")
        paths = [path for path in map(LogPath.parse, objects) if path is not None]
        is_there = any(path.kind is LogFileKind.COMMIT and path.version == version - 1 for path in paths)
        return is_there and not any(path.version >= version for path in paths)
