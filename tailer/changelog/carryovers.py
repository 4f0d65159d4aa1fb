"""From rewritten files to changed rows: carry-overs, updates and unchanged updates of a version.

A writer without deletion vectors that changes one row rewrites its whole file. The log then says that a million rows
were deleted and a million inserted. `refine` compares the rows of a version with each other and adds the result to the
plan's tasks, so that executing them yields only the rows that changed:

1. *Carry-overs* (`Carryovers.DROP`) are rows that are deleted and inserted unchanged. They cancel out as multisets:
   of a row that is deleted twice and inserted once, one delete is left. With row tracking (PROTOCOL.md, "Row
   Tracking"), rows with equal row id and row commit version are matched first, which reads only these two columns. The
   other rows are compared by all delivered columns. Only versions without a change feed have carry-overs, because the
   feed lists exactly the changes. Where row ids alone pair rows (`ChangePlan.paired`), they do so first, whatever the
   rules: equal images of such an update are a row that only moved, and are carry-overs.
2. *Updates* (`compute_updates`): a deleted and an inserted row with the same identity become `update_preimage` and
   `update_postimage`. Rows have the same identity if their `key` columns are equal and none of these is null; of the
   remaining rows, if their row ids are equal. Where several rows of a version have one key, the n-th deleted row is
   paired with the n-th inserted row, in the order of delivery. Rows without a partner stay deletes and inserts. Both
   images are delivered together, the preimage first, at the position of the postimage and with the columns of the
   version. Where the version drops a column, its rows are not paired. Images in change files are paired by key in the
   same way. The others stay in place.
3. *Unchanged* (`skip_unchanged`): equal images of an update are dropped. Images in change files are not paired there,
   so they cancel out as multisets.

Rows are equal if they are equal in all columns that the table has before or after the version. Columns are matched by
their identity over time (`tailer.schema.identity`), and a missing column counts as null. Where the types of a column
cannot be compared, no rows are equal.

All other rows keep their positions (invariant 4): `task` and `row` are those of the original plan. Memory is bounded by
`tailer.changelog.equal_rows.row_index` and one bit for each row of a version.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

import pyarrow as pa
from pyroaring import BitMap64

from tailer.changelog.equal_rows.compared_columns import ComparedColumns
from tailer.changelog.equal_rows.row_index import RowIndex
from tailer.changelog.partition_groups import by_partition
from tailer.changelog.rules import PairingRules, check_key, has_carryovers
from tailer.changelog.spill.bitmaps import SpilledBitmaps
from tailer.changelog.spill.preimages import SpilledPreimages
from tailer.errors import ConfigError
from tailer.events import ROW_ID, ChangeType
from tailer.plan import ChangePlan, ChangeTask, Refinement, Regime, TaskKind, add_row_ids, select_columns
from tailer.read.kept_rows import KeptRows
from tailer.read.row_bitmaps import Bitmaps
from tailer.schema.columns import dropped_column

__all__ = ["ChangelogCounts", "concerns", "independent_parts", "lacks_identity", "refine", "refine_range"]

_PLAIN: Final = (ChangeType.DELETE, ChangeType.INSERT)
_IMAGES: Final = (ChangeType.UPDATE_PREIMAGE, ChangeType.UPDATE_POSTIMAGE)
_IDS: Final = add_row_ids(pa.schema([]))
_ROW_ID: Final = select_columns(_IDS, [ROW_ID])


@dataclass(frozen=True, slots=True)
class ChangelogCounts:
    """Row counts of a comparison: `carryovers` and `unchanged` were dropped, `updates` have two images each.

    `ambiguous`: rows with more than one possible partner for an update, or whose possible partners are all paired.
    """

    carryovers: int = 0
    updates: int = 0
    ambiguous: int = 0
    unchanged: int = 0


def concerns(plan: ChangePlan, rules: PairingRules) -> bool:
    """Return whether `refine` may change the plan."""
    if plan.regime is Regime.CDC:
        return rules.skip_unchanged or (rules.compute_updates and bool(rules.key))
    kinds = {task.kind for task in plan.tasks}
    if plan.regime is not Regime.FILES or len(kinds) < 2:
        return False
    return plan.paired or has_carryovers(plan, rules) or _pairs(plan, rules)


def independent_parts(plan: ChangePlan, rules: PairingRules) -> list[ChangePlan]:
    """Split the plan into parts that `refine` can process independently, because no rows of two parts are compared.

    Where only values are compared, the parts are partitions. Otherwise the plan is one part: an update may move a row
    to another partition, and row ids do not depend on partitions.
    """
    if plan.regime is not Regime.FILES or rules.compute_updates or _is_tracked(plan):
        return [plan]
    columns = ComparedColumns.of([plan])
    indices = columns.comparable()
    groups = by_partition([plan.tasks[index] for index in indices], [columns.compared(index) for index in indices])
    others = sorted(set(range(len(plan.tasks))).difference(indices))
    parts = [*([indices[number] for number in group] for group in groups), *([others] if others else [])]
    return [replace(plan, tasks=tuple(plan.tasks[index] for index in part)) for part in parts]


def lacks_identity(plan: ChangePlan, rules: PairingRules) -> bool:
    """Return whether updates are requested but the rows of `plan` have neither a key nor row ids."""
    rewrites = plan.regime is Regime.FILES and len({task.kind for task in plan.tasks}) > 1
    return rewrites and rules.compute_updates and not rules.key and not _is_tracked(plan)


def refine(
    plan: ChangePlan,
    rules: PairingRules,
    row_index: RowIndex,
    bitmaps: SpilledBitmaps,
    preimages: SpilledPreimages,
    rows: KeptRows,
) -> tuple[ChangePlan, ChangelogCounts]:
    """Refine the plan to the rows that are changes by `rules`, without paired preimages, which go to `preimages`.

    The new plan refers to `bitmaps` and is valid as long as they are. `plan` must have the key columns
    (`check_key`). `rows`: gives those of its tasks.

    Raises what `rows` raises, and `StorageUnavailable` where the disk is full.
    """
    columns = ComparedColumns.of([plan])
    comparison = _Comparison(plan.tasks, columns, row_index, bitmaps, rows)
    row_index.begin()
    carryovers = updates = ambiguous = 0
    if plan.paired:
        updates, ambiguous = comparison.pair_by_id()
        carryovers = comparison.skip_unchanged() if has_carryovers(plan, rules) else 0
        updates -= carryovers // 2
    if has_carryovers(plan, rules):
        carryovers += comparison.cancel(by_id=not plan.paired)
    if rules.compute_updates:
        more = comparison.pair(select_columns(columns.latest, rules.key), rules.null_keys)
        updates, ambiguous = updates + more[0], ambiguous + more[1]
    unchanged = comparison.skip_unchanged() if rules.skip_unchanged else 0
    if comparison.has_pairs:
        comparison.join(preimages)
    row_index.begin()
    return replace(plan, tasks=comparison.tasks()), ChangelogCounts(carryovers, updates, ambiguous, unchanged)


def refine_range(
    plans: Sequence[ChangePlan], rules: PairingRules, row_index: RowIndex, bitmaps: SpilledBitmaps, rows: KeptRows
) -> tuple[tuple[ChangePlan, ...], ChangelogCounts]:
    """Refine the plans of consecutive versions to their net changes, from before the first to after the last version.

    Rows that are inserted and later deleted, or deleted and later inserted, cancel out as multisets. Carry-overs cancel
    out first, even if the rules keep them. Of a row that several versions update, the first preimage and the last
    postimage are left, each at its position. The remaining rows are updates where `rules.compute_updates` pairs them,
    else deletes and inserts. Rows are compared in all table columns of the range, without row tracking columns, because
    rows of change files have no ids.

    Raises what `refine` raises, and `ConfigError` where rows of a version cannot be compared with those of the last.
    """
    dropped: Bitmaps = {}
    tasks: list[ChangeTask] = []
    carryovers = updates = ambiguous = 0
    for plan in plans:
        if plan.regime is Regime.FILES and not plan.feed:
            carried = _Comparison(plan.tasks, ComparedColumns.of([plan]), row_index, bitmaps, rows)
            row_index.begin()
            carryovers += carried.cancel()
            dropped |= {len(tasks) + index: rows for index, rows in carried.dropped.items()}
        tasks += plan.tasks
    columns = ComparedColumns.of(plans, own=True)
    comparison = _Comparison(tasks, columns, row_index, bitmaps, rows, dropped, exactly=True)
    row_index.begin()
    comparison.cancel_all()
    if rules.compute_updates:
        check_key(plans[-1], rules)
        updates, ambiguous = comparison.pair(select_columns(columns.latest, rules.key))
    row_index.begin()
    found = iter(comparison.tasks())
    net = tuple(replace(plan, tasks=tuple(islice(found, len(plan.tasks)))) for plan in plans)
    return net, ChangelogCounts(carryovers, updates, ambiguous)


def _pairs(plan: ChangePlan, rules: PairingRules) -> bool:
    return rules.compute_updates and (bool(rules.key) or _is_tracked(plan))


def _is_tracked(plan: ChangePlan) -> bool:
    return any(task.tracking is not None for task in plan.tasks)


class _Comparison:
    """Comparison of the rows of some tasks with each other, in all `columns`.

    `dropped`: rows that are not changes, by task index. `exactly`: whether to treat images of updates as deletes and
    inserts.
    """

    def __init__(
        self,
        tasks: Sequence[ChangeTask],
        columns: ComparedColumns,
        row_index: RowIndex,
        bitmaps: SpilledBitmaps,
        rows: KeptRows,
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
        self._preimages: Bitmaps = {}  # of the updates found so far
        self._postimages: Bitmaps = {}

    def tasks(self) -> tuple[ChangeTask, ...]:
        """Return the tasks refined by the results so far."""
        return tuple(self._refined(index, task.schema) for index, task in enumerate(self._tasks))

    @property
    def has_pairs(self) -> bool:
        """Return whether any updates were found."""
        return bool(self._preimages)

    def pair_by_id(self) -> tuple[int, int]:
        """Pair updates by row id alone; return counts of updates and ambiguous rows."""
        comparable = set(self._columns.comparable())
        found = self._pair([index for index in self._tracked() if index in comparable], _ROW_ID, _PLAIN)
        return found.updates, found.ambiguous

    def cancel(self, by_id: bool = True) -> int:
        """Drop carry-overs and return how many rows were dropped. `by_id`: whether equal row ids may prove them."""
        # An equal row id does not prove equal values if the deleted row had fewer columns.
        every = self._columns.every
        tracked = [index for index in self._tracked() if by_id and self._columns.compared(index) is every]
        dropped = 0
        if self._has_both(tracked):
            positions = self._index_rows(tracked, _IDS, _PLAIN, nulls_differ=True)
            dropped += self._drop(positions, self._row_index.unmatched_singles())
        candidates = self._in_mixed_partitions(self._columns.comparable())
        if self._has_both(candidates):
            positions = self._index_rows(candidates, every, _PLAIN, unpaired=True)
            dropped += self._drop(positions, self._row_index.unmatched())
        return dropped

    def cancel_all(self) -> None:
        """Drop all rows that cancel out across versions. Raises `ConfigError` where some cannot be compared."""
        comparable = self._columns.comparable()
        incomparable = [self._tasks[index].version for index in set(range(len(self._tasks))).difference(comparable)]
        if incomparable:
            last = max(incomparable)
            reason = f"the columns before or at version {last} cannot be compared with those of the last version"
            remedy = f"Start at version {last + 1}, or end before version {last}."
            raise ConfigError("net changes", reason, remedy)
        self._drop(self._index_rows(comparable, self._columns.every, _PLAIN), self._row_index.unmatched())

    def pair(self, key: pa.Schema, null_keys: bool = False) -> tuple[int, int]:
        """Pair updates by the columns `key`, if any, then by row id; return counts of updates and ambiguous rows.

        `null_keys`: whether nulls in keys are equal.
        """
        whole = [index for index in self._columns.comparable() if self._keeps_all(index)]
        tracked = set(self._tracked())
        by_key = self._pair(whole, key, _PLAIN, null_keys)
        by_id = self._pair([index for index in whole if index in tracked], _ROW_ID, _PLAIN)
        updates, ambiguous = by_key.updates + by_id.updates, by_key.ambiguous + by_id.ambiguous
        if not self._exactly:
            # Change files mark images but do not pair them, and the two images may be far from each other.
            images = self._pair([index for index in whole if self._has_images(index)], key, _IMAGES, null_keys)
            ambiguous += images.ambiguous
            if images.left:
                # A row whose key changed may have freed its key for a new row, or got the key of a deleted row.
                crossed = self._pair(whole, key, _PLAIN + _IMAGES, null_keys)
                updates, ambiguous = updates + crossed.updates, ambiguous + crossed.ambiguous
        return updates, ambiguous

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

    def _has_images(self, index: int) -> bool:
        return self._tasks[index].kind is TaskKind.CDC_OTHERS

    def skip_unchanged(self) -> int:
        """Drop updates with equal images and return how many rows were dropped."""
        indices, dropped = self._columns.comparable(), 0
        if paired := [index for index in indices if index in self._preimages or index in self._postimages]:
            self._index_rows(paired, self._columns.every, _IMAGES)
            equal = self._row_index.unpair_equal()
            dropped = sum(map(len, equal.values()))
            _merge(self.dropped, equal)
            for found in (self._preimages, self._postimages):
                found |= {index: rows - equal.get(index, BitMap64()) for index, rows in found.items()}
        if written := [index for index in indices if self._has_images(index)]:
            positions = self._index_rows(written, self._columns.every, _IMAGES, unpaired=True)
            dropped += self._drop(positions, self._row_index.unmatched())
        return dropped

    def join(self, preimages: SpilledPreimages) -> None:
        """Move the paired preimages from their tasks to `preimages`."""
        postimages = {self._tasks[index].index: rows for index, rows in self._postimages.items() if rows}
        with closing(self._row_index.partner_ranks()) as ranks:
            preimages.keep(self._images(self._preimages), ranks, postimages)
        _merge(self.dropped, self._preimages)
        self._preimages = {}

    def _images(self, found: Bitmaps) -> Iterator[pa.RecordBatch]:
        for index in sorted(found):
            rows = self._bitmaps.store(found[index])
            if rows is not None:
                task, refinement = self._tasks[index], Refinement(updated=rows)
                schema = self._columns.as_of_task(index, self._columns.latest)
                preimages = replace(task, schema=schema, include=rows, exclude=None, refinement=refinement)
                yield from (batch.rows for batch in self._rows.read(preimages))

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
        tasks = ((index, self._refined(index, self._as_of_task(index, schema), unpaired)) for index in indices)
        return self._row_index.add(((index, self._rows.read(task)) for index, task in tasks), types, nulls_differ)

    def _tracked(self) -> list[int]:
        return [index for index, task in enumerate(self._tasks) if task.tracking is not None]

    def _refined(self, index: int, schema: pa.Schema, unpaired: bool = False) -> ChangeTask:
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

    def _as_of_task(self, index: int, schema: pa.Schema) -> pa.Schema:
        """Return `schema` with the columns as a task's rows have them; unchanged for row tracking columns."""
        if schema in (_IDS, _ROW_ID):
            return schema
        if schema is self._columns.every:
            return self._columns.compared(index)
        return self._columns.as_of_task(index, schema)

    def _keeps_all(self, index: int) -> bool:
        """Return whether the columns in which the rows are delivered include all of their own."""
        return self._exactly or dropped_column(self._columns.by_task[index], self._columns.latest) is None

    def _has_both(self, indices: Iterable[int]) -> bool:
        tasks = [self._tasks[index] for index in indices]
        has_both = len({task.kind for task in tasks}) > 1
        return has_both and len({task.kind for task in tasks if self._rows.may_have(task)}) > 1

    def _in_mixed_partitions(self, indices: Sequence[int]) -> list[int]:
        """Return the tasks whose partition has deletes and inserts: rows of two partitions are never equal."""
        columns = [self._columns.compared(index) for index in indices]
        groups = by_partition([self._tasks[index] for index in indices], columns)
        found = ([indices[number] for number in group] for group in groups)
        return sorted(index for group in found if self._has_both(group) for index in group)


@dataclass(frozen=True, slots=True)
class _Paired:
    """Counts of the updates found, the ambiguous rows, and the rows left unpaired."""

    updates: int = 0
    ambiguous: int = 0
    left: int = 0


def _merge(found: Bitmaps, more: Bitmaps) -> None:
    for index, rows in more.items():
        if rows:
            found[index] = found[index] | rows if index in found else rows
