"""Metadata columns whose value is one for many rows: made once, and shared by all batches."""

import struct
from functools import cache, lru_cache
from typing import Final

import pyarrow as pa

from tailer.events import METADATA_FIELDS, ChangeType
from tailer.read.batch_sizes import MAX_ROWS

__all__ = ["repeated", "stamps"]

_TIMESTAMP: Final = METADATA_FIELDS[-1].type


@lru_cache(maxsize=16)
def stamps(version: int, timestamp_ms: int, count: int) -> tuple[pa.Array, pa.Array]:
    """Return the columns of the commit's version and timestamp for `count` rows."""
    return _repeated_int64(version, pa.int64(), count), _repeated_int64(timestamp_ms * 1000, _TIMESTAMP, count)


@cache
def repeated(kind: ChangeType) -> pa.Array:
    """Return one change type for `MAX_ROWS` rows."""
    # Given plain text, Arrow looks for `dateutil`, which costs more than opening a small file.
    return pa.repeat(pa.scalar(kind.value, pa.string()), MAX_ROWS)


def _repeated_int64(value: int, kind: pa.DataType, count: int) -> pa.Array:
    # Twelve times as fast as `pa.repeat`, which appends one value after the other.
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(struct.pack("=q", value) * count)])
