"""Policies of a pipeline: which columns to deliver, and how to react to schema changes and data loss."""

from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa

from tailer.plan import ChangePlan, add_row_ids, select_columns
from tailer.schema.variant_paths import with_paths

__all__ = ["OnDataLoss", "OnSchemaChange", "Policy"]


class OnSchemaChange(StrEnum):
    """The reaction to a change of the columns."""

    EVOLVE = "evolve"  # announce it to the sink and continue
    FAIL = "fail"  # stop before the version that changes them


class OnDataLoss(StrEnum):
    """The reaction to changes that are due and can never be read again."""

    FAIL = "fail"  # stop
    RESNAPSHOT = "resnapshot"  # announce the gap, deliver all rows of the latest version, continue after it
    NET = "net"  # announce the gap, deliver the net difference to the next version that there is, continue after it
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
        plan = plan.select(self.columns) if self.columns else plan
        return plan.with_row_ids() if self.row_ids else plan

    def shape_schema(self, schema: pa.Schema | None) -> pa.Schema | None:
        """Return the schema that `shape` gives to a plan of a table with `schema`."""
        if schema is None:
            return None
        schema = select_columns(with_paths(schema, self.columns), self.columns) if self.columns else schema
        return add_row_ids(schema) if self.row_ids else schema
