"""`tailer verify --repair`: every planted difference is repaired, and what the pipeline commits meanwhile stays."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tailer.engine.local import LocalEngine
from tailer.errors import SinkRejected, SinkUnavailable
from tailer.pipeline.policy import Policy
from tailer.pipeline.verification.comparison import Rewritten, Verification, repair, verify
from tailer.sink import MirrorRows
from tailer_sinks.sql.sink import SqlSink
from tests.support.daemon.commands import Orders, tailer
from tests.support.mirrors.databases import (
    Database,
    SqliteDatabase,
    batch,
    deliver,
    mirrored,
    opened,
    rows_in,
    verified,
)
from tests.support.mirrors.planted import PLANTED, configured, drop_primary_key, follow, found, log_of, plant, write
from tests.support.waiting import until

pytestmark = pytest.mark.long

# SIGTERM comes at the NUMBERth beginning of a step with these words.
ENDED = """
import os, signal, sys
from tailer.__main__ import main
from tailer.cli.display.display import Steps

words, left, begin = sys.argv.pop(1), [int(sys.argv.pop(1))], Steps.begin

def ending(self, step):
    begin(self, step)
    left[0] -= words in step
    if words in step and not left[0]:
        os.kill(os.getpid(), signal.SIGTERM)

Steps.begin = ending
main()
"""


async def repaired(sink: SqlSink, path: Path, policy: Policy | None = None) -> list[Verification]:
    """Repair the mirror of a table. Return the verifications."""
    open_mirror = partial(sink.open_mirror, "orders")
    return [each async for each in repair(open_mirror, log_of(path), LocalEngine(), policy or Policy(), 100)]


def sorted_rows(database: Database) -> list[str]:
    return sorted(map(repr, rows_in(database, "orders")))


@pytest.mark.anyio
async def test_all_planted_differences_are_repaired(database: Database, tmp_path: Path) -> None:
    await anyio.to_thread.run_sync(write, tmp_path / "orders")
    async with opened(database) as sink:
        await follow(sink, tmp_path / "orders", 1, Policy())
        before = sorted_rows(database)
        planted = [name for name, (_, wanted) in PLANTED.items() if wanted]
        await anyio.to_thread.run_sync(plant, database, *planted)
        differs, equal = await repaired(sink, tmp_path / "orders")
        keys = {key for _, wanted in PLANTED.values() for _, key, _ in wanted}
        assert differs.rewritten == Rewritten(keys=len(keys), rows=len(keys - {1000, 2000}))
        assert (equal.is_equal, equal.version, equal.rewritten) == (True, 1, None)
        assert (await verified(sink, "orders", log_of(tmp_path / "orders"), Policy())).is_equal
    assert sorted_rows(database) == before
    assert set(database.tables()) == {"lake_tailer_mirrors", "lake_tailer_progress", "orders"}


@pytest.mark.anyio
async def test_rows_with_the_same_key_are_repaired(database: Database, tmp_path: Path) -> None:
    await anyio.to_thread.run_sync(write, tmp_path / "orders")
    async with opened(database) as sink:
        await follow(sink, tmp_path / "orders", 1, Policy())
        before = sorted_rows(database)
        drop_primary_key(database)
        database.query("INSERT INTO orders SELECT * FROM orders WHERE id IN (3, 4)")
        database.query("UPDATE orders SET code = 'another' WHERE id = 4")
        _, equal = await repaired(sink, tmp_path / "orders")
        assert equal.is_equal
    assert sorted_rows(database) == before


@pytest.mark.sampled(4)
@pytest.mark.anyio
@pytest.mark.parametrize("key", ["code", "data", "amount", "day id", "moment", "flag id", "local"])
async def test_keys_of_any_type_are_repaired(database: Database, tmp_path: Path, key: str) -> None:
    path, policy = tmp_path / "orders", Policy(where="id > 7")
    await anyio.to_thread.run_sync(write, path)
    async with opened(database, key=key.split()) as sink:
        await follow(sink, path, 1, policy)
        before = sorted_rows(database)
        database.query("UPDATE orders SET n = -1 WHERE id = 8")
        database.query("DELETE FROM orders WHERE id = 9")
        differs, equal = await repaired(sink, path, policy)
        assert differs.rewritten is not None
        assert equal.is_equal
    assert sorted_rows(database) == before


@pytest.mark.anyio
async def test_keys_of_any_characters_are_repaired(database: Database, tmp_path: Path) -> None:
    texts = ["", " ", "a\tb", "c\\d", 'e"f', "g\nh", "\\N", "NULL", "i,j", "k'l", "\N{LATIN SMALL LETTER E WITH ACUTE}"]
    rows = pa.table({"name": texts, "n": list(range(len(texts)))})
    await anyio.to_thread.run_sync(write_deltalake, tmp_path / "orders", rows)
    async with opened(database, key=["name"]) as sink:
        await follow(sink, tmp_path / "orders", 0, Policy())
        before = sorted_rows(database)
        database.query("UPDATE orders SET n = -1")
        differs, equal = await repaired(sink, tmp_path / "orders")
        assert differs.rewritten == Rewritten(keys=len(texts), rows=len(texts))
        assert equal.is_equal
    assert sorted_rows(database) == before


@pytest.mark.anyio
async def test_a_key_of_another_class_is_removed(tmp_path: Path) -> None:
    """In a column of SQLite any value may be of any class."""
    await anyio.to_thread.run_sync(write, tmp_path / "orders")
    database, policy = SqliteDatabase(tmp_path / "mirror.db"), Policy(where="id > 7")
    async with opened(database, key=["code"]) as sink:
        await follow(sink, tmp_path / "orders", 1, policy)
        database.query("UPDATE orders SET code = X'6338' WHERE id = 8")
        database.query("INSERT INTO orders (code) VALUES ('\0bytes 6338')".replace("\0", "' || char(0) || '"))
        _, equal = await repaired(sink, tmp_path / "orders", policy)
        assert equal.is_equal


@pytest.mark.anyio
async def test_a_mirror_that_went_on_is_left_alone(shared_database: Database, tmp_path: Path) -> None:
    """Row 11 has another value in version 1, at which the mirror is when the repair of version 0 is committed."""
    path = tmp_path / "orders"
    await anyio.to_thread.run_sync(write, path)
    async with opened(shared_database) as sink:
        await follow(sink, path, 0, Policy())
        shared_database.query("UPDATE orders SET code = 'x' WHERE id IN (11, 12)")
        shared_database.query("INSERT INTO orders (id, code) VALUES (1000, 'x')")
        async with sink.open_mirror("orders") as mirror:
            await follow(sink, path, 1, Policy())
            at_1 = sorted_rows(shared_database)
            result = await verify(mirror, log_of(path), LocalEngine(), Policy(), 100, repairs=True)
        assert (result.version, result.rewritten) == (0, None)
        assert found(result) == {("different", 11, "code"), ("different", 12, "code"), ("unexpected", 1000, "")}
        assert sorted_rows(shared_database) == at_1
        differs, equal = await repaired(sink, path)
        assert (differs.version, differs.rewritten) == (1, Rewritten(keys=1, rows=0))
        assert (equal.is_equal, equal.version) == (True, 1)


@pytest.mark.anyio
async def test_a_mirror_that_went_on_under_another_id_is_left_alone(shared_database: Database, tmp_path: Path) -> None:
    """The progress that was read stays where it is, because the pipeline has another one now."""
    orders = Orders(tmp_path / "orders")
    await anyio.to_thread.run_sync(orders.insert, 1, 2)
    async with opened(shared_database) as sink, opened(shared_database) as other:
        await follow(sink, orders.path, 0, Policy())
        shared_database.query("UPDATE orders SET amount = 0 WHERE id = 1")
        async with sink.open_mirror("orders") as mirror:
            rows = batch(0, "insert", pa.schema([("id", pa.int64()), ("amount", pa.float64())]), [{"id": 3}])
            await deliver(other, rows, app_id="orders/another")
            result = await verify(mirror, log_of(orders.path), LocalEngine(), Policy(), 100, repairs=True)
        assert (found(result), result.rewritten) == ({("different", 1, "amount")}, None)
        assert shared_database.query("SELECT id, amount FROM orders ORDER BY id") == [(1, 0.0), (2, 3.0), (3, None)]


@pytest.mark.anyio
async def test_a_change_of_the_columns_does_not_wait_for_its_repair(shared_database: Database, tmp_path: Path) -> None:
    """In PostgreSQL it waits for whoever reads the mirror, with the lock of the progress for which a repair waits."""
    orders = Orders(tmp_path / "orders")
    await anyio.to_thread.run_sync(orders.insert, 1, 2)
    rows = pa.table({"id": [3], "amount": [4.5], "note": ["x"]})
    await anyio.to_thread.run_sync(partial(write_deltalake, mode="append", schema_mode="merge"), orders.path, rows)

    def has_come() -> bool:
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'ALTER TABLE%' AND wait_event_type = 'Lock'"
        if isinstance(shared_database, SqliteDatabase):
            return mirrored(shared_database, "orders") == 1
        return shared_database.query(waiting) == [(1,)]

    async with opened(shared_database) as sink, opened(shared_database) as other:
        await follow(sink, orders.path, 0, Policy())
        shared_database.query("UPDATE orders SET amount = 0 WHERE id = 1")
        with anyio.fail_after(120):
            async with sink.open_mirror("orders") as mirror, anyio.create_task_group() as group:
                group.start_soon(follow, other, orders.path, 1, Policy())
                await anyio.to_thread.run_sync(until, has_come)
                result = await verify(mirror, log_of(orders.path), LocalEngine(), Policy(), 100, repairs=True)
        assert (found(result), result.rewritten) == ({("different", 1, "amount")}, None)
        _, equal = await repaired(sink, orders.path)
        assert (equal.is_equal, equal.version, equal.source_rows) == (True, 1, 3)


@pytest.mark.anyio
async def test_a_pipeline_that_always_goes_on_ends_the_attempts(
    shared_database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each repair meets a commit of the pipeline between the moment of reading and its own."""
    orders = Orders(tmp_path / "orders")
    await anyio.to_thread.run_sync(orders.insert, 1, 2)
    async with opened(shared_database) as sink, opened(shared_database) as other:
        await follow(sink, orders.path, 0, Policy())
        shared_database.query("UPDATE orders SET amount = 0 WHERE id = 1")

        @asynccontextmanager
        async def open_mirror() -> AsyncIterator[MirrorRows]:
            async with sink.open_mirror("orders") as mirror:
                await anyio.to_thread.run_sync(orders.insert, orders.version + 100)
                await follow(other, orders.path, orders.version, Policy())
                yield mirror

        verifications = [each async for each in repair(open_mirror, log_of(orders.path), LocalEngine(), Policy(), 100)]
        assert [(each.version, each.is_equal, each.rewritten) for each in verifications] == [
            (version, False, None) for version in range(3)
        ]
        assert caplog.text.count("the mirror was changed meanwhile") == 2
        assert shared_database.query("SELECT amount FROM orders WHERE id = 1") == [(0.0,)]
        assert mirrored(shared_database, "orders") == 3


