"""Constants of a scan's rows: what the plan knows of their file, and the file does not say.

These are change type, version, timestamp and partition values. Spark takes them for the values of partition columns
(`tailer.spark.native.file_index`).

Deletion vectors are in a table that is broadcast, as 64-bit numbers with a bit for each row. It is joined by the number
of the file, and selects rows by their position. A row that finds no bit ends the query: none are made up.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from tailer.events import ChangeType
from tailer.files.partition_values import partition_scalar
from tailer.files.row_bitmaps import WORD_BITS
from tailer.plan import ChangeTask, TaskKind, output_schema
from tailer.schema.columns import physical_name
from tailer.spark.java import Jvm
from tailer.spark.native.file_index import indexed
from tailer.spark.native.native_eligibility import NativeTask
from tailer.spark.source.spark_types import spark_frame

__all__ = ["Columns", "Constants", "numbered", "rows_with_constants"]

_UNKNOWN: Final = "raise_error(concat('no change of this batch is in ', path))"
# A row without a bit must end the query: were it left out, Spark would take the join for an inner one.
_BIT: Final = f"getbit(get(words, int(position div {WORD_BITS})), int(position % {WORD_BITS}))"
_SELECTED: Final = f"coalesce({_BIT}, {_UNKNOWN}) = 1"
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_READ: Final = {
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "mergeSchema": "false",
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
    "parquet.page.verify-checksum.enabled": "true",
}

Constants = dict[str, str]
"""SQL of the constants of a row by their names: `path`, `type`, `version`, `at`, and `given_` with a column's index.

`task` and `others`: as in `NativeTask`. `row`: the position in the file, if that is wanted.
"""


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a task by their source: `stored` in the file, `given` by the log, in their order among all.

    `types`: whether the file has the change types. `vector`: whether rows are selected by position.
    """

    stored: pa.Schema
    given: tuple[int, ...]
    types: bool
    vector: bool


def numbered(count: int) -> list[str]:
    """Return names for stored columns. No constant has one of them."""
    return [f"stored_{index}" for index in range(count)]


def rows_with_constants(
    spark: SparkSession, stored: StructType, columns: Columns, native: Sequence[NativeTask], *, positions: bool
) -> tuple[DataFrame, Constants]:
    """Return the rows of tasks with their stored columns numbered, and the constants of each row."""
    constants = _constants(columns, native)
    if columns.vector:
        return _select_by_vectors(spark, stored, native, constants)
    files = [(found.task.uri, found.size_bytes) for found in native]
    read = indexed(Jvm(spark), stored, files, constants, _READ)
    names = [*numbered(len(stored)), *constants.column_names, "number"]
    known = {**{name: name for name in constants.column_names}, "row": "position"}
    if not positions:
        return read.toDF(*names), known
    return read.select("*", read.metadataColumn("_metadata")["row_index"]).toDF(*names, "position"), known


def _select_by_vectors(
    spark: SparkSession, stored: StructType, native: Sequence[NativeTask], constants: pa.Table
) -> tuple[DataFrame, Constants]:
    """Return the rows that vectors select. Tasks may share a file, which is read once."""
    sizes = {found.task.uri: found.size_bytes for found in native}
    numbers = {uri: number for number, uri in enumerate(sizes)}
    read = indexed(
        Jvm(spark), stored, list(sizes.items()), pa.table({"path": pa.array(list(sizes), pa.string())}), _READ
    )
    rows = read.select("*", read.metadataColumn("_metadata")["row_index"])
    rows = rows.toDF(*numbered(len(stored)), "path", "number", "position")
    constants = constants.drop_columns(["path"])
    words = [found.words for found in native if found.words is not None]
    ends = pa.array(accumulate((len(each) for each in words), initial=0), pa.int32())
    table = constants.append_column("words", pa.ListArray.from_arrays(ends, pa.concat_arrays(words))).append_column(
        "of", pa.array([numbers[found.task.uri] for found in native], pa.int32())
    )
    joined = spark_frame(spark, table).hint("broadcast")
    found = rows.join(joined, rows["number"] == joined["of"], "left").where(_SELECTED)
    # Without the CASE, a condition on a constant would not show that a row has none.
    known = {name: f"CASE WHEN of IS NOT NULL THEN {name} ELSE {_UNKNOWN} END" for name in constants.column_names}
    return found, {**known, "path": "path", "row": "position"}


def _constants(columns: Columns, native: Sequence[NativeTask]) -> pa.Table:
    """Return one row for each task."""
    tasks = [found.task for found in native]
    arrays: dict[str, Any] = {
        "path": pa.array([task.uri for task in tasks], pa.string()),
        "version": pa.array([task.version for task in tasks], pa.int64()),
        "at": pa.array([task.timestamp_ms * 1000 for task in tasks], _TIMESTAMP),
        "task": pa.array([task.index for task in tasks], pa.int64()),
        "others": pa.array([found.others for found in native], pa.int64()),
    }
    if not columns.types:
        arrays["type"] = pa.array([_change_type(task) for task in tasks], pa.string())
    given = {index: _partition_column(tasks, index) for index in columns.given}
    # Spark's reader takes no partition column without a type, and needs none: all its values are null.
    arrays |= {f"given_{index}": values for index, values in given.items() if not pa.types.is_null(values.type)}
    return pa.table(arrays)


def _change_type(task: ChangeTask) -> str:
    return (ChangeType.DELETE if task.kind is TaskKind.DELETE else ChangeType.INSERT).value


def _partition_column(tasks: Sequence[ChangeTask], index: int) -> pa.Array:
    """Return the values of a column that the log has, one for each task."""
    kind = output_schema(tasks[0].schema).field(index).type
    found = []
    for task in tasks:
        column = task.schema.field(index).with_type(kind)
        text = dict(task.partition_values).get(physical_name(column))
        found.append(partition_scalar(text, column, task.table, task.version, task.uri))
    return pa.array(found, kind)
