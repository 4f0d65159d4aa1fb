"""Rows of the source, or of a mirror, as texts that are equal where the mirror would hold equal values.

Both have the types of the table.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tailer.errors import SinkRejected
from tailer.events import is_variant
from tailer.variant import InvalidVariant, compare_keys
from tailer.variant.nested import changed, changes_where
from tailer_sinks.delta.mirror.columns import difference, origins_of, table_schema
from tailer_sinks.encoding.columns import TEXT, NoText, whole, writer_for
from tailer_sinks.encoding.typed import Misfit, conform
from tailer_sinks.mirrors import comparable_json

__all__ = ["StoredRows"]

_LEAVE_OUT: Final = "Leave the column out with select."


class StoredRows:
    """Rows as texts, as the table at `path` with `schema` would hold them. `name`: the sink's.

    `lacks_columns`: whether rows of the source may lack columns of the table, and have narrower types.
    """

    def __init__(self, name: str, path: str, schema: pa.Schema, *, lacks_columns: bool = False) -> None:
        self._named = name, path, schema
        self._lacks_columns = lacks_columns
        self._texts: dict[str, Callable[[pa.Array], pa.Array]] = {column.name: _texts(column.type) for column in schema}

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of the source as texts. Raises as `conformed` and `texts`."""
        return self.texts(self.conformed(rows))

    def conformed(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of the source with the types of the table. Raises `SinkRejected` where that has others."""
        name, path, schema = self._named
        there, wanted = schema, table_schema(name, rows.schema)
        if self._lacks_columns:
            origins_of(name, path, wanted, schema, None)
            wanted = pa.schema(
                [schema.field(column.name) if column.name in schema.names else column for column in wanted]
            )
            there = pa.schema([column for column in schema if column.name in wanted.names])
        if (refusal := difference(name, path, there, wanted)) is not None:
            raise refusal
        try:
            return conform(rows, schema)
        except Misfit as misfit:
            raise SinkRejected(name, str(misfit), _LEAVE_OUT) from misfit

    def texts(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of the table as texts. Raises `SinkRejected` for a value without one."""
        names = rows.schema.names
        try:
            return pa.record_batch([self._texts[name](rows.column(name)) for name in names], names)
        except (NoText, InvalidVariant) as problem:
            raise SinkRejected(self._named[0], str(problem), _LEAVE_OUT) from problem


def _texts(kind: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    """Return what turns a column of `kind` into texts, equal for equal values only: NaN equals NaN, and -0.0 not 0.0.

    Variants differ by their types, too, such as a date and its text. Maps with the same entries are equal, as nobody
    relies on their order.
    """
    if pa.types.is_string(kind):
        return lambda column: column.cast(TEXT)
    if is_variant(kind):
        return compare_keys
    variants = changes_where(kind, is_variant, compare_keys)
    plain = changed(pa.array([], kind), variants).type
    writer = writer_for(plain)
    finish = comparable_json(plain) if pa.types.is_nested(kind) else partial(pc.utf8_trim, characters='"')

    def convert(column: pa.Array) -> pa.Array:
        texts = whole(writer(changed(column, variants)))
        return finish(pc.if_else(column.is_valid(), texts, pa.scalar(None, TEXT)) if column.null_count else texts)

    return convert
