"""`tailer verify`: a mirror equals its source at its version, and each planted difference is found and named.

On every landing: the memory of a mirror in Delta; what compares both is the same code.
"""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import anyio
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tailer.__main__ import ALLOCATOR
from tailer.engine.local import LocalEngine
from tailer.errors import FileVacuumed, SinkRejected, TableReplaced
from tailer.pipeline.policy import Policy
from tailer.pipeline.verification.comparison import verify
from tailer.plan import Position
from tailer.sink import app_id_of
from tests.support.daemon.commands import Orders, tailer
from tests.support.mirrors.databases import Database, SqliteDatabase, batch, deliver, mirrored, opened, verified
from tests.support.mirrors.delta import make_mirror
from tests.support.mirrors.planted import (
    PLANTED,
    configured,
    drop_primary_key,
    follow,
    found,
    key_of,
    log_of,
    plant,
    write,
)

pytestmark = pytest.mark.long

LIMIT_MB: Final = 500


def vacuum(path: Path) -> None:
    DeltaTable(path).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


@pytest.mark.anyio
async def test_each_planted_difference_is_found_and_named(database: Database, tmp_path: Path) -> None:
    await anyio.to_thread.run_sync(write, tmp_path / "orders")
    async with opened(database) as sink:
        await follow(sink, tmp_path / "orders", 1, Policy())
        equal = await verified(sink, "orders", log_of(tmp_path / "orders"), Policy())
        assert (equal.is_equal, equal.version, equal.source_rows, equal.mirror_rows) == (True, 1, 50, 50)
        await anyio.to_thread.run_sync(plant, database, *PLANTED)
        result = await verified(sink, "orders", log_of(tmp_path / "orders"), Policy())
        wanted = [each for _, differences in PLANTED.values() for each in differences]
        assert found(result) == set(wanted)
        assert len(wanted) >= 40
        assert list(result.counts.values()) == [2, 2, len(wanted) - 4]
        assert (result.source_rows, result.mirror_rows) == (50, 50)
        assert result.columns["code"] == sum("code" in columns for _, _, columns in wanted)
        few = await verified(sink, "orders", log_of(tmp_path / "orders"), Policy(), limit=2)
        assert (few.counts, [key_of(each) for each in few.differences]) == (result.counts, [3, 4])


@pytest.mark.anyio
async def test_rows_with_the_same_key_are_found(database: Database, tmp_path: Path) -> None:
    await anyio.to_thread.run_sync(write, tmp_path / "orders")
    async with opened(database) as sink:
        await follow(sink, tmp_path / "orders", 1, Policy())
        drop_primary_key(database)
        database.query("INSERT INTO orders SELECT * FROM orders WHERE id IN (3, 4)")
        database.query("INSERT INTO orders (id, code) VALUES (5, 'another')")
        database.query("UPDATE orders SET code = 'another' WHERE id = 4")
        result = await verified(sink, "orders", log_of(tmp_path / "orders"), Policy())
        unexpected = {("unexpected", key, "") for key in (3, 4, 5)}
        assert found(result) == unexpected | {("different", 4, "code")}
        assert (result.source_rows, result.mirror_rows) == (50, 53)


@pytest.mark.anyio
async def test_a_text_in_a_column_of_numbers_is_no_number(tmp_path: Path) -> None:
    await anyio.to_thread.run_sync(write, tmp_path / "orders")
    database = SqliteDatabase(tmp_path / "mirror.db")
    async with opened(database) as sink:
        await follow(sink, tmp_path / "orders", 1, Policy())
        database.query("UPDATE orders SET ratio = '0.3' WHERE id = 3")
        database.query("UPDATE orders SET code = X'6334' WHERE id = 4")
        result = await verified(sink, "orders", log_of(tmp_path / "orders"), Policy())
        assert found(result) == {("different", 3, "ratio"), ("different", 4, "code")}


