"""Values in the types in which they are compared: equal there if, and only if, no reader can distinguish them."""

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tailer.events import is_variant
from tailer.variant import compare_keys

__all__ = ["comparable"]

_BITS: Final = {pa.float16(): pa.int16(), pa.float32(): pa.int32(), pa.float64(): pa.int64()}
_NAN: Final = {pa.float16(): 0x7E00, pa.float32(): 0x7FC00000, pa.float64(): 0x7FF8000000000000}


def comparable(values: pa.Array) -> pa.Array:
    """Convert `values` to types that DuckDB accepts and whose sort keys and bytes are equal only for equal values.

    Floating point numbers become their bits, Variants the texts that compare their values. Times become numbers, but
    for the types that Delta has: DuckDB rounds durations, and dates of milliseconds. Maps become lists of their
    entries, as a map may have duplicate keys.
    """
    kind = values.type
    if is_variant(kind):
        return compare_keys(values)
    if pa.types.is_dictionary(kind):
        return comparable(values.dictionary_decode())
    if values.offset and pa.types.is_nested(kind):
        values = values.take(pa.array(range(len(values))))  # nested values of a slice may begin at any offset
    if not _needs_conversion(kind):
        return values
    if pa.types.is_floating(kind):
        is_nan = pc.is_nan(values.cast(pa.float32()) if pa.types.is_float16(kind) else values)
        return pc.if_else(is_nan, pa.scalar(_NAN[kind], _BITS[kind]), values.view(_BITS[kind]))
    if _is_counted(kind):
        return values.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    if pa.types.is_struct(kind):
        children = [comparable(child) for child in values.flatten()]
        names = [f"f{index}" for index in range(len(children))]
        return pa.StructArray.from_arrays(children, names, mask=values.is_null())
    if pa.types.is_fixed_size_list(kind):
        offsets = pa.array([kind.list_size * index for index in range(len(values) + 1)], pa.int32())
        return pa.ListArray.from_arrays(offsets, comparable(values.values), mask=values.is_null())
    parts = values.values
    if pa.types.is_map(kind):
        parts = pa.StructArray.from_arrays([values.keys, values.items], ["k", "v"])
    made = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
    return made.from_arrays(values.offsets, comparable(parts), mask=values.is_null())


def _is_counted(kind: pa.DataType) -> bool:
    """Return whether values of `kind` are counts of a unit of time that are compared as numbers."""
    as_in_delta = pa.types.is_date32(kind) or (pa.types.is_timestamp(kind) and kind.unit == "us")
    return bool(pa.types.is_temporal(kind) and not as_in_delta)


def _needs_conversion(kind: pa.DataType) -> bool:
    children = (kind.field(index).type for index in range(kind.num_fields))
    tests = pa.types.is_floating, pa.types.is_map, pa.types.is_dictionary, is_variant, _is_counted
    converted = any(test(kind) for test in tests)
    return bool(converted) or any(map(_needs_conversion, children))
