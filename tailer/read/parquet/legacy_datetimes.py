"""Reject dates and timestamps that old Spark wrote in the Julian calendar, and decode timestamps of 96 bits.

Spark before 3.0 (datetime rebase) used the Julian calendar until 1582-10-04. Later Spark uses today's calendar for all
days, but writes as before if `spark.sql.parquet.datetimeRebaseModeInWrite`, or its twin for timestamps of 96 bits, is
LEGACY. The key-value metadata of a file shows its calendar: the version of Spark and, for LEGACY, a key of its own.
Spark converts such dates and timestamps when it reads them. lake-tailer does not, because converting a timestamp
depends on the time zone of the machine that wrote it: a value that differs between the calendars stops the task. Those
are dates before 1582-10-15 and, as zones had local mean times, timestamps before 1900. Timestamps without a time zone
were always written in today's calendar, and so are files of other writers, which do not name Spark.

Spark writes timestamps of 96 bits by default. Such a value has the nanoseconds of the day and the Julian day number,
both signed. Arrow takes them for unsigned: it decodes all of -4713-11-24 as 1970-01-01, and an earlier moment as one in
another year. Nothing in its result shows that, in any unit. So the footer is changed in memory before Arrow sees it:
the columns are fixed-size binary of 12 bytes there, whose encodings are the same, and are decoded here.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tailer.errors import UnsupportedFeature
from tailer.plan import ChangeTask
from tailer.read.parquet.thrift import STRUCT, list_offset, list_size, skip
from tailer.variant.nested import Change, changed, changes_where

__all__ = ["OldCalendar", "decoder", "int96_paths", "open_as_binary"]

_MAGIC: Final = b"PAR1"
_SCHEMA: Final = 2  # the number of the field that is a list of the file's columns
_INT96: Final = b"\x15\x06"  # how a column begins: its type
_FIXED_SIZE: Final = b"\x15\x0e"
_LENGTH: Final = b"\x05\x04\x18\0"  # how it ends then: its length in bytes, which comes second elsewhere

_RAW: Final = pa.binary(12)
# Given a plain number, Arrow looks for numpy first, every time.
_ZERO, _THOUSAND = pa.scalar(0, pa.int64()), pa.scalar(1000, pa.int64())
_DAY_US: Final = pa.scalar(86_400_000_000, pa.int64())
_EPOCH_DAY: Final = pa.scalar(2_440_588, pa.int64())  # the Julian day number of 1970-01-01
_EPOCH_US: Final = pa.scalar(2_440_588 * 86_400_000_000, pa.int64())


def int96_paths(schema: pq.ParquetSchema) -> list[str]:
    """Return the paths of the columns that have timestamps of 96 bits, on any level."""
    columns = map(schema.column, range(len(schema)))
    return [column.path for column in columns if column.physical_type == "INT96"]


def open_as_binary(source: pa.NativeFile, footer: bytes, **options: Any) -> pq.ParquetFile:
    """Open the Parquet file in `source`, which has this footer, with its timestamps of 96 bits as binary.

    Raises `ArrowInvalid` for a footer that is not understood.
    """
    content = _with_binary(footer)
    whole = b"".join([_MAGIC, content, len(content).to_bytes(4, "little"), _MAGIC])
    metadata = pq.read_metadata(pa.BufferReader(whole))
    if int96_paths(metadata.schema):
        raise _not_understood()
    return pq.ParquetFile(source, metadata=metadata, **options)


def _with_binary(footer: bytes) -> bytes:
    try:
        count, offset = list_size(footer, list_offset(footer, 0, _SCHEMA), STRUCT)
        parts = [footer[:offset]]
        for _ in range(count):
            end = skip(footer, offset, STRUCT)
            column, offset = footer[offset:end], end
            is_int96 = column.startswith(_INT96)
            parts.append(_FIXED_SIZE + column[len(_INT96) : -1] + _LENGTH if is_int96 else column)
    except (LookupError, ValueError, RecursionError) as error:
        raise _not_understood() from error
    return b"".join([*parts, footer[offset:]])


def _not_understood() -> pa.ArrowInvalid:
    return pa.ArrowInvalid("the footer of a file with timestamps of 96 bits is not understood")


def decoder(kind: pa.DataType) -> Change:
    """Return what turns a column that was read as binary into one of type `kind`.

    It raises `ArrowInvalid` for a value that is no timestamp.
    """
    changes = changes_where(kind, pa.types.is_timestamp, _timestamps)

    def decode(values: pa.Array) -> pa.Array:
        column = changed(values, changes)
        # Arrow views nothing where a required field lies in a struct that is null.
        return column if column.type.equals(kind) else column.view(kind)

    return decode


def _timestamps(values: pa.Array) -> pa.Array:
    if not values.type.equals(_RAW):  # timestamps of 64 bits beside them
        return values
    day = pc.binary_slice(values, 8, 12).view(pa.int32()).cast(pa.int64())
    micros = pc.divide(pc.binary_slice(values, 0, 8).view(pa.int64()), _THOUSAND)
    # Spark counts from Julian day 0, and this sum wraps for the last years that timestamps have. Subtracting after the
    # sum of a negative day undoes that.
    is_negative = pc.less(day, _ZERO)
    try:
        days = pc.if_else(is_negative, day, pc.subtract(day, _EPOCH_DAY))
        total = pc.add_checked(pc.multiply_checked(days, _DAY_US), micros)
    except pa.ArrowInvalid as error:
        raise pa.ArrowInvalid("a timestamp of 96 bits is outside of the years that timestamps have") from error
    return pc.subtract(total, pc.if_else(is_negative, _EPOCH_US, _ZERO)).view(pa.timestamp("us"))


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
