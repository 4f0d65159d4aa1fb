"""Batch sizes: rows of a Parquet file to decode at a time, so that batches stay small whatever the values are.

The bytes that a row group takes in the file say little about those it decodes to: a dictionary has a text of 300 kB
once, and ten thousand rows refer to it. So where rows could turn out to be large, a few of them are decoded first;
after that the dictionaries tell how large a repeated value can be, and the batches before how large rows are.

A batch of several rows decodes to at most 8 MB of numbers and of values of dictionaries. Of other text and binary it
has about 8 MB, and never more than the row group stores. Two things are found out by no other way than decoding: a list
is taken to have as many values as the lists of its row group have on average, and a value that is stored by what it has
in common with the one before (`DELTA_BYTE_ARRAY`) to have at most 128 kB.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tailer.read.thrift import behind, fields, number, zigzag

__all__ = ["BATCH_BYTES", "MAX_ROWS", "decode_batches"]

BATCH_BYTES: Final = 8 * 2**20
MAX_ROWS: Final = 8192
_NUMBER_BYTES: Final = 8
_DECIMAL_BYTES: Final = 16
_OF_ANY_SIZE: Final = "BYTE_ARRAY"
_REFERRING: Final = frozenset(["PLAIN_DICTIONARY", "RLE_DICTIONARY"])
_PREFIXES: Final = "DELTA_BYTE_ARRAY"
_PREFIXED_BYTES: Final = 2**17

_HEADER_BYTES: Final = 128  # more than a dictionary's page header has
_DICTIONARY_PAGE: Final = 2
_STRUCT: Final = 12
_CODECS: Final = {"UNCOMPRESSED": 0, "SNAPPY": 1, "GZIP": 2, "BROTLI": 4, "LZ4": 5, "ZSTD": 6}
_MAGIC: Final = b"PAR1"


def decode_batches(
    file: pq.ParquetFile, source: pa.NativeFile, group: int, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The rows of a row group in batches of about `BATCH_BYTES`, decoded on this thread. `source`: the file's bytes."""
    footer = file.metadata.row_group(group)
    most = _average_rows(footer)
    width = _fixed_bytes(file, columns)
    if width is not None:
        most = min(most, max(BATCH_BYTES // max(width, 1), 1))
    # A list may have a value of the row group as often as it likes.
    is_nested = width is None and any(map(pa.types.is_nested, file.schema_arrow.types))
    rows = most if width is not None else 1 if is_nested else _safe_rows(footer, most)
    is_safe, is_first = rows == most, True
    batches = file.iter_batches(batch_size=rows, row_groups=[group], columns=columns, use_threads=False)
    for batch in batches:
        # The reader looks at its batch size before each batch.
        if is_first and not is_safe:
            # Not before a batch was decoded: asked about columns, a broken footer ends the process, not just the task.
            most = min(most, BATCH_BYTES // max(_repeated_bytes(file, source, group, columns, most), 1)) or 1
            file.reader.set_batch_size(most)
        elif not is_safe:
            average = max(batch.get_total_buffer_size() // max(batch.num_rows, 1), 1)
            file.reader.set_batch_size(min(most, max(BATCH_BYTES // average, 1)))
        is_first = False
        yield batch


def _average_rows(footer: pq.RowGroupMetaData) -> int:
    """Rows a batch, by the average of the row group as it is in the file."""
    average = max(footer.total_byte_size // max(footer.num_rows, 1), footer.num_columns * _NUMBER_BYTES, 1)
    return int(min(max(BATCH_BYTES // average, 1), MAX_ROWS))


def _fixed_bytes(file: pq.ParquetFile, columns: Sequence[str]) -> int | None:
    """The most bytes a row of these columns has by their types alone; None where that depends on the values."""
    total = 0
    for leaf in _leaves(file, columns):
        if leaf.physical_type == _OF_ANY_SIZE or leaf.max_repetition_level > 0:
            return None
        total += _value_bytes(leaf)
    return total


def _leaves(file: pq.ParquetFile, columns: Sequence[str]) -> Iterator[pq.ColumnSchema]:
    return (leaf for _, leaf in _numbered_leaves(file, columns))


def _numbered_leaves(file: pq.ParquetFile, columns: Sequence[str]) -> Iterator[tuple[int, pq.ColumnSchema]]:
    schema, wanted = file.schema, tuple(f"{name}." for name in columns)
    for index in range(len(schema)):
        leaf = schema.column(index)
        if f"{leaf.path}.".startswith(wanted):
            yield index, leaf


def _value_bytes(leaf: pq.ColumnSchema) -> int:
    """The bytes of a value that is neither text nor binary of any size."""
    if leaf.physical_type in ("FIXED_LEN_BYTE_ARRAY", "INT96") or leaf.converted_type == "DECIMAL":
        return int(max(leaf.length, _DECIMAL_BYTES))
    return _NUMBER_BYTES


def _safe_rows(footer: pq.RowGroupMetaData, most: int) -> int:
    """Rows a batch that are few enough even if each had all bytes of the row group; `most` if all are."""
    rows = BATCH_BYTES // max(footer.total_byte_size, 1)
    return most if min(footer.num_rows, most) <= rows else max(rows, 1)


def _repeated_bytes(file: pq.ParquetFile, source: pa.NativeFile, group: int, columns: Sequence[str], rows: int) -> int:
    """The most bytes a row can have by fixed-size values and by values that the row group has once.

    Dictionaries that are so small that they do not matter for batches of `rows` rows count as one value.
    """
    footer = file.metadata.row_group(group)
    total, dictionaries = 0, []
    for index, leaf in _numbered_leaves(file, columns):
        chunk = footer.column(index)
        in_row = -(-chunk.num_values // max(footer.num_rows, 1))
        if leaf.physical_type != _OF_ANY_SIZE:
            total += _value_bytes(leaf) * in_row
        elif _PREFIXES in chunk.encodings:
            total += _PREFIXED_BYTES * in_row
        elif not _REFERRING.isdisjoint(chunk.encodings):
            dictionaries.append(_Dictionary(source, chunk, in_row))
    for dictionary in sorted(dictionaries, key=lambda found: found.size * found.in_row):
        is_small = (total + dictionary.size * dictionary.in_row) * rows <= BATCH_BYTES // 2
        total += (dictionary.size if is_small else dictionary.largest()) * dictionary.in_row
    return total


class _Dictionary:
    """The dictionary of a column chunk; a row has about `in_row` of its values. `size`: the bytes of all its values."""

    def __init__(self, source: pa.NativeFile, chunk: pq.ColumnChunkMetaData, in_row: int) -> None:
        self.in_row = in_row
        self.size: int = chunk.total_uncompressed_size
        self._source = source
        self._codec = _CODECS.get(chunk.compression, 0)
        self._values = 0
        begin = chunk.dictionary_page_offset or chunk.data_page_offset
        source.seek(begin)
        header = source.read(_HEADER_BYTES)
        try:
            found = {field: at for field, _, at in fields(header, 0)}
            kind, size, self._stored, values = (
                number(header, at)[0] >> 1 for at in (found[1], found[2], found[3], found[7] + 1)
            )
            self._body = begin + behind(header, 0, _STRUCT)
        except (IndexError, KeyError):  # the header of another page: no dictionary is where it has to be
            return
        if kind == _DICTIONARY_PAGE:
            self.size, self._values = size, values

    def largest(self) -> int:
        """The bytes of the largest value. Reads the dictionary as the only data page of a small file."""
        if self._values == 0:
            return self.size
        self._source.seek(self._body)
        header = _data_page_header(self._values, self.size, self._stored)
        footer = _footer(self._values, self.size, len(header) + self._stored, self._codec)
        content = b"".join([_MAGIC, header, self._source.read_buffer(self._stored), footer])
        values = pq.ParquetFile(pa.BufferReader(content), pre_buffer=False).read(use_threads=False).column(0)
        return int(pc.max(pc.binary_length(values)).as_py())


def _data_page_header(values: int, size: int, stored: int) -> bytes:
    numbers = b"\x15\0\x15" + zigzag(size) + b"\x15" + zigzag(stored)
    return numbers + b"\x2c\x15" + zigzag(values) + b"\x15\0\x15\6\x15\6\0\0"


def _footer(values: int, size: int, stored: int, codec: int) -> bytes:
    """The end of a file with one required column, `v`, of binary, in one data page."""
    count, begin, total = zigzag(values), zigzag(len(_MAGIC)), zigzag(size)
    chunk = b"\x15\x0c\x19\x15\0\x19\x18\1v\x15" + zigzag(codec) + b"\x16" + count + b"\x16" + total
    chunk += b"\x16" + zigzag(stored) + b"\x26" + begin + b"\0"
    group = b"\x19\x1c\x26" + begin + b"\x1c" + chunk + b"\0\x16" + total + b"\x16" + count + b"\0"
    schema = b"\x19\x2c\x48\1r\x15\2\0\x15\x0c\x25\0\x18\1v\0"
    footer = b"\x15\2" + schema + b"\x16" + count + b"\x19\x1c" + group + b"\0"
    return footer + len(footer).to_bytes(4, "little") + _MAGIC