@pytest.mark.anyio
async def test_rows_and_columns_of_the_pipeline_are_compared(database: Database, tmp_path: Path) -> None:
    await anyio.to_thread.run_sync(write, tmp_path / "orders")
    policy = Policy(where="id > 30", select="id, upper(code) AS code")
    async with opened(database) as sink:
        await follow(sink, tmp_path / "orders", 1, policy)
        result = await verified(sink, "orders", log_of(tmp_path / "orders"), policy)
        assert (result.is_equal, result.source_rows) == (True, 20)
        other = await verified(sink, "orders", log_of(tmp_path / "orders"), Policy(columns=("id", "n")))
        assert (other.missing_columns, other.unexpected_columns) == (("n",), ("code",))
        assert not other.is_equal
        # All columns that are compared are equal, and the mirror has one more.
        fewer = await verified(sink, "orders", log_of(tmp_path / "orders"), Policy(where="id > 30", columns=("id",)))
        assert (fewer.missing_columns, fewer.unexpected_columns, fewer.is_equal) == ((), ("code",), False)


@pytest.mark.anyio
async def test_one_state_is_compared_although_the_mirror_goes_on(shared_database: Database, tmp_path: Path) -> None:
    await anyio.to_thread.run_sync(write, tmp_path / "orders")
    async with opened(shared_database) as sink:
        await follow(sink, tmp_path / "orders", 0, Policy())
        async with sink.open_mirror("orders") as mirror:
            await follow(sink, tmp_path / "orders", 1, Policy())
            assert mirrored(shared_database, "orders") == 1
            before = await verify(mirror, log_of(tmp_path / "orders"), LocalEngine(), Policy(), 20)
        assert (before.is_equal, before.version) == (True, 0)
        after = await verified(sink, "orders", log_of(tmp_path / "orders"), Policy())
        assert (after.is_equal, after.version) == (True, 1)


@pytest.mark.anyio
async def test_inside_a_version_the_visible_one_is_compared(database: Database, tmp_path: Path) -> None:
    orders = Orders(tmp_path / "orders")
    await anyio.to_thread.run_sync(orders.insert, 1, 2)
    await anyio.to_thread.run_sync(orders.insert, 3, 4)
    schema = pa.schema([("id", pa.int64()), ("amount", pa.float64())])
    async with opened(database) as sink:
        await follow(sink, orders.path, 0, Policy())
        part = batch(1, "insert", schema, [{"id": 3, "amount": 4.5}])
        app_id = app_id_of("orders", await log_of(orders.path).table_id())
        await deliver(sink, part, at=Position(1, 0, 0), app_id=app_id)
        result = await verified(sink, "orders", log_of(orders.path), Policy())
        assert (result.is_equal, result.version, result.mirror_rows) == (True, 0, 2)


@pytest.mark.anyio
async def test_what_cannot_be_compared_is_named(database: Database, tmp_path: Path) -> None:
    orders = Orders(tmp_path / "orders")
    await anyio.to_thread.run_sync(orders.insert, 1, 2)
    async with opened(database) as sink:
        with pytest.raises(SinkRejected, match="the table orders has no version yet"):
            await verified(sink, "orders", log_of(orders.path), Policy())
        await follow(sink, orders.path, 0, Policy())
        with pytest.raises(SinkRejected, match="pipeline orders fills the table orders"):
            await verified(sink, "others", log_of(orders.path), Policy())
        others = Orders(tmp_path / "others")
        await anyio.to_thread.run_sync(others.insert, 1, 2)
        with pytest.raises(TableReplaced):
            await verified(sink, "orders", log_of(others.path), Policy())
        await anyio.to_thread.run_sync(orders.delete, 1, 2)
        await anyio.to_thread.run_sync(vacuum, orders.path)
        with pytest.raises(FileVacuumed, match="version 0"):
            await verified(sink, "orders", log_of(orders.path), Policy())


