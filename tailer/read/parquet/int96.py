"""Timestamps of 96 bits, which Spark writes by default, decoded as Spark decodes them.

Such a value is the nanoseconds of the day and the number of the day in the Julian count, both signed. Arrow takes them
for unsigned ones and its result wraps around: a moment before -4713-11-24, or one that Spark's own addition wrapped,
would come out as another moment that looks sound. A column chunk is decoded by Arrow if the headers of its pages show
that all values come from a dictionary, and no value of the dictionary wraps. For any other chunk the footer is changed
in memory before Arrow sees it: the columns are fixed-size binary of 12 bytes there, whose encodings are the same, and
are decoded here.
"""

import struct
from collections.abc import Container, Iterable, Mapping
from functools import cache
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tailer.read.parquet.dictionary import Dictionary
from tailer.read.parquet.footer import Chunk, Footer
from tailer.read.parquet.thrift import I32, LIST, STRUCT, behind, fields, list_size

__all__ = ["Int96"]

_WIDTH: Final = 12
_CHUNK: Final = 8192
_FEW: Final = 100  # for more it pays to ask Arrow
_NANOS_AND_DAY: Final = struct.Struct("<qi")
_DAY_US: Final = 86_400_000_000
_EPOCH_DAY: Final = 2_440_588  # 1970-01-01 in the Julian count

_NEAR_DAYS: Final = 100_000_000  # no sum overflows within as many days of either sign

_NOT_UNDERSTOOD: Final = "the footer of a file with timestamps of 96 bits is not understood"
_MAGIC: Final = b"PAR1"
_SCHEMA: Final = 2  # the number of the field that is a list of the file's columns
_TYPE: Final = 0x15  # the header of an i32 that is the first field of a column, or the next one: type and length
_INT96, _FIXED, _FIXED_WIDTH = 2 * 3, 2 * 7, 2 * _WIDTH  # as zigzag numbers


class Int96:
    """The columns of one Parquet file that have timestamps of 96 bits, on any level.

    `options`: those with which `file` was opened.
    """

    def __init__(
        self, file: pq.ParquetFile, source: pa.NativeFile, footer: Footer, leaves: Mapping[int, str], **options: Any
    ) -> None:
        self._file = file
        self._source = source
        self._footer = footer
        self._leaves = leaves
        self._options = options
        self._types = {field.name: field.type for field in file.schema_arrow}
        paths = tuple(f"{path}." for path in leaves.values())
        self._names = {name for name in self._types if any(path.startswith(f"{name}.") for path in paths)}
        self._reopened: pq.ParquetFile | None = None
        self._fixed: frozenset[int] = frozenset()  # the leaves that are fixed-size binary there

    @classmethod
    def of(cls, file: pq.ParquetFile, source: pa.NativeFile, footer: Footer, **options: Any) -> Self | None:
        """Return those of `file`; None where it has none."""
        columns = enumerate(map(file.schema.column, range(len(file.schema))))
        leaves = {index: column.path for index, column in columns if column.physical_type == "INT96"}
        return cls(file, source, footer, leaves, **options) if leaves else None

    def is_in_variant(self, column: str) -> bool:
        """Return whether a column may have some in shredded Variants, where Parquet does not allow them."""
        paths = (path for path in self._leaves.values() if path.startswith(f"{column}."))
        return any("typed_value" in path.split(".") for path in paths)

    def reader(self, group: int, columns: Iterable[str]) -> pq.ParquetFile:
        """Return the file, opened so that `decoded` gets all values of `columns` in a row group right.

        Raises `ArrowInvalid` for a footer that cannot be changed.
        """
        wanted = tuple(f"{name}." for name in columns)
        leaves = [index for index, path in self._leaves.items() if f"{path}.".startswith(wanted)]
        chunks = self._footer.chunks(group, leaves)
        fixed = frozenset(index for index, chunk in chunks.items() if not self._is_near(chunk))
        if not fixed:
            return self._file
        if self._reopened is None or not fixed <= self._fixed:
            # An open file holds a whole footer, so there are never many: the second one does for all row groups.
            self._fixed = fixed if self._reopened is None else frozenset(self._leaves)
            self._reopened = self._with_fixed_size()
        return self._reopened

    def _with_fixed_size(self) -> pq.ParquetFile:
        footer = _with_fixed_size(self._footer.content, self._fixed)
        whole = b"".join([_MAGIC, footer, len(footer).to_bytes(4, "little"), _MAGIC])
        metadata = pq.read_metadata(pa.BufferReader(whole))
        if any(metadata.schema.column(leaf).physical_type == "INT96" for leaf in self._fixed):
            raise pa.ArrowInvalid(_NOT_UNDERSTOOD)
        return pq.ParquetFile(self._source, metadata=metadata, **self._options)

    def _is_near(self, chunk: Chunk) -> bool:
        """Return whether it pays to look, and all values come from a dictionary in which Arrow decodes each right."""
        if chunk.num_values <= _FEW or not chunk.has_dictionary:
            return False
        dictionary = Dictionary(self._source, chunk)
        values = dictionary.raw(_WIDTH) if dictionary.has_all(chunk.num_values) else None
        return values is not None and _are_near(values)

    def decoded(self, batch: pa.RecordBatch, columns: Iterable[str]) -> pa.RecordBatch:
        """Return `batch` with the timestamps of `columns`, which are whole columns of the file, as such.

        Raises `ArrowInvalid` for a value that is no timestamp.
        """
        arrays = batch.columns
        for name in self._names.intersection(columns):
            index = batch.schema.get_field_index(name)
            arrays[index] = _decoded(arrays[index], self._types[name])
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
    """Return timestamps without a zone, for at most `_CHUNK` values of 96 bits."""
    if len(values) <= _FEW:
        return _one_by_one(values)
    nano, day = _parts(values)
    ends = pc.min_max(day)
    first, last = ends["min"].as_py(), ends["max"].as_py()
    if first is not None and (first < -_NEAR_DAYS or last > _NEAR_DAYS):
        return _one_by_one(values)
    start = pc.multiply(pc.subtract(day, pa.scalar(_EPOCH_DAY, pa.int32())), _int64(_DAY_US))
    return pc.add(start, pc.divide(nano, _int64(1000))).view(pa.timestamp("us"))


