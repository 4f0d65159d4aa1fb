"""DuckDB, by its own library.

A file of DuckDB can be open in several processes that read it, or in one that writes. So the file is attached for a
transaction or a query alone, and programs can read it in between. Rows that wait are in the temporary tables of a
database in memory, which spills to disk. While another program has the file open, this one waits for it.

DuckDB refuses to commit a transaction that changes rows of a table and then its columns. So a table gets other columns
by being written again, in the same transaction. It has no constraint for its key: the index behind one must fit into
memory, and slows all writes down.
"""

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from typing_extensions import override

from tailer_sinks.sql.databases.dialect import Columns, Connection, Holds, InFile, column_list, quoted
from tailer_sinks.sql.databases.existing import ExistingTable, described_in_duckdb
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


# The first and last day and moment of DuckDB's calendar; the numbers next to them stand for infinity.
_DAYS: Final = (-2_147_483_646, 2_147_483_646)
_MICROS: Final = (-9_223_372_022_400_000_000, 9_223_372_036_854_775_806)


class DuckDb(InFile):
    """The database in the file at `path`, for the sink called `name`."""

    holds = Holds(row_bytes=4 * 10**9, days=_DAYS, micros=_MICROS)
    enforces_keys = False

    @override
    def connect(self) -> Connection:
        """The file is made by the first query, if it is not there."""
        from tailer_sinks.sql.databases.duckdb_connection import DuckDbConnection  # noqa: PLC0415 - in a worker thread

        return DuckDbConnection(self.name, self.path.absolute(), _FILE, self.holds)

    @override
    def type_of(self, kind: pa.DataType) -> str | None:
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

    @override
    def name_of(self, table: str) -> str:
        return f"{_FILE}.main.{quoted(table)}"

    @override
    def has_table(self, connection: Connection, table: str) -> bool:
        statement = f"SELECT 1 FROM information_schema.tables WHERE table_catalog = '{_FILE}' AND table_schema = 'main'"
        return bool(connection.query(f"{statement} AND lower(table_name) = lower(?)", [table]))

    @override
    def describe(self, connection: Connection, table: str) -> ExistingTable:
        return described_in_duckdb(connection.query, _FILE, table, self.type_of)

    @override
    def alter(self, table: str, change: Columns) -> Iterator[str]:
        """The table is written again."""
        if not (change.dropped or change.renamed or change.widened or change.added):
            return
        old_names = {new: old for old, new in change.renamed}
        narrow = {name: kind for name, kind, _ in change.widened}
        added = {column.name for column in change.added}
        columns, values = [], []
        for column in change.after:
            kind, is_key = self.type_of(column.type), column.name in change.key
            columns.append(f"{quoted(column.name)} {kind}{' NOT NULL' if is_key else ''}")
            has_values = column.name not in added and not pa.types.is_null(narrow.get(column.name, column.type))
            old = quoted(old_names.get(column.name, column.name))
            values.append(f"CAST({old if has_values else 'NULL'} AS {kind})")
        now, again, names = self.name_of(table), self.name_of(_AGAIN), column_list(change.after.names)
        yield f"CREATE TABLE {again} ({', '.join(columns)})"
        yield f"INSERT INTO {again} ({names}) SELECT {', '.join(values)} FROM {now}"
        yield f"DROP TABLE {now}"
        yield f"ALTER TABLE {again} RENAME TO {quoted(table)}"
