"""The backlog of a pipeline: how far it is behind, and how long the files it still needs are kept.

A reader that is too slow or was down for too long finds its files removed by VACUUM, or its log cleaned up. Both depend
on the age of a commit, so the oldest undelivered commit gives the time that is left. A negative time means that the
files may be removed at any moment.
"""

import logging
import time
from collections import deque
from typing import Final

from tailer.plan import Position

__all__ = ["Backlog", "VacuumWatch"]

_log = logging.getLogger(__name__)

_HOUR_MS: Final = 3_600_000
_WARN_BELOW: Final = 0.25  # of the retention time
_WARN_EVERY_S: Final = 600.0


class VacuumWatch:
    """The warnings of the pipeline `name` that the time until VACUUM is running out."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._warned = -_WARN_EVERY_S

    def report(self, versions: int, oldest_ms: int, kept_ms: int) -> None:
        """Warn if the files of `versions` undelivered versions may soon be gone.

        The oldest was committed at `oldest_ms`, and its files are kept for at least `kept_ms`.
        """
        left_ms = oldest_ms + kept_ms - time.time() * 1000
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


class Backlog:
    """The versions that a pipeline has not delivered, as far as it knows. Times are in seconds since 1970.

    `position`: the sink's progress. `latest`: the newest version known. `caught_up_s`: when nothing was due last.
    `due_since_s`: since when something is due; None: nothing is. `kept_s`: for how long VACUUM and log cleanup leave
    what a version needs; None: not known.
    """

    def __init__(self) -> None:
        self.position: Position | None = None
        self.latest: int | None = None
        self.caught_up_s: float | None = None
        self.due_since_s: float | None = None
        self.kept_s: float | None = None
        self._oldest_s: float | None = None
        self._planned: deque[tuple[int, int]] = deque()

    @property
    def versions(self) -> int | None:
        """The number of versions not completely delivered; None before that is known."""
        if self.latest is None or self.position is None:
            return 0 if self.caught_up_s is not None and self.due_since_s is None else None
        return max(self.latest - self.position.version + (not self.position.closes_version), 0)

    @property
    def size_bytes(self) -> int | None:
        """Bytes of files of versions that are planned and not committed; None before anything is known."""
        if self.caught_up_s is None and not self._planned:
            return None
        return sum(size for _, size in tuple(self._planned))

    def age_s(self, now_s: float, looks: bool) -> float | None:
        """Return the age of the oldest change that may be undelivered; 0 at the newest version, None if not known.

        Unless the pipeline `looks` for new versions, it is the time since it was known to have everything.
        """
        if self._oldest_s is not None:
            return max(now_s - self._oldest_s, 0.0)
        if self.caught_up_s is None:
            return None
        return 0.0 if looks and self.due_since_s is None else max(now_s - self.caught_up_s, 0.0)

    def plan(self, last: int, oldest_ms: int | None, size_bytes: int, now_s: float) -> None:
        """Add versions up to `last`, of which the first was committed at `oldest_ms`."""
        self.latest = max(self.latest or 0, last)
        self.due_since_s = now_s if self.due_since_s is None else self.due_since_s
        if self._oldest_s is None and oldest_ms is not None:
            self._oldest_s = oldest_ms / 1000
        self._planned.append((last, size_bytes))

    def await_snapshot(self, version: int, now_s: float) -> None:
        """Note that all rows of `version` are due."""
        self.latest = max(self.latest or 0, version)
        self.due_since_s = now_s if self.due_since_s is None else self.due_since_s

    def deliver(self, position: Position) -> None:
        """Remove the versions that are complete at `position`."""
        self.position = position
        self.latest = max(self.latest or 0, position.version)
        whole = position.version + position.closes_version
        while self._planned and self._planned[0][0] < whole:
            self._planned.popleft()
        if not self._planned:
            self._oldest_s = None

    def clear(self, version: int, now_s: float, has_progress: bool = True) -> None:
        """Note that `version` is the newest one and that nothing is due; `has_progress`: the sink knows that."""
        self.latest, self.caught_up_s, self.due_since_s, self._oldest_s = version, now_s, None, None
        self.position = Position.end(version) if version >= 0 and has_progress else self.position
        self._planned.clear()

    def forget_plans(self) -> None:
        """Forget what is planned: the next session plans again."""
        self._planned.clear()
