"""Change plans: the changes of one version of a table, as self-contained tasks.

Planning is cheap, deterministic and reads no rows (invariant 4: the same version always yields the same plan). A
`ChangeTask` names one file, the rows of it that changed, and the kind of change. It holds everything that
`tailer.read.execute.execute` needs, so it may be pickled to another process or sent as JSON. It yields the same rows
wherever it runs. Tasks contain no secrets: how to reach a store is not part of them.

`Position` orders all delivered rows. Tasks of a snapshot are numbered from `SNAPSHOT_TASKS` on, so that a position
distinguishes a snapshot of version v from the changes of version v. A position also identifies the rules by which a
version was compared (`tailer.changelog.task_ids`): each set of rules has its own range of `TASKS` task numbers, and the
range need not begin at 0.
"""

import base64
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any, Final, Self

import pyarrow as pa

from tailer.errors import ConfigError, did_you_mean
from tailer.events import METADATA_FIELDS, ROW_COMMIT_VERSION, ROW_ID
from tailer.schema.columns import METADATA_NAMES, RESERVED, bare_type, refuse_names
from tailer.schema.variant_paths import with_paths

__all__ = [
    "END",
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
    "TaskKind",
    "add_row_ids",
    "output_schema",
    "select_columns",
]

_ROW_IDS: Final = (ROW_ID, ROW_COMMIT_VERSION)
# Marks a field of a task's schema that comes from row tracking, not from a column of the table.
ROW_TRACKING: Final = b"tailer.rowTracking"
END: Final = 2**63 - 1
SNAPSHOT_TASKS: Final = 2**62
TASKS: Final = 2**32


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
        return f"row {self.row} of task {self.task - SNAPSHOT_TASKS * self.in_snapshot} of {version}"

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
    def is_inside(self) -> bool:
        """Return whether some rows of the version, or of its snapshot, come before this position and some after it."""
        return not self.opens_version and not self.closes_version

    @property
    def in_snapshot(self) -> bool:
        """Return whether the position is inside a snapshot."""
        return SNAPSHOT_TASKS <= self.task < END


class TaskKind(StrEnum):
    """Kind of a task: the kind of its file, and the change of its rows."""

    INSERT = "insert"  # a data file: the selected rows were inserted
    DELETE = "delete"  # a data file: the selected rows were deleted
    CDC_DELETES = "cdc_deletes"  # a change file: its `delete` rows only
    CDC_OTHERS = "cdc_others"  # the same file: all its other rows


class Regime(StrEnum):
    """Source of a version's changes."""

    CDC = "cdc"  # change files: the table's change feed
    FILES = "files"  # added and removed data files
    SNAPSHOT = "snapshot"  # all rows of the version
    NONE = "none"  # nothing changed


@dataclass(frozen=True, slots=True)
class DeletionVectorRef:
    """Reference to a deletion vector: a file (`uri`, `offset`), or the bytes themselves, Z85-encoded (`inline`).

    Resolved from a Delta descriptor (PROTOCOL.md, "Deletion Vector Descriptor Schema"); `size_bytes` is the size of
    the bitmap without framing, `cardinality` the number of positions in it.
    """

    uri: str | None
    inline: str | None
    offset: int | None
    size_bytes: int
    cardinality: int


@dataclass(frozen=True, slots=True)
class RowTracking:
    """Stable row ids of one data file (PROTOCOL.md, "Row Tracking").

    A row's id is the value of `id_column` where the file has that (physical) column and the value is not null, else
    `base_row_id` plus the row's position in the file. Likewise its commit version is the value of `version_column`,
    else `default_row_commit_version`. None: not in the log.
    """

    base_row_id: int | None = None
    default_row_commit_version: int | None = None
    id_column: str | None = None
    version_column: str | None = None


