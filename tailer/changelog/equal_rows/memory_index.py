"""Index of few rows in memory: a small comparison takes less time than opening a database.

Rows with equal bytes (`row_bytes`) are a group, and each group has a number. Arrow sorts rows by group, and counts
them. A group has two sides: its deleted and its inserted rows.

Up to `FEW_ROWS` take no more time here than in a database. Of memory, a comparison takes about three times `FEW_BYTES`.
"""

from collections.abc import Generator, Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tailer.changelog.equal_rows.comparable_values import (
    LEADING_COLUMNS,
    add_addresses,
    has_bytes,
    most_bytes,
    row_bytes,
)
from tailer.files.row_bitmaps import Bitmaps, positions_of, span

__all__ = ["FEW_BYTES", "FEW_ROWS", "MemoryIndex"]

FEW_ROWS: Final = 2**16
FEW_BYTES: Final = 2**24  # of the rows as Arrow has them, and of `row_bytes`, together
_COLUMN_BYTES: Final = 512  # of a batch, whatever it holds: Arrow's and Python's objects
_PARTNERS: Final = pa.schema([("deleted", pa.int64()), ("inserted", pa.int64())])
_NO_PARTNERS: Final = pa.RecordBatch.from_pylist([], _PARTNERS)

_GROUPED: Final = pa.schema(
    [
        ("address", pa.int64()),
        ("deleted", pa.bool_()),
        ("group", pa.int64()),
        ("nth", pa.int64()),
        ("deleted_rows", pa.int64()),
        ("inserted_rows", pa.int64()),
    ]
)


class MemoryIndex:
    """Compares rows as `tailer.changelog.equal_rows.port.TaskIndex` says. Not thread-safe."""

    def __init__(self, few_rows: int = FEW_ROWS) -> None:
        self._few_rows = few_rows
        self._batches: list[pa.RecordBatch] = []
        self._count = self._size_bytes = 0
        self._found: pa.RecordBatch | None = None  # the rows, as of `_grouped`
        self._partners = _NO_PARTNERS

    def begin(self) -> None:
        """See `TaskIndex.begin`."""
        self.clear()
        self._partners = _NO_PARTNERS

    def clear(self) -> None:
        """See `TaskIndex.clear`."""
        self._batches, self._count, self._size_bytes, self._found = [], 0, 0, None

    def add(self, batch: pa.RecordBatch) -> bool:
        """Add rows as `Wanted.of` returns them; return False where they must go into a database.

        They must if there are more than `few_rows` or `FEW_BYTES` then, if their schema is not that of the rows before
        them, or if they have a type without bytes.
        """
        count = self._count + batch.num_rows
        if self._batches:
            alike = batch.schema.equals(self._batches[0].schema)
        else:
            alike = all(has_bytes(field.type) for field in list(batch.schema)[len(LEADING_COLUMNS) :])
        if count > self._few_rows or not alike:
            return False
        # What the batch takes, however many of its columns share a buffer.
        held_bytes = max(batch.nbytes, batch.get_total_buffer_size()) + _COLUMN_BYTES * batch.num_columns
        size_bytes = self._size_bytes + int(held_bytes) + sum(map(most_bytes, batch.columns))
        if size_bytes > FEW_BYTES:
            return False
        self._batches.append(batch)
        self._count, self._size_bytes, self._found = count, size_bytes, None
        return True

    def add_partners(self, partners: pa.Table) -> bool:
        """See `RowIndex.add_partners`; return False where there are more than `few_rows`."""
        if self._partners.num_rows + partners.num_rows > self._few_rows:
            return False
        more = partners.select(_PARTNERS.names).cast(_PARTNERS).to_batches()
        self._partners = pa.concat_batches([self._partners, *more])
        return True

    def partners(self) -> pa.Table:
        """See `RowIndex.partners`."""
        return pa.Table.from_batches([self._partners])

    def contents(self) -> tuple[Iterator[pa.RecordBatch], pa.RecordBatch]:
        """Return the rows, and the addresses of partners in the columns `deleted` and `inserted`."""
        return iter(self._batches), self._partners

    def unmatched(self) -> Bitmaps:
        """See `TaskIndex.unmatched`."""
        rows = self._grouped()
        rows = rows.filter(pc.not_equal(rows["deleted_rows"], rows["inserted_rows"]))
        first = pc.less_equal(rows["nth"], pc.subtract(rows["deleted_rows"], rows["inserted_rows"]))
        last = pc.greater(rows["nth"], rows["deleted_rows"])
        return _bitmaps(rows["address"].filter(pc.if_else(rows["deleted"], first, last)))

    def unmatched_singles(self) -> Bitmaps:
        """See `TaskIndex.unmatched_singles`."""
        rows = self._grouped()
        return _bitmaps(rows["address"].filter(pc.invert(_is_single(rows))))

    def pair(self, in_turn: bool = False) -> tuple[Bitmaps, Bitmaps, int]:
        """See `TaskIndex.pair`."""
        rows = self._grouped()
        rows = rows.filter(pc.and_(pc.greater(rows["deleted_rows"], 0), pc.greater(rows["inserted_rows"], 0)))
        partners = _in_turn(rows) if in_turn else _nth_with_nth(rows)
        self._partners = pa.concat_batches([self._partners, partners])
        return _bitmaps(partners["deleted"]), _bitmaps(partners["inserted"]), _is_single(rows).false_count

    def unpair_equal(self) -> Bitmaps:
        """See `TaskIndex.unpair_equal`."""
        rows = self._grouped()
        deleted, inserted = (
            rows["group"].take(pc.index_in(addresses, value_set=rows["address"]))
            for addresses in self._partners.columns
        )
        equal = pc.fill_null(pc.equal(deleted, inserted), False)
        unpaired = self._partners.filter(equal)
        self._partners = self._partners.filter(pc.invert(equal))
        return _bitmaps(pa.concat_arrays(unpaired.columns))

    def partner_ranks(self) -> Generator[pa.RecordBatch, None, None]:
        """See `TaskIndex.partner_ranks`."""
        ranks = pc.sort_indices(pc.sort_indices(self._partners["inserted"]))
        by_deleted = pc.sort_indices(self._partners["deleted"])
        yield pa.RecordBatch.from_arrays([ranks.take(by_deleted).cast(pa.int64())], ["rank"])

    def _grouped(self) -> pa.RecordBatch:
        if self._found is None:
            self._found = _grouped(self._batches)
        return self._found


