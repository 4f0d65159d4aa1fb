"""A log of changes in a table: all change rows, each with its position, once.

`_table_id`, `_commit_version`, `_task`, `_row` and `_change_type` identify a row, and are unique. Columns are known by
name: a renamed column is another one, and a dropped column is null from then on. A gap is a row whose change type is
`gap`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final
from zlib import crc32

import pyarrow as pa
from typing_extensions import override

from tailer.errors import SinkRejected
from tailer.events import CHANGE_TYPE, COMMIT_VERSION, ChangeBatch, Gap, joined_rows
from tailer.sink import Progress, table_of
from tailer_sinks.encoding.typed import fits, gap_row
from tailer_sinks.sql.databases.dialect import Columns, Connection, Dialect, UniqueViolationError, column_list
from tailer_sinks.sql.databases.texts import cast_or_kept, holds_json
from tailer_sinks.sql.target import Rows, Target, column_faults, insert, plain_schema

__all__ = ["LOG_KEY", "ROW", "TABLE_ID", "TASK", "ChangeLog", "gap_task"]

TABLE_ID, TASK, ROW = "_table_id", "_task", "_row"
_POSITION: Final = (pa.field(TABLE_ID, pa.string()), pa.field(TASK, pa.int64()), pa.field(ROW, pa.int64()))
LOG_KEY: Final = (TABLE_ID, COMMIT_VERSION, TASK, ROW, CHANGE_TYPE)
_REMEDY: Final = "Deliver to a new table: another table, and another name for the pipeline."


class ChangeLog(Target):
    """See the module and `Target`. `name`: the sink's in errors. `app_id`: of the stream, whose table id rows have."""

    mode = "append"
    may_differ = True
    keeps_rows = False
    adopts = False
    existing = None

    def __init__(self, name: str, dialect: Dialect, table: str, app_id: str) -> None:
        self.table = table
        self.key: tuple[str, ...] = ()
        self._name = name
        self._dialect = dialect
        self._table_id = table_of(app_id)

    @property
    @override
    def rows_now(self) -> str:
        return self._dialect.name_of(self.table)

    @override
    def faults(self, schema: pa.Schema) -> Iterator[SinkRejected]:
        for column in _POSITION:
            if column.name in schema.names:
                reason = f"column {column.name} has the name of a column that the sink adds"
                yield SinkRejected(self._name, reason, "Give it another name with select.")
        yield from column_faults(self._name, self._dialect, schema)

    @override
    def start(self, schema: pa.Schema) -> pa.Schema:
        for fault in self.faults(schema):
            raise fault
        return pa.schema([*plain_schema(self._name, self._dialect, schema), *_POSITION])

    @override
    def change(self, shape: pa.Schema, after: pa.Schema, origins: Mapping[str, str] | None) -> Columns:
        fields = {column.name: column for column in shape}
        added, widened, others = [], [], []
        for column in self.start(after):
            field = fields.get(column.name)
            if field is None:
                added.append(column)
                fields[column.name] = column
            elif field.type == column.type or fits(column.type, field.type):
                continue
            elif holds_json(field.type) and holds_json(column.type):
                fields[column.name] = column
            elif fits(field.type, column.type):
                widened.append((column.name, field.type, column.type))
                fields[column.name] = column
            else:
                others.append(f"column {column.name} of {self.table} is {field.type}, and rows now have {column.type}")
        if others:
            raise SinkRejected(self._name, "; ".join(others), _REMEDY)
        all_columns = pa.schema(list(fields.values()))
        for fault in column_faults(self._name, self._dialect, all_columns):
            raise fault
        return Columns(all_columns, added=added, widened=widened)

    @override
    def staging(self, shape: pa.Schema, schema: pa.Schema) -> pa.Schema:
        return pa.schema([shape.field(column.name) for column in (*schema, *_POSITION)])

    @override
    def staged(self, batches: Sequence[ChangeBatch], staging: pa.Schema, rows: Rows) -> list[pa.RecordBatch]:
        rows.note(batches, deletes=False)
        joined = joined_rows(batches)
        tasks = pa.concat_arrays([pa.repeat(pa.scalar(batch.task, pa.int64()), len(batch)) for batch in batches])
        numbers = pa.concat_arrays([batch.row_index.cast(pa.int64()) for batch in batches])
        columns = [*joined.columns, pa.repeat(self._table_id, len(joined)), tasks, numbers]
        named = pa.record_batch(columns, [*joined.schema.names, TABLE_ID, TASK, ROW])
        columns = list(map(cast_or_kept, named.select(staging.names).columns, staging.types))
        return [pa.record_batch(columns, staging.names)]

    @override
    def gap(self, gap: Gap, staging: pa.Schema) -> pa.RecordBatch:
        row = gap_row(gap, staging)
        place = {TABLE_ID: self._table_id, TASK: gap_task(gap.command), ROW: -1}
        columns = [
            pa.array([place[column.name]], column.type) if column.name in place else row.column(column.name)
            for column in staging
        ]
        return pa.record_batch(columns, schema=staging)

    @override
    def constraint(self) -> str:
        return f"UNIQUE ({column_list(LOG_KEY)})"

    @override
    def merge(self, connection: Connection, waiting: str, staging: pa.Schema, rows: Rows) -> None:
        try:
            insert(connection, self._dialect, self.table, staging.names, LOG_KEY, waiting)
        except UniqueViolationError as error:
            span = "unknown" if rows.versions is None else f"{rows.versions[0]} to {rows.versions[1]}"
            reason = f"{self.table} has rows of versions {span} already"
            remedy = "Delete them, or set the progress after them with `tailer progress reset PIPELINE --to VERSION`."
            raise SinkRejected(self._name, reason, remedy) from error

    @override
    def reset_refusal(self, connection: Connection, there: Progress | None, wanted: Progress) -> tuple[str, str] | None:
        """Rows that are there would be delivered again."""
        version = wanted.position.version
        if there is None or there.app_id != wanted.app_id:
            return None
        later = f"FROM {self._dialect.name_of(self.table)} WHERE {TABLE_ID} = ? AND {COMMIT_VERSION} > ? LIMIT 1"
        if not connection.query(f"SELECT 1 {later}", [self._table_id, version]):
            return None
        remedy = f"Delete them first: those with {COMMIT_VERSION} > {version}."
        return f"{self.table} has rows after version {version}, which would be there twice", remedy


def gap_task(command: str | None) -> int:
    """Return the task number of a gap: a version may have one, and others before the snapshots of commands."""
    return -1 if command is None else -2 - crc32(command.encode())
