"""Timestamps of 96 bits, which Spark writes by default, decoded as Spark decodes them.

Such a value is the nanoseconds of the day and the number of the day in the Julian count, both signed. Arrow takes them
for unsigned ones and its result wraps around, so a moment before -4713-11-24, or one that Spark's own addition wrapped,
would come out as another moment that looks sound. Therefore the footer is changed in memory before Arrow sees it: the
columns are fixed-size binary of 12 bytes there, whose encodings are the same, and are decoded here.
"""

import struct
from collections.abc import Iterable
from functools import cache
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tailer.read.thrift import behind, fields, list_size

__all__ = ["Int96"]

_WIDTH: Final = 12
_CHUNK: Final = 8192
_FEW: Final = 100  # for more it pays to ask Arrow
_NANOS_AND_DAY: Final = struct.Struct("<qi")
_DAY_US: Final = 86_400_000_000
_EPOCH_DAY: Final = 2_440_588  # 1970-01-01 in the Julian count

_NEAR_DAYS: Final = 100_000_000  # no sum overflows within as many days of either sign

_MAGIC: Final = b"PAR1"
_SCHEMA: Final = 2  # the number of the field that is a list of the file's columns
_I32, _LIST, _STRUCT = 5, 9, 12
_TYPE: Final = 0x15  # the header of an i32 that is the first field of a column, or the next one: type and length
_INT96, _FIXED, _FIXED_WIDTH = 2 * 3, 2 * 7, 2 * _WIDTH  # as zigzag numbers


