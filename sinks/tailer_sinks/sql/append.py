"""A log of changes in a table: all change rows, each with its position, once.

`_table_id`, `_commit_version`, `_task`, `_row` and `_change_type` identify a row, and are unique. Columns are known by
name: a renamed column is another one, and a dropped column is null from then on. A gap is a row whose change type is
`gap`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final
from zlib import crc32

import pyarrow as pa

from tailer.errors import SinkRejected
from tailer.events import CHANGE_TYPE, COMMIT_VERSION, ChangeBatch, Gap, joined_rows
from tailer.plan import Position
from tailer.sink import table_of
from tailer_sinks.encoding.typed import Misfit, conform, fits, gap_row
from tailer_sinks.sql.databases.dialect import Columns, Connection, Dialect, UniqueViolationError, column_list
from tailer_sinks.sql.databases.texts import holds_json
from tailer_sinks.sql.target import Rows, column_faults, insert, plain_schema

__all__ = ["ROW", "TABLE_ID", "TASK", "ChangeLog"]

TABLE_ID, TASK, ROW = "_table_id", "_task", "_row"
_POSITION: Final = (pa.field(TABLE_ID, pa.string()), pa.field(TASK, pa.int64()), pa.field(ROW, pa.int64()))
_KEY: Final = (TABLE_ID, COMMIT_VERSION, TASK, ROW, CHANGE_TYPE)
_REMEDY: Final = "Deliver to a new table: another table, and another name for the pipeline."


class ChangeLog:
    """See the module and `Target`. `name`: the sink's in errors. `app_id`: of the stream, whose table id rows have."""

    mode: Final = "append"
    may_differ: Final = True

    def __init__(self, name: str, dialect: Dialect, table: str, app_id: str) -> None:
        self.table = table
        self.key: tuple[str, ...] = ()
        self._name = name
        self._dialect = dialect
        self._table_id = table_of(app_id)

    def faults(self, schema: pa.Schema) -> Iterator[SinkRejected]:
        """See `Target.faults`."""
        for each in _POSITION:
            if each.name in schema.names:
                reason = f"column {each.name} has the name of a column that the sink adds"
                yield SinkRejected(self._name, reason, "Give it another name with select.")
        yield from column_faults(self._name, self._dialect, schema)

    def start(self, schema: pa.Schema) -> pa.Schema:
        """See `Target.start`."""
        for fault in self.faults(schema):
            raise fault
        return pa.schema([*plain_schema(self._name, self._dialect, schema), *_POSITION])

    def change(self, shape: pa.Schema, after: pa.Schema, origins: Mapping[str, str] | None) -> Columns:
        """See `Target.change`."""
        fields = {each.name: each for each in shape}
        added, widened, others = [], [], []
        for each in self.start(after):
            known = fields.get(each.name)
            if known is None:
                added.append(each)
                fields[each.name] = each
            elif known.type == each.type or fits(each.type, known.type):
                continue
            elif holds_json(known.type) and holds_json(each.type):
                fields[each.name] = each
            elif fits(known.type, each.type):
                widened.append((each.name, known.type, each.type))
                fields[each.name] = each
            else:
                others.append(f"column {each.name} of {self.table} is {known.type}, and rows now have {each.type}")
        if others:
            raise SinkRejected(self._name, "; ".join(others), _REMEDY)
        return Columns(pa.schema(list(fields.values())), added=added, widened=widened)

    def staging(self, shape: pa.Schema, schema: pa.Schema) -> pa.Schema:
        """See `Target.staging`."""
        return pa.schema([shape.field(each.name) for each in (*schema, *_POSITION)])

    def staged(self, batches: Sequence[ChangeBatch], staging: pa.Schema, rows: Rows) -> list[pa.RecordBatch]:
        """See `Target.staged`."""
        rows.note(batches, deletes=False)
        joined = joined_rows(batches)
        tasks = pa.concat_arrays([pa.repeat(pa.scalar(batch.task, pa.int64()), len(batch)) for batch in batches])
        numbers = pa.concat_arrays([batch.row_index.cast(pa.int64()) for batch in batches])
        columns = [*joined.columns, pa.repeat(self._table_id, len(joined)), tasks, numbers]
        return [self._conformed(pa.record_batch(columns, [*joined.schema.names, TABLE_ID, TASK, ROW]), staging)]

    def gap(self, gap: Gap, staging: pa.Schema) -> pa.RecordBatch:
        """See `Target.gap`."""
        row = gap_row(gap, staging)
        # A version may have a gap, and others of snapshots that were asked for after it.
        task = -1 if gap.command is None else -2 - crc32(gap.command.encode())
        place = {TABLE_ID: self._table_id, TASK: task, ROW: -1}
        columns = [
            pa.array([place[each.name]], each.type) if each.name in place else row.column(each.name) for each in staging
        ]
        return pa.record_batch(columns, schema=staging)

    def constraint(self) -> str:
        """See `Target.constraint`."""
        return f"UNIQUE ({column_list(_KEY)})"

    def merge(self, connection: Connection, waiting: str, staging: pa.Schema, rows: Rows) -> None:
        """See `Target.merge`."""
        try:
            insert(connection, self._dialect, self.table, staging.names, _KEY, waiting)
        except UniqueViolationError as error:
            reason = f"{self.table} has rows of versions {_span(rows)} already"
            remedy = "Delete them, or set the progress after them with `tailer progress reset PIPELINE --to VERSION`."
            raise SinkRejected(self._name, reason, remedy) from error

    def reset_refusal(self, connection: Connection, is_known: bool, position: Position) -> tuple[str, str] | None:
        """See `Target.reset_refusal`. Rows that are there would be delivered again."""
        if not is_known:
            return None
        later = f"FROM {self._dialect.name_of(self.table)} WHERE {TABLE_ID} = ? AND {COMMIT_VERSION} > ? LIMIT 1"
        if not connection.query(f"SELECT 1 {later}", [self._table_id, position.version]):
            return None
        remedy = f"Delete them first: those with {COMMIT_VERSION} > {position.version}."
        return f"{self.table} has rows after version {position.version}, which would be there twice", remedy

    def _conformed(self, rows: pa.RecordBatch, staging: pa.Schema) -> pa.RecordBatch:
        kept = {each.name for each in staging if holds_json(each.type)}
        schema = pa.schema([rows.schema.field(each.name) if each.name in kept else each for each in staging])
        try:
            return conform(rows, schema)
        except Misfit as misfit:
            raise SinkRejected(self._name, str(misfit), _REMEDY) from misfit


def _span(rows: Rows) -> str:
    return "unknown" if rows.versions is None else f"{rows.versions[0]} to {rows.versions[1]}"
