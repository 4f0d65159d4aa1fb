"""Rows as bytes: equal if, and only if, the rows are. For few rows, in memory.

A row is the concatenation of its values. Whoever reads it from the left knows where each value ends, so different rows
have different bytes:

- In a column with nulls, each value begins with a byte that says whether it is null.
- A value of fixed width is its bytes, a text or binary its length and its bytes. A null has neither.
- A struct is the concatenation of its fields, a list its length and the concatenation of its elements.

Only bytes that were made by the same call can be compared.
"""

from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["has_bytes", "most_bytes", "row_bytes"]

_FIXED_WIDTH: Final = (
    pa.types.is_integer,
    pa.types.is_boolean,
    pa.types.is_temporal,
    pa.types.is_decimal,
    pa.types.is_fixed_size_binary,
)
_LISTS: Final = (pa.types.is_list, pa.types.is_large_list)
_TEXTS: Final = (pa.types.is_string, pa.types.is_binary, pa.types.is_large_string, pa.types.is_large_binary)
_BYTE_BITS: Final = 8
_LENGTH_BYTES: Final = 4


def has_bytes(kind: pa.DataType) -> bool:
    """Return whether `row_bytes` takes columns of a type that `comparable_values` returns."""
    if pa.types.is_struct(kind):
        return all(has_bytes(field.type) for field in kind)
    if _is_one_of(kind, _LISTS):
        return has_bytes(kind.value_type)
    return pa.types.is_null(kind) or _is_one_of(kind, _TEXTS + _FIXED_WIDTH)


def most_bytes(column: pa.Array) -> int:
    """Return how many bytes the values of a column have at most, also where many share a buffer or need none."""
    kind = column.type
    if pa.types.is_struct(kind):
        return len(column) + sum(most_bytes(column.field(index)) for index in range(kind.num_fields))
    if _is_one_of(kind, _LISTS):
        return len(column) * (1 + _LENGTH_BYTES) + most_bytes(column.values)
    if _is_one_of(kind, _TEXTS):
        return len(column) * (1 + _LENGTH_BYTES) + int(column.nbytes)
    return len(column) * (1 + (0 if pa.types.is_null(kind) else max(kind.bit_width // _BYTE_BITS, 1)))


def row_bytes(columns: Sequence[pa.Array], rows: int) -> pa.Array:
    """Return a binary for each of `rows` rows. By `most_bytes` they must have less than 2 GB together.

    `columns` are as `comparable_values` returns them, so that equal values of fixed width have equal bytes.
    """
    parts = [part for column in columns for part in _parts(column)]
    if not parts:
        return pa.array([b""], pa.binary()).take(pa.nulls(rows, pa.int8()).fill_null(0))
    return pc.binary_join_element_wise(*parts, b"", null_handling="replace", null_replacement=b"")


def _parts(column: pa.Array) -> list[pa.Array]:
    """Return binaries whose concatenation stands for a value. A null in them is left out."""
    kind = column.type
    if pa.types.is_null(kind):
        return []
    valid = [_fixed(column.is_valid().cast(pa.int8()))] if column.null_count else []
    if _is_one_of(kind, _TEXTS):
        return [*valid, _lengths(pc.binary_length(column)), column.cast(pa.binary())]
    if pa.types.is_struct(kind):
        return [*valid, *(part for field in column.flatten() for part in _parts(field))]
    if _is_one_of(kind, _LISTS):
        return [*valid, _lengths(pc.list_value_length(column)), _elements(column)]
    return [*valid, _fixed(column.cast(pa.int8()) if pa.types.is_boolean(kind) else column)]


def _elements(column: pa.Array) -> pa.Array:
    """Return the concatenated elements of each list: a slice of the bytes of all elements."""
    elements = row_bytes([column.values], len(column.values))
    _, ends, data = elements.buffers()
    bounds = pa.Array.from_buffers(pa.int32(), len(elements) + 1, [None, ends], offset=elements.offset)
    taken = bounds.take(column.offsets)
    lists = pa.Array.from_buffers(pa.binary(), len(column), [None, taken.buffers()[1], data], offset=taken.offset)
    return pc.if_else(column.is_valid(), lists, pa.scalar(None, pa.binary()))


def _lengths(lengths: pa.Array) -> pa.Array:
    return _fixed(lengths.cast(pa.int32()))


def _fixed(column: pa.Array) -> pa.Array:
    return column.view(pa.binary(column.type.bit_width // _BYTE_BITS)).cast(pa.binary())


def _is_one_of(kind: pa.DataType, tests: Sequence[Callable[[pa.DataType], bool]]) -> bool:
    return any(test(kind) for test in tests)
