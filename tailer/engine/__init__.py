"""Engines run the tasks of a plan, in order and in bounded memory: the port, and a task group for what they read ahead.

An engine yields the batches of plans in version order, in task order and, within a task, in row order, even if it runs
tasks concurrently. The error of a failed task is raised at its place in that order, after all earlier rows.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import anyio
from anyio.abc import TaskGroup

from tailer.events import ChangeBatch
from tailer.plan import ChangePlan, Position
from tailer.read.decoded_files import Budget

__all__ = ["Engine", "background"]


class Engine(ABC):
    """Runs change plans.

    `reads_here`: whether all rows come from reads in this process, whose results may be kept. `budget`: the memory for
    those that are.
    """

    reads_here: bool = False
    budget = Budget()  # of the process, for engines without one of their own

    @property
    def key(self) -> tuple[str, ...]:
        """The columns by which it pairs rows into updates, with equal nulls; empty where it does not."""
        return ()

    @abstractmethod
    def run(
        self, plans: Sequence[ChangePlan], after: Position | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[ChangeBatch]]:
        """Yield the batches of consecutive plans of one table id and schema, in position order.

        The first one is that of the first row after `after`, which may be inside the first plan (None: all rows).
        Iterating raises what `tailer.read.execute.execute` raises. Leaving the block stops running tasks.
        """

    def expect(self, plan: ChangePlan) -> bool:
        """Note a plan that it will run after those that it noted before, so that files may be read once for several.

        Return whether to note the one after it, too: its rows may be read together with those of this one.
        """
        return False

    def forget(self) -> None:  # noqa: B027 - an engine that notes nothing has nothing to forget
        """Forget the plans that it noted: it may run others."""


@asynccontextmanager
async def background() -> AsyncIterator[TaskGroup]:
    """Open a task group whose tasks are cancelled when the block is left.

    An error in a background task cancels the block and is raised as an `ExceptionGroup`. An error of the block itself
    passes as it is: a task group of anyio would wrap it, too.
    """
    group = anyio.create_task_group()
    await group.__aenter__()
    try:
        yield group
    finally:
        group.cancel_scope.cancel()
        await group.__aexit__(None, None, None)
