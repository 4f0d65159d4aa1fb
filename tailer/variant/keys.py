"""Keys of values: texts that are equal if, and only if, the decoded values are.

Writers encode one value in several ways, and rewriting a file may change the encoding. The specification names the
types that are equivalent: all integers and decimals ("Exact Numeric"), short and long strings, and timestamps in
microseconds and nanoseconds. Everything else differs by its type: the float64 1.0 is no integer, and no float32.

A key looks like JSON. Types that JSON lacks are marked with letters that begin no JSON value. It is for comparisons
within one version of lake-tailer, and not to be stored.
"""

import struct
from decimal import Decimal

from msgspec import Raw

__all__ = ["KeyForm"]

_NANOS = 9


class KeyForm:
    """Values that msgspec writes as keys. Null, booleans, integers, texts and containers are those of JSON."""

    def double(self, number: float) -> object:
        """See `Form.double`. Each NaN is the same; zero and minus zero are two values."""
        return Raw(b"D" + _bits("<d", number))

    def single(self, number: float) -> object:
        """See `Form.single`."""
        return Raw(b"F" + _bits("<f", number))

    def decimal(self, number: Decimal) -> object:
        """See `Form.decimal`. A whole number is that of an integer."""
        text = format(number, "f")
        if "." in text:
            text = text.rstrip("0").rstrip(".")
        return Raw("0" if text == "-0" else text)

    def date(self, days: int) -> object:
        """See `Form.date`."""
        return Raw(f"Y{days}")

    def time(self, us: int) -> object:
        """See `Form.time`."""
        return Raw(f"T{us}")

    def timestamp(self, count: int, digits: int, is_utc: bool) -> object:
        """See `Form.timestamp`."""
        return Raw(f"{'Z' if is_utc else 'L'}{count * 10 ** (_NANOS - digits)}")

    def uuid(self, data: bytes) -> object:
        """See `Form.uuid`."""
        return Raw(f"U{data.hex()}")

    def binary(self, data: bytes) -> object:
        """See `Form.binary`."""
        return Raw(f"B{data.hex()}")


def _bits(layout: str, number: float) -> bytes:
    return b"NaN" if number != number else struct.pack(layout, number).hex().encode()  # noqa: PLR0124 - NaN alone
