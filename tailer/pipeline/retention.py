"""A warning before data is lost: how far a pipeline is behind, and how long what it still needs is kept.

A reader that is too slow, or was down for too long, finds its files removed by VACUUM or its log cleaned up. Both go by
the age of a commit, so the oldest commit that was not delivered yet tells how much time is left. It may be negative:
what is needed then is there only as long as nobody tidies up.
"""

import logging
import time
from typing import Final

from tailer.engine.metrics import Gauge

__all__ = ["METRICS", "VacuumWatch"]

_log = logging.getLogger(__name__)

_HOUR_MS: Final = 3_600_000
_WARN_BELOW: Final = 0.25  # of the time that things are kept
_WARN_EVERY_S: Final = 600.0

_BEHIND: Final = Gauge("lake_tailer_versions_behind", "Versions that were not delivered yet.")
_LEFT: Final = Gauge(
    "lake_tailer_vacuum_hours_left",
    "Hours until something that was not delivered yet may be removed by VACUUM or log cleanup; negative: overdue.",
)
METRICS: Final = (_BEHIND, _LEFT)


class VacuumWatch:
    """Reports for the pipeline `name`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._warned = -_WARN_EVERY_S

    def report(self, versions: int, oldest_ms: int, kept_ms: int) -> None:
        """`versions` are due, the oldest from `oldest_ms`; what it needs is kept for `kept_ms` at least."""
        left_ms = oldest_ms + kept_ms - time.time() * 1000
        self._show(versions, left_ms)
        if left_ms < kept_ms * _WARN_BELOW and time.monotonic() - self._warned >= _WARN_EVERY_S:
            self._warned = time.monotonic()
            left = f"in {left_ms / _HOUR_MS:.1f} h" if left_ms > 0 else "at any time"
            _log.warning(
                "%s: %d versions behind; VACUUM or log cleanup may remove what the oldest needs %s (kept for %.0f h)",
                self._name,
                versions,
                left,
                kept_ms / _HOUR_MS,
            )

    def caught_up(self, kept_ms: int) -> None:
        """Nothing is due; what comes next is kept for `kept_ms` at least."""
        self._show(0, kept_ms)

    def forget(self) -> None:
        """How far the pipeline is behind is not known any more: show nothing instead of the last value."""
        for gauge in METRICS:
            gauge.remove(self._name)

    def _show(self, versions: int, left_ms: float) -> None:
        _BEHIND.set(self._name, versions)
        _LEFT.set(self._name, left_ms / _HOUR_MS)
