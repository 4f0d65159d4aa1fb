"""Scans: change rows read by Spark's own Parquet reader.

All files of one physical schema are one scan, however many versions they are of, because Spark plans a scan in 20 to 30
ms. What the plan knows of a file are its constants (`tailer.spark.native.file_constants`).

Settings of the session that would turn a missing or a broken file into missing rows are set aside for these scans, and
pages are checked by their checksums, as `execute` does.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import StructField, StructType

from tailer.events import CHANGE_TYPE, ChangeType, is_struct
from tailer.plan import TaskKind
from tailer.schema.columns import physical_name
from tailer.spark.native.file_constants import Columns, numbered, rows_with_constants
from tailer.spark.native.native_eligibility import NativeTask
from tailer.spark.source.spark_types import spark_schema

__all__ = ["VECTOR_BYTES", "columns_of", "scans", "vector_bytes"]

VECTOR_BYTES: Final = 2**26  # of deletion vectors in one query: every executor has a copy

_FEED: Final = ("type", "version", "at")
_POSITIONS: Final = ("task", "row")
_CDC: Final = (TaskKind.CDC_DELETES, TaskKind.CDC_OTHERS)
_UNTYPED: Final = f"{CHANGE_TYPE} is null in some row of "


def vector_bytes(found: NativeTask) -> int:
    """Return the size of the bits that select the rows of a task."""
    return 0 if found.words is None else int(found.words.nbytes)


def scans(
    spark: SparkSession, native: Iterable[NativeTask], shown: StructType, *, positions: bool = False
) -> list[DataFrame]:
    """Return the rows of tasks, all in the columns `shown`: those of the tasks' schemas, then those of the feed.

    `positions`: whether those of `tailer.spark.source.views.POSITIONS` come after them.
    """
    by_columns: dict[Columns, list[NativeTask]] = {}
    for each in native:
        if each.num_rows:
            by_columns.setdefault(columns_of(each), []).append(each)
    ends = [*_FEED, *(_POSITIONS if positions else ())]
    return [_scan(spark, columns, group, shown, ends) for columns, group in by_columns.items()]


def columns_of(found: NativeTask) -> Columns:
    """Return the columns of a task by their source."""
    task, partitions = found.task, dict(found.task.partition_values)
    given = {
        index
        for index, field in enumerate(task.schema)
        if physical_name(field) in partitions or pa.types.is_null(field.type)
    }
    stored = [_physical(field) for index, field in enumerate(task.schema) if index not in given]
    return Columns(pa.schema(stored), tuple(sorted(given)), task.kind in _CDC, found.words is not None)


def _physical(field: pa.Field) -> pa.Field:
    """Return a column as it is in files: physical names on every level, and no metadata."""
    return pa.field(physical_name(field), _physical_type(field.type))


def _physical_type(kind: pa.DataType) -> pa.DataType:
    if is_struct(kind):
        return pa.struct([_physical(field) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _physical_type(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_physical_type(kind.key_type), _physical_type(kind.item_type))
    return kind


def _scan(
    spark: SparkSession, columns: Columns, native: Sequence[NativeTask], shown: StructType, ends: Sequence[str]
) -> DataFrame:
    """Return the rows of tasks with the same columns. `ends`: the constants at the end of `shown`."""
    fields = [*columns.stored, *([pa.field(CHANGE_TYPE, pa.string())] if columns.types else [])]
    stored_types = spark_schema(pa.schema(fields))
    rows, constants = rows_with_constants(spark, stored_types, columns, native, positions="row" in ends)
    names = numbered(len(stored_types))
    if columns.types:
        constants["type"] = f"coalesce({names[-1]}, raise_error(concat('{_UNTYPED}', {constants['path']})))"
        constants["task"] = (
            f"CASE WHEN {names[-1]} = '{ChangeType.DELETE}' THEN {constants['task']} ELSE {constants['others']} END"
        )
    stored = iter(zip(names, stored_types, strict=True))
    chosen: list[Column] = []
    for index, field in enumerate(shown.fields[: -len(ends)]):
        if index in columns.given:
            chosen.append(_cast(constants.get(f"given_{index}", "NULL"), field))
        else:
            name, there = next(stored)
            same = there.dataType == field.dataType
            chosen.append(_named(name, field.name) if same else _cast(name, field))
    others = zip(ends, shown.names[-len(ends) :], strict=True)
    return rows.select(*chosen, *(_named(constants[constant], name) for constant, name in others))


def _named(source: str, name: str) -> Column:
    """Return SQL under a name. In SQL, also in quotes, Spark would replace `${}` in a name by a setting."""
    return sql.expr(source).alias(name) if "$" in name else sql.expr(f"{source} AS {_quoted(name)}")


def _cast(source: str, field: StructField) -> Column:
    return sql.expr(source).cast(field.dataType).alias(field.name)


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
