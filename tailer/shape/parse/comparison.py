"""Comparisons in Spark's common type. Of an integer with a constant, in the integer's type, without a cast of rows."""

from collections.abc import Sequence
from decimal import ROUND_FLOOR, Decimal
from typing import Final

import pyarrow as pa
from sqlglot import exp

from tailer.shape.parse.binding import Binding
from tailer.shape.tree import Expression, Literal, is_null
from tailer.shape.types import BOOLEAN, INTEGERS

__all__ = ["compare"]

_MIRRORED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "<=>": "<=>"}
# The operators with which an integer is compared with the whole part of a fraction.
_WITH_FLOOR: Final = {"<": "<=", "<=": "<=", ">": ">", ">=": ">"}


def compare(binding: Binding, operator: str, nodes: Sequence[exp.Expr], values: Sequence[Expression]) -> Expression:
    """Return the comparison of two values. Where the left one is null, the right one is not evaluated, as in Spark."""
    left, right = values
    if is_null(left) and operator != "<=>":
        binding.alike(nodes, [left, right])  # refuses types that cannot be compared
        return binding.null(BOOLEAN)
    if isinstance(left, Literal) and not isinstance(right, Literal):
        operator, left, right, nodes = _MIRRORED[operator], right, left, nodes[::-1]
    if left.kind in INTEGERS and isinstance(right, Literal) and not isinstance(left, Literal):
        simpler = _in_integers(operator, left.kind, right)
        if simpler is not None:
            return binding.call(simpler[0], [left, simpler[1]], BOOLEAN)
    return binding.call(operator, binding.alike(nodes, [left, right]), BOOLEAN)


def _in_integers(operator: str, kind: pa.DataType, constant: Literal) -> tuple[str, Literal] | None:
    """Return the same comparison with a constant of an integer type; None: that type has no such constant."""
    value = constant.value
    if isinstance(value, Decimal):
        floor = int(value.to_integral_value(ROUND_FLOOR))
        if floor != value:
            if operator not in _WITH_FLOOR:
                return None
            operator = _WITH_FLOOR[operator]
        value = floor
    elif constant.kind not in INTEGERS or value is None:
        return None
    bound = 1 << (kind.bit_width - 1)
    return (operator, Literal(int(value), kind)) if -bound <= int(value) < bound else None