def _grouped(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return a row for each row, by group, side (the deleted ones first) and address.

    It has its `address`, whether it is `deleted`, its `group`, which `nth` row of its side it is, and how many
    `deleted_rows` and `inserted_rows` the group has.
    """
    if not batches:
        return pa.RecordBatch.from_pylist([], _GROUPED)
    rows = pa.concat_batches(batches)
    group = row_bytes(rows.columns[len(LEADING_COLUMNS) :], rows.num_rows).dictionary_encode().indices
    side = pc.add(pc.multiply(group.cast(pa.int64()), 2), pc.invert(rows["deleted"]).cast(pa.int64()))
    grouped = pa.RecordBatch.from_arrays([rows["address"], side], ["address", "side"])
    grouped = grouped.take(pc.sort_indices(grouped, [("side", "ascending"), ("address", "ascending")]))
    side = grouped["side"]
    sizes = pc.value_counts(side)
    size = sizes.field("counts")
    start = pc.subtract(pc.cumulative_sum(size), size)
    is_inserted = pc.bit_wise_and(side, 1)
    deleted_side = pc.subtract(side, is_inserted)

    def of_side(figures: pa.Array, side: pa.Array) -> pa.Array:
        return figures.take(pc.index_in(side, value_set=sizes.field("values"))).fill_null(0)

    nth = pc.subtract(positions_of(span(1, rows.num_rows + 1)), of_side(start, side))
    columns = [
        grouped["address"],
        pc.equal(is_inserted, 0),
        pc.shift_right(side, 1),
        nth,
        of_side(size, deleted_side),
        of_side(size, pc.add(deleted_side, 1)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_GROUPED)


def _is_single(rows: pa.RecordBatch) -> pa.Array:
    """Return whether a group has one row on each side."""
    return pc.and_(pc.equal(rows["deleted_rows"], 1), pc.equal(rows["inserted_rows"], 1))


def _nth_with_nth(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the addresses of partners: the n-th rows of both sides."""
    rows = rows.filter(pc.less_equal(rows["nth"], pc.min_element_wise(rows["deleted_rows"], rows["inserted_rows"])))
    sides = [rows["address"].filter(rows["deleted"]), rows["address"].filter(pc.invert(rows["deleted"]))]
    return pa.RecordBatch.from_arrays(sides, schema=_PARTNERS)


def _in_turn(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the addresses of partners: a deleted row and the next row of its group, if that is inserted."""
    rows = rows.take(pc.sort_indices(rows, [("group", "ascending"), ("address", "ascending")]))
    row, following = rows.slice(0, max(rows.num_rows - 1, 0)), rows.slice(1)
    same = pc.and_(pc.equal(row["group"], following["group"]), pc.and_(row["deleted"], pc.invert(following["deleted"])))
    sides = [row["address"].filter(same), following["address"].filter(same)]
    return pa.RecordBatch.from_arrays(sides, schema=_PARTNERS)


def _bitmaps(addresses: pa.Array) -> Bitmaps:
    bitmaps: Bitmaps = {}
    add_addresses(bitmaps, addresses)
    return bitmaps
