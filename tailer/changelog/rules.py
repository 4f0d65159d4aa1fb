"""The rules by which rows of a rewritten version are compared.

Every field is part of task numbers, which are persisted: read `tailer.changelog.task_ids` before adding one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from tailer.errors import ConfigError, did_you_mean
from tailer.plan import ChangePlan, Regime

__all__ = [
    "Carryovers",
    "PairingRules",
    "check_key",
    "concerns",
    "has_carryovers",
    "is_tracked",
    "key_faults",
    "lacks_identity",
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
