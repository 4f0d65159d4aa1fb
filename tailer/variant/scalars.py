"""Primitive values: how they are encoded, and the forms that they take (Variant Encoding, "Encoding types").

A `Form` turns dates, numbers and the like into what its user wants: Python's values, or JSON. `primitives` makes the
decoders of a form, by the type's number. A decoder takes the buffer and the place after the header, and returns the
value and the place after it, which its caller checks.
"""

import struct
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, Protocol

from msgspec import Raw
from typing_extensions import override

from tailer.variant.metadata import InvalidVariant
from tailer.variant.text import US_PER_DAY, day_text, double_text, moment_text, single_text, time_text

__all__ = ["Date", "Form", "JsonForm", "Primitive", "PythonForm", "Timestamp", "check_time", "primitives"]

Primitive = Callable[[bytes, int], tuple[Any, int]]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_DIGITS: Final = {4: 9, 8: 18, 16: 38}
_MAX_SCALE: Final = 38
_TYPES: Final = 64


@dataclass(frozen=True, slots=True)
class Date:
    """A date that Python's `date` cannot hold: `days` after 1970-01-01."""

    days: int

    def __str__(self) -> str:
        return day_text(self.days)


@dataclass(frozen=True, slots=True)
class Timestamp:
    """A moment that Python's `datetime` cannot hold: `count` units of 10^-`digits` seconds after 1970.

    `is_utc`: whether it is an instant; otherwise a date and time without a zone.
    """

    count: int
    digits: int
    is_utc: bool

    def __str__(self) -> str:
        return moment_text(self.count, self.digits) + ("Z" if self.is_utc else "")


class Form(Protocol):
    """The forms of values that differ from one user to the next. Null, booleans and texts are Python's.

    So are integers of up to 32 bits, and in most forms those of 64.
    """

    def int64(self, number: int) -> object:
        """Return the form of an integer that is encoded in 64 bits."""
        return number

    def double(self, number: float) -> object:
        """Return the form of a float64."""
        ...

    def single(self, number: float) -> object:
        """Return the form of a float32."""
        ...

    def decimal(self, number: Decimal) -> object:
        """Return the form of a decimal."""
        ...

    def date(self, days: int) -> object:
        """Return the form of the date `days` after 1970-01-01."""
        ...

    def time(self, us: int) -> object:
        """Return the form of a time of day in microseconds."""
        ...

    def timestamp(self, count: int, digits: int, is_utc: bool) -> object:
        """Return the form of a moment; see `Timestamp`."""
        ...

    def uuid(self, data: bytes) -> object:
        """Return the form of a UUID of 16 bytes."""
        ...

    def binary(self, data: bytes) -> object:
        """Return the form of bytes."""
        ...


