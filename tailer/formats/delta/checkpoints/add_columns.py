"""The files of a checkpoint as Arrow columns: most are sorted without making an object of each.

A checkpoint's column `add` becomes `ADD_COLUMNS`, the fields of `AddFile` under their names in the log, or
`ADD_COLUMNS_WITH_STATISTICS`, those of `AddWithStatistics`. Columns of the usual types are checked and taken as they
are. All others are converted to actions first, so that both ways accept the same files and report the same errors.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tailer.formats.delta.log.actions import AddFile, AddWithStatistics, Line, LineWithStatistics

__all__ = ["ADD_COLUMNS", "ADD_COLUMNS_WITH_STATISTICS", "columns_of", "json_values", "read_columns", "read_files"]

_VECTOR: Final = pa.struct(
    {
        "storageType": pa.string(),
        "pathOrInlineDv": pa.string(),
        "sizeInBytes": pa.int32(),
        "cardinality": pa.int64(),
        "offset": pa.int32(),
    }
)
ADD_COLUMNS: Final = pa.struct(
    {
        "path": pa.string(),
        "partitionValues": pa.map_(pa.string(), pa.string()),
        "size": pa.int64(),
        "dataChange": pa.bool_(),
        "modificationTime": pa.int64(),
        "deletionVector": _VECTOR,
        "baseRowId": pa.int64(),
        "defaultRowCommitVersion": pa.int64(),
    }
)
_STATS: Final = "stats"
ADD_COLUMNS_WITH_STATISTICS: Final = pa.struct([*ADD_COLUMNS, pa.field(_STATS, pa.string())])
_REQUIRED: Final = ("path", "partitionValues", "size", "dataChange")
_VECTOR_REQUIRED: Final = ("storageType", "pathOrInlineDv", "sizeInBytes", "cardinality")
_NOT_NEGATIVE: Final = ("sizeInBytes", "cardinality", "offset", "baseRowId", "defaultRowCommitVersion")


class _UnusualColumnError(Exception):
    """A column has another type or other values than nearly every checkpoint's."""


def columns_of(files: Sequence[AddFile | None], columns: pa.StructType = ADD_COLUMNS) -> pa.StructArray:
    """Return files as `columns`, with a null for None."""
    values = [None if file is None else msgspec.to_builtins(file) for file in files]
    for value in values:
        if value is not None and not isinstance(value.get(_STATS), str):
            value.pop(_STATS, None)
    return pa.array(values, columns)


def read_columns(adds: pa.Array, columns: pa.StructType = ADD_COLUMNS) -> pa.StructArray:
    """Return a checkpoint's files, without nulls between them, as `columns`.

    Raises `ValueError`, also `msgspec.ValidationError`, where one violates the protocol.
    """
    try:
        adds.validate(full=True)  # what Parquet calls texts need not be UTF-8
        array = _typed(adds, columns)
        _check_present(array, _REQUIRED)
        _check_present(array.field("deletionVector").drop_null(), _VECTOR_REQUIRED)
        _check_keys(array.field("partitionValues"))
    except (_UnusualColumnError, pa.ArrowException):
        kind = list[LineWithStatistics] if _has_stats(columns) else list[Line]
        lines: Sequence[Line] = msgspec.convert([{"add": value} for value in json_values(adds)], kind)
        return columns_of([line.add for line in lines], columns)
    return array


def read_files(adds: pa.StructArray) -> list[AddFile]:
    """Return `ADD_COLUMNS`, with statistics or without, as files, without those that are null."""
    values = [value for value in json_values(adds) if value is not None]
    if _has_stats(adds.type):
        return [*msgspec.convert(values, list[AddWithStatistics])]
    return msgspec.convert(values, list[AddFile])


def _has_stats(columns: pa.StructType) -> bool:
    return bool(columns.get_field_index(_STATS) >= 0)


def json_values(array: pa.Array) -> list[Any]:
    """Convert an array to the JSON form of actions: absent fields left out, maps as objects.

    Converting column by column is ten times as fast as `to_pylist` of structs and maps. Raises `ValueError` for a map
    with a duplicate key.
    """
    values: list[Any]
    if pa.types.is_struct(array.type):
        names = [field.name for field in array.type]
        rows = zip(*map(json_values, array.flatten()), strict=True)
        values = [{name: item for name, item in zip(names, row, strict=True) if item is not None} for row in rows]
    elif pa.types.is_map(array.type):
        keys, items, offsets = json_values(array.keys), json_values(array.items), array.offsets.to_pylist()
        values = [dict(zip(keys[begin:end], items[begin:end], strict=True)) for begin, end in pairwise(offsets)]
        if any(len(value) != end - begin for value, (begin, end) in zip(values, pairwise(offsets), strict=True)):
            raise ValueError("a map has a duplicate key")
    else:
        values = array.to_pylist()
        return values
    if array.null_count:
        return [value if there else None for value, there in zip(values, array.is_valid().to_pylist(), strict=True)]
    return values


def _typed(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the array with another type for the same values."""
    if pa.types.is_struct(kind):
        if not pa.types.is_struct(array.type) or len({field.name for field in array.type}) < array.type.num_fields:
            raise _UnusualColumnError
        there = dict(zip((field.name for field in array.type), array.flatten(), strict=True))
        columns = [
            _typed(there[field.name], field.type) if field.name in there else pa.nulls(len(array), field.type)
            for field in kind
        ]
        for field, column in zip(kind, columns, strict=True):
            if field.name in _NOT_NEGATIVE and (pc.min(column).as_py() or 0) < 0:
                raise _UnusualColumnError
        return pa.StructArray.from_arrays(columns, fields=list(kind), mask=array.is_null())
    if not _is_castable(array.type, kind):
        raise _UnusualColumnError
    return array.cast(kind)


def _is_castable(there: pa.DataType, kind: pa.DataType) -> bool:
    """Return whether a cast from one type to the other keeps values, or raises."""
    if pa.types.is_map(kind):
        return (
            pa.types.is_map(there)
            and _is_castable(there.key_type, kind.key_type)
            and _is_castable(there.item_type, kind.item_type)
        )
    if pa.types.is_integer(kind):
        return bool(pa.types.is_integer(there))
    return bool(there == kind or (kind == pa.string() and pa.types.is_large_string(there)))


def _check_present(struct: pa.StructArray, names: Sequence[str]) -> None:
    for name in names:
        if struct.field(name).null_count:
            raise _UnusualColumnError


def _check_keys(maps: pa.MapArray) -> None:
    keys = pa.ListArray.from_arrays(maps.offsets, maps.keys)
    if (pc.max(pc.list_value_length(keys)).as_py() or 0) < 2:
        return
    pairs = pa.table({"map": pc.list_parent_indices(keys), "key": pc.list_flatten(keys)})
    if pairs.group_by(["map", "key"]).aggregate([]).num_rows < pairs.num_rows:
        raise _UnusualColumnError
