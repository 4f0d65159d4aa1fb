"""The `Engine` port: runs change plans.

An engine yields the batches of a plan in task order and, within a task, in row order, even if it runs tasks
concurrently. The error of a failed task is raised at its place in that order, after all earlier rows.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager

from tailer.events import ChangeBatch
from tailer.plan import ChangePlan, Position

__all__ = ["Engine"]


class Engine(ABC):
    """Runs change plans. `reads_here`: whether all rows come from reads in this process, whose results may be kept."""

    reads_here: bool = False

    @property
    def key(self) -> tuple[str, ...]:
        """The columns by which it pairs rows into updates, with equal nulls; empty where it does not."""
        return ()

    @abstractmethod
    def run(
        self, plan: ChangePlan, after: Position | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[ChangeBatch]]:
        """Yield the plan's batches in position order, starting with the first row after `after` (None: all rows).

        Iterating raises what `tailer.read.execute.execute` raises. Leaving the block stops running tasks.
        """

    def has_room(self) -> bool:
        """Return whether this process has room for more rows in memory."""
        return True

    def expect(self, plan: ChangePlan) -> bool:
        """Note a plan that it will run after those that it noted before, so that files may be read once for several.

        Return whether to note the one after it, too: its rows may be read together with those of this one.
        """
        return False

    def forget(self) -> None:  # noqa: B027 - an engine that notes nothing has nothing to forget
        """Forget the plans that it noted: it may run others."""

    def takes(self, plan: ChangePlan) -> bool:
        """Return whether it reads `plan` together with others: its rows are those of its tasks, not compared."""
        return False

    async def read_together(self, plans: Sequence[ChangePlan]) -> Sequence[Sequence[ChangeBatch]]:
        """Return all batches of each of the first `plans`, of which there is at least one, and which it `takes`.

        Those left have too many rows, or the first of them cannot be read: `run` gives the rows and raises the error.
        """
        return ()
