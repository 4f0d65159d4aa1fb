"""Commits of a listing, read without their file actions.

Those that are wanted next are read together, and the protocol and metadata that each sets are cached as long as a
listing shows the same file. Where files do not appear whole, one that has just changed may do so again within the
resolution of its time, and is not cached.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import takewhile
from typing import Final

from tailer.delta.log.actions import Commit, Metadata, Protocol, scan_commit
from tailer.delta.log.listing import LogPath
from tailer.delta.log.windows import WINDOW_FILES, read_together, window
from tailer.errors import ObjectNotFound, StorageUnavailable, TailerError
from tailer.stores.port import BlockingScans, ObjectMeta, ObjectStore, OpenObject, in_thread

__all__ = ["NOTHING_SET", "CommitReader", "StateActions"]

StateActions = tuple[Protocol | None, Metadata | None]

NOTHING_SET: Final[StateActions] = (None, None)
_SETTLED_MS: Final = 2000
_MOST_CACHED: Final = 100_000  # commits, with some 200 bytes each


class CommitReader:
    """The commits of the table in `store`."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._cached: dict[str, tuple[ObjectMeta, StateActions]] = {}  # by the name of the commit

    def forget(self) -> None:
        """Discard everything read so far: the log may have been replaced."""
        self._cached.clear()

    async def commit(self, path: LogPath) -> Commit:
        """Read the commit at `path`.

        Raises `LogCorrupt`, and `StorageUnavailable` where the file no longer exists.
        """
        _, commit = await self._read(path)
        return commit

    async def state_actions(self, paths: Sequence[LogPath], number: int) -> StateActions:
        """Return protocol and metadata that the commit at `paths[number]` sets. The paths after it are wanted next.

        Raises as `commit` does.
        """
        cached = self._cached_actions(paths[number])
        if cached is not None:
            return cached
        if not self._is_settled(paths[number].meta):
            return _actions(await self.commit(paths[number]))
        later = takewhile(lambda path: self._is_settled(path.meta), paths[number : number + WINDOW_FILES])
        wanted = window(path for path in later if self._cached_actions(path) is None)
        found = await self._read_all(wanted)
        for path, (meta, commit) in zip(wanted, found, strict=False):
            if self._is_settled(meta) and (len(self._cached) < _MOST_CACHED or path.name in self._cached):
                self._cached[path.name] = meta, _actions(commit)
        return _actions(found[0][1])

    def _cached_actions(self, path: LogPath) -> StateActions | None:
        meta, actions = self._cached.get(path.name, (None, None))
        return actions if meta == path.meta else None

    def _is_settled(self, meta: ObjectMeta) -> bool:
        return self._store.is_atomic or time.time() * 1000 - meta.modified_ms > _SETTLED_MS

    async def _read_all(self, paths: Sequence[LogPath]) -> list[tuple[ObjectMeta, Commit]]:
        """Read commits together, up to the first that cannot be read; raise its error if it is the first of all."""
        store = self._store
        if not isinstance(store, BlockingScans):
            return await read_together(paths, self._read)

        def scan() -> list[tuple[ObjectMeta, Commit]]:
            found: list[tuple[ObjectMeta, Commit]] = []
            for path in paths:
                try:
                    with _removals():
                        found.append(store.scan_now(path.name, partial(self._parse, path)))
                except TailerError:
                    if not found:
                        raise
                    break
            return found

        return await in_thread(scan)

    async def _read(self, path: LogPath) -> tuple[ObjectMeta, Commit]:
        with _removals():
            return await self._store.scan(path.name, partial(self._parse, path))

    def _parse(self, path: LogPath, opened: OpenObject) -> tuple[ObjectMeta, Commit]:
        meta, table = opened.meta, self._store.uri
        return meta, scan_commit(opened.file, table, path.name, path.version, meta.modified_ms, lambda _: False)


@contextmanager
def _removals() -> Iterator[None]:
    try:
        yield
    except ObjectNotFound as error:
        raise StorageUnavailable(error.path, "it was removed while the log was being read") from error


def _actions(commit: Commit) -> StateActions:
    actions = (commit.protocol, commit.metadata)
    return NOTHING_SET if actions == NOTHING_SET else actions
