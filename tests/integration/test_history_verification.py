"""`tailer verify` of histories: each planted difference is found at its versions, and none in a sound history."""

import json
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import anyio
import pyarrow as pa
import pytest
from anyio import to_thread
from deltalake import DeltaTable, write_deltalake

from tailer.engine.local import LocalEngine
from tailer.pipeline.policy import Policy
from tailer.pipeline.row_delivery import row_pipeline
from tailer.pipeline.verification.comparison import GoneVersions, OpenAt, Verification, repair, verify, verify_all
from tailer.sink import MirrorRows, Sink
from tailer.start import Start, StartKind
from tailer.stores.wakeup import TimerWake
from tests.support.daemon.commands import Orders, tailer
from tests.support.mirrors.databases import Database, DuckDbDatabase, SqliteDatabase, opened, rows_in
from tests.support.mirrors.delta import make_mirror, mirror_rows
from tests.support.mirrors.planted import configured, key_of, log_of
from tests.support.mirrors.states import NEWEST, SNAPSHOT_AT, Found, Story, expected, plant, plant_in_delta

pytestmark = pytest.mark.long

EARLIEST = Start(StartKind.EARLIEST)


async def follow(sink: Sink, path: Path, last: int, start: Start = EARLIEST) -> None:
    end = Start(StartKind.VERSION, last)
    await row_pipeline("orders", log_of(path), sink, LocalEngine(), TimerWake(), start, end, Policy()).run()


def opening(sink: Sink) -> OpenAt:
    """Return what opens the history of a sink as of a version."""

    def open_mirror(version: int | None = None) -> AbstractAsyncContextManager[MirrorRows]:
        mirror = sink.open_mirror("orders", version)
        assert mirror is not None
        return mirror

    return open_mirror


async def outcomes(sink: Sink, path: Path) -> list[Verification | GoneVersions]:
    verifications = verify_all(opening(sink), log_of(path), LocalEngine(), Policy(), 1000, lambda _: None)
    return [outcome async for outcome in verifications]


async def found(sink: Sink, path: Path) -> set[Found]:
    """Return the differences of all versions."""
    return {
        (outcome.version, difference.kind.value, key_of(difference))
        for outcome in await outcomes(sink, path)
        if isinstance(outcome, Verification)
        for difference in outcome.differences
    }


async def check_sound(sink: Sink, path: Path, first: int = 1) -> None:
    """Check that the history equals its source at each version from `first` on, which has the first rows."""
    results = await outcomes(sink, path)
    assert [result.version for result in results if result.version] == list(range(first, NEWEST + 1))
    assert all(isinstance(result, Verification) and result.is_equal for result in results), results


async def check_repair(sink: Sink, story: Story) -> None:
    """Repair open rows, and let the pipeline go on. What is known of older versions is as before."""
    path = story.table.path
    both = repair(partial(opening(sink), None), log_of(path), LocalEngine(), Policy(), 100)
    differs, equal = [result async for result in both]
    assert (differs.is_equal, equal.is_equal, differs.rewritten is not None) == (False, True, True)
    await to_thread.run_sync(story.update)
    await follow(sink, path, NEWEST + 1)
    assert await found(sink, path) == {difference for difference in expected() if difference[0] < NEWEST}


@pytest.mark.anyio
@pytest.mark.sampled(3)
async def test_databases(database: Database, tmp_path: Path) -> None:
    story = Story(tmp_path / "orders")
    await to_thread.run_sync(story.tell)
    async with opened(database, mode="history") as sink:
        await follow(sink, story.table.path, NEWEST)
        await check_sound(sink, story.table.path)
        await to_thread.run_sync(plant, database)
        assert await found(sink, story.table.path) == expected()
        await check_repair(sink, story)


@pytest.mark.anyio
async def test_delta(tmp_path: Path) -> None:
    story, copy = Story(tmp_path / "orders"), tmp_path / "copy"
    await to_thread.run_sync(story.tell)
    sink = make_mirror(copy, mode="history")
    await follow(sink, story.table.path, NEWEST)
    await check_sound(sink, story.table.path)
    await to_thread.run_sync(plant_in_delta, copy)
    assert await found(sink, story.table.path) == expected()
    await check_repair(sink, story)


