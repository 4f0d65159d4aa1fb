"""The `Engine` port: runs change plans.

An engine yields the batches of a plan in task order and, within a task, in row order, even if it runs tasks
concurrently. The error of a failed task is raised at its place in that order, after all earlier rows.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from tailer.events import ChangeBatch
from tailer.plan import ChangePlan, Position

__all__ = ["Engine"]


class Engine(Protocol):
    """Runs change plans."""

    @property
    def key(self) -> tuple[str, ...]:
        """The columns by which it pairs rows into updates, with equal nulls; empty where it does not."""
        ...

    def run(
        self, plan: ChangePlan, after: Position | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[ChangeBatch]]:
        """Yield the plan's batches in position order, starting with the first row after `after` (None: all rows).

        Iterating raises what `tailer.read.execute.execute` raises. Leaving the block stops running tasks.
        """
        ...
