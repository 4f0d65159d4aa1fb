"""JSON texts as they are compared: equal for values between which the source makes no difference.

A mirror may have JSON of an earlier version, of rows that did not change: without the fields that a struct got later,
with fields and entries of maps in another order, and with other spellings of the numbers of a Variant, or of those that
were integers before they were widened.
"""

import json
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import msgspec
import pyarrow as pa

from tailer.events import is_struct, is_variant

__all__ = ["comparable_json"]

_TEXT: Final = pa.large_string()
_encode = msgspec.json.Encoder(order="sorted").encode


class _Number(str):
    """A number of JSON, with all digits."""

    __slots__ = ()


def comparable_json(kind: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    """Return what turns JSON texts of values of `kind` into texts to compare. A text that is no JSON stays as it is."""

    def convert(text: str | None) -> str | None:
        if text is None:
            return None
        try:
            value = json.loads(text, parse_int=_Number, parse_float=_Number, parse_constant=_Number)
        except ValueError:
            return text
        return _encode(_comparable(kind, value)).decode()

    return lambda texts: pa.array([convert(text) for text in texts.to_pylist()], _TEXT)


def _comparable(kind: pa.DataType, value: Any) -> Any:
    """Return a value as it is encoded. What does not fit the type is encoded as it is."""
    if isinstance(value, _Number):
        by_value = is_variant(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
        return msgspec.Raw((_by_value(value) if by_value else value).encode())
    if is_variant(kind):
        return _nested(value, lambda child: _comparable(kind, child))
    if is_struct(kind) and isinstance(value, dict):
        kinds = {field.name: field.type for field in kind}
        present = {name: child for name, child in value.items() if child is not None or name not in kinds}
        return {name: _comparable(kinds.get(name, pa.null()), child) for name, child in present.items()}
    if pa.types.is_map(kind) and isinstance(value, dict):
        return {name: _comparable(kind.item_type, child) for name, child in value.items()}
    if pa.types.is_map(kind) and isinstance(value, list):
        entry = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
        return sorted((msgspec.Raw(_encode(_comparable(entry, child))) for child in value), key=bytes)
    if isinstance(value, list) and (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return [_comparable(kind.value_type, child) for child in value]
    return _nested(value, lambda child: _comparable(pa.null(), child))


def _nested(value: Any, convert: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        return {name: convert(child) for name, child in value.items()}
    return [convert(child) for child in value] if isinstance(value, list) else value


def _by_value(number: str) -> str:
    try:
        return format(Decimal(number).normalize(), "f")
    except InvalidOperation:
        return number
