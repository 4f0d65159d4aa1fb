"""Scans: change rows read by Spark's own Parquet reader.

What the plan knows of a file are its *facts*: change type, version, timestamp, partition values, and the rows that its
deletion vectors leave. Large files with the same facts are a scan of their own, with the facts as literals. All others
of one physical schema are one scan, however many versions they are of: Spark plans a scan in 20 to 30 ms. Their facts
are a small table, joined by the path that Spark gives with each row, so a file that two versions share is read once.
The bits of a deletion vector are words of 64 rows, looked up by the row's position.

Facts that are joined are broadcast. A row whose path has none ends the query: nothing is left out or made up. Settings
of the session that would turn a missing or a broken file into missing rows are set aside for these scans, and pages are
checked by their checksums, as `execute` does.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import accumulate
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import StructType

from tailer.delta.partition_values import partition_scalar
from tailer.events import CHANGE_TYPE, ChangeType, is_struct
from tailer.plan import ChangeTask, TaskKind, output_schema
from tailer.read.row_bitmaps import WORD_BITS
from tailer.schema.columns import physical_name
from tailer.spark.native.fits import Fit
from tailer.spark.session import is_remote
from tailer.spark.source.spark_types import spark_schema

__all__ = ["VECTOR_BYTES", "Columns", "columns_of", "scans", "vector_bytes"]

VECTOR_BYTES: Final = 2**26  # of deletion vectors in one query: every executor has a copy

_LARGE: Final = 2**25  # bytes of files: joining their rows takes longer than planning a scan
_OWN: Final = 16  # scans with literals

_CDC: Final = (TaskKind.CDC_DELETES, TaskKind.CDC_OTHERS)
# Of a row without facts the words are null. Were it left out for that, Spark would take the join for an inner one.
_SELECTED: Final = f"words IS NULL OR getbit(words[int(position div {WORD_BITS})], int(position % {WORD_BITS})) = 1"
_UNTYPED: Final = f"{CHANGE_TYPE} is null in some row of "
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_READ: Final = {
    "__globPaths__": "false",  # a bracket in a path is a bracket
    "recursiveFileLookup": "true",  # and no part of a path is a partition value
    "pathGlobFilter": "*",
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "mergeSchema": "false",
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
    "parquet.page.verify-checksum.enabled": "true",
}


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a task by their source: `stored` in the file, `given` by the log, in their order among all.

    `types`: whether the file has the change types. `vector`: whether rows are selected by position.
    """

    stored: pa.Schema
    given: tuple[int, ...]
    types: bool
    vector: bool


def vector_bytes(found: Fit) -> int:
    """Return the size of the bits that select the rows of a task."""
    return 0 if found.words is None else int(found.words.nbytes)


def scans(spark: SparkSession, fits: Iterable[Fit], shown: StructType) -> list[DataFrame]:
    """Return the rows of tasks, all in the columns `shown`: those of the tasks' schemas, then those of the feed."""
    by_columns: dict[Columns, list[Fit]] = {}
    for each in fits:
        by_columns.setdefault(columns_of(each), []).append(each)
    return [
        _scan(spark, columns, group, shown, literal=literal)
        for columns, found in by_columns.items()
        for group, literal in _groups(columns, found)
    ]


def columns_of(found: Fit) -> Columns:
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


def _groups(columns: Columns, fits: Sequence[Fit]) -> Iterator[tuple[list[Fit], bool]]:
    """Yield the tasks of each scan, and whether their facts are literals."""
    by_facts: dict[object, list[Fit]] = {}
    for found in fits:
        by_facts.setdefault(_shared_facts(found, columns), []).append(found)
    joined: list[Fit] = []
    left = _OWN
    for group in by_facts.values():
        large = len(by_facts) == 1 or sum(found.task.size_bytes for found in group) >= _LARGE
        if large and left and _has_literals(columns, group):
            left -= 1
            yield group, True
        else:
            joined += group
    if joined:
        yield joined, False


def _shared_facts(found: Fit, columns: Columns) -> object:
    task = found.task
    kind = None if columns.types else task.kind
    return task.version, task.timestamp_ms, kind, task.partition_values


def _has_literals(columns: Columns, group: Sequence[Fit]) -> bool:
    """Return whether a scan of tasks with the same facts needs no join. It would read a file only once."""
    if columns.vector or len({found.task.uri for found in group}) < len(group):
        return False
    values = (_given([group[0].task], index) for index in columns.given)
    return all(_is_plain(value) for value in values)


def _is_plain(value: pa.Array) -> bool:
    """Return whether `lit` and a cast make the value again, whatever the settings of the session."""
    kind = value.type
    plain: bool = pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)
    return plain or value.null_count == 1


def _scan(spark: SparkSession, columns: Columns, fits: Sequence[Fit], shown: StructType, *, literal: bool) -> DataFrame:
    """Return the rows of tasks with the same columns; `literal`: and with the same facts."""
    fields = [*columns.stored, *([pa.field(CHANGE_TYPE, pa.string())] if columns.types else [])]
    stored_types = spark_schema(pa.schema(fields))
    uris = sorted({f"file://{found.task.uri}" for found in fits})
    read = spark.read.schema(stored_types).options(**_READ).parquet(*uris)
    sql = _functions(spark)
    names = [_quoted(name) for name in stored_types.names] if literal else list(_numbered(stored_types))
    path = sql.lit(fits[0].task.uri) if literal else sql.col("path")
    types = (
        sql.coalesce(sql.col(names[-1]), sql.raise_error(sql.concat(sql.lit(_UNTYPED), path)))
        if columns.types
        else None
    )
    if literal:
        found, facts = read, _literals(sql, columns, fits[0].task, types)
    else:
        found, facts = _joined(spark, read, columns, fits), _joined_facts(sql, columns, types)
    ends = dict(zip(shown.names[-3:], (facts["type"], facts["version"], facts["at"]), strict=True))
    # Spark analyses a DataFrame whenever it is changed, so it is changed once.
    if literal and _is_shown_as_it_is(columns, stored_types, shown):
        return found.withColumns(ends)
    stored = iter(zip(names, stored_types, strict=True))
    chosen: list[Column | str] = []
    for index, field in enumerate(shown.fields[:-3]):
        if index in columns.given:
            chosen.append(facts[f"given_{index}"].cast(field.dataType).alias(field.name))
            continue
        name, there = next(stored)
        source = sql.col(name) if there.dataType == field.dataType else sql.col(name).cast(field.dataType)
        chosen.append(source.alias(field.name))
    return found.select(*chosen, *(fact.alias(name) for name, fact in ends.items()))


