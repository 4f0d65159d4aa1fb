"""`tailer verify`: a mirror equals its source at its version, and each planted difference is found and named."""

import json
import os
import subprocess
import sys
import time
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import anyio
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tailer.__main__ import ALLOCATOR
from tailer.changelog.equal_rows.keyed_difference import Difference
from tailer.engine.local import LocalEngine
from tailer.errors import FileVacuumed, SinkRejected, TableReplaced
from tailer.formats.delta.table import DeltaTableLog
from tailer.pipeline.policy import Policy
from tailer.pipeline.row_delivery import row_pipeline
from tailer.pipeline.verification import Verification, verify
from tailer.plan import Position
from tailer.sink import app_id_of
from tailer.start import Start, StartKind
from tailer.stores.local import LocalStore
from tailer.stores.wakeup import TimerWake
from tailer_sinks.sql.sink import SqlSink
from tests.support.daemon.commands import Orders, tailer
from tests.support.sql import Database, SqliteDatabase, batch, deliver, mirrored, opened, verified

LIMIT_MB: Final = 500
SCHEMA: Final = pa.schema(
    [
        ("id", pa.int64()),
        ("code", pa.string()),
        ("flag", pa.bool_()),
        ("n", pa.int32()),
        ("ratio", pa.float64()),
        ("small", pa.float32()),
        ("amount", pa.decimal128(12, 2)),
        ("data", pa.binary()),
        ("day", pa.date32()),
        ("moment", pa.timestamp("us", "UTC")),
        ("tags", pa.list_(pa.string())),
        ("attr", pa.struct([("a", pa.int64()), ("b", pa.string())])),
        ("props", pa.map_(pa.string(), pa.int64())),
    ]
)
# What is done to the mirror, and the differences that must be found for it: the kind, the key and the columns.
PLANTED: Final[dict[str, tuple[str, list[tuple[str, int, str]]]]] = {
    "a row is missing": ("DELETE FROM orders WHERE id = 3", [("missing", 3, "")]),
    "a row is superfluous": ("INSERT INTO orders (id, code) VALUES (1000, 'x')", [("unexpected", 1000, "")]),
    "the last digit of a decimal": ("amount = '4.26' WHERE id = 4", [("different", 4, "amount")]),
    "minus zero": ("ratio = '-0' WHERE id = 5", [("different", 5, "ratio")]),
    "an empty text for null": ("code = '' WHERE id = 6", [("different", 6, "code")]),
    "null for an empty text": ("code = NULL WHERE id = 7", [("different", 7, "code")]),
    "two rows are swapped": (
        "code = CASE id WHEN 8 THEN 'c9' ELSE 'c8' END WHERE id IN (8, 9)",
        [("different", 8, "code"), ("different", 9, "code")],
    ),
    "another key": ("id = 2000 WHERE id = 10", [("missing", 10, ""), ("unexpected", 2000, "")]),
    "a row of an earlier version": ("n = 11 WHERE id = 11", [("different", 11, "n")]),
    "a trailing blank": ("code = 'c12 ' WHERE id = 12", [("different", 12, "code")]),
    "upper case": ("code = 'C13' WHERE id = 13", [("different", 13, "code")]),
    "a boolean": ("flag = NOT flag WHERE id = 14", [("different", 14, "flag")]),
    "an integer": ("n = n + 1 WHERE id = 15", [("different", 15, "n")]),
    "the last bit of a double": ("ratio = 1.6000000000000003 WHERE id = 16", [("different", 16, "ratio")]),
    "the last bit of a float": ("small = 1.7000002 WHERE id = 17", [("different", 17, "small")]),
    "bytes": ("data = {bytes} WHERE id = 18", [("different", 18, "data")]),
    "a day": ("day = '2026-03-02' WHERE id = 19", [("different", 19, "day")]),
    "a microsecond": ("moment = '2026-03-01T12:00:20.000001Z' WHERE id = 20", [("different", 20, "moment")]),
    "the order of a list": ("""tags = '["b","a"]' WHERE id = 21""", [("different", 21, "tags")]),
    "null in a list": ("""tags = '["a","b",null]' WHERE id = 22""", [("different", 22, "tags")]),
    "a field of a struct": ("""attr = '{{"a":23,"b":"y"}}' WHERE id = 23""", [("different", 23, "attr")]),
    "a number as text in a struct": ("""attr = '{{"a":"24","b":"x"}}' WHERE id = 24""", [("different", 24, "attr")]),
    "a value of a map": ("""props = '{{"k":26}}' WHERE id = 25""", [("different", 25, "props")]),
    "an entry without value": ("""props = '{{"k":26,"l":null}}' WHERE id = 26""", [("different", 26, "props")]),
    "two columns": ("code = 'x', flag = NULL WHERE id = 27", [("different", 27, "code flag")]),
    "the order of fields": ("""attr = '{{ "b": "x", "a": 28 }}' WHERE id = 28""", []),
    "a field that is null, or not there": ("""attr = '{{"b":"x"}}' WHERE id = 29""", []),
}