@pytest.mark.anyio
async def test_a_start_with_a_snapshot(tmp_path: Path) -> None:
    story, start = Story(tmp_path / "orders"), Start(StartKind.SNAPSHOT)
    await to_thread.run_sync(story.tell, SNAPSHOT_AT)
    delta = make_mirror(tmp_path / "copy", mode="history")
    async with opened(DuckDbDatabase(tmp_path / "mirror.duckdb"), mode="history") as sink:
        for history in (sink, delta):
            await follow(history, story.table.path, SNAPSHOT_AT, start)
        await to_thread.run_sync(story.tell)
        for history in (sink, delta):
            await follow(history, story.table.path, NEWEST)
            await check_sound(history, story.table.path, SNAPSHOT_AT)


def test_the_command_compares_versions(tmp_path: Path) -> None:
    """The rows of version 0 are in a file that VACUUM has removed. There are 25 versions, of which 20 are compared."""
    orders, database = Orders(tmp_path / "orders"), SqliteDatabase(tmp_path / "shop.db")
    orders.insert(1, 2, 3)
    (old,) = orders.path.glob("*.parquet")
    orders.delete(2)
    for number in range(4, 27):
        orders.insert(number)

    async def deliver_all() -> None:
        async with opened(database, mode="history") as sink:
            await follow(sink, orders.path, 24)

    anyio.run(deliver_all)
    old.unlink()
    config = configured(tmp_path, 'kind = "sql"\nurl = "sqlite:///shop.db"\nkey = ["id"]\nmode = "history"')
    verify = partial(tailer, "verify", "orders", "--config", config)
    done = verify("--all")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == [
        f"orders: not compared with {orders.path} at version 0, whose rows are not there any more",
        f"orders: equals {orders.path} at version 1: 2 rows",
    ]
    assert lines[-2:] == [
        f"orders: equals {orders.path} at version 24: 25 rows",
        "orders: 19 of 25 versions were compared: 19 are equal",
    ]
    assert len(lines) == 21
    database.query("UPDATE orders SET _valid_to_version = 3 WHERE id = 2")
    page = tmp_path / "orders.prom"
    done = verify("--all", "--json", "--metrics-file", page)
    assert done.returncode == 5
    document = json.loads(done.stdout)
    assert (document["format"], document["version"], document["unexpected"]) == (1, 1, 1)
    assert 'lake_tailer_verify_version{pipeline="orders"} 1.0' in page.read_text()
    versions = {result["version"]: result["equal"] for result in document["versions"]}
    assert ([version for version, is_equal in versions.items() if not is_equal], len(versions)) == ([1, 2], 19)
    assert document["gone_versions"] == [[0, 0]]
    assert verify("--version", 3).returncode == 0
    done = verify("--version", 2)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (5, 'unexpected: id = "2"')
    assert "versions 0 to 24" in verify("--version", 25).stderr
    assert "needs" in verify("--version", 0).stderr
    DeltaTable(orders.path).create_checkpoint()
    for version in range(24):
        (orders.path / "_delta_log" / f"{version:020d}.json").unlink()
    done = verify("--all")
    assert (done.returncode, done.stdout.splitlines()) == (
        0,
        [
            f"orders: not compared with {orders.path} at versions 0 to 23, whose rows are not there any more",
            f"orders: equals {orders.path} at version 24: 25 rows",
            "orders: 1 of 25 versions were compared: 1 are equal",
        ],
    )


