"""Repetition of tests with random cases: a few on a landing, fewer in `make quick`, more in `make nightly`.

`make nightly` sets LAKE_TAILER_SEED to a new number, which it prints: with it a run can be repeated. `make quick` sets
LAKE_TAILER_QUICK.
"""

import os
from typing import Final

__all__ = ["examples", "repeats", "seeds"]

MORE: Final = 5
LESS: Final = 4
_FIRST: Final = os.environ.get("LAKE_TAILER_SEED")
_IS_QUICK: Final = "LAKE_TAILER_QUICK" in os.environ


def repeats(number: int) -> int:
    """Return how often to do what a landing does `number` times."""
    if _FIRST is not None:
        return MORE * number
    return -(-number // LESS) if _IS_QUICK else number


def examples(number: int) -> int:
    """Return how many examples hypothesis draws: half of `number` on a landing, five times as many in `make nightly`.

    For tests that draw many: `make quick` draws a quarter, as `repeats` says.
    """
    return repeats(number) if _FIRST is not None or _IS_QUICK else -(-number // 2)


def seeds(number: int) -> range:
    """Return the seeds of `number` random cases: always the same on a landing, more and others in `make nightly`."""
    first = int(_FIRST or 0)
    return range(first, first + repeats(number))
