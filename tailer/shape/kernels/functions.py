"""The functions of expressions as Arrow kernels; those that evaluate their arguments themselves are in `evaluate`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow.compute as pc

from tailer.shape.kernels import comparisons
from tailer.shape.kernels.casts import cast, cast_can_fail
from tailer.shape.rows import Values
from tailer.shape.tree import Call

__all__ = ["FUNCTIONS", "Function"]


def _never(_: Call) -> bool:
    return False


def _always(_: Call) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Function:
    """A function. `run` gets the type of the result and the arguments, and raises `pa.ArrowInvalid` if it fails."""

    run: Callable[..., Values]
    can_fail: Callable[[Call], bool] = _never


def _comparison(compare: Callable[[Values, Values], Values], *, swapped: bool = False) -> Function:
    if swapped:
        return Function(lambda _, left, right: compare(right, left))
    return Function(lambda _, left, right: compare(left, right))


FUNCTIONS: Final[Mapping[str, Function]] = {
    "=": _comparison(comparisons.equal),
    "<=>": _comparison(comparisons.equal_or_both_null),
    "<": _comparison(comparisons.less),
    "<=": _comparison(comparisons.less_or_equal),
    ">": _comparison(comparisons.less, swapped=True),
    ">=": _comparison(comparisons.less_or_equal, swapped=True),
    "not": Function(lambda _, value: pc.invert(value)),
    "is null": Function(lambda _, value: pc.is_null(value)),
    "cast": Function(cast, cast_can_fail),
}
