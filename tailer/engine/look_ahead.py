"""Look-ahead over a backlog: the next version is planned, and its rows are read, while the current one is delivered.

A version often has one file, which one thread decodes, while another could read the next version's. So while a version
is delivered, an engine begins to run the plan of the one after it. Look-ahead is bounded by the engine's own in-flight
reads. Small versions are not worth it: these are planned up to the first larger one, to be read and delivered together,
unless the reader of rows must open the table for each. An error of the next version, in planning or reading, is raised
where that version is due, after all rows before it.

Only a backlog is looked at. A pipeline that waits for each version would ask for one that does not exist yet, which
costs a request and delays the rows that are there. Of versions that arrive together, the last ones wait for one such
request.

Rows of any version are read in the background (`PrefetchedBatches`): a cancelled step of an engine's iterator cannot be
resumed, and waiting for the next batch must be able to time out.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from anyio import CancelScope, Event, lowlevel
from anyio.abc import TaskGroup

from tailer.engine import Engine
from tailer.errors import TailerError
from tailer.events import ChangeBatch
from tailer.formats.rows import opens_each_version
from tailer.plan import ChangePlan, Position
from tailer.table_log import TableLog

__all__ = ["AHEAD_BYTES", "LookAhead", "PrefetchedBatches"]

AHEAD_BYTES: Final = 2**18
_AHEAD_BATCHES: Final = 128

_WORTH_BYTES: Final = 256 * 2**10  # of files: less is read in no time
# Of versions that are delivered together. Each takes a while to open, and nothing is delivered meanwhile.
_MOST_BYTES: Final = 2**20  # of files
_MOST_FILES: Final = 128
_MOST_VERSIONS: Final = 128
_MOST_S: Final = 0.05  # of planning
_MOST_LATER_S: Final = 0.2  # of planning versions whose rows may be read together, which saves reads of large files


class PrefetchedBatches:
    """Batches of consecutive `plans` after `after`, in order, read by `engine` in the background, in `group`.

    The engine is ahead of the consumer by at most one batch, or by several small ones, which the consumer gets
    together: to switch tasks for each row of many small files would cost more than to read it, and so would to encode
    and write it alone.

    Where several plans cannot be read together, they are read one by one, so that an error comes behind all rows before
    it. `whole`: the number of plans of which all rows are read. `error`: the one that ended the batches, if any; to be
    raised after these.
    """

    def __init__(
        self, group: TaskGroup, engine: Engine, plans: Sequence[ChangePlan], after: Position | None = None
    ) -> None:
        self._engine = engine
        self._items: list[ChangeBatch] = []
        self._bytes = 0
        self.whole = 0
        self._ended = False
        self.error: Exception | None = None
        self._changed = Event()
        self._scope = CancelScope()
        group.start_soon(self._drive, plans, after)

    async def take(self) -> list[ChangeBatch]:
        """Return all batches that are there, at least one; none at the end. May be cancelled and called again."""
        await lowlevel.checkpoint_if_cancelled()
        while not self._items and not self._ended:
            await self._changed.wait()
        batches, self._items, self._bytes = self._items, [], 0
        self._notify()
        return batches

    async def _drive(self, plans: Sequence[ChangePlan], after: Position | None) -> None:
        with self._scope:
            last: ChangeBatch | None = None
            parts = deque([plans])
            while parts and self.error is None:
                part = parts.popleft()
                try:
                    async with self._engine.run(part, after) as batches:
                        async for batch in batches:
                            self._items.append(batch)
                            self._bytes += batch.size_bytes
                            last = batch
                            if len(self._items) == 1:
                                self._notify()
                            while self._bytes >= AHEAD_BYTES or len(self._items) >= _AHEAD_BATCHES:
                                await self._changed.wait()
                except Exception as error:  # noqa: BLE001 - raised by the consumer
                    if len(part) == 1:
                        self.error = error
                    else:
                        if last is not None:
                            after = Position(last.version, last.task, last.last_row)
                        given = -1 if after is None else after.version
                        parts.extend([plan] for plan in part if plan.version >= given)
                        self.whole = len(plans) - len(parts)
                else:
                    self.whole += len(part)
            self._ended = True
            self._notify()

    def stop(self) -> None:
        """Read no more."""
        self._scope.cancel()

    def _notify(self) -> None:
        """Wake whichever side is waiting."""
        self._changed.set()
        self._changed = Event()


class LookAhead:
    """The plans of `table`, each shaped by `shape`, and the rows of the next one, read by `engine` in `group`.

    Call `begin` after each `TableLog.seek`, then `next_plans` and `read` in turn.
    """

    def __init__(
        self, table: TableLog, engine: Engine, shape: Callable[[ChangePlan], ChangePlan], group: TaskGroup
    ) -> None:
        self._table = table
        self._engine = engine
        self._shape = shape
        self._group = group
        self._last: int | None = None
        self._is_backlog = False
        self._ahead: deque[ChangePlan] = deque()
        self._failed: Exception | None = None  # the error of planning the version after those
        self._due: _Begun | None = None  # the plans that `next_plans` returned last, if their rows are being read
        self._begun: _Begun | None = None  # the first of `_ahead`, likewise

    def begin(self, last: int | None) -> None:
        """Forget what is ahead: the table is at another version. `last`: the last one to plan; None: no end."""
        for begun in (self._due, self._begun):
            if begun is not None:
                begun[1].stop()
        self._last, self._is_backlog, self._due, self._begun, self._failed = last, False, None, None, None
        self._ahead.clear()
        self._engine.forget()

    async def next_plans(self) -> Sequence[ChangePlan]:
        """Return the next plan, not shaped, or several small ones; none where there is none yet.

        The first may come after the last one to plan, where there is none with its number.
        Several have one table id and one schema. Raises as `TableLog.next_plans`.
        """
        if not self._ahead:
            if self._failed is not None:
                raise self._failed
            self._ahead.extend(await self._table.next_plans(1))
        self._due, self._begun = self._begun, None  # a pipeline that waits holds no plan
        if not self._ahead:
            self._is_backlog = False
            return ()
        plans = [self._ahead.popleft()]
        if self._is_backlog and self._due is None and self._is_small(plans[0]):
            await self._add_small(plans)
        return plans

    async def _add_small(self, plans: list[ChangePlan]) -> None:
        """Add the next plans as long as they are small and like the first one."""
        end_s = time.monotonic() + _MOST_S
        size_bytes, files = plans[0].size_bytes, len(plans[0].tasks)
        while len(plans) < _MOST_VERSIONS and not self._is_last(plans[-1]):
            if size_bytes >= _MOST_BYTES or files >= _MOST_FILES or time.monotonic() >= end_s:
                return
            if not self._ahead:
                most = _MOST_VERSIONS - len(plans)
                await self._plan(most if self._last is None else min(most, self._last - plans[-1].version))
            if not self._ahead or self._is_beyond(plan := self._ahead[0]):
                return
            if not (_are_alike(plan, plans[0]) and self._is_small(plan)):
                return
            plans.append(self._ahead.popleft())
            size_bytes, files = size_bytes + plan.size_bytes, files + len(plan.tasks)

    async def _plan(self, most: int) -> None:
        """Plan the next version, or up to `most` small ones. An error is raised where its version is due."""
        if self._failed is None:
            try:
                self._ahead.extend(await self._table.next_plans(most))
            except Exception as error:  # noqa: BLE001 - see above
                self._failed = error

    def _is_small(self, plan: ChangePlan) -> bool:
        """Return whether the plan may be read together with others."""
        if _is_worth(plan):
            return False
        try:
            self._shape(plan)
        except TailerError:  # raised again when it is shaped for its delivery
            return False
        return True

    def _is_beyond(self, plan: ChangePlan) -> bool:
        """Return whether the plan comes after the last one: numbers of versions may have gaps."""
        return self._last is not None and plan.version > self._last

    def _is_last(self, plan: ChangePlan) -> bool:
        return self._last is not None and plan.version >= self._last

    async def read(self, plans: Sequence[ChangePlan], after: Position | None) -> "_Begun":
        """Return `plans` shaped, and begin to read their rows after `after`; in a backlog, also those of the next one.

        `plans`: those that `next_plans` returned. Raises as `shape`.
        """
        begun = self._due or await self._begin_to_read(plans, after)
        if self._is_backlog and _is_worth(plans[-1]) and not self._is_last(plans[-1]):
            if not self._ahead:
                await self._plan(1)
            with suppress(Exception):  # is raised where the version is due
                if self._ahead and not self._is_small(self._ahead[0]):
                    self._begun = await self._begin_to_read([self._ahead[0]])
        self._is_backlog = True  # until the table has no next plan
        return begun

    async def _begin_to_read(self, plans: Sequence[ChangePlan], after: Position | None = None) -> "_Begun":
        shaped = [self._shape(plan) for plan in plans]
        if self._is_backlog and _is_worth(plans[-1]):
            await self._plan_later(plans[-1], shaped[-1])
        return shaped, PrefetchedBatches(self._group, self._engine, shaped, after)

    async def _plan_later(self, plan: ChangePlan, shaped: ChangePlan) -> None:
        """Plan versions after `plan` while the engine may read their rows together with its. `shaped`: it, shaped."""
        end_s, later = time.monotonic() + _MOST_LATER_S, sum(ahead.version <= plan.version for ahead in self._ahead)
        while self._engine.expect(shaped) and not self._is_last(plan):
            if later == len(self._ahead) and time.monotonic() < end_s:
                await self._plan(1)
            if later == len(self._ahead) or self._is_beyond(plan := self._ahead[later]):
                return
            try:
                shaped, later = self._shape(plan), later + 1
            except TailerError:  # raised again when it is shaped for its delivery
                return


_Begun = tuple[Sequence[ChangePlan], PrefetchedBatches]
"""Plans that are shaped, and their rows, which are being read."""


def _are_alike(plan: ChangePlan, first: ChangePlan) -> bool:
    """Return whether all rows of both have the table id and the schema of `first`."""
    schemas = {id(schema): schema for schema in (plan.schema, *(task.schema for task in (*first.tasks, *plan.tasks)))}
    others = (schema for schema in schemas.values() if schema is not first.schema)
    same = all(schema.equals(first.schema, check_metadata=True) for schema in others)
    return same and plan.table_id == first.table_id


def _is_worth(plan: ChangePlan) -> bool:
    return plan.size_bytes >= _WORTH_BYTES or any(map(opens_each_version, plan.tasks))
