"""Prefetched batches of an engine: waiting for the next batch can time out without losing it.

A cancelled step of an engine's iterator cannot be resumed. So a background task drives the iterator. It is ahead of the
consumer by at most one batch, or by several small ones, which the consumer gets together: to switch tasks for each row
of many small files would cost more than to read it, and so would to encode and write it alone.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from anyio import CancelScope, Event, lowlevel, move_on_after

from tailer.engine.background import background
from tailer.engine.port import Engine
from tailer.events import ChangeBatch
from tailer.plan import ChangePlan, Position

__all__ = ["AHEAD_BYTES", "PrefetchedBatches", "patiently", "prefetched"]

AHEAD_BYTES: Final = 2**18
_AHEAD_BATCHES: Final = 64

T = TypeVar("T")


class PrefetchedBatches:
    """Batches in order. An error of the engine is raised after all batches before it."""

    def __init__(self) -> None:
        self._items: list[ChangeBatch] = []
        self._bytes = 0
        self._ended = False
        self._error: Exception | None = None
        self._changed = Event()
        self._scope = CancelScope()

    async def take(self) -> list[ChangeBatch]:
        """Return all batches that are there, at least one; none at the end. May be cancelled and called again."""
        await lowlevel.checkpoint_if_cancelled()
        while not self._items and not self._ended:
            await self._changed.wait()
        found, self._items, self._bytes = self._items, [], 0
        if not found and self._error is not None:
            raise self._error
        self._notify()
        return found

    async def drive(self, engine: Engine, plan: ChangePlan, after: Position | None) -> None:
        """Run the engine until `stop`, and pass on its batches and its error."""
        with self._scope:
            try:
                async with engine.run(plan, after) as batches:
                    async for batch in batches:
                        self._items.append(batch)
                        self._bytes += batch.size_bytes
                        if len(self._items) == 1:
                            self._notify()
                        while self._bytes >= AHEAD_BYTES or len(self._items) >= _AHEAD_BATCHES:
                            await self._changed.wait()
            except Exception as error:  # noqa: BLE001 - raised by `take`
                self._error = error
            self._ended = True
            self._notify()

    def stop(self) -> None:
        """End `drive`, in whichever task it runs."""
        self._scope.cancel()

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


async def patiently(work: Callable[[], Awaitable[T]], quiet_s: float, on_quiet: Callable[[], Awaitable[None]]) -> T:
    """Return the result of `work`. If that takes longer than `quiet_s`, call `on_quiet` meanwhile."""
    results: list[T] = []
    errors: list[Exception] = []

    async def run() -> None:
        try:
            results.append(await work())
        except Exception as error:  # noqa: BLE001 - raised below, unchanged
            errors.append(error)
        done.set()

    done = Event()
    async with background() as group:
        group.start_soon(run)
        with move_on_after(quiet_s):
            await done.wait()
        if not done.is_set():
            await on_quiet()
        await done.wait()
    for error in errors:
        raise error
    return results[0]
