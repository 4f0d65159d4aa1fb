"""Decide from the ranges of columns where a condition cannot hold, so that files and row groups need not be read.

Every part of a condition has a set of possible outcomes: true, false, null. What is not understood has all of them.
"""

from enum import Flag
from typing import Final

import pyarrow as pa

from tailer.schema.columns import ColumnRange, Ranges
from tailer.shape import comparisons
from tailer.shape.comparisons import parse_pattern
from tailer.shape.evaluate import compiled
from tailer.shape.tree import Call, Column, Expression, KnownRow, Literal, columns_of
from tailer.shape.types import DATE, TIMESTAMP, TIMESTAMP_NTZ, is_number

__all__ = ["may_be_true"]

_NAN: Final = float("nan")
_TIMES: Final = (DATE, TIMESTAMP, TIMESTAMP_NTZ)


class _Outcomes(Flag):
    """Possible outcomes of a condition."""

    NONE = 0
    TRUE = 1
    FALSE = 2
    NULL = 4
    ANY = 7


_UNKNOWN: Final = ColumnRange()


def may_be_true(condition: Expression, ranges: Ranges) -> bool:
    """Return False only if a condition is true for no row with values in the ranges."""
    return bool(_outcomes(condition, ranges) & _Outcomes.TRUE)


def _outcomes(expression: Expression, ranges: Ranges) -> _Outcomes:
    if (only := _only_outcome(expression, ranges)) is not None:
        return only
    if not isinstance(expression, Call):
        return _Outcomes.ANY
    match expression.function, expression.arguments:
        case "and", (left, right):
            return _conjunction(_outcomes(left, ranges), _outcomes(right, ranges))
        case "or", (left, right):
            return _swapped(_conjunction(_swapped(_outcomes(left, ranges)), _swapped(_outcomes(right, ranges))))
        case "not", (value,):
            return _swapped(_outcomes(value, ranges))
        case "is null", (value,):
            return _is_null(value, ranges)
        case "<=>", (left, right):
            return _null_safe(left, right, ranges)
        case _:
            return _predicate(expression, ranges)


def _predicate(call: Call, ranges: Ranges) -> _Outcomes:
    match call.function, call.arguments:
        case (("=" | "<" | "<=" | ">" | ">="), (left, right)):
            return _compared(call.function, _range(left, ranges), _range(right, ranges))
        case "in", (value, *listed):
            return _in([_compared("=", _range(value, ranges), _range(item, ranges)) for item in listed])
        case "like", (value, Literal(value=str(pattern)), Literal(value=str(escape))):
            return _begins(_range(value, ranges), parse_pattern(pattern, escape).prefix)
        case "startswith", (value, Literal(value=str(prefix))):
            return _begins(_range(value, ranges), prefix)
        case _:
            return _Outcomes.ANY


def _only_outcome(expression: Expression, ranges: Ranges) -> _Outcomes | None:
    """Return the only outcome of a condition over columns that have one value each; None: they have not."""
    values: dict[tuple[str, ...], pa.Scalar] = {}
    for column in columns_of(expression):
        value = _only_value(column, ranges)
        if value is None:
            return None
        values[column.path] = value
    try:
        answer = compiled(expression)(KnownRow(values))
    except pa.ArrowInvalid:
        return _Outcomes.ANY  # reading the rows raises the error
    truth = answer.as_py() if isinstance(answer, pa.Scalar) else answer[0].as_py()
    return _Outcomes.NULL if truth is None else _Outcomes.TRUE if truth else _Outcomes.FALSE


def _only_value(column: Column, ranges: Ranges) -> pa.Scalar | None:
    bounds = ranges.get(column.path, _UNKNOWN)
    if not bounds.may_have_values:
        return pa.scalar(None, column.kind)
    if bounds.may_be_null or bounds.low is None or bounds.high is None or pa.types.is_floating(column.kind):
        return None
    return bounds.low.cast(column.kind) if bounds.low.equals(bounds.high) else None


def _conjunction(left: _Outcomes, right: _Outcomes) -> _Outcomes:
    outcomes = (left | right) & _Outcomes.FALSE
    if _Outcomes.TRUE in left and _Outcomes.TRUE in right:
        outcomes |= _Outcomes.TRUE
    if (_Outcomes.NULL in left and right & ~_Outcomes.FALSE) or (_Outcomes.NULL in right and left & ~_Outcomes.FALSE):
        outcomes |= _Outcomes.NULL
    return outcomes


def _swapped(outcomes: _Outcomes) -> _Outcomes:
    """Return the outcomes of NOT."""
    answer = outcomes & _Outcomes.NULL
    if _Outcomes.TRUE in outcomes:
        answer |= _Outcomes.FALSE
    return answer | _Outcomes.TRUE if _Outcomes.FALSE in outcomes else answer


def _is_null(value: Expression, ranges: Ranges) -> _Outcomes:
    bounds = ranges.get(value.path, _UNKNOWN) if isinstance(value, Column) else _range(value, ranges)
    answer = _Outcomes.TRUE if bounds.may_be_null else _Outcomes.NONE
    return answer | _Outcomes.FALSE if bounds.may_have_values else answer | _Outcomes.TRUE