def _are_near(values: bytes) -> bool:
    """Return whether Arrow decodes each of these values right: its arithmetic is unsigned, and day 0 is a null to it.

    That is so where the nanoseconds have at most 48 bits, and the day has 17 to 24 bits: years -4533 to 41221.
    """
    none = bytes(len(values) // _WIDTH)
    return all(values[place::_WIDTH] == none for place in (6, 7, 11)) and 0 not in values[10::_WIDTH]


def _parts(values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the nanoseconds of the day and the days of at most `_CHUNK` values."""
    count, begin = len(values), values.offset * _WIDTH
    valid = None if values.null_count == 0 else pc.is_valid(values).buffers()[1]
    words = pa.Array.from_buffers(pa.int32(), 3 * count, [None, values.buffers()[1].slice(begin)])
    nanos, days = (pc.take(words, places, boundscheck=False).buffers()[1] for places in _places(count))
    nano = pa.Array.from_buffers(pa.int64(), count, [valid, nanos])
    return nano, pa.Array.from_buffers(pa.int32(), count, [valid, days])


def _one_by_one(values: pa.Array) -> pa.Array:
    micros = [None if value is None else _micros(*_NANOS_AND_DAY.unpack(value)) for value in values.to_pylist()]
    return pa.array(micros, pa.int64()).view(pa.timestamp("us"))


def _micros(nanos: int, day: int) -> int:
    """Return the timestamp of one value. Spark wrote some of those far off with a sum that wraps: undone here."""
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


def _with_fixed_size(footer: bytes, leaves: Container[int]) -> bytes:
    """Return a footer in whose schema these leaves, which have 96 bits, are fixed-size binary.

    Raises `ArrowInvalid` where it is not understood.
    """
    try:
        return _changed(footer, leaves)
    except (IndexError, StopIteration, ValueError, RecursionError) as error:
        raise pa.ArrowInvalid(_NOT_UNDERSTOOD) from error


def _changed(footer: bytes, leaves: Container[int]) -> bytes:
    schema = next(at for field, kind, at in fields(footer, 0) if (field, kind) == (_SCHEMA, LIST))
    count, at = list_size(footer, schema, STRUCT)
    changed, copied, leaf = bytearray(), 0, -1
    for _ in range(count):
        if footer[at] == _TYPE:  # a column with children has no type
            leaf += 1
            if leaf in leaves:
                changed += footer[copied:at] + bytes([_TYPE, _FIXED, _TYPE, _FIXED_WIDTH])
                following = footer[at + 2]
                if footer[at + 1] != _INT96 or not (following == _TYPE or following >> 4 > 1):
                    raise ValueError(following)
                if following == _TYPE:  # it has a length already, which says nothing
                    copied = behind(footer, at + 3, I32)
                else:
                    changed.append(following - 0x10)
                    copied = at + 3
        at = behind(footer, at, STRUCT)
    return bytes(changed + footer[copied:])
