"""What rows become in a Delta table, and whether a table that is there can take them.

A target table is the history of a table, not that table: it holds rows of every schema the source ever had. So its
columns are all nullable, on every level, and it may only grow: a column (or a field of a struct) that the source gained
is added, one that it lost stays and is null from then on. A type never changes: a value that had to be cast would not
be the value that was read. Columns are matched by name; names that differ only in case are one name to Delta, so they
are refused here rather than written twice.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["Differences", "compare", "empty_partition", "partition_problems", "rows_schema", "unwritable"]

_PRIMITIVES = frozenset(
    {
        pa.null(),
        pa.bool_(),
        pa.int8(),
        pa.int16(),
        pa.int32(),
        pa.int64(),
        pa.float32(),
        pa.float64(),
        pa.string(),
        pa.binary(),
        pa.date32(),
        pa.timestamp("us"),
        pa.timestamp("us", tz="UTC"),
    }
)
# Types whose every value is one directory name and comes back from it unchanged.
_PARTITION_TYPES = frozenset({pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.string(), pa.date32()})


@dataclass(slots=True)
class Differences:
    """What lies between a table and rows to be appended: paths of columns, such as `address.street`."""

    added: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)


def rows_schema(schema: pa.Schema) -> pa.Schema:
    """`schema` as a target table has it: nullable on every level, timestamps in UTC, no metadata."""
    return pa.schema([pa.field(column.name, _relaxed(column.type)) for column in schema])


def unwritable(schema: pa.Schema) -> list[str]:
    """The columns of a `rows_schema` that Delta has no exact type for, each with its type."""
    return [f"{column.name} ({column.type})" for column in schema if not _has_delta_type(column.type)]


def partition_problems(schema: pa.Schema, columns: Iterable[str]) -> list[str]:
    """Why rows of `schema` cannot be partitioned by `columns`; empty where they can."""
    problems = []
    for name in columns:
        position = schema.get_field_index(name)
        if position < 0:
            problems.append(f"there is no column {name}")
        elif schema.field(position).type not in _PARTITION_TYPES:
            problems.append(f"{name} is {schema.field(position).type}")
    return problems


def empty_partition(rows: pa.RecordBatch, columns: Iterable[str]) -> str | None:
    """The first of the partition `columns` in which an empty string stands, which Delta cannot tell from null."""
    for name in columns:
        values = rows.column(name) if name in rows.schema.names else None
        if values is not None and values.type == pa.string() and pc.any(pc.equal(values, "")).as_py():
            return name
    return None


def compare(table: pa.Schema, rows: pa.Schema) -> Differences:
    """Compare a table's schema with a `rows_schema`; nullability and order do not count."""
    found = Differences()
    _compare_structs(list(rows_schema(table)), list(rows), "", found)
    return found


def _relaxed(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(child.name, _relaxed(child.type)) for child in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _relaxed(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_relaxed(kind.key_type), _relaxed(kind.item_type))
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, tz="UTC")
    return kind


def _has_delta_type(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        plain = pa.types.is_struct(kind) or pa.types.is_list(kind) or pa.types.is_map(kind)
        return plain and all(_has_delta_type(kind.field(at).type) for at in range(kind.num_fields))
    return kind in _PRIMITIVES or pa.types.is_decimal128(kind)


def _compare_structs(table: list[pa.Field], rows: list[pa.Field], prefix: str, found: Differences) -> None:
    ours = {column.name for column in rows}
    theirs = {column.name: column for column in table}
    folded = {name.lower(): name for name in theirs}
    for column in rows:
        path = prefix + column.name
        if column.name in theirs:
            _compare_types(theirs[column.name].type, column.type, path, found)
        elif column.name.lower() in folded:
            other = prefix + folded[column.name.lower()]
            found.conflicts.append(f"{path} (the table spells it {other})")
        else:
            found.added.append(path)
    found.gone.extend(prefix + name for name in theirs if name not in ours)


def _compare_types(table: pa.DataType, rows: pa.DataType, path: str, found: Differences) -> None:
    if table == rows:
        return
    if pa.types.is_struct(table) and pa.types.is_struct(rows):
        _compare_structs(list(table), list(rows), f"{path}.", found)
    elif pa.types.is_list(table) and pa.types.is_list(rows):
        _compare_types(table.value_type, rows.value_type, f"{path}.element", found)
    elif pa.types.is_map(table) and pa.types.is_map(rows) and table.key_type == rows.key_type:
        inner = Differences()
        _compare_types(table.item_type, rows.item_type, f"{path}.value", inner)
        found.added.extend(inner.added)
        # delta-rs cannot fill what is missing inside a map's values.
        found.conflicts.extend([*inner.conflicts, *(f"{gone} (gone from the rows)" for gone in inner.gone)])
    else:
        found.conflicts.append(f"{path} ({table} in the table, {rows} in the rows)")
