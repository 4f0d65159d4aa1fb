"""From rewritten files to changed rows: which rows of a version are changes, and which belong to one update.

A writer without deletion vectors that changes one row writes its whole file anew: the log then says that a million rows
were deleted and a million inserted. `refine` compares the rows of a version with each other and puts what it finds into
the plan's tasks, so that executing them yields the rows that changed:

1. *Carry-overs* (`Carryovers.DROP`) are rows that are deleted and inserted unchanged. They cancel out as multisets:
   where a row is deleted twice and inserted once, one delete is left. Where rows are tracked (PROTOCOL.md, "Row
   Tracking") those with the same row id and row commit version are found first, which takes no more than reading these
   two columns; what is left is compared by the values of all columns that are delivered. Only versions without a change
   feed have carry-overs: where there is one, it says what changed, and is believed.
2. *Updates* (`compute_updates`): a deleted and an inserted row that are one row before and after become
   `update_preimage` and `update_postimage`. One row are those with equal `key` columns, none of them null; of the
   others, those with one row id. Where several rows of a version have one key, the n-th that is deleted goes with the
   n-th that is inserted, in the order of delivery; those without a partner stay what they are. Both images come
   together, the preimage first, at the position of the postimage and in the columns of the version; where the version
   drops a column, its rows are left as they are. Of the images in change files those with one key are put together
   likewise; others stay as they lie there.
3. *Unchanged* (`skip_unchanged`): the images of an update are dropped where they are equal; those in change files,
   which do not say which belong together, as multisets.

Rows are equal if they are in all columns that the table has before or after the version, matched by what tells columns
apart over time (`tailer.schema.identity`): to a row that does not have a column it is null. Where the types of a column
cannot be compared, no row is equal to another.

All other rows stay where they were (invariant 4): `task` and `row` of a position are those of the plan as it was.
Memory is bounded by `tailer.changelog.row_index`, and a bit for each row of a version.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

import pyarrow as pa
from pyroaring import BitMap64

from tailer.changelog.compared_columns import ComparedColumns
from tailer.changelog.partition_groups import by_partition
from tailer.changelog.row_index import RowMatches
from tailer.changelog.rules import Carryovers, PairingRules
from tailer.changelog.spill.bitmaps import Selections
from tailer.changelog.spill.preimages import Preimages
from tailer.errors import ConfigError, did_you_mean
from tailer.events import ROW_ID, ChangeType
from tailer.plan import ChangePlan, ChangeTask, Refinement, Regime, TaskKind, add_row_ids, select_columns
from tailer.read.execute import execute
from tailer.read.row_bitmaps import Bitmaps
from tailer.schema.columns import dropped_column

__all__ = ["PairingCounts", "apart", "check_key", "concerns", "lacks_identity", "refine", "refine_range"]

_PLAIN: Final = (ChangeType.DELETE, ChangeType.INSERT)
_IMAGES: Final = (ChangeType.UPDATE_PREIMAGE, ChangeType.UPDATE_POSTIMAGE)
_IDS: Final = add_row_ids(pa.schema([]))
_ROW_ID: Final = select_columns(_IDS, [ROW_ID])


@dataclass(frozen=True, slots=True)
class PairingCounts:
    """What was found, in rows: `carryovers` and `unchanged` were dropped, `updates` are two images each.

    `ambiguous`: rows that had a choice of partners for an update, or found them all taken.
    """

    carryovers: int = 0
    updates: int = 0
    ambiguous: int = 0
    unchanged: int = 0


def check_key(plan: ChangePlan, rules: PairingRules) -> None:
    """Raise `ConfigError` where the rows of `plan` lack a column of the key."""
    for column in rules.key:
        if plan.schema.get_field_index(column) < 0:
            known = f"The columns of {plan.table} are: {', '.join(plan.schema.names)}."
            change = (
                "Where a version renames it, change the key between the two: progress is kept. Where a later version "
                "adds it, start there."
            )
            remedy = " ".join(filter(None, (known, did_you_mean(column, plan.schema.names), change)))
            raise ConfigError("key", f"no column {column!r} at version {plan.version}", remedy)


def concerns(plan: ChangePlan, rules: PairingRules) -> bool:
    """Whether `refine` may find anything."""
    if plan.regime is Regime.CDC:
        return rules.skip_unchanged or (rules.compute_updates and bool(rules.key))
    kinds = {task.kind for task in plan.tasks}
    if plan.regime is not Regime.FILES or len(kinds) < 2:
        return False
    return _may_carry_over(plan, rules) or _pairs(plan, rules)


def apart(plan: ChangePlan, rules: PairingRules) -> list[ChangePlan]:
    """The plan in parts that `refine` may be given one by one: it compares no row of one with a row of another.

    These are its partitions where equal values are all that is looked for: an update may take a row from one to
    another, and an id is whatever the file says.
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
    """Whether updates are wanted, and nothing tells which rows of `plan` are one."""
    rewrites = plan.regime is Regime.FILES and len({task.kind for task in plan.tasks}) > 1
    return rewrites and rules.compute_updates and not rules.key and not _is_tracked(plan)


