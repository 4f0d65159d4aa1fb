"""A table format, as another package would bring it: a log of JSON lines, Parquet files, lists of deletions.

Version n of a table is the file `_toy_log/n.json`. Its first line has the table's id, a time and the columns. Each
other line adds a file (`add`, `size_bytes`), or deletes some rows of one (`delete`, `rows`).
"""

import base64
import json
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyroaring import BitMap64

from tailer.errors import ConfigError, FileVacuumed, LogCorrupt, ObjectNotFound, TailerError, VersionAhead, VersionGone
from tailer.files.deletion_vector import inline
from tailer.formats.inspection import PlanInspector, TableInspector
from tailer.formats.port import RowReader, TableFormat, TableNames
from tailer.formats.registry import no_table
from tailer.plan import SNAPSHOT_TASKS, ChangePlan, ChangeTask, DeletionVectorRef, Regime, TaskKind
from tailer.read import execute
from tailer.start import Start, StartKind, StartPoint
from tailer.stores.port import ObjectStore, StoredObject
from tailer.stores.wakeup import Wake
from tailer.table_log import TableLog

__all__ = ["LOG", "TOY"]

LOG: Final = "_toy_log"
_NAME: Final = re.compile(rf"{LOG}/([0-9]+)\.json")


@dataclass(frozen=True)
class Commit:
    """One version: the table's id, a time, the columns, the files added with their sizes, the rows deleted."""

    version: int
    table_id: str
    timestamp_ms: int
    schema: pa.Schema
    added: tuple[tuple[str, int], ...]
    deleted: tuple[tuple[str, tuple[int, ...]], ...]

    @classmethod
    def parse(cls, uri: str, version: int, stored: StoredObject) -> "Commit":
        """Read a file of the log. Raises `LogCorrupt`."""
        try:
            head, *lines = map(json.loads, stored.data.splitlines())
            schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(head["schema"])))
            added = tuple((line["add"], line["size_bytes"]) for line in lines if "add" in line)
            deleted = tuple((line["delete"], tuple(line["rows"])) for line in lines if "delete" in line)
            return cls(version, head["id"], head["timestamp_ms"], schema, added, deleted)
        except (ValueError, KeyError, TypeError) as error:
            raise LogCorrupt(uri, stored.meta.name, str(error), version) from error


@dataclass
class State:
    """The table at a version: its newest commit, its files, and the rows of each that are deleted."""

    commit: Commit | None = None
    sizes: dict[str, int] = field(default_factory=dict)
    deleted: dict[str, BitMap64] = field(default_factory=dict)

    def add(self, commit: Commit) -> None:
        """Go to the next version."""
        self.commit = commit
        self.sizes |= dict(commit.added)
        for path, rows in commit.deleted:
            self.deleted[path] = self.deleted.get(path, BitMap64()) | BitMap64(rows)


