"""Text forms of numbers, dates and times, the same in every JSON that lake-tailer writes.

Dates are of the proleptic Gregorian calendar; years outside 0000 to 9999 carry a sign (`+10000-01-01`, `-0001-12-31`),
which is ISO 8601's expanded form. Everything is computed from integers, so that no date is out of range. Floats have
the fewest digits that read back as the same value, and always a point or an exponent.
"""

import math
import struct
from datetime import date
from fractions import Fraction
from typing import Final

__all__ = ["US_PER_DAY", "day_text", "double_text", "duration_text", "moment_text", "single_text", "time_text"]

US_PER_DAY: Final = 86_400_000_000
_DAYS_PER_ERA: Final = 146_097  # 400 years, after which the calendar repeats
_DAYS_TO_EPOCH: Final = 719_468  # from 0000-03-01 to 1970-01-01
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_FIRST_DAY: Final = date.min.toordinal() - _EPOCH_DAY
_LAST_DAY: Final = date.max.toordinal() - _EPOCH_DAY
# Between these, Python's text of a float has no exponent and is ours.
_REPR_IS_PLAIN: Final = 1e-4
_REPR_IS_LONG: Final = 1e10
_LARGEST_SINGLE: Final = 0x7F7F_FFFF  # the bits of the greatest finite float32
_SMALLEST_NORMAL: Final = 2.0**-126


def day_text(days: int) -> str:
    """Return the date `days` after 1970-01-01.

    In what `date` cannot hold, years are counted from March, so that the leap day ends a year, and the lengths of
    months follow one formula.
    """
    if _FIRST_DAY <= days <= _LAST_DAY:
        return date.fromordinal(_EPOCH_DAY + days).isoformat()
    era, day_of_era = divmod(days + _DAYS_TO_EPOCH, _DAYS_PER_ERA)
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month_from_march = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month_from_march + 2) // 5 + 1
    month = month_from_march + 3 if month_from_march < 10 else month_from_march - 9
    year = era * 400 + year_of_era + (month <= 2)
    sign = "+" if year > 9999 else "-" if year < 0 else ""
    return f"{sign}{abs(year):04}-{month:02}-{day:02}"


def time_text(count: int, digits: int = 6) -> str:
    """Return the time of day `count` units of 10^-`digits` seconds after midnight."""
    seconds, fraction = divmod(count, 10**digits)
    minutes, second = divmod(seconds, 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{second:02}{_fraction(fraction, digits)}"


def moment_text(count: int, digits: int = 6) -> str:
    """Return the date and time `count` units of 10^-`digits` seconds after 1970, without a zone."""
    days, rest = divmod(count, 86_400 * 10**digits)
    return f"{day_text(days)}T{time_text(rest, digits)}"


def duration_text(count: int, digits: int) -> str:
    """Return `count` units of 10^-`digits` seconds as an ISO 8601 duration of seconds."""
    seconds, fraction = divmod(abs(count), 10**digits)
    return f"{'-' if count < 0 else ''}PT{seconds}{_fraction(fraction, digits)}S"


def _fraction(count: int, digits: int) -> str:
    """Return the fraction of a second, with its point; nothing if a unit is a second."""
    return f".{count:0{digits}}" if digits else ""


def double_text(number: float) -> str:
    """Return a float64 as a JSON number; NaN and the infinities as JSON strings."""
    if _REPR_IS_PLAIN <= abs(number) < _REPR_IS_LONG:
        return repr(number)
    return _special(number) or _plain_or_scientific(repr(number))


def single_text(number: float) -> str:
    """Return a float32 as `double_text` does, with the digits that a float32 needs."""
    return _special(number) or _plain_or_scientific(_shortest_single(number))


def _special(number: float) -> str:
    if math.isfinite(number):
        return ""
    return '"NaN"' if math.isnan(number) else '"Infinity"' if number > 0 else '"-Infinity"'


def _plain_or_scientific(text: str) -> str:
    """Format the digits of `text`, plain from 1e-6 up to 1e10 and with an exponent elsewhere."""
    mantissa, _, power = text.lstrip("-").partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    point = int(power or 0) + len(digits) - len(fraction)  # the value is 0.DIGITS times ten to this power
    digits = digits.rstrip("0")
    sign = "-" if text.startswith("-") else ""
    if not digits:
        return f"{sign}0.0"
    if point > 10 or point < -5:
        tail = f".{digits[1:]}" if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{tail}e{point - 1:+d}"
    if point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    return f"{sign}{digits[:point].ljust(point, '0')}.{digits[point:] or '0'}"


def _shortest_single(number: float) -> str:
    """Find the fewest digits that read back as the float32 `number`, and of those the nearest."""
    if number == 0:
        return repr(number)
    if abs(number) >= _SMALLEST_NORMAL and _is_single(text := f"{number:.6g}", number):
        return text  # six digits survive a float32, so no shorter text is another one
    exact = Fraction(abs(number))
    low, high, ends_included = _single_interval(exact)
    leading = int(f"{abs(number):.17e}".partition("e")[2])
    for precision in range(1, 10):  # nine digits always suffice
        power = leading - precision + 1
        unit = Fraction(10) ** power
        near = (exact // unit, exact // unit + 1)
        fits = [
            digits for digits in near if low < digits * unit < high or (ends_included and digits * unit in (low, high))
        ]
        if fits:
            nearest = min(fits, key=lambda digits: (abs(digits * unit - exact), digits % 2))
            return f"{'-' if number < 0 else ''}{nearest}e{power}"
    raise AssertionError(number)


def _is_single(text: str, number: float) -> bool:
    """Return whether `text` reads as the float32 `number`."""
    try:
        single: float = struct.unpack("<f", struct.pack("<f", float(text)))[0]
    except OverflowError:
        return False
    return single == number


def _single_interval(number: Fraction) -> tuple[Fraction, Fraction, bool]:
    """Return the limits of the decimals that read as the positive float32 `number`.

    The last value is whether the limits themselves read so.
    """
    bits = int(struct.unpack("<I", struct.pack("<f", number))[0])
    below = _single(bits - 1)
    above = 2 * number - below if bits == _LARGEST_SINGLE else _single(bits + 1)
    return (below + number) / 2, (above + number) / 2, bits % 2 == 0


def _single(bits: int) -> Fraction:
    return Fraction(struct.unpack("<f", struct.pack("<I", bits))[0])
