"""The commits of a backlog, fetched a window at a time before they are planned.

A backlog is what a listing showed: the one made when the log was entered, or one made after `LIST_AFTER` versions were
found in a row. Nothing is fetched beyond it. A window is fetched when its first commit is needed, and held until each
of its commits is. The first is one commit, and each window has twice as many as the one before, as only few may be
wanted; commits larger than a window are read when they are due. Commits that could not be fetched, and those after
them, are fetched again when they are due, so an error comes at its version.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from itertools import count, islice
from typing import Final, TypeVar

from tailer.errors import ObjectNotFound
from tailer.formats.delta.log.commit_reader import WINDOW_FILES, read_together, window
from tailer.formats.delta.log.listing import LOG, CommitLog, LogFileKind, LogListing, LogPath, commit_name
from tailer.stores.port import ObjectMeta, ObjectStore, OpenObject, in_thread

__all__ = ["LIST_AFTER", "CommitPrefetch"]

T = TypeVar("T")

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
            objects = await self._store.list(LOG, commit_name(version - 2) if version > 1 else "")
            paths = (path for path in map(LogPath.parse, objects) if path is not None)
            self._note(path for path in paths if path.kind is LogFileKind.COMMIT and path.version >= version - 1)
        wanted = window(self._ahead(version), self._width)
        self._width = min(2 * self._width, WINDOW_FILES)
        if len(wanted) > 1:
            with suppress(ObjectNotFound):  # reading it again shows whether it is missing
                for path, held in zip(wanted, await read_together(wanted, self._hold), strict=False):
                    self._held[path.version] = held

    def _ahead(self, version: int) -> Iterator[LogPath]:
        for number in count(version):
            if number not in self._listed or number in self._held:
                return
            yield self._listed[number]

    def _note(self, paths: Iterator[LogPath]) -> None:
        self._listed = {path.version: path for path in islice(paths, _MOST_LISTED)} if self._is_on else {}

    async def _hold(self, path: LogPath) -> _Held:
        return await self._store.scan(path.name, lambda opened: _Held(opened.meta, opened.file.read()))
