"""A Lance dataset's versions behind the `TableLog` port (Lance format, "Dataset Directory", "Manifest").

The folder of manifests is listed at the start, when a named start point is resolved, and from time to time while no
version comes: that shows a gap, and manifests that were renamed. Otherwise the next version is found by requesting its
manifest, so the cost of a version does not depend on the length of the history.

Manifests appear whole. A manifest does not name its predecessor. So before the next one is used, the last one is
checked: if it is still the file that was read, the dataset is still the same. A dataset has no id. Its location stands
for it: a dataset that is deleted and made again while nobody follows it is noticed only if it has fewer versions.

A version's changes need the version before. Where that was cleaned up, the changes are lost.
"""

import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from re import compile as pattern
from typing import Final

import pyarrow as pa

from tailer.errors import (
    ChangesUnavailable,
    ConfigError,
    FileVacuumed,
    LogRewritten,
    ObjectNotFound,
    TailerError,
    VersionAhead,
    VersionGone,
)
from tailer.lance.changes import Version, plan_changes, plan_snapshot
from tailer.lance.history import VERSIONS, History
from tailer.plan import ChangePlan, Position
from tailer.start import Start, StartKind, StartPoint
from tailer.stores.port import ObjectMeta, ObjectStore, in_thread
from tailer.stores.wakeup import Wake

__all__ = ["LanceTableLog", "dataset_id"]

PAGE_FRAGMENTS: Final = 1024  # of a snapshot, in one plan
_MANIFEST: Final = pattern(r"[0-9]+\.manifest")
_LIST_MISSES: Final = 16


