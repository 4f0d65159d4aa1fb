"""The undelivered part of a table, as far as its pipeline knows: how many versions, how old, how large."""

from collections import deque

from tailer.plan import Position

__all__ = ["Backlog"]


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
            return None
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

    def deliver(self, position: Position) -> None:
        """Remove the versions that are complete at `position`."""
        self.position = position
        self.latest = max(self.latest or 0, position.version)
        whole = position.version + position.closes_version
        while self._planned and self._planned[0][0] < whole:
            self._planned.popleft()
        if not self._planned:
            self._oldest_s = None

    def clear(self, version: int, now_s: float) -> None:
        """Note that `version` is the newest one, and delivered."""
        self.latest, self.caught_up_s, self.due_since_s, self._oldest_s = version, now_s, None, None
        self.position = Position.end(version) if version >= 0 else self.position
        self._planned.clear()

    def forget_plans(self) -> None:
        """Forget what is planned: the next session plans again."""
        self._planned.clear()
