"""By which rules a version is read: the numbers of its tasks tell.

By other rules (`tailer.changelog.carryovers`) other rows come before a position. So each way to read a version has
numbers of its own for the tasks, `tailer.plan.TASKS` of them, and what was begun in one way goes on in this way only.
"""

from dataclasses import replace
from typing import Final
from zlib import crc32

from tailer.changelog.rules import PairingRules
from tailer.errors import ConfigError
from tailer.plan import TASKS, ChangePlan, Position

__all__ = ["check_reading", "renumbered"]

_READINGS: Final = 2**28


def renumbered(plan: ChangePlan, rules: PairingRules) -> ChangePlan:
    """The plan with the numbers that tasks have where rows are compared by `rules`, in the columns of the plan."""
    reading = 1 + crc32(repr((rules, plan.schema.names)).encode()) % _READINGS
    tasks = tuple(replace(task, index=task.index + reading * TASKS) for task in plan.tasks)
    return replace(plan, tasks=tasks)


def check_reading(plan: ChangePlan, after: Position | None) -> None:
    """Raise `ConfigError` where `after` is a place inside the version that was reached in another way.

    Other rules deliver other rows before a position: behind one of theirs, rows would be lost or doubled.
    """
    inside = after is not None and after.version == plan.version and not after.closes_version
    if after is None or not inside or not plan.tasks or after.task // TASKS == plan.tasks[0].index // TASKS:
        return
    reason = f"version {plan.version} was delivered in part, with other choices of what to deliver or how"
    remedy = (
        "Set columns, row_ids, carryovers, compute_updates, key and skip_unchanged as they were, let the pipeline get "
        "past that version, stop it with SIGTERM, then change them."
    )
    raise ConfigError("pipeline", reason, remedy)
