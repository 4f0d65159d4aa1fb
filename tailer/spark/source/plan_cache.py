"""Lazy cache of change plans after a position, and positions as offsets of Spark's streams.

Spark asks for each plan twice, first for the offset, then for the partitions; after a restart only for the partitions.
A place that is not in the cache is sought in the log, which is the same for every process (invariant 4).

Offsets are places in a table's changes as JSON. Spark compares text, so the keys have one order.

    {"appId":"orders","tableId":"5e5f...","version":12,"task":9223372036854775807,"row":9223372036854775807,
     "startVersion":3,"startTask":4611686018427387904}

(on one line). Everything up to and including that position is delivered. `appId` is present if the option is given.

Spark records only the end of its first batch. After a crash it asks for the start again, and by then the newest
version, or the earliest, has changed. So every offset contains the start of the stream.
"""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pyarrow as pa

from tailer.errors import ConfigError, TableReplaced
from tailer.plan import END, ChangePlan, Position
from tailer.table_log import TableLog

__all__ = ["Offset", "Place", "PlanCache", "Step", "StreamPlace", "View", "offset_of", "place_of"]


@dataclass(frozen=True, slots=True)
class Place:
    """A delivered place: everything up to and including `position`, of the table with the identity `table_id` there."""

    table_id: str
    position: Position


