"""Layouts of Parquet files: how the columns of a file become those of a task, and how large their values can be.

A version may have thousands of files with a row each. To work out the layout of such a file takes as long as to read
it, so each thread keeps its last layout, and uses it again for a file with the same schema. Of a file in another
partition, only the values of partition columns are worked out.
"""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from tailer.plan import ChangeTask, RowTracking
from tailer.read.parquet.batch_sizes import ValueSizes
from tailer.read.parquet.legacy_datetimes import OldCalendar, int96_paths
from tailer.read.parquet.statistics import FileColumns
from tailer.read.projection import CHANGE_FILES, Projection
from tailer.read.selection import RowFilter

if TYPE_CHECKING:
    from tailer.shape.condition import Condition

__all__ = ["ConditionLayout", "layout_of"]


def with_uuids(arrow: pa.Schema, file: pq.ParquetSchema) -> pa.Schema:
    """Return the Arrow schema of a file with Arrow's type for UUIDs wherever the file has some, on every level."""
    leaves = [file.column(index).logical_type.type == "UUID" for index in range(len(file))]
    if not any(leaves):
        return arrow
    are_uuids = iter(leaves)
    return pa.schema([_field(field, are_uuids) for field in arrow])


def _field(field: pa.Field, are_uuids: Iterator[bool]) -> pa.Field:
    return field.with_type(_type(field.type, are_uuids))


def _type(kind: pa.DataType, are_uuids: Iterator[bool]) -> pa.DataType:
    """Return `kind` with UUIDs. `are_uuids`: of the leaves from its first on, which Arrow and Parquet order alike."""
    if isinstance(kind, pa.BaseExtensionType):
        _type(kind.storage_type, are_uuids)
        return kind
    if pa.types.is_struct(kind):
        return pa.struct([_field(field, are_uuids) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_field(kind.key_field, are_uuids), _field(kind.item_field, are_uuids))
    if pa.types.is_list(kind):
        return pa.list_(_field(kind.value_field, are_uuids))
    if pa.types.is_large_list(kind):
        return pa.large_list(_field(kind.value_field, are_uuids))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_field(kind.value_field, are_uuids), kind.list_size)
    is_uuid = next(are_uuids)
    return pa.uuid() if is_uuid and kind == pa.binary(16) else kind


_FOOTER_BYTES: Final = 2**16

_UNTRACKED: Final = RowTracking()
_last: Final = threading.local()


@dataclass(frozen=True, slots=True)
class ConditionLayout:
    """The columns of `where` in a file: `projection` reads them, `sizes` are theirs, `noted` is in footers.

    `row_filter`: finds the rows that fulfil the condition.
    """

    where: "Condition"
    projection: Projection
    sizes: ValueSizes
    noted: FileColumns
    row_filter: RowFilter

    def of(self, task: ChangeTask) -> "ConditionLayout":
        """Return the layout for a task as `Projection.of` takes it. Raises as that does."""
        projection = self.projection.of(task)
        if projection is self.projection:
            return self
        return ConditionLayout(
            self.where, projection, self.sizes, self.noted.of(task), RowFilter(self.where, projection)
        )


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a file for a task: `projection` reads the task's columns.

    `condition`: of the task's condition; None: it has none. `sizes`: of the columns of both.
    """

    projection: Projection
    condition: ConditionLayout | None
    sizes: ValueSizes

    def of(self, task: ChangeTask) -> "Layout":
        """Return the layout for a task as `Projection.of` takes it. Raises as that does."""
        condition = None if self.condition is None else self.condition.of(task)
        return Layout(self.projection.of(task), condition, self.sizes)

    @property
    def has_int96(self) -> bool:
        """Return whether some column has timestamps of 96 bits."""
        return bool(self.projection.decoders or (self.condition and self.condition.projection.decoders))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """A layout, and all that it was worked out from: a task, and properties of a file."""

    layout: Layout
    task: ChangeTask
    arrow: pa.Schema
    schema: pq.ParquetSchema
    key_values: dict[bytes, bytes] | None

    def is_layout_of(self, task: ChangeTask, file: pq.ParquetFile) -> bool:
        """Return whether `file` has the same layout for `task`, but for values that the log has."""
        own = self.task
        tracking, own_tracking = task.tracking or _UNTRACKED, own.tracking or _UNTRACKED
        # Most tasks share one schema object. Schemas that are only equal may differ in field ids. The comparison of
        # Parquet's schemas ignores groups of columns.
        return bool(
            task.schema is own.schema
            and task.where is own.where
            and (task.kind in CHANGE_FILES) is (own.kind in CHANGE_FILES)
            and dict(task.partition_values).keys() == dict(own.partition_values).keys()
            and tracking.id_column == own_tracking.id_column
            and tracking.version_column == own_tracking.version_column
            and file.schema.equals(self.schema)
            and file.metadata.metadata == self.key_values
            and file.schema_arrow.equals(self.arrow, check_metadata=True)
        )


def layout_of(task: ChangeTask, file: pq.ParquetFile) -> Layout:
    """Return the layout of `file`. Raises as `Projection` does."""
    kept: _Kept | None = getattr(_last, "kept", None)
    if kept is not None and kept.is_layout_of(task, file):
        own = kept.task
        is_same = task.partition_values == own.partition_values and task.tracking == own.tracking
        return kept.layout if is_same else kept.layout.of(task)
    calendar = OldCalendar.of(file, task)
    # A calendar names its file, so it is not kept. Nor is a large footer.
    may_keep = calendar is None and file.metadata.serialized_size <= _FOOTER_BYTES
    projection = _projection(task, file, calendar)
    columns, padded = list(projection.columns), dict(projection.padded)
    condition: ConditionLayout | None = None
    if (where := task.where) is not None and not where.holds_always:
        first = _projection(replace(task, schema=where.fields), file, calendar)
        sizes = ValueSizes(file.schema, first.columns, first.padded)
        noted = FileColumns(task, where.fields, file.schema_arrow, file.schema, is_old=calendar is not None)
        condition = ConditionLayout(where, first, sizes, noted, RowFilter(where, first))
        columns = list(dict.fromkeys([*first.columns, *columns]))
        padded |= first.padded
    layout = Layout(projection, condition, ValueSizes(file.schema, columns, padded))
    if may_keep:
        _last.kept = _Kept(
            layout=layout,
            task=task,
            arrow=file.schema_arrow,
            schema=file.schema,
            key_values=file.metadata.metadata,
        )
    return layout


def _projection(task: ChangeTask, file: pq.ParquetFile, calendar: OldCalendar | None) -> Projection:
    arrow = file.schema_arrow
    return Projection(task, arrow, calendar, int96_paths(file.schema), with_uuids(arrow, file.schema))
