"""Tasks: some rows of one file, and their kind of change.

A `ChangeTask` names one file, the rows of it that changed, and the kind of change. It holds everything that
`tailer.read.execute.execute` needs, so it may be pickled to another process or sent as JSON. It yields the same rows
wherever it runs. Tasks contain no secrets: how to reach a store is not part of them.
"""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Self

import pyarrow as pa

from tailer.schema.columns import schema_from_text, schema_to_text

if TYPE_CHECKING:
    from tailer.shape.condition import Condition
    from tailer.shape.select import Select

__all__ = [
    "HELD",
    "ChangeTask",
    "DeletionVectorRef",
    "FragmentRef",
    "Refinement",
    "RowTracking",
    "TaskKind",
]


HELD: Final = ""  # statistics that nobody needs again
_FILE: Final = ("path", "fields")  # of a fragment
_PARTS: Final = ("include", "exclude", "tracking", "refinement")


class TaskKind(StrEnum):
    """Kind of a task: the kind of its file, and the change of its rows."""

    INSERT = "insert"  # a data file: the selected rows were inserted
    DELETE = "delete"  # a data file: the selected rows were deleted
    CDC_DELETES = "cdc_deletes"  # a change file: its `delete` rows only
    CDC_OTHERS = "cdc_others"  # the same file: all its other rows


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
    field id of each physical column name that is not the field id itself. `path`: the file, relative to the table's
    folder of data, that has all of the rows and can be read without that version of the table; None: there is none.
    `fields`: the field id of each of its columns.
    """

    version: int
    number: int
    rows: int
    chosen: str | None = None
    columns: tuple[tuple[str, int], ...] = ()
    path: str | None = None
    fields: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the reference as JSON-ready values."""
        values = asdict(self)
        return values if self.path is not None else {name: values[name] for name in values if name not in _FILE}


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
    the rows; None: `uri` is a Parquet file. `fragment`: where the rows are, for a reader of fragments. `stats`: what
    the log says of the values in the file, as text; None: nothing, or nobody asked for it; `HELD`: the condition was
    held against it. `where`: the condition that rows must fulfil; its columns need not be in `schema`. `select`: makes
    the columns of `schema`, or more, from those of the table; None: they are columns of the table.
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
    stats: str | None = None
    where: "Condition | None" = None
    select: "Select | None" = None

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
            "schema": schema_to_text(self.schema),
            "partition_values": dict(self.partition_values),
            **{name: None if (part := getattr(self, name)) is None else asdict(part) for name in _PARTS},
            "compared": schema_to_text(self.compared) if self.compared is not None else None,
            **({} if self.fragment is None else {"fragment": self.fragment.to_dict()}),
            **{name: text for name in ("logged", "reader", "stats") if (text := getattr(self, name)) is not None},
            **({} if self.where is None else {"where": self.where.to_text()}),
            **({} if self.select is None else {"select": self.select.to_text()}),
        }

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Self:
        """Rebuild a task from the values that `to_dict` returned."""
        compared, chosen = value.get("compared"), dict[str, Any]()
        if "where" in value:
            from tailer.shape.condition import Condition  # noqa: PLC0415 - most tasks have none

            chosen["where"] = Condition.from_text(value["where"])
        if "select" in value:
            from tailer.shape.select import Select  # noqa: PLC0415 - as above

            chosen["select"] = Select.from_text(value["select"])
        return cls(
            **{
                **value,
                "kind": TaskKind(value["kind"]),
                "schema": schema_from_text(value["schema"]),
                "partition_values": tuple(value["partition_values"].items()),
                "include": _vector(value["include"]),
                "exclude": _vector(value["exclude"]),
                "tracking": RowTracking(**value["tracking"]) if value["tracking"] is not None else None,
                "refinement": _refinement(value["refinement"]),
                "compared": schema_from_text(compared) if compared is not None else None,
                "fragment": _fragment(value.get("fragment")),
                **chosen,
            }
        )


def _vector(value: dict[str, Any] | None) -> DeletionVectorRef | None:
    return DeletionVectorRef(**value) if value else None


def _fragment(value: dict[str, Any] | None) -> FragmentRef | None:
    if not value:
        return None
    columns, fields = tuple(map(tuple, value["columns"])), tuple(value.get("fields", ()))
    return FragmentRef(**{**value, "columns": columns, "fields": fields})


def _refinement(value: dict[str, Any] | None) -> Refinement | None:
    return Refinement(_vector(value["dropped"]), _vector(value["updated"]), value["exactly"]) if value else None
