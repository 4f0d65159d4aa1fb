"""The `sql` sink by itself, in SQLite and PostgreSQL: what a mirror does, columns that change, and what it refuses."""

import time
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from tailer.errors import SinkAccessRefused, SinkFenced, SinkRejected, SinkUnavailable
from tailer.events import ChangeBatch, Gap
from tailer.plan import SNAPSHOT_TASKS, TASKS, Position
from tailer.sink import Progress, app_id_of, backfill_name, table_of
from tailer_sinks.sql.databases.postgresql import PostgreSql
from tailer_sinks.sql.sink import SqlSink
from tests.support.mirrors.databases import (
    APP,
    Database,
    PostgresDatabase,
    SqliteDatabase,
    batch,
    deliver,
    full,
    mirrored,
    opened,
    rows_in,
    waiting_in,
)
from tests.support.servers.postgres import USER, Postgres
from tests.test_readme import blocks

pytestmark = pytest.mark.anyio


SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def inserts(version: int, *ids: int, task: int = 0) -> ChangeBatch:
    return batch(version, "insert", SCHEMA, [{"id": each, "name": f"{each} at {version}"} for each in ids], task)


def deletes(version: int, *ids: int, task: int = 0) -> ChangeBatch:
    return batch(version, "delete", SCHEMA, [{"id": each, "name": "old"} for each in ids], task)


def names(database: Database) -> dict[int, str]:
    return {row["id"]: row["name"] for row in rows_in(database, "orders")}


