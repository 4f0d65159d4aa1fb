"""Comparisons as Spark does them: NaN equals NaN and is greater than all other numbers, and -0.0 equals 0.0.

Both sides have one type. Texts and bytes are compared byte by byte.
"""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tailer.shape.rows import Values

__all__ = ["equal", "equal_or_both_null", "is_in", "less", "less_or_equal"]


def equal(left: Values, right: Values) -> Values:
    """Return `left = right`; null where one is null."""
    answer = pc.equal(left, right)
    if not _may_be_nan(left) or not _may_be_nan(right):
        return answer
    return pc.or_kleene(answer, pc.and_kleene(pc.is_nan(left), pc.is_nan(right)))


def less(left: Values, right: Values) -> Values:
    """Return `left < right`; null where one is null."""
    answer = pc.less(left, right)
    if not _may_be_nan(right):
        return answer
    return pc.or_kleene(answer, pc.and_kleene(pc.invert(pc.is_nan(left)), pc.is_nan(right)))


def less_or_equal(left: Values, right: Values) -> Values:
    """Return `left <= right`; null where one is null."""
    answer = pc.less_equal(left, right)
    if not _may_be_nan(right):
        return answer
    return pc.or_kleene(answer, pc.and_kleene(pc.is_nan(right), pc.is_valid(left)))


def equal_or_both_null(left: Values, right: Values) -> Values:
    """Return `left <=> right`, which is never null."""
    if isinstance(right, pa.Scalar) and isinstance(left, pa.Array):
        return pc.fill_null(equal(left, right), False) if right.is_valid else pc.is_null(left)
    both = pc.and_(pc.is_null(left), pc.is_null(right))
    return pc.or_(pc.coalesce(equal(left, right), pa.scalar(False)), both)


def is_in(values: Values, items: Sequence[pa.Scalar]) -> Values:
    """Return `values IN (found)`: null where the value is null, or is none of them and one of them is null."""
    not_null = [item for item in items if item.is_valid]
    listed = pa.array(not_null, items[0].type)
    if pa.types.is_floating(listed.type):
        # The kernel tells the two zeros apart.
        zeros = pa.array([0.0, -0.0], listed.type)
        listed = pa.concat_arrays([listed, zeros]) if 0.0 in listed.to_pylist() else listed
    answer = pc.is_in(values, value_set=listed, skip_nulls=True)
    unknown = pc.is_null(values)
    if len(not_null) < len(items):
        unknown = pc.or_(unknown, pc.invert(answer))
    return pc.if_else(unknown, pa.scalar(None, pa.bool_()), answer)


def _may_be_nan(values: Values) -> bool:
    if not pa.types.is_floating(values.type):
        return False
    return not isinstance(values, pa.Scalar) or bool(values.is_valid and values.as_py() != values.as_py())
