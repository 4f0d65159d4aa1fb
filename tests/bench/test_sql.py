"""Rows into mirrors by the `sql` sink, in PostgreSQL beside a plain COPY of the same rows into a table with that key.

Both take rows from memory, in transactions of `ROWS` rows, and send them in the same form. Inserts are new rows of a
mirror, upserts replace each row of the transaction before. The latency is that of a transaction with one row. The
daemon that catches up is a process that follows a table on disk; its memory is that of the process.

Nothing is asserted about time, only that all rows arrive. `make bench` prints the table.
"""

import json
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import anyio
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tailer.events import ChangeBatch, SchemaChange
from tailer.formats.delta.log.listing import commit_name
from tailer.plan import Position
from tailer.sink import Progress
from tailer_sinks.sql.databases.postgresql_copy import copied
from tailer_sinks.sql.sink import SqlSink
from tests.bench.conftest import PutLine
from tests.support.daemon.process import Daemon
from tests.support.mirrors.databases import APP, PostgresDatabase, SqliteDatabase, full, mirrored, opened
from tests.support.servers.postgres import Postgres
from tests.support.tables.log_files import add, metadata, parquet, protocol, schema_string
from tests.support.waiting import until

ROWS: Final = 100_000
ROUNDS: Final = 3
# The options of mirrors that keep rows of the past, and the share of a plain mirror's rows a second that they aim at.
OF_THE_PAST: Final = {"mark": ({"deletes": "mark"}, 0.9), "history": ({"mode": "history"}, 0.7)}
VERSIONS: Final = 3
COMMITS: Final = 50
SLICE: Final = 20_000
BEHIND: Final = 10_000_000
WIDENED: Final = 5_000_000
BEHIND_VERSIONS: Final = 20
SCHEMA: Final = pa.schema(
    [
        ("id", pa.int64()),
        ("customer", pa.string()),
        ("amount", pa.float64()),
        ("day", pa.date32()),
        ("note", pa.string()),
    ]
)


def rows(first: int, count: int) -> dict[str, list[object]]:
    ids = range(first, first + count)
    return {
        "id": list(ids),
        "customer": [f"customer-{number % 1000}" for number in ids],
        "amount": [number * 0.25 for number in ids],
        "day": [number % 20_000 for number in ids],
        "note": ["a note that says little" if number % 3 else None for number in ids],
    }


def batch(version: int, kind: str, first: int, count: int) -> ChangeBatch:
    metadata = [[kind] * count, [version] * count, [version] * count]
    columns = [*rows(first, count).values(), *metadata]
    schema = full(SCHEMA)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    found = pa.record_batch(arrays, schema=schema)
    return ChangeBatch("t", version, 0 if kind == "delete" else 1, found, pa.array(range(count), pa.int64()))


async def deliver(sink: SqlSink, version: int, *batches: ChangeBatch) -> float:
    begun_s = time.perf_counter()
    async with sink.begin(APP, full(SCHEMA)) as transaction:
        for each in batches:
            for at in range(0, len(each), SLICE):
                await transaction.write(each.slice(at, SLICE))
        await transaction.commit(Progress(APP, Position.end(version)))
    return time.perf_counter() - begun_s


async def fill(sink: SqlSink) -> tuple[float, float]:
    """Return the seconds of inserts and of upserts."""
    inserted = upserted = 0.0
    for version in range(1, VERSIONS + 1):
        inserted += await deliver(sink, version, batch(version, "insert", version * ROWS, ROWS))
    for version in range(VERSIONS + 1, 2 * VERSIONS + 1):
        first = (version - VERSIONS) * ROWS
        images = batch(version, "delete", first, ROWS), batch(version, "insert", first, ROWS)
        upserted += await deliver(sink, version, *images)
    return inserted, upserted


async def fill_and_close(sink: SqlSink) -> float:
    """Return the seconds of inserts and upserts together."""
    seconds = sum(await fill(sink))
    await sink.aclose()
    return seconds


async def measure(database: PostgresDatabase) -> tuple[float, float, list[float]]:
    """Return the seconds of inserts and of upserts, and those of each small commit."""
    sink = SqlSink.configure("orders", {**database.options, "key": ["id"]})
    inserted, upserted = await fill(sink)
    small = await commit_one_by_one(sink, 2 * VERSIONS + 1)
    await sink.aclose()
    return inserted, upserted, small


async def commit_one_by_one(sink: SqlSink, first: int) -> list[float]:
    """Return the seconds of each of `COMMITS` versions with a row, from version `first` on."""
    return [
        await deliver(sink, version, batch(version, "insert", (VERSIONS + 10) * ROWS + version, 1))
        for version in range(first, first + COMMITS)
    ]