class Int96:
    """The columns of one Parquet file that have timestamps of 96 bits, on any level.

    `schema`: the file's Arrow schema, in which they are timestamps.
    """

    def __init__(self, file: pq.ParquetFile) -> None:
        self.schema: pa.Schema = file.schema_arrow
        self._types = {field.name: field.type for field in self.schema}

    @classmethod
    def of(cls, file: pq.ParquetFile) -> Self | None:
        """Those of `file`; None where it has none."""
        schema = file.schema
        return cls(file) if "INT96" in {schema.column(index).physical_type for index in range(len(schema))} else None

    def reopened(self, source: pa.NativeFile, **options: Any) -> pq.ParquetFile:
        """The same file with these columns as fixed-size binary. Raises `ArrowInvalid` for a footer it cannot change.

        `options`: those with which the file was opened.
        """
        end = source.size() - 8
        source.seek(end)
        size = int.from_bytes(source.read(4), "little")
        source.seek(end - size)
        try:
            footer = _with_fixed_size(source.read(size))
        except (IndexError, StopIteration, ValueError) as error:
            raise pa.ArrowInvalid("the footer of a file with timestamps of 96 bits is not understood") from error
        whole = _MAGIC + footer + len(footer).to_bytes(4, "little") + _MAGIC
        return pq.ParquetFile(source, metadata=pq.read_metadata(pa.BufferReader(whole)), **options)

    def decoded(self, batch: pa.RecordBatch, columns: Iterable[str]) -> pa.RecordBatch:
        """`batch` with the timestamps of `columns`, which are whole columns of the file, as such.

        Raises `ArrowInvalid` for a value that is no timestamp.
        """
        wanted = set(columns)
        arrays = [
            _decoded(array, self._types[name]) if name in wanted else array
            for name, array in zip(batch.schema.names, batch.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, batch.schema.names)


def _decoded(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if values.type.equals(kind):
        return values
    if pa.types.is_timestamp(kind):
        return _timestamps(values).view(kind)
    if values.offset:
        values = values.take(pa.array(range(len(values)), pa.int64()))  # what is nested in a slice may begin anywhere
    if pa.types.is_struct(kind):
        children = [_decoded(values.field(index), kind.field(index).type) for index in range(kind.num_fields)]
    elif pa.types.is_map(kind):
        keys, items = _decoded(values.keys, kind.key_type), _decoded(values.items, kind.item_type)
        children = [pa.StructArray.from_arrays([keys, items], fields=[kind.key_field, kind.item_field])]
    else:
        children = [_decoded(values.values, kind.value_type)]
    own = 1 if pa.types.is_struct(kind) or pa.types.is_fixed_size_list(kind) else 2
    return pa.Array.from_buffers(kind, len(values), values.buffers()[:own], children=children)


def _timestamps(values: pa.Array) -> pa.Array:
    chunks = [_chunk(values.slice(first, _CHUNK)) for first in range(0, len(values), _CHUNK)]
    return pa.concat_arrays(chunks) if len(chunks) > 1 else chunks[0] if chunks else pa.array([], pa.timestamp("us"))


def _chunk(values: pa.Array) -> pa.Array:
    """Timestamps without a zone, for at most `_CHUNK` values of 96 bits."""
    count, begin = len(values), values.offset * _WIDTH
    if count <= _FEW:
        return _one_by_one(values)
    valid = None if values.null_count == 0 else pc.is_valid(values).buffers()[1]
    words = pa.Array.from_buffers(pa.int32(), 3 * count, [None, values.buffers()[1].slice(begin)])
    nanos, days = (pc.take(words, places, boundscheck=False).buffers()[1] for places in _places(count))
    nano = pa.Array.from_buffers(pa.int64(), count, [valid, nanos])
    day = pa.Array.from_buffers(pa.int32(), count, [valid, days])
    ends = pc.min_max(day)
    first, last = ends["min"].as_py(), ends["max"].as_py()
    if first is not None and (first < -_NEAR_DAYS or last > _NEAR_DAYS):
        return _one_by_one(values)
    start = pc.multiply(pc.subtract(day, pa.scalar(_EPOCH_DAY, pa.int32())), _int64(_DAY_US))
    return pc.add(start, pc.divide(nano, _int64(1000))).view(pa.timestamp("us"))


def _one_by_one(values: pa.Array) -> pa.Array:
    micros = [None if value is None else _micros(*_NANOS_AND_DAY.unpack(value)) for value in values.to_pylist()]
    return pa.array(micros, pa.int64()).view(pa.timestamp("us"))


def _micros(nanos: int, day: int) -> int:
    """The timestamp of one value. Spark wrote some of those far off with a sum that wraps, which is undone here."""
    micros = (day - _EPOCH_DAY) * _DAY_US + (nanos // 1000 if nanos >= 0 else -(-nanos // 1000))
    if micros < -(2**63) <= micros + _EPOCH_DAY * _DAY_US:
        micros += 2**64
    if not -(2**63) <= micros < 2**63:
        raise pa.ArrowInvalid("a timestamp of 96 bits is outside of the years that timestamps have")
    return micros


def _places(count: int) -> tuple[pa.Array, pa.Array]:
    """Return the indices of the words with nanoseconds and of those with days, among three for each value."""
    nanos, days = _all_places()
    return nanos.slice(0, 2 * count), days.slice(0, count)


@cache
def _all_places() -> tuple[pa.Array, pa.Array]:
    words = range(3 * _CHUNK)
    return pa.array([word for word in words if word % 3 < 2], pa.int32()), pa.array(words[2::3], pa.int32())


def _int64(value: int) -> pa.Scalar:
    # Given a plain number, Arrow looks for numpy first, every time.
    return pa.scalar(value, pa.int64())


def _with_fixed_size(footer: bytes) -> bytes:
    """A footer in whose schema columns of 96 bits are fixed-size binary."""
    schema = next(at for field, kind, at in fields(footer, 0) if (field, kind) == (_SCHEMA, _LIST))
    count, at = list_size(footer, schema)
    changed, copied = bytearray(), 0
    for _ in range(count):
        if footer[at] == _TYPE and footer[at + 1] == _INT96:
            following = footer[at + 2]
            changed += footer[copied:at] + bytes([_TYPE, _FIXED, _TYPE, _FIXED_WIDTH])
            if following == _TYPE:  # it has a length already, which says nothing
                copied = behind(footer, at + 3, _I32)
            elif following >> 4 > 1:
                changed.append(following - 0x10)
                copied = at + 3
            else:
                raise ValueError(following)
        at = behind(footer, at, _STRUCT)
    return bytes(changed + footer[copied:])