class TestMirror:
    async def test_of_a_key_that_changes_in_several_versions_the_last_one_counts(self, database: Database) -> None:
        async with opened(database) as sink:
            await deliver(sink, inserts(1, 1, 2, 3))
            await deliver(
                sink,
                deletes(2, 1, 2),
                inserts(2, 1, 4),
                deletes(3, 1, 4),
                inserts(3, 1),
                deletes(4, 1),
                inserts(5, 1, 5),
            )
        assert names(database) == {3: "3 at 1", 1: "1 at 5", 5: "5 at 5"}
        assert mirrored(database, "orders") == 5

    async def test_the_rows_of_a_version_need_no_order(self, database: Database) -> None:
        both = batch(2, ["update_postimage", "update_preimage"], SCHEMA, [{"id": 1, "name": "new"}, {"id": 1}])
        async with opened(database) as sink:
            await deliver(sink, inserts(1, 1, 2))
            await deliver(sink, both)
        assert names(database) == {1: "new", 2: "2 at 1"}

    async def test_names_and_values_are_never_sql(self, database: Database) -> None:
        evil = ('a"); DROP TABLE orders; --', "it's", "[x]", "`x`", "%s", "$1", "a;b", '"')
        schema = pa.schema([("id", pa.int64()), *((name, pa.string()) for name in evil)])
        rows = [{"id": number, **dict.fromkeys(evil, text)} for number, text in enumerate((*evil, "\\', x); --"))]
        async with opened(database) as sink:
            await deliver(sink, batch(1, "insert", schema, rows))
            await deliver(sink, batch(2, "delete", schema, rows[:1]))
        assert sorted(database.values("orders", schema), key=lambda row: row["id"]) == rows[1:]

    async def test_readers_do_not_see_a_part_of_a_version(self, database: Database) -> None:
        async with opened(database) as sink:
            await deliver(sink, inserts(1, 1, 2))
            await deliver(sink, deletes(2, 1, 2), at=Position(2, 0, 1))
        assert names(database) == {1: "1 at 1", 2: "2 at 1"}
        assert mirrored(database, "orders") == 1
        async with opened(database) as sink:
            assert await sink.progress(APP) == Progress(APP, Position(2, 0, 1))
            await deliver(sink, inserts(2, 2, 7, task=1), at=Position(2, 1, 1))
        assert mirrored(database, "orders") == 1
        async with opened(database) as sink:
            await deliver(sink, inserts(2, 8, task=2))
        assert names(database) == {2: "2 at 2", 7: "7 at 2", 8: "8 at 2"}
        assert mirrored(database, "orders") == 2
        assert sorted(database.tables()) == ["lake_tailer_mirrors", "lake_tailer_progress", "orders"]

    async def test_a_snapshot_after_a_gap_takes_the_place_of_all_rows(self, database: Database) -> None:
        async with opened(database) as sink:
            await deliver(sink, inserts(1, 1, 2))
            gap = Gap("t", 2, 6, 0, "lost", snapshot=True)
            await deliver(sink, gap, inserts(6, 2, task=SNAPSHOT_TASKS), at=Position(6, SNAPSHOT_TASKS, 0))
            assert names(database) == {1: "1 at 1", 2: "2 at 1"}
            await deliver(sink, inserts(6, 3, task=SNAPSHOT_TASKS + 1))
        assert names(database) == {2: "2 at 6", 3: "3 at 6"}

    async def test_an_empty_snapshot_empties_the_table(self, database: Database) -> None:
        async with opened(database) as sink:
            await deliver(sink, inserts(1, 1, 2))
            await deliver(sink, Gap("t", 2, 6, 0, "lost", snapshot=True))
        assert names(database) == {}
        assert mirrored(database, "orders") == 6

    async def test_a_snapshot_makes_room_for_other_columns_and_another_key(self, database: Database) -> None:
        other = pa.schema([("name", pa.string()), ("number", pa.float64())])
        async with opened(database) as sink:
            await deliver(sink, inserts(1, 1, 2))
        rows = batch(6, "insert", other, [{"name": "a", "number": 0.5}], SNAPSHOT_TASKS)
        async with opened(database, key=["name"]) as sink:
            async with sink.begin(APP, rows.rows.schema) as transaction:
                with pytest.raises(SinkRejected, match="the key of orders is id, and another one is configured"):
                    await transaction.write(rows)
            async with sink.begin(APP, rows.rows.schema) as transaction:
                await transaction.announce(Gap("t", 2, 6, 0, "lost", snapshot=True))
                await transaction.write(rows)
                await transaction.commit(Progress(APP, Position.end(6)))
        assert rows_in(database, "orders") == [{"name": "a", "number": 0.5}]

    async def test_a_snapshot_makes_room_for_other_types(self, database: Database) -> None:
        numbers = pa.schema([("id", pa.int64()), ("name", pa.int64())])
        async with opened(database) as sink:
            await deliver(sink, inserts(1, 1, 2))
            async with sink.begin(APP, full(numbers)) as transaction:
                await transaction.announce(Gap("t", 2, 3, 0, "ordered", snapshot=True))
                await transaction.write(batch(3, "insert", numbers, [{"id": 1, "name": 5}], SNAPSHOT_TASKS))
                await transaction.commit(Progress(APP, Position.end(3)))
        assert rows_in(database, "orders") == [{"id": 1, "name": 5}]

    async def test_it_continues_under_the_next_id_of_its_table(self, database: Database) -> None:
        async with opened(database) as sink:
            await deliver(sink, inserts(1, 1, 2))
            app_id = "orders/another"
            async with sink.begin(app_id, full(SCHEMA)) as transaction:
                await transaction.write(deletes(2, 1, 2))
                await transaction.write(inserts(2, 5))
                await transaction.commit(Progress(app_id, Position.end(2)))
            assert names(database) == {5: "5 at 2"}
            # The former id comes back: the pipeline sets its progress to the version before.
            await sink.reset(Progress(APP, Position.end(2)))
            await deliver(sink, deletes(3, 5), inserts(3, 6))
            with pytest.raises(SinkRejected, match="orders would not be a mirror of version 2"):
                await sink.reset(Progress(APP, Position.end(2)))
        assert names(database) == {6: "6 at 3"}

    async def test_half_a_version_under_a_former_id_is_no_part_of_the_table(self, database: Database) -> None:
        snapshot = Gap("another", 2, 3, 0, "replaced", snapshot=True), inserts(3, 7, task=SNAPSHOT_TASKS)
        async with opened(database) as sink:
            await deliver(sink, inserts(1, 1))
            await deliver(sink, inserts(2, 2), at=Position(2, 0, 0))
            await deliver(sink, *snapshot, app_id="orders/another")
            await sink.reset(Progress(APP, Position.end(3)))
            assert names(database) == {7: "7 at 3"}
            await deliver(sink, inserts(4, 2))
        assert names(database) == {7: "7 at 3", 2: "2 at 4"}
        assert not [each for each in database.tables() if each.startswith("lake_tailer_part_")]

    async def test_a_table_without_a_key_of_its_own_is_mirrored_by_row_ids(self, database: Database) -> None:
        tracked = pa.schema([*SCHEMA, ("_row_id", pa.int64()), ("_row_commit_version", pa.int64())])
        rows = [{"id": 1, "name": "a", "_row_id": 10}, {"id": 1, "name": "a", "_row_id": 11}]
        async with opened(database, key=[]) as sink:
            await deliver(sink, batch(1, "insert", tracked, rows))
            await deliver(sink, batch(2, "delete", tracked, rows[:1]))
        assert [row["_row_id"] for row in rows_in(database, "orders")] == [11]


