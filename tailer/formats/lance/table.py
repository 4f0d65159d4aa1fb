"""A Lance dataset's versions behind the `TableLog` port (Lance format, "Dataset Directory", "Manifest").

The folder of manifests is listed at the start, when a named start point is resolved, and from time to time while no
version comes: that shows a gap, and manifests that were renamed. Otherwise the next version is found by requesting its
manifest, so the cost of a version does not depend on the length of the history.

Manifests appear whole. A manifest does not name its predecessor. So before the next one is used, the last one is
checked: if it is still the manifest that was read, the dataset is still the same. A dataset has no id. Its location
stands for it: a dataset that is deleted and made again while nobody follows it is noticed only if it has fewer
versions. A branch has an id, so a branch that is made again under the same name is always noticed.

A branch is read from its own folder, which is that of a dataset. Its first version changes no row: it has those of the
version that the branch was made from, whichever branch that is of.

A version's changes need the version before. Where that was cleaned up, the changes are lost.
"""

import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from re import compile as pattern
from typing import Final

import pyarrow as pa
from typing_extensions import override

from tailer.errors import (
    ChangesUnavailable,
    ConfigError,
    FileVacuumed,
    LogError,
    LogRewritten,
    ObjectNotFound,
    TableReplaced,
    TailerError,
    VersionAhead,
    VersionGone,
)
from tailer.formats.lance.changes import Version, plan_changes, plan_snapshot
from tailer.formats.lance.history import VERSIONS, History, version_gone
from tailer.formats.lance.refs import Branch, folder_of, read_branch, read_tag
from tailer.formats.lance.schema import key_columns
from tailer.plan import ChangePlan
from tailer.start import Start, StartKind, StartPoint
from tailer.stores.port import ObjectMeta, ObjectStore, in_thread
from tailer.stores.wakeup import Wake
from tailer.table_log import TableLog

__all__ = ["LanceTableLog", "dataset_id"]

PAGE_FRAGMENTS: Final = 1024  # of a snapshot, in one plan
_MANIFEST: Final = pattern(r"[0-9]+\.manifest")
_LIST_MISSES: Final = 16