def refine(
    plan: ChangePlan, rules: PairingRules, matches: RowMatches, selections: Selections, preimages: Preimages
) -> tuple[ChangePlan, PairingCounts]:
    """The plan for those rows that are changes by `rules`, but for `preimages`, which belong before their postimages.

    The plan refers to `selections` and is good as long as they are.

    Raises what `tailer.read.execute.execute` raises, and `StorageUnavailable` where the disk is full. The plan has the
    columns of the key (`check_key`).
    """
    columns = ComparedColumns.of([plan])
    comparison = _Comparison(plan.tasks, columns, matches, selections)
    matches.begin()
    carryovers = comparison.cancel() if _may_carry_over(plan, rules) else 0
    updates = ambiguous = 0
    if rules.compute_updates:
        updates, ambiguous = comparison.pair(select_columns(columns.latest, rules.key), rules.null_keys)
    unchanged = comparison.skip_unchanged() if rules.skip_unchanged else 0
    if comparison.has_pairs:
        comparison.join(preimages)
    matches.begin()
    return replace(plan, tasks=comparison.tasks()), PairingCounts(carryovers, updates, ambiguous, unchanged)


def refine_range(
    plans: Sequence[ChangePlan], rules: PairingRules, matches: RowMatches, selections: Selections
) -> tuple[tuple[ChangePlan, ...], PairingCounts]:
    """The plans of consecutive versions for their net changes: what became of the rows from before to after them.

    Rows that come and go, or go and come again, cancel out as multisets, carry-overs first, whatever the rules say of
    them; of a row that several versions update, the first preimage and the last postimage are left, each where it was.
    What is left are updates where `rules.compute_updates` finds them, else deletes and inserts. Rows are compared in
    all of the table's own columns that it has in the range: those of change files have no ids.

    Raises what `refine` raises, and `ConfigError` where rows of one version cannot be compared with those of the last.
    """
    dropped: Bitmaps = {}
    tasks: list[ChangeTask] = []
    carryovers = updates = ambiguous = 0
    for plan in plans:
        if plan.regime is Regime.FILES and not plan.feed:
            carried = _Comparison(plan.tasks, ComparedColumns.of([plan]), matches, selections)
            matches.begin()
            carryovers += carried.cancel()
            dropped |= {len(tasks) + index: rows for index, rows in carried.dropped.items()}
        tasks += plan.tasks
    columns = ComparedColumns.of(plans, own=True)
    comparison = _Comparison(tasks, columns, matches, selections, dropped, exactly=True)
    matches.begin()
    comparison.cancel_all()
    if rules.compute_updates:
        check_key(plans[-1], rules)
        updates, ambiguous = comparison.pair(select_columns(columns.latest, rules.key))
    matches.begin()
    found = iter(comparison.tasks())
    net = tuple(replace(plan, tasks=tuple(islice(found, len(plan.tasks)))) for plan in plans)
    return net, PairingCounts(carryovers, updates, ambiguous)


def _may_carry_over(plan: ChangePlan, rules: PairingRules) -> bool:
    return rules.carryovers is Carryovers.DROP and plan.regime is Regime.FILES and not plan.feed


def _pairs(plan: ChangePlan, rules: PairingRules) -> bool:
    return rules.compute_updates and (bool(rules.key) or _is_tracked(plan))


def _is_tracked(plan: ChangePlan) -> bool:
    return any(task.tracking is not None for task in plan.tasks)


