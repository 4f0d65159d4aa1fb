"""Layouts of Parquet files: how the columns of a file become those of a task, and how large their values can be.

A version may have thousands of files with a row each. To work out the layout of such a file takes as long as to read
it, so each thread keeps its last layout, and uses it again for a file with the same schema.
"""

import threading
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from tailer.plan import ChangeTask, TaskKind
from tailer.read.parquet.batch_sizes import ValueSizes
from tailer.read.parquet.int96 import int96_paths
from tailer.read.parquet.legacy_datetimes import OldCalendar
from tailer.read.parquet.statistics import FileColumns
from tailer.read.parquet.uuids import with_uuids
from tailer.read.projection import Projection

__all__ = ["Layout", "layout_of"]

_CDC: Final = (TaskKind.CDC_DELETES, TaskKind.CDC_OTHERS)
_FOOTER_BYTES: Final = 2**16

_last: Final = threading.local()


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a file for a task: `projection` reads the task's columns.

    `condition`: reads the columns of the task's condition, whose sizes are `first`, and which are `noted` in footers;
    None: no condition. `sizes`: of all columns.
    """

    projection: Projection
    condition: Projection | None
    sizes: ValueSizes
    first: ValueSizes | None
    noted: FileColumns | None

    @property
    def has_int96(self) -> bool:
        """Return whether some column has timestamps of 96 bits."""
        return bool(self.projection.decoders or (self.condition is not None and self.condition.decoders))


@dataclass(frozen=True, slots=True)
class _Kept:
    """A layout, and all that it was worked out from: also `schema`, whose comparison ignores groups of columns."""

    layout: Layout
    task: ChangeTask
    arrow: pa.Schema
    schema: pq.ParquetSchema
    key_values: dict[bytes, bytes] | None

    def fits(self, task: ChangeTask, file: pq.ParquetFile) -> bool:
        """Return whether `file` has the same layout for `task`."""
        # Most tasks share one schema object. Schemas that are only equal may differ in field ids.
        return (
            task.schema is self.task.schema
            and task.where is self.task.where
            and (task.kind in _CDC) is (self.task.kind in _CDC)
            and task.partition_values == self.task.partition_values
            and task.tracking == self.task.tracking
            and file.schema.equals(self.schema)
            and file.metadata.metadata == self.key_values
            and file.schema_arrow.equals(self.arrow, check_metadata=True)
        )


def layout_of(task: ChangeTask, file: pq.ParquetFile) -> Layout:
    """Return the layout of `file`. Raises as `Projection` does."""
    kept: _Kept | None = getattr(_last, "kept", None)
    if kept is not None and kept.fits(task, file):
        return kept.layout
    calendar, arrow = OldCalendar.of(file, task), file.schema_arrow
    known = arrow, calendar, int96_paths(file.schema), with_uuids(arrow, file.schema)
    projection, condition, first, noted = Projection(task, *known), None, None, None
    columns, padded = list(projection.columns), dict(projection.padded)
    if task.where is not None:
        condition = Projection(replace(task, schema=task.where.fields), *known)
        first = ValueSizes(file.schema, condition.columns, condition.padded)
        noted = FileColumns(task, task.where.fields, arrow, file.schema, is_old=calendar is not None)
        columns, padded = list(dict.fromkeys([*condition.columns, *columns])), padded | condition.padded
    layout = Layout(projection, condition, ValueSizes(file.schema, columns, padded), first, noted)
    # A calendar names its file, so it is not kept. Nor is a large footer.
    if calendar is None and file.metadata.serialized_size <= _FOOTER_BYTES:
        _last.kept = _Kept(layout, task, arrow, file.schema, file.metadata.metadata)
    return layout
