"""Deletion files: the offsets of a fragment's deleted rows (Lance format, "Deletion").

An `.arrow` file is an Arrow IPC file with one batch and one column `row_id` of offsets, unsorted. Writers use uint32
where the specification says Int32, and may compress. A `.bin` file is one 32-bit Roaring bitmap.

The number of deleted rows in the manifest may be missing or wrong, so the file alone counts.
"""

from array import array

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from tailer.formats.lance.fragment import DeletionKind
from tailer.formats.lance.protobuf import InvalidMessage

__all__ = ["read_deletions"]


def read_deletions(kind: DeletionKind, data: bytes) -> BitMap:
    """Return the offsets in a deletion file. Raises `InvalidMessage` for bytes that are no such file."""
    return _read_arrow(data) if kind is DeletionKind.ARROW else _read_bitmap(data)


def _read_arrow(data: bytes) -> BitMap:
    try:
        table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidMessage(f"not an Arrow file: {error}") from error
    if table.num_columns != 1:
        raise InvalidMessage(f"it has {table.num_columns} columns, not one")
    offsets = table.column(0)
    if not pa.types.is_integer(offsets.type) or offsets.null_count:
        raise InvalidMessage(f"its column holds {offsets.type} with {offsets.null_count} nulls, not offsets")
    try:
        numbers = pc.cast(offsets, pa.uint32())
    except pa.ArrowInvalid as error:
        raise InvalidMessage(f"an offset does not fit into 32 bits: {error}") from error
    deleted = BitMap()
    for chunk in numbers.chunks:
        buffer, start = chunk.buffers()[1], 4 * chunk.offset
        if len(chunk):
            deleted |= BitMap(array("I", buffer[start : start + 4 * len(chunk)].to_pybytes()))
    return deleted


def _read_bitmap(data: bytes) -> BitMap:
    try:
        return BitMap.deserialize(data)
    except (ValueError, IndexError) as error:
        raise InvalidMessage(f"not a Roaring bitmap: {error}") from error