def _null_safe(left: Expression, right: Expression, ranges: Ranges) -> _Outcomes:
    """Return the outcomes of `left <=> right`; `<=> true` is IS TRUE, whose left side is a condition."""
    if isinstance(right, Literal) and isinstance(right.value, bool):
        wanted = _Outcomes.TRUE if right.value else _Outcomes.FALSE
        outcomes = _outcomes(left, ranges)
        answer = _Outcomes.TRUE if outcomes & wanted else _Outcomes.NONE
        return answer | _Outcomes.FALSE if outcomes & ~wanted else answer
    first, second = _range(left, ranges), _range(right, ranges)
    outcomes = _compared("=", first, second)
    answer = outcomes & ~_Outcomes.NULL
    if (first.may_be_null or not first.may_have_values) and (second.may_be_null or not second.may_have_values):
        answer |= _Outcomes.TRUE
    return answer | _Outcomes.FALSE if _Outcomes.NULL in outcomes else answer


def _range(expression: Expression, ranges: Ranges) -> ColumnRange:
    """Return the range of an expression, in its own type. NaN is the greatest floating-point number."""
    if isinstance(expression, Literal):
        if expression.value is None:
            return ColumnRange(None, None, may_have_values=False)
        return ColumnRange(expression.scalar, expression.scalar, may_be_null=False)
    if isinstance(expression, Column):
        return _column_range(expression, ranges.get(expression.path, _UNKNOWN))
    if expression.function == "cast":
        kinds = expression.arguments[0].kind, expression.kind
        if all(map(is_number, kinds)) or all(kind in _TIMES for kind in kinds):  # it keeps the order of values
            inner = _range(expression.arguments[0], ranges)
            low, high = (_cast(expression, bound) for bound in (inner.low, inner.high))
            return ColumnRange(low, high, inner.may_be_null, inner.may_have_values)
    return _UNKNOWN


def _column_range(column: Column, bounds: ColumnRange) -> ColumnRange:
    kind = column.kind
    low, high = (
        bound if bound is None or bound.type == kind else bound.cast(kind) for bound in (bounds.low, bounds.high)
    )
    if pa.types.is_floating(column.kind):
        high = pa.scalar(_NAN, column.kind)
        low = None if low is None or low.as_py() != low.as_py() else low
    return ColumnRange(low, high, bounds.may_be_null, bounds.may_have_values)


def _cast(call: Call, bound: pa.Scalar | None) -> pa.Scalar | None:
    if bound is None:
        return None
    bare = Call("cast", (Column((), bound.type),), call.kind)
    try:
        return compiled(bare)(KnownRow({(): bound}))[0]
    except pa.ArrowInvalid:
        return None


def _compared(operator: str, left: ColumnRange, right: ColumnRange) -> _Outcomes:
    outcomes = _Outcomes.NULL
    if not (left.may_be_null or right.may_be_null) and left.may_have_values and right.may_have_values:
        outcomes = _Outcomes.NONE
    if not (left.may_have_values and right.may_have_values):
        return outcomes
    match operator:
        case "=":
            apart = _below(left.high, right.low) or _below(right.high, left.low)
            is_one_value = _not_above(left.high, right.low) and _not_above(right.high, left.low)
            holds, fails = not apart, not is_one_value
        case "<":
            holds, fails = not _not_above(right.high, left.low), not _below(left.high, right.low)
        case "<=":
            holds, fails = not _below(right.high, left.low), not _not_above(left.high, right.low)
        case ">":
            return _compared("<", right, left)
        case _:
            return _compared("<=", right, left)
    outcomes |= _Outcomes.TRUE if holds else _Outcomes.NONE
    return outcomes | _Outcomes.FALSE if fails else outcomes


def _below(first: pa.Scalar | None, second: pa.Scalar | None) -> bool:
    """Return whether `first < second`; False if one is unknown."""
    return first is not None and second is not None and bool(comparisons.less(first, second).as_py())


def _not_above(first: pa.Scalar | None, second: pa.Scalar | None) -> bool:
    """Return whether `first <= second`; False if one is unknown."""
    return first is not None and second is not None and bool(comparisons.less_or_equal(first, second).as_py())


def _in(alternatives: list[_Outcomes]) -> _Outcomes:
    """Return the outcomes of IN, an OR of comparisons."""
    outcomes = _Outcomes.FALSE
    for one in alternatives:
        outcomes = _swapped(_conjunction(_swapped(outcomes), _swapped(one)))
    return outcomes


def _begins(values: ColumnRange, prefix: str) -> _Outcomes:
    """Return the outcomes of LIKE with a pattern that begins with `prefix`, or of `startswith`."""
    outcomes = _Outcomes.FALSE | _Outcomes.TRUE | (_Outcomes.NULL if values.may_be_null else _Outcomes.NONE)
    if not values.may_have_values:
        return _Outcomes.NULL
    start = prefix.encode()
    low, high = (None if bound is None else bound.as_py().encode() for bound in (values.low, values.high))
    beyond = low is not None and low[: len(start)] > start
    before = high is not None and high < start
    return outcomes & ~_Outcomes.TRUE if beyond or before else outcomes
