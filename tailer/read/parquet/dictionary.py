"""Dictionaries of column chunks: the distinct values that a chunk refers to, read without its rows."""

from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from tailer.read.parquet.footer import REFERRING, Chunk
from tailer.read.parquet.thrift import I32, STRUCT, places, signed, zigzag

__all__ = ["Dictionary"]

_HEADER_BYTES: Final = 128  # more than a dictionary's page header has
_FEW_VALUES: Final = 100  # of a page
_RAW_BYTES: Final = 2**24
_LENGTH_BYTES: Final = 4  # of a text
_DICTIONARY_PAGE: Final = 2
# By kind of page: the field with the rest of its header, and the field with its encoding there; each with its type.
_HEADERS: Final = {
    0: (5 << 4 | STRUCT, 2 << 4 | I32),
    _DICTIONARY_PAGE: (7 << 4 | STRUCT, 2 << 4 | I32),
    3: (8 << 4 | STRUCT, 4 << 4 | I32),
}
_NUMBERS: Final = (1 << 4 | I32, 2 << 4 | I32, 3 << 4 | I32)
_VALUES: Final = 1 << 4 | I32
_MAGIC: Final = b"PAR1"
_CODECS: Final = {1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}


class _Page(NamedTuple):
    """A page. `size`, `stored`: its bytes before and after compression. `body`: the place behind its header."""

    kind: int
    size: int
    stored: int
    values: int
    encoding: int
    body: int

    @property
    def end(self) -> int:
        """The place behind the page."""
        return self.body + self.stored


class Dictionary:
    """The dictionary of a chunk of the file in `source`.

    `size`: its bytes; without a dictionary that can be understood those of the chunk; None where these are not known.
    """

    def __init__(self, source: pa.NativeFile, chunk: Chunk) -> None:
        self._source = source
        self._codec = chunk.codec
        known = chunk.size_bytes if chunk.size_bytes > 0 else None
        page = _page(source, chunk.begin)
        if page is not None and (
            page.kind != _DICTIONARY_PAGE
            or page.stored > chunk.stored_bytes
            or page.size > (page.size if known is None else known)
        ):
            page = None
        self._page = page
        self.size = known if page is None else page.size

    def has_all(self, values: int) -> bool:
        """Return whether the headers of the pages behind it show that `values` values refer to it.

        False where their pages are small, or one is not understood.
        """
        before = self._page
        for _ in range(values // _FEW_VALUES + 1):
            page = None if before is None else _page(self._source, before.end)
            if page is None or page.kind == _DICTIONARY_PAGE or page.encoding not in REFERRING:
                return False
            values -= page.values
            if values <= 0:
                return True
            before = page
        return False

    def texts(self) -> pa.ChunkedArray | None:
        """Return its values, which are text or binary of any size; None where they cannot be had.

        The page is read as the only data page of a small file.
        """
        page = self._page
        if page is None or not 0 < page.values * _LENGTH_BYTES <= page.size:
            return None
        self._source.seek(page.body)
        stored = self._source.read_buffer(page.stored)
        try:
            header = _data_page_header(page.values, page.size, page.stored)
            footer = _footer(page.values, page.size, len(header) + page.stored, self._codec)
            content = pa.BufferReader(b"".join([_MAGIC, header, stored, footer]))
            return pq.ParquetFile(content, pre_buffer=False).read(use_threads=False).column(0)
        except (pa.ArrowException, OSError, ValueError):
            return None

    def raw(self, width: int) -> bytes | None:
        """Return its values, of `width` bytes each, as they are before compression; None where they cannot be had."""
        page = self._page
        if page is None or not 0 < page.values * width == page.size <= _RAW_BYTES:
            return None
        self._source.seek(page.body)
        values: bytes = self._source.read(page.stored)
        if self._codec:
            if self._codec not in _CODECS:
                return None
            try:
                values = pa.decompress(values, page.size, _CODECS[self._codec], asbytes=True)
            except (pa.ArrowException, OSError, ValueError):
                return None
        return values if len(values) == page.size else None


def _page(source: pa.NativeFile, at: int) -> _Page | None:
    """Return the page whose header is at a place; None where it is not understood, or not all of it is in the file."""
    end = source.size()
    if not 0 <= at < end:
        return None
    source.seek(at)
    header = source.read(_HEADER_BYTES)
    try:
        found, length = places(header, 0)
        kind, size, stored = (signed(header, found[key]) for key in _NUMBERS)
        rest, encoding = _HEADERS[kind]
        own = places(header, found[rest])[0]
        page = _Page(kind, size, stored, signed(header, own[_VALUES]), signed(header, own[encoding]), at + length)
    except (LookupError, ValueError, RecursionError):
        return None
    is_sound = min(page) >= 0 and max(size, page.values) < 2**31 and page.end <= end
    return page if is_sound else None


def _data_page_header(values: int, size: int, stored: int) -> bytes:
    numbers = b"\x15\0\x15" + zigzag(size) + b"\x15" + zigzag(stored)
    return numbers + b"\x2c\x15" + zigzag(values) + b"\x15\0\x15\6\x15\6\0\0"


def _footer(values: int, size: int, stored: int, codec: int) -> bytes:
    """Return the end of a file with one required column, `v`, of binary, in one data page."""
    count, begin, total = zigzag(values), zigzag(len(_MAGIC)), zigzag(size)
    chunk = b"\x15\x0c\x19\x15\0\x19\x18\1v\x15" + zigzag(codec) + b"\x16" + count + b"\x16" + total
    chunk += b"\x16" + zigzag(stored) + b"\x26" + begin + b"\0"
    group = b"\x19\x1c\x26" + begin + b"\x1c" + chunk + b"\0\x16" + total + b"\x16" + count + b"\0"
    schema = b"\x19\x2c\x48\1r\x15\2\0\x15\x0c\x25\0\x18\1v\0"
    footer = b"\x15\2" + schema + b"\x16" + count + b"\x19\x1c" + group + b"\0"
    return footer + len(footer).to_bytes(4, "little") + _MAGIC
