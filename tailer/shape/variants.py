"""Values at paths in Variants, in types of SQL, as Spark's `variant_get` converts them.

A value that Spark converts, but for which there is no exact rule here, makes the expression fail, also with
`try_variant_get`: it is never read as something else, nor as null. These are objects, arrays and floating-point numbers
as text, floating-point numbers as decimals, numbers as timestamps, and texts in unusual forms of a type.
"""

import math
import re
from collections.abc import Callable
from datetime import date
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from functools import partial
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from tailer.shape.tree import Values
from tailer.shape.types import BOOLEAN, DATE, STRING, TIMESTAMP
from tailer.variant import Date, InvalidVariant, Timestamp, Variant, VariantType
from tailer.variant.scalars import primitives
from tailer.variant.text import US_PER_DAY, day_text, moment_text

__all__ = ["VARIANT_KINDS", "value_at"]

Convert = Callable[[Any], Any]
"""Converts a value; None: it has no such value. Raises `pa.ArrowInvalid` where Spark may have one."""

VARIANT_KINDS: Final = (STRING, pa.int32(), pa.int64(), pa.float64(), BOOLEAN, DATE, TIMESTAMP)  # and decimals

_BLANKS: Final = "".join(map(chr, (*range(33), 127)))  # that Spark leaves out at both ends of a text
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_DECIMAL: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_DATE: Final = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_TIME: Final = re.compile(r"[ T]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,6}))?Z?")
_TRUE: Final = frozenset(["t", "true", "y", "yes", "1"])
_FALSE: Final = frozenset(["f", "false", "n", "no", "0"])
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_FIRST_DAY: Final = date.min.toordinal() - _EPOCH_DAY
_LAST_DAY: Final = date.max.toordinal() - _EPOCH_DAY
_WIDE: Final = Context(prec=200)


def value_at(is_strict: bool, kind: pa.DataType, variants: Values, path: Values) -> Values:
    """Return the values at a path in Variants as `kind`: null where there is none, or the Variant null.

    `path`: one text. `is_strict`: whether a value that `kind` does not have is an error; otherwise it is null. Raises
    `pa.ArrowInvalid`.
    """
    steps, convert = path.as_py(), _conversion(kind)
    metadata, values = (pc.struct_field(variants, name).to_pylist() for name in ("metadata", "value"))
    results: list[Any] = []
    for names, data in zip(metadata, values, strict=True):
        value = None if names is None or data is None else _decoded(names, data, steps)
        converted = None if value is None else convert(value)
        if converted is None and value is not None and is_strict:
            raise pa.ArrowInvalid(f"a Variant has no value of {kind}")
        results.append(converted)
    if kind in (DATE, TIMESTAMP):
        return pa.array(results, pa.int32() if kind == DATE else pa.int64()).view(kind)
    return pa.array(results, kind)


class _Form:
    """Values as `_conversion` takes them."""

    def int64(self, number: int) -> object:
        return number

    def double(self, number: float) -> object:
        return number

    single = double

    def decimal(self, number: Decimal) -> object:
        return number

    def date(self, days: int) -> object:
        return Date(days)

    def time(self, us: int) -> object:
        raise _unclear()

    def timestamp(self, count: int, digits: int, is_utc: bool) -> object:
        if digits != 6:
            raise _unclear()
        return Timestamp(count, digits, is_utc)

    def uuid(self, data: bytes) -> object:
        return str(UUID(bytes=data))

    def binary(self, data: bytes) -> object:
        return data


_PRIMITIVES: Final = primitives(_Form())
_CONTAINER: Final = object()


def _decoded(metadata: bytes, data: bytes, path: str) -> Any:
    """Return the value at a path; None where there is none, or the Variant null."""
    try:
        value = Variant(metadata, data).get(path)
        if value is None:
            return None
        return _CONTAINER if value.type in (VariantType.OBJECT, VariantType.ARRAY) else value.decoded(_PRIMITIVES)
    except InvalidVariant:
        raise pa.ArrowInvalid("a Variant is malformed") from None


def _unclear() -> pa.ArrowInvalid:
    return pa.ArrowInvalid("there is no exact conversion of a Variant")


def _conversion(kind: pa.DataType) -> Convert:
    if pa.types.is_integer(kind):
        return partial(_integer, 1 << kind.bit_width - 1)
    if pa.types.is_decimal(kind):
        return partial(_decimal, Context(prec=kind.precision, rounding=ROUND_HALF_UP), Decimal((0, (1,), -kind.scale)))
    return {pa.float64(): _double, BOOLEAN: _boolean, STRING: _text, DATE: _date, TIMESTAMP: _timestamp}[kind]


