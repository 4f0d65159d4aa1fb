"""Layouts of Parquet files: how the columns of a file become those of a task, and how large their values can be.

A version may have thousands of files with a row each. To work out the layout of such a file takes as long as to read
it, so each thread keeps the one before, and uses it again for a file with the same schema.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from tailer.plan import ChangeTask, TaskKind
from tailer.read.batch_sizes import ValueSizes
from tailer.read.legacy_datetimes import OldCalendar
from tailer.read.parquet.int96 import Int96
from tailer.read.parquet.uuids import with_uuids
from tailer.read.projection import Projection

__all__ = ["Layout", "layout_of"]

_CDC: Final = (TaskKind.CDC_DELETES, TaskKind.CDC_OTHERS)
_FOOTER_BYTES: Final = 2**16

_last: Final = threading.local()


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a file for a task.

    `int96`: None where the file has no timestamps of 96 bits. `sizes`: of the columns that `projection` reads.
    """

    int96: Int96 | None
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
        """Return whether it is the layout of `file` for `task`, too."""
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


def layout_of(task: ChangeTask, file: pq.ParquetFile, find_int96: Callable[[], Int96 | None]) -> Layout:
    """Return the layout of `file`, whose timestamps of 96 bits `find_int96` returns. Raises as `Projection` does."""
    kept: _Kept | None = getattr(_last, "kept", None)
    if kept is not None and kept.fits(task, file):
        return kept.layout
    calendar, int96 = OldCalendar.of(file, task), find_int96()
    arrow = file.schema_arrow
    projection = Projection(task, arrow, calendar, int96, with_uuids(arrow, file.schema))
    layout = Layout(int96, projection, ValueSizes(file.schema, projection.columns, projection.padded))
    # What depends on the file itself is not kept, nor is a large footer.
    if calendar is None and int96 is None and file.metadata.serialized_size <= _FOOTER_BYTES:
        _last.kept = _Kept(layout, task, arrow, file.schema, file.metadata.metadata)
    return layout
