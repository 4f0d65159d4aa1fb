"""Prefetched batches of an engine: waiting for the next batch can time out without losing it.

A cancelled step of an engine's iterator cannot be resumed. So a background task drives the iterator and passes on one
batch at a time.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from tailer.engine.background import background
from tailer.engine.port import Engine
from tailer.events import ChangeBatch
from tailer.plan import ChangePlan, Position

__all__ = ["PrefetchedBatches", "prefetched"]

_END: Final = None
_Item = ChangeBatch | Exception | None


class PrefetchedBatches:
    """Batches in order. An error of the engine is raised in place of the next batch."""

    def __init__(self, items: MemoryObjectReceiveStream[_Item]) -> None:
        self._items = items

    async def next(self) -> ChangeBatch | None:
        """Return the next batch; None at the end. May be cancelled and called again."""
        item = await self._items.receive()
        if isinstance(item, Exception):
            raise item
        return item


@asynccontextmanager
async def prefetched(engine: Engine, plan: ChangePlan, after: Position | None) -> AsyncIterator[PrefetchedBatches]:
    """Run `plan` on `engine` in the background, as `Engine.run` does; leaving the block stops it."""
    send, receive = anyio.create_memory_object_stream[_Item]()
    with send, receive:
        async with background() as group:
            group.start_soon(_drive, engine, plan, after, send)
            yield PrefetchedBatches(receive)


async def _drive(engine: Engine, plan: ChangePlan, after: Position | None, send: MemoryObjectSendStream[_Item]) -> None:
    try:
        async with engine.run(plan, after) as batches:
            async for batch in batches:
                await send.send(batch)
    except Exception as error:  # noqa: BLE001 - raised by `next`
        await send.send(error)
    else:
        await send.send(_END)