@pytest.mark.parametrize(
    ("items", "error"),
    [
        ([inserts(2, 5, 5)], "the changes of version 2 insert a key that orders has, or insert it twice"),
        ([inserts(2, 1)], "the changes of version 2 insert a key that orders has, or insert it twice"),
        ([deletes(2, 9)], "of 1 keys that the changes of version 2 delete, 0 are in orders"),
        ([deletes(2, 1, 1)], "of 2 keys that the changes of version 2 delete, 1 are in orders"),
        (
            [deletes(2, 1), inserts(2, 3, 3)],
            "the changes of version 2 insert a key that orders has, or insert it twice",
        ),
        ([inserts(2, 3), deletes(3, 1), inserts(3, 3)], "versions 2 to 3 insert or delete a key twice"),
        ([deletes(2, 1), deletes(3, 1)], "versions 2 to 3 insert or delete a key twice"),
        ([inserts(2, 1), deletes(3, 1)], "versions 2 to 3 insert a key that orders has, or insert it twice"),
        ([batch(2, "insert", SCHEMA, [{"name": "x"}])], "the key column id of orders is null in version 2"),
        ([batch(2, "merge", SCHEMA, [{"id": 6}])], "another change type than Delta defines"),
        ([Gap("t", 2, 4, 0, "cleaned up", snapshot=False)], "versions 2 to 4 are lost"),
    ],
)
async def test_contradictions_stop_a_mirror(database: Database, items: list[Any], error: str) -> None:
    async with opened(database) as sink:
        await deliver(sink, inserts(1, 1, 2))
        with pytest.raises(SinkRejected, match=error) as refused:
            await deliver(sink, *items)
        assert refused.value.hint
        assert names(database) == {1: "1 at 1", 2: "2 at 1"}
        assert await sink.progress(APP) == Progress(APP, Position.end(1))


async def test_a_key_that_somebody_gave_a_collation_loses_no_row(database: Database) -> None:
    """Two keys that are equal by it stop the mirror; one in place of the other does not."""
    schema = pa.schema([("id", pa.string())])

    def change(version: int, kind: str, *ids: str) -> ChangeBatch:
        return batch(version, kind, schema, [{"id": each} for each in ids])

    def ids() -> list[str]:
        return sorted(row["id"] for row in rows_in(database, "orders"))

    async with opened(database) as sink:
        await deliver(sink, change(1, "insert", "a", "b"))
        if isinstance(database, PostgresDatabase):
            kind = "(provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
            database.query(f"CREATE COLLATION any_case {kind}")
            database.query("ALTER TABLE orders ALTER COLUMN id TYPE text COLLATE any_case")
        else:
            key = " PRIMARY KEY" if isinstance(database, SqliteDatabase) else ""
            database.query("ALTER TABLE orders RENAME TO former")
            database.query(f"CREATE TABLE orders (id TEXT COLLATE NOCASE{key})")
            database.query("INSERT INTO orders SELECT * FROM former")
        for changes in ([change(2, "insert", "A")], [change(2, "insert", "A"), change(3, "delete", "A")]):
            with pytest.raises(SinkRejected, match="insert a key that orders has") as stopped:
                await deliver(sink, *changes)
            assert "somebody else has changed the table" in stopped.value.hint
            assert ids() == ["a", "b"]
        await deliver(sink, change(2, "delete", "a"), change(2, "insert", "A"))
        assert ids() == ["A", "b"]