def dataset_id(uri: str) -> str:
    """Return the id of the dataset at `uri`. It is part of progress, so it never changes."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"lance:{uri}"))


class LanceTableLog:
    """The versions of the Lance dataset at the root of `store`.

    `open_store`: opens another root, where base paths lead. `allowed_roots`: those that they may lead to.
    """

    def __init__(
        self, store: ObjectStore, open_store: Callable[[str], ObjectStore], allowed_roots: tuple[str, ...] = ()
    ) -> None:
        self._store = store
        self._id = dataset_id(store.uri)
        self._history = History(store, self._id, open_store, allowed_roots)
        self._next = 1
        self._state: Version | None = None
        self._predecessor: ObjectMeta | None = None
        self._misses = 0

    @property
    def uri(self) -> str:
        """The dataset's location."""
        return self._store.uri

    @property
    def retention_ms(self) -> int | None:
        """See `TableLog.retention_ms`. Versions are kept until a writer cleans them up."""
        return None

    @property
    def state_id(self) -> str | None:
        """See `TableLog.state_id`."""
        return None if self._state is None else self._id

    async def table_id(self) -> str:
        """See `TableLog.table_id`. Raises `NotATable` where there is no version."""
        await self._history.listed()
        return self._id

    async def ids(self, since: int) -> tuple[str, ...]:
        """See `TableLog.ids`."""
        return (self._id,)

    async def latest(self) -> int:
        """Return the newest version."""
        return max(await self._history.listed())

    async def resolve(self, start: Start) -> StartPoint:
        """See `TableLog.resolve`. The earliest changes are those after the earliest version, or all of version 1."""
        versions = list(await self._history.listed())
        latest = versions[-1]
        match start.kind:
            case StartKind.EARLIEST:
                return StartPoint(_first_changes(versions))
            case StartKind.LATEST:
                return StartPoint(latest + 1)
            case StartKind.SNAPSHOT:
                return StartPoint(latest, snapshot=True)
            case StartKind.VERSION:
                if start.value > latest + 1:
                    raise VersionAhead(self.uri, start.value, latest, is_start=True)
                return StartPoint(max(start.value, 1))
        after = await self._first_at_or_after(versions, start.value)
        if after == len(versions):
            remedy = "Give an earlier time, or `latest`."
            raise ConfigError("start", f"{self.uri} has no version after that time", remedy)
        return StartPoint(versions[after])

    async def resolve_end(self, end: Start) -> int:
        """See `TableLog.resolve_end`. A time before the earliest version raises `ConfigError`."""
        versions = list(await self._history.listed())
        match end.kind:
            case StartKind.VERSION:
                return end.value
            case StartKind.EARLIEST:
                return versions[0]
            case StartKind.TIMESTAMP:
                after = await self._first_at_or_after(versions, end.value + 1)
                if after == 0:
                    raise ConfigError("end", f"{self.uri} has no version before that time", "Give a later time.")
                return versions[after - 1]
        return versions[-1]

    async def seek(self, version: int) -> pa.Schema | None:
        """See `TableLog.seek`."""
        versions = await self._history.listed()
        earliest, latest = min(versions), max(versions)
        if version > latest + 1:
            raise VersionAhead(self.uri, version - 1, latest)
        if version <= latest and version not in versions:
            raise VersionGone(self.uri, version, earliest, latest)
        self._state, self._predecessor = None, None
        if version > 1:
            if version - 1 not in versions:
                reason = f"version {version - 1}, from which it began, was cleaned up"
                raise ChangesUnavailable(self.uri, version, reason)
            found = await self._history.existing(version - 1)
            self._state = await in_thread(self._history.version, found.manifest, None, None)
            self._predecessor = found.meta
        self._next, self._misses = max(version, 1), 0
        return None if self._state is None else self._state.schema

    async def next_plan(self) -> ChangePlan | None:
        """See `TableLog.next_plan`."""
        found = await self._history.read(self._next)
        if found is None:
            self._misses += 1
            if self._misses % _LIST_MISSES == 0:
                await self._check_gap()
            return None
        await self._check_predecessor()
        before, operation = self._state, await self._history.operation(found.manifest)
        after = await in_thread(self._history.version, found.manifest, before, operation)
        deletions = await self._history.deletions(before, after, operation)
        plan = await in_thread(plan_changes, before, after, operation, *deletions)
        self._state, self._predecessor = after, found.meta
        self._next, self._misses = self._next + 1, 0
        return plan

    async def confirm(self, delivered: Position | None) -> None:
        """See `TableLog.confirm`. There is nothing to check: a manifest appears whole."""

    async def snapshot_plans(self, version: int) -> AsyncGenerator[ChangePlan, None]:
        """See `TableLog.snapshot_plans`. Fragments are in the order of their ids."""
        await self._history.listed()
        found = await self._history.existing(version)
        state = await in_thread(self._history.version, found.manifest, None, None)
        fragments = [state.fragments[number] for number in sorted(state.fragments)]
        for first in range(0, max(len(fragments), 1), PAGE_FRAGMENTS):
            page = fragments[first : first + PAGE_FRAGMENTS]
            yield await in_thread(plan_snapshot, state, first, page)

    async def after_loss(self, error: TailerError, version: int) -> int:
        """See `TableLog.after_loss`."""
        if isinstance(error, FileVacuumed | ChangesUnavailable | VersionGone):
            versions = await self._history.listed()
            later = [each for each in versions if each > version and each - 1 in versions]
            if later:
                return later[0]
            if version >= max(versions):
                return version + 1
        raise error

    def make_wake(self) -> Wake:
        """See `TableLog.make_wake`."""
        return self._store.make_wake(VERSIONS, _MANIFEST)

    async def _check_predecessor(self) -> None:
        """Raise unless the manifest before the next one is the file that was read, or was cleaned up."""
        read = self._predecessor
        if read is not None:
            with suppress(ObjectNotFound):
                if await self._store.stat(read.name) != read:
                    raise LogRewritten(self.uri, self._next - 1, read.name)

    async def _check_gap(self) -> None:
        """Raise if the awaited version is lost, or was delivered and is gone. The names may have changed since."""
        versions = await self._history.listed()
        if max(versions) < self._next - 1:
            raise VersionAhead(self.uri, self._next - 1, max(versions))
        if self._next < max(versions) and self._next not in versions:
            raise VersionGone(self.uri, self._next, min(versions), max(versions))

    async def _first_at_or_after(self, versions: list[int], time_ms: int) -> int:
        """Return the index of the first version at or after a time, by bisection; the number of versions: none."""
        low, high = 0, len(versions)
        while low < high:
            middle = (low + high) // 2
            found = await self._history.existing(versions[middle])
            if found.manifest.timestamp_ms < time_ms:
                low = middle + 1
            else:
                high = middle
        return low


def _first_changes(versions: list[int]) -> int:
    return 1 if versions[0] == 1 else versions[0] + 1
