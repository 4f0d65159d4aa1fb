"""The comparers of a process: lent to one comparison at a time, so that many pipelines need no more than a few.

A comparer (`RowMatches`) is a database with threads, memory and a spill folder of its own. Whatever ends a comparison,
an error, a full disk or a cancellation, therefore leaves the others alone. To make one takes longer than to compare a
few rows, so up to `KEPT` of them stay open for the next comparison, for `KEEP_S` seconds.
"""

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, Timer
from typing import Final

from tailer.changelog.row_index import RowMatches

__all__ = ["KEEP_S", "KEPT", "close_kept", "lent_matches"]

KEPT: Final = 2
KEEP_S: Final = 10.0

_turn: Final = Lock()
_kept: Final[dict[int, dict[RowMatches, Timer]]] = {}  # by process: one that forked off has none yet


@contextmanager
def lent_matches() -> Iterator[RowMatches]:
    """Lend a comparer for the block, on any thread. Raises `StorageUnavailable` where it can have no folder.

    It is closed where the block fails, and where it has grown.
    """
    matches = _take() or RowMatches()
    try:
        yield matches
    except BaseException:
        matches.close()
        raise
    if matches.closed or matches.has_grown or not _keep(matches):
        matches.close()


def close_kept() -> None:
    """Close the comparers of this process that nobody uses."""
    while (matches := _take()) is not None:
        matches.close()


def _take() -> RowMatches | None:
    while True:
        with _turn:
            kept = _kept.get(os.getpid())
            if not kept:
                return None
            matches, timer = kept.popitem()
        timer.cancel()
        if not matches.closed:
            return matches
        matches.close()


def _keep(matches: RowMatches) -> bool:
    """Keep it for a while; False where enough are kept."""
    with _turn:
        if os.getpid() not in _kept:
            _kept[os.getpid()] = {}
            atexit.register(close_kept)
        kept = _kept[os.getpid()]
        if len(kept) >= KEPT:
            return False
        kept[matches] = timer = Timer(KEEP_S, _expire, [matches])
        timer.daemon = True
        timer.start()
    return True


def _expire(matches: RowMatches) -> None:
    with _turn:
        if _kept.get(os.getpid(), {}).pop(matches, None) is not None:
            matches.close()
