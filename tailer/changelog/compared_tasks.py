"""The tasks of one version, or of a range, whose rows are compared with each other.

`tailer.changelog.carryovers` says which rows cancel out and which are paired, and in which order. Here is how: an index
finds equal rows (`tailer.changelog.equal_rows.port`), and its results become parts of the tasks (`Refinement`).
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final, Protocol

import pyarrow as pa
from pyroaring import BitMap64
from typing_extensions import override

from tailer.changelog.equal_rows.compared_columns import ComparedColumns, by_partition
from tailer.changelog.equal_rows.port import TaskIndex
from tailer.changelog.images import can_lie_side_by_side, count_side_by_side
from tailer.changelog.spill import SpilledPreimages
from tailer.errors import ConfigError
from tailer.events import ROW_ID, ChangeType
from tailer.files.deletion_vector import inline
from tailer.files.row_bitmaps import Bitmaps
from tailer.plan import ChangeTask, DeletionVectorRef, Refinement, TaskKind, add_row_ids, select_columns
from tailer.read.decoded_files import DecodedFiles
from tailer.schema.columns import dropped_column

__all__ = ["ComparedTasks", "InlineSelections", "Selections"]

_PLAIN: Final = (ChangeType.DELETE, ChangeType.INSERT)
_IMAGES: Final = (ChangeType.UPDATE_PREIMAGE, ChangeType.UPDATE_POSTIMAGE)
_IDS: Final = add_row_ids(pa.schema([]))
_ROW_ID: Final = select_columns(_IDS, [ROW_ID])


class Selections(Protocol):
    """Selections of rows, in a form that tasks can refer to."""

    def store(self, rows: BitMap64 | None) -> DeletionVectorRef | None:
        """Return a reference for tasks; None where `rows` is empty."""
        ...


class InlineSelections(Selections):
    """Selections that travel with tasks, for comparisons whose results other machines read."""

    @staticmethod
    @override
    def store(rows: BitMap64 | None) -> DeletionVectorRef | None:
        return inline(rows) if rows else None


class ComparedTasks:
    """Comparison of the rows of some tasks with each other, in all `columns`.

    `dropped`: rows that are not changes, by task index. `exactly`: whether to treat images of updates as deletes and
    inserts.
    """

    def __init__(
        self,
        tasks: Sequence[ChangeTask],
        columns: ComparedColumns,
        row_index: TaskIndex,
        bitmaps: Selections,
        rows: DecodedFiles,
        dropped: Bitmaps | None = None,
        exactly: bool = False,
    ) -> None:
        self._tasks = tasks
        self._columns = columns
        self._row_index = row_index
        self._bitmaps = bitmaps
        self._rows = rows
        self._exactly = exactly
        self.dropped: Bitmaps = dropped or {}
        self.has_pairs_in_place = False
        self._preimages: Bitmaps = {}  # of the updates found so far
        self._postimages: Bitmaps = {}

    def tasks(self) -> tuple[ChangeTask, ...]:
        """Return the tasks refined by the results so far."""
        return tuple(self._refine(index, task.schema) for index, task in enumerate(self._tasks))

    @property
    def has_pairs(self) -> bool:
        """Return whether any updates were found."""
        return bool(self._preimages)

    def pair_by_id(self) -> tuple[int, int]:
        """Pair updates by row id alone; return counts of updates and ambiguous rows."""
        comparable = set(self._columns.comparable())
        paired = self._pair([index for index in self._tracked() if index in comparable], _ROW_ID, _PLAIN)
        return paired.updates, paired.ambiguous

    def cancel(self, by_id: bool = True) -> int:
        """Drop carry-overs and return how many rows were dropped. `by_id`: whether equal row ids may prove them."""
        # An equal row id does not prove equal values if the deleted row had fewer columns.
        every = self._columns.every
        tracked = [index for index in self._tracked() if by_id and self._columns.compared(index) is every]
        dropped = 0
        if self._has_both(tracked):
            positions = self._index_rows(tracked, _IDS, _PLAIN, nulls_differ=True)
            dropped += self._drop(positions, self._row_index.unmatched_singles())
        comparable = self._columns.comparable()
        columns = [self._columns.compared(index) for index in comparable]
        groups = by_partition([self._tasks[index] for index in comparable], columns)
        partitions = ([comparable[number] for number in group] for group in groups)
        if mixed := sorted(index for group in partitions if self._has_both(group) for index in group):
            positions = self._index_rows(mixed, every, _PLAIN, unpaired=True)
            dropped += self._drop(positions, self._row_index.unmatched())
        return dropped

    def cancel_all(self) -> None:
        """Drop all rows that cancel out across versions. Raises `ConfigError` where some cannot be compared."""
        comparable = [index for index in self._columns.comparable() if self._columns.pads_alike(index)]
        incomparable = [self._tasks[index].version for index in set(range(len(self._tasks))).difference(comparable)]
        if incomparable:
            last = max(incomparable)
            reason = f"the columns before or at version {last} cannot be compared with those of the last version"
            remedy = f"Start at version {last + 1}, or end before version {last}."
            raise ConfigError("net changes", reason, remedy)
        self._drop(self._index_rows(comparable, self._columns.every, _PLAIN), self._row_index.unmatched())

    def pair(self, key: pa.Schema, null_keys: bool = False, in_place: bool = False) -> tuple[int, int]:
        """Pair updates by the columns `key`, if any, then by row id; return counts of updates and ambiguous rows.

        `null_keys`: whether nulls in keys are equal. `in_place`: whether images that lie side by side may stay in
        their tasks, as `tailer.changelog.carryovers.refine` says.
        """
        # Those that are delivered in all columns of their own.
        whole = [
            index
            for index in self._columns.comparable()
            if self._exactly or dropped_column(self._columns.by_task[index], self._columns.latest) is None
        ]
        tracked = set(self._tracked())
        by_key = self._pair(whole, key, _PLAIN, null_keys)
        by_id = self._pair([index for index in whole if index in tracked], _ROW_ID, _PLAIN)
        updates, ambiguous = by_key.updates + by_id.updates, by_key.ambiguous + by_id.ambiguous
        if not self._exactly:
            # Change files mark images but do not pair them, and the two images may be far from each other.
            written = [index for index in whole if self._tasks[index].kind is TaskKind.CDC_OTHERS]
            if written and in_place and self._are_side_by_side(written, key, null_keys):
                return updates, ambiguous
            images = self._pair(written, key, _IMAGES, null_keys)
            ambiguous += images.ambiguous
            if images.left:
                # A row whose key changed may have freed its key for a new row, or got the key of a deleted row.
                crossed = self._pair(whole, key, _PLAIN + _IMAGES, null_keys)
                updates, ambiguous = updates + crossed.updates, ambiguous + crossed.ambiguous
        return updates, ambiguous

    def _are_side_by_side(self, written: Sequence[int], key: pa.Schema, null_keys: bool) -> bool:
        """Return whether there are images, and all lie side by side: they stay where they are."""
        if not can_lie_side_by_side(key) or any(self._tasks[index].where is not None for index in written):
            return False
        pairs = 0
        for index in written:
            task = replace(self._tasks[index], schema=self._columns.as_of_task(index, key), refinement=None)
            count = count_side_by_side(self._rows.read(task), null_keys)
            if count is None:
                return False
            pairs += count
        self.has_pairs_in_place = pairs > 0
        return self.has_pairs_in_place

    def _pair(
        self, indices: Sequence[int], columns: pa.Schema, types: tuple[ChangeType, ...], nulls: bool = False
    ) -> "_Paired":
        if not indices or len(columns) == 0:
            return _Paired()
        positions = self._index_rows(indices, columns, types, nulls_differ=not nulls, unpaired=True)
        count = sum(map(len, positions.values()))
        if count < 2:
            return _Paired(left=count)
        # A row that is inserted, loses a column and is deleted did not cancel out: its delete must not be paired as
        # if the row had existed before the range.
        deleted, inserted, ambiguous = self._row_index.pair(in_turn=self._exactly and not self._columns.whole)
        _merge(self._preimages, deleted)
        _merge(self._postimages, inserted)
        updates = sum(map(len, deleted.values()))
        return _Paired(updates, ambiguous, count - 2 * updates)

    def skip_unchanged(self) -> int:
        """Drop updates with equal images and return how many rows were dropped."""
        indices, dropped = self._columns.comparable(), 0
        if paired := [index for index in indices if index in self._preimages or index in self._postimages]:
            self._index_rows(paired, self._columns.every, _IMAGES)
            equal = self._row_index.unpair_equal()
            dropped = sum(map(len, equal.values()))
            _merge(self.dropped, equal)
            for images in (self._preimages, self._postimages):
                images |= {index: rows - equal.get(index, BitMap64()) for index, rows in images.items()}
        if written := [index for index in indices if self._tasks[index].kind is TaskKind.CDC_OTHERS]:
            positions = self._index_rows(written, self._columns.every, _IMAGES, unpaired=True)
            dropped += self._drop(positions, self._row_index.unmatched())
        return dropped

    def split_off(self) -> tuple[ChangeTask, ...]:
        """Move the paired preimages from their tasks to tasks of their own, and return these."""
        split = tuple(self._preimage_tasks())
        _merge(self.dropped, self._preimages)
        self._preimages = {}
        return split

    def join(self, preimages: SpilledPreimages) -> None:
        """Move the paired preimages from their tasks to `preimages`."""
        postimages = {self._tasks[index].index: rows for index, rows in self._postimages.items() if rows}
        images = (batch.rows for task in self._preimage_tasks() for batch in self._rows.read(task))
        with closing(self._row_index.partner_ranks()) as ranks:
            preimages.keep(images, ranks, postimages)
        _merge(self.dropped, self._preimages)
        self._preimages = {}

    def _preimage_tasks(self) -> Iterator[ChangeTask]:
        """Yield the tasks of the paired preimages, in the columns of the last version."""
        for index in sorted(self._preimages):
            rows = self._bitmaps.store(self._preimages[index])
            if rows is not None:
                task, refinement = self._tasks[index], Refinement(updated=rows)
                schema = self._columns.as_of_task(index, self._columns.latest)
                yield replace(task, schema=schema, include=rows, exclude=None, refinement=refinement)

    def _index_rows(
        self,
        indices: Iterable[int],
        schema: pa.Schema,
        types: tuple[ChangeType, ...],
        nulls_differ: bool = False,
        unpaired: bool = False,
    ) -> Bitmaps:
        """Index the rows of these tasks and return their positions. `unpaired`: without rows already paired."""
        self._row_index.clear()
        is_ids = schema in (_IDS, _ROW_ID)  # which are the same in all tasks
        own = {index: schema if is_ids else self._columns.as_of_task(index, schema) for index in indices}
        tasks = [(index, self._refine(index, task, unpaired)) for index, task in own.items()]
        return self._row_index.add_tasks(tasks, self._rows.read, types, nulls_differ)

    def _tracked(self) -> list[int]:
        return [index for index, task in enumerate(self._tasks) if task.tracking is not None]

    def _refine(self, index: int, schema: pa.Schema, unpaired: bool = False) -> ChangeTask:
        nothing = BitMap64()
        left_out = self.dropped.get(index, nothing)
        images = self._preimages.get(index, nothing) | self._postimages.get(index, nothing)
        if unpaired:
            left_out, images = left_out | images, nothing
        dropped, updated = self._bitmaps.store(left_out), self._bitmaps.store(images)
        refinement = Refinement(dropped, updated, self._exactly) if dropped or updated or self._exactly else None
        return replace(self._tasks[index], schema=schema, refinement=refinement)

    def _drop(self, positions: Bitmaps, left: Bitmaps) -> int:
        dropped = {index: rows - left.get(index, BitMap64()) for index, rows in positions.items()}
        _merge(self.dropped, dropped)
        return sum(map(len, dropped.values()))

    def _has_both(self, indices: Iterable[int]) -> bool:
        tasks = [self._tasks[index] for index in indices]
        has_both = len({task.kind for task in tasks}) > 1
        return has_both and len({task.kind for task in tasks if self._rows.may_have(task)}) > 1


@dataclass(frozen=True, slots=True)
class _Paired:
    """Counts of the updates found, the ambiguous rows, and the rows left unpaired."""

    updates: int = 0
    ambiguous: int = 0
    left: int = 0


def _merge(merged: Bitmaps, more: Bitmaps) -> None:
    for index, rows in more.items():
        if rows:
            merged[index] = merged[index] | rows if index in merged else rows
