"""The ranges of an object that a row group is read from, announced before it is decoded."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from tailer.read.parquet.footer import Footer
from tailer.stores.pieces import Range
from tailer.stores.read_ahead import ReadAhead

__all__ = ["FEW_BYTES", "RowGroupRanges"]

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
