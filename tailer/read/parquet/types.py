"""Types of Parquet files that can be read as types of a table, besides those with the same name."""

from collections.abc import Callable
from typing import Final

import pyarrow as pa

from tailer.schema.columns import widens

__all__ = ["are_raw", "reads_as"]


def reads_as(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether a checked cast from `found` to `wanted` preserves every value."""
    if found.equals(wanted) or pa.types.is_null(found) or pa.types.is_null(wanted):
        return True
    if pa.types.is_dictionary(found):
        return reads_as(found.value_type, wanted)
    if isinstance(found, pa.BaseExtensionType):  # of Arrow, such as JSON or UUID
        return reads_as(found.storage_type, wanted)
    return widens(found, wanted) or any(of(found) and to(wanted) for of, to in _CASTS)


def are_raw(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether a sound file may store values of `wanted` as plain numbers, whose meaning it does not say."""
    is_number = found in (pa.int32(), pa.int64())
    if pa.types.is_decimal(wanted):
        return is_number or _is_bytes(found)
    return is_number and bool(pa.types.is_temporal(wanted))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    fixed = pa.types.is_fixed_size_binary(kind) and not pa.types.is_decimal(kind)
    return bool(fixed or pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


def _is_small_unsigned(kind: pa.DataType) -> bool:
    return bool(pa.types.is_unsigned_integer(kind) and kind.bit_width < 64)


# Besides what widens. Delta has no unsigned types: a table converted from Parquet has the next wider one, and
# decimal(20,0) for the widest. Integers and decimals are checked by the cast. Text without its annotation is bytes in
# the file, and is checked to be UTF-8. Bytes that the file annotates as text are bytes.
_CASTS: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], bool]], ...]] = (
    (pa.types.is_integer, pa.types.is_integer),
    (pa.types.is_unsigned_integer, pa.types.is_decimal),
    (_is_small_unsigned, pa.types.is_float64),
    (pa.types.is_decimal, pa.types.is_decimal),
    (pa.types.is_timestamp, pa.types.is_timestamp),
    (_is_text, _is_text),
    (_is_bytes, _is_text),
    (_is_text, _is_bytes),
    (_is_bytes, _is_bytes),
)