def dataset_id(uri: str) -> str:
    """Return the id of the dataset at `uri`. It is part of progress, so it never changes."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"lance:{uri}"))


def branch_id(uri: str, identity: str) -> str:
    """Return the id of the branch at `uri`, as `dataset_id`. `identity`: as in `Branch`."""
    return dataset_id(f"{uri}@{identity}")


class LanceTableLog(TableLog):
    """The versions of the Lance dataset, or of the branch of one, at the root of `store`.

    `open_store`: opens another root, where base paths lead. `allowed_roots`: those that they may lead to. `branch`: the
    name of the branch, as `parse_branch` returns it.
    """

    def __init__(
        self,
        store: ObjectStore,
        open_store: Callable[[str], ObjectStore],
        allowed_roots: tuple[str, ...] = (),
        branch: str | None = None,
    ) -> None:
        self.uri = store.uri
        self._store = self._dataset = store
        self._name = branch
        self._branch: Branch | None = None
        if branch is not None:
            self._dataset = open_store(store.uri.removesuffix(f"/{folder_of(branch)}"))
            allowed_roots = (*allowed_roots, self._dataset.uri)
        self._history = History(store, dataset_id(store.uri), open_store, allowed_roots)
        self._next = 1
        self._state: Version | None = None
        self._predecessor: ObjectMeta | None = None
        self._misses = 0

    @property
    @override
    def retention_ms(self) -> int | None:
        return None  # versions are kept until a writer cleans them up

    @property
    @override
    def state_id(self) -> str | None:
        return None if self._state is None else self._state.table_id

    @override
    async def table_id(self) -> str:
        await self._read_branch()
        await self._history.listed()
        return self._history.table_id

    @override
    async def key(self, version: int) -> tuple[str, ...]:
        """Return the key of Lance, which no writer enforces. A key with a nested field is left out."""
        if self._state is not None and self._state.manifest.version == version:
            return key_columns(self._state.manifest.fields)
        await self._read_branch()
        await self._history.listed()
        return key_columns((await self._history.existing(version)).manifest.fields)

    @override
    async def ids(self, since: int) -> tuple[str, ...]:
        await self._read_branch()
        return (self._history.table_id,)

    async def latest(self) -> int:
        """Return the newest version."""
        return max(await self._history.listed())

    @override
    async def resolve(self, start: Start) -> StartPoint:
        """The earliest changes are those after the earliest version, or all of version 1."""
        await self._read_branch()
        versions = list(await self._history.listed())
        latest = versions[-1]
        match start.kind:
            case StartKind.EARLIEST:
                return StartPoint(versions[0] + (versions[0] != self._first_version))
            case StartKind.TAG:
                return StartPoint(await read_tag(self._dataset, start.tag, self._name, "start") + 1)
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

    @override
    async def resolve_end(self, end: Start) -> int:
        if end.kind is StartKind.TAG:
            return await read_tag(self._dataset, end.tag, self._name, "end")
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

    @override
    async def seek(self, version: int) -> pa.Schema | None:
        await self._read_branch()
        versions = await self._history.listed()
        latest = max(versions)
        if version > latest + 1:
            raise VersionAhead(self.uri, version - 1, latest)
        if version <= latest and version not in versions:
            raise version_gone(self.uri, version, versions)
        self._state, self._predecessor = None, None
        before = version if self._branch is not None and version == self._first_version else version - 1
        if before > 0:
            if before not in versions:
                reason = f"version {before}, from which it began, was cleaned up"
                raise ChangesUnavailable(self.uri, version, reason)
            stored = await self._history.existing(before)
            await self._check_branch(version)
            self._state = await in_thread(self._history.version, stored.manifest, None, None)
            self._predecessor = stored.meta
        self._next, self._misses = max(version, 1), 0
        return None if self._state is None else self._state.schema

    @override
    async def next_plans(self, most: int) -> Sequence[ChangePlan]:
        """Small manifests of this machine take less time than one call of a thread."""
        if most > 1 and (reads := self._store.blocking()) is not None:
            state = self._next, self._state, self._predecessor
            if planned := await in_thread(self._history.plan_in_turn, reads, *state, most):
                self._state, self._predecessor = planned[-1].version, planned[-1].meta
                self._next, self._misses = self._next + len(planned), 0
                return [version.plan for version in planned]
        stored = await self._history.read(self._next, self._state)
        if stored is None:
            self._misses += 1
            if self._misses % _LIST_MISSES == 0:
                # The awaited version may be lost, or was delivered and is gone. The names may have changed since.
                versions = await self._history.listed()
                if max(versions) < self._next - 1:
                    raise VersionAhead(self.uri, self._next - 1, max(versions))
                if self._next < max(versions) and self._next not in versions:
                    raise version_gone(self.uri, self._next, versions)
            return ()
        # The manifest before the next one must be the file that was read, or have been cleaned up.
        read = self._predecessor
        if read is not None:
            try:
                if await self._store.stat(read.name) != read and not await self._is_copy(read.name):
                    raise LogRewritten(self.uri, self._next - 1, read.name)
            except ObjectNotFound:
                await self._check_branch(self._next)
        before, operation = self._state, await self._history.operation(stored.manifest)
        after = await in_thread(self._history.version, stored.manifest, before, operation)
        deletions = await self._history.deletions(before, after, operation)
        plan = await in_thread(plan_changes, before, after, operation, *deletions)
        self._state, self._predecessor = after, stored.meta
        self._next, self._misses = self._next + 1, 0
        return (plan,)

    @override
    async def snapshot_plans(self, version: int) -> AsyncGenerator[ChangePlan, None]:
        """Fragments are in the order of their ids."""
        if self._branch is None:
            await self._read_branch()
        await self._history.listed()
        stored = await self._history.existing(version)
        await self._check_branch(version)
        state = await in_thread(self._history.version, stored.manifest, None, None)
        fragments = [state.fragments[number] for number in sorted(state.fragments)]
        for first in range(0, max(len(fragments), 1), PAGE_FRAGMENTS):
            yield await in_thread(plan_snapshot, state, first, fragments[first : first + PAGE_FRAGMENTS])

    @override
    async def after_loss(self, error: TailerError, version: int) -> int:
        if isinstance(error, FileVacuumed | ChangesUnavailable | VersionGone):
            versions = await self._history.listed()
            for later in versions:
                if later > version and later - 1 in versions:
                    return later
            if version >= max(versions):
                return version + 1
        raise error

    @override
    def make_wake(self) -> Wake:
        return self._store.make_wake(VERSIONS, _MANIFEST)

    @property
    def _first_version(self) -> int:
        return 1 if self._branch is None else self._branch.first_version

    async def _read_branch(self) -> None:
        """Read the branch anew, if one is followed: it may have been made again."""
        if self._name is not None:
            self._branch = await read_branch(self._dataset, self._name)
            self._history.table_id = branch_id(self.uri, self._branch.identity)

    async def _check_branch(self, version: int) -> None:
        """Raise if the branch was made again since it was read: then `version` may be one of the new branch."""
        followed = self._history.table_id
        await self._read_branch()
        if self._history.table_id != followed:
            raise TableReplaced(self.uri, version, followed, self._history.table_id)

    async def _is_copy(self, name: str) -> bool:
        """Return whether the manifest before the next one has the content that was read, though its file is newer.

        Where an external store commits versions, several clients may copy a manifest to its place.
        """
        assert self._state is not None, "there is a manifest before"
        try:
            stored = await self._history.read(self._state.manifest.version)
        except LogError:
            return False
        return stored is not None and stored.meta.name == name and stored.manifest == self._state.manifest

    async def _first_at_or_after(self, versions: list[int], time_ms: int) -> int:
        """Return the index of the first version at or after a time, by bisection; the number of versions: none."""
        low, high = 0, len(versions)
        while low < high:
            middle = (low + high) // 2
            stored = await self._history.existing(versions[middle])
            if stored.manifest.timestamp_ms < time_ms:
                low = middle + 1
            else:
                high = middle
        return low