class TestTablesOfOthers:
    async def test_a_table_that_the_sink_did_not_make_is_refused(self, database: Database) -> None:
        database.query("CREATE TABLE orders (id INTEGER)")
        async with opened(database) as sink:
            with pytest.raises(SinkRejected, match="there is a table orders that lake-tailer did not make"):
                await sink.check_first_start("orders", [])
            with pytest.raises(SinkRejected, match="there is a table orders that lake-tailer did not make"):
                await deliver(sink, inserts(1, 1))

    async def test_a_table_of_another_pipeline_or_mode_is_refused(self, database: Database) -> None:
        async with opened(database) as sink:
            await deliver(sink, inserts(1, 1))
            with pytest.raises(SinkRejected, match="pipeline orders fills the table orders"):
                await sink.check_first_start("items", [])
        async with opened(database, mode="append", key=[]) as sink:
            with pytest.raises(SinkRejected, match='the table orders was made with mode = "mirror"'):
                await deliver(sink, inserts(2, 2))

    async def test_lost_progress_and_a_lost_table_are_no_first_start(self, database: Database) -> None:
        async with opened(database) as sink:
            await deliver(sink, inserts(1, 1))
            database.query("DELETE FROM lake_tailer_progress")
            with pytest.raises(SinkRejected, match="the table orders has rows of orders, but there is no progress"):
                await sink.check_first_start("orders", [])
            with pytest.raises(SinkRejected, match="is gone; this instance left it at the end of version 1"):
                await sink.progress(APP)
        database.query("DROP TABLE orders")
        async with opened(database) as sink:
            with pytest.raises(SinkRejected, match="the table orders is gone"):
                await deliver(sink, inserts(2, 1))


async def test_no_progress_makes_no_database(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "mirror.db")
    async with opened(database) as sink:
        assert await sink.progress(APP) is None
        assert not await sink.has_delivered("orders")
        await sink.check_first_start("orders", [])
    assert not database.path.exists()


async def test_of_two_instances_one_commits(database: Database) -> None:
    async with opened(database) as first, opened(database) as second:
        assert await first.progress(APP) == await second.progress(APP) is None
        async with first.begin(APP, full(SCHEMA)) as transaction:
            await transaction.write(inserts(1, 1))
            await deliver(second, inserts(1, 1))
            with pytest.raises(SinkFenced):
                await transaction.commit(Progress(APP, Position.end(1)))
        with pytest.raises(SinkFenced):
            await deliver(first, inserts(2, 2))
        assert await first.progress(APP) == Progress(APP, Position.end(1))
        await deliver(first, inserts(2, 2))
    assert names(database) == {1: "1 at 1", 2: "2 at 2"}


async def test_a_call_that_takes_too_long_is_ended(database: Database) -> None:
    """Another client holds the progress."""
    async with opened(database) as sink:
        await deliver(sink, inserts(1, 1))
    with database.holding_the_progress():
        async with opened(database, timeout_s=1) as sink:
            with pytest.raises(SinkUnavailable):
                await deliver(sink, inserts(2, 2))
    async with opened(database) as sink:
        assert await sink.progress(APP) == Progress(APP, Position.end(1))
        await deliver(sink, inserts(2, 2))
    assert names(database) == {1: "1 at 1", 2: "2 at 2"}


def test_postgresql_ends_a_transaction_that_stands_still(postgres: Postgres) -> None:
    """Its client may be frozen. What only reads has no locks that others wait for, and may take its time."""
    database = PostgresDatabase(postgres)
    database.query("CREATE TABLE orders (id integer)")
    dialect = PostgreSql("orders", database.options["url"], lambda: None, database.schema)
    orders = dialect.name_of("orders")

    def stand_still() -> None:
        with writer.transaction():
            writer.lock(orders)
            time.sleep(6)
            writer.execute(f"INSERT INTO {orders} VALUES (1)")

    with closing(dialect.connect()) as writer, closing(dialect.connect()) as reader, reader.one_state(orders):
        with pytest.raises(SinkUnavailable, match="idle-in-transaction timeout"):
            stand_still()
        assert reader.query(f"SELECT count(*) FROM {orders}") == [(0,)]


async def test_the_grants_of_the_page_are_enough(postgres: Postgres) -> None:
    """A mirror and a log with the rights that docs/sql.md grants, and a reader of both; no other can write there."""
    page = (Path(__file__).parents[2] / "docs" / "sql.md").read_text()
    (grants,) = (block.text for block in blocks(page) if "GRANT" in block.text)
    database = PostgresDatabase(postgres)
    database.query(grants.replace("DATABASE shop", "DATABASE postgres"))
    database.query("CREATE ROLE analyst LOGIN; GRANT readers TO analyst")
    url = database.options["url"]
    for mode in ("mirror", "append"):
        options = {"url": url.replace(f"{USER}@", "tailer@"), "schema": "lake", "table": mode, "mode": mode}
        sink = SqlSink.configure(mode, options | ({"key": ["id"]} if mode == "mirror" else {}))
        await deliver(sink, inserts(1, 1), app_id=f"{mode}/table")
        assert await sink.progress(f"{mode}/table") is not None
        await sink.aclose()
        with psycopg.connect(url.replace(f"{USER}@", "analyst@")) as reader:
            assert reader.execute(f"SELECT count(*) FROM lake.{mode}").fetchall() == [(1,)]
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                reader.execute(f"DELETE FROM lake.{mode}")