def values(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "code": {6: None, 7: ""}.get(number, f"c{number}"),
        "flag": number % 2 == 0,
        "n": number,
        "ratio": 0.0 if number == 5 else number / 10,
        "small": number / 10,
        "amount": Decimal(number) + Decimal("0.25"),
        "data": b"\0" * (number % 100),
        "day": date(2026, 3, 1),
        "moment": datetime(2026, 3, 1, 12, tzinfo=UTC) + timedelta(seconds=number),
        "tags": ["a", "b"],
        "attr": {"a": None if number == 29 else number, "b": "x"},
        "props": [("k", number)],
    }


def write(path: Path, count: int = 40) -> None:
    """Write a table of two versions, of which the second one changes a row."""
    rows = [values(number) for number in range(1, count + 1)]
    write_deltalake(path, pa.Table.from_pylist(rows, SCHEMA))
    DeltaTable(path).update(updates={"n": "n + 1000"}, predicate="id = 11")


def vacuum(path: Path) -> None:
    DeltaTable(path).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


def log_of(path: Path) -> DeltaTableLog:
    return DeltaTableLog(LocalStore(path), allowed_roots=("/",))


async def follow(sink: SqlSink, path: Path, last: int, policy: Policy) -> None:
    """Mirror a table up to version `last`."""
    start, end = Start(StartKind.EARLIEST), Start(StartKind.VERSION, last)
    await row_pipeline("orders", log_of(path), sink, LocalEngine(), TimerWake(), start, end, policy).run()


def found(verification: Verification) -> set[tuple[str, int, str]]:
    return {(each.kind.value, key_of(each), " ".join(each.columns)) for each in verification.differences}


def key_of(difference: Difference) -> int:
    row = difference.source or difference.mirror or {}
    return int(row["id"] or 0)


def plant(database: Database, statement: str) -> None:
    text = statement.format(bytes="X'01'" if isinstance(database, SqliteDatabase) else "'\\x01'::bytea")
    if "-0" in text and isinstance(database, SqliteDatabase):
        text = text.replace("'-0'", "-1e-200 * 1e-200")  # a literal would be zero
    database.query(text if text.startswith(("DELETE", "INSERT")) else f"UPDATE orders SET {text}")


@pytest.mark.anyio
async def test_each_planted_difference_is_found_and_named(database: Database, tmp_path: Path) -> None:
    await anyio.to_thread.run_sync(write, tmp_path / "orders")
    async with opened(database) as sink:
        await follow(sink, tmp_path / "orders", 1, Policy())
        equal = await verified(sink, "orders", log_of(tmp_path / "orders"), Policy())
        assert (equal.is_equal, equal.version, equal.source_rows, equal.mirror_rows) == (True, 1, 40, 40)
        for statement, _ in PLANTED.values():
            plant(database, statement)
        result = await verified(sink, "orders", log_of(tmp_path / "orders"), Policy())
        assert found(result) == {each for _, wanted in PLANTED.values() for each in wanted}
        assert list(result.counts.values()) == [2, 2, 23]
        assert (result.source_rows, result.mirror_rows) == (40, 40)
        assert result.columns["code"] == 7
        few = await verified(sink, "orders", log_of(tmp_path / "orders"), Policy(), limit=2)
        assert (few.counts, [key_of(each) for each in few.differences]) == (result.counts, [3, 4])


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
        assert (result.is_equal, result.source_rows) == (True, 10)
        other = await verified(sink, "orders", log_of(tmp_path / "orders"), Policy(columns=("id", "n")))
        assert (other.missing_columns, other.unexpected_columns) == (("n",), ("code",))
        assert not other.is_equal


@pytest.mark.anyio
async def test_one_state_is_compared_although_the_mirror_goes_on(database: Database, tmp_path: Path) -> None:
    await anyio.to_thread.run_sync(write, tmp_path / "orders")
    async with opened(database) as sink:
        await follow(sink, tmp_path / "orders", 0, Policy())
        opened_mirror = sink.open_mirror("orders")
        assert opened_mirror is not None
        async with opened_mirror as mirror:
            await follow(sink, tmp_path / "orders", 1, Policy())
            assert mirrored(database, "orders") == 1
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