@dataclass(frozen=True, slots=True)
class FragmentRef:
    """Rows of one fragment of a table that has fragments in place of files, as of version `version` of the table.

    `number`: the fragment's id. `rows`: its physical rows, deleted ones included. `chosen`: the offsets of the rows
    meant, as a Roaring bitmap of 32 bits in base64; None: all that are not deleted at that version. `columns`: the
    field id of each physical column name that is not the field id itself.
    """

    version: int
    number: int
    rows: int
    chosen: str | None = None
    columns: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Refinement:
    """Result of comparing a version's rows, for the rows of one task (`tailer.changelog.carryovers`).

    `dropped`: rows that are not changes. `updated`: rows that are images of updates: deleted rows are preimages,
    inserted rows are postimages. `exactly`: whether no other rows are images, even if a change file marks them so.
    """

    dropped: DeletionVectorRef | None = None
    updated: DeletionVectorRef | None = None
    exactly: bool = False


@dataclass(frozen=True, slots=True)
class ChangeTask:
    """Some rows of one file, and their kind of change.

    `schema`: the columns of the rows in table order, with logical names, and each field's physical name or field id in
    its metadata. Deleted rows have the table's schema before the version, all others the one after it.
    `partition_values`: physical column name and the text from the log, None for null. Selected rows are those in
    `include` (None: all) that are not in `exclude` (None: none); for change files both are None. `tracking`: None for
    change files, whose rows have no ids, and where the table does not track rows. `refinement`: None where rows were
    not compared. `compared`: the columns for comparing rows, if these include columns that are not delivered.
    `logged`: the file's path as the log has it, where that is percent-encoded. `reader`: the format whose reader reads
    the rows; None: `uri` is a Parquet file. `fragment`: where the rows are, for a reader of fragments.
    """

    table: str
    table_id: str
    version: int
    timestamp_ms: int
    index: int
    kind: TaskKind
    uri: str
    size_bytes: int
    schema: pa.Schema
    partition_values: tuple[tuple[str, str | None], ...] = ()
    include: DeletionVectorRef | None = None
    exclude: DeletionVectorRef | None = None
    tracking: RowTracking | None = None
    refinement: Refinement | None = None
    compared: pa.Schema | None = None
    fragment: FragmentRef | None = None
    logged: str | None = None
    reader: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the task as JSON-ready values."""
        return {
            "table": self.table,
            "table_id": self.table_id,
            "version": self.version,
            "timestamp_ms": self.timestamp_ms,
            "index": self.index,
            "kind": self.kind.value,
            "uri": self.uri,
            "size_bytes": self.size_bytes,
            "schema": _schema_to_text(self.schema),
            "partition_values": dict(self.partition_values),
            "include": asdict(self.include) if self.include is not None else None,
            "exclude": asdict(self.exclude) if self.exclude is not None else None,
            "tracking": asdict(self.tracking) if self.tracking is not None else None,
            "refinement": asdict(self.refinement) if self.refinement is not None else None,
            "compared": _schema_to_text(self.compared) if self.compared is not None else None,
            **({} if self.fragment is None else {"fragment": asdict(self.fragment)}),
            **{name: text for name in ("logged", "reader") if (text := getattr(self, name)) is not None},
        }

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Self:
        """Rebuild a task from the values that `to_dict` returned."""
        compared = value.get("compared")
        return cls(
            **{
                **value,
                "kind": TaskKind(value["kind"]),
                "schema": _schema_from_text(value["schema"]),
                "partition_values": tuple(value["partition_values"].items()),
                "include": _vector(value["include"]),
                "exclude": _vector(value["exclude"]),
                "tracking": RowTracking(**value["tracking"]) if value["tracking"] is not None else None,
                "refinement": _refinement(value["refinement"]),
                "compared": _schema_from_text(compared) if compared is not None else None,
                "fragment": _fragment(value.get("fragment")),
            }
        )


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """All changes of version `version`, as tasks in delivery order: deletes before inserts.

    `schema` is the table's at that version, with metadata as in `ChangeTask.schema`; deletes may have the earlier one.
    `operation` is the writer's name for it. `feed`: whether writers had to write change files at that version; without
    these, each unchanged row of a rewritten file is a delete and an insert. A snapshot may have several plans.
    `paired`: whether a deleted and an inserted row with one row id are always the images of an update.
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
    paired: bool = False

    @property
    def size_bytes(self) -> int:
        """Total size of the tasks' files, in bytes."""
        return sum(task.size_bytes for task in self.tasks)

    @property
    def is_bare(self) -> bool:
        """True where the table has no columns at this version, and so no rows: it has yet to get some, or lost all."""
        return not set(self.schema.names).difference(_ROW_IDS)

    def select(self, columns: Sequence[str]) -> "ChangePlan":
        """Return the plan for some of the columns, or paths into them, in the order given. Positions do not change.

        Deleted rows lack the columns that this version adds to the table. Raises `ConfigError` for a column
        that the table does not have at this version, unless it `is_bare`.
        """
        plan = self.with_schemas(partial(with_paths, columns=columns))
        for column in columns if not self.is_bare else ():
            if plan.schema.get_field_index(column) < 0:
                known = f"The columns of {self.table} are: {', '.join(self.schema.names)}."
                remedy = f"{known} {did_you_mean(column, self.schema.names)}".rstrip()
                raise ConfigError("columns", f"no column {column!r} at version {self.version}", remedy)
        return plan.with_schemas(partial(select_columns, columns=columns))

    def with_row_ids(self) -> "ChangePlan":
        """Add `ROW_ID` and `ROW_COMMIT_VERSION`. Raises `UnsupportedFeature` where a column has one of these names."""
        self._refuse_names(_ROW_IDS, "row ids (`--row-ids`) add a column of that name")
        return self.with_schemas(add_row_ids)

    def check_change_files(self) -> None:
        """Raise as `check_reserved` where change files are read: they have the metadata columns themselves."""
        if self.regime is Regime.CDC:
            self.check_reserved()

    def check_reserved(self) -> None:
        """Raise `UnsupportedFeature` where a column has the name of a metadata column of change rows."""
        self._refuse_names(METADATA_NAMES, RESERVED)

    def _refuse_names(self, taken: Collection[str], reason: str) -> None:
        for schema in {id(each): each for each in (self.schema, *(task.schema for task in self.tasks))}.values():
            refuse_names(schema, self.table, self.version, taken, reason)

    def with_schemas(self, change: Callable[[pa.Schema], pa.Schema]) -> "ChangePlan":
        """Return the plan with `change` made to each of its schemas."""
        # Most tasks share one schema object; they also share the converted one.
        schemas = (self.schema, *(task.schema for task in self.tasks), *(task.compared for task in self.tasks))
        made = {id(schema): None if schema is None else change(schema) for schema in schemas}
        tasks = tuple(
            replace(task, schema=made[id(task.schema)], compared=made[id(task.compared)]) for task in self.tasks
        )
        return replace(self, schema=made[id(self.schema)], tasks=tasks)

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
                "schema": _schema_to_text(self.schema),
                "tasks": [task.to_dict() for task in self.tasks],
                "feed": self.feed,
                **({"paired": True} if self.paired else {}),
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
                "schema": _schema_from_text(value["schema"]),
                "tasks": tuple(ChangeTask.from_dict(task) for task in value["tasks"]),
            }
        )