def test_the_command_says_what_differs_and_ends_with_5(tmp_path: Path) -> None:
    orders = Orders(tmp_path / "orders")
    orders.insert(1, 2, 3)
    database = SqliteDatabase(tmp_path / "shop.db")

    async def deliver_all() -> None:
        async with opened(database) as sink:
            await follow(sink, orders.path, 0, Policy())

    anyio.run(deliver_all)
    config = configured(tmp_path, 'kind = "sql"\nurl = "sqlite:///shop.db"\nkey = ["id"]')
    done = tailer("verify", "orders", "--config", config)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"orders: equals {orders.path} at version 0: 3 rows\n"
    database.query("UPDATE orders SET amount = 9.5 WHERE id = 1")
    database.query("DELETE FROM orders WHERE id = 2")
    done = tailer("verify", "orders", "--config", config, "--limit", 1)
    assert (done.returncode, done.stderr) == (5, "")
    assert done.stdout.splitlines() == [
        f"orders: differs from {orders.path} at version 0: 1 missing, 0 unexpected, 1 different",
        "rows: 3 in the source, 2 in the mirror",
        "columns that differ: amount (1)",
        'different: id = "1": amount',
        "and 1 more: see --limit",
    ]
    done = tailer("verify", "orders", "--config", config, "--values")
    assert done.stdout.splitlines()[3:] == [
        'different: id = "1": amount ("1.5" in the source, "9.5" in the mirror)',
        'missing: id = "2": amount = "3.0"',
    ]
    database.query("UPDATE orders SET amount = 'x' WHERE id = 1")
    done = tailer("verify", "orders", "--config", config, "--values")
    assert done.stdout.splitlines()[3] == (
        'different: id = "1": amount ("1.5" in the source, "x" of class str in the mirror)'
    )
    database.query("UPDATE orders SET amount = 9.5 WHERE id = 1")
    done = tailer("verify", "orders", "--config", config, "--json")
    assert (done.returncode, done.stderr) == (5, "")
    document: dict[str, Any] = {
        "format": 1,
        "pipeline": "orders",
        "table": str(orders.path),
        "version": 0,
        "equal": False,
        "source_rows": 3,
        "mirror_rows": 2,
        "missing": 1,
        "unexpected": 0,
        "different": 1,
        "columns": {"amount": 1},
        "missing_columns": [],
        "unexpected_columns": [],
        "differences": [
            {"kind": "different", "key": {"id": "1"}, "columns": ["amount"]},
            {"kind": "missing", "key": {"id": "2"}, "columns": []},
        ],
        "repaired": None,
    }
    assert json.loads(done.stdout) == document
    done = tailer("verify", "orders", "--config", config, "--json", "--values", "--limit", 1)
    one = {"source": {"id": "1", "amount": "1.5"}, "mirror": {"id": "1", "amount": "9.5"}}
    assert json.loads(done.stdout)["differences"] == [document["differences"][0] | one]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--version", 0), "orders has the rows of one version"),
        (("--all",), "orders has the rows of one version"),
        (("--all", "--version", 0), "leave one of them out"),
        (("--all", "--repair"), "the rows of the newest version alone"),
        (("--version", 0, "--repair"), "the rows of the newest version alone"),
    ],
)
def test_versions_are_for_a_history_and_not_for_a_repair(
    tmp_path: Path, options: tuple[object, ...], reason: str
) -> None:
    orders = Orders(tmp_path / "orders")
    orders.insert(1)

    async def deliver_all() -> None:
        async with opened(SqliteDatabase(tmp_path / "shop.db")) as sink:
            await follow(sink, orders.path, 0, Policy())

    anyio.run(deliver_all)
    config = configured(tmp_path, 'kind = "sql"\nurl = "sqlite:///shop.db"\nkey = ["id"]')
    done = tailer("verify", "orders", "--config", config, *options)
    assert done.returncode not in (0, 5)
    assert reason in " ".join(done.stderr.split())


