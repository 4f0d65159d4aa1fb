"""Casts that Arrow does as Spark does, or that are made so. `castable` says which; others are refused by name.

Texts that Spark would read and Arrow would not (`' 1'`, `'2020-1-1'`) fail by name, and are never read as something
else.
"""

from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tailer.shape.tree import Call, Values
from tailer.shape.types import BOOLEAN, DATE, INTEGERS, MAX_DIGITS, STRING, TIMESTAMP, TIMESTAMP_NTZ, as_decimal

__all__ = ["cast", "cast_can_fail", "castable"]

Cast = Callable[[pa.DataType, Values], Values]

_INTEGER: Final = r"\A-?[0-9]+\z"
_FLOATING: Final = r"\A(-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?|NaN|-?Infinity)\z"
_DATE: Final = r"\A[0-9]{4}-[0-9]{2}-[0-9]{2}\z"
_TRUE: Final = pa.array(["t", "true", "y", "yes", "1"])
_FALSE: Final = pa.array(["f", "false", "n", "no", "0"])
_FIRST_DAY: Final = -719_162  # 0001-01-01
_LAST_DAY: Final = 2_932_896  # 9999-12-31
_DAY_US: Final = 86_400_000_000
_PLAIN_SCALE: Final = 6  # Arrow writes decimals with more digits behind the point with an exponent


def cast(kind: pa.DataType, values: Values) -> Values:
    """Return values as another type. Raises `pa.ArrowInvalid` for a value that the type does not have."""
    convert = _way(values.type, kind)
    if convert is None:
        raise pa.ArrowInvalid(f"no cast from {values.type} to {kind}")
    return convert(kind, values)


