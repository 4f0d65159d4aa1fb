"""Prefetched batches of an engine: waiting for the next batch can time out without losing it.

A cancelled step of an engine's iterator cannot be resumed. So a background task drives the iterator. It is ahead of the
consumer by at most one batch, or by several small ones: to switch tasks for each row of many small files would cost
more than to read it.
"""

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from anyio import Event, lowlevel

from tailer.engine.background import background
from tailer.engine.port import Engine
from tailer.events import ChangeBatch
from tailer.plan import ChangePlan, Position

__all__ = ["PrefetchedBatches", "prefetched"]

_END: Final = None
_AHEAD_BYTES: Final = 2**18
_AHEAD_BATCHES: Final = 64
_Item = ChangeBatch | Exception | None


class PrefetchedBatches:
    """Batches in order. An error of the engine is raised in place of the next batch."""

    def __init__(self) -> None:
        self._items: deque[_Item] = deque()
        self._bytes = 0
        self._changed = Event()

    async def next(self) -> ChangeBatch | None:
        """Return the next batch; None at the end. May be cancelled and called again."""
        await lowlevel.checkpoint_if_cancelled()
        while not self._items:
            await self._changed.wait()
        item = self._items.popleft()
        if not self._items:
            self._bytes = 0
            self._notify()
        if isinstance(item, Exception):
            raise item
        return item

    async def drive(self, engine: Engine, plan: ChangePlan, after: Position | None) -> None:
        """Run the engine, and pass on its batches and its error."""
        try:
            async with engine.run(plan, after) as batches:
                async for batch in batches:
                    self._put(batch)
                    self._bytes += batch.size_bytes
                    while self._bytes >= _AHEAD_BYTES or len(self._items) >= _AHEAD_BATCHES:
                        await self._changed.wait()
        except Exception as error:  # noqa: BLE001 - raised by `next`
            self._put(error)
        else:
            self._put(_END)

    def _put(self, item: _Item) -> None:
        self._items.append(item)
        if len(self._items) == 1:
            self._notify()

    def _notify(self) -> None:
        """Wake whichever side is waiting."""
        self._changed.set()
        self._changed = Event()


@asynccontextmanager
async def prefetched(engine: Engine, plan: ChangePlan, after: Position | None) -> AsyncIterator[PrefetchedBatches]:
    """Run `plan` on `engine` in the background, as `Engine.run` does; leaving the block stops it."""
    async with background() as group:
        batches = PrefetchedBatches()
        group.start_soon(batches.drive, engine, plan, after)
        yield batches