class PythonForm(Form):
    """Python's values. What `date` and `datetime` cannot hold exactly is a `Date` or `Timestamp`."""

    @override
    def double(self, number: float) -> object:
        return number

    single = double

    @override
    def decimal(self, number: Decimal) -> object:
        return number

    @override
    def date(self, days: int) -> object:
        try:
            return date.fromordinal(_EPOCH_DAY + days)
        except (ValueError, OverflowError):
            return Date(days)

    @override
    def time(self, us: int) -> object:
        seconds, fraction = divmod(us, 1_000_000)
        return time(seconds // 3600, seconds // 60 % 60, seconds % 60, fraction)

    @override
    def timestamp(self, count: int, digits: int, is_utc: bool) -> object:
        if digits != 6:
            return Timestamp(count, digits, is_utc)
        try:
            moment = _EPOCH + timedelta(microseconds=count)
        except OverflowError:
            return Timestamp(count, digits, is_utc)
        return moment if is_utc else moment.replace(tzinfo=None)

    @override
    def uuid(self, data: bytes) -> object:
        return uuid.UUID(bytes=data)

    @override
    def binary(self, data: bytes) -> object:
        return data


@dataclass(frozen=True, slots=True)
class JsonForm(Form):
    """Values that msgspec writes as JSON.

    `quotes_decimals`: whether decimals are texts, of which readers keep every digit; `quotes_int64`: the same for
    integers that are encoded in 64 bits.
    """

    quotes_decimals: bool = True
    quotes_int64: bool = False

    @override
    def int64(self, number: int) -> object:
        return str(number) if self.quotes_int64 else number

    @override
    def double(self, number: float) -> object:
        return Raw(double_text(number))

    @override
    def single(self, number: float) -> object:
        return Raw(single_text(number))

    @override
    def decimal(self, number: Decimal) -> object:
        text = format(number, "f")
        return text if self.quotes_decimals else Raw(text)

    @override
    def date(self, days: int) -> object:
        return day_text(days)

    @override
    def time(self, us: int) -> object:
        return time_text(us)

    @override
    def timestamp(self, count: int, digits: int, is_utc: bool) -> object:
        return moment_text(count, digits) + ("Z" if is_utc else "")

    @override
    def uuid(self, data: bytes) -> object:
        return str(uuid.UUID(bytes=data))

    @override
    def binary(self, data: bytes) -> object:
        return data


def primitives(form: Form) -> Sequence[Primitive]:
    """Return the decoder of each of the 64 types that a header can name."""
    decoders = {
        0: _constant(None),
        1: _constant(True),
        2: _constant(False),
        3: _fixed("<b", _unchanged),
        4: _fixed("<h", _unchanged),
        5: _fixed("<i", _unchanged),
        6: _fixed("<q", form.int64),
        7: _fixed("<d", form.double),
        8: _decimal(4, form.decimal),
        9: _decimal(8, form.decimal),
        10: _decimal(16, form.decimal),
        11: _fixed("<i", form.date),
        12: _fixed("<q", lambda count: form.timestamp(count, 6, True)),
        13: _fixed("<q", lambda count: form.timestamp(count, 6, False)),
        14: _fixed("<f", form.single),
        15: _sized(form.binary),
        16: _sized(lambda data: str(data, "utf-8")),
        17: _fixed("<q", lambda us: form.time(check_time(us))),
        18: _fixed("<q", lambda count: form.timestamp(count, 9, True)),
        19: _fixed("<q", lambda count: form.timestamp(count, 9, False)),
        20: _fixed("16s", form.uuid),
    }
    return [decoders.get(number) or _unknown(number) for number in range(_TYPES)]


def check_time(us: int) -> int:
    """Return a time of day as it is. Raises `InvalidVariant` where no day has it."""
    if not 0 <= us < US_PER_DAY:
        raise InvalidVariant(f"a time of day is {us} microseconds")
    return us


def _unchanged(value: object) -> object:
    return value


def _constant(value: object) -> Primitive:
    return lambda _data, place: (value, place)


def _unknown(number: int) -> Primitive:
    def refuse(_data: bytes, _at: int) -> tuple[Any, int]:
        raise InvalidVariant(f"a value has the unknown type {number}")

    return refuse


def _fixed(layout: str, form: Callable[[Any], object]) -> Primitive:
    """Return a decoder of values in one of `struct`'s layouts."""
    unpack, size = struct.Struct(layout).unpack_from, struct.calcsize(layout)
    return lambda data, place: (form(unpack(data, place)[0]), place + size)


def _sized(form: Callable[[bytes], object]) -> Primitive:
    """Return a decoder of bytes after their number."""

    def decode(data: bytes, place: int) -> tuple[Any, int]:
        start = place + 4
        end = start + int.from_bytes(data[place:start], "little")
        if end > len(data) or start > len(data):
            raise InvalidVariant("a text or binary is longer than what holds it")
        return form(data[start:end]), end

    return decode


def _decimal(size: int, form: Callable[[Decimal], object]) -> Primitive:
    """Return a decoder of decimals with unscaled values of `size` bytes."""
    limit = 10 ** _DIGITS[size]

    def decode(data: bytes, place: int) -> tuple[Any, int]:
        end = place + 1 + size
        if end > len(data):
            raise InvalidVariant("a decimal ends early")
        scale, unscaled = data[place], int.from_bytes(data[place + 1 : end], "little", signed=True)
        if scale > _MAX_SCALE:
            raise InvalidVariant(f"a decimal has the scale {scale}; 38 is the largest")
        if not -limit < unscaled < limit:
            raise InvalidVariant(f"a decimal of {size} bytes has more than {_DIGITS[size]} digits")
        # From a text it is exact; Python's arithmetic rounds to 28 digits.
        return form(Decimal(f"{unscaled}E-{scale}")), end

    return decode
