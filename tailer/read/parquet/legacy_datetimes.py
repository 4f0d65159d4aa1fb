"""Reject dates and timestamps that old Spark wrote in the Julian calendar (Spark: datetime rebase).

Spark before 3.0 used the Julian calendar until 1582-10-04. Later Spark uses today's calendar for all days, but writes
as before if `spark.sql.parquet.datetimeRebaseModeInWrite`, or its twin for timestamps of 96 bits, is LEGACY. The
key-value metadata of a file shows its calendar: the version of Spark and, for LEGACY, a key of its own. Spark converts
such dates and timestamps when it reads them. lake-tailer does not, because converting a timestamp depends on the time
zone of the machine that wrote it: a value that differs between the calendars stops the task. Those are dates before
1582-10-15 and, as zones had local mean times, timestamps before 1900. Timestamps without a time zone were always
written in today's calendar, and so are files of other writers, which do not name Spark.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tailer.errors import UnsupportedFeature
from tailer.plan import ChangeTask

__all__ = ["OldCalendar"]

_VERSION: Final = b"org.apache.spark.version"
_LEGACY: Final = b"org.apache.spark.legacyDateTime"
_LEGACY_INT96: Final = b"org.apache.spark.legacyINT96"

_FIRST_DAY: Final = -141_427  # 1582-10-15, in days since 1970
_FIRST_SECOND: Final = -2_208_988_800  # 1900-01-01T00:00:00Z, in seconds since 1970
_REMEDY: Final = (
    "Leave the column out (columns, `--columns`); or let a newer Spark write its file again, and start after "
    "the version that does so."
)


class OldCalendar:
    """The values of a file that are the same in both calendars, for a file that may have others."""

    def __init__(self, task: ChangeTask, spark: str, safe_from: Mapping[str, Sequence[pa.Scalar | None]]) -> None:
        self._task = task
        self._spark = spark
        self._safe_from = safe_from

    @classmethod
    def of(cls, file: pq.ParquetFile, task: ChangeTask) -> Self | None:
        """Return one for a task's file; None where all of it is in today's calendar, which is almost always."""
        said: Mapping[bytes, bytes] = file.metadata.metadata or {}
        spark = said.get(_VERSION, b"").decode(errors="replace")
        dates = _LEGACY in said or _before(spark, 3, 0)
        int96 = _LEGACY_INT96 in said or _before(spark, 3, 1)
        if not (dates or int96):
            return None
        # The leaves of both schemas are the same, in the same order; only the file's own has timestamps of 96 bits.
        columns = (file.schema.column(index) for index in range(len(file.schema)))
        return cls(
            task,
            spark,
            {
                field.name: [
                    _first_safe(kind, dates, int96 and column.physical_type == "INT96")
                    for kind, column in zip(_leaf_types(field.type), columns, strict=False)
                ]
                for field in file.schema_arrow
            },
        )

    def check(self, columns: Mapping[str, pa.Array]) -> None:
        """Raise `UnsupportedFeature` if a value of `columns`, whole columns of the file, differs between calendars."""
        for name, column in columns.items():
            for first, values in zip(self._safe_from[name], _leaves(column), strict=True):
                if first is not None and pc.any(pc.less(values, first)).as_py():
                    reason = (
                        f"column {name} of {self._task.uri} has values before {first}, which Spark {self._spark} wrote "
                        "in the Julian calendar; a newer Spark reads them, and writes them in today's"
                    )
                    feature, version = "the calendar of old Spark", self._task.version
                    raise UnsupportedFeature(self._task.table, feature, version, reason, _REMEDY)


def _before(spark: str, major: int, minor: int) -> bool:
    """Return whether a version of Spark, as files name it, is an older one; False for a file of another writer."""
    numbers = re.match(r"(\d+)\.(\d+)", spark)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) < (major, minor)


def _first_safe(kind: pa.DataType, dates: bool, int96: bool) -> pa.Scalar | None:
    """Return the first value from which on the calendars agree for a column of this type; None: they always do.

    `dates`: dates and timestamps may be old. `int96`: the column has timestamps of 96 bits, which may be old.
    """
    if pa.types.is_date32(kind) and dates:
        return pa.scalar(_FIRST_DAY, pa.int32()).cast(kind)
    if pa.types.is_timestamp(kind) and (int96 or (dates and kind.tz is not None)):
        return pa.scalar(_FIRST_SECOND, pa.timestamp("s", kind.tz)).cast(kind)
    return None


def _leaf_types(kind: pa.DataType) -> Iterator[pa.DataType]:
    """Yield the types of `_leaves`, in the same order."""
    if pa.types.is_nested(kind):
        for index in range(kind.num_fields):
            yield from _leaf_types(kind.field(index).type)
    else:
        yield kind


def _leaves(array: pa.Array) -> Iterator[pa.Array]:
    """Yield the arrays without children of a column, on any level."""
    kind = array.type
    if pa.types.is_struct(kind):
        for index in range(kind.num_fields):
            yield from _leaves(array.field(index))
    elif pa.types.is_map(kind):
        yield from _leaves(array.keys)
        yield from _leaves(array.items)
    elif pa.types.is_nested(kind):
        yield from _leaves(array.values)
    else:
        yield array
