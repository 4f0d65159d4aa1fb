"""Policies of a pipeline: which columns to deliver, and how to react to schema changes and data loss."""

import logging
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import pyarrow as pa

from tailer.events import ROW_COMMIT_VERSION, ROW_ID
from tailer.plan import ChangePlan, Regime, add_row_ids, select_columns
from tailer.schema.columns import refuse_names
from tailer.schema.variant_paths import with_paths

__all__ = ["OnDataLoss", "OnSchemaChange", "Policy", "RowIdReport"]

_UNTRACKED: Final = "the table does not track rows there (it does with delta.enableRowTracking = true)"

_log = logging.getLogger(__name__)


class OnSchemaChange(StrEnum):
    """The reaction to a change of the columns."""

    EVOLVE = "evolve"  # announce it to the sink and continue
    FAIL = "fail"  # stop before the version that changes them


class OnDataLoss(StrEnum):
    """The reaction to changes that are due and can never be read again."""

    FAIL = "fail"  # stop
    RESNAPSHOT = "resnapshot"  # announce the gap, deliver all rows of the latest version, continue after it
    SKIP = "skip-with-gap-event"  # announce the gap and continue after it


@dataclass(frozen=True, slots=True)
class Policy:
    """The choices of a pipeline.

    `columns`: the columns to deliver, and paths into them (`tailer.schema.variant_paths`); empty: all. `row_ids`:
    whether to add the columns of row tracking.
    """

    columns: tuple[str, ...] = ()
    row_ids: bool = False
    on_schema_change: OnSchemaChange = OnSchemaChange.EVOLVE
    on_data_loss: OnDataLoss = OnDataLoss.FAIL

    def shape(self, plan: ChangePlan) -> ChangePlan:
        """Return the plan restricted to the chosen columns. Raises `ConfigError`, `UnsupportedFeature`."""
        plan.check_change_files()
        plan = plan.select(self.columns) if self.columns else plan
        plan.check_reserved()
        return plan.with_row_ids() if self.row_ids else plan

    def shape_schema(self, schema: pa.Schema | None, table: str, version: int) -> pa.Schema | None:
        """Return the schema that `shape` gives to a plan of `table` with `schema`. Raises `UnsupportedFeature`."""
        if schema is None:
            return None
        schema = select_columns(with_paths(schema, self.columns), self.columns) if self.columns else schema
        refuse_names(schema, table, version)
        return add_row_ids(schema) if self.row_ids else schema


class RowIdReport:
    """Warnings of the pipeline `name` about versions without row ids, one for each reason: nulls are announced."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._given: set[str] = set()

    def note(self, plan: ChangePlan) -> None:
        """Check `plan`, which is about to be delivered with row ids."""
        if all(task.tracking is not None for task in plan.tasks):
            return
        reason = "the rows of change files have none" if plan.regime is Regime.CDC else _UNTRACKED
        if reason not in self._given:
            self._given.add(reason)
            message = "%s: from version %d on rows may have null as %s and %s: %s"
            _log.warning(message, self._name, plan.version, ROW_ID, ROW_COMMIT_VERSION, reason)
