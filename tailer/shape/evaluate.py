"""Evaluation: an expression becomes a function from rows to values, once; literals are prepared then.

Arguments that Spark evaluates for some rows only (the right side of AND where the left one is not false, a branch of
CASE, what is added to a null) and that can fail are evaluated for these rows only, so `a <> 0 AND 10 / a > 1` does not
divide by zero.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tailer.shape.comparisons import is_in, parse_pattern
from tailer.shape.functions import FUNCTIONS
from tailer.shape.tree import Call, Column, Expression, Literal, Rows, Values, spread

__all__ = ["Evaluator", "can_fail", "compiled", "failure"]

Evaluator = Callable[[Rows], Values]


def compiled(expression: Expression) -> Evaluator:
    """Return what evaluates an expression. It raises `pa.ArrowInvalid` for a row for which the expression fails."""
    if isinstance(expression, Column):
        path = expression.path
        return lambda rows: rows.column(path)
    if isinstance(expression, Literal):
        scalar = expression.scalar
        return lambda _: scalar
    if special := _SPECIAL.get(expression.function):
        return special(expression)
    run = FUNCTIONS[expression.function].run
    kind = expression.kind
    if expression.function in _NULL_DECIDES:
        return _decided_by_null(expression)
    arguments = [compiled(argument) for argument in expression.arguments]
    if len(arguments) == 1:
        (only,) = arguments
        return lambda rows: run(kind, only(rows))
    if len(arguments) == 2:
        first, second = arguments
        return lambda rows: run(kind, first(rows), second(rows))
    return lambda rows: run(kind, *[argument(rows) for argument in arguments])


def failure(error: pa.ArrowException) -> str:
    """Return why an expression failed, without the value for which it did: that may be a secret."""
    text = str(error)
    if "overflow" in text:
        return "a number overflows"
    return "a division by zero" if "divide by zero" in text else "a value cannot be converted, or is not defined"


def can_fail(expression: Expression) -> bool:
    """Return whether there can be rows for which the expression fails."""
    if not isinstance(expression, Call):
        return False
    function = FUNCTIONS.get(expression.function)
    return (function is not None and function.can_fail(expression)) or any(map(can_fail, expression.arguments))


def _where(expression: Expression) -> Callable[[Rows, Callable[[], Values]], Values]:
    """Return what evaluates an expression for the rows of a mask; other rows may be null."""
    evaluate = compiled(expression)
    if not can_fail(expression):
        return lambda rows, _: evaluate(rows)
    null = pa.scalar(None, expression.kind)

    def run(rows: Rows, needed: Callable[[], Values]) -> Values:
        mask = needed()
        if isinstance(mask, pa.Scalar):
            return evaluate(rows) if mask.as_py() else null
        if mask.true_count == len(mask):
            return evaluate(rows)
        return spread(evaluate(rows.filter(mask)), mask) if mask.true_count else null

    return run


def _decided_by_null(call: Call) -> Evaluator:
    """Evaluate the other operand where the one that Spark evaluates first is not null."""
    run, kind = FUNCTIONS[call.function].run, call.kind
    place = _NULL_DECIDES[call.function]
    begin, other = compiled(call.arguments[place]), _where(call.arguments[1 - place])

    def evaluate(rows: Rows) -> Values:
        first = begin(rows)
        second = other(rows, partial(pc.is_valid, first))
        return run(kind, second, first) if place else run(kind, first, second)

    return evaluate


def _connective(call: Call) -> Evaluator:
    """AND and OR: the right side is needed where the left one does not decide."""
    left, right = compiled(call.arguments[0]), _where(call.arguments[1])
    is_and = call.function == "and"
    combine = pc.and_kleene if is_and else pc.or_kleene

    def run(rows: Rows) -> Values:
        first = left(rows)
        return combine(first, right(rows, lambda: pc.coalesce(first if is_and else pc.invert(first), _TRUE)))

    return run


def _coalesce(call: Call) -> Evaluator:
    first, *others = call.arguments
    begin, rest = compiled(first), [_where(argument) for argument in others]

    def run(rows: Rows) -> Values:
        values = begin(rows)
        for argument in rest:
            values = _choose(pc.is_valid(values), values, argument(rows, partial(pc.is_null, values)))
        return values

    return run


def _case(call: Call) -> Evaluator:
    """CASE: arguments are a condition and a value for each branch, and the value of ELSE."""
    conditions = [_where(argument) for argument in call.arguments[:-1:2]]
    values = [_where(argument) for argument in (*call.arguments[1:-1:2], call.arguments[-1])]

    def run(rows: Rows) -> Values:
        left: Values = _TRUE
        chosen: list[tuple[Values, Values]] = []
        for condition, value in zip(conditions, values, strict=False):
            holds = pc.and_(left, pc.coalesce(condition(rows, partial(_same, left)), _FALSE))
            chosen.append((holds, value(rows, partial(_same, holds))))
            left = pc.and_(left, pc.invert(holds))
        result = values[-1](rows, partial(_same, left))
        for holds, value in reversed(chosen):
            result = _choose(holds, value, result)
        return result

    return run


def _same(mask: Values) -> Values:
    return mask


def _choose(condition: Values, first: Values, second: Values) -> Values:
    if isinstance(condition, pa.Scalar):
        return first if condition.as_py() else second
    return pc.if_else(condition, first, second)


def _in(call: Call) -> Evaluator:
    value = compiled(call.arguments[0])
    listed = [item.scalar for item in call.arguments[1:] if isinstance(item, Literal)]
    return lambda rows: is_in(value(rows), listed)


def _like(call: Call) -> Evaluator:
    value, pattern, escape = call.arguments
    texts = [literal.value for literal in (pattern, escape) if isinstance(literal, Literal)]
    match = parse_pattern(str(texts[0]), str(texts[1])).match
    evaluate = compiled(value)
    return lambda rows: match(evaluate(rows))


_TRUE = pa.scalar(True)
_FALSE = pa.scalar(False)
# Which operand Spark evaluates first: where it is null, so is the result, whatever the other one is.
_NULL_DECIDES: Final = {**dict.fromkeys(["=", "<", "<=", ">", ">=", "+", "-", "*"], 0), "/": 1, "%": 1}
_SPECIAL: dict[str, Callable[[Call], Evaluator]] = {
    "and": _connective,
    "or": _connective,
    "coalesce": _coalesce,
    "case": _case,
    "in": _in,
    "like": _like,
}
