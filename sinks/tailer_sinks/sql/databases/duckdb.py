"""DuckDB, by its own library.

A file of DuckDB can be open in several processes that read it, or in one that writes. So the file is attached for a
transaction or a query alone, and programs can read it in between. Rows that wait are in the temporary tables of a
database in memory, which spills to disk. While another program has the file open, this one waits for it.

DuckDB refuses to commit a transaction that changes rows of a table and then its columns. So a table gets other columns
by being written again, in the same transaction. It has no constraint for its key: the index behind one must fit into
memory, and slows all writes down.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa

from tailer_sinks.sql.databases.dialect import Columns, Connection, InFile, column_list, quoted
from tailer_sinks.sql.databases.texts import NoText, holds_json, json_texts

__all__ = ["DuckDb"]

_FILE: Final = "lake_tailer_file"  # the name of the database in the file
_AGAIN: Final = "lake_tailer_again"  # the name of a table while it is written again
_MOST_DIGITS: Final = 38
_TYPES: Final = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "VARCHAR",
    pa.large_string(): "VARCHAR",
    pa.null(): "VARCHAR",
    pa.binary(): "BLOB",
    pa.large_binary(): "BLOB",
    pa.date32(): "DATE",
    pa.timestamp("us"): "TIMESTAMP",
    pa.timestamp("us", "UTC"): "TIMESTAMPTZ",
    pa.time64("us"): "TIME",
}


class DuckDb(InFile):
    """The database in the file at `path`, for the sink called `name`."""

    name_bytes: Final = 1 << 16
    has_users: Final = False
    enforces_keys: Final = False

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path

    def is_there(self) -> bool:
        """See `Dialect.is_there`."""
        return self.path.exists()

    def connect(self) -> Connection:
        """See `Dialect.connect`. The file is made by the first query, if it is not there."""
        from tailer_sinks.sql.databases.duckdb_connection import DuckDbConnection  # noqa: PLC0415 - in a worker thread

        return DuckDbConnection(self.name, self.path.absolute(), _FILE)

    def type_of(self, kind: pa.DataType) -> str | None:
        """See `Dialect.type_of`."""
        if pa.types.is_decimal(kind):
            fits = 0 <= kind.scale <= kind.precision <= _MOST_DIGITS
            return f"DECIMAL({kind.precision}, {kind.scale})" if fits else None
        if holds_json(kind):
            try:
                json_texts(kind)
            except NoText:
                return None
            return "JSON"
        return "BLOB" if pa.types.is_fixed_size_binary(kind) else _TYPES.get(kind)

    def name_of(self, table: str) -> str:
        """See `Dialect.name_of`."""
        return f"{_FILE}.main.{quoted(table)}"

    def has_table(self, connection: Connection, table: str) -> bool:
        """See `Dialect.has_table`."""
        statement = f"SELECT 1 FROM information_schema.tables WHERE table_catalog = '{_FILE}' AND table_schema = 'main'"
        return bool(connection.query(f"{statement} AND lower(table_name) = lower(?)", [table]))

    def empty(self, connection: Connection, table: str) -> None:
        """See `Dialect.empty`."""
        connection.execute(f"DELETE FROM {table}")

    def analyze(self, connection: Connection, table: str, columns: Sequence[str]) -> None:
        """See `Dialect.analyze`."""

    def alter(self, table: str, change: Columns) -> Iterator[str]:
        """See `Dialect.alter`. The table is written again."""
        if not (change.dropped or change.renamed or change.widened or change.added):
            return
        old_names = {new: old for old, new in change.renamed}
        narrow = {name: kind for name, kind, _ in change.widened}
        added = {each.name for each in change.added}
        columns, values = [], []
        for each in change.after:
            kind, is_key = self.type_of(each.type), each.name in change.key
            columns.append(f"{quoted(each.name)} {kind}{' NOT NULL' if is_key else ''}")
            has_values = each.name not in added and not pa.types.is_null(narrow.get(each.name, each.type))
            old = quoted(old_names.get(each.name, each.name))
            values.append(f"CAST({old if has_values else 'NULL'} AS {kind})")
        now, again, names = self.name_of(table), self.name_of(_AGAIN), column_list(change.after.names)
        yield f"CREATE TABLE {again} ({', '.join(columns)})"
        yield f"INSERT INTO {again} ({names}) SELECT {', '.join(values)} FROM {now}"
        yield f"DROP TABLE {now}"
        yield f"ALTER TABLE {again} RENAME TO {quoted(table)}"
