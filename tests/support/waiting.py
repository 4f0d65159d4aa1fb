"""Waiting for another process: a test fails when nothing has moved for a while, not when a busy machine is slow."""

import time
from collections.abc import Callable
from typing import Final

__all__ = ["until"]

IDLE_S: Final = 300.0


def until(
    holds: Callable[[], bool],
    progress: Callable[[], object] = lambda: None,
    said: Callable[[], object] = lambda: "",
    look_s: float = 0.02,
) -> None:
    """Return when `holds` is true.

    `progress` returns something that changes while the awaited process gets on; `said` explains a failure.
    It is asked every `look_s` seconds. Raises AssertionError when `progress` has not changed for `IDLE_S` seconds.
    """
    before, moved_at = progress(), time.monotonic()
    while not holds():
        time.sleep(look_s)
        now = progress()
        if now != before:
            before, moved_at = now, time.monotonic()
        assert time.monotonic() < moved_at + IDLE_S, f"no progress for {IDLE_S:g} s, at {before}\n{said()}"
