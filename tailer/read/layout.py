"""Layouts of Parquet files: how the columns of a file become those of a task, and how large their values can be.

A version may have thousands of files with a row each. To work out the layout of such a file takes as long as to read
it, so each thread keeps its last layout, and uses it again for a file with the same schema.
"""

import threading
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from tailer.plan import ChangeTask, TaskKind
from tailer.read.batch_sizes import ValueSizes
from tailer.read.legacy_datetimes import OldCalendar
from tailer.read.parquet.int96 import int96_paths
from tailer.read.parquet.uuids import with_uuids
from tailer.read.projection import Projection

__all__ = ["Layout", "layout_of"]

_CDC: Final = (TaskKind.CDC_DELETES, TaskKind.CDC_OTHERS)
_FOOTER_BYTES: Final = 2**16

_last: Final = threading.local()


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a file for a task. `sizes`: of the columns that `projection` reads."""

    projection: Projection
    sizes: ValueSizes


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
    projection = Projection(task, arrow, calendar, int96_paths(file.schema), with_uuids(arrow, file.schema))
    layout = Layout(projection, ValueSizes(file.schema, projection.columns, projection.padded))
    # A calendar names its file, so it is not kept. Nor is a large footer.
    if calendar is None and file.metadata.serialized_size <= _FOOTER_BYTES:
        _last.kept = _Kept(layout, task, arrow, file.schema, file.metadata.metadata)
    return layout
