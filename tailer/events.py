"""Change rows and control events, from every source to every sink.

A change row is a row of the table plus three metadata columns, as in Delta's change data feed (PROTOCOL.md, "Change
Data Files"): `_change_type`, `_commit_version`, `_commit_timestamp`. Rows come in `ChangeBatch`es, each from one task
of one version's plan, with the physical row number of every row. So a row's position in the stream (version, task, row)
is the same in every run.

Control events come between rows: `SchemaChange` before rows with other columns, `Gap` in place of changes that were
lost, if the operator chose to continue.

Variants are structs of the type `VARIANT`. No Arrow extension type is used, because kernels, DuckDB and Spark do not
take them, and no metadata of a field, because kernels and files drop it. The type alone identifies a Variant wherever
it is nested: no table format gives a column of `large_binary`, so a struct that a table itself declares with fields
`metadata` and `value` has another type.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc

__all__ = [
    "CHANGE_TYPE",
    "COMMIT_TIMESTAMP",
    "COMMIT_VERSION",
    "EXPLAIN",
    "METADATA_FIELDS",
    "ROW_COMMIT_VERSION",
    "ROW_ID",
    "VARIANT",
    "ChangeBatch",
    "ChangeType",
    "ChangeWord",
    "ControlEvent",
    "Gap",
    "SchemaChange",
    "change_types",
    "has_variant",
    "is_struct",
    "is_variant",
    "joined_rows",
    "type_text",
]

CHANGE_TYPE: Final = "_change_type"
COMMIT_VERSION: Final = "_commit_version"
COMMIT_TIMESTAMP: Final = "_commit_timestamp"

# The column that `tail --explain` adds: where a row is from, and why it is a change.
EXPLAIN: Final = "_explain"

ROW_ID: Final = "_row_id"
ROW_COMMIT_VERSION: Final = "_row_commit_version"

METADATA_FIELDS: Final[tuple[pa.Field, ...]] = (
    pa.field(CHANGE_TYPE, pa.string()),
    pa.field(COMMIT_VERSION, pa.int64()),
    pa.field(COMMIT_TIMESTAMP, pa.timestamp("us", tz="UTC")),
)

# A Variant as Parquet encodes it, not shredded: `tailer.variant` decodes it.
# The fields are null only where the Variant is.
VARIANT: Final = pa.struct([pa.field("metadata", pa.large_binary()), pa.field("value", pa.large_binary())])


def is_variant(kind: pa.DataType) -> bool:
    """Return whether values of `kind` are Variants."""
    return bool(kind.equals(VARIANT))


def is_struct(kind: pa.DataType) -> bool:
    """Return whether values of `kind` are structs with fields of the table, not Variants."""
    return bool(pa.types.is_struct(kind)) and not is_variant(kind)


def has_variant(kind: pa.DataType) -> bool:
    """Return whether values of `kind` are or contain Variants."""
    return is_variant(kind) or any(has_variant(kind.field(index).type) for index in range(kind.num_fields))


def type_text(kind: pa.DataType) -> str:
    """Return the name of a type in messages."""
    return str(kind).replace(str(VARIANT), "variant")


class ChangeType(StrEnum):
    """The values of `_change_type` that Delta defines; writers may use others, which pass through unchanged."""

    INSERT = "insert"
    DELETE = "delete"
    UPDATE_PREIMAGE = "update_preimage"
    UPDATE_POSTIMAGE = "update_postimage"


class ChangeWord(StrEnum):
    """The words by which users choose types of changes."""

    INSERT = "insert"
    UPDATE = "update"  # both images
    DELETE = "delete"
    UPDATE_PREIMAGE = "update_preimage"
    UPDATE_POSTIMAGE = "update_postimage"


def change_types(words: Iterable[ChangeWord]) -> frozenset[str]:
    """Return the values of `_change_type` that the words mean."""
    images = {ChangeType.UPDATE_PREIMAGE.value, ChangeType.UPDATE_POSTIMAGE.value}
    return frozenset().union(*(images if word is ChangeWord.UPDATE else {word.value} for word in words))


@dataclass(frozen=True)
class ChangeBatch:
    """Change rows of one task, in ascending physical row order.

    `rows`: the table's columns in table order, then the three metadata columns (`METADATA_FIELDS`).
    `row_index`: int64, one per row: the row's physical position in its file, ascending. Both images of an update that
    was found by comparing rows have the position of the postimage, and come in one batch.
    `table_id`, `version`, `task`: the plan and the task of the rows. `kind`: the change type of all rows; None: they
    may have several.
    """

    table_id: str
    version: int
    task: int
    rows: pa.RecordBatch
    row_index: pa.Array
    kind: ChangeType | None = field(default=None, compare=False)

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    @cached_property
    def size_bytes(self) -> int:
        """Arrow memory of the rows, in bytes. Arrow counts as long as it takes to read a row of a small file."""
        return int(self.rows.nbytes)

    @property
    def last_row(self) -> int:
        """Physical position of the last row. The batch must not be empty."""
        return int(self.row_index[-1].as_py())

    def after(self, row: int) -> "ChangeBatch":
        """Return the rows whose physical position is greater than `row`."""
        skip = int(pc.sum(pc.less_equal(self.row_index, row)).as_py() or 0)
        return self.slice(skip, len(self) - skip)

    def of_types(self, types: frozenset[str]) -> "ChangeBatch":
        """Return the rows that have one of these change types."""
        if self.kind is not None:
            return self if self.kind in types else self.slice(0, 0)
        chosen = pc.is_in(self.rows.column(CHANGE_TYPE), pa.array(sorted(types)))
        rows, row_index = self.rows.filter(chosen), self.row_index.filter(chosen)
        return ChangeBatch(self.table_id, self.version, self.task, rows, row_index)

    def slice(self, offset: int, length: int) -> "ChangeBatch":
        """Return `length` rows from `offset` on, sharing memory with this batch."""
        return ChangeBatch(
            self.table_id,
            self.version,
            self.task,
            self.rows.slice(offset, length),
            self.row_index.slice(offset, length),
            self.kind,
        )


def joined_rows(batches: Sequence[ChangeBatch]) -> pa.RecordBatch:
    """Return the rows of at least one batch, all of one schema, as one record batch; several are copied."""
    return batches[0].rows if len(batches) == 1 else pa.concat_batches([batch.rows for batch in batches])


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """A change of schema: later rows have the columns of `after`, not `before`; both include the metadata columns.

    `version`, `timestamp_ms`: the commit that changed the schema. `changes`: one sentence per changed column, such as
    `column b was renamed to c`. `origins`: the former name of each column of `after` that was there before, by its
    identity; None: columns are known by their names. `replaced`: the paths of names that belong to another column, or
    field of a struct, than before.
    """

    kind: ClassVar[str] = "schema_change"

    table_id: str
    version: int
    timestamp_ms: int
    before: pa.Schema
    after: pa.Schema
    changes: tuple[str, ...]
    origins: Mapping[str, str] | None = field(default=None, hash=False)
    replaced: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Gap:
    """Loss of the changes from `first_version` to `version`, except possibly some rows of the first version.

    `reason`: the cause of the loss. `snapshot`: all rows of the table at `version` follow as inserts, so a consumer
    with a copy must discard it first. Otherwise the changes of the next version follow. `timestamp_ms`: time of the
    decision to continue. `command`: the id of the command that asked for the snapshot; None: changes are lost.
    """

    kind: ClassVar[str] = "gap"

    table_id: str
    first_version: int
    version: int
    timestamp_ms: int
    reason: str
    snapshot: bool
    command: str | None = None


ControlEvent = SchemaChange | Gap
