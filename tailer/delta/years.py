"""Dates and timestamps as text, in years that Arrow cannot parse: before 0, and from 10000 on.

Spark writes these in ISO 8601, with a sign and as many digits as needed: `+10000-01-01`, `-0044-03-15 00:00:00`. All
dates are in the proleptic Gregorian calendar, as in Spark. The year before 1 is 0.
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
    """Convert a date to days since 1970; None for text that is not a date."""
    found = _DAY.fullmatch(text)
    return None if found is None else _days(found)


def micros_since_epoch(text: str) -> int | None:
    """Convert a timestamp to microseconds since 1970; None for text that is not one. Without a zone it is UTC."""
    found = _MOMENT.fullmatch(text)
    days = None if found is None else _days(found)
    if found is None or days is None:
        return None
    part = {name: int(value or 0) for name, value in found.groupdict().items() if name not in ("zone", "sign")}
    if part["hour"] > 23 or part["minute"] > 59 or part["second"] > 59:
        return None
    if part["zone_hour"] > 18 or part["zone_minute"] > 59:
        return None
    zone_s = (part["zone_hour"] * 60 + part["zone_minute"]) * 60
    seconds = ((days * 24 + part["hour"]) * 60 + part["minute"]) * 60 + part["second"]
    seconds += zone_s if found["sign"] == "-" else -zone_s
    return seconds * 1_000_000 + int((found["fraction"] or "").ljust(6, "0"))


def _days(date: re.Match[str]) -> int | None:
    year, month, day = int(date["year"]), int(date["month"]), int(date["day"])
    if not 1 <= month <= 12 or not 1 <= day <= _MONTH_DAYS[month - 1] + (month == 2 and _is_leap(year)):
        return None
    leap_days = -(-year // 4) - -(-year // 100) + -(-year // 400)  # from year 0 to the year before this one
    before = sum(_MONTH_DAYS[: month - 1]) + (month > 2 and _is_leap(year))
    return 365 * year + leap_days + before + day - 1 - _DAYS_TO_1970


def _is_leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
