"""The rules by which rows of a rewritten version are compared, and the task numbers that say by which.

Positions depend on the comparison rules (`tailer.changelog.carryovers`) and on the columns. So each combination of
them, a reading, has its own range of `tailer.plan.TASKS` task numbers, and finishes only the versions that it began.

The numbers are in positions and event ids, so they are a persisted format. A task's number is its index in the plan
plus `reading * TASKS`. The reading is made of CRC-32 of a text, and says in which format the text is:

    1 to 2**28              format 1: a Python `repr`, spelled out in `_old_text`. Read, no longer given to new versions
    2**28 + 1 to 2**29      format 2: JSON of the columns, and of those rules that are not `_USUAL`
    2**29 + 1 to 1.5*2**29  format 3: the same text, of a version with a map among its columns
    above                   format 4: `where` and `select` alone (`tailer.read.shaping`): no rows are compared

In formats 2 and 3, the text has `where` and `select`, too, if they are given. In formats 1 and 2, the order of a map's
entries counts: maps with the same entries in another order differ. A version with maps that was begun in one of
these formats is finished by the same rule (`has_maps_in_order`).

`paired` is among the rules where row ids alone pair rows (`ChangePlan.paired`), and `compared` where data files are
read in place of a feed (`ChangePlan.compared`). A new rule must get an entry in `_USUAL`: the value with which versions
were read before there was such a rule. Numbers of pipelines without it then stay what they are. All must end before
2**30, where snapshots begin (`tailer.plan.SNAPSHOT_TASKS`). Snapshots have readings of format 4 alone, so backfills
take 1 to 2**28 of them (`tailer.pipeline.backfill.delivery`).
"""

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final
from zlib import crc32

import pyarrow as pa

from tailer.errors import ConfigError, did_you_mean
from tailer.plan import TASKS, ChangePlan, Position, Regime

__all__ = [
    "Carryovers",
    "PairingRules",
    "check_key",
    "check_reading",
    "concerns",
    "has_carryovers",
    "has_maps_in_order",
    "is_tracked",
    "key_faults",
    "lacks_identity",
    "renumbered",
    "unusual",
]


class Carryovers(StrEnum):
    """Treatment of rows that a version deletes and inserts unchanged because their file was rewritten."""

    DROP = "drop"
    KEEP = "keep"


@dataclass(frozen=True, slots=True)
class PairingRules:
    """Rules for comparing the rows of a version (`tailer.changelog.carryovers`).

    `compute_updates`: whether a delete and an insert of one row become the images of an update. `key`: the columns that
    identify a row; empty: row ids do, where the table tracks rows. `skip_unchanged`: whether to leave out updates that
    change nothing. `null_keys`: whether nulls in a key are equal, as they are in the key of a message.
    """

    carryovers: Carryovers = Carryovers.DROP
    compute_updates: bool = False
    key: tuple[str, ...] = ()
    skip_unchanged: bool = False
    null_keys: bool = False


def check_key(plan: ChangePlan, rules: PairingRules) -> None:
    """Raise `ConfigError` where a column of the key is another one before `plan`, or there is none.

    Where the plan is bare, there are no pairs.
    """
    if plan.replaced or not set(rules.key).issubset(plan.schema.names):
        for fault in key_faults(plan, rules):
            raise fault


def key_faults(plan: ChangePlan, rules: PairingRules) -> Iterator[ConfigError]:
    """Yield what `check_key` raises for each column of the key."""
    for column in rules.key if not plan.is_bare else ():
        if any(path[0] == column for path in plan.replaced):
            reason = f"version {plan.version} of {plan.table} gives the name {column} to another column"
            yield ConfigError("key", reason, "Choose another key, or start after that version.")
        if plan.schema.get_field_index(column) < 0:
            columns_text = f"The columns of {plan.table} are: {', '.join(plan.schema.names)}."
            change = (
                "If a version renames it, deliver the versions before, then change the key: progress is kept. If a "
                "later version adds it, start there."
            )
            remedy = " ".join(filter(None, (columns_text, did_you_mean(column, plan.schema.names), change)))
            yield ConfigError("key", f"no column {column!r} at version {plan.version}", remedy)


def has_carryovers(plan: ChangePlan, rules: PairingRules) -> bool:
    """Return whether rows of `plan` that are deleted and inserted unchanged are to be dropped."""
    return rules.carryovers is Carryovers.DROP and plan.regime is Regime.FILES and (plan.compared or not plan.feed)


def concerns(plan: ChangePlan, rules: PairingRules) -> bool:
    """Return whether comparing the rows of `plan` may change it (`tailer.changelog.carryovers.refine`)."""
    if plan.regime is Regime.CDC:
        return rules.skip_unchanged or (rules.compute_updates and bool(rules.key))
    kinds = {task.kind for task in plan.tasks}
    if plan.regime is not Regime.FILES or len(kinds) < 2:
        return plan.compared and bool(kinds)
    pairs = rules.compute_updates and (bool(rules.key) or is_tracked(plan))
    return plan.compared or plan.paired or pairs or has_carryovers(plan, rules)


def lacks_identity(plan: ChangePlan, rules: PairingRules) -> bool:
    """Return whether updates are requested but the rows of `plan` have neither a key nor row ids."""
    rewrites = plan.regime is Regime.FILES and len({task.kind for task in plan.tasks}) > 1
    return rewrites and rules.compute_updates and not rules.key and not is_tracked(plan)


