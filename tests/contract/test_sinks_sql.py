"""The contract of a sink, kept by `sql` in SQLite, DuckDB and PostgreSQL, as a log of changes and as a mirror.

On every landing: a log in SQLite and a mirror in DuckDB; logs in DuckDB in `integration/test_sql_sink.py`.
"""

from contextlib import aclosing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from anyio import to_thread

from tailer_sinks.sql.sink import SqlSink
from tailer_sinks.testing import SinkTests
from tailer_sinks.testing.rows import numbered
from tailer_sinks.testing.suite import APP, SCHEMA, deliver
from tests.support.mirrors.contract import METADATA, OfMirrors
from tests.support.mirrors.databases import (
    Database,
    DuckDbDatabase,
    PostgresDatabase,
    SqliteDatabase,
    rows_in,
    waiting_in,
)
from tests.support.servers.postgres import Postgres

POSITION = ("_table_id", "_task", "_row")


class LogTests(SinkTests):
    keeps_order = False  # rows of a table have no order
    reports_schema_changes = False  # they show in the table's columns
    database: Database

    def make_sink(self, table: str = "sql") -> SqlSink:
        return SqlSink.configure("sql", {**self.database.options, "mode": "append", "table": table})

    async def test_it_is_known_whether_a_pipeline_has_delivered(self) -> None:
        """As in the suite, but with a table for each pipeline."""
        others = ("order", "orders2", "orders/eu")
        async with self.opened() as sink:
            assert not await sink.has_delivered("orders")
            async with aclosing(self.make_sink("other")) as other, aclosing(self.make_sink("more")) as more:
                await deliver(other, numbered(1), app_id="orders2/5f0c")
                await deliver(more, numbered(1), app_id="order/5f0c")
            async with sink.begin(APP, SCHEMA) as transaction:
                await transaction.write(numbered(1))
            assert not await sink.has_delivered("orders")
            assert [await sink.has_delivered(name) for name in others] == [True, True, False]
            await deliver(sink, numbered(1))
            assert await sink.has_delivered("orders")
        await self.assert_has_delivered("orders")

    async def delivered(self, app_id: str) -> list[dict[str, Any]]:
        return await to_thread.run_sync(self._read, app_id)

    def _read(self, app_id: str) -> list[dict[str, Any]]:
        """Streams share a table. Rows of a version that is not complete wait elsewhere."""
        rows = rows_in(self.database, "sql")
        for table, schema in waiting_in(self.database, app_id):
            more = [pa.field(POSITION[0], pa.string()), *(pa.field(each, pa.int64()) for each in POSITION[1:])]
            rows += self.database.values(table, pa.schema([*schema, *more]))
        return [
            {name: value for name, value in row.items() if name not in POSITION}
            for row in rows
            if row["_table_id"] == app_id.rpartition("/")[2]
        ]


@pytest.mark.sampled(4)
class TestLogInSqlite(LogTests):
    @pytest.fixture(autouse=True)
    def destination(self, tmp_path: Path) -> None:
        self.database = SqliteDatabase(tmp_path / "log.db")


@pytest.mark.nightly
class TestLogInDuckDb(LogTests):
    @pytest.fixture(autouse=True)
    def destination(self, tmp_path: Path) -> None:
        self.database = DuckDbDatabase(tmp_path / "log.duckdb")


@pytest.mark.sampled(4)
class TestLogInPostgres(LogTests):
    @pytest.fixture(autouse=True)
    def destination(self, postgres: Postgres) -> None:
        self.database = PostgresDatabase(postgres)


class MirrorTests(OfMirrors, LogTests):
    def make_sink(self, table: str = "sql") -> SqlSink:
        return SqlSink.configure("sql", {**self.database.options, "key": ["id"], "table": table})

    def _read(self, app_id: str) -> list[dict[str, Any]]:
        rows = rows_in(self.database, "sql")
        for table, schema in waiting_in(self.database, app_id):
            columns = [each for each in schema if each.name not in METADATA]
            rows += self.database.values(table, pa.schema(columns))
        return [{**row, "_change_type": "insert"} for row in rows]


@pytest.mark.sampled(4)
class TestMirrorInSqlite(MirrorTests):
    @pytest.fixture(autouse=True)
    def destination(self, tmp_path: Path) -> None:
        self.database = SqliteDatabase(tmp_path / "mirror.db")


@pytest.mark.sampled(8)
class TestMirrorInDuckDb(MirrorTests):
    @pytest.fixture(autouse=True)
    def destination(self, tmp_path: Path) -> None:
        self.database = DuckDbDatabase(tmp_path / "mirror.duckdb")


@pytest.mark.sampled(4)
class TestMirrorInPostgres(MirrorTests):
    @pytest.fixture(autouse=True)
    def destination(self, postgres: Postgres) -> None:
        self.database = PostgresDatabase(postgres)
