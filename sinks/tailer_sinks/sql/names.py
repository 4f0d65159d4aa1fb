"""The names of columns in the database: those of the source, or these in lower case.

Names change at the border of the sink, so that all behind it, and what is noted of a table, has those of the database.
Fields of nested columns, which are JSON, keep their names.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from tailer.errors import SinkRejected
from tailer.events import ChangeBatch, ControlEvent, SchemaChange
from tailer_sinks.sql.records import TableRecord
from tailer_sinks.sql.stream import Stream
from tailer_sinks.sql.target import Target

__all__ = ["Names", "other_case"]


@dataclass(frozen=True, slots=True)
class Names:
    """The names in the tables of the sink called `name`. `lower`: whether they are in lower case."""

    name: str
    lower: bool

    def of(self, columns: Iterable[str]) -> tuple[str, ...]:
        """Return the names of columns of the source in the table."""
        return tuple(column.lower() if self.lower else column for column in columns)

    def faults(self, schema: pa.Schema) -> Iterator[SinkRejected]:
        """Yield which columns of the source would be one in the table."""
        if not self.lower:
            return
        columns: dict[str, list[str]] = {}
        for column, name in zip(schema.names, self.of(schema.names), strict=True):
            columns.setdefault(name, []).append(column)
        for name, same in columns.items():
            if len(same) > 1:
                reason = f'columns {" and ".join(same)} would all be {name}, by names = "lower"'
                yield SinkRejected(self.name, reason, "Choose one of them with columns.")

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """Return columns as the table has them. Raises `SinkRejected` for two that would be one."""
        if not self.lower:
            return schema
        for fault in self.faults(schema):
            raise fault
        columns = [column.with_name(name) for column, name in zip(schema, self.of(schema.names), strict=True)]
        return pa.schema(columns, schema.metadata)

    def batches(self, batches: Sequence[ChangeBatch]) -> Sequence[ChangeBatch]:
        """Return rows, which have the schema that came last, with the names in the table. No value is copied."""
        if not self.lower:
            return batches
        return [replace(batch, rows=batch.rows.rename_columns(self.of(batch.rows.schema.names))) for batch in batches]

    def event(self, event: ControlEvent) -> ControlEvent:
        """Return an event with the names in the table. Raises `SinkRejected` for two columns that would be one."""
        if not (self.lower and isinstance(event, SchemaChange)):
            return event
        origins = event.origins
        if origins is not None:
            origins = dict(zip(self.of(origins), self.of(origins.values()), strict=True))
        return replace(event, after=self.schema(event.after), origins=origins)


def other_case(stream: Stream, target: Target, record: TableRecord | None, schema: pa.Schema) -> SinkRejected | None:
    """Return why a table, known by `record`, cannot take rows of `schema`: names differ in upper or lower case.

    None: they do not. A log may get other columns, so that only names in lower case, as by the option, are refused.
    """
    if record is None or stream.is_backfill:
        return None
    shape = record.schema
    if target.may_differ and any(column != column.lower() for column in schema.names):
        return None
    former = {column.lower(): column for column in shape.names if column not in schema.names}
    new = [column for column in schema.names if column.lower() in former and column not in shape.names]
    if not new:
        return None
    reason = f"{target.table} has {', '.join(former[column.lower()] for column in new)}, not {', '.join(new)}"
    stays = target.keeps_rows or target.may_differ
    way = "deliver to another table, by a pipeline of another name" if stays else "run `tailer resnapshot PIPELINE`"
    return SinkRejected(stream.name, reason, f"If you have changed names or select, set it back, or {way}.")
