"""`tailer verify` of a log of changes: its fold is the source at its version, whatever the log begins with."""

import json
from pathlib import Path

import anyio
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tailer.engine.local import LocalEngine
from tailer.errors import SinkRejected
from tailer.events import ChangeBatch, Gap
from tailer.pipeline.policy import Policy
from tailer.pipeline.row_delivery import row_pipeline
from tailer.pipeline.verification.comparison import Verification
from tailer.plan import SNAPSHOT_TASKS, TASKS, Position
from tailer.sink import Progress, app_id_of, backfill_name
from tailer.start import Start, StartKind
from tailer.stores.wakeup import TimerWake
from tailer_sinks.sql.sink import SqlSink
from tests.support.daemon.commands import Orders, tailer
from tests.support.mirrors.databases import Database, SqliteDatabase, batch, deliver, full, opened, verified
from tests.support.mirrors.planted import configured, follow, log_of, write
from tests.support.tables.handwritten import HandwrittenTable

pytestmark = pytest.mark.long

SCHEMA = pa.schema([("id", pa.int64()), ("amount", pa.float64())])
LOG = {"mode": "append", "key": []}


def changed(orders: Orders) -> None:
    """Write four versions: rows, other rows and two equal ones, fewer rows, and one with another amount."""
    orders.insert(1, 2, 3)
    orders.insert(4, 4, 5)
    orders.delete(1, 5)
    DeltaTable(orders.path).update(updates={"amount": "amount + 1"}, predicate="id = 2")
    orders.version += 1


async def verification(sink: SqlSink, path: Path) -> Verification:
    return await verified(sink, "orders", log_of(path), Policy())


async def snapshot_after(sink: SqlSink, gap: Gap, rows: ChangeBatch, app_id: str) -> None:
    async with sink.begin(app_id, rows.rows.schema) as transaction:
        await transaction.announce(gap)
        await transaction.write(rows)
        await transaction.commit(Progress(app_id, Position.end(rows.version)))


def differences(found: Verification) -> list[tuple[str, str | None]]:
    return [(each.kind.value, (each.source or each.mirror or {})["id"]) for each in found.differences]


@pytest.mark.anyio
@pytest.mark.parametrize("boundary", ["version", "chunk"])
async def test_the_fold_equals_the_source_at_each_version(database: Database, tmp_path: Path, boundary: str) -> None:
    orders = Orders(tmp_path / "orders")
    await anyio.to_thread.run_sync(changed, orders)
    async with opened(database, **LOG, boundary=boundary) as sink:
        for version, rows in enumerate((3, 6, 4, 4)):
            await follow(sink, orders.path, version, Policy())
            found = await verification(sink, orders.path)
            assert (found.is_equal, found.version, found.key) == (True, version, ())
            assert (found.source_rows, found.mirror_rows) == (rows, rows)


@pytest.mark.anyio
async def test_values_of_all_types(database: Database, tmp_path: Path) -> None:
    await anyio.to_thread.run_sync(write, tmp_path / "orders")
    async with opened(database, **LOG) as sink:
        await follow(sink, tmp_path / "orders", 1, Policy())
        found = await verification(sink, tmp_path / "orders")
        assert (found.is_equal, found.source_rows, found.mirror_rows) == (True, 50, 50)


@pytest.mark.anyio
async def test_rows_without_any_value(database: Database, tmp_path: Path) -> None:
    write_deltalake(tmp_path / "orders", pa.table({"amount": pa.array([None, None], pa.float64())}))
    async with opened(database, **LOG) as sink:
        await follow(sink, tmp_path / "orders", 0, Policy())
        found = await verification(sink, tmp_path / "orders")
        assert (found.is_equal, found.source_rows, found.mirror_rows) == (True, 2, 2)


@pytest.mark.anyio
async def test_planted_differences_are_found(database: Database, tmp_path: Path) -> None:
    orders = Orders(tmp_path / "orders")
    await anyio.to_thread.run_sync(changed, orders)
    async with opened(database, **LOG) as sink:
        await follow(sink, orders.path, 3, Policy())
        database.query("UPDATE orders SET amount = 0.5 WHERE id = 3")
        database.query("DELETE FROM orders WHERE id = 1 AND _change_type = 'delete'")
        columns = "id, amount, _change_type, _commit_version, _commit_timestamp, _table_id, _task"
        another = f"SELECT {columns}, 77 FROM orders WHERE id = 2 AND _commit_version = 0"
        database.query(f"INSERT INTO orders ({columns}, _row) {another}")
        database.query("DELETE FROM orders WHERE id = 4 AND _row = 0")
        found = await verification(sink, orders.path)
        assert not found.is_equal
        assert sorted(differences(found)) == [
            ("missing", "3"),
            ("missing", "4"),
            ("unexpected", "1"),
            ("unexpected", "2"),
            ("unexpected", "3"),
        ]
        assert (found.source_rows, found.mirror_rows) == (4, 5)


