"""The change row: what every source produces and every sink receives.

A change row is a row of the table plus three metadata columns, as in Delta's change data feed (PROTOCOL.md, "Change
Data Files"): `_change_type`, `_commit_version`, `_commit_timestamp`. Rows travel in `ChangeBatch`es, each from one
task of one version's plan, with the physical row number of every row, which makes a row's place in the stream
(version, task, row) the same in every run.

Between rows stand control events: `SchemaChange` where the rows that follow have other columns, `Gap` where changes are
missing because they were lost and the operator chose to go on.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc

__all__ = [
    "CHANGE_TYPE",
    "COMMIT_TIMESTAMP",
    "COMMIT_VERSION",
    "METADATA_FIELDS",
    "ROW_COMMIT_VERSION",
    "ROW_ID",
    "ChangeBatch",
    "ChangeType",
    "ControlEvent",
    "Gap",
    "SchemaChange",
]

CHANGE_TYPE: Final = "_change_type"
COMMIT_VERSION: Final = "_commit_version"
COMMIT_TIMESTAMP: Final = "_commit_timestamp"

ROW_ID: Final = "_row_id"
ROW_COMMIT_VERSION: Final = "_row_commit_version"

METADATA_FIELDS: Final[tuple[pa.Field, ...]] = (
    pa.field(CHANGE_TYPE, pa.string()),
    pa.field(COMMIT_VERSION, pa.int64()),
    pa.field(COMMIT_TIMESTAMP, pa.timestamp("us", tz="UTC")),
)


class ChangeType(StrEnum):
    """The values of `_change_type` that Delta defines; writers may use others, which pass through unchanged."""

    INSERT = "insert"
    DELETE = "delete"
    UPDATE_PREIMAGE = "update_preimage"
    UPDATE_POSTIMAGE = "update_postimage"


@dataclass(frozen=True, slots=True)
class ChangeBatch:
    """Change rows of one task, in ascending physical row order.

    `rows`: the table's columns in table order, then the three metadata columns (`METADATA_FIELDS`).
    `row_index`: int64, one per row: the row's physical position in its file, ascending. It is one for both images of an
    update that was told by comparing rows: the postimage's. These come together in one batch.
    `table_id`, `version`, `task`: which plan, and which task of it, the rows come from.
    """

    table_id: str
    version: int
    task: int
    rows: pa.RecordBatch
    row_index: pa.Array

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    @property
    def size_bytes(self) -> int:
        """Bytes of Arrow memory the rows refer to."""
        return int(self.rows.nbytes)

    @property
    def last_row(self) -> int:
        """Physical position of the last row. The batch must not be empty."""
        return int(self.row_index[-1].as_py())

    def after(self, row: int) -> "ChangeBatch":
        """The rows whose physical position is greater than `row`."""
        skip = int(pc.sum(pc.less_equal(self.row_index, row)).as_py() or 0)
        return self.slice(skip, len(self) - skip)

    def slice(self, offset: int, length: int) -> "ChangeBatch":
        """`length` rows from the one at `offset` on; shares memory with this batch."""
        return ChangeBatch(
            self.table_id,
            self.version,
            self.task,
            self.rows.slice(offset, length),
            self.row_index.slice(offset, length),
        )


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """The rows that follow have the columns of `after` in place of `before`; both with the metadata columns.

    `version`, `timestamp_ms`: the commit that changed the schema. `changes`: what it did to the columns, a sentence
    each, such as `column b was renamed to c`.
    """

    kind: ClassVar[str] = "schema_change"

    table_id: str
    version: int
    timestamp_ms: int
    before: pa.Schema
    after: pa.Schema
    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Gap:
    """The changes of `first_version` to `version` are lost, some of the first one's rows perhaps excepted.

    `reason` says how. `snapshot`: all rows of the table as of `version` follow, as inserts; whoever keeps a copy
    discards it first. Else the changes of the version after `version` follow. `timestamp_ms`: when this was decided.
    """

    kind: ClassVar[str] = "gap"

    table_id: str
    first_version: int
    version: int
    timestamp_ms: int
    reason: str
    snapshot: bool


ControlEvent = SchemaChange | Gap
