"""Dates and timestamps as text, of any year and in each form that Spark casts and that leaves no doubt.

Spark writes years before 0 and from 10000 on in ISO 8601, with a sign and as many digits as needed: `+10000-01-01`,
`-0044-03-15 00:00:00`. All dates are in the proleptic Gregorian calendar, as in Spark. The year before 1 is 0. The last
parts may be left out: `2024-02` is the first of the month, `2024-02-29 12` is noon.
"""

import re
from typing import Final

__all__ = ["days_since_epoch", "micros_since_epoch"]

_OFFSET: Final = r"(?P<sign>[+-])(?P<zone_hour>\d{1,2})(?:(?::|(?<=[+-]\d\d))(?P<zone_minute>\d{2}))?"
_SECOND: Final = r"(?P<second>\d{1,2})(?:\.(?P<fraction>\d{0,6})0*)?"
_CLOCK: Final = rf"(?P<hour>\d{{1,2}})(?::(?P<minute>\d{{1,2}})(?::{_SECOND}(?: ?(?:Z|UTC|GMT|{_OFFSET}))?)?)?"
_YEAR: Final = r"(?P<year>[+-]?\d{4,7})"
_DAY: Final = re.compile(rf"{_YEAR}(?:-(?P<month>\d{{1,2}})(?:-(?P<day>\d{{1,2}}))?)?", re.ASCII)
_MOMENT: Final = re.compile(rf"{_YEAR}(?:-(?P<month>\d{{1,2}})(?:-(?P<day>\d{{1,2}})(?:[ T]{_CLOCK})?)?)?", re.ASCII)
_MONTH_DAYS: Final = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_DAYS_TO_1970: Final = 719_528  # from 0000-01-01
_LAST_OFFSET: Final = 18 * 60  # in minutes


def days_since_epoch(text: str) -> int | None:
    """Convert a date to days since 1970; None for text that is not a date."""
    found = _DAY.fullmatch(text)
    return None if found is None else _days(found)


def micros_since_epoch(text: str, *, zoned: bool) -> int | None:
    """Convert a timestamp to microseconds since 1970; None for text that is not one.

    `zoned`: whether its zone counts, and is UTC where it has none. Spark ignores the zone for a TIMESTAMP_NTZ.
    """
    found = _MOMENT.fullmatch(text)
    days = None if found is None else _days(found)
    if found is None or days is None:
        return None
    hour, minute, second = (int(found[name] or 0) for name in ("hour", "minute", "second"))
    offset = int(found["zone_hour"] or 0) * 60 + int(found["zone_minute"] or 0)
    if hour > 23 or minute > 59 or second > 59 or int(found["zone_minute"] or 0) > 59 or offset > _LAST_OFFSET:
        return None
    if zoned:
        minute += offset if found["sign"] == "-" else -offset
    seconds = ((days * 24 + hour) * 60 + minute) * 60 + second
    return seconds * 1_000_000 + int((found["fraction"] or "").ljust(6, "0"))


def _days(date: re.Match[str]) -> int | None:
    year, month, day = int(date["year"]), int(date["month"] or 1), int(date["day"] or 1)
    if not 1 <= month <= 12 or not 1 <= day <= _MONTH_DAYS[month - 1] + (month == 2 and _is_leap(year)):
        return None
    leap_days = -(-year // 4) - -(-year // 100) + -(-year // 400)  # from year 0 to the year before this one
    before = sum(_MONTH_DAYS[: month - 1]) + (month > 2 and _is_leap(year))
    return 365 * year + leap_days + before + day - 1 - _DAYS_TO_1970


def _is_leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
