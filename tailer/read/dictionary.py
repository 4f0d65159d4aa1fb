"""Dictionaries of column chunks: the distinct values that a chunk refers to, read without its rows."""

from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from tailer.read.footer import Chunk
from tailer.read.thrift import places, signed, zigzag

__all__ = ["Dictionary"]

_HEADER_BYTES: Final = 128  # more than a dictionary's page header has
_DICTIONARY_PAGE: Final = 2
_MAGIC: Final = b"PAR1"
_CODECS: Final = {1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}


class Dictionary:
    """The dictionary of a chunk of the file in `source`. `size`: its bytes; without a dictionary those of the chunk."""

    def __init__(self, source: pa.NativeFile, chunk: Chunk) -> None:
        self.size = chunk.size_bytes
        self._source = source
        self._codec = chunk.codec
        self._values = 0
        source.seek(chunk.begin)
        header = source.read(_HEADER_BYTES)
        try:
            found, body = places(header, 0)
            kind, size, stored = (signed(header, found[field]) for field in (1, 2, 3))
            values = signed(header, places(header, found[7])[0][1])
        except LookupError:  # the header of another page
            return
        if kind == _DICTIONARY_PAGE:
            self.size, self._values, self._stored, self._body = size, values, stored, chunk.begin + body

    def texts(self) -> pa.ChunkedArray | None:
        """Return its values, which are text or binary of any size; None where there is no dictionary.

        The page is read as the only data page of a small file.
        """
        if self._values == 0:
            return None
        self._source.seek(self._body)
        header = _data_page_header(self._values, self.size, self._stored)
        footer = _footer(self._values, self.size, len(header) + self._stored, self._codec)
        content = b"".join([_MAGIC, header, self._source.read_buffer(self._stored), footer])
        return pq.ParquetFile(pa.BufferReader(content), pre_buffer=False).read(use_threads=False).column(0)

    def raw(self) -> bytes | None:
        """Return its values as they are stored before compression; None where they cannot be had."""
        if self._values == 0 or (self._codec and self._codec not in _CODECS):
            return None
        self._source.seek(self._body)
        stored: bytes = self._source.read(self._stored)
        return pa.decompress(stored, self.size, _CODECS[self._codec], asbytes=True) if self._codec else stored


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