async def test_a_login_that_postgresql_refuses(postgres: Postgres, tmp_path: Path) -> None:
    """It is named, and so is the option with the password. A file is read again for the next attempt."""
    database, file = PostgresDatabase(postgres), tmp_path / "secret"
    user, schema = f"guarded_{database.schema}", database.schema
    database.query(f"CREATE ROLE {user} LOGIN PASSWORD 'open-sesame'; GRANT USAGE ON SCHEMA {schema} TO {user}")
    postgres.require_password(user)
    address = database.options["url"]
    options = {"url": address.replace(f"{USER}@", f"{user}@"), "schema": schema, "key": ["id"]}

    async def refused(sink: SqlSink, text: str, hint: str) -> None:
        with pytest.raises(SinkAccessRefused, match=text) as failed:
            await sink.progress(APP)
        assert hint in failed.value.hint
        assert not any(secret in f"{failed.value!r} {failed.value.hint}" for secret in ("mellon", "open-sesame"))

    file.write_text("mellon")
    by_file = SqlSink.configure("orders", {**options, "password": {"file": str(file)}})
    await refused(
        by_file, f'password authentication failed for user "{user}"', f"Correct the file of password ({file})"
    )
    file.write_text("open-sesame")
    assert await by_file.progress(APP) is None
    ways: list[tuple[dict[str, Any], str, str]] = [
        ({"password": "mellon"}, "password authentication failed", "Correct password; "),
        ({}, "no password supplied", "Give password in the environment, or by a file or a command"),
        ({"url": address.replace(f"{USER}@", "nobody@")}, 'role "nobody" does not exist', "Give password"),
    ]
    for more, text, hint in ways:
        sink = SqlSink.configure("orders", {**options, **more})
        await refused(sink, text, hint)
        await sink.aclose()
    with pytest.raises(SinkAccessRefused, match="refuses access: permission denied for schema") as forbidden:
        await deliver(by_file, inserts(1, 1))
    assert forbidden.value.hint == "Grant it to the user of url."
    await by_file.aclose()


async def test_no_server_is_an_error_that_may_pass_and_has_no_password() -> None:
    options = {"url": "postgresql://tailer@127.0.0.1:1/shop", "password": "hunter2", "key": ["id"]}
    sink = SqlSink.configure("orders", options)
    with pytest.raises(SinkUnavailable, match="no connection to PostgreSQL") as failed:
        await sink.progress(APP)
    assert "hunter2" not in str(failed.value) + repr(sink) + repr(failed.value.__cause__)