def is_tracked(plan: ChangePlan) -> bool:
    """Return whether rows of `plan` have row ids."""
    return any(task.tracking is not None for task in plan.tasks)


_READINGS: Final = 2**28  # of each format

# Part of the format, whatever the defaults of `PairingRules` become.
_USUAL: Final = {
    "carryovers": "drop",
    "compute_updates": False,
    "key": [],
    "skip_unchanged": False,
    "null_keys": False,
}
_OLD_CARRYOVERS: Final = {"drop": "<Carryovers.DROP: 'drop'>", "keep": "<Carryovers.KEEP: 'keep'>"}


def renumbered(plan: ChangePlan, rules: PairingRules, after: Position | None = None) -> ChangePlan:
    """Give the tasks the numbers for rows that are compared by `rules`, in the columns of the plan.

    Where `after` is a place inside the version and has a number of an earlier format for the same rules and columns,
    the tasks keep the numbers of that format. A version that changes columns does not keep those of format 1: with
    them, its rows were compared in fewer columns, and other rows came before the position.
    """
    has_maps = any(_has_map(field.type) for schema in (plan.schema, *_schemas(plan)) for field in schema)
    reading = _reading(plan, rules, in_order=not has_maps)
    if after is not None and _is_inside(plan, after):
        former = {_reading(plan, rules, in_order=True)}
        keeps_columns = all(schema.equals(plan.schema, check_metadata=True) for schema in _schemas(plan))
        if keeps_columns and not plan.compared:
            former.add(1 + crc32(_old_text(plan.schema.names, rules).encode()) % _READINGS)
        reading = after.task // TASKS if after.task // TASKS in former else reading
    tasks = tuple(replace(task, index=task.index % TASKS + reading * TASKS) for task in plan.tasks)
    return replace(plan, tasks=tasks)


def check_reading(plan: ChangePlan, after: Position | None) -> None:
    """Raise `ConfigError` where `after` is a place inside the version that was reached in another way.

    Other rules deliver other rows before a position, so going on from there would lose or double rows.
    """
    if after is None or not _is_inside(plan, after):
        return
    # A condition may have left no file, but then nothing before the position fulfilled it either. A snapshot has
    # several plans, and the position may be in another one.
    if not plan.tasks and plan.regime is Regime.SNAPSHOT:
        return
    if plan.tasks and after.task // TASKS == plan.tasks[0].index // TASKS:
        return
    reason = f"version {plan.version} was delivered in part, with other choices of what to deliver or how"
    remedy = (
        "Set where, select, columns, row_ids, changes, carryovers, compute_updates, key and skip_unchanged as they "
        "were, let the pipeline get past that version, stop it with SIGTERM, then change them."
    )
    raise ConfigError("pipeline", reason, remedy)


def _is_inside(plan: ChangePlan, after: Position | None) -> bool:
    return after is not None and after.version == plan.version and after.is_inside


def has_maps_in_order(plan: ChangePlan) -> bool:
    """Return whether the task numbers are of format 1 or 2, where the order of a map's entries counts."""
    return any(0 < task.index // TASKS <= 2 * _READINGS for task in plan.tasks[:1])


def _has_map(kind: pa.DataType) -> bool:
    return bool(pa.types.is_map(kind)) or any(_has_map(kind.field(index).type) for index in range(kind.num_fields))


def _schemas(plan: ChangePlan) -> Collection[pa.Schema]:
    by_id = {id(schema): schema for task in plan.tasks for schema in (task.schema, task.compared) if schema is not None}
    return by_id.values()


def unusual(rules: PairingRules) -> dict[str, Any]:
    """Return those of the rules that are not the usual ones, by name. Part of persisted formats."""
    values: dict[str, Any] = {
        "carryovers": rules.carryovers.value,
        "compute_updates": rules.compute_updates,
        "key": list(rules.key),
        "skip_unchanged": rules.skip_unchanged,
        "null_keys": rules.null_keys,
    }
    return {name: value for name, value in values.items() if value != _USUAL[name]}


def _reading(plan: ChangePlan, rules: PairingRules, in_order: bool) -> int:
    """Return the reading of format 2 or, for maps that are not compared `in_order`, of format 3."""
    chosen = unusual(rules) | {name: True for name in ("compared", "paired") if getattr(plan, name)}
    text: dict[str, Any] = {"columns": plan.schema.names, "rules": chosen}
    for name, shape in (("where", plan.tasks[0].where), ("select", plan.tasks[0].select)) if plan.tasks else ():
        if shape is not None:
            text[name] = shape.text
    canonical = json.dumps(text, ensure_ascii=True, sort_keys=True, separators=(",", ":"))
    return (1 if in_order else 2) * _READINGS + 1 + crc32(canonical.encode("ascii")) % _READINGS


def _old_text(columns: list[str], rules: PairingRules) -> str:
    """Format 1, in which only names of columns, and true and false, are still as Python shows them."""
    return (
        f"(PairingRules(carryovers={_OLD_CARRYOVERS[rules.carryovers.value]}, "
        f"compute_updates={rules.compute_updates!r}, key={tuple(rules.key)!r}, "
        f"skip_unchanged={rules.skip_unchanged!r}, null_keys={rules.null_keys!r}), {columns!r})"
    )
