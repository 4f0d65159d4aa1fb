"""What one version of a table changes, as a plan of self-contained tasks; and the port every table format plugs into.

Planning is cheap, deterministic and does no row I/O (invariant 4: the same version always yields the same plan). A
`ChangeTask` names one file, which of its rows changed and how; it holds everything `tailer.execute.execute` needs, so
it may be pickled to another process or sent as JSON, and the rows it yields are the same wherever it runs. Secrets
never enter a task: storage options are referred to by name.

`Position` orders everything that is delivered. Tasks that give the rows of a snapshot are numbered from
`SNAPSHOT_TASKS` on, so that a position alone tells a snapshot of version v from the changes of version v.
"""

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Protocol, Self

import pyarrow as pa

from tailer.errors import ConfigError
from tailer.events import METADATA_FIELDS

__all__ = [
    "END",
    "SNAPSHOT_TASKS",
    "ChangePlan",
    "ChangeTask",
    "DeletionVectorRef",
    "Position",
    "Regime",
    "Start",
    "StartKind",
    "StartPoint",
    "TableLog",
    "TaskKind",
    "output_schema",
]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
END: Final = 2**63 - 1
SNAPSHOT_TASKS: Final = 2**62


@dataclass(frozen=True, order=True, slots=True)
class Position:
    """A place in a table's stream of changes: everything up to and including it.

    `task` is the index in the version's plan, `row` the physical row number in the task's file. It needs no counting
    and does not depend on batch sizes, parallelism or filters.
    """

    version: int
    task: int = END
    row: int = END

    @classmethod
    def end(cls, version: int) -> Self:
        """The position that closes `version`."""
        return cls(version)

    @property
    def closes_version(self) -> bool:
        """Whether nothing of the version is left after this position."""
        return self.task == END

    @property
    def in_snapshot(self) -> bool:
        """Whether this is a place inside a snapshot's rows."""
        return SNAPSHOT_TASKS <= self.task < END


class TaskKind(StrEnum):
    """How a task's file says what changed."""

    INSERT = "insert"  # a data file: the selected rows were inserted
    DELETE = "delete"  # a data file: the selected rows were deleted
    CDC_DELETES = "cdc_deletes"  # a change file: its `delete` rows only
    CDC_OTHERS = "cdc_others"  # the same file: all its other rows


class Regime(StrEnum):
    """Where a version's changes come from."""

    CDC = "cdc"  # change files: the table's change feed
    FILES = "files"  # added and removed data files
    SNAPSHOT = "snapshot"  # all rows of the version
    NONE = "none"  # nothing changed


@dataclass(frozen=True, slots=True)
class DeletionVectorRef:
    """Where to find a deletion vector: a file (`uri`, `offset`) or the bytes themselves, Z85-encoded (`inline`).

    Resolved from a Delta descriptor (PROTOCOL.md, "Deletion Vector Descriptor Schema"); `size_bytes` is the size of
    the bitmap without framing, `cardinality` the number of positions in it.
    """

    uri: str | None
    inline: str | None
    offset: int | None
    size_bytes: int
    cardinality: int


