"""Running a plan's tasks: the `Engine` port, and `LocalEngine` over worker threads of this process.

An engine yields the batches of a plan in task order and, within a task, in row order, whatever runs side by side
behind it; a task that fails does so at its place in that order, after the rows before it. Memory is bounded by the
batches in flight (invariant 7): at most `threads` + 1 tasks are open, each at most one pull ahead of the consumer.
"""

import os
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Final, Protocol, cast

from anyio import CapacityLimiter, create_memory_object_stream, to_thread
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from tailer.background import background
from tailer.errors import TailerError
from tailer.events import ChangeBatch
from tailer.execute import execute
from tailer.plan import ChangePlan, ChangeTask, Position

__all__ = ["Engine", "LocalEngine", "remaining"]

PULL_BYTES: Final = 4 * 2**20

_Pull = tuple[list[ChangeBatch], TailerError | None]


class Engine(Protocol):
    """Something that can run a plan."""

    def run(
        self, plan: ChangePlan, after: Position | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[ChangeBatch]]:
        """The plan's batches in position order, from the first row after `after` on (None: all).

        Iterating raises what `tailer.execute.execute` raises. Leaving the block stops what still runs.
        """
        ...


def remaining(plan: ChangePlan, after: Position | None) -> list[tuple[ChangeTask, int]]:
    """The tasks that are not done at `after`, each with the row to go on behind (-1: from its beginning)."""
    if after is None or after < Position(plan.version, -1, -1):
        return [(task, -1) for task in plan.tasks]
    if after.version > plan.version:
        return []
    open_tasks = [task for task in plan.tasks if task.index >= after.task]
    return [(task, after.row if task.index == after.task else -1) for task in open_tasks]


class LocalEngine:
    """Tasks on worker threads: decoding Parquet leaves the interpreter's lock, so threads run side by side."""

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads or os.cpu_count() or 1
        self._limiter: CapacityLimiter | None = None

    @asynccontextmanager
    async def run(self, plan: ChangePlan, after: Position | None = None) -> AsyncIterator[AsyncIterator[ChangeBatch]]:
        """See `Engine.run`."""
        if self._limiter is None:
            self._limiter = CapacityLimiter(self._threads)
        async with background() as group, aclosing(self._ordered(group, remaining(plan, after))) as batches:
            yield batches

    async def _ordered(
        self, group: TaskGroup, tasks: list[tuple[ChangeTask, int]]
    ) -> AsyncGenerator[ChangeBatch, None]:
        """Batches in order, while up to `threads` tasks behind the current one are worked on."""
        ahead: deque[MemoryObjectReceiveStream[_Pull]] = deque()
        waiting = iter(tasks)

        def open_next() -> None:
            for task, after_row in waiting:
                send, receive = create_memory_object_stream[_Pull](0)
                ahead.append(receive)
                group.start_soon(self._work, task, after_row, send)
                return

        for _ in range(self._threads + 1):
            open_next()
        while ahead:
            async with ahead.popleft() as pulls:
                async for batches, error in pulls:
                    for batch in batches:
                        yield batch
                    if error is not None:
                        raise error
            open_next()

    async def _work(self, task: ChangeTask, after_row: int, send: MemoryObjectSendStream[_Pull]) -> None:
        batches = cast(Generator[ChangeBatch, None, None], execute(task, after_row))
        async with send:
            try:
                more = True
                while more:
                    found, more, error = await to_thread.run_sync(_pull, batches, limiter=self._limiter)
                    if found or error is not None:
                        await send.send((found, error))
            finally:
                batches.close()


def _pull(batches: Iterator[ChangeBatch]) -> tuple[list[ChangeBatch], bool, TailerError | None]:
    """Some batches, whether there may be more, and the error that ended them."""
    found: list[ChangeBatch] = []
    size = 0
    try:
        for batch in batches:
            found.append(batch)
            size += batch.size_bytes
            if size >= PULL_BYTES:
                return found, True, None
    except TailerError as error:
        return found, False, error
    return found, False, None