@pytest.mark.anyio
async def test_a_log_that_begins_with_a_snapshot(database: Database, tmp_path: Path) -> None:
    orders = Orders(tmp_path / "orders")
    await anyio.to_thread.run_sync(changed, orders)
    async with opened(database, **LOG) as sink:
        start, end = Start(StartKind.SNAPSHOT), Start(StartKind.VERSION, 3)
        await row_pipeline("orders", log_of(orders.path), sink, LocalEngine(), TimerWake(), start, end).run()
        assert (await verification(sink, orders.path)).is_equal
        await anyio.to_thread.run_sync(orders.delete, 3)
        await follow(sink, orders.path, 4, Policy())
        found = await verification(sink, orders.path)
        assert (found.is_equal, found.version, found.mirror_rows) == (True, 4, 3)


@pytest.mark.anyio
async def test_a_snapshot_takes_the_place_of_earlier_rows_and_a_backfill_of_none(
    database: Database, tmp_path: Path
) -> None:
    orders = Orders(tmp_path / "orders")
    await anyio.to_thread.run_sync(changed, orders)
    app_id = app_id_of("orders", await log_of(orders.path).table_id())
    table_id = app_id.rpartition("/")[2]
    at_2 = [{"id": each, "amount": each * 1.5} for each in (2, 3, 4, 4)]
    async with opened(database, **LOG) as sink:
        await follow(sink, orders.path, 0, Policy())
        snapshot = batch(2, "insert", SCHEMA, at_2, SNAPSHOT_TASKS)
        await snapshot_after(sink, Gap(table_id, 1, 2, 0, "lost", snapshot=True), snapshot, app_id)
        found = await verification(sink, orders.path)
        assert (found.is_equal, found.version, found.mirror_rows) == (True, 2, 4)
        again = batch(2, "insert", SCHEMA, at_2, SNAPSHOT_TASKS + 7 * TASKS)
        gap = Gap(table_id, 2, 2, 0, "ordered", snapshot=True, command="order")
        await snapshot_after(sink, gap, again, app_id_of(backfill_name("orders", "order"), table_id))
        assert (await verification(sink, orders.path)).is_equal
        await follow(sink, orders.path, 3, Policy())
        found = await verification(sink, orders.path)
        assert (found.is_equal, found.version, found.mirror_rows) == (True, 3, 4)


@pytest.mark.anyio
async def test_a_snapshot_that_was_asked_for_after_a_skip_begins_the_fold(database: Database, tmp_path: Path) -> None:
    orders = Orders(tmp_path / "orders")
    await anyio.to_thread.run_sync(changed, orders)
    app_id = app_id_of("orders", await log_of(orders.path).table_id())
    table_id = app_id.rpartition("/")[2]
    at_3 = [{"id": number, "amount": amount} for number, amount in ((2, 4.0), (3, 4.5), (4, 6.0), (4, 6.0))]
    async with opened(database, **LOG, boundary="chunk") as sink:
        await follow(sink, orders.path, 0, Policy())
        async with sink.begin(app_id, full(SCHEMA)) as transaction:
            await transaction.announce(Gap(table_id, 1, 2, 0, "lost", snapshot=False))
            await transaction.commit(Progress(app_id, Position.end(2)))
        await follow(sink, orders.path, 3, Policy())
        assert not (await verification(sink, orders.path)).is_equal
        # A backfill of the same version, with a condition, is no part of the snapshot; nor is a snapshot in part one.
        some = batch(3, "insert", SCHEMA, at_3[:2], SNAPSHOT_TASKS + 9 * TASKS)
        await deliver(sink, some, app_id=app_id_of(backfill_name("orders", "some"), table_id))
        snapshot = app_id_of(backfill_name("orders", "order"), table_id)
        for file, rows in enumerate((at_3[:3], at_3[3:])):
            assert not (await verification(sink, orders.path)).is_equal
            ordered = batch(3, "insert", SCHEMA, rows, SNAPSHOT_TASKS + 7 * TASKS + file)
            async with sink.begin(snapshot, ordered.rows.schema) as transaction:
                if not file:
                    await transaction.announce(Gap(table_id, 3, 3, 0, "asked", snapshot=True, command="order"))
                await transaction.write(ordered)
                end = Position.end(3) if file else Position(3, SNAPSHOT_TASKS + 7 * TASKS, len(rows) - 1)
                await transaction.commit(Progress(snapshot, end))
        found = await verification(sink, orders.path)
        assert (found.is_equal, found.version, found.mirror_rows) == (True, 3, 4)
        await anyio.to_thread.run_sync(orders.delete, 3)
        await follow(sink, orders.path, 4, Policy())
        found = await verification(sink, orders.path)
        assert (found.is_equal, found.version, found.mirror_rows) == (True, 4, 3)


