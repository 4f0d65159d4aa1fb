"""Running a plan's tasks: the `Engine` port, and `LocalEngine` over worker threads of this process.

An engine yields the batches of a plan in task order and, within a task, in row order, whatever runs side by side
behind it; a task that fails does so at its place in that order, after the rows before it. Memory is bounded by the
batches in flight (invariant 7): at most `threads` + 1 files are open, each at most one pull ahead of the consumer.
"""

import os
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from itertools import islice
from typing import Final

from anyio import CapacityLimiter, Event, to_thread
from anyio.abc import TaskGroup

from tailer.engine.background import background
from tailer.events import ChangeBatch
from tailer.plan import ChangePlan, ChangeTask, Position
from tailer.read.execute import execute

__all__ = ["LocalEngine", "remaining"]

MAX_THREADS: Final = 8  # of an engine that is not told how many: each holds a pull
PULL_BYTES: Final = 4 * 2**20  # of Arrow memory, read at a time
STRETCH_BYTES: Final = 2**20  # of files, read by one thread one after the other
_OPEN_BYTES: Final = 16 * 2**10  # what opening a file counts for

_Tasks = list[tuple[ChangeTask, int]]

# Some batches, whether there may be more, and what ended them.
_Pull = tuple[list[ChangeBatch], bool, Exception | None]


def remaining(plan: ChangePlan, after: Position | None) -> _Tasks:
    """The tasks that are not done at `after`, each with the row to go on behind (-1: from its beginning)."""
    if after is None or after < Position(plan.version, -1, -1):
        return [(task, -1) for task in plan.tasks]
    if after.version > plan.version:
        return []
    open_tasks = [task for task in plan.tasks if task.index >= after.task]
    return [(task, after.row if task.index == after.task else -1) for task in open_tasks]


class LocalEngine:
    """Tasks on worker threads: decoding Parquet leaves the interpreter's lock, so threads run side by side.

    `threads`: how many; None: one for each processor, up to `MAX_THREADS`.
    """

    key: Final = ()

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads or min(os.cpu_count() or 1, MAX_THREADS)
        self._limiter: CapacityLimiter | None = None

    @asynccontextmanager
    async def run(self, plan: ChangePlan, after: Position | None = None) -> AsyncIterator[AsyncIterator[ChangeBatch]]:
        """See `Engine.run`."""
        if self._limiter is None:
            self._limiter = CapacityLimiter(self._threads)
        tasks = remaining(plan, after)
        stretches = [_Stretch(stretch, self._limiter) for stretch in _split(tasks)]
        async with AsyncExitStack() as stack:
            for stretch in stretches:
                stack.callback(stretch.close)
            # For a single stretch of small files, looking ahead costs more than it gains.
            group = await stack.enter_async_context(background()) if _weight(tasks) >= STRETCH_BYTES else None
            yield await stack.enter_async_context(aclosing(self._ordered(stretches, group)))

    async def _ordered(
        self, stretches: Sequence["_Stretch"], group: TaskGroup | None
    ) -> AsyncGenerator[ChangeBatch, None]:
        """Batches in order, while `group`, if any, works on the current stretch and up to `threads` behind it."""
        waiting = iter(stretches)
        for ahead in islice(waiting, self._threads + 1):
            ahead.start(group)
        for stretch in stretches:
            more = True
            while more:
                found, more, error = await stretch.take()
                if more:
                    stretch.start(group)
                for batch in found:
                    yield batch
                if error is not None:
                    raise error
            for ahead in islice(waiting, 1):
                ahead.start(group)


def _weight(tasks: _Tasks) -> int:
    return sum(max(task.size_bytes, _OPEN_BYTES) for task, _ in tasks)


def _split(tasks: _Tasks) -> Iterator[_Tasks]:
    """Consecutive tasks, as many together as make up `STRETCH_BYTES`."""
    stretch: _Tasks = []
    size = 0
    for each in tasks:
        stretch.append(each)
        size += _weight([each])
        if size >= STRETCH_BYTES:
            yield stretch
            stretch, size = [], 0
    if stretch:
        yield stretch


class _Stretch:
    """Some tasks, read one after the other on one thread at a time, at most one pull ahead of the consumer."""

    def __init__(self, tasks: _Tasks, limiter: CapacityLimiter) -> None:
        self._batches = _read(tasks)
        self._limiter = limiter
        self._pulled: list[_Pull] = []
        self._arrived: Event | None = None

    def start(self, group: TaskGroup | None) -> None:
        """Pull in the background; without a group `take` does it."""
        if group is not None:
            self._arrived = Event()
            group.start_soon(self._pull, self._arrived)

    async def take(self) -> _Pull:
        """What was pulled last."""
        if self._arrived is None:
            await self._pull(Event())
        else:
            await self._arrived.wait()
        return self._pulled.pop()

    async def _pull(self, arrived: Event) -> None:
        self._pulled.append(await to_thread.run_sync(_pull, self._batches, limiter=self._limiter))
        arrived.set()

    def close(self) -> None:
        """Close the file that is open."""
        # A thread is still pulling only where somebody cancelled past anyio; what it pulls is dropped with the file.
        with suppress(ValueError):
            self._batches.close()


def _read(tasks: _Tasks) -> Generator[ChangeBatch, None, None]:
    for task, after_row in tasks:
        yield from execute(task, after_row)


def _pull(batches: Iterator[ChangeBatch]) -> _Pull:
    """Batches of `PULL_BYTES`. An error, also one that is not ours, is handed over: its place is behind those rows."""
    found: list[ChangeBatch] = []
    size = 0
    try:
        for batch in batches:
            found.append(batch)
            size += batch.size_bytes
            if size >= PULL_BYTES:
                return found, True, None
    except Exception as error:  # noqa: BLE001 - raised by whoever takes the rows
        return found, False, error
    return found, False, None
