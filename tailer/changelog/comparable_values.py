"""Values in the types in which DuckDB compares them: equal there if, and only if, no reader can distinguish them."""

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tailer.events import is_variant
from tailer.variant import compare_keys

__all__ = ["comparable"]

_BITS: Final = {pa.float32(): pa.int32(), pa.float64(): pa.int64()}
_NAN: Final = {pa.float32(): 0x7FC00000, pa.float64(): 0x7FF8000000000000}


def comparable(values: pa.Array) -> pa.Array:
    """Convert `values` to types that DuckDB accepts and whose sort keys are equal only for equal values.

    Floating point numbers become their bits, Variants the texts that compare their values. Maps become lists of their
    entries, as a map may have duplicate keys.
    """
    kind = values.type
    if is_variant(kind):
        return compare_keys(values)
    if values.offset and pa.types.is_nested(kind):
        values = values.take(pa.array(range(len(values))))  # nested values of a slice may begin at any offset
    if not _needs_conversion(kind):
        return values
    if pa.types.is_floating(kind):
        return pc.if_else(pc.is_nan(values), pa.scalar(_NAN[kind], _BITS[kind]), values.view(_BITS[kind]))
    if pa.types.is_struct(kind):
        children = [comparable(child) for child in values.flatten()]
        names = [f"f{index}" for index in range(len(children))]
        return pa.StructArray.from_arrays(children, names, mask=values.is_null())
    parts = values.values
    if pa.types.is_map(kind):
        parts = pa.StructArray.from_arrays([values.keys, values.items], ["k", "v"])
    return pa.ListArray.from_arrays(values.offsets, comparable(parts), mask=values.is_null())


def _needs_conversion(kind: pa.DataType) -> bool:
    children = (kind.field(index).type for index in range(kind.num_fields))
    converted = pa.types.is_floating(kind) or pa.types.is_map(kind) or is_variant(kind)
    return bool(converted) or any(map(_needs_conversion, children))