@pytest.mark.anyio
async def test_a_part_of_a_version_is_not_compared(database: Database, tmp_path: Path) -> None:
    orders = Orders(tmp_path / "orders")
    await anyio.to_thread.run_sync(orders.insert, 1, 2)
    await anyio.to_thread.run_sync(orders.insert, 3, 4)
    app_id = app_id_of("orders", await log_of(orders.path).table_id())
    async with opened(database, **LOG, boundary="chunk") as sink:
        await follow(sink, orders.path, 0, Policy())
        part = batch(1, "insert", SCHEMA, [{"id": 3, "amount": 4.5}])
        await deliver(sink, part, at=Position(1, 0, 0), app_id=app_id)
        found = await verification(sink, orders.path)
        assert (found.is_equal, found.version, found.mirror_rows) == (True, 0, 2)


def with_columns(table: HandwrittenTable, *fields: tuple[str, str]) -> None:
    """Commit columns (name, physical name), all of whole numbers."""
    columns = [
        {
            "name": name,
            "type": "long",
            "nullable": True,
            "metadata": {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": physical},
        }
        for number, (name, physical) in enumerate(fields, 1)
    ]
    table.metadata = {
        **table.metadata,
        "schemaString": json.dumps({"type": "struct", "fields": columns}),
        "configuration": {**table.metadata["configuration"], "delta.columnMapping.mode": "name"},
    }
    features = {"readerFeatures": ["columnMapping"], "writerFeatures": ["changeDataFeed", "columnMapping"]}
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, **features}
    table.commit({"protocol": protocol}, {"metaData": table.metadata})


@pytest.mark.anyio
async def test_a_column_that_is_dropped_or_renamed(database: Database, tmp_path: Path) -> None:
    table = HandwrittenTable(tmp_path / "orders")
    with_columns(table, ("id", "id"), ("amount", "amount"))
    table.commit(table.add(table.data("1.parquet", [1, 2, 3], amount=[5, 6, 7])))
    with_columns(table, ("id", "id"))
    table.commit(table.remove("1.parquet"), table.add(table.data("2.parquet", [2, 3])))
    async with opened(database, **LOG) as sink:
        await follow(sink, table.path, table.version, Policy())
        found = await verification(sink, table.path)
        assert (found.is_equal, found.source_rows, found.mirror_rows) == (True, 2, 2)
        with_columns(table, ("number", "id"))
        table.commit(table.add(table.data("3.parquet", [4])))
        await follow(sink, table.path, table.version, Policy())
        with pytest.raises(SinkRejected, match="the source has no columns id, amount any more") as refused:
            await verification(sink, table.path)
        assert "Deliver to a new table" in refused.value.hint


@pytest.mark.anyio
async def test_a_log_without_a_fold_is_refused(database: Database, tmp_path: Path) -> None:
    orders = Orders(tmp_path / "orders")
    await anyio.to_thread.run_sync(orders.insert, 1, 2)
    async with opened(database, **LOG) as sink:
        await follow(sink, orders.path, 0, Policy())
        database.query("UPDATE orders SET _change_type = 'merge' WHERE id = 1")
        with pytest.raises(SinkRejected, match="another change type than Delta defines, so it has no fold"):
            await verification(sink, orders.path)


def test_the_command_counts_rows_and_lists_them_with_values(tmp_path: Path) -> None:
    orders = Orders(tmp_path / "orders")
    changed(orders)
    database = SqliteDatabase(tmp_path / "shop.db")

    async def deliver_all() -> None:
        async with opened(database, **LOG) as sink:
            await follow(sink, orders.path, 3, Policy())

    anyio.run(deliver_all)
    config = configured(tmp_path, 'kind = "sql"\nurl = "sqlite:///shop.db"\nmode = "append"')
    done = tailer("verify", "orders", "--config", config)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"orders: equals {orders.path} at version 3: 4 rows\n"
    database.query("UPDATE orders SET amount = 0.5 WHERE id = 3")
    done = tailer("verify", "orders", "--config", config)
    assert (done.returncode, done.stderr) == (5, "")
    assert done.stdout.splitlines() == [
        f"orders: differs from {orders.path} at version 3: 1 missing, 1 unexpected, 0 different",
        "rows: 4 in the source, 4 in the mirror",
        "the rows are listed with --values",
    ]
    done = tailer("verify", "orders", "--config", config, "--values")
    assert sorted(done.stdout.splitlines()[2:]) == [
        'missing: id = "3", amount = "4.5"',
        'unexpected: id = "3", amount = "0.5"',
    ]
    done = tailer("verify", "orders", "--config", config, "--repair")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[0] == "error: --repair: is for a mirror, and this is a log of changes"
