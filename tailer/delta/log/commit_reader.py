"""Commits of a listing, read without their file actions.

In a store whose objects appear whole, those that are wanted next are read at the same time, and the protocol and
metadata that each sets are cached as long as a listing shows the same file. Elsewhere every commit is read when it is
asked for.
"""

from collections.abc import Sequence
from typing import Final

from tailer.delta.log.actions import Commit, Metadata, Protocol, scan_commit
from tailer.delta.log.listing import LogPath
from tailer.delta.log.windows import WINDOW_FILES, read_together, window
from tailer.errors import ObjectNotFound, StorageUnavailable
from tailer.stores.port import ObjectMeta, ObjectStore, OpenObject

__all__ = ["NOTHING_SET", "CommitReader", "StateActions"]

StateActions = tuple[Protocol | None, Metadata | None]

NOTHING_SET: Final[StateActions] = (None, None)
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
        if not self._store.is_atomic:
            return _actions(await self.commit(paths[number]))
        cached = self._cached_actions(paths[number])
        if cached is not None:
            return cached
        later = paths[number : number + WINDOW_FILES]
        wanted = window(path for path in later if self._cached_actions(path) is None)
        found = await read_together(wanted, self._read)
        for path, (meta, commit) in zip(wanted, found, strict=False):
            if len(self._cached) < _MOST_CACHED or path.name in self._cached:
                self._cached[path.name] = meta, _actions(commit)
        return _actions(found[0][1])

    def _cached_actions(self, path: LogPath) -> StateActions | None:
        meta, actions = self._cached.get(path.name, (None, None))
        return actions if meta == path.meta else None

    async def _read(self, path: LogPath) -> tuple[ObjectMeta, Commit]:
        def parse(opened: OpenObject) -> tuple[ObjectMeta, Commit]:
            meta, table = opened.meta, self._store.uri
            return meta, scan_commit(opened.file, table, path.name, path.version, meta.modified_ms, lambda _: False)

        try:
            return await self._store.scan(path.name, parse)
        except ObjectNotFound as error:
            raise StorageUnavailable(error.path, "it was removed while the log was being read") from error


def _actions(commit: Commit) -> StateActions:
    actions = (commit.protocol, commit.metadata)
    return NOTHING_SET if actions == NOTHING_SET else actions