def select_columns(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    """Return the schema of those `columns` that `schema` has, in the order given."""
    return pa.schema([schema.field(column) for column in columns if schema.get_field_index(column) >= 0])


def add_row_ids(schema: pa.Schema) -> pa.Schema:
    """Append the columns of row tracking to `schema`, marked as not the table's own."""
    return pa.schema([*schema, *(pa.field(name, pa.int64(), metadata={ROW_TRACKING: b""}) for name in _ROW_IDS)])


def output_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of change rows for a table with `schema`: its fields, then the metadata columns.

    Fields have no Arrow metadata. Nested fields are nullable on every level, because a null struct has null fields.
    """
    columns = [pa.field(column.name, bare_type(column.type), column.nullable) for column in schema]
    return pa.schema([*columns, *METADATA_FIELDS])


def _schema_to_text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode("ascii")


def _schema_from_text(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def _vector(value: dict[str, Any] | None) -> DeletionVectorRef | None:
    return DeletionVectorRef(**value) if value else None


def _fragment(value: dict[str, Any] | None) -> FragmentRef | None:
    return FragmentRef(**{**value, "columns": tuple(map(tuple, value["columns"]))}) if value else None


def _refinement(value: dict[str, Any] | None) -> Refinement | None:
    return Refinement(_vector(value["dropped"]), _vector(value["updated"]), value["exactly"]) if value else None
