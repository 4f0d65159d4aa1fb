"""Timestamps of 96 bits, which Spark writes by default, decoded as Spark decodes them.

Such a value has the nanoseconds of the day and the Julian day number, both signed. Arrow takes them for unsigned: it
decodes all of -4713-11-24 as 1970-01-01, and an earlier moment as one in another year. Nothing in its result shows
that, in any unit. So the footer is changed in memory before Arrow sees it: the columns are fixed-size binary of 12
bytes there, whose encodings are the same, and are decoded here.
"""

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tailer.read.parquet.thrift import STRUCT, list_offset, list_size, skip
from tailer.variant.nested import Change, changed, changes_where

__all__ = ["decoder", "int96_paths", "open_as_binary"]

_MAGIC: Final = b"PAR1"
_SCHEMA: Final = 2  # the number of the field that is a list of the file's columns
_INT96: Final = b"\x15\x06"  # how a column begins: its type
_FIXED_SIZE: Final = b"\x15\x0e"
_LENGTH: Final = b"\x05\x04\x18\0"  # how it ends then: its length in bytes, which comes second elsewhere

_RAW: Final = pa.binary(12)
# Given a plain number, Arrow looks for numpy first, every time.
_ZERO, _THOUSAND = pa.scalar(0, pa.int64()), pa.scalar(1000, pa.int64())
_DAY_US: Final = pa.scalar(86_400_000_000, pa.int64())
_EPOCH_DAY: Final = pa.scalar(2_440_588, pa.int64())  # the Julian day number of 1970-01-01
_EPOCH_US: Final = pa.scalar(2_440_588 * 86_400_000_000, pa.int64())


def int96_paths(schema: pq.ParquetSchema) -> list[str]:
    """Return the paths of the columns that have timestamps of 96 bits, on any level."""
    columns = map(schema.column, range(len(schema)))
    return [column.path for column in columns if column.physical_type == "INT96"]


def open_as_binary(source: pa.NativeFile, footer: bytes, **options: Any) -> pq.ParquetFile:
    """Open the Parquet file in `source`, which has this footer, with its timestamps of 96 bits as binary.

    Raises `ArrowInvalid` for a footer that is not understood.
    """
    content = _with_binary(footer)
    whole = b"".join([_MAGIC, content, len(content).to_bytes(4, "little"), _MAGIC])
    metadata = pq.read_metadata(pa.BufferReader(whole))
    if int96_paths(metadata.schema):
        raise _not_understood()
    return pq.ParquetFile(source, metadata=metadata, **options)


def _with_binary(footer: bytes) -> bytes:
    try:
        count, at = list_size(footer, list_offset(footer, 0, _SCHEMA), STRUCT)
        parts = [footer[:at]]
        for _ in range(count):
            end = skip(footer, at, STRUCT)
            column, at = footer[at:end], end
            is_int96 = column.startswith(_INT96)
            parts.append(_FIXED_SIZE + column[len(_INT96) : -1] + _LENGTH if is_int96 else column)
    except (LookupError, ValueError, RecursionError) as error:
        raise _not_understood() from error
    return b"".join([*parts, footer[at:]])


def _not_understood() -> pa.ArrowInvalid:
    return pa.ArrowInvalid("the footer of a file with timestamps of 96 bits is not understood")


def decoder(kind: pa.DataType) -> Change:
    """Return what turns a column that was read as binary into one of type `kind`.

    It raises `ArrowInvalid` for a value that is no timestamp.
    """
    changes = changes_where(kind, pa.types.is_timestamp, _timestamps)

    def decode(values: pa.Array) -> pa.Array:
        found = changed(values, changes)
        # Arrow views nothing where a required field lies in a struct that is null.
        return found if found.type.equals(kind) else found.view(kind)

    return decode


def _timestamps(values: pa.Array) -> pa.Array:
    if not values.type.equals(_RAW):  # timestamps of 64 bits beside them
        return values
    day = pc.binary_slice(values, 8, 12).view(pa.int32()).cast(pa.int64())
    micros = pc.divide(pc.binary_slice(values, 0, 8).view(pa.int64()), _THOUSAND)
    # Spark counts from Julian day 0, and this sum wraps for the last years that timestamps have. Subtracting after the
    # sum of a negative day undoes that.
    is_negative = pc.less(day, _ZERO)
    try:
        days = pc.if_else(is_negative, day, pc.subtract(day, _EPOCH_DAY))
        found = pc.add_checked(pc.multiply_checked(days, _DAY_US), micros)
    except pa.ArrowInvalid as error:
        raise pa.ArrowInvalid("a timestamp of 96 bits is outside of the years that timestamps have") from error
    return pc.subtract(found, pc.if_else(is_negative, _EPOCH_US, _ZERO)).view(pa.timestamp("us"))
