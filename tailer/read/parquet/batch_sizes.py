"""Batch sizes: rows of a Parquet file to decode at a time, so that batches stay small whatever the values are.

The bytes that a row group takes in the file say little about those it decodes to: a dictionary has a text of 300 kB
once, and ten thousand rows refer to it. Most writers note how many bytes the texts of a column have in a row group. If
that is little for all columns together, any batch is small. Otherwise the dictionaries show how large a repeated value
can be, and the batches before how large rows are.

A batch of several rows decodes to at most 8 MB of numbers and of values of dictionaries, unless its whole row group
decodes to at most 24 MB. Of other text and binary it has about 8 MB, and never more than the row group stores. Two
things show only when decoded: a list is taken to have as many values as the lists of its row group have on average, and
a value that is stored by what it has in common with the one before (`DELTA_BYTE_ARRAY`) to have at most 128 kB.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tailer.read.parquet.footer import Chunk, Footer, encoded_path
from tailer.read.parquet.thrift import I32, STRUCT, offsets, signed, zigzag

__all__ = ["BATCH_BYTES", "MAX_ROWS", "BatchSizes", "Dictionary", "ValueSizes"]

_HEADER_BYTES: Final = 128  # more than a dictionary's page header has
_LENGTH_BYTES: Final = 4  # of a text
_DICTIONARY_PAGE: Final = 2
# Fields of a page header with their types: the kind of page, its sizes, what only a dictionary page has,
_NUMBERS: Final = (1 << 4 | I32, 2 << 4 | I32, 3 << 4 | I32)
_REST: Final = 7 << 4 | STRUCT
_VALUES: Final = 1 << 4 | I32  # and of that
_MAGIC: Final = b"PAR1"


class _Page(NamedTuple):
    """A dictionary page.

    `size`, `stored`: its bytes before and after compression. `body`: the offset after its header.
    """

    size: int
    stored: int
    values: int
    body: int


class Dictionary:
    """The dictionary of a chunk of the file in `source`.

    `size`: its bytes; those of the chunk if no dictionary is understood; None if these are unknown, too.
    """

    def __init__(self, source: pa.NativeFile, chunk: Chunk) -> None:
        self._source = source
        self._codec = chunk.codec
        size = chunk.size_bytes if chunk.size_bytes > 0 else None
        page = _page(source, chunk.begin)
        if page is not None and (page.stored > chunk.stored_bytes or (size is not None and page.size > size)):
            page = None
        self._page = page
        self.size = size if page is None else page.size

    def texts(self) -> pa.ChunkedArray | None:
        """Return its values, which are text or binary of any size; None if they cannot be read.

        The page is read as the only data page of a small file.
        """
        page = self._page
        if page is None or not 0 < page.values * _LENGTH_BYTES <= page.size:
            return None
        self._source.seek(page.body)
        stored = self._source.read_buffer(page.stored)
        try:
            numbers = b"\x15\0\x15" + zigzag(page.size) + b"\x15" + zigzag(page.stored)
            header = numbers + b"\x2c\x15" + zigzag(page.values) + b"\x15\0\x15\6\x15\6\0\0"
            footer = _footer(page.values, page.size, len(header) + page.stored, self._codec)
            content = pa.BufferReader(b"".join([_MAGIC, header, stored, footer]))
            return pq.ParquetFile(content, pre_buffer=False).read(use_threads=False).column(0)
        except (pa.ArrowException, OSError, ValueError):
            return None


def _page(source: pa.NativeFile, offset: int) -> _Page | None:
    """Return the dictionary page at `offset`; None if there is none that is understood, all of it in the file."""
    end = source.size()
    if not 0 <= offset < end:
        return None
    source.seek(offset)
    header = source.read(_HEADER_BYTES)
    try:
        fields, length = offsets(header, 0)
        kind, size, stored = (signed(header, fields[key]) for key in _NUMBERS)
        page = _Page(size, stored, signed(header, offsets(header, fields[_REST])[0][_VALUES]), offset + length)
    except (LookupError, ValueError, RecursionError):
        return None
    is_sound = kind == _DICTIONARY_PAGE and min(page) >= 0 and max(size, page.values) < 2**31
    return page if is_sound and page.body + page.stored <= end else None


def _footer(values: int, size: int, stored: int, codec: int) -> bytes:
    """Return the end of a file with one required column, `v`, of binary, in one data page."""
    count, begin, total = zigzag(values), zigzag(len(_MAGIC)), zigzag(size)
    chunk = b"\x15\x0c\x19\x15\0\x19\x18\1v\x15" + zigzag(codec) + b"\x16" + count + b"\x16" + total
    chunk += b"\x16" + zigzag(stored) + b"\x26" + begin + b"\0"
    group = b"\x19\x1c\x26" + begin + b"\x1c" + chunk + b"\0\x16" + total + b"\x16" + count + b"\0"
    schema = b"\x19\x2c\x48\1r\x15\2\0\x15\x0c\x25\0\x18\1v\0"
    footer = b"\x15\2" + schema + b"\x16" + count + b"\x19\x1c" + group + b"\0"
    return footer + len(footer).to_bytes(4, "little") + _MAGIC


BATCH_BYTES: Final = 8 * 2**20
MAX_ROWS: Final = 2**15
_GROUP_BYTES: Final = 3 * BATCH_BYTES
_NUMBER_BYTES: Final = 8
_DECIMAL_BYTES: Final = 16
_OFFSET_BYTES: Final = 4
_OF_ANY_SIZE: Final = "BYTE_ARRAY"
_PREFIXED_BYTES: Final = 2**17
_SHARED_BYTES: Final = 2**17  # of a row group: for fewer, waking other threads costs more than they save


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A column without children.

    `size_bytes`: of a value; None: of any size. `padded_bytes`: to which short texts are padded. `path`: as
    `encoded_path` has it.
    """

    size_bytes: int | None
    is_repeated: bool
    padded_bytes: int
    path: bytes