@pytest.mark.anyio
async def test_a_repair_does_not_wait_for_ever(shared_database: Database, tmp_path: Path) -> None:
    """Somebody else holds the lock of the progress."""
    orders = Orders(tmp_path / "orders")
    await anyio.to_thread.run_sync(orders.insert, 1, 2)
    async with opened(shared_database) as sink:
        await follow(sink, orders.path, 0, Policy())
    shared_database.query("UPDATE orders SET amount = 0 WHERE id = 1")
    async with opened(shared_database, timeout_s=1.0) as sink:
        with shared_database.holding_the_progress(), pytest.raises(SinkUnavailable):
            await repaired(sink, orders.path)
        assert shared_database.query("SELECT amount FROM orders WHERE id = 1") == [(0.0,)]
        _, equal = await repaired(sink, orders.path)
        assert equal.is_equal


@pytest.mark.anyio
async def test_a_repair_that_is_refused_changes_nothing(database: Database, tmp_path: Path) -> None:
    """The source has a key twice, which the mirror cannot have: the transaction has removed rows by then."""
    path = tmp_path / "orders"
    orders = Orders(path)
    await anyio.to_thread.run_sync(orders.insert, 1, 2)
    await anyio.to_thread.run_sync(orders.insert, 2)
    async with opened(database) as sink:
        await follow(sink, path, 0, Policy())
        database.query("UPDATE lake_tailer_mirrors SET version = 1")
        before = sorted_rows(database)
        with pytest.raises(SinkRejected, match="the source has a key twice; the key of orders is id"):
            await repaired(sink, path)
    assert sorted_rows(database) == before


