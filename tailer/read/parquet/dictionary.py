"""Dictionaries of column chunks: the distinct values that a chunk refers to, read without its rows."""

from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from tailer.read.parquet.footer import Chunk
from tailer.read.parquet.thrift import I32, STRUCT, offsets, signed, zigzag

__all__ = ["Dictionary"]

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
        known = chunk.size_bytes if chunk.size_bytes > 0 else None
        page = _page(source, chunk.begin)
        if page is not None and (page.stored > chunk.stored_bytes or (known is not None and page.size > known)):
            page = None
        self._page = page
        self.size = known if page is None else page.size

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


def _page(source: pa.NativeFile, at: int) -> _Page | None:
    """Return the dictionary page at offset `at`; None if there is none that is understood, all of it in the file."""
    end = source.size()
    if not 0 <= at < end:
        return None
    source.seek(at)
    header = source.read(_HEADER_BYTES)
    try:
        found, length = offsets(header, 0)
        kind, size, stored = (signed(header, found[key]) for key in _NUMBERS)
        page = _Page(size, stored, signed(header, offsets(header, found[_REST])[0][_VALUES]), at + length)
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
