"""Operators, with the types that Spark gives their operands and results.

Comparisons are done in Spark's common type; that of an integer with a constant in the integer's type, without a cast of
rows.
"""

from collections.abc import Sequence
from decimal import ROUND_FLOOR, Decimal
from typing import Final

import pyarrow as pa
from sqlglot import exp

from tailer.shape.parse.binding import Binding
from tailer.shape.tree import Expression, Literal, is_null
from tailer.shape.types import BOOLEAN, INTEGERS, MAX_DIGITS, as_decimal, common_type, is_number, kind_text

__all__ = ["OPERATORS", "arithmetic", "compare", "minus", "plus"]

OPERATORS: Final = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.Mod: "%"}

# The types of both operands, and of the result.
_Types = tuple[Sequence[pa.DataType], pa.DataType]
_MIRRORED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "<=>": "<=>"}
# The operators with which an integer is compared with the whole part of a fraction.
_WITH_FLOOR: Final = {"<": "<=", "<=": "<=", ">": ">", ">=": ">"}


def arithmetic(binding: Binding, node: exp.Binary) -> Expression:
    """Bind `+`, `-`, `*`, `/` and `%`."""
    nodes = (node.this, node.expression)
    values = [binding.bind(operand) for operand in nodes]
    for operand, value in zip(nodes, values, strict=True):
        binding.must_be(operand, value, is_number(value.kind), "a number")
    operator = OPERATORS[type(node)]
    if any(map(binding.is_unknown, values)):
        return binding.null(pa.null())
    types = _types(operator, values)
    if types is None:
        reason = f"{operator} of {' and '.join(kind_text(value.kind) for value in values)} is not supported"
        raise binding.source.error(node, f"{reason}, as it is not exact", "Write CAST(... AS double) of an operand.")
    kinds, result = types
    if is_null(values[0]):  # then the other one is not evaluated, as in Spark
        return binding.null(result)
    arguments = [binding.converted(*operand) for operand in zip(nodes, values, kinds, strict=True)]
    return binding.call(operator, arguments, result)


def minus(binding: Binding, node: exp.Neg) -> Expression:
    """Bind a minus before what is no number."""
    value = plus(binding, node)
    return binding.call("negative", [value], value.kind) if is_number(value.kind) else value


def plus(binding: Binding, node: exp.Unary) -> Expression:
    """Bind a plus, which says that a value is a number."""
    value = binding.bind(node.this)
    binding.must_be(node.this, value, is_number(value.kind), "a number")
    return value if is_number(value.kind) else binding.null(pa.null())


def _types(operator: str, values: Sequence[Expression]) -> _Types | None:
    typed = [value.kind for value in values if not pa.types.is_null(value.kind)] or [pa.float64()]
    kinds = [typed[0] if pa.types.is_null(value.kind) else value.kind for value in values]
    if any(map(pa.types.is_decimal, kinds)) and not any(map(pa.types.is_floating, kinds)):
        first, second = (_decimal(value, kind) for value, kind in zip(values, kinds, strict=True))
        result = _decimal_result(operator, first, second)
        return None if result is None else ((first, second), result)
    if operator == "/":
        return (pa.float64(), pa.float64()), pa.float64()
    common = common_type(*kinds)
    if operator == "%" and pa.types.is_floating(common):
        return None
    return (common, common), common


def _decimal(value: Expression, kind: pa.DataType) -> pa.DataType:
    """Return the decimal type of an operand. A literal has no more digits than it needs."""
    if kind in INTEGERS and isinstance(value, Literal) and value.value is not None:
        return pa.decimal128(len(str(abs(int(value.value)))), 0)
    return as_decimal(kind)


def _decimal_result(operator: str, first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    if operator in ("+", "-"):
        scale = max(first.scale, second.scale)
        digits = max(first.precision - first.scale, second.precision - second.scale) + scale + 1
    elif operator == "*":
        scale = first.scale + second.scale
        digits = first.precision + second.precision + 1
    else:
        return None
    return pa.decimal128(digits, scale) if digits <= MAX_DIGITS else None


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
