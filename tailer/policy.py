"""What a pipeline is told to do where there is a choice."""

from dataclasses import dataclass
from enum import StrEnum

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