def _is_shown_as_it_is(columns: Columns, stored: StructType, shown: StructType) -> bool:
    """Return whether the stored columns need no more than those of the feed beside them."""
    own = stored.fields[: len(columns.stored)]
    same = [(field.name, field.dataType) for field in own] == [
        (field.name, field.dataType) for field in shown.fields[:-3]
    ]
    return same and len({name.lower() for name in shown.names}) == len(shown)


def _functions(spark: SparkSession) -> Any:
    """Return Spark's functions: those of a session of Spark Connect are other ones, in whatever mode the process is."""
    return import_module("pyspark.sql.connect.functions" if is_remote(spark) else "pyspark.sql.functions")


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _numbered(stored: StructType) -> Iterator[str]:
    """Yield names for stored columns that no fact has."""
    return (f"stored_{index}" for index in range(len(stored)))


def _joined(spark: SparkSession, read: DataFrame, columns: Columns, fits: Sequence[Fit]) -> DataFrame:
    """Return the rows read, with their columns numbered, and the facts of their tasks beside them."""
    metadata = read.metadataColumn("_metadata")
    added = {"path": metadata["file_path"]}
    if columns.vector:
        added["position"] = metadata["row_index"]
    rows = read.select("*", *added.values()).toDF(*_numbered(read.schema), *added)
    facts = spark.createDataFrame(_facts(columns, fits, _spelled(read)))
    found = rows.join(facts.hint("broadcast"), rows["path"] == facts["file"], "left")
    return found.where(_SELECTED) if columns.vector else found


def _joined_facts(sql: Any, columns: Columns, types: Column | None) -> dict[str, Column]:
    """Return the facts of a row by their names. Where a file has none it is an error: a filter would leave out null."""
    facts = {name: sql.col(name) for name in ("version", "at", *(f"given_{index}" for index in columns.given))}
    facts["type"] = sql.col("type") if types is None else types
    unknown = sql.raise_error(sql.concat(sql.lit("no change of this batch is in "), sql.col("path")))
    return {name: sql.when(sql.col("file").isNull(), unknown).otherwise(fact) for name, fact in facts.items()}


def _literals(sql: Any, columns: Columns, task: ChangeTask, types: Column | None) -> dict[str, Column]:
    """Return the facts of a task by their names."""
    facts = {
        "type": sql.lit(_change_type(task)) if types is None else types,
        "version": sql.lit(task.version).cast("long"),
        "at": sql.timestamp_micros(sql.lit(task.timestamp_ms * 1000)),
    }
    for index in columns.given:
        facts[f"given_{index}"] = sql.lit(_given([task], index)[0].as_py())
    # As those that are joined, they may be null as far as Spark knows before it optimizes the query.
    return {name: sql.when(sql.lit(col=False), None).otherwise(fact) for name, fact in facts.items()}


def _change_type(task: ChangeTask) -> str:
    return (ChangeType.DELETE if task.kind is TaskKind.DELETE else ChangeType.INSERT).value


def _facts(columns: Columns, fits: Sequence[Fit], spelled: Mapping[str, str]) -> pa.Table:
    """Return one row for each task. `spelled`: the path of each file as Spark gives it with rows."""
    tasks = [found.task for found in fits]
    arrays: dict[str, Any] = {
        "file": pa.array([spelled[task.uri] for task in tasks], pa.string()),
        "version": pa.array([task.version for task in tasks], pa.int64()),
        "at": pa.array([task.timestamp_ms * 1000 for task in tasks], _TIMESTAMP),
    }
    if not columns.types:
        arrays["type"] = pa.array([_change_type(task) for task in tasks], pa.string())
    for index in columns.given:
        arrays[f"given_{index}"] = _given(tasks, index)
    if columns.vector:
        words = [found.words for found in fits if found.words is not None]
        ends = pa.array(accumulate((len(each) for each in words), initial=0), pa.int32())
        arrays["words"] = pa.ListArray.from_arrays(ends, pa.concat_arrays(words))
    return pa.table(arrays)


def _given(tasks: Sequence[ChangeTask], index: int) -> pa.Array:
    """Return the values of a column that the log has, one for each task."""
    kind = output_schema(tasks[0].schema).field(index).type
    found = []
    for task in tasks:
        text = dict(task.partition_values).get(physical_name(task.schema.field(index)))
        found.append(partition_scalar(text, kind, task.table, task.version, task.uri))
    return pa.array(found, kind)


def _spelled(read: DataFrame) -> dict[str, str]:
    """Return how Spark spells each path in `_metadata.file_path`: quoted as in a URI, by rules of its own."""
    uris = (uri.removeprefix("file://") for uri in read.inputFiles())
    return {unquote(uri): f"file:{uri}" for uri in uris}
