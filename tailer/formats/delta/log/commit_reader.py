"""Commit files that are wanted next, read together: windows of bounded number and size, and what their actions set.

They are read concurrently only in a store whose objects appear whole: there requests take time, and what is read early
is complete. The protocol and metadata that each sets are cached as long as a listing shows the same file. One that has
just changed may do so again within the resolution of its time, or a table may be made anew in the place of its own: it
is not cached.
"""

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from itertools import takewhile
from typing import Final, TypeVar

import anyio

from tailer.errors import ObjectNotFound, StorageUnavailable, TailerError
from tailer.formats.delta.log.actions import NOTHING_SET, Commit, StateActions, scan_commit, scan_state
from tailer.formats.delta.log.listing import LogPath
from tailer.stores.port import ObjectMeta, ObjectStore, OpenObject, in_thread

__all__ = ["WINDOW_BYTES", "WINDOW_FILES", "CommitReader", "read_together", "settled_before_ms", "window"]

T = TypeVar("T")

WINDOW_FILES: Final = 32
WINDOW_BYTES: Final = 4 * 2**20
_SETTLED_MS: Final = 2000
_MOST_AT_ONCE: Final = 512
_MOST_CACHED: Final = 100_000  # commits, with some 200 bytes each


class CommitReader:
    """The commits of the table in `store`."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        # By the name of the commit; nearly every commit sets nothing.
        self._nothing: dict[str, ObjectMeta] = {}
        self._something: dict[str, tuple[ObjectMeta, StateActions]] = {}

    def forget(self) -> None:
        """Discard everything read so far: the log may have been replaced."""
        self._nothing.clear()
        self._something.clear()

    async def commit(self, path: LogPath) -> Commit:
        """Read the commit at `path`.

        Raises `LogCorrupt`, and `StorageUnavailable` where the file no longer exists.
        """

        def parse(opened: OpenObject) -> Commit:
            table, modified_ms = self._store.uri, opened.meta.modified_ms
            return scan_commit(opened.file, table, path.name, path.version, modified_ms, lambda _: False)

        try:
            return await self._store.scan(path.name, parse)
        except ObjectNotFound as error:
            raise _removed(error) from error

    def cached_actions(self, path: LogPath) -> StateActions | None:
        """Return what `state_actions` would without reading; None: it would read."""
        meta = path.meta
        if self._nothing.get(meta.name) == meta:
            return NOTHING_SET
        cached = self._something.get(meta.name)
        return cached[1] if cached is not None and cached[0] == meta else None

    async def state_actions(self, paths: Sequence[LogPath], number: int) -> StateActions:
        """Return protocol and metadata that the commit at `paths[number]` sets. The paths after it are wanted next.

        Raises as `commit` does.
        """
        cached = self.cached_actions(paths[number])
        if cached is not None:
            return cached
        settled_ms = settled_before_ms()
        if paths[number].modified_ms >= settled_ms:
            return (await self.commit(paths[number])).state_actions
        # As many are read together as were read before, within limits: more costs nothing where no requests are made.
        most = min(max(WINDOW_FILES, number), _MOST_AT_ONCE) if self._store.blocking() is not None else WINDOW_FILES
        later = takewhile(lambda path: path.meta.modified_ms < settled_ms, paths[number : number + most])
        wanted = window((path for path in later if self.cached_actions(path) is None), most)
        results = await self._read_all(wanted)
        for path, (meta, actions) in zip(wanted, results, strict=False):
            if meta.modified_ms < settled_ms:
                self._cache(path.meta if path.meta == meta else meta, actions)
        return results[0][1]

    def _cache(self, meta: ObjectMeta, actions: StateActions) -> None:
        name = meta.name
        self._nothing.pop(name, None)
        self._something.pop(name, None)
        if len(self._nothing) + len(self._something) < _MOST_CACHED:
            if actions is NOTHING_SET:
                self._nothing[name] = meta
            else:
                self._something[name] = meta, actions

    async def _read_all(self, paths: Sequence[LogPath]) -> list[tuple[ObjectMeta, StateActions]]:
        """Read commits together, up to the first that cannot be read; raise its error if it is the first of all."""
        reads = self._store.blocking()
        if reads is None:
            return await read_together(paths, self._read_state)

        def scan() -> list[tuple[ObjectMeta, StateActions]]:
            results: list[tuple[ObjectMeta, StateActions]] = []
            try:
                for path in paths:
                    results.append(reads.scan_now(path.meta.name, partial(self._parse_state, path)))  # noqa: PERF401
            except ObjectNotFound as error:
                if not results:
                    raise _removed(error) from error
            except TailerError:
                if not results:
                    raise
            return results

        return await in_thread(scan)

    async def _read_state(self, path: LogPath) -> tuple[ObjectMeta, StateActions]:
        try:
            return await self._store.scan(path.name, partial(self._parse_state, path))
        except ObjectNotFound as error:
            raise _removed(error) from error

    def _parse_state(self, path: LogPath, opened: OpenObject) -> tuple[ObjectMeta, StateActions]:
        return opened.meta, scan_state(opened.file, self._store.uri, path.meta.name, path.version)


def settled_before_ms() -> float:
    """Return the time, in milliseconds since 1970, from which on a file may change without looking different.

    Stores tell times in whole seconds. A file that is modified again, or a table that is made anew, within the same
    second may look as before.
    """
    return time.time() * 1000 - _SETTLED_MS


def _removed(error: ObjectNotFound) -> StorageUnavailable:
    return StorageUnavailable(error.path, "it was removed while the log was being read")


def window(paths: Iterable[LogPath], most: int = WINDOW_FILES) -> list[LogPath]:
    """Return the first of `paths`, and those after it that may be read at the same time: together at most `most`."""
    files: list[LogPath] = []
    size_bytes = 0
    for path in paths:
        size_bytes += path.size_bytes or WINDOW_BYTES  # of a staged commit the catalog does not give the size
        if files and (len(files) == most or size_bytes > WINDOW_BYTES):
            break
        files.append(path)
    return files


async def read_together(paths: Sequence[LogPath], read: Callable[[LogPath], Awaitable[T]]) -> list[T]:
    """Call `read` for all paths concurrently and return the results before the first error.

    Raises the error of the first path. Another path's error is not reported: it belongs to the moment at which that
    commit is needed, and is found again then.
    """
    results: dict[int, T] = {}
    errors: dict[int, TailerError] = {}

    async def one(number: int) -> None:
        try:
            results[number] = await read(paths[number])
        except TailerError as error:
            errors[number] = error

    async with anyio.create_task_group() as group:
        for number in range(len(paths)):
            group.start_soon(one, number)
    if 0 in errors:
        raise errors[0]
    return [results[number] for number in range(min(errors, default=len(paths)))]
