"""Columns as the texts that databases read: numbers, dates and JSON, a whole column at a time.

The texts are those of `tailer_sinks.encoding.values`. Nested values and Variants are stored as JSON.
"""

from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tailer.events import is_variant
from tailer_sinks.encoding.columns import NoText, whole, writer_for

__all__ = [
    "NUL",
    "NUL_IN_JSON",
    "TEXT",
    "Convert",
    "NoText",
    "bare_texts",
    "cast_or_kept",
    "holds_json",
    "is_bytes",
    "is_text",
    "json_texts",
]

TEXT: Final = pa.large_string()
NUL: Final = "\0"
NUL_IN_JSON: Final = r"(^|[^\\])(\\\\)*\\u0000"
Convert = Callable[[pa.Array], pa.Array]


def holds_json(kind: pa.DataType) -> bool:
    """Return whether values of `kind` are stored as JSON."""
    return is_variant(kind) or bool(pa.types.is_nested(kind))


def is_text(kind: pa.DataType) -> bool:
    """Return whether values of `kind` are texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_bytes(kind: pa.DataType) -> bool:
    """Return whether values of `kind` are bytes."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def cast_or_kept(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column in the wider type `kind`, or as it is if that lacks one of its values, such as a far date.

    One that is stored as JSON stays as it is.
    """
    try:
        return column if column.type == kind or holds_json(kind) else column.cast(kind)
    except pa.ArrowInvalid:
        return column


def json_texts(kind: pa.DataType) -> Convert:
    """Return what turns columns of `kind` into JSON texts, with the nulls of the column. Raises `NoText`."""
    writer = writer_for(kind)

    def convert(column: pa.Array) -> pa.Array:
        texts = whole(writer(column))
        return texts if column.null_count == 0 else pc.if_else(column.is_valid(), texts, pa.scalar(None, TEXT))

    return convert


def bare_texts(kind: pa.DataType) -> Convert:
    """Return what turns columns of decimals, dates, times or moments into their JSON texts without the quotes."""
    convert = json_texts(kind)
    return lambda column: pc.utf8_slice_codeunits(convert(column), 1, -1)