def test_the_metrics_are_in_a_file(tmp_path: Path) -> None:
    orders = Orders(tmp_path / "orders")
    orders.insert(1, 2, 3)
    database, page = SqliteDatabase(tmp_path / "shop.db"), tmp_path / "orders.prom"

    async def deliver_all() -> None:
        async with opened(database) as sink:
            await follow(sink, orders.path, 0, Policy())

    anyio.run(deliver_all)
    config = configured(tmp_path, 'kind = "sql"\nurl = "sqlite:///shop.db"\nkey = ["id"]')
    database.query("UPDATE orders SET amount = 9.5 WHERE id = 1")
    before_s = time.time()
    assert tailer("verify", "orders", "--config", config, "--metrics-file", page).returncode == 5
    lines = re.findall(r"^(lake_tailer_\S+) (\S+)$", page.read_text(), re.MULTILINE)
    values = {name: float(value) for name, value in lines}
    assert before_s - 1 < values.pop('lake_tailer_verify_timestamp_seconds{pipeline="orders"}') < time.time() + 1
    assert values == {
        'lake_tailer_verify_equal{pipeline="orders"}': 0,
        'lake_tailer_verify_version{pipeline="orders"}': 0,
        'lake_tailer_verify_rows{pipeline="orders"}': 3,
        'lake_tailer_verify_differences{kind="missing",pipeline="orders"}': 0,
        'lake_tailer_verify_differences{kind="unexpected",pipeline="orders"}': 0,
        'lake_tailer_verify_differences{kind="different",pipeline="orders"}': 1,
        'lake_tailer_verify_repaired{kind="missing",pipeline="orders"}': 0,
        'lake_tailer_verify_repaired{kind="unexpected",pipeline="orders"}': 0,
        'lake_tailer_verify_repaired{kind="different",pipeline="orders"}': 0,
    }
    assert tailer("verify", "orders", "--config", config, "--repair", "--metrics-file", page).returncode == 0
    assert 'lake_tailer_verify_equal{pipeline="orders"} 1.0' in page.read_text()
    assert 'lake_tailer_verify_differences{kind="different",pipeline="orders"} 0.0' in page.read_text()
    assert 'lake_tailer_verify_repaired{kind="different",pipeline="orders"} 1.0' in page.read_text()
    done = tailer("verify", "orders", "--config", config, "--metrics-file", tmp_path / "none" / "orders.prom")
    assert (done.returncode, done.stdout.splitlines()) == (2, [f"orders: equals {orders.path} at version 0: 3 rows"])
    assert "cannot write" in done.stderr


@pytest.mark.parametrize(
    ("sink", "kind"),
    [
        ('kind = "files"\npath = "out"', "files"),
        ('kind = "delta"\npath = "copy"', "delta"),
    ],
)
def test_other_sinks_are_refused_by_name(tmp_path: Path, sink: str, kind: str) -> None:
    Orders(tmp_path / "orders").insert(1)
    done = tailer("verify", "orders", "--config", configured(tmp_path, sink))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        f"error: orders: its sink, of kind {kind}, keeps no mirror of the table",
        'hint: A sink of kind "sql" can be verified, and one of kind "delta" with mode = "mirror".',
    ]


def test_a_pipeline_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = tailer("verify", "order", "--config", configured(tmp_path, 'kind = "files"\npath = "out"'))
    assert (done.returncode, done.stdout) == (2, "")
    assert "no pipeline 'order'" in done.stderr


# Prints the peak of the process's memory, in kilobytes: `getrusage` has that of the process that started it, too.
MEASURED: Final = """
import sys
from pathlib import Path
from tailer.__main__ import main
try:
    main()
finally:
    (peak,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    print(peak.split()[1], file=sys.stderr)
"""
ROWS: Final = 200_000


@pytest.mark.parametrize("kind", [pytest.param("sql", marks=pytest.mark.nightly), "delta"])
def test_a_mirror_all_of_whose_rows_differ_in_bounded_memory(tmp_path: Path, kind: str) -> None:
    write(tmp_path / "orders", ROWS)
    database = SqliteDatabase(tmp_path / "shop.db")

    async def deliver_all() -> None:
        async with opened(database) as sink:
            await follow(sink, tmp_path / "orders", 1, Policy())

    if kind == "sql":
        anyio.run(deliver_all)
        database.query("UPDATE orders SET n = -1")
        sink = 'url = "sqlite:///shop.db"'
    else:
        anyio.run(follow, make_mirror(tmp_path / "copy"), tmp_path / "orders", 1, Policy())
        DeltaTable(tmp_path / "copy").update(updates={"n": "-1"})
        sink = 'path = "copy"\nmode = "mirror"'
    config = configured(tmp_path, f'kind = "{kind}"\n{sink}\nkey = ["id"]')
    command = [sys.executable, "-c", MEASURED, "verify", "orders", "--config", str(config)]
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | dict([ALLOCATOR]))
    assert done.returncode == 5
    assert f"0 missing, 0 unexpected, {ROWS} different" in done.stdout
    peak_mb = int(done.stderr.split()[-1]) / 1024
    print(f"{ROWS / (time.monotonic() - started):.0f} rows/s, peak {peak_mb:.0f} MB")
    assert peak_mb < LIMIT_MB
