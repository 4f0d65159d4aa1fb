"""Change plans: the changes of one version of a table, as tasks in delivery order, and positions in the stream of them.

`Position` orders all delivered rows. Tasks of a snapshot are numbered from `SNAPSHOT_TASKS` on, so that a position
distinguishes a snapshot of version v from the changes of version v. A position also identifies the rules by which a
version was compared, and the condition that chose its rows (`tailer.changelog.rules`): each set of rules has its own
range of `TASKS` task numbers, and the range need not begin at 0.
"""

import json
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Final, Self

import pyarrow as pa

from tailer.errors import ConfigError, did_you_mean
from tailer.plan.task import ChangeTask
from tailer.schema.columns import (
    METADATA_NAMES,
    RESERVED,
    ROW_IDS,
    add_row_ids,
    refuse_names,
    schema_from_text,
    schema_to_text,
    select_columns,
)
from tailer.schema.variant_paths import with_paths

__all__ = [
    "BACKFILLS",
    "END",
    "SNAPSHOT_TASKS",
    "TASKS",
    "ChangePlan",
    "Position",
    "Regime",
    "SkippedFiles",
    "remaining",
]

END: Final = 2**63 - 1
SNAPSHOT_TASKS: Final = 2**62
TASKS: Final = 2**32
BACKFILLS: Final = 2**28  # ranges of `TASKS` for backfills, after the first one of snapshots
_RENEWED: Final = ("replaced", "widened")


@dataclass(frozen=True, order=True, slots=True)
class Position:
    """A position in a table's stream of changes: all rows up to and including it.

    `task` is the index in the version's plan, `row` the physical row number in the task's file. A position does not
    depend on batch sizes or parallelism, and computing it needs no counting of delivered rows.
    """

    version: int
    task: int = END
    row: int = END

    def __str__(self) -> str:
        """Name the position in texts for people."""
        if self.closes_version:
            return f"the end of version {self.version}"
        version = f"the snapshot of version {self.version}" if self.in_snapshot else f"version {self.version}"
        if self.opens_version:
            return f"the beginning of {version}"
        return f"row {self.row} of task {self.task % TASKS} of {version}"

    @classmethod
    def end(cls, version: int) -> Self:
        """Return the position that closes `version`."""
        return cls(version)

    @classmethod
    def opening(cls, version: int, snapshot: bool = False) -> Self:
        """Return the position before the first row of `version`, or of its `snapshot`."""
        return cls(version, SNAPSHOT_TASKS if snapshot else -1, -1)

    @property
    def opens_version(self) -> bool:
        """Return whether the position is before the first row, as `opening` returns it."""
        return self.row < 0 and self.task in (-1, SNAPSHOT_TASKS)

    @property
    def closes_version(self) -> bool:
        """Return whether the version has no rows after this position."""
        return self.task == END

    @property
    def whole_version(self) -> int:
        """Return the last version without rows after this position; -1: there is none."""
        return self.version if self.closes_version else self.version - 1

    @property
    def is_inside(self) -> bool:
        """Return whether some rows of the version, or of its snapshot, come before this position and some after it."""
        return not self.opens_version and not self.closes_version

    @property
    def in_snapshot(self) -> bool:
        """Return whether the position is inside a snapshot."""
        return SNAPSHOT_TASKS <= self.task < END


class Regime(StrEnum):
    """Source of a version's changes."""

    CDC = "cdc"  # change files: the table's change feed
    FILES = "files"  # added and removed data files
    SNAPSHOT = "snapshot"  # all rows of the version
    NONE = "none"  # nothing changed


