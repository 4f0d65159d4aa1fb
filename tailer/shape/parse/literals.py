"""Literals of SQL as Spark reads them: numbers, texts with escapes, dates and timestamps."""

import math
import re
import sys
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Final

import pyarrow as pa

from tailer.shape.tree import Literal
from tailer.shape.types import DATE, MAX_DIGITS, TIMESTAMP, TIMESTAMP_NTZ

__all__ = ["literal_of", "moment", "number", "text_of"]

_NUMBER: Final = re.compile(r"-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2})|(.))|(''|\"\")", re.DOTALL)
_QUOTED: Final = re.compile(r"""[rR](?:'[^']*'|"[^"]*")|'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*\"""", re.DOTALL)
_CHARACTERS: Final = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": r"\%", "_": r"\_"}
_DATE: Final = r"(\d{4})-(\d{2})-(\d{2})"
_TIME: Final = r"(\d{2}):(\d{2}):(\d{2})(?:\.(\d{1,6}))?"
_ZONE: Final = r"(Z|[+-]\d{2}:\d{2})?"
_MOMENT: Final = re.compile(rf"{_DATE}(?:[ T]{_TIME}{_ZONE})?", re.ASCII)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def number(text: str) -> Literal:
    """Return a number without a suffix. Raises `ValueError` for one that no type has."""
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{text} is not a number")
    if "e" in text.lower():
        double = float(text)
        if math.isinf(double):
            raise ValueError(f"{text} is beyond the largest double")
        return Literal(double, pa.float64())
    if "." not in text:
        value = int(text)
        for kind, bits in ((pa.int32(), 31), (pa.int64(), 63)):
            if -(1 << bits) <= value < 1 << bits:
                return Literal(value, kind)
    exact = Decimal(text)
    _, digits, exponent = exact.as_tuple()
    scale = -int(exponent)
    precision = max(len(digits), scale)
    if precision > MAX_DIGITS:
        raise ValueError(f"{text} has more than {MAX_DIGITS} digits")
    return Literal(exact, pa.decimal128(precision, scale))


def text_of(raw: str) -> str:
    """Return the text that literals in quotes, one or several in a row, mean. Raises `ValueError` if there is none.

    A quote that is written twice is one, but not in a raw literal, which ends there.
    """
    text = "".join(map(_text, _QUOTED.finditer(raw)))
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise ValueError("this has one half of a character that takes two") from None


def _text(literal: re.Match[str]) -> str:
    quoted = literal[0]
    if quoted[0] in "rR":
        return quoted[2:-1]
    return _ESCAPE.sub(lambda escape: _unescaped(escape, quoted[0]), quoted[1:-1])


def _unescaped(escape: re.Match[str], quote: str) -> str:
    short, long, octal, plain, twice = escape.groups()
    if twice is not None:
        return quote if twice[0] == quote else twice
    if plain is not None:
        return _CHARACTERS.get(plain, plain)
    code = int(octal, 8) if octal else int(short or long, 16)
    if code > sys.maxunicode:
        raise ValueError(f"there is no character {escape[0]}")
    return chr(code)


def moment(text: str, kind: pa.DataType) -> Literal:
    """Return the date or timestamp that a text names. Raises `ValueError`; Spark reads more forms, we one of each."""
    parts = _MOMENT.fullmatch(text)
    if parts is None or (kind == DATE and parts[4]) or (kind == TIMESTAMP_NTZ and parts[8]):
        form = "2024-12-31" if kind == DATE else "2024-12-31 23:59:59.999999"
        raise ValueError(f"write it as {form}")
    day = date(int(parts[1]), int(parts[2]), int(parts[3]))
    days = (day - _EPOCH.date()).days
    if kind == DATE:
        return Literal(days, kind)
    hour, minute, second = (int(parts[place] or 0) for place in (4, 5, 6))
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError("there is no such time of day")
    micros = int((parts[7] or "0").ljust(6, "0"))
    since = timedelta(days=days, hours=hour, minutes=minute, seconds=second, microseconds=micros)
    return Literal((since - _offset(parts[8])) // timedelta(microseconds=1), kind)


def _offset(zone: str | None) -> timedelta:
    if zone in (None, "Z"):
        return timedelta()
    hours, minutes = int(zone[1:3]), int(zone[4:6])
    if hours > 18 or minutes > 59 or (hours == 18 and minutes):
        raise ValueError("there is no such offset of a time zone")
    return timedelta(hours=hours, minutes=minutes) * (-1 if zone[0] == "-" else 1)


def literal_of(scalar: pa.Scalar) -> Literal:
    """Return a value of Arrow as a literal."""
    kind = scalar.type
    if not scalar.is_valid:
        return Literal(None, kind)
    if kind in (DATE, TIMESTAMP, TIMESTAMP_NTZ):
        return Literal(scalar.value, kind)
    return Literal(scalar.as_py(), kind)
