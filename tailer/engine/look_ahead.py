"""Look-ahead over a backlog: the next version is planned, and its rows are read, while the current one is delivered.

A version often has one file, which one thread decodes, while another could read the next version's. So while a version
is delivered, an engine begins to run the plan of the one after it: it is ahead by the reads that it has in flight for
any plan. Small versions of Delta tables are not worth it. Those of Lance datasets are, because a dataset is opened for
each. Nothing else changes: an error of the next version, in planning or reading, is raised where that version is due,
after all rows before it.

Only a backlog is looked at. A pipeline that waits for each version would ask for one that does not exist yet, which
costs a request and delays the rows that are there.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from anyio.abc import TaskGroup

from tailer.engine.port import Engine
from tailer.engine.prefetch import PrefetchedBatches
from tailer.plan import ChangePlan
from tailer.table_log import TableLog

__all__ = ["LookAhead"]

_WORTH_BYTES: Final = 256 * 2**10  # of files: less is read in no time


@dataclass(frozen=True, slots=True)
class _Planned:
    """The next plan; the same one shaped, with its rows, if these are being read. Or the error of planning it."""

    plan: ChangePlan | None = None
    begun: tuple[ChangePlan, PrefetchedBatches] | None = None
    error: Exception | None = None


class LookAhead:
    """The plans of `table`, each shaped by `shape`, and the rows of the next one, read by `engine` in `group`.

    Call `begin` after each `TableLog.seek`, then `next_plan` and `take` in turn.
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
        self._next = _Planned()

    def begin(self, last: int | None) -> None:
        """Forget what is ahead: the table is at another version. `last`: the last one to plan; None: no end."""
        if self._next.begun is not None:
            self._next.begun[1].stop()
        self._last, self._is_backlog, self._next = last, False, _Planned()

    async def next_plan(self) -> ChangePlan | None:
        """Return the next plan, not shaped; None where there is none yet. Raises as `TableLog.next_plan`."""
        if self._next.error is not None:
            raise self._next.error
        if self._next.plan is not None:
            return self._next.plan
        plan = await self._table.next_plan()
        self._is_backlog = self._is_backlog and plan is not None
        return plan

    async def take(self, plan: ChangePlan) -> tuple[ChangePlan, PrefetchedBatches | None]:
        """Return `plan` shaped, and its rows if they are being read already. In a backlog, begin with the next one.

        Raises as `shape`.
        """
        shaped, rows = self._next.begun or (self._shape(plan), None)
        is_last = self._last is not None and plan.version >= self._last
        may_look = self._is_backlog and _is_worth(plan) and not is_last
        self._next = await self._look() if may_look else _Planned()
        self._is_backlog = True  # until the table has no next plan
        return shaped, rows

    async def _look(self) -> _Planned:
        """Plan the next version, and begin to read it."""
        plan: ChangePlan | None = None
        try:
            plan = await self._table.next_plan()
            if plan is None:
                return _Planned()
            begun = self._shape(plan), PrefetchedBatches()
            self._group.start_soon(begun[1].drive, self._engine, begun[0], None)
            return _Planned(plan, begun)
        except Exception as error:  # noqa: BLE001 - raised where the version is due
            return _Planned(error=error) if plan is None else _Planned(plan)


def _is_worth(plan: ChangePlan) -> bool:
    return plan.size_bytes >= _WORTH_BYTES or any(task.fragment is not None for task in plan.tasks[:1])
