"""The columns of a mirror: which tables it can have, and which changes of their columns it can follow.

A MERGE adds columns. Where columns are renamed, dropped or widened, the table is written again. Whatever else happens
to a type, such as a field of a struct that is renamed, the values of unchanged rows are not known from their former
ones: a snapshot makes the table anew, with any columns. The columns of a table with Variants cannot change at all:
delta-rs would make structs of its Variants in the commit that changes them.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

from tailer.errors import SinkRejected
from tailer.events import METADATA_FIELDS, type_text
from tailer_sinks.delta.schema import fit, rows_schema, unwritable
from tailer_sinks.encoding.typed import Misfit, conform, fits
from tailer_sinks.mirrors import RESNAPSHOT

__all__ = ["difference", "only_adds", "origins_of", "reshaped", "table_schema"]


_METADATA: Final = frozenset(each.name for each in METADATA_FIELDS)


def table_schema(name: str, schema: pa.Schema) -> pa.Schema:
    """Return the columns of a table for change rows of `schema`. Raises `SinkRejected`; `name`: the sink's."""
    plain = rows_schema(pa.schema([field for field in schema if field.name not in _METADATA]))
    if problems := unwritable(plain):
        reason = f"Delta files have no type for {', '.join(problems)}"
        raise SinkRejected(name, reason, "Leave these columns out with select.")
    try:
        return fit(None, pa.schema([]), plain).schema
    except Misfit as misfit:
        raise SinkRejected(name, str(misfit), "Give it another name with select.") from misfit


def difference(
    name: str, path: str, there: pa.Schema, wanted: pa.Schema, remedy: str = RESNAPSHOT
) -> SinkRejected | None:
    """Return why a table with the columns `there` cannot take rows of `wanted` as it is. None: it can.

    That is so after somebody has changed the table, or the columns that the pipeline chooses.
    """
    problems = [f"{column} was dropped" for column in there.names if column not in wanted.names]
    for column in wanted:
        index = there.get_field_index(column.name)
        if index < 0:
            problems.append(f"{column.name} is missing there")
        elif there.field(index).type != column.type:
            problems.append(_other_type(column.name, there.field(index).type, column.type))
    return _misfit(name, path, problems, remedy) if problems else None


def origins_of(
    name: str,
    path: str,
    before: pa.Schema,
    after: pa.Schema,
    origins: Mapping[str, str] | None,
    remedy: str = RESNAPSHOT,
) -> Mapping[str, str]:
    """Return the former name of each column of `after` that was there `before`.

    `origins`: of `SchemaChange`. Raises `SinkRejected` if a column has another type now, whose values are others.
    """
    if origins is None:
        origins = {column: column for column in after.names}
    kept = {new: old for new, old in origins.items() if old in before.names and new in after.names}
    types = ((new, before.field(old).type, after.field(new).type) for new, old in kept.items())
    if problems := [_other_type(new, was, kind) for new, was, kind in types if not fits(was, kind)]:
        raise _misfit(name, path, problems, remedy)
    return kept


def only_adds(before: pa.Schema, after: pa.Schema, origins: Mapping[str, str]) -> bool:
    """Return whether all columns of `before` are as they were in `after`."""
    return all(
        origins.get(column.name) == column.name and after.field(column.name).type == column.type for column in before
    )


def reshaped(rows: pa.RecordBatch, schema: pa.Schema, origins: Mapping[str, str]) -> pa.RecordBatch:
    """Return rows with the columns of `schema`: those that they have by the former names in `origins`, others null."""
    names = [column.name for column in schema if origins.get(column.name) in rows.schema.names]
    columns = [rows.column(origins[name]) for name in names]
    return conform(pa.RecordBatch.from_arrays(columns, names), schema)


def _misfit(name: str, path: str, problems: Sequence[str], remedy: str) -> SinkRejected:
    return SinkRejected(name, f"columns of {path} do not fit: {', '.join(problems)}", remedy)


def _other_type(column: str, there: pa.DataType, wanted: pa.DataType) -> str:
    return f"{column} is {type_text(there)} there, and {type_text(wanted)} in the rows"