class View(Protocol):
    """A reader's view of plans."""

    def plan(self, plan: ChangePlan, before: pa.Schema | None) -> ChangePlan:
        """Restrict the plan to the wanted columns. `before`: the table's schema before it; None: unknown.

        Raises a `TailerError` if the reader cannot follow.
        """
        ...

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns of a plan for a version with `schema`."""
        ...


@dataclass(frozen=True, slots=True)
class Step:
    """A cached plan, which begins after `begin`.

    `before`: the schema before its version; None: unknown, or of no matter. `closes`: whether it ends its version.
    `after_snapshot`: whether it is the first one after a snapshot.
    """

    plan: ChangePlan
    before: pa.Schema | None
    begin: Position
    closes: bool = True
    after_snapshot: bool = False

    @property
    def in_snapshot(self) -> bool:
        """Return whether it is a page of a snapshot, or the end of one."""
        return self.begin.in_snapshot

    @property
    def end(self) -> Position:
        if self.closes:
            return Position.end(self.plan.version)
        return Position(self.plan.version, self.plan.tasks[-1].index) if self.plan.tasks else self.begin


class PlanCache:
    """Plans after a position, read on demand and kept until `forget`."""

    def __init__(self, table: TableLog, view: View) -> None:
        self._table = table
        self._view = view
        self._steps: list[Step] = []
        self._begin: Position | None = None  # where the first cached plan begins
        self._pages: AsyncGenerator[ChangePlan, None] | None = None
        self._page: ChangePlan | None = None  # the newest page
        self._schema: pa.Schema | None = None
        self._unchecked: Place | None = None  # a place whose table is not verified yet

    def forget(self, before: Position) -> None:
        """Drop all plans that end at `before` or earlier."""
        if self._begin is not None and self._begin <= before <= self._reached(self._begin):
            self._steps = [step for step in self._steps if step.end > before]
            self._begin = before

    async def steps(self, after: Place) -> AsyncGenerator[Step, None]:
        """Yield the plans that end after `after`, in order, up to the end of the log."""
        position = after.position
        if self._begin is None or not self._begin <= position <= self._reached(self._begin):
            await self._seek(after)
        index = 0
        while True:
            while index < len(self._steps):
                step, index = self._steps[index], index + 1
                if step.end > position:
                    yield step
            next_step = await self._read()
            if next_step is None:
                return
            if next_step.end <= position and not self._steps:
                self._begin = next_step.end  # a delivered page of a snapshot is never needed again
            else:
                self._steps.append(next_step)

    def _reached(self, begin: Position) -> Position:
        return max(begin, self._steps[-1].end) if self._steps else begin

    async def _seek(self, after: Place) -> None:
        position, self._begin, self._steps = after.position, None, []
        if self._pages is not None:
            await self._pages.aclose()
            self._pages = None
        self._page = None
        if position.in_snapshot:
            await self._check_lineage(after, await self._table.table_id())
            self._pages = self._table.snapshot_plans(position.version)
            # Snapshots are planned from the first page on.
            position = Position.opening(position.version, snapshot=True)
        else:
            first = position.version + position.closes_version
            self._schema = await self._table.seek(first)
            self._unchecked = after
            if self._table.state_id is not None:
                await self._check_lineage(after, self._table.state_id)
            await self._table.check_delivered(position.version if position.is_inside else first - 1)
            position = Position.end(first - 1)
        self._begin = position

    async def _check_lineage(self, after: Place, table_id: str) -> None:
        """Raise `TableReplaced` if `after` is a place in another table than this one."""
        self._unchecked = None
        if table_id != after.table_id and after.table_id not in await self._table.ids(-1):
            raise TableReplaced(self._table.uri, after.position.version, after.table_id, table_id)

    async def _read(self) -> Step | None:
        begin = self._begin
        assert begin is not None, "sought before"
        begin = self._reached(begin)
        try:
            return await (self._next_page(begin) if begin.in_snapshot else self._next_version(begin))
        except BaseException:
            self._begin = None  # the log may be anywhere now: seek again
            raise

    async def _next_version(self, begin: Position) -> Step | None:
        plans = await self._table.next_plans(1)
        if not plans:
            return None
        plan = plans[0]
        if self._unchecked is not None:
            await self._check_lineage(self._unchecked, plan.table_id)
        before, self._schema = self._schema, plan.schema
        follows, self._page = self._page is not None, None
        return Step(self._view.plan(plan, before), before, begin, after_snapshot=follows)

    async def _next_page(self, begin: Position) -> Step | None:
        assert self._pages is not None, "begun with the snapshot"
        page = await anext(self._pages, None)
        if page is not None:
            self._page = self._view.plan(page, None)
            return Step(self._page, None, begin, closes=False)
        self._pages = None
        self._schema = await self._table.seek(begin.version + 1)
        assert self._page is not None, "a snapshot has at least one page"
        return Step(replace(self._page, tasks=()), None, begin)


Offset = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StreamPlace:
    """A place in a stream that began after `start`."""

    place: Place
    start: Position

    @property
    def beginning(self) -> Place:
        """The start of the stream; the table may have had another identity there."""
        return Place(self.place.table_id, self.start)


def offset_of(reached: StreamPlace, app_id: str | None) -> Offset:
    named = {} if app_id is None else {"appId": app_id}
    position = reached.place.position
    return {
        **named,
        "tableId": reached.place.table_id,
        "version": position.version,
        "task": position.task,
        "row": position.row,
        "startVersion": reached.start.version,
        "startTask": reached.start.task,
    }


def place_of(offset: Mapping[str, Any], app_id: str | None) -> StreamPlace:
    """Parse an offset. Raises `ConfigError` for one that is not of the stream `app_id`."""
    stored = offset.get("appId")
    if stored != app_id:
        reason = f"is {app_id!r}, and the checkpoint is of a stream with {stored!r}"
        raise ConfigError("appId", reason, "Give the appId that the query began with, or a new checkpoint folder.")
    try:
        position = Position(int(offset["version"]), int(offset["task"]), int(offset["row"]))
        closed = Position.end(int(offset["startVersion"]))
        start = closed if offset["startTask"] == END else Position.opening(closed.version, snapshot=True)
        return StreamPlace(Place(str(offset["tableId"]), position), start)
    except (KeyError, TypeError, ValueError):
        remedy = "Give this source a checkpoint folder of its own."
        raise ConfigError("checkpointLocation", f"{dict(offset)} is not an offset of this source", remedy) from None
