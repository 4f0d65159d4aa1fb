"""Scans: change rows read by Spark's own Parquet reader.

What the plan knows of a file are its facts (`tailer.spark.native.facts`). Large files with the same facts are a scan of
their own, with the facts as literals: a query that wants only some versions does not read the others. All other files
of one physical schema are one scan, however many versions they are of, because Spark plans a scan in 20 to 30 ms.

Settings of the session that would turn a missing or a broken file into missing rows are set aside for these scans, and
pages are checked by their checksums, as `execute` does.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from threading import Lock
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from tailer.events import CHANGE_TYPE, is_struct
from tailer.plan import TaskKind
from tailer.schema.columns import physical_name
from tailer.spark.native.facts import Columns, can_be_literals, can_be_looked_up, joined, literals, looked_up, numbered
from tailer.spark.native.fits import Fit
from tailer.spark.session import is_remote
from tailer.spark.source.spark_types import spark_schema

__all__ = ["VECTOR_BYTES", "columns_of", "scans", "vector_bytes"]

VECTOR_BYTES: Final = 2**26  # of deletion vectors in one query: every executor has a copy

_LARGE: Final = 2**25  # bytes of files: finding the facts of their rows takes longer than planning a scan
_OWN: Final = 16  # most scans with literals in a query

_LISTED_BY_JOBS: Final = "spark.sql.sources.parallelPartitionDiscovery.threshold"
_LISTED: Final = 4096
_listing: Final = Lock()  # while the setting is another one

_CDC: Final = (TaskKind.CDC_DELETES, TaskKind.CDC_OTHERS)
_UNTYPED: Final = f"{CHANGE_TYPE} is null in some row of "
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
    others: list[Fit] = []
    left = _OWN
    for group in by_facts.values():
        large = len(by_facts) == 1 or sum(found.task.size_bytes for found in group) >= _LARGE
        if large and left and can_be_literals(columns, group):
            left -= 1
            yield group, True
        else:
            others += group
    if others:
        yield others, False


def _shared_facts(found: Fit, columns: Columns) -> object:
    task = found.task
    kind = None if columns.types else task.kind
    return task.version, task.timestamp_ms, kind, task.partition_values


def _scan(spark: SparkSession, columns: Columns, fits: Sequence[Fit], shown: StructType, *, literal: bool) -> DataFrame:
    """Return the rows of tasks with the same columns; `literal`: whether they have the same facts, too."""
    fields = [*columns.stored, *([pa.field(CHANGE_TYPE, pa.string())] if columns.types else [])]
    stored_types = spark_schema(pa.schema(fields))
    uris = sorted({f"file://{found.task.uri}" for found in fits})
    with _listed_by_the_driver(spark):
        read = spark.read.schema(stored_types).options(**_READ).parquet(*uris)
    sql = _functions(spark)
    if literal:
        rows, facts = literals(read, columns, fits[0].task)
    elif can_be_looked_up(columns, fits):
        rows, facts = looked_up(sql, read, columns, fits)
    else:
        rows, facts = joined(spark, read, columns, fits)
    names = numbered(len(stored_types))
    if columns.types:
        facts["type"] = f"coalesce({names[-1]}, raise_error(concat('{_UNTYPED}', {facts['path']})))"
    stored = iter(zip(names, stored_types, strict=True))
    chosen: list[Column] = []
    for index, field in enumerate(shown.fields[:-3]):
        if index in columns.given:
            chosen.append(_cast(sql, facts[f"given_{index}"], field))
        else:
            name, there = next(stored)
            same = there.dataType == field.dataType
            chosen.append(_named(sql, name, field.name) if same else _cast(sql, name, field))
    ends = zip(("type", "version", "at"), shown.names[-3:], strict=True)
    return rows.select(*chosen, *(_named(sql, facts[fact], name) for fact, name in ends))


def _named(sql: Any, source: str, name: str) -> Column:
    """Return SQL under a name. In SQL, also in quotes, Spark would replace `${}` in a name by a setting."""
    named: Column = sql.expr(source).alias(name) if "$" in name else sql.expr(f"{source} AS {_quoted(name)}")
    return named


def _cast(sql: Any, source: str, field: StructField) -> Column:
    shown: Column = sql.expr(source).cast(field.dataType).alias(field.name)
    return shown


@contextmanager
def _listed_by_the_driver(spark: SparkSession) -> Iterator[None]:
    """Have the driver look for up to `_LISTED` files, which are local.

    From 33 files on, Spark would start a job for that, which takes half a second. Through Spark Connect it does: there
    the files are looked for later.
    """
    if is_remote(spark) or int(spark.conf.get(_LISTED_BY_JOBS) or 0) >= _LISTED:
        yield
        return
    with _listing:
        before = spark.conf.get(_LISTED_BY_JOBS) or ""
        spark.conf.set(_LISTED_BY_JOBS, _LISTED)
        try:
            yield
        finally:
            spark.conf.set(_LISTED_BY_JOBS, before)


def _functions(spark: SparkSession) -> Any:
    """Return Spark's functions: those of a session of Spark Connect are other ones, in whatever mode the process is."""
    return import_module("pyspark.sql.connect.functions" if is_remote(spark) else "pyspark.sql.functions")


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
