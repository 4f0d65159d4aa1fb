"""Waits between two looks at a table.

The wait is a share of the time since the last new version, between a shortest and a longest wait: a table that is
written often is looked at often, and a quiet one seldom. A table that gets a version every few seconds is not quiet
between two of them. Waits differ at random, so that many tables do not ask a store at once. Whatever they are, any hour
has at most so many looks: each takes a token from a bucket that holds a minute's worth of them and is refilled evenly.

Where a notice came for the last version, one is expected for the next, and the wait is the longest one. A notice
without a new version, or a version without a notice, makes waits short again.

Long waits for tables on this machine end together, at whole seconds: an idle process sleeps in between, and hundreds of
looks one after the other cost less than each by itself.
"""

import math
import random
import time
from collections.abc import Callable
from typing import Final, Self

from tailer.pipeline.policy import Limits
from tailer.stores.wakeup import Wake

__all__ = ["Polling"]

_SHARE: Final = 0.2
_BUSY_S: Final = 15.0  # between versions of a table that is written all the time
_GAPS: Final = 2  # after which it is quiet
_SPREAD: Final = 0.2  # a wait is up to so much longer or shorter
_HOUR_S: Final = 3600.0
_MINUTES: Final = 60
_LONG_S: Final = 5.0


class Polling:
    """The waits of one table, each between `shortest_s` and `longest_s`, give or take the random part.

    `per_hour`: the highest number of looks in an hour; None: no limit. `clock`: seconds of a clock that never goes
    back. `chance`: numbers from 0 to 1. `is_notified`: whether notices may end waits; long ones then end together with
    those of other tables.

    `was_woken`: whether something else than its end ended the last wait; to be set after each.
    """

    def __init__(
        self,
        shortest_s: float,
        longest_s: float,
        per_hour: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
        is_notified: bool = False,
    ) -> None:
        self.shortest_s = shortest_s
        self.longest_s = max(longest_s, shortest_s)
        self._ceiling = None if per_hour is None else _Ceiling(per_hour, clock())
        self._clock = clock
        self._chance = chance
        self._is_notified = is_notified
        self._active_s = clock()
        self._gap_s = 0.0  # between the last versions
        self.was_woken = False
        self._has_found = False  # since the last wait
        self._is_announced = False

    @classmethod
    def of(cls, limits: Limits, wake: Wake) -> Self:
        """Make it from the limits of a pipeline.

        Where `wake` notifies, looks find only what it missed, and cost nothing that a limit must hold.
        """
        shortest_s = limits.poll_interval_s
        longest_s = limits.idle_poll_interval_s or shortest_s
        if wake.notifies:
            return cls(shortest_s, limits.notified_poll_interval_s or longest_s, is_notified=True)
        return cls(shortest_s, longest_s, limits.max_polls_per_hour)

    def found(self) -> None:
        """Note a new version: the next waits are short."""
        now_s = self._clock()
        self._gap_s = (self._gap_s + now_s - self._active_s) / 2
        self._active_s = now_s
        self._has_found, self._is_announced = True, self._is_notified and self.was_woken

    def next_wait_s(self) -> float:
        """Return how long to wait before the next look, which is counted."""
        now_s = self._clock()
        if self.was_woken and not self._has_found:
            self._is_announced = False
        self._has_found = False
        busy_s = _GAPS * self._gap_s if self._gap_s <= _BUSY_S else 0
        wait_s = min(max(_SHARE * (now_s - self._active_s - busy_s), self.shortest_s), self.longest_s)
        if self._is_announced:
            wait_s = self.longest_s
        wait_s *= 1 + _SPREAD * (2 * self._chance() - 1)
        if self._is_notified and wait_s >= _LONG_S:
            return math.floor(now_s + wait_s) - now_s
        return wait_s if self._ceiling is None else self._ceiling.admit(now_s + wait_s) - now_s


class _Ceiling:
    """A bucket of tokens that admits at most `per_hour` looks in any hour, the first at `now_s`."""

    def __init__(self, per_hour: int, now_s: float) -> None:
        self._most = max(per_hour // _MINUTES, 1)
        self._per_s = max(per_hour - self._most, 1) / _HOUR_S
        self._tokens = float(self._most)
        self._at_s = now_s

    def admit(self, wanted_s: float) -> float:
        """Take a token and return when the look may take place: not before `wanted_s`."""
        at_s = max(wanted_s, self._at_s)
        tokens = min(self._tokens + (at_s - self._at_s) * self._per_s, self._most)
        if tokens < 1:
            at_s += (1 - tokens) / self._per_s
            tokens = 1
        self._tokens, self._at_s = tokens - 1, at_s
        return at_s
