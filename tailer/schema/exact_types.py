"""Types that Delta and Spark lack, as the types there that have each of their values.

A vector (fixed-size list) is an array, an unsigned integer the next wider signed one, a half float a float, and a
dictionary its values.
"""

from typing import Final

import pyarrow as pa

from tailer.events import is_variant

__all__ = ["exact_type"]

_EXACT: Final = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.timestamp("s"): pa.timestamp("us"),
    pa.timestamp("ms"): pa.timestamp("us"),
}


def exact_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that has each value of `kind`; `kind` itself where there is none, or none is needed."""
    if is_variant(kind):
        return kind  # and not a struct with the same fields
    if pa.types.is_dictionary(kind):
        return exact_type(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(child.name, exact_type(child.type)) for child in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(pa.field("element", exact_type(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(exact_type(kind.key_type), exact_type(kind.item_type))
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp("us" if kind.unit in ("s", "ms") else kind.unit, tz="UTC")
    return _EXACT.get(kind, kind)
