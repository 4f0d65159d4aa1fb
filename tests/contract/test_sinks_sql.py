"""The contract of a sink, kept by `sql` in SQLite, DuckDB and PostgreSQL, as a log of changes and as a mirror.

On every landing: a log in SQLite and a mirror in DuckDB; logs in DuckDB in `integration/test_sql_sink.py`.
"""

from contextlib import aclosing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from anyio import to_thread

from tailer.events import METADATA_FIELDS, Gap
from tailer_sinks.sql.sink import SqlSink
from tailer_sinks.testing import SinkTests
from tailer_sinks.testing.rows import numbered
from tailer_sinks.testing.suite import APP, SCHEMA, Rows, deliver
from tests.support.mirrors.databases import (
    Database,
    DuckDbDatabase,
    PostgresDatabase,
    SqliteDatabase,
    rows_in,
    waiting_in,
)
from tests.support.servers.postgres import Postgres

METADATA = frozenset(each.name for each in METADATA_FIELDS)
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


NOT_OF_MIRRORS = (
    # These deliver columns without a key, or a key twice, or null in it.
    "test_small_batches_may_come_together",
    "test_a_batch_may_be_wide",
    "test_columns_come_and_go_in_a_transaction",
    "test_narrower_numbers_arrive",
    "test_wider_numbers_arrive_or_are_refused_by_name",
    # These begin with other columns than the table has, without an announcement.
    "test_a_new_column_comes_with_the_next_transaction",
    "test_a_fault_loses_and_doubles_nothing",
    # These leave versions out, which a mirror refuses: `tests/integration/test_sql_sink.py`.
    "test_an_event_may_come_without_rows",
    "test_a_gap_stands_where_it_was_announced",
    "test_an_aborted_transaction_leaves_no_event",
    "test_events_and_progress_become_visible_together",
    "test_a_snapshot_that_is_lost_half_way_ends_in_a_gap",
    "test_reset_goes_forward_and_keeps_rows",
    "test_reset_may_come_first",
    "test_a_reset_counts_as_delivered",
    "test_reset_leaves_the_rest_of_a_snapshot_out",
    # In these two streams share a table.
    "test_streams_are_independent",
    "test_other_streams_do_not_see_a_snapshot",
)


class MirrorTests(LogTests):
    """A mirror has the rows that are left of the changes. Of a gap it only has the snapshot behind it."""

    def make_sink(self, table: str = "sql") -> SqlSink:
        return SqlSink.configure("sql", {**self.database.options, "key": ["id"], "table": table})

    def _read(self, app_id: str) -> list[dict[str, Any]]:
        rows = rows_in(self.database, "sql")
        for table, schema in waiting_in(self.database, app_id):
            columns = [each for each in schema if each.name not in METADATA]
            rows += self.database.values(table, pa.schema(columns))
        return [{**row, "_change_type": "insert"} for row in rows]

    def _compare_rows(self, found: Rows, wanted: Rows) -> None:
        left: dict[Any, dict[str, Any]] = {}
        for row in wanted:
            if row["_change_type"] == Gap.kind:
                left.clear()
            else:
                left[row["id"]] = _without_metadata(row)
        super()._compare_rows([_without_metadata(row) for row in found], list(left.values()))


for name in NOT_OF_MIRRORS:
    setattr(MirrorTests, name, None)


def _without_metadata(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in METADATA}


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