async def measure_sqlite(database: SqliteDatabase) -> list[float]:
    """Return the seconds of each small commit into a mirror that has rows."""
    sink = SqlSink.configure("orders", {**database.options, "key": ["id"]})
    await deliver(sink, 1, batch(1, "insert", ROWS, ROWS))
    small = await commit_one_by_one(sink, 2)
    await sink.aclose()
    return small


def write_backlog(path: Path) -> None:
    """Write a table of `BEHIND` rows in `BEHIND_VERSIONS` appends."""
    count = BEHIND // BEHIND_VERSIONS
    columns = {"id": "long", "customer": "string", "amount": "double", "day": "date", "note": "string"}
    for version in range(BEHIND_VERSIONS):
        ids = pa.array(range(version * count, (version + 1) * count), pa.int64())
        customers = pc.binary_join_element_wise("customer-", pc.bit_wise_and(ids, 1023).cast(pa.string()), "")
        days = pc.bit_wise_and(ids, 16_383).cast(pa.int32()).cast(pa.date32())
        notes = pa.repeat("a note that says little", count)
        arrays = [ids, customers, pc.multiply(ids, 0.25), days, notes]
        size = parquet(path / f"{version}.parquet", pa.table(arrays, SCHEMA)).stat().st_size
        begin = [protocol(), metadata(schema_string(**columns))] if version == 0 else []
        commit = path / commit_name(version)
        commit.parent.mkdir(parents=True, exist_ok=True)
        actions = [*begin, add(f"{version}.parquet", size=size)]
        commit.write_text("".join(f"{json.dumps(action)}\n" for action in actions))


