"""Databases of the tests of the `sql` sink, read without it: the rows of their tables as flat JSON values."""

import base64
import json
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, closing, contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import psycopg
import pyarrow as pa

from tailer.engine.local import LocalEngine
from tailer.pipeline.policy import Policy
from tailer.pipeline.verification.comparison import Verification, verify
from tailer.table_log import TableLog
from tailer_sinks.sql.databases.dialect import column_list, quoted
from tailer_sinks.sql.databases.texts import holds_json
from tailer_sinks.sql.records import schema_from_text
from tailer_sinks.sql.sink import SqlSink
from tests.support.mirrors.delta import APP, batch, deliver, full
from tests.support.servers.postgres import USER, Postgres

if TYPE_CHECKING:
    import duckdb

__all__ = [
    "APP",
    "Database",
    "DuckDbDatabase",
    "PostgresDatabase",
    "SqliteDatabase",
    "batch",
    "deliver",
    "full",
    "mirrored",
    "opened",
    "rows_in",
    "verified",
    "waiting_in",
]

Values = list[dict[str, Any]]
_NUMBERS = count()


class Database(Protocol):
    """A database. `options`: those of the sink that name it."""

    @property
    def options(self) -> dict[str, Any]: ...

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement. Return its rows."""
        ...

    def has(self, table: str) -> bool:
        """Return whether there is a table of that name."""
        ...

    def values(self, table: str, schema: pa.Schema) -> Values:
        """Return all rows of a table whose columns hold values of `schema`, as JSON values."""
        ...

    def tables(self) -> list[str]:
        """Return the names of all tables."""
        ...

    def holding_the_progress(self) -> AbstractContextManager[None]:
        """Hold the lock of the progress of all streams."""
        ...


class SqliteDatabase:
    """A file of SQLite."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.options = {"url": f"sqlite:///{path}"}

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path, timeout=30)) as connection, connection:
            return connection.execute(statement).fetchall()

    def has(self, table: str) -> bool:
        return table in self.tables()

    def tables(self) -> list[str]:
        if not self.path.exists():
            return []
        return [name for (name,) in self.query("SELECT name FROM sqlite_master WHERE type = 'table'")]

    @contextmanager
    def holding_the_progress(self) -> Iterator[None]:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            connection.execute("UPDATE lake_tailer_progress SET task = task")
            yield

    def is_locked(self) -> bool:
        """Return whether a transaction that writes is open."""
        with closing(sqlite3.connect(self.path, timeout=0)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                    raise
                return True
        return False

    def values(self, table: str, schema: pa.Schema) -> Values:
        rows = self.query(f"SELECT {column_list(schema.names)} FROM {quoted(table)}")
        return _values(rows, schema, _sqlite_value)


class DuckDbDatabase:
    """A file of DuckDB."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.options = {"url": f"duckdb:///{path}"}

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        with self._opened(reads=statement.startswith("SELECT")) as connection:
            return connection.execute(statement).fetchall()

    def has(self, table: str) -> bool:
        return table in self.tables()

    def tables(self) -> list[str]:
        if not self.path.exists():
            return []
        return [name for (name,) in self.query("SELECT table_name FROM duckdb_tables()")]

    @contextmanager
    def holding_the_progress(self) -> Iterator[None]:
        with self._opened(reads=False):
            yield

    def values(self, table: str, schema: pa.Schema) -> Values:
        columns = ", ".join(_as_duckdb_text(each) for each in schema)
        return _values(self.query(f"SELECT {columns} FROM {quoted(table)}"), schema, _text_value)

    @contextmanager
    def _opened(self, *, reads: bool) -> Iterator["duckdb.DuckDBPyConnection"]:
        """Open the file once nobody else has it open."""
        import duckdb  # noqa: PLC0415 - every test imports this module

        connection = None
        deadline_s = time.monotonic() + 60
        while connection is None:
            try:
                connection = duckdb.connect(self.path, read_only=reads)
            except duckdb.OperationalError:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(0.005)
        with closing(connection):
            connection.execute("SET TimeZone = 'UTC'")
            yield connection


class PostgresDatabase:
    """A schema of its own in a PostgreSQL."""

    def __init__(self, server: Postgres) -> None:
        self.schema = f"tests_{next(_NUMBERS)}"
        url = server.url.removeprefix("jdbc:").replace("//", f"//{USER}@")
        self.options = {"url": url, "schema": self.schema}
        self.query(f"CREATE SCHEMA {self.schema}")

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        settings = f"-c search_path={self.schema} -c timezone=UTC"
        with psycopg.connect(self.options["url"], options=settings) as connection:
            cursor = connection.execute(statement.encode())
            return [] if cursor.description is None else cursor.fetchall()

    def has(self, table: str) -> bool:
        return table in self.tables()

    def tables(self) -> list[str]:
        return [name for (name,) in self.query(f"SELECT tablename FROM pg_tables WHERE schemaname = '{self.schema}'")]

    @contextmanager
    def holding_the_progress(self) -> Iterator[None]:
        with psycopg.connect(self.options["url"], options=f"-c search_path={self.schema}") as connection:
            connection.execute("UPDATE lake_tailer_progress SET task = task")
            yield

    def values(self, table: str, schema: pa.Schema) -> Values:
        columns = ", ".join(_as_text(each) for each in schema)
        return _values(self.query(f"SELECT {columns} FROM {quoted(table)}"), schema, _text_value)


def rows_in(database: Database, table: str) -> Values:
    """Return the rows of a table of the sink as JSON values; none if there is no such table."""
    schema = _schema(database, table)
    return [] if schema is None else database.values(table, schema)


def waiting_in(database: Database, app_id: str) -> Iterator[tuple[str, pa.Schema]]:
    """Yield the tables with rows that wait for the end of their version, and the schema of these rows."""
    if database.has("lake_tailer_progress"):
        found = database.query(f"SELECT parts FROM lake_tailer_progress WHERE app_id = '{app_id}'")
        for each in json.loads(found[0][0] or "[]") if found else []:
            yield each["table"], schema_from_text(each["schema"])


def mirrored(database: Database, table: str) -> int | None:
    """Return the version of a table; None: there is none yet."""
    if not database.has("lake_tailer_mirrors"):
        return None
    found = database.query(f"SELECT version FROM lake_tailer_mirrors WHERE table_name = '{table}'")
    return found[0][0] if found else None


def _schema(database: Database, table: str) -> pa.Schema | None:
    if not database.has("lake_tailer_mirrors"):
        return None
    found = database.query(f"SELECT columns FROM lake_tailer_mirrors WHERE table_name = '{table}'")
    return schema_from_text(found[0][0]) if found else None


def _values(rows: list[tuple[Any, ...]], schema: pa.Schema, convert: Callable[[pa.DataType, Any], Any]) -> Values:
    return [
        {
            each.name: None if value is None else convert(each.type, value)
            for each, value in zip(schema, row, strict=True)
        }
        for row in rows
    ]


def _sqlite_value(kind: pa.DataType, value: Any) -> Any:
    if pa.types.is_boolean(kind):
        return bool(value)
    if pa.types.is_floating(kind):
        return _float(kind, float(value))
    if holds_json(kind):
        return json.loads(value)
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _text_value(kind: pa.DataType, value: str) -> Any:
    if pa.types.is_boolean(kind):
        return value == "true"
    if pa.types.is_integer(kind):
        return int(value)
    if pa.types.is_floating(kind):
        return _float(kind, float(value))
    return json.loads(value) if holds_json(kind) else value.replace("\n", "") if _is_bytes(kind) else value


def _float(kind: pa.DataType, value: float) -> Any:
    if value != value or value in (float("inf"), float("-inf")):  # noqa: PLR0124 - NaN
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
    return float(pa.scalar(value, kind).cast(pa.string()).as_py())


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _as_duckdb_text(column: pa.Field) -> str:
    name, kind = quoted(column.name), column.type
    if _is_bytes(kind):
        return f"to_base64({name})"
    if pa.types.is_timestamp(kind):
        zone = "" if kind.tz is None else "Z"
        return f"strftime({name}, '%Y-%m-%dT%H:%M:%S.%f{zone}')"
    return f"CAST({name} AS VARCHAR)"


def _as_text(column: pa.Field) -> str:
    name, kind = quoted(column.name), column.type
    if _is_bytes(kind):
        return f"encode({name}, 'base64')"
    if pa.types.is_timestamp(kind):
        zone = "" if kind.tz is None else '"Z"'
        return f"""to_char({name}, 'YYYY-MM-DD"T"HH24:MI:SS.US{zone}')"""
    return f"{name}::text"


@asynccontextmanager
async def opened(database: Database, **options: Any) -> AsyncIterator[SqlSink]:
    sink = SqlSink.configure("orders", {"key": ["id"], **database.options, **options})
    try:
        yield sink
    finally:
        await sink.aclose()


async def verified(sink: SqlSink, pipeline: str, table: TableLog, policy: Policy, limit: int = 100) -> Verification:
    """Compare the table of a sink with its source."""
    async with sink.open_mirror(pipeline) as mirror:
        return await verify(mirror, table, LocalEngine(), policy, limit)
