"""Rows of a Parquet file that a task selects: by their positions, their change types, and its condition.

Only rows that the task selects are held against its condition (`ChangeTask.where`): a deleted row cannot make it fail.
Of a large row group, the columns of the condition are read first, up to the first row that fulfils it. If there is
none, no other column is read.

A change file has both images of an update, in most files side by side: the preimage in one row, the postimage in the
next. What is left of an update depends on both. If both fulfil the condition, they stay images. If one does, the row
left the filtered table, which is a delete, or came to it, which is an insert. Images that do not lie side by side are a
delete and an insert, too: nothing says which belong together. Such deletes come with the other deletes of the version,
before all other rows.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from tailer.errors import DataCorrupt, FileVacuumed, ScratchUnavailable
from tailer.events import CHANGE_TYPE, ChangeType
from tailer.files import deletion_vector
from tailer.files.row_bitmaps import bitmap_of, positions_of, span
from tailer.plan import ChangeTask, DeletionVectorRef, Refinement, TaskKind
from tailer.read.data_files import Files, translated
from tailer.read.parquet.batch_sizes import MAX_ROWS
from tailer.read.projection import CHANGE_FILES, Projection, repeated

if TYPE_CHECKING:
    from tailer.shape.condition import Condition

__all__ = ["Batches", "ChangedRows", "RowFilter", "Selection", "rows_of_changes"]

_NO_TYPE: Final = f"{CHANGE_TYPE} is null in some row"
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
        rows = self._rows(batch, position)
        mask = self._condition.mask(rows if len(indices) == batch.num_rows else rows.take(indices))
        return indices if mask.false_count == 0 else indices.filter(mask)

    def mask(self, batch: pa.RecordBatch, position: int) -> pa.BooleanArray:
        """Return which rows of the batch fulfil the condition. Raises as `fulfilling`."""
        return self._condition.mask(self._rows(batch, position))

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
                raise pa.ArrowInvalid(_NO_TYPE)
            parts.append([*(pc.equal(types, kind.value) for kind in _NOTED_TYPES), row_filter.mask(batch, position)])
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
        next_post, next_fulfils = (
            pa.concat_arrays([values[1:], pa.array([last])])[: len(values)]
            for last, values in zip(following, (self.postimages, self.fulfils), strict=True)
        )
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


_NOTED_TYPES: Final = (ChangeType.DELETE, ChangeType.UPDATE_PREIMAGE, ChangeType.UPDATE_POSTIMAGE)
_NO_BITS: Final = pa.array([], pa.bool_())


class Selection:
    """The selected rows of the file, and their change types."""

    def __init__(self, task: ChangeTask, num_rows: int, files: Files) -> None:
        self._task = task
        self._files = files
        self._refinement = task.refinement or Refinement()
        self._include = self._load(task.include, num_rows)
        exclude, dropped = self._load(task.exclude, num_rows), self._found(self._refinement.dropped, num_rows)
        self._exclude = exclude | dropped if exclude is not None and dropped is not None else exclude or dropped
        self._updated = self._found(self._refinement.updated, num_rows)
        self._single: BitMap64 | None = None  # images of a change file without a partner that fulfils the condition
        constant = ChangeType.DELETE if task.kind is TaskKind.DELETE else ChangeType.INSERT
        self._constant = None if task.kind in CHANGE_FILES else repeated(constant)
        self.kind = constant if self._constant is not None and self._updated is None else None  # of all rows

    def may_touch(self, rows: range) -> bool:
        """Return whether any of the rows at these positions is selected by its position."""
        some = self._include is not None or self._marks(self._exclude, rows.start, rows.stop)
        return not some or len(self.kept(rows.start, rows.stop)) > 0

    def narrow(self, rows: ChangedRows) -> None:
        """Select no other rows of a change file than `rows`, whatever their change types are."""
        self._include = rows.kept if self._include is None else self._include & rows.kept
        self._single = rows.single

    def fulfilling(self, batch: pa.RecordBatch, position: int, row_filter: RowFilter | None, wanted: range) -> pa.Array:
        """Return the indices of the selected rows of a batch, the first of whose rows is at `position`.

        `row_filter`: the condition of the task, unless `narrow` knows its rows.
        """
        indices = self.pick(self.change_types(batch), position, wanted)
        return indices if row_filter is None or not len(indices) else row_filter.fulfilling(batch, indices, position)

    def pick(self, types: pa.Array, position: int, wanted: range) -> pa.Array:
        """Indices of the selected rows of a batch that begins at `position`, given all its rows' change types."""
        end = min(position + len(types), wanted.stop)
        first = min(max(position, wanted.start), end)
        if first == position and self._include is None and not self._marks(self._exclude, first, end):
            kept = _counting().slice(0, end - position)
        elif self._include is not None and not self._marks(self._include, first, end):
            return _counting().slice(0, 0)
        else:
            kept = _indices(self.kept(first, end), position)
        if self._constant is not None or self._single is not None:
            return kept
        fit = self._fit(types)
        if isinstance(fit, bool):
            return kept if fit else kept.slice(0, 0)
        fitting = pc.indices_nonzero(fit).cast(pa.int64())
        return fitting if len(kept) == len(types) else fitting.filter(pc.is_in(fitting, value_set=kept))

    def change_types(self, batch: pa.RecordBatch) -> pa.Array:
        """The change type of every row of the batch, as the file has it; of a change file as a dictionary of them."""
        if self._constant is None:
            types = batch.column(CHANGE_TYPE)
            return types if types.type.equals(_TYPES) else types.cast(pa.string()).dictionary_encode()
        return self._constant.slice(0, batch.num_rows)

    def labels(self, types: pa.Array, position: int) -> pa.Array:
        """Return the change types to deliver for rows with `types` in the file, the first of which is at `position`."""
        types = types if self._constant is not None else types.cast(pa.string())
        if self._refinement.exactly:
            types = _replaced(types, _PLAIN)
        types = self._relabelled(types, position, self._single, _PLAIN)
        return self._relabelled(types, position, self._updated, _IMAGES)

    def kept(self, first: int, end: int) -> BitMap64:
        """Return the positions from `first` to before `end` that are selected by position."""
        kept = span(first, end)
        if self._include is not None:
            kept &= self._include
        if self._exclude is not None:
            kept -= self._exclude
        return kept

    def _relabelled(
        self, types: pa.Array, position: int, marked: BitMap64 | None, names: Mapping[ChangeType, ChangeType]
    ) -> pa.Array:
        """Replace the types of the rows at positions that are `marked` by other `names`."""
        end = position + len(types)
        if marked is None or not self._marks(marked, position, end):
            return types
        indices = _indices(marked & span(position, end), position)
        chosen = pc.is_in(_counting().slice(0, len(types)), value_set=indices)
        return pc.if_else(chosen, _replaced(types, names), types)

    def _fit(self, types: pa.Array) -> bool | pa.Array:
        """Return which rows with these types in a change file are selected by them, or whether all or none are."""
        if types.null_count:
            raise pa.ArrowInvalid(_NO_TYPE)
        deletes = pc.equal(types.dictionary, _DELETE)
        fit = deletes if self._task.kind is TaskKind.CDC_DELETES else pc.invert(deletes)
        if fit.true_count in (0, len(fit)):
            return bool(fit.true_count > 0)
        return fit.take(types.indices)

    def _marks(self, bitmap: BitMap64 | None, first: int, end: int) -> bool:
        return bitmap is not None and bitmap.range_cardinality(first, end) > 0

    def _found(self, ref: DeletionVectorRef | None, num_rows: int) -> BitMap64 | None:
        """Load a spilled result of comparing rows. If its file is gone, that is no error of the table."""
        try:
            return self._load(ref, num_rows)
        except FileVacuumed as error:
            raise ScratchUnavailable(
                error.path, "the temporary result of comparing this version was deleted"
            ) from error

    def _load(self, ref: DeletionVectorRef | None, num_rows: int) -> BitMap64 | None:
        if ref is None:
            return None
        with translated(self._task, ref.uri or self._task.uri):
            bitmap = deletion_vector.load(ref, self._task, self._files.read)
        if len(bitmap) > 0 and bitmap.max() >= num_rows:
            reason = f"its deletion vector marks row {bitmap.max()}, the file has {num_rows} rows"
            raise DataCorrupt(self._task.table, self._task.version, self._task.uri, reason)
        return bitmap


_DELETE: Final = pa.scalar(ChangeType.DELETE.value)
_TYPES: Final = pa.dictionary(pa.int32(), pa.string())
_PLAIN: Final = {ChangeType.UPDATE_PREIMAGE: ChangeType.DELETE, ChangeType.UPDATE_POSTIMAGE: ChangeType.INSERT}
_IMAGES: Final = {plain: image for image, plain in _PLAIN.items()}


def _replaced(types: pa.Array, names: Mapping[ChangeType, ChangeType]) -> pa.Array:
    for name, other in names.items():
        types = pc.if_else(pc.equal(types, pa.scalar(name.value)), pa.scalar(other.value), types)
    return types


def _indices(positions: BitMap64, start: int) -> pa.Array:
    """Positions as indices relative to `start`."""
    # Given a plain number, Arrow looks for numpy first, every time; where there is none that takes longer than the sum.
    return pc.subtract(positions_of(positions), pa.scalar(start, pa.int64()))


@cache
def _counting() -> pa.Array:
    return pa.array(range(MAX_ROWS), pa.int64())
