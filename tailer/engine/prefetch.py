"""What an engine yields, waited for with a deadline: without giving up the wait, and without losing a batch to it.

An engine's iterator cannot be left in the middle of a step and be asked again. So it is driven by a task of its own,
which hands over a batch at a time.
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

__all__ = ["Arrivals", "arriving"]

_END: Final = None
_Item = ChangeBatch | Exception | None


class Arrivals:
    """Batches as they come. An error comes at its place, and is raised there."""

    def __init__(self, items: MemoryObjectReceiveStream[_Item]) -> None:
        self._items = items

    async def next(self) -> ChangeBatch | None:
        """The next batch; None at the end. May be cancelled and called again."""
        item = await self._items.receive()
        if isinstance(item, Exception):
            raise item
        return item


@asynccontextmanager
async def arriving(engine: Engine, plan: ChangePlan, after: Position | None) -> AsyncIterator[Arrivals]:
    """Run `plan` on `engine`, as `Engine.run` does; leaving the block stops it."""
    send, receive = anyio.create_memory_object_stream[_Item]()
    with send, receive:
        async with background() as group:
            group.start_soon(_drive, engine, plan, after, send)
            yield Arrivals(receive)


async def _drive(engine: Engine, plan: ChangePlan, after: Position | None, send: MemoryObjectSendStream[_Item]) -> None:
    try:
        async with engine.run(plan, after) as batches:
            async for batch in batches:
                await send.send(batch)
    except Exception as error:  # noqa: BLE001 - raised where it is waited for
        await send.send(error)
    else:
        await send.send(_END)
