"""The types of expressions: their names in SQL, and the type in which Spark compares or joins two of them.

The rules are those of Spark's ANSI mode (`AnsiTypeCoercion`, `DecimalPrecisionTypeCoercion`). Casts between text and
other types, which Spark inserts by itself, are left out: `tailer.shape.parse.bind` refuses them.
"""

import re
from typing import Final

import pyarrow as pa

__all__ = [
    "BOOLEAN",
    "DATE",
    "INTEGERS",
    "MAX_DIGITS",
    "STRING",
    "TIMESTAMP",
    "TIMESTAMP_NTZ",
    "as_decimal",
    "common_type",
    "is_number",
    "is_scalar",
    "kind_from_text",
    "kind_text",
    "value_type",
]

BOOLEAN: Final = pa.bool_()
STRING: Final = pa.string()
DATE: Final = pa.date32()
TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
TIMESTAMP_NTZ: Final = pa.timestamp("us")
MAX_DIGITS: Final = 38

_NAMES: Final = {
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": BOOLEAN,
    "string": STRING,
    "binary": pa.binary(),
    "date": DATE,
    "timestamp": TIMESTAMP,
    "timestamp_ntz": TIMESTAMP_NTZ,
    "void": pa.null(),
}
_TEXTS: Final = {kind: name for name, kind in _NAMES.items()}
_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")

INTEGERS: Final = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 20}  # with their digits in a decimal
_WIDTHS: Final = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64())
_TIMES: Final = (DATE, TIMESTAMP_NTZ, TIMESTAMP)

# Types of columns that Spark has not, each with the type in which an expression sees their values.
_OTHERS: Final = {
    pa.large_string(): STRING,
    pa.string_view(): STRING,
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}


def kind_text(kind: pa.DataType) -> str:
    """Return the name of a type in SQL; of a type that SQL has not, Arrow's name."""
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return _TEXTS.get(kind) or str(kind)


def kind_from_text(text: str) -> pa.DataType:
    """Return the type that `kind_text` named."""
    if match := _DECIMAL.fullmatch(text):
        return pa.decimal128(int(match[1]), int(match[2]))
    return _NAMES[text]


def value_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in which an expression sees the values of a column of type `kind`."""
    if pa.types.is_dictionary(kind):
        return value_type(kind.value_type)
    return _OTHERS.get(kind, kind)


def is_scalar(kind: pa.DataType) -> bool:
    """Return whether expressions can use values of a type for more than IS NULL."""
    return kind in _TEXTS or bool(pa.types.is_decimal128(kind))


def is_number(kind: pa.DataType) -> bool:
    """Return whether `kind` is a number."""
    return kind in _WIDTHS or bool(pa.types.is_decimal128(kind))


def as_decimal(kind: pa.DataType) -> pa.DataType:
    """Return the decimal type that has all values of an integer type; a decimal stays."""
    return pa.decimal128(INTEGERS[kind], 0) if kind in INTEGERS else kind


def common_type(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """Return the type in which Spark compares two types; None: none, or none that holds all of their values."""
    if left == right or pa.types.is_null(right):
        return left
    if pa.types.is_null(left):
        return right
    if left in _TIMES and right in _TIMES:
        return max(left, right, key=_TIMES.index)
    if not (is_number(left) and is_number(right)):
        return None
    if left in _WIDTHS and right in _WIDTHS:
        wider = max(left, right, key=_WIDTHS.index)
        return pa.float64() if wider == pa.float32() else wider
    if pa.types.is_floating(left) or pa.types.is_floating(right):
        return pa.float64()
    first, second = as_decimal(left), as_decimal(right)
    scale = max(first.scale, second.scale)
    digits = max(first.precision - first.scale, second.precision - second.scale) + scale
    return pa.decimal128(digits, scale) if digits <= MAX_DIGITS else None
