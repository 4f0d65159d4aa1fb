"""Arithmetic of Spark's ANSI mode: integers overflow by an error, and nothing is divided by zero."""

import pyarrow as pa
import pyarrow.compute as pc

from tailer.shape.rows import Values
from tailer.shape.tree import Call, Literal

__all__ = ["divisor_can_be_zero", "fails_for_integers", "remainder"]


def fails_for_integers(call: Call) -> bool:
    """Return whether the result of a call can be beyond its type."""
    return bool(pa.types.is_integer(call.kind))


def divisor_can_be_zero(call: Call) -> bool:
    """Return whether the second argument can be zero."""
    divisor = call.arguments[1]
    return not isinstance(divisor, Literal) or divisor.value == 0


def remainder(_: pa.DataType, left: Values, right: Values) -> Values:
    """Return the remainder of integers, with the sign of `left`."""
    one = pa.scalar(1, right.type)
    # A division by -1 overflows for the least number, and its remainder is that of a division by 1.
    right = pc.if_else(pc.equal(right, pa.scalar(-1, right.type)), one, right)
    return pc.subtract(left, pc.multiply(pc.divide_checked(left, right), right))
