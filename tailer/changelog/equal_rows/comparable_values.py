"""Values in the types in which they are compared: equal there if, and only if, no reader can distinguish them."""

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tailer.changelog.equal_rows.row_bytes import has_bytes, row_bytes
from tailer.events import is_variant
from tailer.variant import compare_keys

__all__ = ["comparable"]

_BITS: Final = {pa.float16(): pa.int16(), pa.float32(): pa.int32(), pa.float64(): pa.int64()}
_NAN: Final = {pa.float16(): 0x7E00, pa.float32(): 0x7FC00000, pa.float64(): 0x7FF8000000000000}


def comparable(values: pa.Array, maps_in_order: bool = False) -> pa.Array:
    """Convert `values` to types that DuckDB accepts and whose sort keys and bytes are equal only for equal values.

    Floating point numbers become their bits, Variants the texts that compare their values. Times become numbers, but
    for the types that Delta has: DuckDB rounds durations, and dates of milliseconds. Maps become lists of their
    entries, sorted by key, because a map has no order: Spark groups by maps in the same way. Entries with equal keys
    stay in their order. `maps_in_order`: leave all entries in their order.
    """
    kind = values.type
    if is_variant(kind):
        return compare_keys(values)
    if pa.types.is_dictionary(kind):
        return comparable(values.dictionary_decode(), maps_in_order)
    if values.offset and pa.types.is_nested(kind):
        values = values.take(pa.array(range(len(values)), pa.int64()))  # nested values of a slice may begin anywhere
    if not _needs_conversion(kind):
        return values
    if pa.types.is_floating(kind):
        is_nan = pc.is_nan(values.cast(pa.float32()) if pa.types.is_float16(kind) else values)
        return pc.if_else(is_nan, pa.scalar(_NAN[kind], _BITS[kind]), values.view(_BITS[kind]))
    if _is_counted(kind):
        return values.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    if pa.types.is_struct(kind):
        children = [comparable(child, maps_in_order) for child in values.flatten()]
        names = [f"f{index}" for index in range(len(children))]
        return pa.StructArray.from_arrays(children, names, mask=values.is_null())
    if pa.types.is_fixed_size_list(kind):
        offsets = pa.array([kind.list_size * index for index in range(len(values) + 1)], pa.int32())
        return pa.ListArray.from_arrays(offsets, comparable(values.values, maps_in_order), mask=values.is_null())
    if pa.types.is_map(kind):
        return _entries(values, maps_in_order)
    made = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
    return made.from_arrays(values.offsets, comparable(values.values, maps_in_order), mask=values.is_null())


def _entries(maps: pa.MapArray, maps_in_order: bool) -> pa.ListArray:
    parts = [comparable(each, maps_in_order) for each in (maps.keys, maps.items)]
    offsets, entries = maps.offsets, pa.StructArray.from_arrays(parts, ["k", "v"])
    if not maps_in_order and has_bytes(parts[0].type):
        offsets, entries = _by_key(offsets, entries)
    return pa.ListArray.from_arrays(offsets, entries, mask=maps.is_null())


def _by_key(offsets: pa.Array, entries: pa.StructArray) -> tuple[pa.Array, pa.Array]:
    """Sort the entries of each map by the bytes of their keys; return the offsets of maps, and the entries.

    Bytes of other batches may differ, but sort in the same order.
    """
    lists = pa.ListArray.from_arrays(offsets, entries)
    entries = lists.flatten()
    keys = row_bytes([entries.field("k")], len(entries))
    columns = [pc.list_parent_indices(lists), keys, pa.array(range(len(entries)), pa.int64())]
    rows = pa.RecordBatch.from_arrays(columns, ["map", "key", "nth"])
    order = pc.sort_indices(rows, [(name, "ascending") for name in rows.schema.names])
    return pc.subtract(offsets, offsets[0]), entries.take(order)


def _is_counted(kind: pa.DataType) -> bool:
    """Return whether values of `kind` are counts of a unit of time that are compared as numbers."""
    as_in_delta = pa.types.is_date32(kind) or (pa.types.is_timestamp(kind) and kind.unit == "us")
    return bool(pa.types.is_temporal(kind) and not as_in_delta)


def _needs_conversion(kind: pa.DataType) -> bool:
    children = (kind.field(index).type for index in range(kind.num_fields))
    # Keys of maps are sorted by their bytes, which fixed-size lists do not have (`has_bytes`).
    nested = pa.types.is_map, pa.types.is_fixed_size_list
    tests = *nested, pa.types.is_floating, pa.types.is_dictionary, is_variant, _is_counted
    converted = any(test(kind) for test in tests)
    return bool(converted) or any(map(_needs_conversion, children))
