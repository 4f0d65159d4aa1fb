"""Decide which tasks Spark's Parquet reader can read natively: exactly as `tailer.read.execute` does.

`execute` finds columns by field id, by physical name and without regard to case; it casts what other writers store with
other types, and refuses what cannot be cast. Spark's reader knows names and a few casts, and some of its settings turn
an error into null or into a missing row. So a file is left to Spark only if nothing of that matters: each column of the
task is in the file under its own name and with its own type, or with a narrower one that Spark widens, or not at all.
A struct has all its fields there.

A timestamp of 96 bits is what Spark makes of it, both here and in `execute`; only one beyond all timestamps, which no
writer of Spark's makes, is refused by `execute` and wraps in Spark.

The footer decides who reads a file, before the query runs. A task whose footer or deletion vector cannot be read is for
`execute`, which then ends the query with the right error.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tailer.errors import TailerError
from tailer.events import CHANGE_TYPE, has_variant
from tailer.plan import ROW_TRACKING, ChangeTask, TaskKind
from tailer.read.data_files import DataFiles
from tailer.read.execute import open_footer, selected
from tailer.read.parquet.legacy_datetimes import OldCalendar
from tailer.schema.columns import DEFAULT, FIELD_ID, is_absent, physical_name, widens
from tailer.schema.text_types import char_lengths

__all__ = ["ExecutedTask", "NativeTask", "choose_reader", "selects_nothing"]

_SPARKS_WRITER: Final = "parquet-mr"
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_ROW_INDEX: Final = "_tmp_metadata_row_index"
_CDC: Final = (TaskKind.CDC_DELETES, TaskKind.CDC_OTHERS)
_CHANGE_TYPES: Final = pa.field(CHANGE_TYPE, pa.string())


@dataclass(frozen=True, slots=True)
class NativeTask:
    """A task for Spark's reader, the size of its file in bytes, and how many rows that has.

    `words`: the rows that deletion vectors leave, a bit for each; None: all. `others`: of the deletes of a change file,
    the number of the task with its other rows.
    """

    task: ChangeTask
    size_bytes: int
    num_rows: int
    words: pa.Array | None
    others: int | None = None


@dataclass(frozen=True, slots=True)
class ExecutedTask:
    """A task for `execute`, and why."""

    task: ChangeTask
    reason: str


def choose_reader(task: ChangeTask, files: DataFiles, others: int | None = None) -> NativeTask | ExecutedTask:
    """Choose the reader of a task by its plan and by the footer of its file. `others`: see `NativeTask`."""
    reason = _task_obstacle(task, files)
    if reason is not None:
        return ExecutedTask(task, reason)
    try:
        with open_footer(task, files) as file:
            reason, num_rows = _footer_obstacle(task, file), file.metadata.num_rows
        if reason is not None:
            return ExecutedTask(task, reason)
        return NativeTask(task, Path(task.uri).stat().st_size, num_rows, selected(task, num_rows, files), others)
    except (TailerError, OSError) as error:
        return ExecutedTask(task, str(error))


def selects_nothing(task: ChangeTask, files: DataFiles) -> bool:
    """Return whether deletion vectors alone show that the task has no row, as where a vector has grown."""
    if task.include is None or task.exclude is None:
        return False
    choice = choose_reader(task, files)
    return isinstance(choice, NativeTask) and pc.all(pc.equal(choice.words, 0)).as_py() is True


def _task_obstacle(task: ChangeTask, files: DataFiles) -> str | None:
    if task.reader is not None or not files.is_local(task.uri):
        return "it is not a local Parquet file"
    if not task.uri.isprintable():
        return "its path has characters that cannot be shown"
    if PurePosixPath(task.uri).name.startswith(("_", ".")):
        return "Spark takes files with such a name for hidden ones"
    if task.refinement is not None:
        return "its rows were compared"
    if task.where is not None:
        return "its rows must fulfil a condition"
    if task.select is not None:
        return "some of its columns are computed"
    if any(has_variant(field.type) for field in task.schema):
        return "it has a Variant"
    if any(map(char_lengths, _stored_columns(task))):
        return "it has a CHAR, which must be padded"
    if any(field.metadata and ROW_TRACKING in field.metadata for field in task.schema):
        return "row ids are wanted"
    return None


def _footer_obstacle(task: ChangeTask, file: pq.ParquetFile) -> str | None:
    there = file.schema_arrow
    if OldCalendar.of(file, task) is not None:
        return "its times may be of an old calendar"
    if _ROW_INDEX in map(str.lower, (*there.names, *map(physical_name, task.schema))):
        return f"Spark takes a column {_ROW_INDEX} for one of its own"
    columns = [file.schema.column(index) for index in range(len(file.schema))]
    leaves = {column.path: column.physical_type for column in columns}
    if "INT96" in leaves.values() and not file.metadata.created_by.startswith(_SPARKS_WRITER):
        return "another writer than Spark's has written timestamps of 96 bits"  # a setting changes these
    wanted = [*_stored_columns(task), *([_CHANGE_TYPES] if task.kind in _CDC else [])]
    if task.kind in _CDC and CHANGE_TYPE not in there.names:
        return f"it has no column {CHANGE_TYPE}"
    return _column_obstacle(wanted, list(there), leaves)


def _stored_columns(task: ChangeTask) -> Iterator[pa.Field]:
    """Yield the columns that a task takes from its file, if that has them."""
    partitions = dict(task.partition_values)
    for field in task.schema:
        if physical_name(field) not in partitions and not pa.types.is_null(field.type) and not is_absent(field):
            yield field


def _column_obstacle(
    wanted: Iterable[pa.Field], stored: list[pa.Field], leaves: Mapping[str, str], above: str = ""
) -> str | None:
    """Return how the fields of one level differ from those of the file; None if they do not.

    A column that the file lacks is null. `leaves`: the physical type of each path in the file. `above`: where the
    fields are.
    """
    names = [field.name for field in stored]
    if len({name.lower() for name in names}) < len(names):
        return "some names differ only by case"
    numbers = {number for field in stored if (number := _field_id(field)) is not None}
    for field in wanted:
        name, number = physical_name(field), _field_id(field)
        if name not in names:
            if DEFAULT in (field.metadata or {}):
                return f"column {field.name} has a default, which Spark does not know"
            if above:
                # If a query asks for no other field of the struct, settings decide whether the struct is null, too.
                return f"the file has no field {field.name} in {above.removesuffix('.')}"
            if name.lower() in map(str.lower, names) or (number is not None and (number in numbers or not numbers)):
                return f"column {field.name} has another name in the file"
            continue
        match = stored[names.index(name)]
        if number is not None and _field_id(match) != number:
            return f"column {field.name} has another field id"
        if (reason := _type_obstacle(field.type, match.type, leaves, f"{above}{name}")) is not None:
            return reason
    return None


def _type_obstacle(wanted: pa.DataType, stored: pa.DataType, leaves: Mapping[str, str], path: str) -> str | None:
    if pa.types.is_struct(wanted) and pa.types.is_struct(stored):
        return _column_obstacle(wanted, list(stored), leaves, f"{path}.")
    if pa.types.is_list(wanted) and (pa.types.is_list(stored) or pa.types.is_large_list(stored)):
        element = f"{path}.list.{stored.value_field.name}"
        if not any(f"{leaf}.".startswith(f"{element}.") for leaf in leaves):
            return f"{path} is not a list of three levels"
        return _type_obstacle(wanted.value_type, stored.value_type, leaves, element)
    if pa.types.is_map(wanted) and pa.types.is_map(stored):
        if not any(leaf.startswith(f"{path}.key_value.key") for leaf in leaves):
            return f"{path} is not a map as the specification has it"
        return _type_obstacle(wanted.key_type, stored.key_type, leaves, f"{path}.key_value.key") or _type_obstacle(
            wanted.item_type, stored.item_type, leaves, f"{path}.key_value.value"
        )
    plain = stored.value_type if pa.types.is_dictionary(stored) else stored
    plain = _TIMESTAMP if leaves.get(path) == "INT96" else _PLAIN.get(plain, plain)
    return None if plain.equals(wanted) or widens(plain, wanted) else f"{path} is {stored}, not {wanted}"


def _field_id(field: pa.Field) -> bytes | None:
    return (field.metadata or {}).get(FIELD_ID)


# Forms that Arrow's writers note in the footer. The values in the file are the same.
_PLAIN: Final = {
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
}