class ValueSizes:
    """The sizes of the values of some columns, as far as the schema of a Parquet file shows them.

    `padded`: of columns with CHARs, the greatest length of these.
    """

    def __init__(
        self, schema: pq.ParquetSchema, columns: Sequence[str], padded: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        leaves = dict(_leaves(schema, columns, padded))
        self.columns = columns
        self.varying = {index: leaf for index, leaf in leaves.items() if leaf.is_repeated or leaf.size_bytes is None}
        self.fixed_bytes = sum(leaf.size_bytes or leaf.padded_bytes for leaf in leaves.values() if not leaf.is_repeated)
        self.has_lists = any(leaf.is_repeated for leaf in leaves.values())


class BatchSizes:
    """Batches of the columns of `sizes` of one file. `source`: the file's bytes.

    `use_threads`: whether Arrow's threads decode the columns of a batch of a large row group, or this thread does.
    """

    def __init__(
        self, file: pq.ParquetFile, source: pa.NativeFile, footer: Footer, sizes: ValueSizes, use_threads: bool
    ) -> None:
        self._metadata = file.metadata
        self._source = source
        self._footer = footer
        self._sizes = sizes
        self._use_threads = use_threads

    def decode(self, file: pq.ParquetFile, group: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a row group. `file`: the file, opened in whatever way."""
        footer = self._metadata.row_group(group)
        # By the average of the row group as it is in the file.
        average = max(footer.total_byte_size // max(footer.num_rows, 1), footer.num_columns * _NUMBER_BYTES, 1)
        largest = max(average, self._sizes.fixed_bytes)
        most = min(max(BATCH_BYTES // largest, 1), MAX_ROWS, max(footer.num_rows, 1))
        is_small = 0 < footer.total_byte_size <= BATCH_BYTES // most
        if not self._sizes.varying or (is_small and not self._sizes.has_lists) or self._is_tiny(footer, most):
            yield from self._batches(file, group, most)
            return
        chunks = self._footer.chunks(group, self._sizes.varying)
        if most * self._sizes.fixed_bytes + sum(map(self._group_bytes, chunks.items())) <= _GROUP_BYTES:
            yield from self._batches(file, group, most)
            return
        most = min(most, BATCH_BYTES // max(self._row_bytes(chunks, footer.num_rows, most), 1)) or 1
        # Lists may be longest at the beginning.
        for batch in self._batches(file, group, 1 if self._sizes.has_lists else most):
            # The reader looks at its batch size before each batch.
            average = max(batch.get_total_buffer_size() // max(batch.num_rows, 1), 1)
            file.reader.set_batch_size(min(most, max(BATCH_BYTES // average, 1)))
            yield batch

    def _batches(self, file: pq.ParquetFile, group: int, rows: int) -> Iterator[pa.RecordBatch]:
        use_threads = self._use_threads and self._metadata.row_group(group).total_byte_size >= _SHARED_BYTES
        yield from file.iter_batches(
            batch_size=rows, row_groups=[group], columns=self._sizes.columns, use_threads=use_threads
        )

    def _is_tiny(self, footer: pq.RowGroupMetaData, most: int) -> bool:
        """Return whether the only row group decodes to little even if each of its values were as large as its chunk."""
        if self._metadata.num_row_groups > 1 or footer.total_byte_size * footer.num_rows > _GROUP_BYTES:
            return False
        sizes = self._footer.sizes_at_once(leaf.path for leaf in self._sizes.varying.values())
        if sizes is None:
            return False
        total = most * self._sizes.fixed_bytes
        for leaf, (values, size) in zip(self._sizes.varying.values(), sizes, strict=True):
            total += values * (_OFFSET_BYTES + leaf.padded_bytes + size if leaf.size_bytes is None else leaf.size_bytes)
        return total <= _GROUP_BYTES

    def _group_bytes(self, item: tuple[int, Chunk]) -> int:
        """Return the most bytes that a chunk decodes to; where its numbers cannot be right, more than are few."""
        index, chunk = item
        if chunk.num_values < 0 or chunk.size_bytes <= 0:
            return _GROUP_BYTES + 1
        size = self._sizes.varying[index].size_bytes
        if size is not None:
            return chunk.num_values * size
        noted = chunk.text_bytes if chunk.has_dictionary else chunk.size_bytes
        # Not every writer notes all bytes of values that are stored by prefix.
        texts = None if chunk.has_prefixes else noted
        most = texts if texts is not None and texts > 0 else chunk.num_values * chunk.size_bytes
        return chunk.num_values * (_OFFSET_BYTES + self._sizes.varying[index].padded_bytes) + most

    def _row_bytes(self, chunks: Mapping[int, Chunk], num_rows: int, rows: int) -> int:
        """Return the most bytes a row can have by fixed-size values and by values that the row group has once.

        Dictionaries that are so small that they do not matter for batches of `rows` rows count as one value.
        """
        total, dictionaries = self._sizes.fixed_bytes, []
        for index, chunk in chunks.items():
            in_row = -(-max(chunk.num_values, 0) // max(num_rows, 1))
            leaf = self._sizes.varying[index]
            size = leaf.size_bytes
            total += leaf.padded_bytes * in_row if leaf.is_repeated else 0  # in the fixed bytes otherwise
            if size is not None:
                total += size * in_row
            elif chunk.has_prefixes:
                total += _PREFIXED_BYTES * in_row
            elif chunk.has_dictionary:
                dictionary = Dictionary(self._source, chunk)
                size = BATCH_BYTES if dictionary.size is None else dictionary.size
                dictionaries.append((size * in_row, in_row, dictionary))
        for size, in_row, dictionary in sorted(dictionaries, key=lambda found: found[0]):
            is_small = (total + size) * rows <= BATCH_BYTES // 2
            values = None if is_small else dictionary.texts()
            total += size if values is None else int(pc.max(pc.binary_length(values)).as_py() or 0) * in_row
        return total


def _leaves(schema: pq.ParquetSchema, columns: Sequence[str], padded: Mapping[str, int]) -> Iterator[tuple[int, _Leaf]]:
    wanted = tuple(f"{name}." for name in columns)
    for index in range(len(schema)):
        column = schema.column(index)
        if f"{column.path}.".startswith(wanted):
            lengths = (length for name, length in padded.items() if f"{column.path}.".startswith(f"{name}."))
            size = _value_bytes(column)
            padded_bytes = max(lengths, default=0) if size is None else 0
            yield index, _Leaf(size, column.max_repetition_level > 0, padded_bytes, encoded_path(column.path))


def _value_bytes(column: pq.ColumnSchema) -> int | None:
    """Return the bytes of a value; None where values are text or binary of any size."""
    kind = column.physical_type
    if kind == _OF_ANY_SIZE:
        return None
    if kind in ("FIXED_LEN_BYTE_ARRAY", "INT96") or column.converted_type == "DECIMAL":
        return int(max(column.length, _DECIMAL_BYTES))
    return _NUMBER_BYTES
