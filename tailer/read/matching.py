"""Rows of a Parquet file that fulfil the condition of a task (`ChangeTask.where`).

Only rows that the task selects are looked at: a deleted row cannot make a condition fail. Of a large row group, the
columns of the condition are read first, up to the first row that fulfils it. If there is none, no other column is read.

A change file has both images of an update, in most files side by side: the preimage in one row, the postimage in the
next. What is left of an update depends on both. If both fulfil the condition, they stay images. If one does, the row
left the filtered table, which is a delete, or came to it, which is an insert. Images that do not lie side by side are a
delete and an insert, too: nothing says which belong together. Such deletes come with the other deletes of the version,
before all other rows.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from tailer.events import CHANGE_TYPE, ChangeType
from tailer.files.row_bitmaps import bitmap_of
from tailer.plan import TaskKind
from tailer.read.projection import Projection

if TYPE_CHECKING:
    from tailer.shape.condition import Condition

__all__ = ["NO_TYPE", "Batches", "ChangedRows", "RowFilter", "rows_of_changes"]

NO_TYPE: Final = f"{CHANGE_TYPE} is null in some row"
Batches = Iterator[tuple[pa.RecordBatch, int]]
"""Batches of a file, each with the position of its first row."""


class RowFilter:
    """The condition of a task over the batches of one file. `projection`: reads the columns of the condition."""

    def __init__(self, condition: "Condition", projection: Projection) -> None:
        self._condition = condition
        self._projection = projection
        self._schema = pa.schema(list(projection.schema)[: len(condition.fields)])

    def fulfilling(self, batch: pa.RecordBatch, indices: pa.Array, position: int) -> pa.Array:
        """Return those of the ascending `indices` whose rows fulfil the condition.

        `position`: of the first row of the batch in the file. Raises as `Projection.apply` and `Condition.mask` do.
        """
        mask = self.mask(batch, position) if len(indices) == batch.num_rows else self._taken(batch, indices, position)
        return indices if mask.false_count == 0 else indices.filter(mask)

    def mask(self, batch: pa.RecordBatch, position: int) -> pa.BooleanArray:
        """Return which rows of the batch fulfil the condition. Raises as `fulfilling`."""
        return self._condition.mask(self._rows(batch, position))

    def _taken(self, batch: pa.RecordBatch, indices: pa.Array, position: int) -> pa.BooleanArray:
        return self._condition.mask(self._rows(batch, position).take(indices))

    def _rows(self, batch: pa.RecordBatch, position: int) -> pa.RecordBatch:
        if not self._schema:
            return batch  # a batch without columns has no rows
        return pa.RecordBatch.from_arrays(self._projection.apply(batch, position), schema=self._schema)


@dataclass(frozen=True, slots=True)
class ChangedRows:
    """Positions of rows of a change file, for one task. `single`: those of images that are not part of an update."""

    kept: BitMap64
    single: BitMap64


def rows_of_changes(
    kind: TaskKind, groups: Mapping[int, range], decode: Callable[[int, range], Batches], row_filter: RowFilter
) -> ChangedRows:
    """Return the rows of a change file that a task of `kind` has under its condition.

    `groups`: the positions of the rows of the row groups to look at, in order; `decode` gives the change types and the
    columns of the condition of one, each batch with the position of its first row. Images in two row groups that do not
    follow each other are not side by side. Raises as `decode` and `RowFilter.fulfilling` do.
    """
    changed_rows = ChangedRows(BitMap64(), BitMap64())
    before: _Rows | None = None
    for group, positions in groups.items():
        rows = _Rows.of(positions.start, decode(group, positions), row_filter)
        if before is not None:
            before.add_to(changed_rows, kind, rows if before.end == rows.start else None)
            rows.follows(before)
        before = rows
    if before is not None:
        before.add_to(changed_rows, kind, None)
    return changed_rows


class _Rows:
    """The rows of a row group, a bit each: which are of a change type, and which fulfil the condition."""

    def __init__(
        self, start: int, deletes: pa.Array, preimages: pa.Array, postimages: pa.Array, fulfils: pa.Array
    ) -> None:
        self.start = start
        self.end = start + len(fulfils)
        self._deletes = deletes
        self.preimages = preimages
        self.postimages = postimages
        self.fulfils = fulfils
        self._last: tuple[bool, bool] = (False, False)  # of the row before the first

    @classmethod
    def of(cls, start: int, batches: Batches, row_filter: RowFilter) -> "_Rows":
        """Take the batches of a row group whose first row is at `start`."""
        parts = [[_NO_BITS] * 4]
        for batch, position in batches:
            types = batch.column(CHANGE_TYPE).cast(pa.string())
            if types.null_count:
                raise pa.ArrowInvalid(NO_TYPE)
            parts.append([*(pc.equal(types, kind.value) for kind in _TYPES), row_filter.mask(batch, position)])
        return cls(start, *map(pa.concat_arrays, zip(*parts, strict=True)))

    def follows(self, before: "_Rows") -> None:
        """Note the last row of the row group before."""
        if before.end == self.start and len(before.fulfils):
            self._last = before.preimages[-1].as_py(), before.fulfils[-1].as_py()

    def add_to(self, changed_rows: ChangedRows, kind: TaskKind, after: "_Rows | None") -> None:
        """Add the rows of a task of `kind`. `after`: the rows of the row group that follows."""
        following = (False, False)
        if after is not None and len(after.fulfils):
            following = after.postimages[0].as_py(), after.fulfils[0].as_py()
        next_post, next_fulfils = map(_shifted, (self.postimages, self.fulfils), following)
        before_pre, before_fulfils = (
            pa.concat_arrays([pa.array([first]), values[:-1]])[: len(values)]
            for first, values in zip(self._last, (self.preimages, self.fulfils), strict=True)
        )
        leaves = pc.and_not(self.preimages, pc.and_(next_post, next_fulfils))
        comes = pc.and_not(self.postimages, pc.and_(before_pre, before_fulfils))
        deletes = pc.or_(self._deletes, leaves)
        if kind is TaskKind.CDC_DELETES:
            self._note(changed_rows, deletes, leaves)
        else:
            self._note(changed_rows, pc.invert(deletes), comes)

    def _note(self, changed_rows: ChangedRows, kept: pa.Array, single: pa.Array) -> None:
        changed_rows.kept.update(self._positions(kept))
        changed_rows.single.update(self._positions(pc.and_(kept, single)))

    def _positions(self, chosen: pa.Array) -> BitMap64:
        indices = pc.indices_nonzero(pc.and_(chosen, self.fulfils)).cast(pa.int64())
        return bitmap_of(pc.add(indices, pa.scalar(self.start, pa.int64())))


_TYPES: Final = (ChangeType.DELETE, ChangeType.UPDATE_PREIMAGE, ChangeType.UPDATE_POSTIMAGE)
_NO_BITS: Final = pa.array([], pa.bool_())


def _shifted(values: pa.Array, last: bool) -> pa.Array:
    """Return for each row the value of the next one; `last` for the last row."""
    return pa.concat_arrays([values[1:], pa.array([last])])[: len(values)]
