"""From a Parquet file's columns to the table's: found by field id or physical name, cast where nothing can be lost.

A file may be older than the table's schema: columns it lacks are null, on every level of nesting. A column whose type
in the file is not one that reads as the table's type stops the task (invariant 5); what reads as what is in
`_reads_as`.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import pyarrow as pa

from tailer.delta.schema import FIELD_ID, partition_scalar, physical_name
from tailer.errors import DataCorrupt
from tailer.events import CHANGE_TYPE
from tailer.plan import ChangeTask, TaskKind

__all__ = ["Projection"]

_Column = Callable[[int, Mapping[str, pa.Array]], pa.Array]
_Corrupt = Callable[[str], DataCorrupt]


class Projection:
    """The way from batches of one file to the task's columns. `columns` are the columns of the file it needs.

    Raises `DataCorrupt` where the file cannot hold the task's rows, when made.
    """

    def __init__(self, task: ChangeTask, file: pa.Schema) -> None:
        self._task = task
        values = dict(task.partition_values)
        there = _Fields(file, self._corrupt)
        self._sources: list[_Column] = []
        self.columns: list[str] = []
        if task.kind in (TaskKind.CDC_DELETES, TaskKind.CDC_OTHERS):
            if file.names.count(CHANGE_TYPE) != 1 or not _reads_as(file.field(CHANGE_TYPE).type, pa.string()):
                raise self._corrupt(f"a change file must have one {CHANGE_TYPE} column, of text")
            self.columns.append(CHANGE_TYPE)
        for field in task.schema:
            name = physical_name(field)
            if name in values:
                value = partition_scalar(values[name], field.type, task.table, task.version, task.uri)
                self._sources.append(_constant(value))
            else:
                self._sources.append(self._column(field, there))
        if not self.columns:
            # Row counts come from batches, and a batch needs a column to have rows.
            self.columns.extend(file.names[:1])

    def apply(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """The task's columns for the rows of `batch`."""
        arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
        return [source(batch.num_rows, arrays) for source in self._sources]

    def _column(self, field: pa.Field, there: "_Fields") -> _Column:
        found = there.find(field)
        if found is None or pa.types.is_null(field.type):
            return _constant(pa.scalar(None, field.type))
        self.columns.append(found.name)
        return _cast(found.name, _as_in_file(field.type, found.type, field.name, self._corrupt), field.type)

    def _corrupt(self, reason: str) -> DataCorrupt:
        return DataCorrupt(self._task.table, self._task.version, self._task.uri, reason)


def _constant(value: pa.Scalar) -> _Column:
    return lambda num_rows, _: pa.repeat(value, num_rows)


def _cast(name: str, in_file: pa.DataType, wanted: pa.DataType) -> _Column:
    def column(_: int, arrays: Mapping[str, pa.Array]) -> pa.Array:
        array = arrays[name]
        if not array.type.equals(in_file):
            array = array.cast(in_file)
        # From physical to logical names: another label for the same buffers.
        return array if array.type.equals(wanted) else array.view(wanted)

    return column


class _Fields:
    """The fields of one level of a file, by what a table may know them by."""

    def __init__(self, fields: Iterable[pa.Field], corrupt: _Corrupt) -> None:
        self._corrupt = corrupt
        self._by_id: dict[bytes, list[pa.Field]] = {}
        self._by_name: dict[str, list[pa.Field]] = {}
        self._by_folded_name: dict[str, list[pa.Field]] = {}
        for field in fields:
            self._by_name.setdefault(field.name, []).append(field)
            self._by_folded_name.setdefault(field.name.lower(), []).append(field)
            if field.metadata and FIELD_ID in field.metadata:
                self._by_id.setdefault(field.metadata[FIELD_ID], []).append(field)

    def find(self, field: pa.Field) -> pa.Field | None:
        """The one that is `field`: by field id where the table says so, else by physical name; None: there is none.

        Spark resolves names without regard to case, so a file whose only match differs in case has the column.
        """
        name = physical_name(field)
        wanted_id = (field.metadata or {}).get(FIELD_ID)
        if wanted_id is None:
            found = self._by_name.get(name) or self._by_folded_name.get(name.lower(), [])
        elif self._by_name and not self._by_id:
            raise self._corrupt(f"no field ids, by which the table knows column {field.name}")
        else:
            found = self._by_id.get(wanted_id, [])
        if len(found) > 1:
            raise self._corrupt(f"several columns may be {field.name}: {', '.join(match.name for match in found)}")
        return found[0] if found else None


def _as_in_file(wanted: pa.DataType, found: pa.DataType, path: str, corrupt: _Corrupt) -> pa.DataType:
    """`wanted` with the names its fields have in the file, so that a cast can match them.

    Raises unless values of `found` read as `wanted`, on every level.
    """
    if pa.types.is_struct(wanted) and pa.types.is_struct(found):
        there = _Fields(found, corrupt)
        fields = []
        for field in wanted:
            match, name = there.find(field), f"{path}.{field.name}"
            if match is None:
                fields.append(pa.field(physical_name(field), field.type))
            else:
                fields.append(pa.field(match.name, _as_in_file(field.type, match.type, name, corrupt)))
        return pa.struct(fields)
    if pa.types.is_list(wanted) and _is_list(found):
        element = _as_in_file(wanted.value_type, found.value_type, f"{path}.element", corrupt)
        return pa.list_(pa.field("element", element))
    if pa.types.is_map(wanted) and pa.types.is_map(found):
        key = _as_in_file(wanted.key_type, found.key_type, f"{path}.key", corrupt)
        return pa.map_(key, _as_in_file(wanted.item_type, found.item_type, f"{path}.value", corrupt))
    if not _reads_as(found, wanted):
        raise corrupt(f"column {path} is {found} in the file, {wanted} in the table")
    return wanted


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
