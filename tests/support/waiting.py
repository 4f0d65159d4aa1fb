"""Waiting for another process: a test fails when nothing has moved for a while, not when a busy machine is slow."""

import time
from collections.abc import Callable
from typing import Final

__all__ = ["until"]

IDLE_S: Final = 300.0
_OFTEN_S: Final = 0.02
_SELDOM_S: Final = 1.0
_REST: Final = 4  # times as long as a look took: many tests wait at once for processes that need the processor


def until(
    holds: Callable[[], bool],
    progress: Callable[[], object] = lambda: None,
    said: Callable[[], object] = lambda: "",
    look_s: float | None = None,
) -> None:
    """Return when `holds` is true.

    `progress` returns something that changes while the awaited process gets on; `said` explains a failure.
    Both are asked every `look_s` seconds; by default, the less often the longer a look takes.
    Raises AssertionError when `progress` has not changed for `IDLE_S` seconds.
    """
    before, moved_at = progress(), time.monotonic()
    looked_at = moved_at
    while not holds():
        rest_s = min(max(_REST * (time.monotonic() - looked_at), _OFTEN_S), _SELDOM_S)
        time.sleep(rest_s if look_s is None else look_s)
        looked_at, now = time.monotonic(), progress()
        if now != before:
            before, moved_at = now, time.monotonic()
        assert time.monotonic() < moved_at + IDLE_S, f"no progress for {IDLE_S:g} s, at {before}\n{said()}"
