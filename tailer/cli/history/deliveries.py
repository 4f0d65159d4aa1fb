"""Durations of deliveries, as the running daemon remembers them."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tailer.formats.inspection import CommitSummary

if TYPE_CHECKING:
    from tailer.daemon.page.history import JourneyReport

__all__ = ["delivery_seconds"]


def delivery_seconds(commits: Sequence[CommitSummary], journeys: Sequence["JourneyReport"]) -> dict[int, float]:
    """Return the seconds from a commit until the sink had its version, of each version that `journeys` have."""
    times = {each.version: datetime.fromtimestamp(each.timestamp_ms / 1000, UTC) for each in commits}
    found = {}
    for each in journeys:
        if each.appeared is not None and times.get(each.first, each.appeared) != each.appeared:
            continue  # a version of another branch, or of a table that was here before
        for version in times.keys() & range(each.first, each.last + 1):
            found[version] = max((each.delivered - times[version]).total_seconds(), 0.0)
    return found
