"""The reason for each row that `tail` shows: the file that it is from, its place there, and the rule that made it."""

from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tailer.errors import ConfigError
from tailer.events import CHANGE_TYPE, EXPLAIN, METADATA_FIELDS, ChangeBatch, ChangeType
from tailer.plan import TASKS, ChangePlan, ChangeTask, Regime, TaskKind

__all__ = ["Explainer"]

_IMAGES: Final = pa.array([ChangeType.UPDATE_PREIMAGE.value, ChangeType.UPDATE_POSTIMAGE.value])


class Explainer:
    """Explains rows by the plans that they are from. `compares`: whether the rows of a plan are compared."""

    def __init__(self, compares: Callable[[ChangePlan], bool]) -> None:
        self._compares = compares
        self._plans: dict[int, ChangePlan] = {}

    def note(self, plan: ChangePlan) -> None:
        """Note a plan whose rows come."""
        self._plans[plan.version] = plan

    def explained(self, batch: ChangeBatch) -> ChangeBatch:
        """Return the rows with the column `EXPLAIN`, before those that every change has. Earlier plans are dropped.

        Raises `ConfigError` where the table has a column of that name.
        """
        if EXPLAIN in map(str.lower, batch.rows.schema.names):
            raise ConfigError("--explain", f"the table has a column {EXPLAIN}", "Leave the column out: --columns.")
        self._plans = {version: plan for version, plan in self._plans.items() if version >= batch.version}
        plan = self._plans.get(batch.version)
        task = None if plan is None else _task_of(plan, batch.task)
        if plan is None or task is None:
            texts = pa.repeat(pa.scalar("unknown"), len(batch))
        else:
            texts = self._texts(batch, plan, task)
        rows = batch.rows.add_column(batch.rows.num_columns - len(METADATA_FIELDS), EXPLAIN, texts)
        return ChangeBatch(batch.table_id, batch.version, batch.task, rows, batch.row_index, batch.kind)

    def _texts(self, batch: ChangeBatch, plan: ChangePlan, task: ChangeTask) -> pa.Array:
        place = pc.binary_join_element_wise(f"{_file(task)}, row ", batch.row_index.cast(pa.string()), ": ", "")
        rule = _rule(plan, task)
        if not self._compares(plan):
            return pc.binary_join_element_wise(place, rule, "")
        is_image = pc.is_in(batch.rows.column(CHANGE_TYPE), _IMAGES)
        before, after = "the row before the update", "the row after the update"
        this, other = (before, after) if task.kind is TaskKind.DELETE else (after, before)
        paired = f"{this}; compared, and paired with {other}"
        alone = f"{rule}; compared, and no equal row was on the other side"
        return pc.binary_join_element_wise(place, pc.if_else(is_image, paired, alone), "")


def _task_of(plan: ChangePlan, number: int) -> ChangeTask | None:
    return next((task for task in plan.tasks if task.index % TASKS == number % TASKS), None)


def _file(task: ChangeTask) -> str:
    if task.fragment is not None:
        return f"fragment {task.fragment.number} of version {task.fragment.version}"
    return task.uri.rpartition("/")[2]


def _rule(plan: ChangePlan, task: ChangeTask) -> str:
    """Return the rule by which a task has rows."""
    if plan.regime is Regime.SNAPSHOT:
        return f"in the table at version {plan.version}"
    if task.kind in (TaskKind.CDC_DELETES, TaskKind.CDC_OTHERS):
        return "from a change file, as the writer wrote it"
    is_part = task.include is not None or (task.fragment is not None and task.fragment.chosen is not None)
    if task.kind is TaskKind.DELETE:
        return "the file stays, and the row is marked as deleted now" if is_part else "the file was removed"
    return "the file stays, and the row is not marked as deleted any more" if is_part else "the file was added"
