"""A comparison of rows on a worker thread, which ends soon when nobody waits for it any more."""

from collections.abc import Callable
from typing import TypeVar

import anyio
from anyio import lowlevel, to_thread

from tailer.background import background
from tailer.matches import RowMatches, Stopped

__all__ = ["compare"]

T = TypeVar("T")


async def compare(matches: RowMatches, work: Callable[[], T]) -> T:
    """What `work`, which uses `matches`, returns or raises. Cancelled, it stops `matches` and waits for that.

    `matches` is closed where that failed, or where there is much to give back.
    """
    comparing = _Comparing(matches)
    async with background() as group:
        group.start_soon(comparing.stop_when_cancelled)
        try:
            return await to_thread.run_sync(_tidied, matches, work)
        except Stopped:
            await lowlevel.checkpoint()  # raises the cancellation that it was stopped for
            raise
        finally:
            comparing.ended = True


def _tidied(matches: RowMatches, work: Callable[[], T]) -> T:
    try:
        found = work()
    except BaseException:
        matches.close()
        raise
    if matches.has_grown:
        matches.close()
    return found


class _Comparing:
    def __init__(self, matches: RowMatches) -> None:
        self.ended = False
        self._matches = matches

    async def stop_when_cancelled(self) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            if not self.ended:
                self._matches.stop()