def configured(folder: Path, sink: str) -> Path:
    """Write a configuration, with a mirror of the table `orders` at version 0 if `sink` is one."""
    config = folder / "tailer.toml"
    config.write_text(f'[pipelines.orders]\ntable = "orders"\n[pipelines.orders.sink]\n{sink}\n')
    return config


def test_the_command_says_what_differs_and_ends_with_5(tmp_path: Path) -> None:
    orders = Orders(tmp_path / "orders")
    orders.insert(1, 2, 3)
    database = SqliteDatabase(tmp_path / "shop.db")

    async def deliver_all() -> None:
        async with opened(database) as sink:
            await follow(sink, orders.path, 0, Policy())

    anyio.run(deliver_all)
    config = configured(tmp_path, 'kind = "sql"\nurl = "sqlite:///shop.db"\nkey = ["id"]')
    done = tailer("verify", "orders", config)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"orders: equals {orders.path} at version 0: 3 rows\n"
    database.query("UPDATE orders SET amount = 9.5 WHERE id = 1")
    database.query("DELETE FROM orders WHERE id = 2")
    done = tailer("verify", "orders", config, "--limit", 1)
    assert (done.returncode, done.stderr) == (5, "")
    assert done.stdout.splitlines() == [
        f"orders: differs from {orders.path} at version 0: 1 missing, 0 unexpected, 1 different",
        "rows: 3 in the source, 2 in the mirror",
        "columns that differ: amount (1)",
        'different: id = "1": amount',
        "and 1 more: see --limit",
    ]
    done = tailer("verify", "orders", config, "--values")
    assert done.stdout.splitlines()[3:] == [
        'different: id = "1": amount ("1.5" in the source, "9.5" in the mirror)',
        'missing: id = "2": amount = "3.0"',
    ]
    done = tailer("verify", "orders", config, "--json")
    document = json.loads(done.stdout)
    assert (done.returncode, document["equal"], document["missing"]) == (5, False, 1)
    assert document["differences"][0] == {"kind": "different", "key": {"id": "1"}, "columns": ["amount"]}


@pytest.mark.parametrize(
    ("sink", "kind"),
    [
        ('kind = "files"\npath = "out"', "files"),
        ('kind = "delta"\npath = "copy"', "delta"),
        ('kind = "sql"\nurl = "sqlite:///shop.db"\nmode = "append"', "sql"),
    ],
)
def test_other_sinks_are_refused_by_name(tmp_path: Path, sink: str, kind: str) -> None:
    Orders(tmp_path / "orders").insert(1)
    done = tailer("verify", "orders", configured(tmp_path, sink))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        f"error: orders: its sink, of kind {kind}, keeps no mirror of the table",
        'hint: A sink of kind "sql" with mode = "mirror" can be verified.',
    ]


def test_a_pipeline_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = tailer("verify", "order", configured(tmp_path, 'kind = "files"\npath = "out"'))
    assert (done.returncode, done.stdout) == (2, "")
    assert "no pipeline 'order'" in done.stderr


# Prints the peak of the process's memory, in kilobytes.
MEASURED: Final = """
import resource, sys
from tailer.__main__ import main
try:
    main()
finally:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
"""


@pytest.mark.long
def test_a_mirror_all_of_whose_rows_differ_in_bounded_memory(tmp_path: Path) -> None:
    write(tmp_path / "orders", 300_000)
    database = SqliteDatabase(tmp_path / "shop.db")

    async def deliver_all() -> None:
        async with opened(database) as sink:
            await follow(sink, tmp_path / "orders", 1, Policy())

    anyio.run(deliver_all)
    database.query("UPDATE orders SET n = n + 1")
    config = configured(tmp_path, 'kind = "sql"\nurl = "sqlite:///shop.db"\nkey = ["id"]')
    command = [sys.executable, "-c", MEASURED, "verify", "orders", str(config)]
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | dict([ALLOCATOR]))
    assert done.returncode == 5
    assert "0 missing, 0 unexpected, 300000 different" in done.stdout
    peak_mb = int(done.stderr.split()[-1]) / 1024
    print(f"{300_000 / (time.monotonic() - started):.0f} rows/s, peak {peak_mb:.0f} MB")
    assert peak_mb < LIMIT_MB
