"""Change plans: the changes of one version of a table, as self-contained tasks.

Planning is cheap, deterministic and reads no rows (invariant 4: the same version always yields the same plan).

task      some rows of one file, and their kind of change
changes   the plan of a version: its tasks in delivery order; where a row is in the stream of changes
"""

from tailer.plan.changes import (
    BACKFILLS,
    END,
    SNAPSHOT_TASKS,
    TASKS,
    ChangePlan,
    Position,
    Regime,
    SkippedFiles,
    remaining,
)
from tailer.plan.task import HELD, ChangeTask, DeletionVectorRef, FragmentRef, Refinement, RowTracking, TaskKind
from tailer.schema.columns import ROW_TRACKING, add_row_ids, output_schema, select_columns

__all__ = [
    "BACKFILLS",
    "END",
    "HELD",
    "ROW_TRACKING",
    "SNAPSHOT_TASKS",
    "TASKS",
    "ChangePlan",
    "ChangeTask",
    "DeletionVectorRef",
    "FragmentRef",
    "Position",
    "Refinement",
    "Regime",
    "RowTracking",
    "SkippedFiles",
    "TaskKind",
    "add_row_ids",
    "output_schema",
    "remaining",
    "select_columns",
]