def test_the_command_repairs_and_ends_with_0(tmp_path: Path) -> None:
    orders = Orders(tmp_path / "orders")
    orders.insert(1, 2, 3)
    database = SqliteDatabase(tmp_path / "shop.db")

    async def deliver_all() -> None:
        async with opened(database) as sink:
            await follow(sink, orders.path, 0, Policy())

    anyio.run(deliver_all)
    config = configured(tmp_path, 'kind = "sql"\nurl = "sqlite:///shop.db"\nkey = ["id"]')

    def damage() -> None:
        database.query("UPDATE orders SET amount = 9.5 WHERE id = 1")
        database.query("DELETE FROM orders WHERE id = 2")
        database.query("INSERT INTO orders VALUES (7, 7.0)")

    damage()
    done = tailer("verify", "orders", "--config", config, "--repair")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"orders: differs from {orders.path} at version 0: 1 missing, 1 unexpected, 1 different",
        "rows: 3 in the source, 3 in the mirror",
        "columns that differ: amount (1)",
        'different: id = "1": amount',
        'missing: id = "2"',
        'unexpected: id = "7"',
        "rewritten: 3 keys, which have 2 rows now",
        f"orders: equals {orders.path} at version 0: 3 rows",
    ]
    assert database.query("SELECT * FROM orders ORDER BY id") == [(1, 1.5), (2, 3.0), (3, 4.5)]
    damage()
    done = tailer("verify", "orders", "--config", config, "--repair", "--json", "--limit", 1)
    assert (done.returncode, done.stderr) == (0, "")
    equal = {
        "version": 0,
        "equal": True,
        "source_rows": 3,
        "mirror_rows": 3,
        "missing": 0,
        "unexpected": 0,
        "different": 0,
        "columns": {},
        "missing_columns": [],
        "unexpected_columns": [],
        "differences": [],
    }
    differs = equal | {
        "equal": False,
        "missing": 1,
        "unexpected": 1,
        "different": 1,
        "columns": {"amount": 1},
        "differences": [{"kind": "different", "key": {"id": "1"}, "columns": ["amount"]}],
    }
    assert json.loads(done.stdout) == {
        "format": 1,
        "pipeline": "orders",
        "table": str(orders.path),
        **equal,
        "repaired": {"keys": 3, "rows": 2, **differs},
    }
    done = tailer("verify", "orders", "--config", config, "--repair")
    assert (done.returncode, done.stdout) == (0, f"orders: equals {orders.path} at version 0: 3 rows\n")