def _integer(limit: int, value: Any) -> int | None:
    if isinstance(value, str):
        text = value.strip(_BLANKS)
        value = int(text) if _INTEGER.fullmatch(text) and len(text) < 100 else None
    elif isinstance(value, float) and math.isfinite(value):
        # As in Spark, 2^63 is the largest of 64 bits, which it is not: as a double both are one number.
        value = min(int(value), limit - 1) if math.floor(value) <= float(limit - 1) else None
    elif isinstance(value, Timestamp):
        raise _unclear()
    elif isinstance(value, Decimal):
        value = int(value)
    return int(value) if isinstance(value, int) and -limit <= value < limit else None


def _double(value: Any) -> float | None:
    if isinstance(value, str):
        text = value.strip(_BLANKS)
        if _DECIMAL.fullmatch(text):
            return float(text)
        _check_meaningless(text, "xXdDfFnN")  # hexadecimal, with a suffix, infinite, NaN
        return None
    if isinstance(value, Timestamp):
        raise _unclear()
    return float(value) if isinstance(value, int | float | Decimal) else None


def _boolean(value: Any) -> bool | None:
    if isinstance(value, str):
        text = value.strip(_BLANKS).lower()
        return True if text in _TRUE else False if text in _FALSE else None
    if isinstance(value, Timestamp):
        raise _unclear()
    return value != 0 if isinstance(value, int | float | Decimal) else None


def _decimal(context: Context, last_digit: Decimal, value: Any) -> Decimal | None:
    if isinstance(value, str):
        text = value.strip(_BLANKS)
        if not _DECIMAL.fullmatch(text):
            _check_meaningless(text, "")
            return None
        value = _WIDE.create_decimal(text)
        if len(text) > _WIDE.prec or abs(value.adjusted()) > _WIDE.prec:
            raise _unclear()
    elif isinstance(value, float | Timestamp):
        raise _unclear()
    if not isinstance(value, int | Decimal):
        return None
    try:
        return Decimal(value).quantize(last_digit, context=context)
    except InvalidOperation:  # too many digits
        return None


def _date(value: Any) -> int | None:
    if isinstance(value, Date):
        return value.days
    if isinstance(value, Timestamp):
        return value.count // US_PER_DAY
    if not isinstance(value, str):
        return None
    text = value.strip(_BLANKS)
    if _DATE.fullmatch(text):
        return _days(text)
    _check_meaningless(text[:1], "0123456789+-")
    return None


def _timestamp(value: Any) -> int | None:
    if isinstance(value, Timestamp):
        return value.count
    if isinstance(value, Date):
        return value.days * US_PER_DAY
    if isinstance(value, bool | int | float | Decimal):
        raise _unclear()
    if not isinstance(value, str):
        return None
    text = value.strip(_BLANKS)
    if _DATE.fullmatch(text):
        return None if (days := _days(text)) is None else days * US_PER_DAY
    day, time = _DATE.match(text), _TIME.fullmatch(text, 10)
    if day is None or time is None:
        _check_meaningless(text, "0123456789", "epoch", "now", "today", "yesterday", "tomorrow")
        return None
    hour, minute, second = map(int, time.groups()[:3])
    if (days := _days(text)) is None or hour > 23 or minute > 59 or second > 59:
        return None
    return ((days * 24 + hour) * 60 + minute) * 60_000_000 + second * 1_000_000 + int((time[4] or "").ljust(6, "0"))


def _days(text: str) -> int | None:
    """Return the days since 1970 of a text that begins with a date; None: there is no such day."""
    if text.startswith("0000"):  # Spark has this year, and Python has not
        raise _unclear()
    try:
        return date.fromisoformat(text[:10]).toordinal() - _EPOCH_DAY
    except ValueError:
        return None


def _check_meaningless(text: str, characters: str, *words: str) -> None:
    """Raise unless a text has none of the characters and words with which Spark may read it as a value."""
    if any(char in text for char in characters) or any(word in text.lower() for word in words) or not text.isascii():
        raise _unclear()


def _text(value: Any) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, Decimal):
        return format(value.normalize(_WIDE), "f")
    if isinstance(value, Date) and _FIRST_DAY <= value.days <= _LAST_DAY:
        return day_text(value.days)
    if isinstance(value, Timestamp) and _FIRST_DAY <= value.count // US_PER_DAY <= _LAST_DAY:
        return moment_text(value.count).replace("T", " ").rstrip("0").rstrip(".")
    if isinstance(value, bytes):
        try:
            return str(value, "utf-8")
        except UnicodeDecodeError:
            raise _unclear() from None
    raise _unclear()
