"""Column chunks as the footer of a Parquet file describes them, read without Arrow.

Arrow ends the process when it is asked about the columns of some broken footers, and it does not pass on how many bytes
the texts of a chunk have.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

from tailer.read.thrift import behind, fields, list_size, places, signed

__all__ = ["Chunk", "Footer"]

_ROW_GROUPS: Final = 4  # numbers of fields: of the footer,
_COLUMNS: Final = 1  # of a row group,
_META_DATA: Final = 3  # of a column chunk,
_ENCODINGS, _CODEC, _NUM_VALUES, _SIZE = 2, 4, 5, 6  # and of its metadata
_DATA_PAGE, _DICTIONARY_PAGE, _PAGE_ENCODINGS, _SIZES = 9, 11, 13, 16
_LIST, _STRUCT, _I32 = 9, 12, 5
_PLAIN_DICTIONARY, _RLE, _BIT_PACKED, _DELTA_BYTE_ARRAY, _RLE_DICTIONARY = 2, 3, 4, 7, 8
_REFERRING: Final = frozenset([_PLAIN_DICTIONARY, _RLE_DICTIONARY])
_LEVELS: Final = frozenset([_RLE, _BIT_PACKED])
_KINDS_OF_DATA_PAGES: Final = frozenset([0, 3])


class Chunk:
    """One column of a row group. Properties raise `LookupError` for what the footer lacks."""

    __slots__ = ("_data", "_found")

    def __init__(self, data: bytes, found: dict[int, int]) -> None:
        self._data = data
        self._found = found

    @property
    def num_values(self) -> int:
        """The number of values, nulls included."""
        return signed(self._data, self._found[_NUM_VALUES])

    @property
    def size_bytes(self) -> int:
        """The bytes of its pages before compression."""
        return signed(self._data, self._found[_SIZE])

    @property
    def text_bytes(self) -> int | None:
        """The bytes of its texts when decoded; None where the writer did not say."""
        if _SIZES not in self._found:
            return None
        sizes = places(self._data, self._found[_SIZES])[0]
        return signed(self._data, sizes[1]) if 1 in sizes else None

    @property
    def codec(self) -> int:
        """The number of its compression."""
        return signed(self._data, self._found[_CODEC])

    @property
    def begin(self) -> int:
        """The offset of its first page in the file."""
        return signed(self._data, self._found.get(_DICTIONARY_PAGE) or self._found[_DATA_PAGE])

    @property
    def has_prefixes(self) -> bool:
        """Return whether values may be stored by what they have in common with the one before."""
        return _DELTA_BYTE_ARRAY in self._encodings()

    @property
    def has_dictionary(self) -> bool:
        """Return whether values may refer to a dictionary."""
        return not _REFERRING.isdisjoint(self._encodings())

    @property
    def is_all_dictionary(self) -> bool:
        """Return whether all values refer to a dictionary."""
        if _PAGE_ENCODINGS not in self._found:
            return self.has_dictionary and self._encodings() <= _REFERRING | _LEVELS
        count, at = list_size(self._data, self._found[_PAGE_ENCODINGS])
        for _ in range(count):
            page, at = places(self._data, at)
            if signed(self._data, page[1]) in _KINDS_OF_DATA_PAGES and signed(self._data, page[2]) not in _REFERRING:
                return False
        return self.has_dictionary

    def _encodings(self) -> set[int]:
        count, at = list_size(self._data, self._found[_ENCODINGS])
        found = set()
        for _ in range(count):
            found.add(signed(self._data, at))
            at = behind(self._data, at, _I32)
        return found


class Footer:
    """The footer of the file in `source`, read when it is first needed."""

    def __init__(self, source: pa.NativeFile) -> None:
        self._source = source
        self._content = b""
        self._group_places: list[int] = []
        self._group_count = 0
        self._group = -1
        self._chunks: list[Chunk] = []

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
            return {column: self._chunks[column] for column in columns}
        except (LookupError, StopIteration, ValueError) as error:
            raise pa.ArrowInvalid(f"the footer does not describe the columns of row group {group}") from error

    def _parsed(self, group: int) -> Iterator[Chunk]:
        data = self.content
        begin = self._place(group)
        count, at = next(list_size(data, at) for field, _, at in fields(data, begin) if field == _COLUMNS)
        for _ in range(count):
            found, at = places(data, at, _META_DATA)
            yield Chunk(data, found)

    def _place(self, group: int) -> int:
        """Return the place of a row group, and remember those before it: they are read in order."""
        data, known = self.content, self._group_places
        if not known:
            begin = next(at for field, kind, at in fields(data, 0) if (field, kind) == (_ROW_GROUPS, _LIST))
            self._group_count, first = list_size(data, begin)
            known.append(first)
        if group >= self._group_count:
            raise IndexError(group)
        while len(known) <= group:
            known.append(behind(data, known[-1], _STRUCT))
        return known[group]
