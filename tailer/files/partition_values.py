"""Partition values of the log as Arrow scalars (PROTOCOL.md, "Partition Value Serialization").

Spark casts the text in the log to the column's type, so writers may leave any text that the cast takes, such as ` 7 `.
What denotes a value exactly is read as Spark reads it. Where the cast would give null, or lose a fraction, digits or a
time of day, the text is refused (invariant 5).

Dates and timestamps may be of any year and in each form that Spark casts and that leaves no doubt. Spark writes years
before 0 and from 10000 on in ISO 8601, with a sign and as many digits as needed: `+10000-01-01`,
`-0044-03-15 00:00:00`. All dates are in the proleptic Gregorian calendar, as in Spark. The year before 1 is 0. The last
parts may be left out: `2024-02` is the first of the month, `2024-02-29 12` is noon.
"""

import re
from collections.abc import Mapping
from datetime import time
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Final

import pyarrow as pa

from tailer.errors import ChangesUnavailable
from tailer.events import type_text
from tailer.schema.text_types import padded

__all__ = ["days_since_epoch", "micros_since_epoch", "partition_scalar"]

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
    match = _DAY.fullmatch(text)
    return None if match is None else _days(match)


def micros_since_epoch(text: str, *, zoned: bool) -> int | None:
    """Convert a timestamp to microseconds since 1970; None for text that is not one.

    `zoned`: whether its zone counts, and is UTC where it has none. Spark ignores the zone for a TIMESTAMP_NTZ.
    """
    match = _MOMENT.fullmatch(text)
    days = None if match is None else _days(match)
    if match is None or days is None:
        return None
    hour, minute, second = (int(match[name] or 0) for name in ("hour", "minute", "second"))
    offset = int(match["zone_hour"] or 0) * 60 + int(match["zone_minute"] or 0)
    if hour > 23 or minute > 59 or second > 59 or int(match["zone_minute"] or 0) > 59 or offset > _LAST_OFFSET:
        return None
    if zoned:
        minute += offset if match["sign"] == "-" else -offset
    seconds = ((days * 24 + hour) * 60 + minute) * 60 + second
    return seconds * 1_000_000 + int((match["fraction"] or "").ljust(6, "0"))


