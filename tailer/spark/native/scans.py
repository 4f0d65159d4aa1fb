"""Scans: change rows read by Spark's own Parquet reader, over an explicit list of files.

All files of one physical schema are one scan, however many versions they are of, because Spark plans a scan in 20 to 30
ms. Settings of the session that would turn a missing or a broken file into missing rows are set aside for these scans,
and pages are checked by their checksums, as `execute` does.

The constants of a file are what the plan knows of it: change type, version, timestamp and partition values. Spark takes
them for the values of partition columns: the same for all rows of a file, so they cost nothing for each row, and a
query that wants some of them does not open the other files. Spark finds partition values in the paths of files. Here it
asks a Java class of ours, `file_index.java`. Spark's own compiler of queries (Janino) compiles it, on the driver alone.
Python could be called instead, but takes a millisecond for the nine objects of a file. At Spark 4.3: see
`tailer.spark.java`.

Deletion vectors are in a table that is broadcast, as 64-bit numbers with a bit for each row. It is joined by the number
of the file, and selects rows by their position. A row that finds no bit ends the query: none are made up.

Files without rows must not be in a scan: with the setting `spark.sql.optimizer.metadataOnly`, Spark takes a partition
value for that of a row.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files as files_of
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import StructField, StructType

from tailer.events import CHANGE_TYPE, ChangeType, is_struct
from tailer.files.partition_values import partition_scalar
from tailer.files.row_bitmaps import WORD_BITS
from tailer.plan import ChangeTask, TaskKind, output_schema
from tailer.schema.columns import physical_name
from tailer.spark.java import Jvm
from tailer.spark.native.native_eligibility import NativeTask
from tailer.spark.source.spark_types import quoted, spark_frame, spark_schema

__all__ = ["VECTOR_BYTES", "scans", "vector_bytes"]

_SOURCES: Final = "org.apache.spark.sql.execution.datasources"
_NUMBER: Final = "number"
_JAVA: Final = files_of(__package__).joinpath("file_index.java")


def indexed(
    java: Jvm, stored: StructType, files: Sequence[tuple[str, int]], constants: pa.Table, options: Mapping[str, str]
) -> DataFrame:
    """Return the rows of files: the columns `stored`, then those of `constants`, then the number of each row's file.

    `files`: the path and the size in bytes of each. `constants`: a row for each file. Use columns by their place: names
    of constants are changed where files have a column with such a name. `options`: of Spark's Parquet reader.
    """
    values = constants.append_column(_NUMBER, pa.array(range(len(files)), pa.int32()))
    prefix = "constant_"
    while any(name.lower().startswith(prefix) for name in stored.names):
        prefix += "_"
    rows = spark_frame(java.spark, values.rename_columns([f"{prefix}{name}" for name in values.column_names]))
    plan: Any = rows._jdf.queryExecution()  # noqa: SLF001 - the only way to rows as Spark has them inside
    schema = plan.analyzed().schema()
    index = java.compile("tailer.Files", _JAVA.read_text("utf-8"))
    lines = "\n".join(f"{size} {path}" for path, size in files)
    relation = java.lookup(f"{_SOURCES}.HadoopFsRelation")(
        java.create(index, java.session, schema, plan.executedPlan().executeCollect(), lines),
        schema,
        java.lookup("org.apache.spark.sql.types.DataType").fromJson(stored.json()).asNullable(),
        java.lookup("scala.None$"),
        java.lookup(f"{_SOURCES}.parquet.ParquetFileFormat")(),
        java.lookup("org.apache.spark.api.python.PythonUtils").toScalaMap(dict(options)),
        java.session,
    )
    return DataFrame(java.session.baseRelationToDataFrame(relation), java.spark)


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
    files = [(file.task.uri, file.size_bytes) for file in native]
    read = indexed(Jvm(spark), stored, files, constants, _READ)
    names = [*numbered(len(stored)), *constants.column_names, "number"]
    sources = {**{name: name for name in constants.column_names}, "row": "position"}
    if not positions:
        return read.toDF(*names), sources
    return read.select("*", read.metadataColumn("_metadata")["row_index"]).toDF(*names, "position"), sources


def _select_by_vectors(
    spark: SparkSession, stored: StructType, native: Sequence[NativeTask], constants: pa.Table
) -> tuple[DataFrame, Constants]:
    """Return the rows that vectors select. Tasks may share a file, which is read once."""
    sizes = {file.task.uri: file.size_bytes for file in native}
    numbers = {uri: number for number, uri in enumerate(sizes)}
    read = indexed(
        Jvm(spark), stored, list(sizes.items()), pa.table({"path": pa.array(list(sizes), pa.string())}), _READ
    )
    rows = read.select("*", read.metadataColumn("_metadata")["row_index"])
    rows = rows.toDF(*numbered(len(stored)), "path", "number", "position")
    constants = constants.drop_columns(["path"])
    words = [file.words for file in native if file.words is not None]
    ends = pa.array(accumulate(map(len, words), initial=0), pa.int32())
    table = constants.append_column("words", pa.ListArray.from_arrays(ends, pa.concat_arrays(words))).append_column(
        "of", pa.array([numbers[file.task.uri] for file in native], pa.int32())
    )
    joined = spark_frame(spark, table).hint("broadcast")
    selected = rows.join(joined, rows["number"] == joined["of"], "left").where(_SELECTED)
    # Without the CASE, a condition on a constant would not show that a row has none.
    sources = {name: f"CASE WHEN of IS NOT NULL THEN {name} ELSE {_UNKNOWN} END" for name in constants.column_names}
    return selected, {**sources, "path": "path", "row": "position"}


def _constants(columns: Columns, native: Sequence[NativeTask]) -> pa.Table:
    tasks = [file.task for file in native]
    arrays: dict[str, Any] = {
        "path": pa.array([task.uri for task in tasks], pa.string()),
        "version": pa.array([task.version for task in tasks], pa.int64()),
        "at": pa.array([task.timestamp_ms * 1000 for task in tasks], _TIMESTAMP),
        "task": pa.array([task.index for task in tasks], pa.int64()),
        "others": pa.array([file.others for file in native], pa.int64()),
    }
    if not columns.types:
        types = [ChangeType.DELETE if task.kind is TaskKind.DELETE else ChangeType.INSERT for task in tasks]
        arrays["type"] = pa.array([change_type.value for change_type in types], pa.string())
    given = {index: _partition_column(tasks, index) for index in columns.given}
    # Spark's reader takes no partition column without a type, and needs none: all its values are null.
    arrays |= {f"given_{index}": values for index, values in given.items() if not pa.types.is_null(values.type)}
    return pa.table(arrays)


def _partition_column(tasks: Sequence[ChangeTask], index: int) -> pa.Array:
    """Return the values of a column that the log has, one for each task."""
    kind = output_schema(tasks[0].schema).field(index).type
    values = []
    for task in tasks:
        column = task.schema.field(index).with_type(kind)
        text = dict(task.partition_values).get(physical_name(column))
        values.append(partition_scalar(text, column, task.table, task.version, task.uri))
    return pa.array(values, kind)


VECTOR_BYTES: Final = 2**26  # of deletion vectors in one query: every executor has a copy

_FEED: Final = ("type", "version", "at")
_POSITIONS: Final = ("task", "row")
_CDC: Final = (TaskKind.CDC_DELETES, TaskKind.CDC_OTHERS)
_UNTYPED: Final = f"{CHANGE_TYPE} is null in some row of "


def vector_bytes(file: NativeTask) -> int:
    """Return the size of the bits that select the rows of a task."""
    return 0 if file.words is None else int(file.words.nbytes)


def scans(
    spark: SparkSession, native: Iterable[NativeTask], shown: StructType, *, positions: bool = False
) -> list[DataFrame]:
    """Return the rows of tasks, all in the columns `shown`: those of the tasks' schemas, then those of the feed.

    `positions`: whether those of `tailer.spark.source.views.POSITIONS` come after them.
    """
    by_columns: dict[Columns, list[NativeTask]] = {}
    for file in native:
        if file.num_rows:
            by_columns.setdefault(columns_of(file), []).append(file)
    ends = [*_FEED, *(_POSITIONS if positions else ())]
    return [_scan(spark, columns, group, shown, ends) for columns, group in by_columns.items()]


def columns_of(file: NativeTask) -> Columns:
    """Return the columns of a task by their source."""
    task, partitions = file.task, dict(file.task.partition_values)
    given = {
        index
        for index, field in enumerate(task.schema)
        if physical_name(field) in partitions or pa.types.is_null(field.type)
    }
    stored = [_physical(field) for index, field in enumerate(task.schema) if index not in given]
    return Columns(pa.schema(stored), tuple(sorted(given)), task.kind in _CDC, file.words is not None)


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
    return sql.expr(source).alias(name) if "$" in name else sql.expr(f"{source} AS {quoted(name)}")


def _cast(source: str, field: StructField) -> Column:
    return sql.expr(source).cast(field.dataType).alias(field.name)
