"""The columns of a mirror: which tables it can have, and which changes of their columns a MERGE can follow.

Columns may be added. Others need files to be written again: a snapshot makes the table anew, with any columns.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

from tailer.errors import SinkRejected
from tailer.events import METADATA_FIELDS, ROW_ID, has_variant, type_text
from tailer_sinks.delta.schema import fit, rows_schema, unwritable
from tailer_sinks.encoding.typed import Misfit

__all__ = ["RESNAPSHOT", "key_in", "refusal", "table_schema"]

RESNAPSHOT: Final = "Order a snapshot with `tailer resnapshot`."

_METADATA: Final = frozenset(each.name for each in METADATA_FIELDS)


def table_schema(name: str, schema: pa.Schema) -> pa.Schema:
    """Return the columns of a table for change rows of `schema`. Raises `SinkRejected`; `name`: the sink's."""
    plain = rows_schema(pa.schema([each for each in schema if each.name not in _METADATA]))
    if variants := [each.name for each in plain if has_variant(each.type)]:
        reason = f"columns {', '.join(variants)} are Variants, which delta-rs cannot merge"
        raise SinkRejected(name, reason, 'Choose other columns or a text of them with select, or set mode = "append".')
    if problems := unwritable(plain):
        reason = f"Delta files have no type for {', '.join(problems)}"
        raise SinkRejected(name, reason, "Leave these columns out with select.")
    try:
        return fit(None, pa.schema([]), plain).schema
    except Misfit as misfit:
        raise SinkRejected(name, str(misfit), "Give it another name with select.") from misfit


def key_in(name: str, path: str, schema: pa.Schema, configured: Sequence[str]) -> tuple[str, ...]:
    """Return the columns that identify rows of `schema` (`table_schema`): those configured, or else the row ids.

    Raises `SinkRejected`.
    """
    key = tuple(configured) or ((ROW_ID,) if ROW_ID in schema.names else ())
    if not key:
        remedy = "Add key to the sink: the columns that identify a row. Or add row_ids = true to the pipeline, if the "
        raise SinkRejected(name, f"{path} has no key", f"{remedy}table tracks rows.")
    for column in key:
        at = schema.get_field_index(column)
        if at < 0:
            remedy = f"The columns are: {', '.join(schema.names)}. Set key to some of them, and order a snapshot."
            raise SinkRejected(name, f"the key column {column} is not a column of {path}", remedy)
        kind = schema.field(at).type
        if pa.types.is_nested(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind):
            reason = f"the key column {column} has type {type_text(kind)}, whose values identify no row"
            raise SinkRejected(name, reason, "Set key to columns of other types.")
    return key


def refusal(
    name: str, path: str, there: pa.Schema, wanted: pa.Schema, origins: Mapping[str, str] | None, *, announced: bool
) -> SinkRejected | None:
    """Return why a table with the columns `there` cannot take rows of `wanted`. None: it can.

    `origins`: the former name of each column that was there before; None: columns are known by their names.
    `announced`: whether columns may have been added.
    """
    if origins is None:
        origins = {each: each for each in wanted.names if each in there.names}
    kept = {new: old for new, old in origins.items() if old in there.names and new in wanted.names}
    problems = [f"{each} was dropped" for each in there.names if each not in kept.values()]
    for new, old in kept.items():
        before, after = there.field(old).type, wanted.field(new).type
        if new != old:
            problems.append(f"{old} was renamed to {new}")
        elif before != after:
            problems.append(f"{new} is {type_text(before)} there, and {type_text(after)} in the rows")
    added = [each for each in wanted.names if each not in kept]
    problems += [f"{each} is another column now" for each in added if each in there.names]
    if not announced:
        problems += [f"{each} is missing there" for each in added if each not in there.names]
    if not problems:
        return None
    return SinkRejected(name, f"columns of {path} do not fit: {', '.join(dict.fromkeys(problems))}", RESNAPSHOT)
