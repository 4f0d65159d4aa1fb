"""Column chunks as the footer of a Parquet file describes them, read without Arrow.

Arrow ends the process when it is asked about the columns of some broken footers, and it does not pass on how many bytes
the texts of a chunk have.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Self

import pyarrow as pa

from tailer.read.parquet.thrift import I32, I64, LIST, STRUCT, list_offset, list_size, offsets, signed, skip

__all__ = ["Chunk", "Footer"]

_ROW_GROUPS: Final = 4  # numbers of fields: of the footer,
_COLUMNS: Final = 1  # of a row group,
_META_DATA: Final = 3  # of a column chunk,
_ENCODINGS, _CODEC = 2 << 4 | LIST, 4 << 4 | I32  # and with their types: of its metadata
_NUM_VALUES, _SIZE, _STORED = 5 << 4 | I64, 6 << 4 | I64, 7 << 4 | I64
_DATA_PAGE, _DICTIONARY_PAGE, _SIZES = 9 << 4 | I64, 11 << 4 | I64, 16 << 4 | STRUCT
_TEXT_BYTES: Final = 1 << 4 | I64
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
    def at(cls, data: bytes, found: dict[int, int]) -> Self:
        """Return the chunk with values at these offsets. Raises as the functions of `tailer.read.parquet.thrift` do."""
        text_bytes = None
        if _SIZES in found:
            sizes = offsets(data, found[_SIZES])[0]
            text_bytes = signed(data, sizes[_TEXT_BYTES]) if _TEXT_BYTES in sizes else None
        begin = signed(data, found[_DATA_PAGE])
        dictionary = signed(data, found[_DICTIONARY_PAGE]) if _DICTIONARY_PAGE in found else 0
        if 0 < dictionary < begin:  # as Arrow has it
            begin = dictionary
        return cls(
            num_values=signed(data, found[_NUM_VALUES]),
            size_bytes=signed(data, found[_SIZE]),
            stored_bytes=signed(data, found[_STORED]),
            text_bytes=text_bytes,
            codec=signed(data, found[_CODEC]),
            begin=begin,
            encodings=_encodings(data, found[_ENCODINGS]),
        )

    @property
    def has_prefixes(self) -> bool:
        """Return whether values may be stored by what they have in common with the one before."""
        return _DELTA_BYTE_ARRAY in self.encodings

    @property
    def has_dictionary(self) -> bool:
        """Return whether values may refer to a dictionary."""
        return not _REFERRING.isdisjoint(self.encodings)


def _encodings(data: bytes, at: int) -> frozenset[int]:
    count, at = list_size(data, at, I32)
    found = set()
    for _ in range(count):
        found.add(signed(data, at))
        at = skip(data, at, I32)
    return frozenset(found)


class Footer:
    """The footer of the file in `source`, read when it is first needed."""

    def __init__(self, source: pa.NativeFile) -> None:
        self._source = source
        self._content = b""
        self._group_offsets: list[int] = []
        self._group_count = 0
        self._group = -1
        self._chunks: list[dict[int, int]] = []

    @property
    def content(self) -> bytes:
        """The bytes of the footer."""
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
            if group != self._group:
                self._chunks, self._group = list(self._parsed(group)), group
            return {column: Chunk.at(self.content, self._chunks[column]) for column in columns}
        except (LookupError, ValueError, RecursionError) as error:
            raise pa.ArrowInvalid(f"the footer does not describe the columns of row group {group}") from error

    def _parsed(self, group: int) -> Iterator[dict[int, int]]:
        data = self.content
        begin = self._offset(group)
        count, at = list_size(data, list_offset(data, begin, _COLUMNS), STRUCT)
        for _ in range(count):
            found, at = offsets(data, at, _META_DATA)
            yield found

    def _offset(self, group: int) -> int:
        """Return the offset of a row group, and remember those before it: they are read in order."""
        data, known = self.content, self._group_offsets
        if not known:
            self._group_count, first = list_size(data, list_offset(data, 0, _ROW_GROUPS), STRUCT)
            known.append(first)
        if group >= self._group_count:
            raise IndexError(group)
        while len(known) <= group:
            known.append(skip(data, known[-1], STRUCT))
        return known[group]