@dataclass(frozen=True, slots=True)
class ChangeTask:
    """Some rows of one file, and what happened to them.

    `schema`: the table's columns in table order, logical names, with each field's physical name or field id in its
    metadata. `partition_values`: physical column name and the text from the log, None for null. The rows selected are
    those in `include` (None: all) that are not in `exclude` (None: none); for change files both are None.
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
    storage: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The task as JSON-ready values."""
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
            "include": _vector_to_dict(self.include),
            "exclude": _vector_to_dict(self.exclude),
            "storage": self.storage,
        }

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Self:
        """The task that `to_dict` described."""
        return cls(
            **{
                **value,
                "kind": TaskKind(value["kind"]),
                "schema": _schema_from_text(value["schema"]),
                "partition_values": tuple(value["partition_values"].items()),
                "include": _vector_from_dict(value["include"]),
                "exclude": _vector_from_dict(value["exclude"]),
            }
        )


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """Everything version `version` changed, as tasks in delivery order: deletes before inserts.

    `schema` is the table's at that version (see `ChangeTask.schema`); `operation` is what the writer called it.
    """

    table: str
    table_id: str
    version: int
    timestamp_ms: int
    operation: str | None
    regime: Regime
    schema: pa.Schema
    tasks: tuple[ChangeTask, ...]

    @property
    def size_bytes(self) -> int:
        """Size of the files the tasks read."""
        return sum(task.size_bytes for task in self.tasks)

    def select(self, columns: Sequence[str]) -> "ChangePlan":
        """The same plan for some of the columns, in the order given. Positions stay what they were.

        Raises `ConfigError` for a column the table does not have.
        """
        for column in columns:
            if self.schema.get_field_index(column) < 0:
                remedy = f"The columns of {self.table} are: {', '.join(self.schema.names)}."
                raise ConfigError("columns", f"no column {column!r} at version {self.version}", remedy)
        schema = pa.schema([self.schema.field(column) for column in columns])
        tasks = tuple(replace(task, schema=schema) for task in self.tasks)
        return replace(self, schema=schema, tasks=tasks)

    def to_json(self) -> str:
        """The plan as JSON text."""
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
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The plan that `to_json` described."""
        value = json.loads(text)
        return cls(
            **{
                **value,
                "regime": Regime(value["regime"]),
                "schema": _schema_from_text(value["schema"]),
                "tasks": tuple(ChangeTask.from_dict(task) for task in value["tasks"]),
            }
        )


class StartKind(StrEnum):
    """The ways to say where to start."""

    EARLIEST = "earliest"
    LATEST = "latest"
    SNAPSHOT = "snapshot"
    VERSION = "version"
    TIMESTAMP = "timestamp"


@dataclass(frozen=True, slots=True)
class Start:
    """Where a reader wants to begin (or to end): a word, a version, or a moment in milliseconds since 1970."""

    kind: StartKind
    value: int = 0

    @classmethod
    def parse(cls, text: str, where: str = "start") -> Self:
        """Read `earliest`, `latest`, `snapshot`, a version number, or an ISO-8601 timestamp (without a zone: UTC).

        Raises `ConfigError` naming `where`.
        """
        if text in (StartKind.EARLIEST, StartKind.LATEST, StartKind.SNAPSHOT):
            return cls(StartKind(text))
        try:
            if text.isascii() and text.isdigit():
                return cls(StartKind.VERSION, int(text))
            moment = datetime.fromisoformat(text)
            moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
        except (ValueError, OverflowError):
            remedy = (
                "Give earliest, latest, snapshot, a version such as 12, or a timestamp such as 2026-03-01T12:00:00Z."
            )
            raise ConfigError(where, f"{text!r} is not a place in a table's history", remedy) from None
        return cls(StartKind.TIMESTAMP, (moment - _EPOCH) // timedelta(milliseconds=1))


@dataclass(frozen=True, slots=True)
class StartPoint:
    """A start made definite: the first version to deliver, and whether as a snapshot (all its rows) or as changes."""

    version: int
    snapshot: bool = False


class TableLog(Protocol):
    """A table's log, read forward from one version: what a table format provides.

    An instance is used by one task at a time. Methods raise `StorageError`, `LogError` or `ChangeError`.
    """

    @property
    def uri(self) -> str:
        """The table's location."""
        ...

    async def table_id(self) -> str:
        """The table's identity, which a recreated table does not share."""
        ...

    async def latest(self) -> int:
        """The newest version there is now."""
        ...

    async def resolve(self, start: Start) -> StartPoint:
        """Make `start` definite. A timestamp means the first version not earlier than it."""
        ...

    async def resolve_end(self, end: Start) -> int:
        """The last version to deliver. A timestamp means the last version not later than it."""
        ...

    async def seek(self, version: int) -> pa.Schema | None:
        """Prepare to read changes from `version` on, which may be the one after the latest.

        Returns the schema in force before it (see `ChangeTask.schema`); None where nothing is before it.

        Raises `VersionGone` where the log no longer holds it, `VersionAhead` where it is further ahead than that.
        """
        ...

    async def next_plan(self) -> ChangePlan | None:
        """The plan of the next version, or None when there is none yet. Costs one look at the store."""
        ...

    async def snapshot_plan(self, version: int) -> ChangePlan:
        """All rows of `version`, as inserts."""
        ...


def output_schema(schema: pa.Schema) -> pa.Schema:
    """The columns of change rows for a table with `schema`: its fields without metadata, then the metadata columns."""
    return pa.schema([*(field.remove_metadata() for field in schema), *METADATA_FIELDS])


def _schema_to_text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode("ascii")


def _schema_from_text(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def _vector_to_dict(vector: DeletionVectorRef | None) -> dict[str, Any] | None:
    if vector is None:
        return None
    return {name: getattr(vector, name) for name in DeletionVectorRef.__slots__}


def _vector_from_dict(value: dict[str, Any] | None) -> DeletionVectorRef | None:
    return None if value is None else DeletionVectorRef(**value)
