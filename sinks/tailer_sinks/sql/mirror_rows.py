"""The rows of a mirror, and rows of the source as it would hold them, to compare the two.

Rows of the source are loaded into a temporary table with the columns of the mirror, as the sink loads all rows, and
read back by the same query. So whatever the database makes of a value happens on both sides.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pyarrow as pa

from tailer.errors import SinkRejected
from tailer_sinks.sql.comparable_json import comparable_json
from tailer_sinks.sql.databases.dialect import Connection, Dialect, quoted
from tailer_sinks.sql.databases.texts import holds_json
from tailer_sinks.sql.records import TableRecord
from tailer_sinks.sql.segments import create_waiting
from tailer_sinks.sql.stream import Stream
from tailer_sinks.sql.target import Target

__all__ = ["SqlMirrorRows", "mirror_rows"]

_COMPARED = "lake_tailer_compared"


class SqlMirrorRows:
    """A `tailer.sink.MirrorRows` of the table of `record`, by two connections.

    `mirror` is in a transaction that reads one state. `scratch` has the temporary table.
    """

    def __init__(
        self, dialect: Dialect, record: TableRecord, version: int, mirror: Connection, scratch: Connection
    ) -> None:
        self.app_id = record.app_id
        self.version = version
        self.columns = tuple(record.schema.names)
        self.key = record.key
        self._table = dialect.name_of(record.table)
        self._schema = record.schema
        self._dialect = dialect
        self._mirror = mirror
        self._scratch = scratch
        self._json = {each.name: comparable_json(each.type) for each in record.schema if holds_json(each.type)}
        create_waiting(scratch, dialect, _COMPARED, record.schema, stays=False)

    def rows(self) -> Iterator[pa.RecordBatch]:
        """See `MirrorRows.rows`."""
        yield from self._texts(self._mirror, self._table)

    def as_stored(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """See `MirrorRows.as_stored`."""
        columns = [rows.column(each.name) for each in self._schema]
        stored = [
            column if column.type == each.type else column.cast(each.type)
            for column, each in zip(columns, self._schema, strict=True)
        ]
        self._dialect.empty(self._scratch, quoted(_COMPARED))
        self._scratch.load(quoted(_COMPARED), pa.record_batch(stored, schema=self._schema))
        yield from self._texts(self._scratch, quoted(_COMPARED))

    def _texts(self, connection: Connection, table: str) -> Iterator[pa.RecordBatch]:
        # With the table's name: SQLite takes the name of a column that is not there for a text.
        columns = ", ".join(f"compared.{quoted(each)}" for each in self.columns)
        for batch in connection.texts(f"SELECT {columns} FROM {table} AS compared", self._schema):
            texts = [
                self._json[name](column) if name in self._json else column
                for name, column in zip(self.columns, batch.columns, strict=True)
            ]
            yield pa.record_batch(texts, list(self.columns))


@contextmanager
def mirror_rows(stream: Stream, target: Target, pipeline: str) -> Iterator[SqlMirrorRows]:
    """Open the rows of the table that `pipeline` fills. Raises as entering `Sink.open_mirror` does."""
    dialect = stream.dialect
    nothing = SinkRejected(
        stream.name,
        f"the table {target.table} has no version yet",
        "Wait until its pipeline has delivered one: see `tailer status`.",
    )
    if not dialect.is_there():
        raise nothing
    with ExitStack() as opened:
        mirror = dialect.connect()
        opened.callback(mirror.close)
        if not dialect.has_table(mirror, target.table):
            raise nothing
        scratch = dialect.connect()
        opened.callback(scratch.close)
        opened.enter_context(mirror.one_state(dialect.name_of(target.table)))
        record = stream.record(mirror, target, pipeline)
        if record is None:
            raise nothing
        version = stream.records.version(mirror, target.table)
        yield SqlMirrorRows(dialect, record, version, mirror, scratch)