@dataclass(frozen=True, slots=True)
class SkippedFiles:
    """The number of files that a plan leaves out, and their size in bytes."""

    files: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """All changes of version `version`, as tasks in delivery order: deletes before inserts.

    `schema` is the table's at that version, with metadata as in `ChangeTask.schema`; deletes may have the earlier one.
    `operation` is the writer's name for it. `feed`: whether writers had to write change files at that version; without
    these, each unchanged row of a rewritten file is a delete and an insert. A snapshot may have several plans.
    `paired`: whether a deleted and an inserted row with one row id are always the images of an update. `skipped`: the
    files that were left out because none of their rows can fulfil the condition of the plan (`ChangeTask.where`).
    `replaced`: the names, as paths, that belong to another column of the table from this version on. `widened`: those
    of columns whose values have another text from this version on (`tailer.schema.identity.renewed`). `compared`:
    whether data files are read in place of what a change feed says of the version. Its rows have other positions.
    """

    table: str
    table_id: str
    version: int
    timestamp_ms: int
    operation: str | None
    regime: Regime
    schema: pa.Schema
    tasks: tuple[ChangeTask, ...]
    feed: bool = False
    compared: bool = False
    paired: bool = False
    skipped: SkippedFiles | None = None
    replaced: tuple[tuple[str, ...], ...] = ()
    widened: tuple[tuple[str, ...], ...] = ()

    @property
    def size_bytes(self) -> int:
        """Total size of the tasks' files, in bytes."""
        return sum(task.size_bytes for task in self.tasks)

    @property
    def is_bare(self) -> bool:
        """True where the table has no columns at this version, and so no rows: it has yet to get some, or lost all."""
        return not set(self.schema.names).difference(ROW_IDS)

    def schema_of(self, task: int) -> pa.Schema:
        """Return the columns of the rows of a task, by its number; those of the version where it is not in the plan."""
        position = bisect_left(self.tasks, task % TASKS, key=lambda candidate: candidate.index % TASKS)
        return self.tasks[position].schema if position < len(self.tasks) else self.schema

    def select(self, columns: Sequence[str]) -> "ChangePlan":
        """Return the plan for some of the columns, or paths into them, in the order given. Positions do not change.

        Deleted rows lack the columns that this version adds to the table. Raises `ConfigError` for a column that the
        table does not have at this version, unless it `is_bare`.
        """
        plan = self.with_schemas(partial(with_paths, columns=columns))
        if not set(columns).issubset(plan.schema.names):
            for fault in self.column_faults(columns):
                raise fault
        return plan.with_schemas(partial(select_columns, columns=columns))

    def column_faults(self, columns: Sequence[str]) -> Iterator[ConfigError]:
        """Yield what `select` raises for each of the columns."""
        for column in columns if not self.is_bare else ():
            try:
                is_there = with_paths(self.schema, [column]).get_field_index(column) >= 0
            except ConfigError as error:
                yield error
                continue
            if not is_there:
                listing = f"The columns of {self.table} are: {', '.join(self.schema.names)}."
                remedy = f"{listing} {did_you_mean(column, self.schema.names)}".rstrip()
                yield ConfigError("columns", f"no column {column!r} at version {self.version}", remedy)

    def with_row_ids(self) -> "ChangePlan":
        """Add `ROW_ID` and `ROW_COMMIT_VERSION`. Raises `UnsupportedFeature` where a column has one of these names."""
        self.check_reserved(ROW_IDS, "row ids (`--row-ids`) add a column of that name")
        return self.with_schemas(add_row_ids)

    def check_change_files(self) -> None:
        """Raise as `check_reserved` where change files are read: they have the metadata columns themselves."""
        if self.regime is Regime.CDC:
            self.check_reserved()

    def check_reserved(self, taken: Collection[str] = METADATA_NAMES, reason: str = RESERVED) -> None:
        """Raise `UnsupportedFeature` where a column has a `taken` name: that of a metadata column of change rows."""
        for schema in {id(schema): schema for schema in (self.schema, *(task.schema for task in self.tasks))}.values():
            refuse_names(schema, self.table, self.version, taken, reason)

    def with_schemas(self, change: Callable[[pa.Schema], pa.Schema]) -> "ChangePlan":
        """Return the plan with `change` made to each of its schemas."""
        # Most tasks share one schema object; they also share the converted one.
        schemas = (self.schema, *(task.schema for task in self.tasks), *(task.compared for task in self.tasks))
        converted = {id(schema): None if schema is None else change(schema) for schema in schemas}
        tasks = tuple(
            replace(task, schema=converted[id(task.schema)], compared=converted[id(task.compared)])
            for task in self.tasks
        )
        return replace(self, schema=converted[id(self.schema)], tasks=tasks)

    def to_json(self) -> str:
        """Return the plan as JSON text."""
        return json.dumps(
            {
                "table": self.table,
                "table_id": self.table_id,
                "version": self.version,
                "timestamp_ms": self.timestamp_ms,
                "operation": self.operation,
                "regime": self.regime.value,
                "schema": schema_to_text(self.schema),
                "tasks": [task.to_dict() for task in self.tasks],
                "feed": self.feed,
                **{name: True for name in ("compared", "paired") if getattr(self, name)},
                **({} if self.skipped is None else {"skipped": asdict(self.skipped)}),
                **{name: paths for name in _RENEWED if (paths := getattr(self, name))},
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Rebuild a plan from the text that `to_json` returned."""
        value = json.loads(text)
        return cls(
            **{
                **value,
                "regime": Regime(value["regime"]),
                "schema": schema_from_text(value["schema"]),
                "tasks": tuple(ChangeTask.from_dict(task) for task in value["tasks"]),
                "skipped": SkippedFiles(**value["skipped"]) if "skipped" in value else None,
                **{name: tuple(map(tuple, value.get(name, ()))) for name in _RENEWED},
            }
        )


def remaining(plan: ChangePlan, after: Position | None) -> list[tuple[ChangeTask, int]]:
    """Return the tasks not finished at `after`, each with the row after which to continue (-1: all rows)."""
    if after is None or after < Position(plan.version, -1, -1):
        return [(task, -1) for task in plan.tasks]
    if after.version > plan.version:
        return []
    open_tasks = [task for task in plan.tasks if task.index >= after.task]
    return [(task, after.row if task.index == after.task else -1) for task in open_tasks]
