"""Rows for destinations with types: rows of several schemas under one, and a gap as a row.

A transaction may hold rows of two schemas, and its table may have a third. `unite` returns one schema that holds them
all: columns are matched by name, and a missing one is null. If types differ, the wider one is used, provided that it
holds every value of the narrower one exactly: the changes of Delta's type widening (PROTOCOL.md, "Type Widening"), and
some decimals that Delta does not widen to (compare `tailer.schema.columns.widens`).
Otherwise there is no such schema, and nothing is guessed. `conform` converts rows to it.
"""

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from tailer.events import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION, METADATA_FIELDS, Gap, is_struct, type_text

__all__ = ["GAP", "Misfit", "conform", "fits", "gap_row", "unite"]

GAP: Final = Gap.kind  # the `_change_type` of a gap's row

_METADATA: Final = frozenset(field.name for field in METADATA_FIELDS)
# Decimal digits that hold every value of an integer type.
_DIGITS: Final = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}
_WIDTHS: Final = tuple(_DIGITS)
_WIDER: Final = frozenset(
    [
        *((narrow, wide) for at, wide in enumerate(_WIDTHS) for narrow in _WIDTHS[:at]),
        *((narrow, pa.float64()) for narrow in (pa.int8(), pa.int16(), pa.int32(), pa.float32())),
        (pa.date32(), pa.timestamp("us")),
    ]
)


class Misfit(ValueError):
    """The error for a type or a value in `column` that does not fit; the column is dotted if nested."""

    def __init__(self, column: str, reason: str) -> None:
        super().__init__(f"column {column} {reason}")
        self.column = column
        self.reason = reason


def fits(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Return whether each value of `narrow`, not nested, is a value of `wide` too. Null, all of void, fits any."""
    if narrow == wide or pa.types.is_null(narrow) or (narrow, wide) in _WIDER:
        return True
    if not pa.types.is_decimal(wide):
        return False
    whole = wide.precision - wide.scale
    if pa.types.is_decimal(narrow):
        return bool(narrow.scale <= wide.scale and narrow.precision - narrow.scale <= whole)
    return narrow in _DIGITS and _DIGITS[narrow] <= whole


def unite(first: pa.Schema, second: pa.Schema) -> pa.Schema:
    """Return the schema for rows of both: the columns of `first`, those only in `second`, then metadata columns.

    Raises `Misfit` naming the column whose types have no union.
    """
    columns = _unite_fields(list(first), list(second), "")
    return pa.schema(sorted(columns, key=lambda column: column.name in _METADATA))


def conform(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert rows to `schema`, which is a union of theirs. No value is changed.

    Raises `Misfit` for a value that the wider type cannot hold after all.
    """
    if rows.schema.equals(schema):
        return rows
    there = set(rows.schema.names)
    columns = []
    for field in schema:
        column = rows.column(field.name) if field.name in there else pa.nulls(len(rows), field.type)
        if column.type != field.type:
            try:
                column = column.cast(field.type)
            except pa.ArrowInvalid:  # whose text has the value
                raise Misfit(field.name, f"has a value that is not a valid {field.type}") from None
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def gap_row(gap: Gap, schema: pa.Schema) -> pa.RecordBatch:
    """Make the row for `gap` between rows of `schema`: the metadata columns, and null everywhere else."""
    values = {CHANGE_TYPE: GAP, COMMIT_VERSION: gap.version, COMMIT_TIMESTAMP: gap.timestamp_ms * 1000}
    columns = [pa.array([values.get(field.name)], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema([field.with_nullable(True) for field in schema]))


def _unite_fields(first: Sequence[pa.Field], second: Sequence[pa.Field], prefix: str) -> list[pa.Field]:
    others = {field.name: field for field in second}
    united = [
        _unite_field(field, others.pop(field.name), prefix) if field.name in others else field.with_nullable(True)
        for field in first
    ]
    # No rows were written with a `first` without columns.
    missing_before = bool(first or prefix)
    return [*united, *(field.with_nullable(missing_before or field.nullable) for field in others.values())]


def _unite_field(first: pa.Field, second: pa.Field, prefix: str) -> pa.Field:
    kind = _unite_types(first.type, second.type, prefix + first.name)
    return pa.field(first.name, kind, nullable=first.nullable or second.nullable)


def _unite_types(first: pa.DataType, second: pa.DataType, path: str) -> pa.DataType:
    if first == second or fits(second, first):
        return first
    if fits(first, second):
        return second
    if is_struct(first) and is_struct(second):
        return pa.struct(_unite_fields(list(first), list(second), f"{path}."))
    if pa.types.is_list(first) and pa.types.is_list(second):
        return pa.list_(_unite_field(first.value_field, second.value_field, f"{path}."))
    if pa.types.is_map(first) and pa.types.is_map(second):
        key = _unite_types(first.key_type, second.key_type, f"{path}.key")
        return pa.map_(key, _unite_field(first.item_field, second.item_field, f"{path}."))
    raise Misfit(path, f"is {type_text(first)} in some rows and {type_text(second)} in others")
