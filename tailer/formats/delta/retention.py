"""Retention periods of a table: how long a lagging reader can still read a version.

VACUUM deletes data, change and deletion-vector files `delta.deletedFileRetentionDuration` after the commit that stopped
using them. Log cleanup deletes a commit file `delta.logRetentionDuration` after the commit. Change files and removed
data files are used by one commit only, so both may be deleted once the shorter period has passed since that commit.
Durations use the syntax of Spark SQL: `interval 1 week`, `interval 2 days 12 hours`.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

__all__ = ["kept_ms", "parse_interval", "retention_ms"]

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
    # Delta refuses months and years here because their length varies. Old tables may have them; assume the shortest.
    "month": 28 * _DAY_MS,
    "year": 365 * _DAY_MS,
}
# Property, in lower case -> default.
_DEFAULTS: Final[Mapping[str, str]] = {
    "delta.deletedfileretentionduration": "interval 1 week",
    "delta.logretentionduration": "interval 30 days",
}
_PART: Final = re.compile(r"(-?\d+(?:\.\d+)?)\s*([a-z]+?)s?(?:\s+|$)")


def retention_ms(properties: Mapping[str, str]) -> int:
    """Return the shorter of the two retentions, in milliseconds. `properties`: table properties by name in lower case.

    An invalid duration counts as the default: the result only decides when to warn.
    """
    return min(kept_ms(properties))


def kept_ms(properties: Mapping[str, str]) -> tuple[int, int]:
    """Return how long files that are not used any more are kept, and how long commits are. See `retention_ms`."""
    files, log = (_length(properties.get(name, default), default) for name, default in _DEFAULTS.items())
    return files, log


def _length(text: str, default: str) -> int:
    length = parse_interval(text)
    return _length(default, "interval 0 days") if length is None else length


@lru_cache(maxsize=64)  # each look at a table asks
def parse_interval(text: str) -> int | None:
    """Return the length of an interval in milliseconds; None for text that is not one."""
    rest = text.strip().lower().removeprefix("interval").strip()
    total, position = 0.0, 0
    while position < len(rest):
        part = _PART.match(rest, position)
        if part is None or part[2] not in _UNITS_MS:
            return None
        total += float(part[1]) * _UNITS_MS[part[2]]
        position = part.end()
    return round(total) if rest else None
