"""Retention warnings: how many versions a pipeline is behind, and how long the files it still needs are kept.

A reader that is too slow or was down for too long finds its files removed by VACUUM, or its log cleaned up. Both depend
on the age of a commit, so the oldest undelivered commit gives the time that is left. A negative time means that the
files may be removed at any moment.
"""

import logging
import time
from typing import Final

from tailer.metrics import Gauge

__all__ = ["METRICS", "VacuumWatch"]

_log = logging.getLogger(__name__)

_HOUR_MS: Final = 3_600_000
_WARN_BELOW: Final = 0.25  # of the retention time
_WARN_EVERY_S: Final = 600.0

_BEHIND: Final = Gauge("lake_tailer_versions_behind", "Versions not delivered yet.")
_LEFT: Final = Gauge(
    "lake_tailer_vacuum_hours_left",
    "Hours until VACUUM or log cleanup may remove undelivered changes; negative: overdue.",
)
METRICS: Final = (_BEHIND, _LEFT)


class VacuumWatch:
    """The retention report of the pipeline `name`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._warned = -_WARN_EVERY_S

    def report(self, versions: int, oldest_ms: int, kept_ms: int) -> None:
        """Report `versions` undelivered versions.

        The oldest was committed at `oldest_ms`, and its files are kept for at least `kept_ms`.
        """
        left_ms = oldest_ms + kept_ms - time.time() * 1000
        self._show(versions, left_ms)
        if left_ms < kept_ms * _WARN_BELOW and time.monotonic() - self._warned >= _WARN_EVERY_S:
            self._warned = time.monotonic()
            left = f"in {left_ms / _HOUR_MS:.1f} h" if left_ms > 0 else "at any time"
            _log.warning(
                "%s: %d versions behind; VACUUM or log cleanup may remove the files of the oldest %s (kept for %.0f h)",
                self._name,
                versions,
                left,
                kept_ms / _HOUR_MS,
            )

    def caught_up(self, kept_ms: int) -> None:
        """Report that nothing is due. The files of the next version are kept for at least `kept_ms`."""
        self._show(0, kept_ms)

    def forget(self) -> None:
        """Clear the report, because the backlog is no longer known: an old value would mislead."""
        for gauge in METRICS:
            gauge.remove(self._name)

    def _show(self, versions: int, left_ms: float) -> None:
        _BEHIND.set(self._name, versions)
        _LEFT.set(self._name, left_ms / _HOUR_MS)