class _Comparison:
    """The rows of some tasks, compared with each other in all `columns` that they have.

    `dropped`: rows that are no changes, by the index of their task. `exactly`: whether to take images of updates for
    deletes and inserts.
    """

    def __init__(
        self,
        tasks: Sequence[ChangeTask],
        columns: ComparedColumns,
        matches: RowMatches,
        selections: Selections,
        dropped: Bitmaps | None = None,
        exactly: bool = False,
    ) -> None:
        self._tasks = tasks
        self._columns = columns
        self._matches = matches
        self._selections = selections
        self._exactly = exactly
        self.dropped: Bitmaps = dropped or {}
        self._gone: Bitmaps = {}  # preimages, and below postimages, of updates that were found
        self._come: Bitmaps = {}

    def tasks(self) -> tuple[ChangeTask, ...]:
        """The tasks, told what was found."""
        return tuple(self._told(index, task.schema) for index, task in enumerate(self._tasks))

    @property
    def has_pairs(self) -> bool:
        """Whether images were found that belong together."""
        return bool(self._gone)

    def cancel(self) -> int:
        """Drop carry-overs; how many rows that were."""
        # Of a row that had fewer columns its id tells no more than that it is still the same row.
        every = self._columns.every
        tracked = [index for index in self._tracked() if self._columns.compared(index) is every]
        dropped = 0
        if self._has_both(tracked):
            taken = self._take(tracked, _IDS, _PLAIN, nulls_differ=True)
            dropped += self._drop(taken, self._matches.unmatched_singles())
        rivals = self._rivals(self._columns.comparable())
        if self._has_both(rivals):
            taken = self._take(rivals, every, _PLAIN)
            dropped += self._drop(taken, self._matches.unmatched())
        return dropped

    def cancel_all(self) -> None:
        """Drop all rows, of whatever version, that cancel out. Raises `ConfigError` where some cannot be compared."""
        comparable = self._columns.comparable()
        strange = [self._tasks[index].version for index in set(range(len(self._tasks))).difference(comparable)]
        if strange:
            reason = f"the columns before or at version {max(strange)} cannot be compared with those at the end"
            remedy = f"Begin at version {max(strange) + 1}, or end before {max(strange)}."
            raise ConfigError("net changes", reason, remedy)
        self._drop(self._take(comparable, self._columns.every, _PLAIN), self._matches.unmatched())

    def pair(self, key: pa.Schema, null_keys: bool = False) -> tuple[int, int]:
        """Find updates: by the columns `key`, if any, then by row id; how many, and how many rows were ambiguous.

        `null_keys`: whether nulls in keys are equal.
        """
        whole = [index for index in self._columns.comparable() if self._keeps_all(index)]
        tracked = set(self._tracked())
        by_key = self._pair(whole, key, _PLAIN, null_keys)
        by_id = self._pair([index for index in whole if index in tracked], _ROW_ID, _PLAIN)
        updates, ambiguous = by_key.updates + by_id.updates, by_key.ambiguous + by_id.ambiguous
        if not self._exactly:
            # Change files say that rows are images, but not of which update: writers may put them far apart.
            images = self._pair([index for index in whole if self._has_images(index)], key, _IMAGES, null_keys)
            ambiguous += images.ambiguous
            if images.left:
                # Whose row got another key may have left the old one to a new row, or have taken that of a deleted one.
                crossed = self._pair(whole, key, _PLAIN + _IMAGES, null_keys)
                updates, ambiguous = updates + crossed.updates, ambiguous + crossed.ambiguous
        return updates, ambiguous

    def _pair(
        self, indices: Sequence[int], columns: pa.Schema, types: tuple[ChangeType, ...], nulls: bool = False
    ) -> "_Paired":
        if not indices or len(columns) == 0:
            return _Paired()
        taken = self._take(indices, columns, types, nulls_differ=not nulls, untold=True)
        count = sum(map(len, taken.values()))
        if count < 2:
            return _Paired(left=count)
        # A row that comes, loses a column and goes is left as two: what goes must not be taken for what was before.
        gone, come, ambiguous = self._matches.pair(in_turn=self._exactly and not self._columns.whole)
        _unite(self._gone, gone)
        _unite(self._come, come)
        updates = sum(map(len, gone.values()))
        return _Paired(updates, ambiguous, count - 2 * updates)

    def _has_images(self, index: int) -> bool:
        return self._tasks[index].kind is TaskKind.CDC_OTHERS

    def skip_unchanged(self) -> int:
        """Drop images of updates that are equal; how many rows that were."""
        indices, dropped = self._columns.comparable(), 0
        if told := [index for index in indices if index in self._gone or index in self._come]:
            self._take(told, self._columns.every, _IMAGES)
            equal = self._matches.part_equals()
            dropped = sum(map(len, equal.values()))
            _unite(self.dropped, equal)
            for found in (self._gone, self._come):
                found |= {index: rows - equal.get(index, BitMap64()) for index, rows in found.items()}
        if written := [index for index in indices if self._has_images(index)]:
            taken = self._take(written, self._columns.every, _IMAGES, untold=True)
            dropped += self._drop(taken, self._matches.unmatched())
        return dropped

    def join(self, preimages: Preimages) -> None:
        """Take the preimages that were found out of their tasks."""
        postimages = {self._tasks[index].index: rows for index, rows in self._come.items() if rows}
        with closing(self._matches.partner_ranks()) as ranks:
            preimages.keep(self._images(self._gone), ranks, postimages)
        _unite(self.dropped, self._gone)
        self._gone = {}

    def _images(self, found: Bitmaps) -> Iterator[pa.RecordBatch]:
        for index in sorted(found):
            rows = self._selections.store(found[index])
            if rows is not None:
                task, told = self._tasks[index], Refinement(updated=rows)
                schema = self._columns.as_then(index, self._columns.latest)
                wanted = replace(task, schema=schema, include=rows, exclude=None, refinement=told)
                yield from (batch.rows for batch in execute(wanted))

    def _take(
        self,
        indices: Iterable[int],
        schema: pa.Schema,
        types: tuple[ChangeType, ...],
        nulls_differ: bool = False,
        untold: bool = False,
    ) -> Bitmaps:
        """Make rows of these tasks the ones to ask about; their positions. `untold`: but those found to be images."""
        self._matches.clear()
        taken: Bitmaps = {}
        for index in indices:
            batches = execute(self._told(index, self._as_then(index, schema), untold))
            taken[index] = self._matches.add(index, batches, types, nulls_differ)
        return taken

    def _tracked(self) -> list[int]:
        return [index for index, task in enumerate(self._tasks) if task.tracking is not None]

    def _told(self, index: int, schema: pa.Schema, untold: bool = False) -> ChangeTask:
        nothing = BitMap64()
        left_out = self.dropped.get(index, nothing)
        images = self._gone.get(index, nothing) | self._come.get(index, nothing)
        if untold:
            left_out, images = left_out | images, nothing
        dropped, updated = self._selections.store(left_out), self._selections.store(images)
        refinement = Refinement(dropped, updated, self._exactly) if dropped or updated or self._exactly else None
        return replace(self._tasks[index], schema=schema, refinement=refinement)

    def _drop(self, taken: Bitmaps, left: Bitmaps) -> int:
        dropped = {index: rows - left.get(index, BitMap64()) for index, rows in taken.items()}
        _unite(self.dropped, dropped)
        return sum(map(len, dropped.values()))

    def _as_then(self, index: int, schema: pa.Schema) -> pa.Schema:
        """`schema` as the rows of a task have it; as it is where it is not about columns of the table."""
        if schema in (_IDS, _ROW_ID):
            return schema
        return self._columns.compared(index) if schema is self._columns.every else self._columns.as_then(index, schema)

    def _keeps_all(self, index: int) -> bool:
        """Whether the rows have all their columns in the place where they are delivered."""
        return self._exactly or dropped_column(self._columns.then[index], self._columns.latest) is None

    def _has_both(self, indices: Iterable[int]) -> bool:
        return len({self._tasks[index].kind for index in indices}) > 1

    def _rivals(self, indices: Sequence[int]) -> list[int]:
        """Those tasks whose partition has rows on the other side, too: no row is equal to one of another partition."""
        columns = [self._columns.compared(index) for index in indices]
        groups = by_partition([self._tasks[index] for index in indices], columns)
        found = ([indices[number] for number in group] for group in groups)
        return sorted(index for group in found if self._has_both(group) for index in group)


@dataclass(frozen=True, slots=True)
class _Paired:
    """How many updates were found, how many rows were ambiguous, and how many of all rows are left alone."""

    updates: int = 0
    ambiguous: int = 0
    left: int = 0


def _unite(found: Bitmaps, more: Bitmaps) -> None:
    for index, rows in more.items():
        if rows:
            found[index] = found[index] | rows if index in found else rows