def _days(date: re.Match[str]) -> int | None:
    year, month, day = int(date["year"]), int(date["month"] or 1), int(date["day"] or 1)
    if not 1 <= month <= 12 or not 1 <= day <= _MONTH_DAYS[month - 1] + (month == 2 and _is_leap(year)):
        return None
    leap_days = -(-year // 4) - -(-year // 100) + -(-year // 400)  # from year 0 to the year before this one
    before = sum(_MONTH_DAYS[: month - 1]) + (month > 2 and _is_leap(year))
    return 365 * year + leap_days + before + day - 1 - _DAYS_TO_1970


def _is_leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


_BLANKS: Final = "".join(map(chr, range(33)))  # what Spark's casts trim
_TRUTHS: Final = dict.fromkeys(("true", "t", "yes", "y", "1"), "true")
_BOOLEANS: Final = _TRUTHS | dict.fromkeys(("false", "f", "no", "n", "0"), "false")
_MOST_DIGITS: Final = 38  # of a decimal
_INTEGER: Final = re.compile(r"([+-]?)(\d+)(?:\.0*)?", re.ASCII)
_DECIMAL: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_FLOAT: Final = re.compile(rf"({_DECIMAL.pattern})[fFdD]?", re.ASCII)
_TIME: Final = re.compile(r"(?:[01]\d|2[0-3])(?::[0-5]\d){2}(?:\.\d{1,6})?", re.ASCII)
_NANOS: Final = re.compile(r"(.*\.\d{6})(\d{1,3})(.*)", re.ASCII)
_NOT_FINITE: Final[Mapping[str, str]] = {
    "nan": "nan",
    **dict.fromkeys(("inf", "+inf", "infinity", "+infinity"), "inf"),
    **dict.fromkeys(("-inf", "-infinity"), "-inf"),
}


def partition_scalar(text: str | None, column: pa.Field, table: str, version: int, path: str) -> pa.Scalar:
    """Parse the value that the log has for a partition `column` of the file at `path`.

    The empty text is null, unless the column is STRING or BINARY: Spark reads it there as it is. A timestamp without a
    zone is in UTC. Years may have a sign and more than four digits. A CHAR is padded. Raises `ChangesUnavailable` for
    text that is not a value of the column.
    """
    kind = column.type
    if text is None:
        return pa.scalar(None, kind)
    if pa.types.is_string(kind):
        return padded(pa.array([text], kind), column)[0]
    if pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        # Spark writes a binary partition value as if its bytes were UTF-8 text. Other bytes are lone surrogates.
        return pa.scalar(text.encode(errors="surrogateescape"), kind)
    if text == "":
        return pa.scalar(None, kind)
    scalar = _parse(text.strip(_BLANKS), kind)
    if scalar is None:
        value = f"the log entry of {path} has the partition value {text!r} for column {column.name}"
        reason = f"{value}, which is not exactly a value of {type_text(column.type)}: Spark reads null, or a part of it"
        raise ChangesUnavailable(table, version, reason)
    return scalar


def _parse(text: str, kind: pa.DataType) -> pa.Scalar | None:
    """Return the value of `kind` that a text denotes exactly; None where it denotes none."""
    if pa.types.is_date32(kind):
        return _counted(days_since_epoch(text), pa.int32(), kind)
    if pa.types.is_timestamp(kind):
        return _counted(_moment(text, kind), pa.int64(), kind)
    if pa.types.is_time(kind):
        return pa.scalar(time.fromisoformat(text), kind) if _TIME.fullmatch(text) else None
    plain = _plain(text, kind)
    if plain is None:
        return None
    if pa.types.is_decimal(kind):
        return _decimal(plain, kind)
    try:
        scalar = pa.array([plain]).cast(kind)[0]
    except pa.ArrowInvalid:  # out of the range of the type
        return None
    overflows = pa.types.is_floating(kind) and plain not in _NOT_FINITE and abs(scalar.as_py()) == float("inf")
    return None if overflows else scalar


def _moment(text: str, kind: pa.TimestampType) -> int | None:
    """Return the micro- or nanoseconds since 1970, as the type counts; None for text that is not a timestamp."""
    is_nanos = kind.unit == "ns"
    match = _NANOS.fullmatch(text) if is_nanos else None
    micros = micros_since_epoch(text if match is None else match[1] + match[3], zoned=kind.tz is not None)
    if micros is None or not is_nanos:
        return micros
    return micros * 1000 + (0 if match is None else int(match[2].ljust(3, "0")))


def _counted(value: int | None, storage: pa.DataType, kind: pa.DataType) -> pa.Scalar | None:
    limit = 1 << storage.bit_width - 1
    return None if value is None or not -limit <= value < limit else pa.array([value], storage).view(kind)[0]


def _decimal(text: str, kind: pa.Decimal128Type) -> pa.Scalar | None:
    """Return the decimal that a text denotes exactly. Arrow's cast overflows where a text has more than 38 digits."""
    exact = Context(prec=kind.precision, traps=[Inexact, InvalidOperation])
    try:
        number = Decimal(text)
        decimal = number.quantize(Decimal((0, (1,), -kind.scale)), context=exact)
    except (Inexact, InvalidOperation):
        return None
    # Spark reads null for a zero with a large exponent.
    return None if number.adjusted() >= _MOST_DIGITS else pa.array([decimal], kind)[0]


def _plain(text: str, kind: pa.DataType) -> str | None:
    """Return a text as Arrow reads it; None where it is no boolean or number as Spark's cast takes them."""
    if pa.types.is_boolean(kind):
        return _BOOLEANS.get(text.lower())
    if pa.types.is_integer(kind):
        integer = _INTEGER.fullmatch(text)
        return None if integer is None else integer[1].removeprefix("+") + integer[2]
    if pa.types.is_decimal(kind):
        return text if _DECIMAL.fullmatch(text) else None
    if pa.types.is_floating(kind):
        number = _FLOAT.fullmatch(text)
        return _NOT_FINITE.get(text.lower()) if number is None else number[1]
    return None
