"""Partition values of the log as Arrow scalars (PROTOCOL.md, "Partition Value Serialization").

Spark casts the text in the log to the column's type, so writers may leave any text that the cast takes, such as ` 7 `.
What denotes a value exactly is read as Spark reads it. Where the cast would give null, or lose a fraction, digits or a
time of day, the text is refused (invariant 5).
"""

import re
from collections.abc import Mapping
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Final

import pyarrow as pa

from tailer.errors import ChangesUnavailable
from tailer.events import type_text
from tailer.files.years import days_since_epoch, micros_since_epoch
from tailer.schema.char_types import padded

__all__ = ["partition_scalar"]

_BLANKS: Final = "".join(map(chr, range(33)))  # what Spark's casts trim
_TRUTHS: Final = dict.fromkeys(("true", "t", "yes", "y", "1"), "true")
_BOOLEANS: Final = _TRUTHS | dict.fromkeys(("false", "f", "no", "n", "0"), "false")
_MOST_DIGITS: Final = 38  # of a decimal
_INTEGER: Final = re.compile(r"([+-]?)(\d+)(?:\.0*)?", re.ASCII)
_DECIMAL: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_FLOAT: Final = re.compile(rf"({_DECIMAL.pattern})[fFdD]?", re.ASCII)
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
    if pa.types.is_binary(kind):
        # Spark writes a binary partition value as if its bytes were UTF-8 text.
        return pa.scalar(text.encode(), kind)
    if text == "":
        return pa.scalar(None, kind)
    found = _parse(text.strip(_BLANKS), kind)
    if found is None:
        value = f"the log entry of {path} has the partition value {text!r} for column {column.name}"
        reason = f"{value}, which is not exactly a value of {type_text(column.type)}: Spark reads null, or a part of it"
        raise ChangesUnavailable(table, version, reason)
    return found


def _parse(text: str, kind: pa.DataType) -> pa.Scalar | None:
    """Return the value of `kind` that a text denotes exactly; None where it denotes none."""
    if pa.types.is_date32(kind):
        return _counted(days_since_epoch(text), pa.int32(), kind)
    if pa.types.is_timestamp(kind):
        return _counted(micros_since_epoch(text, zoned=kind.tz is not None), pa.int64(), kind)
    plain = _plain(text, kind)
    if plain is None:
        return None
    if pa.types.is_decimal(kind):
        return _decimal(plain, kind)
    try:
        found = pa.array([plain]).cast(kind)[0]
    except pa.ArrowInvalid:  # out of the range of the type
        return None
    overflows = pa.types.is_floating(kind) and plain not in _NOT_FINITE and abs(found.as_py()) == float("inf")
    return None if overflows else found


def _counted(value: int | None, storage: pa.DataType, kind: pa.DataType) -> pa.Scalar | None:
    limit = 1 << storage.bit_width - 1
    return None if value is None or not -limit <= value < limit else pa.array([value], storage).view(kind)[0]


def _decimal(text: str, kind: pa.Decimal128Type) -> pa.Scalar | None:
    """Return the decimal that a text denotes exactly. Arrow's cast overflows where a text has more than 38 digits."""
    exact = Context(prec=kind.precision, traps=[Inexact, InvalidOperation])
    try:
        number = Decimal(text)
        found = number.quantize(Decimal((0, (1,), -kind.scale)), context=exact)
    except (Inexact, InvalidOperation):
        return None
    # Spark reads null for a zero with a large exponent.
    return None if number.adjusted() >= _MOST_DIGITS else pa.array([found], kind)[0]


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
