"""Facts of a scan's rows: what the plan knows of their file, and the file does not say.

These are change type, version, timestamp and partition values. They get to the rows in one of three ways:

- as literals, where all files of a scan have the same facts;
- looked up by the path that Spark gives with each row, in a map that is part of the query. Spark shows the map wherever
  it shows the query, so this is for few files;
- joined by that path with a table that is broadcast. Deletion vectors are joined, too, as 64-bit numbers with a bit for
  each row, and select rows by their position.

If a query asks for facts, a row whose path has none ends it: none are made up.

Facts are SQL texts: PySpark takes a millisecond for each call that makes an expression. Texts from the log are in them
as hexadecimal bytes.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from tailer.delta.partition_values import partition_scalar
from tailer.events import ChangeType
from tailer.plan import ChangeTask, TaskKind, output_schema
from tailer.read.row_bitmaps import WORD_BITS
from tailer.schema.columns import physical_name
from tailer.spark.native.fits import Fit

__all__ = ["Columns", "Facts", "can_be_literals", "can_be_looked_up", "joined", "literals", "looked_up", "numbered"]

# Spark keeps the plans of a thousand queries, each with the map several times.
_LOOKED_UP_FILES: Final = 128
_LOOKED_UP_LENGTH: Final = 2**14  # of the paths and partition values together, in characters

_UNKNOWN: Final = "raise_error(concat('no change of this batch is in ', path))"
# A row without facts has no words. It must end the query: were it left out, Spark would take the join for an inner one.
_SELECTED: Final = (
    f"CASE WHEN file IS NULL THEN {_UNKNOWN} "
    f"ELSE getbit(words[int(position div {WORD_BITS})], int(position % {WORD_BITS})) = 1 END"
)
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")

Facts = dict[str, str]
"""SQL of the facts of a row by their names: `path`, `type`, `version`, `at`, and `given_` with a column's index."""


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
    """Return names for stored columns. No fact has one of them."""
    return [f"stored_{index}" for index in range(count)]


def can_be_literals(columns: Columns, group: Sequence[Fit]) -> bool:
    """Return whether the facts of tasks that have the same ones can be literals."""
    if columns.vector or _share_files(group):
        return False
    values = (_given([group[0].task], index) for index in columns.given)
    return all(_is_plain(value.type) or value.null_count == 1 for value in values)


def literals(read: DataFrame, columns: Columns, task: ChangeTask) -> tuple[DataFrame, Facts]:
    """Return the rows read, with their columns numbered, and the facts of tasks that are the same for all."""
    facts = {
        "path": _literal(task.uri),
        "type": f"'{_change_type(task)}'",
        "version": f"CAST({task.version} AS BIGINT)",
        "at": f"timestamp_micros(CAST({task.timestamp_ms * 1000} AS BIGINT))",
    }
    for index in columns.given:
        facts[f"given_{index}"] = _literal(_given([task], index)[0].as_py())
    # Columns have the same schema whichever way their facts come: those that are joined may be null.
    known = {name: f"CASE WHEN false THEN NULL ELSE {fact} END" for name, fact in facts.items()}
    return read.toDF(*numbered(len(read.columns))), known


def can_be_looked_up(columns: Columns, fits: Sequence[Fit]) -> bool:
    """Return whether the facts of tasks are few, are of types that JSON has, and are of one task for each file."""
    schema = output_schema(fits[0].task.schema)
    if columns.vector or len(fits) > _LOOKED_UP_FILES or _share_files(fits):
        return False
    if not all(_is_plain(schema.field(index).type) for index in columns.given):
        return False
    texts = (text for found in fits for text in (found.task.uri, *dict(found.task.partition_values).values()))
    return sum(len(text) for text in texts if text is not None) <= _LOOKED_UP_LENGTH


def looked_up(sql: Any, read: DataFrame, columns: Columns, fits: Sequence[Fit]) -> tuple[DataFrame, Facts]:
    """Return the rows read, with their columns numbered, and the facts of each row."""
    facts = _facts(columns, fits, _spelled(read))
    facts = facts.set_column(facts.schema.get_field_index("at"), "at", facts["at"].cast(pa.int64()))
    fields = ", ".join(f"{field.name}: {_json_type(field.type)}" for field in facts.schema)
    keys = ", ".join(map(_key, facts["file"].to_pylist()))
    found = sql.from_json(sql.lit(json.dumps(facts.to_pylist())), f"array<struct<{fields}>>")
    path = read.metadataColumn("_metadata")["file_path"]
    own = sql.try_element_at(sql.map_from_arrays(sql.expr(f"array({keys})"), found), sql.xxhash64(path))
    rows = read.select("*", path, own).toDF(*numbered(len(read.columns)), "path", "facts")
    known = _or_error("facts.file = path", {name: f"facts.{name}" for name in _names(facts)})
    return rows, {**known, "at": f"timestamp_micros({known['at']})"}


def joined(spark: SparkSession, read: DataFrame, columns: Columns, fits: Sequence[Fit]) -> tuple[DataFrame, Facts]:
    """Return the rows read, with their columns numbered, and the facts of each row.

    If tasks share a file, it is read once.
    """
    metadata = read.metadataColumn("_metadata")
    added = {"path": metadata["file_path"]}
    if columns.vector:
        added["position"] = metadata["row_index"]
    rows = read.select("*", *added.values()).toDF(*numbered(len(read.columns)), *added)
    facts = _facts(columns, fits, _spelled(read))
    table = spark.createDataFrame(_with_words(facts, fits) if columns.vector else facts)
    found = rows.join(table.hint("broadcast"), rows["path"] == table["file"], "left")
    known = _or_error("file IS NOT NULL", {name: name for name in _names(facts)})
    return found.where(_SELECTED) if columns.vector else found, known


def _or_error(is_known: str, facts: Facts) -> Facts:
    """Return the facts, or an error where they are not known: a filter would not show that they are null."""
    known = {name: f"CASE WHEN {is_known} THEN {fact} ELSE {_UNKNOWN} END" for name, fact in facts.items()}
    return {"path": "path", **known}


def _key(path: str) -> str:
    """Return SQL of a number for a path: Spark finds it faster than a text. The path itself is compared besides."""
    return f"xxhash64({_bytes(path)})"


def _bytes(text: str) -> str:
    return f"X'{text.encode().hex()}'"


def _literal(value: str | int | bool | None) -> str:
    return f"CAST({_bytes(value)} AS STRING)" if isinstance(value, str) else json.dumps(value)


def _share_files(fits: Sequence[Fit]) -> bool:
    return len({found.task.uri for found in fits}) < len(fits)


def _is_plain(kind: pa.DataType) -> bool:
    """Return whether values of `kind` stay the same through SQL or JSON and a cast, whatever the session's settings."""
    return bool(pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind))


def _json_type(kind: pa.DataType) -> str:
    """Return Spark's type for plain values in JSON."""
    if pa.types.is_boolean(kind):
        return "boolean"
    return "bigint" if pa.types.is_integer(kind) else "string"


def _names(facts: pa.Table) -> list[str]:
    return [name for name in facts.column_names if name != "file"]


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
    return pa.table(arrays)


def _with_words(facts: pa.Table, fits: Sequence[Fit]) -> pa.Table:
    words = [found.words for found in fits if found.words is not None]
    ends = pa.array(accumulate((len(each) for each in words), initial=0), pa.int32())
    return facts.append_column("words", pa.ListArray.from_arrays(ends, pa.concat_arrays(words)))


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
