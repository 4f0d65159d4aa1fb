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
   n-th that is inserted, in the order of delivery; those without a partner stay what they are. Rows that a change file
   calls images are images already.
3. *Unchanged* (`skip_unchanged`): a preimage and a postimage that are equal are dropped, as multisets too.

Deleted rows are compared as rows of the version: in its columns, matched by what tells columns apart over time
(`tailer.delta.schema`). Where the types of a column cannot be compared, no row is equal to another.

Rows that are left stay where they were (invariant 4): `task` and `row` of a position are those of the plan as it was.
Memory is bounded by `tailer.matches`, and a bit for each row of a version.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

import pyarrow as pa
from pyroaring import BitMap64

from tailer.delta.schema import partition_scalar, physical_name, restates
from tailer.errors import ConfigError
from tailer.events import ROW_ID, ChangeBatch, ChangeType
from tailer.execute import execute
from tailer.matches import Bitmaps, RowMatches
from tailer.plan import ChangePlan, ChangeTask, Refinement, Regime, TaskKind, add_row_ids, select_columns
from tailer.policy import Carryovers, PairingRules
from tailer.selections import Selections

__all__ = ["PairingCounts", "concerns", "refine", "refine_range"]

_PLAIN: Final = (ChangeType.DELETE, ChangeType.INSERT)
_ALL: Final = tuple(ChangeType)
_IMAGES: Final = (ChangeType.UPDATE_PREIMAGE, ChangeType.UPDATE_POSTIMAGE)
_IDS: Final = add_row_ids(pa.schema([]))


@dataclass(frozen=True, slots=True)
class PairingCounts:
    """What was found, in rows: `carryovers` and `unchanged` were dropped, `updates` are two images each.

    `ambiguous`: rows that had a choice of partners for an update, or found them all taken.
    """

    carryovers: int = 0
    updates: int = 0
    ambiguous: int = 0
    unchanged: int = 0


def concerns(plan: ChangePlan, rules: PairingRules) -> bool:
    """Whether `refine` may find anything."""
    if plan.regime is Regime.CDC:
        return rules.skip_unchanged or (rules.compute_updates and bool(rules.key))
    kinds = {task.kind for task in plan.tasks}
    if plan.regime is not Regime.FILES or len(kinds) < 2:
        return False
    return _may_carry_over(plan, rules) or _pairs(plan, rules)


def refine(
    plan: ChangePlan, rules: PairingRules, matches: RowMatches, selections: Selections
) -> tuple[ChangePlan, PairingCounts]:
    """The plan for those rows that are changes by `rules`. It refers to `selections` and is good as long as they are.

    Raises what `tailer.execute.execute` raises, `ConfigError` where the table has no column that `rules.key` names,
    `StorageUnavailable` where the disk is full.
    """
    comparison = _Comparison(plan.tasks, plan.schema, matches, selections)
    carryovers = comparison.cancel() if _may_carry_over(plan, rules) else 0
    updates, ambiguous = comparison.pair(_key_columns(plan, rules)) if rules.compute_updates else (0, 0)
    unchanged = comparison.skip_unchanged() if rules.skip_unchanged else 0
    matches.clear()
    return replace(plan, tasks=comparison.tasks()), PairingCounts(carryovers, updates, ambiguous, unchanged)


