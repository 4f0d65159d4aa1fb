"""The way delta-rs writes files: in one stream of rows, and with statistics that come out right.

delta-rs divides the rows of a write among as many streams as the thread that calls it may use processors. Each stream
joins batches to 8,192 rows, which are gigabytes if values are large (invariant 7). No option of delta-rs changes that.

The log gives the least and greatest values of each file, and filtering readers skip files by them. delta-rs takes them
from the Parquet file, and gets some wrong (`tailer_sinks.delta.schema.measured`). So a file has statistics only of
columns that come out right, and none of nested columns.
"""

import os
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from deltalake import ColumnProperties, WriterProperties

__all__ = ["rows_in_one_stream", "writing"]


def writing(measured: Iterable[str], group_rows: int | None = None) -> WriterProperties:
    """Return the properties of files that have statistics of the columns `measured` alone.

    `group_rows`: the rows of a row group, which delta-rs keeps in memory; None: as many as it likes.
    """
    return WriterProperties(
        max_row_group_size=group_rows,
        compression="SNAPPY",
        default_column_properties=ColumnProperties(statistics_enabled="NONE"),
        column_properties={name: ColumnProperties(statistics_enabled="PAGE") for name in measured},
    )


@contextmanager
def rows_in_one_stream() -> Iterator[None]:
    """Let this thread use one processor in the block; other threads of delta-rs still use all.

    Without effect where the system cannot do that.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    with suppress(OSError):
        os.sched_setaffinity(0, {random.choice(sorted(allowed))})
    try:
        yield
    finally:
        with suppress(OSError):
            os.sched_setaffinity(0, allowed)
