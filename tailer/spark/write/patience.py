"""Patience with attempts that fail: time in which something was delivered does not count."""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from tenacity import RetryCallState

from tailer.errors import TailerError
from tailer.plan import Position

__all__ = ["Patience"]

_log = logging.getLogger(__name__)

_LOOK_S: Final = 0.5  # until a query that was stopped is noticed


class Patience:
    """Patience of `limit_s` with the attempts at the micro-batch of `name`, for tenacity's `Retrying`.

    The time begins with the first failure after which no shard has advanced. `places` looks where the shards are, when
    the time seems to be over: the attempt that has failed may have delivered something. `is_stopped`: whether the query
    was told to end, which ends all patience.
    """

    def __init__(
        self, name: str, limit_s: float, is_stopped: Callable[[], bool], places: Callable[[], Sequence[Position]]
    ) -> None:
        self._name = name
        self._limit_s = limit_s
        self._is_stopped = is_stopped
        self._places = places
        self._seen: Sequence[Position] = ()
        self._since_s: float | None = None
        self._error: BaseException | None = None

    def note(self, places: Sequence[Position]) -> None:
        """Note where the shards are now."""
        if places != self._seen:
            self._seen, self._since_s = places, None

    def is_over(self, _: RetryCallState) -> bool:
        """Return whether the attempt that has failed was the last one."""
        if self._is_stopped():
            return True
        if self._waited_s() >= self._limit_s:
            with suppress(TailerError):
                self.note(self._places())
        return self._waited_s() >= self._limit_s

    def _waited_s(self) -> float:
        now_s = time.monotonic()
        self._since_s = now_s if self._since_s is None else self._since_s
        return now_s - self._since_s

    def say(self, state: RetryCallState) -> None:
        """Log the error of an attempt."""
        self._error = state.outcome.exception() if state.outcome is not None else None
        _log.warning("%s: %s; retrying in %.1f s", self._name, self._error, state.upcoming_sleep)

    def sleep(self, seconds: float) -> None:
        """Sleep until the next attempt. Raises the error of the last one if there is to be none."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self._is_stopped() and self._error is not None:
                raise self._error
            time.sleep(min(left, _LOOK_S))
