"""Casts that Arrow does as Spark does, or that are made so. `castable` says which; others are refused by name.

Texts that Spark would read and Arrow would not (`' 1'`, `'2020-1-1'`) fail by name, and are never read as something
else.
"""

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from tailer.shape.rows import Values
from tailer.shape.tree import Call
from tailer.shape.types import DATE, INTEGERS, STRING, TIMESTAMP, TIMESTAMP_NTZ, as_decimal

__all__ = ["cast", "cast_can_fail", "castable"]


def cast(kind: pa.DataType, values: Values) -> Values:
    """Return values as another type. Raises `pa.ArrowInvalid` for a value that the type does not have."""
    found = _way(values.type, kind)
    if found is None:
        raise pa.ArrowInvalid(f"no cast from {values.type} to {kind}")
    return found(kind, values)


def castable(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether `cast` can do this exactly."""
    return _way(source, target) is not None


def cast_can_fail(call: Call) -> bool:
    """Return whether there are values of the argument that the type of the result does not have."""
    source, target = call.arguments[0].kind, call.kind
    if pa.types.is_null(source) or source == target or pa.types.is_floating(target):
        return False
    if source in INTEGERS and target in INTEGERS:
        return INTEGERS[target] < INTEGERS[source]
    if pa.types.is_decimal(target) and (source in INTEGERS or pa.types.is_decimal(source)):
        source = as_decimal(source)
        return bool(target.scale < source.scale or target.precision - target.scale < source.precision - source.scale)
    return True


Cast = Callable[[pa.DataType, Values], Values]


def _way(source: pa.DataType, target: pa.DataType) -> Cast | None:
    if source == target:
        return lambda _, values: values
    if pa.types.is_null(source):
        return lambda kind, _: pa.scalar(None, kind)
    if source in INTEGERS and (target in INTEGERS or target == STRING):
        return _checked
    if (source in INTEGERS or pa.types.is_floating(source)) and pa.types.is_floating(target):
        return _rounded
    if pa.types.is_decimal(target):
        return _integer_to_decimal if source in INTEGERS else _widen if pa.types.is_decimal(source) else None
    if pa.types.is_decimal(source) and pa.types.is_floating(target):
        return _decimal_to_floating
    if source in (DATE, TIMESTAMP, TIMESTAMP_NTZ) and target in (TIMESTAMP, TIMESTAMP_NTZ):
        return _checked
    return None


def _checked(kind: pa.DataType, values: Values) -> Values:
    return pc.cast(values, kind)


def _rounded(kind: pa.DataType, values: Values) -> Values:
    return pc.cast(values, kind, safe=False)


def _integer_to_decimal(kind: pa.DataType, values: Values) -> Values:
    """Arrow wants room for every value of the integer type, and refuses a narrower decimal whatever the values are."""
    digits = INTEGERS[values.type]
    if kind.precision - kind.scale >= digits:
        return pc.cast(values, kind)
    return pc.cast(pc.cast(values, pa.decimal128(digits, 0)), kind)


def _widen(kind: pa.DataType, values: Values) -> Values:
    """Arrow refuses a decimal that loses digits behind the point; Spark rounds it (`bind` refuses such a cast)."""
    return pc.cast(values, kind)


def _decimal_to_floating(kind: pa.DataType, values: Values) -> Values:
    """Through text, whose conversion is rounded correctly; Arrow's own is not."""
    return pc.cast(pc.cast(values, STRING), kind)
