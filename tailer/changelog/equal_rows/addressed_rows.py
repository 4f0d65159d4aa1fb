"""Rows as they are compared: each with an address, whether it is deleted, and the values of the compared columns.

Addresses order rows as their versions deliver them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from tailer.changelog.equal_rows.comparable_values import comparable
from tailer.errors import DataCorrupt
from tailer.events import CHANGE_TYPE, METADATA_FIELDS, ChangeBatch, ChangeType
from tailer.files.row_bitmaps import Bitmaps, bitmap_of
from tailer.variant import InvalidVariant

__all__ = ["LEADING_COLUMNS", "MAX_ROWS", "Wanted", "add_addresses"]

LEADING_COLUMNS: Final = ("address", "deleted")
MAX_ROWS: Final = 2**40
"""An address is the number of a source times this, plus the position of a row."""

_DELETED_VALUES: Final = pa.array([ChangeType.DELETE.value, ChangeType.UPDATE_PREIMAGE.value])


@dataclass(frozen=True, slots=True)
class Wanted:
    """The rows that are compared: those of some change types.

    `nulls_differ`: without rows that have a null in one of the compared columns. `maps_in_order`: as in `TaskIndex`.
    """

    types: tuple[ChangeType, ...]
    nulls_differ: bool = False
    maps_in_order: bool = False

    def of(self, source: int, batch: ChangeBatch) -> tuple[pa.Array, pa.RecordBatch]:
        """Return the positions of the wanted rows, and these rows in the types of `comparable_values`.

        Their columns are the address, whether the row is deleted, and the compared columns as c0, c1 and so on.

        Raises `DataCorrupt` for a Variant that is not sound.
        """
        values = pa.array([kind.value for kind in self.types])
        wanted = pc.is_in(batch.rows[CHANGE_TYPE], value_set=values)
        if self.nulls_differ:
            for column in batch.rows.columns[: -len(METADATA_FIELDS)]:
                wanted = pc.and_(wanted, column.is_valid())
        rows = _with_addresses(source, batch, self.maps_in_order)
        if wanted.true_count == len(batch):
            return batch.row_index, rows
        return batch.row_index.filter(wanted), rows.filter(wanted)

    def of_sources(
        self, sources: Iterable[tuple[int, Iterator[ChangeBatch]]], positions: Bitmaps
    ) -> Iterator[pa.RecordBatch]:
        """Yield the wanted rows of some sources as `of` does; add their positions to `positions`, by source."""
        for source, batches in sources:
            own = positions.setdefault(source, BitMap64())
            for batch in batches:
                row_index, rows = self.of(source, batch)
                if rows.num_rows > 0:
                    own |= bitmap_of(row_index)
                    yield rows


def add_addresses(bitmaps: Bitmaps, addresses: pa.Array) -> None:
    """Add the positions of addresses to `bitmaps`, by source."""
    sources = pc.shift_right(addresses, MAX_ROWS.bit_length() - 1)
    rows = pc.bit_wise_and(addresses, MAX_ROWS - 1)
    for source in pc.unique(sources):
        bitmaps.setdefault(source.as_py(), BitMap64()).update(bitmap_of(rows.filter(pc.equal(sources, source))))


def _with_addresses(source: int, batch: ChangeBatch, maps_in_order: bool) -> pa.RecordBatch:
    columns = batch.rows.columns[: -len(METADATA_FIELDS)]
    deleted = pc.is_in(batch.rows[CHANGE_TYPE], value_set=_DELETED_VALUES)
    try:
        address = pc.add(batch.row_index, pa.scalar(source * MAX_ROWS, pa.int64()))
        arrays = [address, deleted, *(comparable(column, maps_in_order) for column in columns)]
    except InvalidVariant as error:
        file = f"the file of task {batch.task}"
        raise DataCorrupt(batch.table_id, batch.version, file, f"a Variant is not sound: {error}") from error
    return pa.RecordBatch.from_arrays(arrays, [*LEADING_COLUMNS, *(f"c{index}" for index in range(len(columns)))])
