"""Commits added up: one by one, or those of each hour or day."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from tailer.formats.inspection import CommitSummary

__all__ = ["By", "Period", "periods_of"]


_MOST_EMPTY: Final = 100  # periods without a commit that are shown, for each commit


class By(StrEnum):
    """A line of a history."""

    COMMIT = "commit"
    HOUR = "hour"
    DAY = "day"


@dataclass(frozen=True, slots=True)
class Count:
    """A number of rows. `unknown`: the commits that changed rows without saying how many, which are not in it."""

    rows: int = 0
    unknown: int = 0

    @classmethod
    def of(cls, counts: Iterable[int | None]) -> "Count":
        """Add up numbers, of which some may not be known."""
        listed = list(counts)
        return cls(sum(number for number in listed if number is not None), listed.count(None))

    def __str__(self) -> str:
        if not self.unknown:
            return f"{self.rows:,}"
        return f"{self.rows:,}+" if self.rows else "unknown"


@dataclass(frozen=True, slots=True)
class Period:
    """One line of a history: a commit, or those of an hour or a day, which may be none. `begin`: in UTC."""

    begin: datetime
    by: By
    commits: Sequence[CommitSummary]

    @property
    def when(self) -> str:
        """The time, as far as the line is that exact."""
        return self.begin.strftime({By.COMMIT: "%Y-%m-%d %H:%M:%S", By.HOUR: "%Y-%m-%d %H:00"}.get(self.by, "%Y-%m-%d"))

    @property
    def versions(self) -> str:
        """The version, or the first and the last one."""
        if not self.commits:
            return "-"
        first, last = self.commits[0].version, self.commits[-1].version
        return str(first) if first == last else f"{first} to {last}"

    @property
    def operations(self) -> str:
        """The operation; of several commits the operations, each with its number, the most frequent first."""
        counts = Counter(commit.operation or "unnamed" for commit in self.commits)
        if len(self.commits) == 1 or not counts:
            return next(iter(counts), "-")
        return ", ".join(f"{number} {name}" for name, number in counts.most_common())

    @property
    def authors(self) -> str:
        """The users or programs that wrote, the most frequent first."""
        counts = Counter(commit.author or "unknown" for commit in self.commits)
        return ", ".join(name for name, _ in counts.most_common()) or "-"

    @property
    def inserted(self) -> Count:
        return Count.of(commit.rows.inserted for commit in self.commits)

    @property
    def updated(self) -> Count:
        return Count.of(commit.rows.updated for commit in self.commits)

    @property
    def deleted(self) -> Count:
        return Count.of(commit.rows.deleted for commit in self.commits)

    @property
    def added_bytes(self) -> int:
        """The size of the files that were added."""
        return sum(commit.added_bytes for commit in self.commits)

    @property
    def known_rows(self) -> int:
        """All changed rows whose number is known."""
        return self.inserted.rows + self.updated.rows + self.deleted.rows

    def values(self) -> dict[str, Any]:
        """Return the line as JSON-ready values: of a single commit None where a number is not known."""
        counts = {"inserted": self.inserted, "updated": self.updated, "deleted": self.deleted}
        single = self.by is By.COMMIT
        return {
            "time": self.begin.isoformat().replace("+00:00", "Z"),
            "first_version": self.commits[0].version if self.commits else None,
            "last_version": self.commits[-1].version if self.commits else None,
            "commits": len(self.commits),
            "operations": dict(Counter(commit.operation for commit in self.commits if commit.operation)),
            "authors": sorted({commit.author for commit in self.commits if commit.author}),
            **{name: None if single and count.unknown else count.rows for name, count in counts.items()},
            "commits_with_unknown_rows": max(count.unknown for count in counts.values()),
            "added_bytes": self.added_bytes,
        }


def periods_of(commits: Sequence[CommitSummary], by: By) -> list[Period]:
    """Return a line for each commit; or for each hour or day from the first commit to the last, also without any."""
    moments = [datetime.fromtimestamp(commit.timestamp_ms / 1000, UTC) for commit in commits]
    if by is By.COMMIT or not commits:
        return [Period(moment, by, [commit]) for moment, commit in zip(moments, commits, strict=True)]
    step = timedelta(hours=1) if by is By.HOUR else timedelta(days=1)
    by_moment: dict[datetime, list[CommitSummary]] = {}
    for moment, commit in zip(moments, commits, strict=True):
        hour = moment.replace(minute=0, second=0, microsecond=0)
        by_moment.setdefault(hour if by is By.HOUR else hour.replace(hour=0), []).append(commit)
    begin, last = min(by_moment), max(by_moment)
    if (last - begin) / step > len(commits) * _MOST_EMPTY:
        return [Period(moment, by, by_moment[moment]) for moment in sorted(by_moment)]
    lines = []
    while begin <= last:
        lines.append(Period(begin, by, by_moment.get(begin, [])))
        begin += step
    return lines
