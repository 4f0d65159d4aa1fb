"""From a Parquet file's columns to the table's: found by field id or physical name, cast where nothing can be lost.

A file may be older than the table's schema: columns it lacks are null, on every level of nesting. A column whose type
in the file is not one that reads as the table's type stops the task (invariant 5); what reads as what is in
`_reads_as`.
"""

from collections.abc import Callable
from typing import Final

import pyarrow as pa

from tailer.delta.schema import FIELD_ID, partition_scalar, physical_name
from tailer.errors import DataCorrupt
from tailer.events import CHANGE_TYPE
from tailer.plan import ChangeTask, TaskKind

__all__ = ["Projection"]


class Projection:
    """The way from batches of one file to the task's columns.

    Raises `DataCorrupt` where the file cannot hold the task's rows, when made.
    """

    def __init__(self, task: ChangeTask, file: pa.Schema) -> None:
        self._task = task
        values = dict(task.partition_values)
        self._sources: list[Callable[[pa.RecordBatch], pa.Array]] = []
        self.columns: list[str] = []
        if task.kind in (TaskKind.CDC_DELETES, TaskKind.CDC_OTHERS):
            if CHANGE_TYPE not in file.names:
                raise self._corrupt(f"a change file without a {CHANGE_TYPE} column")
            self.columns.append(CHANGE_TYPE)
        for field in task.schema:
            name = physical_name(field)
            if name in values:
                value = partition_scalar(values[name], field.type, task.table, task.version, task.uri)
                self._sources.append(_constant(value))
            else:
                self._sources.append(self._column(field, file))
        if not self.columns:
            # Row counts come from batches, and a batch needs a column to have rows.
            self.columns.extend(file.names[:1])

    def apply(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """The task's columns for the rows of `batch`."""
        return [source(batch) for source in self._sources]

    def _column(self, field: pa.Field, file: pa.Schema) -> Callable[[pa.RecordBatch], pa.Array]:
        found = _find(field, list(file))
        if found is None or pa.types.is_null(field.type):
            return _constant(pa.scalar(None, field.type))
        _check(field.type, found.type, field.name, self._corrupt)
        self.columns.append(found.name)
        return _cast(found, field)

    def _corrupt(self, reason: str) -> DataCorrupt:
        return DataCorrupt(self._task.table, self._task.version, self._task.uri, reason)


def _constant(value: pa.Scalar) -> Callable[[pa.RecordBatch], pa.Array]:
    return lambda batch: pa.repeat(value, batch.num_rows)


def _cast(found: pa.Field, field: pa.Field) -> Callable[[pa.RecordBatch], pa.Array]:
    in_file = _as_in_file(field.type, found.type)
    name = found.name

    def column(batch: pa.RecordBatch) -> pa.Array:
        array = batch.column(batch.schema.get_field_index(name))
        if not array.type.equals(in_file):
            array = array.cast(in_file)
        # From physical to logical names: another label for the same buffers.
        return array if array.type.equals(field.type) else array.view(field.type)

    return column


def _find(field: pa.Field, candidates: list[pa.Field]) -> pa.Field | None:
    """The candidate that is `field`: by field id where the table says so, else by physical name.

    Spark resolves names without regard to case, so a file whose only match differs in case has the column.
    """
    wanted_id = (field.metadata or {}).get(FIELD_ID)
    if wanted_id is not None:
        return next((found for found in candidates if (found.metadata or {}).get(FIELD_ID) == wanted_id), None)
    name = physical_name(field)
    exact = [found for found in candidates if found.name == name]
    alike = exact or [found for found in candidates if found.name.lower() == name.lower()]
    return alike[0] if len(alike) == 1 else None


def _as_in_file(wanted: pa.DataType, found: pa.DataType) -> pa.DataType:
    """`wanted` with the names its fields have in the file, so that a cast can match them."""
    if pa.types.is_struct(wanted) and pa.types.is_struct(found):
        there = list(found)
        fields = []
        for field in wanted:
            match = _find(field, there)
            kind = field.type if match is None else _as_in_file(field.type, match.type)
            fields.append(pa.field(physical_name(field) if match is None else match.name, kind))
        return pa.struct(fields)
    if pa.types.is_list(wanted) and _is_list(found):
        return pa.list_(pa.field("element", _as_in_file(wanted.value_type, found.value_type)))
    if pa.types.is_map(wanted) and pa.types.is_map(found):
        return pa.map_(_as_in_file(wanted.key_type, found.key_type), _as_in_file(wanted.item_type, found.item_type))
    return wanted


def _check(wanted: pa.DataType, found: pa.DataType, path: str, corrupt: Callable[[str], DataCorrupt]) -> None:
    """Raise unless values of `found` read as `wanted`, on every level."""
    if pa.types.is_struct(wanted) and pa.types.is_struct(found):
        there = list(found)
        for field in wanted:
            match = _find(field, there)
            if match is not None:
                _check(field.type, match.type, f"{path}.{field.name}", corrupt)
    elif pa.types.is_list(wanted) and _is_list(found):
        _check(wanted.value_type, found.value_type, f"{path}.element", corrupt)
    elif pa.types.is_map(wanted) and pa.types.is_map(found):
        _check(wanted.key_type, found.key_type, f"{path}.key", corrupt)
        _check(wanted.item_type, found.item_type, f"{path}.value", corrupt)
    elif not _reads_as(found, wanted):
        raise corrupt(f"column {path} is {found} in the file, {wanted} in the table")


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _reads_as(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a checked cast from `found` to `wanted` keeps every value what it is."""
    if found.equals(wanted) or pa.types.is_null(found) or pa.types.is_null(wanted):
        return True
    if pa.types.is_dictionary(found):
        return _reads_as(found.value_type, wanted)
    return any(of(found) and to(wanted) for of, to in _CASTS)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    fixed = pa.types.is_fixed_size_binary(kind) and not pa.types.is_decimal(kind)
    return bool(fixed or pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


# Integers are range-checked by the cast. Text without its annotation is bytes in the file, and is checked to be UTF-8.
_CASTS: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], bool]], ...]] = (
    (pa.types.is_integer, pa.types.is_integer),
    (pa.types.is_float32, pa.types.is_float64),
    (pa.types.is_decimal, pa.types.is_decimal),
    (pa.types.is_timestamp, pa.types.is_timestamp),
    (_is_text, _is_text),
    (_is_bytes, _is_text),
    (_is_bytes, _is_bytes),
)
