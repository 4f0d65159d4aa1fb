"""How long a table keeps what a reader that is behind still needs.

VACUUM removes data, change and deletion-vector files a while (`delta.deletedFileRetentionDuration`) after the commit
that stopped needing them; the log is cleaned up a while (`delta.logRetentionDuration`) after a commit. A change file is
needed by its own commit only, and so is a removed data file: both may go when the shorter of the two has passed since
that commit. Durations are written as Spark's SQL does: `interval 1 week`, `interval 2 days 12 hours`.
"""

import re
from collections.abc import Mapping
from typing import Final

__all__ = ["parse_interval", "retention_ms"]

_SECOND_MS: Final = 1000
_DAY_MS: Final = 24 * 60 * 60 * _SECOND_MS
_UNITS_MS: Final[Mapping[str, float]] = {
    "microsecond": 0.001,
    "millisecond": 1,
    "second": _SECOND_MS,
    "minute": 60 * _SECOND_MS,
    "hour": 60 * 60 * _SECOND_MS,
    "day": _DAY_MS,
    "week": 7 * _DAY_MS,
    # Delta refuses months and years here, whose length is not fixed; in old tables they count as short ones.
    "month": 28 * _DAY_MS,
    "year": 365 * _DAY_MS,
}
# Property, in lower case, to what holds where it is not set.
_KEPT: Final[Mapping[str, str]] = {
    "delta.deletedfileretentionduration": "interval 1 week",
    "delta.logretentionduration": "interval 30 days",
}
_PART: Final = re.compile(r"(-?\d+(?:\.\d+)?)\s*([a-z]+?)s?(?:\s+|$)")


def retention_ms(properties: Mapping[str, str]) -> int:
    """The shorter of the two retentions, in milliseconds. `properties`: table properties by name in lower case.

    A duration that cannot be read counts as the default: it only decides when to warn.
    """
    kept = []
    for name, default in _KEPT.items():
        duration = parse_interval(properties.get(name, default))
        kept.append(parse_interval(default) if duration is None else duration)
    return min(duration for duration in kept if duration is not None)


def parse_interval(text: str) -> int | None:
    """The length of an interval in milliseconds; None for text that is not one."""
    rest = text.strip().lower().removeprefix("interval").strip()
    total, at = 0.0, 0
    while at < len(rest):
        part = _PART.match(rest, at)
        if part is None or part[2] not in _UNITS_MS:
            return None
        total += float(part[1]) * _UNITS_MS[part[2]]
        at = part.end()
    return round(total) if rest else None
