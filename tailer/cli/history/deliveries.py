"""Durations of deliveries, as the running daemon remembers them."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from tailer.formats.inspection import CommitSummary

if TYPE_CHECKING:
    from tailer.daemon.page.history import JourneyReport

__all__ = ["delivery_seconds"]

# Times of commit files are made to increase, by milliseconds, from wherever a reader begins.
_TOLERANCE: Final = timedelta(seconds=1)


def delivery_seconds(commits: Sequence[CommitSummary], journeys: Sequence["JourneyReport"]) -> dict[int, float]:
    """Return the seconds from a commit until the sink had its version, of each version that `journeys` have."""
    times = {each.version: datetime.fromtimestamp(each.timestamp_ms / 1000, UTC) for each in commits}
    found = {}
    for each in journeys:
        if each.appeared is not None and abs(times.get(each.first, each.appeared) - each.appeared) > _TOLERANCE:
            continue  # a version of another branch, or of a table that was here before
        for version in times.keys() & range(each.first, each.last + 1):
            found[version] = max((each.delivered - times[version]).total_seconds(), 0.0)
    return found
