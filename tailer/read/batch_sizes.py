"""How many rows of a Parquet file to decode at a time, so that batches stay small whatever the values are.

The bytes that a row group takes in the file say little about those it decodes to: a dictionary has a text of 300 kB
once, and ten thousand rows refer to it. So where rows could turn out to be large, a few of them are decoded first;
after that the page headers tell how large a repeated value can be, and the batches before how large rows are.

One thing is taken on trust, as to find out takes as long as to read: a dictionary of many small values, most of which
few rows have, is taken to have no large one. Values that do not repeat add up to no more than their row group.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tailer.read.thrift import fields, number

__all__ = ["BATCH_BYTES", "MAX_ROWS", "decode_batches"]

BATCH_BYTES: Final = 8 * 2**20
MAX_ROWS: Final = 8192
_COLUMN_BYTES: Final = 8
_MOST_BYTES: Final = 16 * 2**20  # that a batch may have where values repeat
_HEADER_BYTES: Final = 128  # more than a dictionary's page header has
_OF_ANY_SIZE: Final = ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
_REFERRING: Final = frozenset(["PLAIN_DICTIONARY", "RLE_DICTIONARY"])
_REFERENCES: Final = 20
_SMALL_BYTES: Final = 48
_PREFIXES: Final = "DELTA_BYTE_ARRAY"  # each value has some of the one before it
_PREFIXED_BYTES: Final = 2**17  # taken for the largest such value: nothing tells


def decode_batches(
    file: pq.ParquetFile, source: pa.NativeFile, group: int, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The rows of a row group in batches of about `BATCH_BYTES`, decoded on this thread. `source`: the file's bytes."""
    footer = file.metadata.row_group(group)
    most = _average_rows(footer)
    # A list may have a value of the row group as often as it likes.
    rows = 1 if any(map(pa.types.is_nested, file.schema_arrow.types)) else _safe_rows(footer, most)
    is_safe, is_first = rows == most, True
    batches = file.iter_batches(batch_size=rows, row_groups=[group], columns=columns, use_threads=False)
    for batch in batches:
        if is_safe:
            yield batch
            continue
        if is_first:
            # Not before a batch was decoded: asked about columns, a broken footer ends the process, not just the task.
            most = min(most, _MOST_BYTES // max(_repeated_bytes(file, source, group, columns), 1)) or 1
            is_first = False
        average = max(batch.get_total_buffer_size() // max(batch.num_rows, 1), 1)
        # The reader looks at this before each batch.
        file.reader.set_batch_size(min(most, max(BATCH_BYTES // average, 1)))
        yield batch


def _average_rows(footer: pq.RowGroupMetaData) -> int:
    """Rows a batch, by the average of the row group as it is in the file."""
    average = max(footer.total_byte_size // max(footer.num_rows, 1), footer.num_columns * _COLUMN_BYTES, 1)
    return int(min(max(BATCH_BYTES // average, 1), MAX_ROWS))


def _safe_rows(footer: pq.RowGroupMetaData, most: int) -> int:
    """Rows a batch that are few enough even if each had all bytes of the row group; `most` if all are."""
    rows = _MOST_BYTES // max(footer.total_byte_size, 1)
    return most if min(footer.num_rows, most) <= rows else max(rows, 1)


def _repeated_bytes(file: pq.ParquetFile, source: pa.NativeFile, group: int, columns: Sequence[str]) -> int:
    """The bytes a row can have by values that the row group has once, and many rows refer to."""
    footer = file.metadata.row_group(group)
    total, unknown = 0, []
    wanted = tuple(f"{name}." for name in columns)
    for index in range(len(file.schema)):
        leaf = file.schema.column(index)
        if leaf.physical_type not in _OF_ANY_SIZE or not f"{leaf.path}.".startswith(wanted):
            continue
        chunk = footer.column(index)
        in_row = -(-chunk.num_values // max(footer.num_rows, 1))
        if _PREFIXES in chunk.encodings:
            total += _PREFIXED_BYTES * in_row
        elif not _REFERRING.isdisjoint(chunk.encodings):
            if leaf.physical_type == "FIXED_LEN_BYTE_ARRAY":
                total += leaf.length * in_row
                continue
            values, size = _dictionary(source, chunk)
            # Every value of a dictionary is some row's, so only the others can have the largest one again.
            repeated = min(MAX_ROWS * in_row, max(chunk.num_values - values, 0))
            if repeated * size > _MOST_BYTES and _may_have_giants(values, size, chunk.num_values):
                unknown.append((leaf.path, in_row))
    return total + _largest(source, file.metadata, group, unknown)


def _dictionary(source: pa.NativeFile, chunk: pq.ColumnChunkMetaData) -> tuple[int, int]:
    """How many values the dictionary of a column chunk has, and with how many bytes together."""
    source.seek(chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset)
    header = source.read(_HEADER_BYTES)
    values = size = 0
    for field, _, at in fields(header, 0):
        if field == 2:  # uncompressed_page_size, zigzag
            size = number(header, at)[0] >> 1
        elif field == 7:  # dictionary_page_header, whose first field is num_values
            values = number(header, at + 1)[0] >> 1
            return values, max(size - 4 * values, 0)
    return 0, size


def _may_have_giants(values: int, size: int, of_rows: int) -> bool:
    """Whether it is worth while to look at all values of a dictionary.

    One of many small values, that is about as large as what refers to it, would take as long to look at as to read.
    """
    return values * _REFERENCES <= of_rows or size > values * _SMALL_BYTES


def _largest(source: pa.NativeFile, footer: pq.FileMetaData, group: int, columns: Sequence[tuple[str, int]]) -> int:
    """The bytes of the largest values of the dictionaries of columns (paths in the file, with values a row)."""
    if not columns:
        return 0
    paths = [path for path, _ in columns]
    file = pq.ParquetFile(source, metadata=footer, read_dictionary=paths, pre_buffer=False)
    first = next(file.iter_batches(batch_size=1, row_groups=[group], columns=paths, use_threads=False), None)
    found = [] if first is None else [leaf for column in first.columns for leaf in _dictionaries(column)]
    largest = sum(pc.max(pc.binary_length(values.cast(pa.large_binary()))).as_py() or 0 for values in found)
    return largest * max(in_row for _, in_row in columns)


def _dictionaries(values: pa.Array) -> Iterator[pa.Array]:
    """The dictionaries of all text on whatever level of a column."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        yield values.dictionary
    elif pa.types.is_struct(kind):
        for index in range(kind.num_fields):
            yield from _dictionaries(values.field(index))
    elif pa.types.is_map(kind):
        yield from _dictionaries(values.keys)
        yield from _dictionaries(values.items)
    elif pa.types.is_nested(kind):
        yield from _dictionaries(values.values)
