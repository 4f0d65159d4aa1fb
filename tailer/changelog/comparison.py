"""Cancellable comparisons of rows on worker threads.

At most `AT_ONCE` comparisons run concurrently in an event loop, each in the memory of one `RowIndex`. Others wait in
arrival order.
"""

from collections.abc import Callable
from threading import Lock
from typing import Final, TypeVar

import anyio
from anyio import CapacityLimiter, lowlevel, to_thread
from anyio.lowlevel import RunVar

from tailer.changelog.equal_rows.port import Stopped
from tailer.changelog.equal_rows.row_index import RowIndex, borrowed_index
from tailer.engine.background import background

__all__ = ["AT_ONCE", "compare"]

T = TypeVar("T")

AT_ONCE: Final = 4
_limiter: Final[RunVar[CapacityLimiter]] = RunVar("comparisons")


async def compare(work: Callable[[RowIndex], T]) -> T:
    """Run `work` on a worker thread with a row index. On cancellation, stop the index and wait until `work` ends."""
    cancellable = _CancellableWork()
    if (limiter := _limiter.get(None)) is None:
        _limiter.set(limiter := CapacityLimiter(AT_ONCE))
    async with background() as group:
        group.start_soon(cancellable.stop_when_cancelled)
        try:
            return await to_thread.run_sync(cancellable.run, work, limiter=limiter)
        except Stopped:
            await lowlevel.checkpoint()  # raises the cancellation that stopped it
            raise


class _CancellableWork:
    """Runs work on one thread; another thread stops it, but only while it owns the row index."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._row_index: RowIndex | None = None
        self._stopped = False

    def run(self, work: Callable[[RowIndex], T]) -> T:
        with borrowed_index() as row_index:
            try:
                self._set_row_index(row_index)
                return work(row_index)
            finally:
                self._set_row_index(None)

    async def stop_when_cancelled(self) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with self._lock:
                self._stopped = True
                if self._row_index is not None:
                    self._row_index.stop()

    def _set_row_index(self, row_index: RowIndex | None) -> None:
        with self._lock:
            self._row_index = row_index
            if row_index is not None and self._stopped:
                row_index.stop()
