"""The backlog of a pipeline: how far it is behind, and how long the files it still needs are kept.

A reader that is too slow or was down for too long finds its files removed by VACUUM, or its log cleaned up. Both depend
on the age of a commit, so the oldest undelivered commit gives the time that is left. A negative time means that the
files may be removed at any moment.
"""

import logging
import time
from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

from tailer.plan import Position

__all__ = ["Backlog", "VacuumWatch"]

_log = logging.getLogger(__name__)

_HOUR_MS: Final = 3_600_000
_WARN_BELOW: Final = 0.25  # of the retention time
_WARN_EVERY_S: Final = 600.0
_JOURNEYS: Final = 100  # 28 KB a pipeline


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


@dataclass(frozen=True, slots=True)
class Journey:
    """The way of the versions `first` to `last` to the sink, which were planned together.

    `appeared_s`: when the first one was committed to the table, by the clock of its writer; None: not known. `begun_s`:
    when planning began. `plan_s`: how long planning them held the pipeline up. `read_s`: how long it waited for their
    rows. `deliver_s`: the rest until the sink had committed them, also with other versions of the same transaction.
    Times are in seconds since 1970.
    """

    first: int
    last: int
    appeared_s: float | None
    begun_s: float
    plan_s: float
    read_s: float
    deliver_s: float


class _Planned(NamedTuple):
    """Versions that are planned and not committed. `read_s`: of the backlog, when they were planned."""

    first: int
    last: int
    size_bytes: int
    appeared_s: float | None
    planned_at_s: float
    plan_s: float
    read_s: float


class Backlog:
    """The versions that a pipeline has not delivered, as far as it knows. Times are in seconds since 1970.

    `position`: the sink's progress. `latest`: the newest version known. `caught_up_s`: when nothing was due last.
    `due_since_s`: since when something is due; None: nothing is. `level_since_s`: since when each look has found
    nothing newer; None: something is due, or the last look failed. `kept_s`: for how long VACUUM and log cleanup leave
    what a version needs; None: not known. `read_s`: for how long the pipeline has waited for rows, of all versions.
    `plan_s`: how long planning the next versions took. `journeys`: of the last versions, oldest first.
    """

    def __init__(self) -> None:
        self.position: Position | None = None
        self.latest: int | None = None
        self.caught_up_s: float | None = None
        self.due_since_s: float | None = None
        self.level_since_s: float | None = None
        self.kept_s: float | None = None
        self._oldest_s: float | None = None
        self.plan_s = self.read_s = 0.0
        self.journeys: deque[Journey] = deque(maxlen=_JOURNEYS)
        self._planned: deque[_Planned] = deque()

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
        return sum(planned.size_bytes for planned in tuple(self._planned))

    def age_s(self, now_s: float, looks: bool) -> float | None:
        """Return the age of the oldest change that may be undelivered; 0 at the newest version, None if not known.

        Unless the pipeline `looks` for new versions, it is the time since it was known to have everything.
        """
        if self._oldest_s is not None:
            return max(now_s - self._oldest_s, 0.0)
        if self.caught_up_s is None:
            return None
        return 0.0 if looks and self.due_since_s is None else max(now_s - self.caught_up_s, 0.0)

    def plan(self, first: int, last: int, oldest_ms: int | None, size_bytes: int, now_s: float) -> None:
        """Add the versions `first` to `last`, planned in `plan_s` seconds. The first was committed at `oldest_ms`."""
        self.latest = max(self.latest or 0, last)
        self.due_since_s = now_s if self.due_since_s is None else self.due_since_s
        self.level_since_s, appeared_s = None, None if oldest_ms is None else oldest_ms / 1000
        if self._oldest_s is None:
            self._oldest_s = appeared_s
        self._planned.append(_Planned(first, last, size_bytes, appeared_s, now_s, self.plan_s, self.read_s))

    def await_snapshot(self, version: int, now_s: float) -> None:
        """Note that all rows of `version` are due."""
        self.latest = max(self.latest or 0, version)
        self.due_since_s = now_s if self.due_since_s is None else self.due_since_s

    def deliver(self, position: Position, now_s: float | None = None) -> None:
        """Remove the versions that are complete at `position`. `now_s`: when the sink has committed them, if now."""
        self.position = position
        self.latest = max(self.latest or 0, position.version)
        whole = position.version + position.closes_version
        while self._planned and self._planned[0].last < whole:
            done = self._planned.popleft()
            # The rows of the next versions are read after these.
            read_s = (self._planned[0].read_s if self._planned else self.read_s) - done.read_s
            if now_s is not None:
                begun_s, rest_s = done.planned_at_s - done.plan_s, max(now_s - done.planned_at_s - read_s, 0.0)
                way = Journey(done.first, done.last, done.appeared_s, begun_s, done.plan_s, read_s, rest_s)
                self.journeys.append(way)
        if not self._planned:
            self._oldest_s = None

    def clear(self, version: int, now_s: float, has_progress: bool = True) -> None:
        """Note that `version` is the newest one and that nothing is due; `has_progress`: the sink knows that."""
        self.latest, self.caught_up_s, self.due_since_s, self._oldest_s = version, now_s, None, None
        self.position = Position.end(version) if version >= 0 and has_progress else self.position
        self.level_since_s = self.level_since_s or now_s
        self._planned.clear()

    def forget_plans(self) -> None:
        """Forget what is planned: the next session plans again."""
        self._planned.clear()
