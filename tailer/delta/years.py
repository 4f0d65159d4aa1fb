"""Dates and timestamps as text, in years that Arrow does not read: those before 0 and from 10000 on.

Spark writes them as ISO 8601 has them, with a sign and as many digits as it takes: `+10000-01-01`, `-0044-03-15
00:00:00`. All days count by today's calendar, as Spark's do. The year before 1 is 0.
"""

import re
from typing import Final

__all__ = ["days_since_epoch", "micros_since_epoch"]

_DATE: Final = r"(?P<year>[+-]?\d{4,7})-(?P<month>\d{1,2})-(?P<day>\d{1,2})"
_CLOCK: Final = r"(?P<hour>\d{1,2}):(?P<minute>\d{2}):(?P<second>\d{2})(?:\.(?P<fraction>\d{1,6}))?"
_ZONE: Final = r"(?P<zone>Z|(?P<sign>[+-])(?P<zone_hour>\d{2}):?(?P<zone_minute>\d{2}))"
_DAY: Final = re.compile(_DATE, re.ASCII)
_MOMENT: Final = re.compile(rf"{_DATE}(?:[ T]{_CLOCK})?{_ZONE}?", re.ASCII)
_MONTH_DAYS: Final = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_DAYS_TO_1970: Final = 719_528  # from 0000-01-01


def days_since_epoch(text: str) -> int | None:
    """A date in days since 1970; None where the text is none."""
    found = _DAY.fullmatch(text)
    return None if found is None else _days(found)


def micros_since_epoch(text: str) -> int | None:
    """A timestamp, without a zone taken as UTC, in microseconds since 1970; None where the text is none."""
    found = _MOMENT.fullmatch(text)
    days = None if found is None else _days(found)
    if found is None or days is None:
        return None
    part = {name: int(value or 0) for name, value in found.groupdict().items() if name not in ("zone", "sign")}
    if part["hour"] > 23 or part["minute"] > 59 or part["second"] > 59:
        return None
    if part["zone_hour"] > 18 or part["zone_minute"] > 59:
        return None
    ahead_s = (part["zone_hour"] * 60 + part["zone_minute"]) * 60
    seconds = ((days * 24 + part["hour"]) * 60 + part["minute"]) * 60 + part["second"]
    seconds += ahead_s if found["sign"] == "-" else -ahead_s
    return seconds * 1_000_000 + int((found["fraction"] or "").ljust(6, "0"))


def _days(date: re.Match[str]) -> int | None:
    year, month, day = int(date["year"]), int(date["month"]), int(date["day"])
    if not 1 <= month <= 12 or not 1 <= day <= _MONTH_DAYS[month - 1] + (month == 2 and _is_leap(year)):
        return None
    leap_days = -(-year // 4) - -(-year // 100) + -(-year // 400)  # of the years from 0 on, before this one
    before = sum(_MONTH_DAYS[: month - 1]) + (month > 2 and _is_leap(year))
    return 365 * year + leap_days + before + day - 1 - _DAYS_TO_1970


def _is_leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
