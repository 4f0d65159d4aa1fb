"""The choices of a pipeline: which columns, and what to do where the schema changes or data is lost."""

from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa

from tailer.plan import ChangePlan, add_row_ids, select_columns

__all__ = ["OnDataLoss", "OnSchemaChange", "Policy"]


class OnSchemaChange(StrEnum):
    """What to do when the columns of the rows change."""

    EVOLVE = "evolve"  # tell the sink, and go on
    FAIL = "fail"  # stop before the version that changes them


class OnDataLoss(StrEnum):
    """What to do when changes that are due cannot be read any more, and never will be."""

    FAIL = "fail"  # stop
    RESNAPSHOT = "resnapshot"  # tell the sink of the gap, deliver all rows of the latest version, go on behind it
    SKIP = "skip-with-gap-event"  # tell the sink of the gap, and go on behind it


@dataclass(frozen=True, slots=True)
class Policy:
    """`columns`: those to deliver, empty for all. `row_ids`: whether to add the columns of row tracking."""

    columns: tuple[str, ...] = ()
    row_ids: bool = False
    on_schema_change: OnSchemaChange = OnSchemaChange.EVOLVE
    on_data_loss: OnDataLoss = OnDataLoss.FAIL

    def shape(self, plan: ChangePlan) -> ChangePlan:
        """Return the plan for the columns that are wanted. Raises `ConfigError`, `UnsupportedFeature`."""
        plan = plan.select(self.columns) if self.columns else plan
        return plan.with_row_ids() if self.row_ids else plan

    def shape_schema(self, schema: pa.Schema | None) -> pa.Schema | None:
        """Return the schema of a table as `shape` makes it for a plan."""
        if schema is None:
            return None
        schema = select_columns(schema, self.columns) if self.columns else schema
        return add_row_ids(schema) if self.row_ids else schema