def refine_range(
    plans: Sequence[ChangePlan], rules: PairingRules, matches: RowMatches, selections: Selections
) -> tuple[ChangePlan, ...]:
    """The plans of consecutive versions for their net changes: what became of the rows from before to after them.

    Rows that come and go, or go and come again, cancel out as multisets; of a row that several versions update, the
    first preimage and the last postimage are left. What is left are updates where `rules.compute_updates` finds them,
    else deletes and inserts. Raises what `refine` raises, and `ConfigError` where the rows of one version cannot be
    compared with those of the last.
    """
    dropped: Bitmaps = {}
    tasks: list[ChangeTask] = []
    for plan in plans:
        if _may_carry_over(plan, rules):
            carried = _Comparison(plan.tasks, plan.schema, matches, selections)
            carried.cancel()
            dropped |= {len(tasks) + index: rows for index, rows in carried.dropped.items()}
        tasks += plan.tasks
    comparison = _Comparison(tasks, plans[-1].schema, matches, selections, _ALL, dropped)
    comparison.cancel_all()
    if rules.compute_updates:
        comparison.pair(_key_columns(plans[-1], rules))
    matches.clear()
    found = iter(comparison.tasks(exactly=True))
    return tuple(replace(plan, tasks=tuple(islice(found, len(plan.tasks)))) for plan in plans)


def _may_carry_over(plan: ChangePlan, rules: PairingRules) -> bool:
    return rules.carryovers is Carryovers.DROP and plan.regime is Regime.FILES and not plan.feed


def _pairs(plan: ChangePlan, rules: PairingRules) -> bool:
    return rules.compute_updates and (bool(rules.key) or any(task.tracking is not None for task in plan.tasks))


def _key_columns(plan: ChangePlan, rules: PairingRules) -> pa.Schema:
    for column in rules.key:
        if plan.schema.get_field_index(column) < 0:
            remedy = f"The columns of {plan.table} are: {', '.join(plan.schema.names)}."
            raise ConfigError("key", f"no column {column!r} at version {plan.version}", remedy)
    return select_columns(plan.schema, rules.key)