@pytest.mark.parametrize("ignores_interrupts", [False, True])
@pytest.mark.parametrize(
    ("words", "number", "said", "rows"),
    [
        ("comparing", 1, "nothing was rewritten", [(1, 9.5), (2, 3.0)]),
        ("rewriting", 1, "nothing was rewritten", [(1, 9.5), (2, 3.0)]),
        ("committing", 1, "the repair was being committed: run it again to see whether anything differs", None),
        (
            "comparing",
            2,
            "rewritten: 1 keys, which have 1 rows now; the comparison after that did not end",
            [(1, 1.5), (2, 3.0)],
        ),
    ],
)
def test_a_repair_that_is_ended_says_what_it_has_repaired(
    tmp_path: Path, words: str, number: int, said: str, rows: list[tuple[int, float]] | None, ignores_interrupts: bool
) -> None:
    """By SIGTERM, also in the background of a script, where a shell has Ctrl-C ignored."""
    orders = Orders(tmp_path / "orders")
    orders.insert(1, 2)
    database = SqliteDatabase(tmp_path / "shop.db")

    async def deliver_all() -> None:
        async with opened(database) as sink:
            await follow(sink, orders.path, 0, Policy())

    anyio.run(deliver_all)
    config = configured(tmp_path, 'kind = "sql"\nurl = "sqlite:///shop.db"\nkey = ["id"]')
    database.query("UPDATE orders SET amount = 9.5 WHERE id = 1")
    command = [sys.executable, "-c", ENDED, words, str(number), "verify", "orders", "--config", str(config), "--repair"]
    if ignores_interrupts:
        command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", f"orders: ended: {said}\n")
    if rows is not None:
        assert database.query("SELECT id, amount FROM orders ORDER BY id") == rows
