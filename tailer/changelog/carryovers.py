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
   same way. The others stay in place. Where all images lie side by side, their pairs are known without an index
   (`tailer.changelog.images`).
3. *Unchanged* (`skip_unchanged`): equal images of an update are dropped. Images in change files are not paired there,
   so they cancel out as multisets.

Rows are equal if they are equal in all columns that the table has before or after the version. Columns are matched by
their identity over time (`tailer.schema.identity`), and a missing column counts as null. Where the types of a column
cannot be compared, no rows are equal. The order of entries in a map does not matter, on any level, as in Spark.

All other rows keep their positions (invariant 4): `task` and `row` are those of the original plan. Memory is bounded by
`tailer.changelog.equal_rows.row_index` and one bit for each row of a version.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from tailer.changelog.compared_tasks import ComparedTasks, Selections
from tailer.changelog.equal_rows.compared_columns import ComparedColumns, by_partition
from tailer.changelog.equal_rows.port import TaskIndex
from tailer.changelog.rules import PairingRules, check_key, has_carryovers, has_maps_in_order, is_tracked
from tailer.changelog.spill import SpilledPreimages
from tailer.files.row_bitmaps import Bitmaps
from tailer.plan import ChangePlan, ChangeTask, Regime, select_columns
from tailer.read.decoded_files import DecodedFiles

__all__ = ["ChangelogCounts", "independent_parts", "refine", "refine_range"]


@dataclass(frozen=True, slots=True)
class ChangelogCounts:
    """Counts of a comparison: rows that were dropped as `carryovers` or as `unchanged`, and `updates`.

    `updates`: deletes and inserts that were made an update. Updates that change files mark as such do not count.
    `ambiguous`: rows with more than one possible partner for an update, or whose possible partners are all paired.
    Images that lie side by side are never ambiguous. `in_place`: whether there are such images, which stay in their
    tasks.
    """

    carryovers: int = 0
    updates: int = 0
    ambiguous: int = 0
    unchanged: int = 0
    in_place: bool = field(default=False, compare=False)


def independent_parts(plan: ChangePlan, rules: PairingRules) -> list[ChangePlan]:
    """Split the plan into parts that `refine` can process independently, because no rows of two parts are compared.

    Where only values are compared, the parts are partitions. Otherwise the plan is one part: an update may move a row
    to another partition, and row ids do not depend on partitions.
    """
    if plan.regime is not Regime.FILES or rules.compute_updates or is_tracked(plan):
        return [plan]
    columns = ComparedColumns.of([plan])
    indices = columns.comparable()
    groups = by_partition([plan.tasks[index] for index in indices], [columns.compared(index) for index in indices])
    others = sorted(set(range(len(plan.tasks))).difference(indices))
    parts = [*([indices[number] for number in group] for group in groups), *([others] if others else [])]
    return [replace(plan, tasks=tuple(plan.tasks[index] for index in part)) for part in parts]


def refine(
    plan: ChangePlan,
    rules: PairingRules,
    row_index: TaskIndex,
    bitmaps: Selections,
    preimages: SpilledPreimages | None,
    rows: DecodedFiles,
    in_place: bool = False,
) -> tuple[ChangePlan, ChangelogCounts]:
    """Refine the plan to the rows that are changes by `rules`, without paired preimages, which go to `preimages`.

    With `preimages` None, preimages become leading tasks; use this only where row order does not matter. Partners stay
    in `row_index`. The new plan refers to `bitmaps` and is valid as long as they are.
    `plan` must have the key columns (`check_key`). `rows`: gives those of its tasks. `in_place`: whether images that
    lie side by side may stay in their tasks. If they do (`ChangelogCounts.in_place`), the caller must pass the rows of
    the new plan to `tailer.changelog.images.JoinedImages`.

    Raises what `rows` raises, and `StorageUnavailable` where the disk is full.
    """
    columns = ComparedColumns.of([plan])
    comparison = ComparedTasks(plan.tasks, columns, row_index, bitmaps, rows)
    row_index.begin(has_maps_in_order(plan))
    carryovers = updates = ambiguous = 0
    if plan.paired:
        updates, ambiguous = comparison.pair_by_id()
        carryovers = comparison.skip_unchanged() if has_carryovers(plan, rules) else 0
        updates -= carryovers // 2
    if has_carryovers(plan, rules):
        carryovers += comparison.cancel(by_id=not plan.paired)
    if rules.compute_updates:
        stay = in_place and not rules.skip_unchanged
        more = comparison.pair(select_columns(columns.latest, rules.key), rules.null_keys, stay)
        updates, ambiguous = updates + more[0], ambiguous + more[1]
    unchanged = comparison.skip_unchanged() if rules.skip_unchanged else 0
    separate: tuple[ChangeTask, ...] = ()
    if comparison.has_pairs and preimages is None:
        separate = comparison.split_off()
    elif comparison.has_pairs and preimages is not None:
        comparison.join(preimages)
    return replace(plan, tasks=(*separate, *comparison.tasks())), ChangelogCounts(
        carryovers, updates, ambiguous, unchanged, comparison.has_pairs_in_place
    )


def refine_range(
    plans: Sequence[ChangePlan], rules: PairingRules, row_index: TaskIndex, bitmaps: Selections, rows: DecodedFiles
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
        if has_carryovers(plan, PairingRules()):
            carried = ComparedTasks(plan.tasks, ComparedColumns.of([plan]), row_index, bitmaps, rows)
            row_index.begin()
            carryovers += carried.cancel()
            dropped |= {len(tasks) + index: rows for index, rows in carried.dropped.items()}
        tasks += plan.tasks
    columns = ComparedColumns.of(plans, own=True)
    comparison = ComparedTasks(tasks, columns, row_index, bitmaps, rows, dropped, exactly=True)
    row_index.begin()
    comparison.cancel_all()
    if rules.compute_updates:
        check_key(plans[-1], rules)
        updates, ambiguous = comparison.pair(select_columns(columns.latest, rules.key))
    refined = iter(comparison.tasks())
    net = tuple(replace(plan, tasks=tuple(islice(refined, len(plan.tasks)))) for plan in plans)
    return net, ChangelogCounts(carryovers, updates, ambiguous)