def castable(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether `cast` can do this exactly."""
    return _way(source, target) is not None


def cast_can_fail(call: Call) -> bool:
    """Return whether there are values of the argument that the type of the result does not have."""
    source, target = call.arguments[0].kind, call.kind
    if pa.types.is_null(source) or source == target:
        return False
    if source in INTEGERS and target in INTEGERS:
        return INTEGERS[target] < INTEGERS[source]
    if pa.types.is_decimal(target) and (source in INTEGERS or pa.types.is_decimal(source)):
        source = as_decimal(source)
        return bool(target.scale < source.scale or target.precision - target.scale < source.precision - source.scale)
    return source == STRING or not pa.types.is_floating(target)


def _way(source: pa.DataType, target: pa.DataType) -> Cast | None:
    if source == target:
        return lambda _, values: values
    if pa.types.is_null(source):
        return lambda kind, _: pa.scalar(None, kind)
    if pa.types.is_decimal(source) or pa.types.is_decimal(target):
        return _decimal_way(source, target)
    families = _family(source), _family(target)
    return None if families[0] is None else _WAYS.get((families[0], families[1] or ""))


def _family(kind: pa.DataType) -> str | None:
    if kind in INTEGERS:
        return "integer"
    return "floating" if pa.types.is_floating(kind) else _FAMILIES.get(kind)


def _decimal_way(source: pa.DataType, target: pa.DataType) -> Cast | None:
    if pa.types.is_decimal(target):
        return _integer_to_decimal if source in INTEGERS else _rescale if pa.types.is_decimal(source) else None
    if pa.types.is_floating(target):
        # Through text, whose conversion is rounded correctly; Arrow's own is not.
        return lambda kind, values: pc.cast(pc.cast(values, STRING), kind)
    if target in INTEGERS:
        return _truncate
    return _checked if target == STRING and source.scale <= _PLAIN_SCALE else None


def _checked(kind: pa.DataType, values: Values) -> Values:
    return pc.cast(values, kind)


def _rounded(kind: pa.DataType, values: Values) -> Values:
    return pc.cast(values, kind, safe=False)


def _truncate(kind: pa.DataType, values: Values) -> Values:
    source = values.type
    if pa.types.is_decimal(source) and source.precision == source.scale:  # Arrow wants a digit for the zero
        return pc.cast(pc.trunc(pc.cast(values, pa.decimal256(source.precision + 1, source.scale))), kind)
    return pc.cast(pc.trunc(values), kind)


def _integer_to_decimal(kind: pa.DataType, values: Values) -> Values:
    """Arrow wants room for every value of the integer type, and refuses a narrower decimal whatever the values are."""
    digits = INTEGERS[values.type]
    if kind.precision - kind.scale >= digits:
        return pc.cast(values, kind)
    return pc.cast(pc.cast(values, pa.decimal128(digits, 0)), kind)


def _rescale(kind: pa.DataType, values: Values) -> Values:
    """Round half away from zero where digits behind the point are lost: a digit more may be needed before it."""
    source = values.type
    if kind.scale < source.scale:
        values = pc.cast(values, pa.decimal128(min(source.precision + 1, MAX_DIGITS), source.scale))
        values = pc.round(values, ndigits=kind.scale, round_mode="half_towards_infinity")
    return pc.cast(values, kind)


def _from_text(form: str) -> Cast:
    def run(kind: pa.DataType, values: Values) -> Values:
        if not _all(pc.match_substring_regex(values, pattern=form)):
            raise pa.ArrowInvalid(f"a text is not in the form of {kind}")
        return pc.cast(values, kind)

    return run


def _text_to_boolean(_: pa.DataType, values: Values) -> Values:
    texts = pc.ascii_lower(values)
    answer = pc.is_in(texts, value_set=_TRUE)
    if not _all(pc.or_(pc.or_(answer, pc.is_in(texts, value_set=_FALSE)), pc.is_null(values))):
        raise pa.ArrowInvalid("a text is not in the form of boolean")
    return pc.if_else(pc.is_null(values), pa.scalar(None, BOOLEAN), answer)


def _date_to_text(kind: pa.DataType, values: Values) -> Values:
    _check_years(pc.cast(values, pa.int32()), _FIRST_DAY, _LAST_DAY)
    return pc.cast(values, kind)


def _timestamp_to_text(kind: pa.DataType, values: Values) -> Values:
    _check_years(pc.cast(values, pa.int64()), _FIRST_DAY * _DAY_US, (_LAST_DAY + 1) * _DAY_US - 1)
    texts = pc.cast(pc.cast(values, TIMESTAMP_NTZ), kind)
    return pc.utf8_rtrim(pc.utf8_rtrim(texts, characters="0"), characters=".")


def _check_years(values: Values, first: int, last: int) -> None:
    if not _all(pc.and_(pc.less_equal(first, values), pc.less_equal(values, last))):
        raise pa.ArrowInvalid("a year is not among 1 to 9999")


def _all(holds: Values) -> bool:
    """Return whether something holds for all values that are not null."""
    return holds.as_py() is not False if isinstance(holds, pa.Scalar) else holds.false_count == 0


_FAMILIES: Final = {
    BOOLEAN: "boolean",
    STRING: "text",
    DATE: "date",
    TIMESTAMP: "timestamp",
    TIMESTAMP_NTZ: "timestamp",
}
_WAYS: Final[dict[tuple[str, str], Cast]] = {
    ("integer", "integer"): _checked,
    ("integer", "floating"): _rounded,
    ("integer", "text"): _checked,
    ("integer", "boolean"): _checked,
    ("floating", "integer"): _truncate,
    ("floating", "floating"): _rounded,
    ("boolean", "integer"): _checked,
    ("boolean", "text"): _checked,
    ("text", "integer"): _from_text(_INTEGER),
    ("text", "floating"): _from_text(_FLOATING),
    ("text", "boolean"): _text_to_boolean,
    ("text", "date"): _from_text(_DATE),
    ("date", "timestamp"): _checked,
    ("date", "text"): _date_to_text,
    ("timestamp", "date"): _checked,
    ("timestamp", "timestamp"): _checked,
    ("timestamp", "text"): _timestamp_to_text,
}
