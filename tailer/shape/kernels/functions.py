"""The functions of expressions as Arrow kernels; those that evaluate their arguments themselves are in `evaluate`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tailer.shape.kernels import comparisons
from tailer.shape.kernels.arithmetic import divisor_can_be_zero, fails_for_integers, remainder
from tailer.shape.kernels.casts import cast, cast_can_fail
from tailer.shape.kernels.keyed_hash import keyed_hash
from tailer.shape.kernels.texts import change_case, hashed, replaced, sliced, translated
from tailer.shape.kernels.variants import value_at
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


def _plain(kernel: Callable[..., Values]) -> Function:
    return Function(lambda _, *values: kernel(*values))


def _swapped(compare: Callable[[Values, Values], Values]) -> Function:
    return Function(lambda _, left, right: compare(right, left))


def _checked(kernel: Callable[..., Values]) -> Function:
    return Function(lambda _, *values: kernel(*values), fails_for_integers)


def _concatenated(_: pa.DataType, *values: Values) -> Values:
    return pc.binary_join_element_wise(*values, "", null_handling="emit_null")


def _part_of_time(kernel: Callable[[Values], Values]) -> Function:
    return Function(lambda kind, value: pc.cast(kernel(value), kind))


def _with_pattern(kernel: Callable[..., Values]) -> Function:
    """Return a function whose second argument is a literal that is not null."""
    return Function(lambda _, value, pattern: kernel(value, pattern=pattern.as_py()))


def _with_two_texts(kernel: Callable[[Values, str, str], Values]) -> Function:
    """Return a function whose second and third arguments are literals that are not null."""
    return Function(lambda _, value, first, second: kernel(value, first.as_py(), second.as_py()))


FUNCTIONS: Final[Mapping[str, Function]] = {
    "=": _plain(comparisons.equal),
    "<=>": _plain(comparisons.equal_or_both_null),
    "<": _plain(comparisons.less),
    "<=": _plain(comparisons.less_or_equal),
    ">": _swapped(comparisons.less),
    ">=": _swapped(comparisons.less_or_equal),
    "not": _plain(pc.invert),
    "is null": _plain(pc.is_null),
    "cast": Function(cast, cast_can_fail),
    "+": _checked(pc.add_checked),
    "-": _checked(pc.subtract_checked),
    "*": _checked(pc.multiply_checked),
    "/": Function(lambda _, left, right: pc.divide_checked(left, right), divisor_can_be_zero),
    "%": Function(remainder, divisor_can_be_zero),
    "negative": _checked(pc.negate_checked),
    "abs": _checked(pc.abs_checked),
    "concat": Function(_concatenated),
    "upper": Function(change_case(pc.ascii_upper, str.upper), _always),
    "lower": Function(change_case(pc.ascii_lower, str.lower), _always),
    "length": _plain(pc.utf8_length),
    "length of bytes": _plain(pc.binary_length),
    "substring": Function(lambda _, value, start, length: sliced(value, start.as_py(), length.as_py())),
    "trim": _plain(lambda value: pc.utf8_trim(value, characters=" ")),
    "ltrim": _plain(lambda value: pc.utf8_ltrim(value, characters=" ")),
    "rtrim": _plain(lambda value: pc.utf8_rtrim(value, characters=" ")),
    "startswith": _with_pattern(pc.starts_with),
    "endswith": _with_pattern(pc.ends_with),
    "contains": _with_pattern(pc.match_substring),
    "replace": _with_two_texts(replaced),
    "translate": _with_two_texts(translated),
    "year": _part_of_time(pc.year),
    "month": _part_of_time(pc.month),
    "day": _part_of_time(pc.day),
    "hour": _part_of_time(pc.hour),
    "variant_get": Function(partial(value_at, True), _always),
    "try_variant_get": Function(partial(value_at, False), _always),
    "hmac_sha256": Function(lambda _, value, place: keyed_hash(value, place.as_py())),
    "sha2": Function(lambda _, value, bits: hashed(value, bits.as_py())),
}