class TestBackfills:
    APP_ID = app_id_of(backfill_name("orders", "20260301T115001-1f3a5c7e"), table_of(APP))

    async def test_a_snapshot_that_was_ordered_takes_the_place_of_all_rows(self, database: Database) -> None:
        gap = Gap("t", 3, 3, 0, "ordered", snapshot=True)
        async with opened(database) as sink:
            await deliver(sink, inserts(3, 1, 2))
            first = inserts(3, 1, task=SNAPSHOT_TASKS)
            await deliver(sink, gap, first, at=Position(3, SNAPSHOT_TASKS, 0), app_id=self.APP_ID)
            assert names(database) == {1: "1 at 3", 2: "2 at 3"}
        async with opened(database) as sink:
            await deliver(sink, inserts(3, 7, task=SNAPSHOT_TASKS + 1), app_id=self.APP_ID)
            assert names(database) == {1: "1 at 3", 7: "7 at 3"}
            assert await sink.progress(APP) == Progress(APP, Position.end(3))
            await deliver(sink, deletes(4, 7), inserts(4, 8))
        assert names(database) == {1: "1 at 3", 8: "8 at 4"}
        assert mirrored(database, "orders") == 4

    async def test_one_that_is_late_leaves_the_table_as_it_is(self, database: Database) -> None:
        """Another instance commits the next version after this one has looked at the progress for the last time."""
        async with opened(database) as late, opened(database) as first:
            await deliver(first, inserts(3, 1, 2))
            async with late.begin(self.APP_ID, full(SCHEMA)) as transaction:
                await transaction.announce(Gap("t", 3, 3, 0, "ordered", snapshot=True))
                await transaction.write(inserts(3, 1, 2, task=SNAPSHOT_TASKS))
                await deliver(first, deletes(4, 1), inserts(4, 9))
                with pytest.raises(SinkFenced):
                    await transaction.commit(Progress(self.APP_ID, Position.end(3)))
        assert names(database) == {2: "2 at 3", 9: "9 at 4"}

    async def test_what_a_cancelled_one_stored_is_removed(self, database: Database) -> None:
        gap, first = Gap("t", 3, 3, 0, "ordered", snapshot=True), inserts(3, 1, task=SNAPSHOT_TASKS)
        async with opened(database) as sink:
            await deliver(sink, inserts(3, 1, 2))
            await deliver(sink, gap, first, at=Position(3, SNAPSHOT_TASKS, 0), app_id=self.APP_ID)
            assert list(waiting_in(database, self.APP_ID))
            await deliver(sink, inserts(4, 3))
            with pytest.raises(SinkRejected, match="is gone"):
                await deliver(sink, inserts(3, 2, task=SNAPSHOT_TASKS + 1), app_id=self.APP_ID)
        assert names(database) == {1: "1 at 3", 2: "2 at 3", 3: "3 at 4"}
        assert not [each for each in database.tables() if each.startswith("lake_tailer_part_")]

    async def test_a_log_has_rows_and_gaps_of_each(self, database: Database) -> None:
        async with opened(database, mode="append", key=[]) as sink:
            await deliver(sink, inserts(1, 1))
            await deliver(sink, inserts(2, 2))
            for number, task in enumerate((SNAPSHOT_TASKS + TASKS, SNAPSHOT_TASKS + 2 * TASKS)):
                app_id = app_id_of(backfill_name("orders", str(number)), table_of(APP))
                gap = Gap("t", 1, 1, 0, "ordered", snapshot=True, command=str(number))
                await deliver(sink, gap, inserts(1, 1, task=task), app_id=app_id)
        found = rows_in(database, "orders")
        assert [row["id"] for row in found if row["_change_type"] == "insert"] == [1, 2, 1, 1]
        assert len([row for row in found if row["_change_type"] == "gap"]) == 2
        assert mirrored(database, "orders") == 2


class TestLog:
    async def test_a_part_of_a_version_is_visible_only_by_choice(self, database: Database) -> None:
        for boundary, seen in (("version", []), ("chunk", [1, 2])):
            table = f"log by {boundary}"
            options = {"mode": "append", "key": [], "table": table, "boundary": boundary}
            app_id = f"{boundary}/5f0c"
            async with opened(database, **options) as sink, sink.begin(app_id, full(SCHEMA)) as transaction:
                await transaction.write(inserts(2, 1, 2))
                await transaction.commit(Progress(app_id, Position(2, 0, 1)))
            assert [row["id"] for row in rows_in(database, table)] == seen
            async with opened(database, **options) as sink, sink.begin(app_id, full(SCHEMA)) as transaction:
                await transaction.write(inserts(2, 3, task=1))
                await transaction.commit(Progress(app_id, Position.end(2)))
            assert [(row["id"], row["_task"], row["_row"]) for row in rows_in(database, table)] == [
                (1, 0, 0),
                (2, 0, 1),
                (3, 1, 0),
            ]

    async def test_rows_that_are_there_are_not_delivered_again(self, database: Database) -> None:
        async with opened(database, mode="append", key=[]) as sink:
            await deliver(sink, inserts(1, 1))
            await deliver(sink, inserts(2, 2))
            with pytest.raises(SinkRejected, match="orders has rows after version 1"):
                await sink.reset(Progress(APP, Position.end(1)))
            database.query("DELETE FROM orders WHERE _commit_version > 1")
            await sink.reset(Progress(APP, Position.end(1)))
            await deliver(sink, inserts(2, 2))
        assert [row["id"] for row in rows_in(database, "orders")] == [1, 2]
