"""Column chunks as the footer of a Parquet file describes them, read without Arrow, and their ranges in an object.

Arrow ends the process when it is asked about the columns of some broken footers, and it does not pass on how many bytes
the texts of a chunk have.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Self

import pyarrow as pa
import pyarrow.parquet as pq

from tailer.read.parquet.thrift import (
    BINARY,
    I32,
    I64,
    LIST,
    STRUCT,
    binary,
    list_offset,
    list_size,
    number,
    offsets,
    signed,
    skip,
)
from tailer.stores.pieces import Range
from tailer.stores.read_ahead import ReadAhead

__all__ = ["FEW_BYTES", "Chunk", "ChunkStatistics", "Footer", "RowGroupRanges", "encoded_path"]

_ROW_GROUPS, _COLUMN_ORDERS = 4, 7  # numbers of fields: of the footer,
_COLUMNS: Final = 1  # of a row group,
_META_DATA: Final = 3  # of a column chunk,
_ENCODINGS, _CODEC = 2 << 4 | LIST, 4 << 4 | I32  # and with their types: of its metadata
_NUM_VALUES, _SIZE, _STORED = 5 << 4 | I64, 6 << 4 | I64, 7 << 4 | I64
_DATA_PAGE, _DICTIONARY_PAGE, _SIZES = 9 << 4 | I64, 11 << 4 | I64, 16 << 4 | STRUCT
_TEXT_BYTES: Final = 1 << 4 | I64
_STATISTICS: Final = 12 << 4 | STRUCT
_NULLS, _HIGH, _LOW = 3 << 4 | I64, 5 << 4 | BINARY, 6 << 4 | BINARY
_NEXT_IS_LIST: Final = 1 << 4 | LIST  # how a field begins that is a list, and follows the field before it in number
_ORDER_OF_TYPE: Final = b"\x1c\0\0"  # the order of a column: that which Parquet defines for its type
# The fields after the path of a chunk: its codec, its number of values, and its size before compression.
_AFTER_PATH: Final = (1 << 4 | I32, 1 << 4 | I64, 1 << 4 | I64)
_SHORT_LIST, _SHORT_TEXT = 14, 127  # lengths that take no bytes, and one byte
_DELTA_BYTE_ARRAY: Final = 7
_REFERRING: Final = frozenset([2, 8])  # the encodings of values that refer to a dictionary


@dataclass(frozen=True, slots=True)
class Chunk:
    """One column of a row group, as the footer has it: any number may be wrong.

    `num_values`: with nulls. `size_bytes`, `stored_bytes`: of its pages before and after compression. `text_bytes`: of
    its texts when decoded; None where the writer did not say. `begin`: the offset of its first page in the file.
    """

    num_values: int
    size_bytes: int
    stored_bytes: int
    text_bytes: int | None
    codec: int
    begin: int
    encodings: frozenset[int]

    @classmethod
    def at(cls, data: bytes, fields: dict[int, int]) -> Self:
        """Return the chunk with values at these offsets. Raises as the functions of `tailer.read.parquet.thrift` do."""
        text_bytes = None
        if _SIZES in fields:
            sizes = offsets(data, fields[_SIZES])[0]
            text_bytes = signed(data, sizes[_TEXT_BYTES]) if _TEXT_BYTES in sizes else None
        begin = signed(data, fields[_DATA_PAGE])
        dictionary = signed(data, fields[_DICTIONARY_PAGE]) if _DICTIONARY_PAGE in fields else 0
        if 0 < dictionary < begin:  # as Arrow has it
            begin = dictionary
        return cls(
            num_values=signed(data, fields[_NUM_VALUES]),
            size_bytes=signed(data, fields[_SIZE]),
            stored_bytes=signed(data, fields[_STORED]),
            text_bytes=text_bytes,
            codec=signed(data, fields[_CODEC]),
            begin=begin,
            encodings=_encodings(data, fields[_ENCODINGS]),
        )

    @property
    def has_prefixes(self) -> bool:
        """Return whether values may be stored by what they have in common with the one before."""
        return _DELTA_BYTE_ARRAY in self.encodings

    @property
    def has_dictionary(self) -> bool:
        """Return whether values may refer to a dictionary."""
        return not _REFERRING.isdisjoint(self.encodings)


@dataclass(frozen=True, slots=True)
class ChunkStatistics:
    """Statistics of one column of a row group, as the footer has them: any may be wrong.

    `nulls`, `low`, `high`: None where the writer did not say. The bounds are encoded as values are.
    """

    num_values: int
    nulls: int | None = None
    low: bytes | None = None
    high: bytes | None = None

    @classmethod
    def at(cls, data: bytes, fields: dict[int, int]) -> Self:
        """Return the statistics of the chunk with values at these offsets. Raises as `Chunk.at`."""
        num_values = signed(data, fields[_NUM_VALUES])
        if _STATISTICS not in fields:
            return cls(num_values)
        noted = offsets(data, fields[_STATISTICS])[0]
        return cls(
            num_values,
            nulls=signed(data, noted[_NULLS]) if _NULLS in noted else None,
            low=binary(data, noted[_LOW]) if _LOW in noted else None,
            high=binary(data, noted[_HIGH]) if _HIGH in noted else None,
        )


def encoded_path(path: str) -> bytes:
    """Return the field with the path of a chunk, as it is in its metadata. `path`: its names, joined by dots."""
    names = [name.encode() for name in path.split(".")]
    if len(names) > _SHORT_LIST or any(len(name) > _SHORT_TEXT for name in names):
        return b""  # which is in no footer exactly once
    header = bytes([_NEXT_IS_LIST, len(names) << 4 | BINARY])
    return header + b"".join(bytes([len(name)]) + name for name in names)


def _encodings(data: bytes, offset: int) -> frozenset[int]:
    count, offset = list_size(data, offset, I32)
    encodings = set()
    for _ in range(count):
        encodings.add(signed(data, offset))
        offset = skip(data, offset, I32)
    return frozenset(encodings)


class Footer:
    """The footer of the file in `source`, read when it is first needed."""

    def __init__(self, source: pa.NativeFile) -> None:
        self._source = source
        self._content = b""
        self._group_offsets: list[int] = []
        self._group_count = 0
        self._group = -1
        self._column_count = 0
        self._starts: list[int] = []  # of the columns of that row group, as far as they were looked at
        self._columns: dict[int, dict[int, int]] = {}
        self._has_known_order: bool | None = None

    @property
    def content(self) -> bytes:
        if not self._content:
            end = self._source.size() - 8
            self._source.seek(end)
            size = int.from_bytes(self._source.read(4), "little")
            self._source.seek(end - size)
            self._content = self._source.read(size)
        return self._content

    def chunks(self, group: int, columns: Iterable[int]) -> dict[int, Chunk]:
        """Return the chunks of a row group, of the columns with these indices among the leaves of the schema.

        Raises `ArrowInvalid` where the footer does not describe them.
        """
        try:
            return {column: Chunk.at(self.content, self._column(group, column)) for column in columns}
        except (LookupError, ValueError, RecursionError) as error:
            raise pa.ArrowInvalid(f"the footer does not describe the columns of row group {group}") from error

    def sizes_at_once(self, paths: Iterable[bytes]) -> list[tuple[int, int]] | None:
        """Return the number of values of chunks, and the bytes of their pages before compression.

        `paths`: of the chunks, as `encoded_path` has them. None where one of them is not there exactly once, or has not
        the fields after it that every writer puts there: `chunks` reads all fields in turn. In a small file that takes
        half as long as to decode the rows.
        """
        data, sizes = self.content, []
        try:
            for path in paths:
                offset = data.find(path)
                if offset < 0 or data.find(path, offset + 1) >= 0:
                    return None
                offset += len(path)
                numbers = []
                for header in _AFTER_PATH:
                    if data[offset] != header:
                        return None
                    value, offset = number(data, offset + 1)
                    numbers.append(value >> 1 ^ -(value & 1))
                if numbers[1] < 0 or numbers[2] <= 0:
                    return None
                sizes.append((numbers[1], numbers[2]))
        except (IndexError, ValueError):
            return None
        return sizes

    def statistics(self, group: int, column: int, columns: int) -> ChunkStatistics | None:
        """Return the statistics of a chunk of a file with so many `columns`, as `chunks` numbers them.

        None where the footer does not describe the chunk, or does not say by which order values have bounds: then they
        may have any (parquet.thrift, "ColumnOrder").
        """
        try:
            if self._has_known_order is None:
                self._has_known_order = self._orders_by_type(columns)
            if not self._has_known_order:
                return None
            return ChunkStatistics.at(self.content, self._column(group, column))
        except (LookupError, ValueError, RecursionError):
            return None

    def _orders_by_type(self, columns: int) -> bool:
        data, orders = self.content, _ORDER_OF_TYPE * columns
        # Nearly every footer ends with the orders. To get to them otherwise takes as long as to read a small file.
        begin = len(data) - len(orders) - (2 if columns < 15 else 2 + -(-columns.bit_length() // 7))
        if not (begin > 0 and data[begin - 1] == _NEXT_IS_LIST and data.endswith(orders + b"\0")):
            begin = list_offset(data, 0, _COLUMN_ORDERS)
        count, offset = list_size(data, begin, STRUCT)
        return count == columns and data.startswith(orders, offset)

    def _column(self, group: int, column: int) -> dict[int, int]:
        """Return the offsets of the values of a chunk. Columns before it are skipped, and none is looked at twice."""
        data = self.content
        if group != self._group:
            columns = list_offset(data, self._offset(group), _COLUMNS)
            self._column_count, first = list_size(data, columns, STRUCT)
            self._group, self._starts, self._columns = group, [first], {}
        if column >= self._column_count:
            raise IndexError(column)
        if column not in self._columns:
            while len(self._starts) <= column:
                self._starts.append(skip(data, self._starts[-1], STRUCT))
            fields, end = offsets(data, self._starts[column], _META_DATA)
            if len(self._starts) == column + 1:
                self._starts.append(end)
            self._columns[column] = fields
        return self._columns[column]

    def _offset(self, group: int) -> int:
        """Return the offset of a row group, and remember those before it: they are read in order."""
        data, group_offsets = self.content, self._group_offsets
        if not group_offsets:
            self._group_count, first = list_size(data, list_offset(data, 0, _ROW_GROUPS), STRUCT)
            group_offsets.append(first)
        if group >= self._group_count:
            raise IndexError(group)
        while len(group_offsets) <= group:
            group_offsets.append(skip(data, group_offsets[-1], STRUCT))
        return group_offsets[group]


FEW_BYTES: Final = 2**20  # to read more than is needed of these takes less than another request


class RowGroupRanges:
    """The columns of some row groups of a file, expected in the order of `groups`.

    `first`: the columns of a row group that are read first, to see whether the rest is needed; none: all at once.
    """

    def __init__(
        self,
        read_ahead: ReadAhead,
        file: pq.ParquetFile,
        footer: Footer,
        columns: Sequence[str],
        groups: Sequence[int],
        first: Sequence[str],
    ) -> None:
        self._read_ahead = read_ahead
        self._footer = footer
        self._columns = _leaves(file, columns)
        self._first = _leaves(file, first) if first else self._columns
        self._following = dict(pairwise(groups))
        self._known: dict[int, tuple[list[Range], list[Range]]] = {}

    def expect_first(self, group: int) -> None:
        """Expect what is read to see whether the row group is needed; all of it where that is little."""
        if self._first is not self._columns:
            self._read_ahead.expect(self._of(group)[0])

    def expect(self, group: int) -> None:
        """Expect the columns of a row group, and then what is read first of the following one."""
        following = self._following.get(group)
        wanted = self._of(group)[1]
        later = [] if following is None else self._of(following)[0]
        self._known = {row_group: ranges for row_group, ranges in self._known.items() if row_group == following}
        self._read_ahead.expect(wanted, later)

    def _of(self, group: int) -> tuple[list[Range], list[Range]]:
        """Return the ranges that are read first, and all."""
        if group not in self._known:
            every = self._ranges(group, self._columns)
            is_small = sum(end - begin for begin, end in every) <= FEW_BYTES
            self._known[group] = every if is_small else self._ranges(group, self._first), every
        return self._known[group]

    def _ranges(self, group: int, columns: Iterable[int]) -> list[Range]:
        try:
            chunks = self._footer.chunks(group, columns).values()
        except pa.ArrowInvalid:  # Arrow may be able to read it all the same
            return []
        return [(chunk.begin, chunk.begin + max(chunk.stored_bytes, 0)) for chunk in chunks]


def _leaves(file: pq.ParquetFile, columns: Iterable[str]) -> list[int]:
    """Return the indices of the columns without children that are `columns` or in them."""
    schema, wanted = file.schema, tuple(f"{name}." for name in columns)
    return [index for index in range(len(schema)) if f"{schema.column(index).path}.".startswith(wanted)]