def peak_of(process: "subprocess.Popen[bytes]") -> int:
    """Return the most memory that a running process had, in MB."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) >> 10


def copy(database: PostgresDatabase) -> float:
    """Return the seconds of a plain COPY of the inserts."""
    database.query("CREATE TABLE plain (id bigint PRIMARY KEY, customer text, amount float8, day date, note text)")
    seconds = 0.0
    with psycopg.connect(database.options["url"], options=f"-c search_path={database.schema}") as connection:
        for version in range(1, VERSIONS + 1):
            found = batch(version, "insert", version * ROWS, ROWS).rows.select(SCHEMA.names)
            begun_s = time.perf_counter()
            with connection.cursor() as cursor, cursor.copy("COPY plain FROM STDIN") as sent:
                for at in range(0, ROWS, SLICE):
                    sent.write(copied("plain", found.slice(at, SLICE)))
            connection.commit()
            seconds += time.perf_counter() - begun_s
    return seconds


@pytest.fixture
def database(postgres: Postgres) -> PostgresDatabase:
    return PostgresDatabase(postgres)


def test_commits_into_sqlite(tmp_path: Path, put_line: PutLine) -> None:
    database = SqliteDatabase(tmp_path / "mirror.db")
    small = anyio.run(measure_sqlite, database)
    assert database.query("SELECT count(*) FROM orders") == [(ROWS + COMMITS,)]
    put_line("a commit of one row into SQLite, p50", f"{statistics.median(small) * 1000:.1f} ms", "-", "50 ms")


def test_a_daemon_that_is_far_behind(tmp_path: Path, database: PostgresDatabase, put_line: PutLine) -> None:
    write_backlog(tmp_path / "orders")
    options = "".join(f'{name} = "{value}"\n' for name, value in database.options.items())
    config = tmp_path / "tailer.toml"
    config.write_text(
        f'[pipelines.orders]\ntable = "{tmp_path}/orders"\n'
        f'[pipelines.orders.sink]\nkind = "sql"\nkey = ["id"]\n{options}'
    )
    begun_s = time.perf_counter()
    daemon = Daemon(config)
    try:
        until(lambda: mirrored(database, "orders") == BEHIND_VERSIONS - 1, lambda: mirrored(database, "orders"))
        seconds, peak = time.perf_counter() - begun_s, peak_of(daemon.process)
        assert daemon.terminate() == 0, daemon.said
    finally:
        daemon.process.kill()
    assert database.query("SELECT count(*), count(DISTINCT id) FROM orders") == [(BEHIND, BEHIND)]
    work = f"a mirror in PostgreSQL, {BEHIND // 10**6} million rows behind"
    put_line(work, f"{seconds:.0f} s, {peak} MB", "-", "memory is bounded")


def test_rows_into_postgresql(database: PostgresDatabase, put_line: PutLine) -> None:
    plain = copy(database)
    inserted, upserted, small = anyio.run(measure, database)
    assert database.query("SELECT count(*) FROM orders") == [(VERSIONS * ROWS + COMMITS,)]
    rate, p50 = VERSIONS * ROWS / 1000, statistics.median(small) * 1000
    peer = f"plain COPY: {rate / plain:.0f}"
    work = "inserts into PostgreSQL, 1000 rows/s"
    put_line(work, f"{rate / inserted:.0f}", f"{peer}, ratio {plain / inserted:.2f}", "ratio 0.5")
    work = "upserts into PostgreSQL, 1000 rows/s"
    put_line(work, f"{rate / upserted:.0f}", f"{peer}, ratio {plain / upserted:.2f}", "ratio 0.3")
    put_line("a commit of one row into PostgreSQL, p50", f"{p50:.1f} ms", "-", "50 ms")


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_rows_of_the_past(kind: str, postgres: Postgres, tmp_path: Path, put_line: PutLine) -> None:
    """Inserts and upserts, by the median of runs in turn."""
    seconds: dict[str, list[float]] = {"plain": [], "mark": [], "history": []}
    for number in range(ROUNDS):
        for name, runs in seconds.items():
            files = SqliteDatabase(tmp_path / f"{name}-{number}.db")
            database = files if kind == "sqlite" else PostgresDatabase(postgres)
            options = {} if name == "plain" else OF_THE_PAST[name][0]
            sink = SqlSink.configure("orders", {**database.options, "key": ["id"], **options})
            runs.append(anyio.run(fill_and_close, sink))
            count = VERSIONS * ROWS * (2 if name == "history" else 1)
            assert database.query("SELECT count(*) FROM orders") == [(count,)]
    rates = {name: 2 * VERSIONS * ROWS / 1000 / statistics.median(runs) for name, runs in seconds.items()}
    for name, (_, goal) in OF_THE_PAST.items():
        work = f"inserts and upserts with {name} into {kind}, 1000 rows/s"
        peer = f"plain mirror: {rates['plain']:.0f}, ratio {rates[name] / rates['plain']:.2f}"
        put_line(work, f"{rates[name]:.0f}", peer, f"ratio {goal}")


def narrow_and_wide() -> Iterator[pa.Schema]:
    return (full(pa.schema([("id", pa.int64()), ("n", kind)])) for kind in (pa.int32(), pa.int64()))


async def widen(database: PostgresDatabase) -> None:
    """Widen a column of the mirror."""
    narrow, wide = narrow_and_wide()
    async with opened(database) as sink, sink.begin(APP, narrow) as transaction:
        await transaction.announce(SchemaChange("t", 2, 0, narrow, wide, ("n is wider",), {"id": "id", "n": "n"}))
        await transaction.commit(Progress(APP, Position.end(2)))


async def make_mirror(database: PostgresDatabase) -> None:
    """Make an empty mirror, at version 1."""
    async with opened(database) as sink, sink.begin(APP, next(narrow_and_wide())) as transaction:
        await transaction.commit(Progress(APP, Position.end(1)))


def cost(database: PostgresDatabase, table: str, work: Callable[[], object]) -> str:
    """Return the time of `work` on a table, the log that it writes, and the room of the table before and after."""
    query = f"SELECT pg_current_wal_lsn() - '0/0', pg_total_relation_size('{table}')"
    database.query("CHECKPOINT")
    [(log, size)] = database.query(query)
    begun_s = time.perf_counter()
    work()
    seconds = time.perf_counter() - begun_s
    [(log_after, size_after)] = database.query(query)
    written, before, after = (f"{float(each) / 1e6:.0f} MB" for each in (log_after - log, size, size_after))
    return f"{seconds:.0f} s, log {written}, room {before} -> {after}"


def test_a_column_widened_in_postgresql(database: PostgresDatabase, put_line: PutLine) -> None:
    """The peer is `ALTER TYPE`, which leaves readers with an older snapshot no rows."""
    anyio.run(make_mirror, database)
    rows = f"SELECT i, i % 1000 FROM generate_series(1, {WIDENED}) AS i"
    database.query("CREATE TABLE plain (id bigint PRIMARY KEY, n int)")
    for table in ("orders", "plain"):
        database.query(f"INSERT INTO {table} {rows}")
    ours = cost(database, "orders", lambda: anyio.run(widen, database))
    peer = cost(database, "plain", lambda: database.query("ALTER TABLE plain ALTER n TYPE bigint"))
    assert database.query("SELECT count(*), sum(n), pg_typeof(max(n))::text FROM orders") == database.query(
        "SELECT count(*), sum(n), pg_typeof(max(n))::text FROM plain"
    )
    put_line(f"{WIDENED // 10**6} million values widened in PostgreSQL", ours, f"ALTER TYPE: {peer}", "-")