class ToyLog(TableLog):
    """The versions of the table at the root of `store`."""

    retention_ms = None

    def __init__(self, store: ObjectStore) -> None:
        self.uri = store.uri
        self._store = store
        self._next = 0
        self._state = State()

    @property
    def state_id(self) -> str | None:
        return None if self._state.commit is None else self._state.commit.table_id

    async def table_id(self) -> str:
        return (await self._existing(await self.latest())).table_id

    async def ids(self, since: int) -> tuple[str, ...]:
        return (await self.table_id(),)

    async def latest(self) -> int:
        return (await self._versions())[-1]

    async def resolve(self, start: Start) -> StartPoint:
        versions = await self._versions()
        match start.kind:
            case StartKind.EARLIEST:
                return StartPoint(versions[0])
            case StartKind.LATEST:
                return StartPoint(versions[-1] + 1)
            case StartKind.SNAPSHOT:
                return StartPoint(versions[-1], snapshot=True)
            case StartKind.VERSION if start.value <= versions[-1] + 1:
                return StartPoint(start.value)
            case StartKind.VERSION:
                raise VersionAhead(self.uri, start.value, versions[-1], is_start=True)
            case StartKind.TIMESTAMP:
                for version in versions:
                    if (await self._existing(version)).timestamp_ms >= start.value:
                        return StartPoint(version)
        raise ConfigError("start", f"{self.uri} has no such version", "Give another start.")

    async def resolve_end(self, end: Start) -> int:
        versions = await self._versions()
        match end.kind:
            case StartKind.EARLIEST:
                return versions[0]
            case StartKind.VERSION:
                return end.value
            case StartKind.TIMESTAMP:
                times = [(await self._existing(each)).timestamp_ms for each in versions]
                return max(each for each, time in zip(versions, times, strict=True) if time <= end.value)
        return versions[-1]

    async def seek(self, version: int) -> pa.Schema | None:
        versions = await self._versions()
        if version > versions[-1] + 1:
            raise VersionAhead(self.uri, version - 1, versions[-1])
        self._next, self._state = version, await self._state_at(version - 1)
        return None if self._state.commit is None else self._state.commit.schema

    async def next_plans(self, most: int) -> Sequence[ChangePlan]:
        following = [version for version in await self._versions() if version >= self._next]
        if not following:
            return ()
        commit = await self._existing(following[0])
        deletes = [
            self._task(commit, path, TaskKind.DELETE, include=inline(BitMap64(rows))) for path, rows in commit.deleted
        ]
        inserts = [self._task(commit, path, TaskKind.INSERT, size) for path, size in commit.added]
        self._state.add(commit)
        self._next = commit.version + 1
        return (self._plan(commit, Regime.FILES, [*deletes, *inserts], 0),)

    async def snapshot_plans(self, version: int) -> AsyncGenerator[ChangePlan, None]:
        state = await self._state_at(version)
        commit = await self._existing(version)
        tasks = [
            self._task(commit, path, TaskKind.INSERT, size, exclude=inline(state.deleted.get(path, BitMap64())))
            for path, size in state.sizes.items()
        ]
        yield self._plan(commit, Regime.SNAPSHOT, tasks, SNAPSHOT_TASKS)

    async def after_loss(self, error: TailerError, version: int) -> int:
        if isinstance(error, FileVacuumed):
            return error.version + 1
        raise error

    def make_wake(self) -> Wake:
        return self._store.make_wake(LOG, re.compile(r"[0-9]+\.json"))

    def _task(
        self,
        commit: Commit,
        path: str,
        kind: TaskKind,
        size_bytes: int = 0,
        include: DeletionVectorRef | None = None,
        exclude: DeletionVectorRef | None = None,
    ) -> ChangeTask:
        at, uri, size_bytes = commit, f"{self.uri}/{path}", size_bytes or self._state.sizes.get(path, 0)
        identity = (self.uri, at.table_id, at.version, at.timestamp_ms)
        return ChangeTask(*identity, 0, kind, uri, size_bytes, at.schema, include=include, exclude=exclude)

    def _plan(self, at: Commit, regime: Regime, tasks: list[ChangeTask], first: int) -> ChangePlan:
        numbered = tuple(replace(task, index=first + number) for number, task in enumerate(tasks))
        identity = (self.uri, at.table_id, at.version, at.timestamp_ms)
        # `feed`: its files hold changes. A format that rewrites files says False, and the engine compares them.
        return ChangePlan(*identity, "WRITE", regime, at.schema, numbered, feed=True)

    async def _versions(self) -> list[int]:
        found = [int(name[1]) for each in await self._store.list(LOG) if (name := _NAME.fullmatch(each.name))]
        if not found:
            raise no_table(self.uri, LOG, f"no version in {LOG}", TOY.title)
        return sorted(found)

    async def _state_at(self, version: int) -> State:
        state = State()
        for each in await self._versions():
            if each <= version:
                state.add(await self._existing(each))
        return state

    async def _existing(self, version: int) -> Commit:
        if (found := await self._read(version)) is None:
            versions = await self._versions()
            raise VersionGone(self.uri, version, versions[0], versions[-1])
        return found

    async def _read(self, version: int) -> Commit | None:
        try:
            return await self._store.read(f"{LOG}/{version}.json", partial(Commit.parse, self.uri, version))
        except ObjectNotFound:
            return None


class _Toy:
    name = "toy"
    title = "a toy table"
    log_folder = LOG
    has_catalogs = has_branches = False
    names: TableNames | None = None
    thread_libraries = frozenset[str]()

    def may_be_at(self, location: str) -> bool:
        return location.endswith(".toy")

    async def is_in(self, store: ObjectStore, folder: str) -> bool:
        return bool(await store.list(f"{folder}/{LOG}".removeprefix("/")))

    def versions(self, names: Iterable[str]) -> Iterable[int]:
        return [int(name[1]) for each in names if (name := _NAME.fullmatch(each))]

    def root(self, location: str, branch: str | None) -> str:
        return location

    def open(
        self,
        store: ObjectStore,
        open_store: Callable[[str], ObjectStore],
        allowed_roots: tuple[str, ...] = (),
        branch: str | None = None,
        catalog: Any = None,
        statistics: bool = False,
        compare: bool = False,
    ) -> TableLog:
        return ToyLog(store)

    def inspect(
        self,
        store: ObjectStore,
        open_store: Callable[[str], ObjectStore],
        allowed_roots: tuple[str, ...] = (),
        branch: str | None = None,
        catalog: Any = None,
    ) -> TableInspector:
        return PlanInspector(ToyLog(store))

    def row_reader(self) -> RowReader:
        return execute

    def check_reader(self) -> None:
        """Arrow reads Parquet."""


TOY: Final[TableFormat] = _Toy()
