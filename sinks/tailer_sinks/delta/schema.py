"""The schema of rows in a Delta table, and whether an existing table can take them.

A target table is the history of a table, not that table: it holds rows of every schema that the source ever had. So all
its columns are nullable, on every level, and it can only grow. A column (or a field of a struct) that the source gains
is added. One that the source loses stays, and is null from then on. A renamed column does both. Columns are matched by
name. Names that differ only in case are one name to Delta, so they are refused instead of being written twice.

Types that Delta lacks become the type that has each of their values (`tailer.schema.exact_types`). Any others are
refused.

A column of the table never changes its type. If its type is wider than that of the rows and has each of their values
(`tailer_sinks.encoding.typed.fits`), the rows are cast up. If the rows become wider, the table would have to be
widened, which is impossible from here. The type in the schema alone may only change under the feature `typeWidening`,
which delta-rs neither writes nor reads; without it the old files contradict the schema. (The same holds for a void
column that gets a type: delta-rs has written it as integers.) Left alone, delta-rs casts the rows down, and turns a
double that is too large for a float into infinity. So such rows are refused, and `widening` gives the next step.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tailer.events import has_variant, is_struct, is_variant, type_text
from tailer.schema.exact_types import exact_type
from tailer_sinks.encoding.typed import Misfit, fits, unite

__all__ = [
    "Differences",
    "Fit",
    "compare",
    "far_dates",
    "fit",
    "maps_columns",
    "measured",
    "partition_problems",
    "partition_refusal",
    "rewriting",
    "rows_schema",
    "unwritable",
    "widening",
]

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
# Types whose values all become directory names and come back unchanged.
_PARTITION_TYPES: Final = frozenset(
    {pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.string(), pa.date32()}
)
# Texts that Delta reads as null in partition values, and their names in errors.
_NULL_PARTITIONS: Final = {"": "an empty string", "__HIVE_DEFAULT_PARTITION__": "the text __HIVE_DEFAULT_PARTITION__"}
# Types whose least and greatest value delta-rs writes exactly. It converts decimals to doubles, has no form of NaN
# (a filtering reader would skip the file).
_MEASURED: Final = _PARTITION_TYPES | {pa.binary(), pa.timestamp("us"), pa.timestamp("us", tz="UTC")}
_COLUMN_MAPPING: Final = "delta.columnMapping.mode"
_FAR_DAYS: Final = 95_000_000  # about 260,000 years; delta-rs panics over the text of a date some years beyond
# Names in Spark's SQL of the types that others can be widened to.
_SQL_TYPES: Final = {
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.bool_(): "BOOLEAN",
    pa.string(): "STRING",
    pa.binary(): "BINARY",
    pa.date32(): "DATE",
    pa.timestamp("us"): "TIMESTAMP_NTZ",
    pa.timestamp("us", tz="UTC"): "TIMESTAMP",
}


@dataclass(slots=True)
class Differences:
    """The differences between a table and rows to be appended: paths of columns, such as `address.street`."""

    added: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Fit:
    """The way rows go into a table: their `schema`, the columns `added`, and those `missing`, which become null.

    Beside Variants no column is missing: the rows have all columns of the table (`tailer_sinks.delta.writes`).
    """

    schema: pa.Schema
    added: Sequence[str] = ()
    missing: Sequence[str] = ()


def rows_schema(schema: pa.Schema) -> pa.Schema:
    """Return `schema` as a target table has it: Delta's types, nullable on every level, no metadata."""
    return pa.schema([pa.field(column.name, exact_type(column.type)) for column in schema])


def unwritable(schema: pa.Schema) -> list[str]:
    """Return the columns of a `rows_schema` that have no exact type in Delta or Parquet, each with its type."""
    return [f"{column.name} ({type_text(column.type)})" for column in schema if not _has_delta_type(column.type)]


def partition_problems(schema: pa.Schema, columns: Iterable[str]) -> list[str]:
    """Explain why rows of `schema` cannot be partitioned by `columns`; empty if they can."""
    problems = []
    for name in columns:
        position = schema.get_field_index(name)
        if position < 0:
            problems.append(f"there is no column {name}")
        elif schema.field(position).type not in _PARTITION_TYPES:
            problems.append(f"{name} is {type_text(schema.field(position).type)}")
    return problems


def partition_refusal(rows: pa.RecordBatch, columns: Iterable[str]) -> str | None:
    """Explain why `rows` cannot be in partitions by `columns`: texts that Delta reads as null, or far dates."""
    far = far_dates(rows)
    for name in columns:
        if name in far:
            return f"partition column {name} holds a date farther than {_FAR_DAYS} days from 1970"
        values = rows.column(name) if name in rows.schema.names else None
        for text, called in _NULL_PARTITIONS.items() if values is not None and values.type == pa.string() else ():
            if pc.any(pc.equal(values, pa.scalar(text))).as_py():
                return f"partition column {name} holds {called}, which to Delta is null"
    return None


def far_dates(rows: pa.RecordBatch) -> list[str]:
    """Return the date columns, not nested, with a date so far from 1970 that delta-rs has no text for it."""
    return [column.name for column in rows.schema if column.type == pa.date32() and _is_far(rows.column(column.name))]


def measured(schema: pa.Schema) -> list[str]:
    """Return the columns with correct statistics from delta-rs. Nested columns cannot be chosen one by one."""
    return [column.name for column in schema if column.type in _MEASURED]


