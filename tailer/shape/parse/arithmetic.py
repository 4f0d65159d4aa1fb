"""Arithmetic operators, with the types that Spark gives their operands and results."""

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from sqlglot import exp

from tailer.shape.parse.binding import Binding
from tailer.shape.tree import Expression, Literal, is_null
from tailer.shape.types import INTEGERS, MAX_DIGITS, as_decimal, common_type, is_number, kind_text

__all__ = ["OPERATORS", "arithmetic", "minus", "plus"]

OPERATORS: Final = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.Mod: "%"}

# The types of both operands, and of the result.
_Types = tuple[Sequence[pa.DataType], pa.DataType]


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