@pytest.mark.anyio
@pytest.mark.parametrize("planted", ["DELETE FROM orders WHERE id = 1", "DELETE FROM orders"])
async def test_a_repair_has_the_time_of_its_version(database: Database, tmp_path: Path, planted: str) -> None:
    """The last version only deletes a row."""
    orders = Orders(tmp_path / "orders")
    orders.insert(1, 2, 3)
    orders.delete(2)
    async with opened(database, mode="history") as sink:
        await follow(sink, orders.path, 1)
        ended = await to_thread.run_sync(times, database, "_valid_to", 2)
        await to_thread.run_sync(database.query, planted)
        both = repair(partial(opening(sink), None), log_of(orders.path), LocalEngine(), Policy(), 9)
        assert [result.is_equal async for result in both] == [False, True]
    (begun,) = await to_thread.run_sync(times, database, "_valid_from", 1)
    assert [begun] == ended


@pytest.mark.anyio
@pytest.mark.parametrize("options", [{"deletes": "mark"}, {"mode": "history"}], ids=["mark", "history"])
@pytest.mark.parametrize("planted", ["id = 1", "true"])
async def test_a_repair_in_delta_has_the_time_of_its_version(
    tmp_path: Path, options: dict[str, str], planted: str
) -> None:
    orders, copy = Orders(tmp_path / "orders"), tmp_path / "copy"
    orders.insert(1, 2, 3)
    orders.delete(2)
    sink = make_mirror(copy, **options)
    await follow(sink, orders.path, 1)
    end = "_deleted_at" if "deletes" in options else "_valid_to"
    (ended,) = (row[end] for row in mirror_rows(copy).to_pylist() if row["id"] == 2)
    await to_thread.run_sync(DeltaTable(copy).delete, planted)
    await to_thread.run_sync(plant_row, copy)
    both = repair(partial(opening(sink), None), log_of(orders.path), LocalEngine(), Policy(), 9)
    assert [result.is_equal async for result in both] == [False, True]
    rows = mirror_rows(copy).to_pylist()
    assert [row[end] for row in rows if row["id"] == 9] == [ended]
    assert [row.get("_valid_from", ended) for row in rows if row["id"] == 1] == [ended]


def plant_row(copy: Path) -> None:
    """Add a row that the source lacks."""
    schema = mirror_rows(copy).schema
    row = {"id": 9, "amount": 1.0, "_valid_from_version": 0}
    write_deltalake(copy, pa.Table.from_pylist([{name: row.get(name) for name in schema.names}], schema), mode="append")


def times(database: Database, column: str, key: int) -> list[str]:
    return [row[column] for row in rows_in(database, "orders") if row["id"] == key]


@pytest.mark.anyio
async def test_rows_that_are_marked_as_deleted_are_not_compared(tmp_path: Path) -> None:
    orders, copy = Orders(tmp_path / "orders"), tmp_path / "copy"
    database, delta = SqliteDatabase(tmp_path / "shop.db"), make_mirror(copy, deletes="mark")
    orders.insert(1, 2, 3)
    orders.delete(2)
    mark = "UPDATE orders SET _deleted_version = 1 WHERE id = 3"
    async with opened(database, deletes="mark") as sink:
        for mirror in (sink, delta):
            await follow(mirror, orders.path, 1)
            async with opening(mirror)(None) as rows:
                result = await verify(rows, log_of(orders.path), LocalEngine(), Policy(), 9)
            assert (result.is_equal, result.source_rows, result.mirror_rows) == (True, 2, 2)
        await to_thread.run_sync(database.query, mark)
        await to_thread.run_sync(partial(DeltaTable(copy).update, {"_deleted_version": "1"}, predicate="id = 3"))
        for mirror in (sink, delta):
            both = repair(partial(opening(mirror), None), log_of(orders.path), LocalEngine(), Policy(), 9)
            differs, equal = [result async for result in both]
            assert [(difference.kind.value, key_of(difference)) for difference in differs.differences] == [
                ("missing", 3)
            ]
            assert (equal.is_equal, equal.mirror_rows) == (True, 2)
    assert database.query("SELECT id, _deleted_version FROM orders ORDER BY id") == [(1, None), (2, 1), (3, None)]
    rows = mirror_rows(copy).select(["id", "_deleted_version"]).sort_by("id").to_pylist()
    assert [tuple(row.values()) for row in rows] == [(1, None), (2, 1), (3, None)]
