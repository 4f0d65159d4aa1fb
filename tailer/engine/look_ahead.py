"""Look-ahead over a backlog: the next version is planned, and its rows are read, while the current one is delivered.

A version often has one file, which one thread decodes, while another could read the next version's. So while a version
is delivered, an engine begins to run the plan of the one after it: it is ahead by the reads that it has in flight for
any plan. Small versions are not worth it: these are planned up to the first larger one, to be read and delivered
together, unless the reader of rows must open the table for each. Nothing else changes: an
error of the next version, in planning or reading, is raised where that version is due, after all rows before it.

Only a backlog is looked at. A pipeline that waits for each version would ask for one that does not exist yet, which
costs a request and delays the rows that are there. Of versions that arrive together, the last ones wait for one such
request.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from anyio.abc import TaskGroup

from tailer.engine.port import Engine, ReadsTogether
from tailer.engine.prefetch import PrefetchedBatches
from tailer.errors import TailerError
from tailer.formats.rows import opens_each_version
from tailer.plan import ChangePlan
from tailer.table_log import TableLog

__all__ = ["LookAhead"]

_WORTH_BYTES: Final = 256 * 2**10  # of files: less is read in no time
# Of versions that are delivered together. Each takes a while to open, and nothing is delivered meanwhile.
_MOST_BYTES: Final = 2**20  # of files
_MOST_FILES: Final = 128
_MOST_VERSIONS: Final = 128
_MOST_S: Final = 0.05  # of planning


@dataclass(frozen=True, slots=True)
class _Planned:
    """A plan; the same one shaped, with its rows, if these are being read. Or the error of planning it; or nothing."""

    plan: ChangePlan | None = None
    begun: tuple[ChangePlan, PrefetchedBatches] | None = None
    error: Exception | None = None


_NOTHING: Final = _Planned()


class LookAhead:
    """The plans of `table`, each shaped by `shape`, and the rows of the next one, read by `engine` in `group`.

    Call `begin` after each `TableLog.seek`, then `next_plans` and, for a single plan, `take` in turn.
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
        self._due = _NOTHING
        self._next = _NOTHING

    def begin(self, last: int | None) -> None:
        """Forget what is ahead: the table is at another version. `last`: the last one to plan; None: no end."""
        for planned in (self._due, self._next):
            if planned.begun is not None:
                planned.begun[1].stop()
        self._last, self._is_backlog, self._due, self._next = last, False, _NOTHING, _NOTHING

    async def next_plans(self) -> Sequence[ChangePlan]:
        """Return the next plan, not shaped, or several that the engine reads together; none where there is none yet.

        Several have one table id and one schema. Raises as `TableLog.next_plan`.
        """
        if self._next.error is not None:
            raise self._next.error
        self._due, self._next = self._next, _NOTHING
        plan = self._due.plan or await self._table.next_plan()
        if plan is None:
            self._is_backlog = False
            return ()
        plans = [plan]
        if self._is_backlog and self._due.begun is None and self._is_small(plan):
            await self._add_small(plans)
        return plans

    async def _add_small(self, plans: list[ChangePlan]) -> None:
        """Add the next plans as long as they are small and like the first one. Keep the one that is not."""
        end_s = time.monotonic() + _MOST_S
        size_bytes, files = plans[0].size_bytes, len(plans[0].tasks)
        while len(plans) < _MOST_VERSIONS and not self._is_last(plans[-1]):
            if size_bytes >= _MOST_BYTES or files >= _MOST_FILES or time.monotonic() >= end_s:
                return
            try:
                plan = await self._table.next_plan()
            except Exception as error:  # noqa: BLE001 - raised where the version is due
                self._next = _Planned(error=error)
                return
            if plan is None or not (_are_alike(plan, plans[0]) and self._is_small(plan)):
                self._next = _Planned(plan)
                return
            plans.append(plan)
            size_bytes, files = size_bytes + plan.size_bytes, files + len(plan.tasks)

    def _is_small(self, plan: ChangePlan) -> bool:
        """Return whether the engine reads the plan together with others."""
        if _is_worth(plan) or not isinstance(self._engine, ReadsTogether):
            return False
        try:
            return self._engine.takes(self._shape(plan))
        except TailerError:  # raised again when it is shaped for its delivery
            return False

    def _is_last(self, plan: ChangePlan) -> bool:
        return self._last is not None and plan.version >= self._last

    async def take(self, plan: ChangePlan) -> tuple[ChangePlan, PrefetchedBatches | None]:
        """Return `plan` shaped, and its rows if they are being read already. In a backlog, begin with the next one.

        `plan`: the single one that `next_plans` returned. Raises as `shape`.
        """
        shaped, rows = self._due.begun or (self._shape(plan), None)
        if self._is_backlog and _is_worth(plan) and not self._is_last(plan) and self._next == _NOTHING:
            self._next = await self._look()
        self._is_backlog = True  # until the table has no next plan
        return shaped, rows

    async def _look(self) -> _Planned:
        """Plan the next version, and begin to read it."""
        plan: ChangePlan | None = None
        try:
            plan = await self._table.next_plan()
            if plan is None:
                return _NOTHING
            if self._is_small(plan):
                return _Planned(plan)
            begun = self._shape(plan), PrefetchedBatches()
            self._group.start_soon(begun[1].drive, self._engine, begun[0], None)
            return _Planned(plan, begun)
        except Exception as error:  # noqa: BLE001 - raised where the version is due
            return _Planned(error=error) if plan is None else _Planned(plan)


def _are_alike(plan: ChangePlan, first: ChangePlan) -> bool:
    """Return whether all rows of both have the table id and the schema of `first`."""
    schemas = {id(schema): schema for schema in (plan.schema, *(task.schema for task in (*first.tasks, *plan.tasks)))}
    others = (schema for schema in schemas.values() if schema is not first.schema)
    same = all(schema.equals(first.schema, check_metadata=True) for schema in others)
    return same and plan.table_id == first.table_id


def _is_worth(plan: ChangePlan) -> bool:
    return plan.size_bytes >= _WORTH_BYTES or any(map(opens_each_version, plan.tasks[:1]))
