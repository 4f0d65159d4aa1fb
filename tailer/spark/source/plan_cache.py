"""The plans of a table from some place on, read when they are asked for and kept for who asks again.

A Spark source asks for the same versions twice, first how far a batch goes, then what is in it; after a restart only
the latter. A place that is not among what is known is sought in the log, which is the same for everybody (invariant 4).
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa

from tailer.errors import TableReplaced
from tailer.plan import ChangePlan, Position
from tailer.table_log import TableLog

__all__ = ["Ahead", "Place", "Step", "View"]


@dataclass(frozen=True, slots=True)
class Place:
    """Everything up to and including `position` was delivered, of the table that has the identity `table_id` there."""

    table_id: str
    position: Position


class View(Protocol):
    """What a reader makes of the plans."""

    def plan(self, plan: ChangePlan, before: pa.Schema | None) -> ChangePlan:
        """The plan in the columns that are wanted; `before`: the table's schema before it, None where it is not known.

        Raises a `TailerError` where the reader cannot follow.
        """
        ...

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """The columns of a plan for a version with `schema`."""
        ...


@dataclass(frozen=True, slots=True)
class Step:
    """A plan on the way. `before`: the schema before its version, None where it is not known, or of no matter.

    `closes`: whether nothing of the version comes behind it. `behind_snapshot`: whether it is the first one after that.
    """

    plan: ChangePlan
    before: pa.Schema | None
    begin: Position
    closes: bool = True
    behind_snapshot: bool = False

    @property
    def in_snapshot(self) -> bool:
        """Whether it is a page of a snapshot, or what closes that."""
        return self.begin.in_snapshot

    @property
    def end(self) -> Position:
        """The place behind it."""
        if self.closes:
            return Position.end(self.plan.version)
        return Position(self.plan.version, self.plan.tasks[-1].index) if self.plan.tasks else self.begin


class Ahead:
    """Plans from some place on, read when they are asked for and kept until they are forgotten."""

    def __init__(self, table: TableLog, view: View) -> None:
        self._table = table
        self._view = view
        self._known: list[Step] = []
        self._begin: Position | None = None  # where the first of those known begins
        self._pages: AsyncGenerator[ChangePlan, None] | None = None
        self._page: ChangePlan | None = None  # the last one
        self._schema: pa.Schema | None = None
        self._unchecked: Place | None = None  # which may be a place in another table

    def forget(self, before: Position) -> None:
        """Keep nothing of what ends at `before` or earlier."""
        if self._begin is not None and self._begin <= before <= self._reached(self._begin):
            self._known = [step for step in self._known if step.end > before]
            self._begin = before

    async def steps(self, after: Place) -> AsyncGenerator[Step, None]:
        """Those that do not end at `after`, from there on, as far as there are any."""
        position = after.position
        if self._begin is None or not self._begin <= position <= self._reached(self._begin):
            await self._seek(after)
        index = 0
        while True:
            while index < len(self._known):
                step, index = self._known[index], index + 1
                if step.end > position:
                    yield step
            found = await self._read()
            if found is None:
                return
            if found.end <= position and not self._known:
                self._begin = found.end  # a page of a snapshot that was delivered: nobody asks for it again
            else:
                self._known.append(found)

    def _reached(self, begin: Position) -> Position:
        return max(begin, self._known[-1].end) if self._known else begin

    async def _seek(self, after: Place) -> None:
        position, self._begin, self._known = after.position, None, []
        if self._pages is not None:
            await self._pages.aclose()
            self._pages = None
        self._page = None
        if position.in_snapshot:
            await self._check_lineage(after, await self._table.table_id())
            self._pages = self._table.snapshot_plans(position.version)
            # From its beginning: the pages before are planned again.
            position = Position.opening(position.version, snapshot=True)
        else:
            first = position.version + position.closes_version
            self._schema = await self._table.seek(first)
            self._unchecked = after
            if self._table.state_id is not None:
                await self._check_lineage(after, self._table.state_id)
            position = Position.end(first - 1)
        self._begin = position

    async def _check_lineage(self, after: Place, found: str) -> None:
        """Raise `TableReplaced` where `after` is a place in another table than this one."""
        self._unchecked = None
        if found != after.table_id and after.table_id not in await self._table.ids(-1):
            raise TableReplaced(self._table.uri, after.position.version, after.table_id, found)

    async def _read(self) -> Step | None:
        begin = self._begin
        assert begin is not None, "sought before"
        begin = self._reached(begin)
        try:
            return await (self._next_page(begin) if begin.in_snapshot else self._next_version(begin))
        except BaseException:
            self._begin = None  # whatever the log knows now, it is read from its place again
            raise

    async def _next_version(self, begin: Position) -> Step | None:
        plan = await self._table.next_plan()
        if plan is None:
            return None
        if self._unchecked is not None:
            await self._check_lineage(self._unchecked, plan.table_id)
        before, self._schema = self._schema, plan.schema
        behind, self._page = self._page is not None, None
        return Step(self._view.plan(plan, before), before, begin, behind_snapshot=behind)

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