def fit(table: pa.Schema | None, earlier: pa.Schema, rows: pa.Schema) -> Fit:
    """Fit rows of `rows` (a `rows_schema`) into `table`, or a new one, beside rows to be written as `earlier`.

    `compare` must have found no conflicts. Raises `Misfit` for columns that do not fit with `earlier`, or differ in
    case.
    """
    if table is None:
        united = unite(earlier, rows)
        _check_spelling(united)
        return Fit(united)
    table = rows_schema(table)
    # The table's fields first, so that a struct has all of them: delta-rs does not fill fields missing in a map.
    names = set(rows.names)
    united = unite(earlier, unite(pa.schema([column for column in table if column.name in names]), rows))
    whole = unite(table, united)
    _check_spelling(whole)
    differences = compare(table, united)
    if any(has_variant(column.type) for column in whole):
        return Fit(whole, differences.added)
    return Fit(united, differences.added, differences.missing)


def compare(table: pa.Schema, rows: pa.Schema) -> Differences:
    """Compare a table's schema with a `rows_schema`; nullability and order do not count."""
    differences = Differences()
    _compare_structs(list(rows_schema(table)), list(rows), "", differences)
    return differences


def widening(table: pa.Schema, rows: pa.Schema) -> list[tuple[str, str]]:
    """Return the columns, not nested, that must be widened to take rows, each with the wider type's name in SQL."""
    names = []
    for column in rows_schema(table):
        position = rows.get_field_index(column.name)
        kind = column.type if position < 0 else rows.field(position).type
        if kind != column.type and fits(column.type, kind) and (name := _sql_type(kind)):
            names.append((column.name, name))
    return names


def rewriting(path: str, names: Iterable[str], partition_by: Iterable[str], columns: Sequence[tuple[str, str]]) -> str:
    """Write the instruction for widening `columns`: rewrite the table; its progress stays in it."""
    quoted = {name: f"`{name.replace('`', '``')}`" for name in names}
    partitions = ", ".join(quoted[name] for name in partition_by)
    casts = ", ".join(f"CAST({quoted[name]} AS {kind}) AS {quoted[name]}" for name, kind in columns)
    return (
        f"Widen the target by rewriting it, and start again; with Spark: CREATE OR REPLACE TABLE "
        f"delta.`{path}` USING delta {f'PARTITIONED BY ({partitions}) ' if partitions else ''}AS SELECT * "
        f"EXCEPT ({', '.join(quoted[name] for name, _ in columns)}), {casts} FROM delta.`{path}`"
    )


def _is_far(days: pa.Array) -> bool:
    ends = pc.min_max(days.view(pa.int32())).as_py().values()
    return any(end is not None and abs(end) > _FAR_DAYS for end in ends)


def _has_delta_type(kind: pa.DataType) -> bool:
    if is_variant(kind):
        return True
    if pa.types.is_nested(kind):
        # Delta has a struct without fields, but Parquet has not.
        plain = (pa.types.is_struct(kind) and kind.num_fields > 0) or pa.types.is_list(kind) or pa.types.is_map(kind)
        return plain and all(_has_delta_type(kind.field(index).type) for index in range(kind.num_fields))
    return kind in _PRIMITIVES or pa.types.is_decimal128(kind)


def _check_spelling(schema: pa.Schema) -> None:
    """Raise `Misfit` if names of columns, or of fields of one struct, differ only in case."""
    for path, other in _spelled_twice(list(schema), ""):
        raise Misfit(path, f"is spelled {other} in the table")


def _spelled_twice(columns: Sequence[pa.Field], prefix: str) -> Iterator[tuple[str, str]]:
    spelled: dict[str, str] = {}
    for column in columns:
        other = spelled.setdefault(column.name.lower(), column.name)
        if other != column.name:
            yield prefix + column.name, prefix + other
        children = [column.type.field(index) for index in range(column.type.num_fields)]
        yield from _spelled_twice(children, f"{prefix}{column.name}.")


def _sql_type(kind: pa.DataType) -> str | None:
    if pa.types.is_decimal128(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    return _SQL_TYPES.get(kind)


def _compare_structs(table: list[pa.Field], rows: list[pa.Field], prefix: str, differences: Differences) -> None:
    ours = {column.name for column in rows}
    theirs = {column.name: column for column in table}
    for column in rows:
        if column.name in theirs:
            _compare_types(theirs[column.name].type, column.type, prefix + column.name, differences)
        else:
            differences.added.append(prefix + column.name)
    differences.missing.extend(prefix + name for name in theirs if name not in ours)


def _compare_types(table: pa.DataType, rows: pa.DataType, path: str, differences: Differences) -> None:
    if fits(rows, table):
        return
    if is_struct(table) and is_struct(rows):
        _compare_structs(list(table), list(rows), f"{path}.", differences)
    elif pa.types.is_list(table) and pa.types.is_list(rows):
        _compare_types(table.value_type, rows.value_type, f"{path}.element", differences)
    elif pa.types.is_map(table) and pa.types.is_map(rows):
        _compare_types(table.key_type, rows.key_type, f"{path}.key", differences)
        _compare_types(table.item_type, rows.item_type, f"{path}.value", differences)
    else:
        differences.conflicts.append(f"{path} ({type_text(table)} in the table, {type_text(rows)} in the rows)")


def maps_columns(configuration: Mapping[str, str | None]) -> bool:
    """Return whether the columns of a table with these properties have other names in its files."""
    return configuration.get(_COLUMN_MAPPING, "none") != "none"
