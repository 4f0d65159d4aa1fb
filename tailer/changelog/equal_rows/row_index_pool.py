"""The pool of row indexes of a process; each is used by one comparison at a time.

A `RowIndex` may have a database, with its own threads, memory and spill directory. So an error, a full disk or a
cancellation in one comparison does not affect the others. Opening a database takes longer than comparing a few rows. So
up to `MAX_IDLE` unused ones stay open for the next comparison, for `IDLE_S` seconds.
"""

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, Timer
from typing import Final

from tailer.changelog.equal_rows.row_index import RowIndex

__all__ = ["IDLE_S", "MAX_IDLE", "borrowed_index", "close_idle"]

MAX_IDLE: Final = 2
IDLE_S: Final = 10.0

_lock: Final = Lock()
_idle: Final[dict[int, dict[RowIndex, Timer]]] = {}  # by process: a forked child has none


@contextmanager
def borrowed_index() -> Iterator[RowIndex]:
    """Borrow a row index for the block, on any thread. It is emptied after it.

    It is closed if the block fails, or if it is not worth keeping.
    """
    row_index = _take_idle() or RowIndex()
    try:
        yield row_index
        if not row_index.closed:
            row_index.begin()
    except BaseException:
        row_index.close()
        raise
    if row_index.closed or not row_index.is_worth_keeping or not _keep_idle(row_index):
        row_index.close()


def close_idle() -> None:
    """Close the unused row indexes of this process."""
    while (row_index := _take_idle()) is not None:
        row_index.close()


def _take_idle() -> RowIndex | None:
    while True:
        with _lock:
            idle = _idle.get(os.getpid())
            if not idle:
                return None
            row_index, timer = idle.popitem()
        timer.cancel()
        if not row_index.closed:
            return row_index
        row_index.close()


def _keep_idle(row_index: RowIndex) -> bool:
    """Keep an unused index for `IDLE_S` seconds; return False where the pool is full."""
    with _lock:
        if os.getpid() not in _idle:
            _idle[os.getpid()] = {}
            atexit.register(close_idle)
        idle = _idle[os.getpid()]
        if len(idle) >= MAX_IDLE:
            return False
        idle[row_index] = timer = Timer(IDLE_S, _expire, [row_index])
        timer.daemon = True
        timer.start()
    return True


def _expire(row_index: RowIndex) -> None:
    with _lock:
        if _idle.get(os.getpid(), {}).pop(row_index, None) is not None:
            row_index.close()
