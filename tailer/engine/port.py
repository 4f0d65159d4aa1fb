"""The `Engine` port: something that can run a plan.

An engine yields the batches of a plan in task order and, within a task, in row order, whatever runs side by side
behind it; a task that fails does so at its place in that order, after the rows before it.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from tailer.events import ChangeBatch
from tailer.plan import ChangePlan, Position

__all__ = ["Engine"]


class Engine(Protocol):
    """Something that can run a plan."""

    @property
    def key(self) -> tuple[str, ...]:
        """The columns by which it tells which rows of a version are one, nulls too; empty where it does not."""
        ...

    def run(
        self, plan: ChangePlan, after: Position | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[ChangeBatch]]:
        """The plan's batches in position order, from the first row after `after` on (None: all).

        Iterating raises what `tailer.read.execute.execute` raises. Leaving the block stops what still runs.
        """
        ...
