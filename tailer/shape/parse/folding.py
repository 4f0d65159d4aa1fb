"""Constant parts of an expression become literals, by the kernels that evaluate rows.

As in Spark, a constant that fails is an error at the start, whatever the rows are, unless it is in a branch of CASE or
COALESCE: these are evaluated for the rows that need them.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pyarrow as pa

from tailer.shape.evaluate import can_fail, compiled, failure
from tailer.shape.parse.literals import literal_of
from tailer.shape.tree import Call, Expression, KnownRow, Literal

__all__ = ["folded", "value_of"]

Fault = Callable[[Call, str], Exception]
"""Makes the error about a constant part that fails, from the reason."""


def value_of(call: Call) -> Literal | None:
    """Return the value of a call with constant parts only; None: it has others. Raises `pa.ArrowInvalid`.

    A keyed hash is no constant: its value depends on a secret, which trees must not show.
    """
    if not _is_constant(call):
        return None
    value = compiled(call)(KnownRow({}))
    return literal_of(value if isinstance(value, pa.Scalar) else value[0])


def folded(expression: Expression, fault: Fault, *, in_branch: bool = False) -> Expression:
    """Return an expression without constant parts but literals. Raises what `fault` makes where one fails.

    `in_branch`: it is not evaluated for every row.
    """
    if not isinstance(expression, Call):
        return expression
    if _is_constant(expression):
        return _evaluated(expression, fault, in_branch)
    below = in_branch or expression.function in ("case", "coalesce")
    arguments = tuple(folded(argument, fault, in_branch=below) for argument in expression.arguments)
    shorter = _shortened(replace(expression, arguments=arguments))
    return _evaluated(shorter, fault, in_branch) if isinstance(shorter, Call) else shorter


def _evaluated(call: Call, fault: Fault, in_branch: bool) -> Expression:
    try:
        return value_of(call) or call
    except pa.ArrowInvalid as error:
        if in_branch:
            return call
        raise fault(call, failure(error)) from None


def _is_constant(expression: Expression) -> bool:
    if isinstance(expression, Call):
        return expression.function != "hmac_sha256" and all(map(_is_constant, expression.arguments))
    return isinstance(expression, Literal)


def _shortened(call: Call) -> Expression:
    """Leave out what constant arguments decide."""
    match call.function:
        case "and" | "or":
            return _connected(call, call.function == "or")
        case "case":
            return _with_branches(call)
        case "coalesce":
            arguments = tuple(_up_to_a_value(call.arguments)) or call.arguments[:1]
            return replace(call, arguments=arguments) if len(arguments) > 1 else arguments[0]
        case _:
            return call


def _connected(call: Call, decides: bool) -> Expression:
    """Shorten AND or OR, of which an argument that is `decides` is the result, and the other constant says nothing."""
    for value, other in (call.arguments, call.arguments[::-1]):
        if isinstance(value, Literal) and value.value is not None:
            if value.value is not decides:
                return other
            if value is call.arguments[0] or not can_fail(other):
                return value
    return call


def _with_branches(call: Call) -> Expression:
    arguments: list[Expression] = []
    for condition, value in zip(call.arguments[:-1:2], call.arguments[1:-1:2], strict=True):
        if not isinstance(condition, Literal):
            arguments += condition, value
        elif condition.value is True:
            arguments.append(value)
            break
    else:
        arguments.append(call.arguments[-1])
    return replace(call, arguments=tuple(arguments)) if len(arguments) > 1 else arguments[0]


def _up_to_a_value(arguments: tuple[Expression, ...]) -> Iterator[Expression]:
    for argument in arguments:
        if not isinstance(argument, Literal):
            yield argument
        elif argument.value is not None:
            yield argument
            return
