"""A comparison of rows on a worker thread, which ends soon when nobody waits for it any more.

At most `AT_ONCE` take place side by side in an event loop, each in the memory of one `RowMatches`; the others wait, in
the order they came.
"""

from collections.abc import Callable
from threading import Lock
from typing import Final, TypeVar

import anyio
from anyio import CapacityLimiter, lowlevel, to_thread
from anyio.lowlevel import RunVar

from tailer.changelog.row_index import RowMatches, Stopped
from tailer.changelog.row_index_pool import lent_matches
from tailer.engine.background import background

__all__ = ["AT_ONCE", "compare"]

T = TypeVar("T")

AT_ONCE: Final = 4
_limiter: Final[RunVar[CapacityLimiter]] = RunVar("comparisons")


async def compare(work: Callable[[RowMatches], T]) -> T:
    """Run `work` on a worker thread with a comparer lent to it. Cancelled, stop the comparer and wait for that."""
    comparison = _Comparison()
    async with background() as group:
        group.start_soon(comparison.stop_when_cancelled)
        try:
            return await to_thread.run_sync(comparison.run, work, limiter=_limiter_here())
        except Stopped:
            await lowlevel.checkpoint()  # raises the cancellation that it was stopped for
            raise


def _limiter_here() -> CapacityLimiter:
    try:
        return _limiter.get()
    except LookupError:
        limiter = CapacityLimiter(AT_ONCE)
        _limiter.set(limiter)
        return limiter


class _Comparison:
    """Runs work on one thread and is stopped by another, only while the comparer is its own."""

    def __init__(self) -> None:
        self._turn = Lock()
        self._matches: RowMatches | None = None
        self._stopped = False

    def run(self, work: Callable[[RowMatches], T]) -> T:
        with lent_matches() as matches:
            try:
                self._take(matches)
                return work(matches)
            finally:
                self._take(None)

    async def stop_when_cancelled(self) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with self._turn:
                self._stopped = True
                if self._matches is not None:
                    self._matches.stop()

    def _take(self, matches: RowMatches | None) -> None:
        with self._turn:
            self._matches = matches
            if matches is not None and self._stopped:
                matches.stop()