class _Comparison:
    """The rows of some tasks, compared with each other in the columns of `schema`.

    `types`: which of them are compared, but for images with each other. `dropped`: rows that are no changes, by the
    index of their task.
    """

    def __init__(
        self,
        tasks: Sequence[ChangeTask],
        schema: pa.Schema,
        matches: RowMatches,
        selections: Selections,
        types: tuple[ChangeType, ...] = _PLAIN,
        dropped: Bitmaps | None = None,
    ) -> None:
        self._tasks = tasks
        self._schema = schema
        self._matches = matches
        self._selections = selections
        self._types = types
        self.dropped: Bitmaps = dropped or {}
        self._updated: Bitmaps = {}

    def tasks(self, exactly: bool = False) -> tuple[ChangeTask, ...]:
        """The tasks, told what was found; `exactly` as in `Refinement`."""
        return tuple(self._told(index, task.schema, exactly) for index, task in enumerate(self._tasks))

    def cancel(self) -> int:
        """Drop carry-overs; how many rows that were."""
        tracked, dropped = self._tracked(), 0
        if self._has_both(tracked):
            taken = self._take(tracked, _IDS, self._types, nulls_differ=True)
            dropped += self._drop(taken, self._matches.unmatched_singles())
        rivals = self._rivals(self._comparable(self._schema))
        if self._has_both(rivals):
            taken = self._take(rivals, self._schema, self._types)
            dropped += self._drop(taken, self._matches.unmatched())
        return dropped

    def cancel_all(self) -> None:
        """Drop all rows, of whatever version, that cancel out. Raises `ConfigError` where some cannot be compared."""
        comparable = self._comparable(self._schema)
        known = set(comparable)
        for index, task in enumerate(self._tasks):
            if index not in known:
                reason = f"the columns of version {task.version} or before cannot be compared with those at the end"
                raise ConfigError("net changes", reason, f"Begin behind version {task.version}, or end before it.")
        self._drop(self._take(comparable, self._schema, self._types), self._matches.unmatched())

    def pair(self, key: pa.Schema) -> tuple[int, int]:
        """Find updates: by the columns `key`, if any, then by row id; how many, and how many rows were ambiguous."""
        updates = ambiguous = 0
        row_id = select_columns(_IDS, [ROW_ID])
        for indices, columns in ((self._comparable(key), key), (self._tracked(), row_id)):
            if len(columns) > 0 and indices:
                self._take(indices, columns, self._types, nulls_differ=True)
                found, unclear = self._matches.pairs()
                _unite(self._updated, found)
                updates += sum(map(len, found.values())) // 2
                ambiguous += unclear
        return updates, ambiguous

    def skip_unchanged(self) -> int:
        """Drop images of updates that are equal; how many rows that were."""
        images = [index for index in self._comparable(self._schema) if self._may_have_images(index)]
        return self._drop(self._take(images, self._schema, _IMAGES), self._matches.unmatched())

    def _may_have_images(self, index: int) -> bool:
        return self._tasks[index].kind is TaskKind.CDC_OTHERS or index in self._updated

    def _take(
        self, indices: Iterable[int], schema: pa.Schema, types: tuple[ChangeType, ...], nulls_differ: bool = False
    ) -> Bitmaps:
        """Make rows of these tasks the ones to ask about; their positions."""
        self._matches.clear()
        return {index: self._matches.add(index, self._read(index, schema), types, nulls_differ) for index in indices}

    def _read(self, index: int, schema: pa.Schema) -> Iterator[ChangeBatch]:
        return execute(self._told(index, schema))

    def _tracked(self) -> list[int]:
        return [index for index, task in enumerate(self._tasks) if task.tracking is not None]

    def _told(self, index: int, schema: pa.Schema, exactly: bool = False) -> ChangeTask:
        dropped, updated = (self._selections.store(found.get(index)) for found in (self.dropped, self._updated))
        refinement = Refinement(dropped, updated, exactly) if dropped or updated or exactly else None
        return replace(self._tasks[index], schema=schema, refinement=refinement)

    def _drop(self, taken: Bitmaps, left: Bitmaps) -> int:
        dropped = {index: rows - left.get(index, BitMap64()) for index, rows in taken.items()}
        _unite(self.dropped, dropped)
        return sum(map(len, dropped.values()))

    def _comparable(self, schema: pa.Schema) -> list[int]:
        """The tasks whose rows have a meaning in the columns of `schema`."""
        wanted = pa.struct(list(schema))
        schemas = {id(task.schema): task.schema for task in self._tasks}
        known = {key: restates(pa.struct(list(found)), wanted) for key, found in schemas.items()}
        return [index for index, task in enumerate(self._tasks) if known[id(task.schema)]]

    def _has_both(self, indices: Iterable[int]) -> bool:
        return len({self._tasks[index].kind for index in indices}) > 1

    def _rivals(self, indices: Sequence[int]) -> list[int]:
        """Those tasks whose partition has rows on the other side, too: no row is equal to one of another partition."""
        columns = self._partition_columns(indices)
        values = {index: self._partition(index, columns) for index in indices}
        sides: dict[tuple[Any, ...], set[TaskKind]] = {}
        for index, value in values.items():
            sides.setdefault(value, set()).add(self._tasks[index].kind)
        return [index for index in indices if len(sides[values[index]]) > 1]

    def _partition_columns(self, indices: Iterable[int]) -> list[pa.Field]:
        """The columns that are compared and have one value in each of the files, the same in whatever way written."""
        names = [{name for name, _ in self._tasks[index].partition_values} for index in indices]
        fixed = set.intersection(*names) if names else set()
        fields = [field for field in self._schema if physical_name(field) in fixed]
        return [field for field in fields if not pa.types.is_floating(field.type)]

    def _partition(self, index: int, columns: Iterable[pa.Field]) -> tuple[Any, ...]:
        task = self._tasks[index]
        texts = dict(task.partition_values)
        return tuple(
            partition_scalar(texts[physical_name(field)], field.type, task.table, task.version, task.uri).as_py()
            for field in columns
        )


def _unite(found: Bitmaps, more: Bitmaps) -> None:
    for index, rows in more.items():
        if rows:
            found[index] = found[index] | rows if index in found else rows
