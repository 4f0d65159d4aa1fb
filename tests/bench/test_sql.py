"""Rows into PostgreSQL by the `sql` sink, beside a plain COPY of the same rows into a table with the same key.

Both take rows from memory, in transactions of `ROWS` rows, and send them in the same form. Inserts are new rows of a
mirror, upserts replace each row of the transaction before. The latency is that of a transaction with one row.

Nothing is asserted about time, only that all rows arrive. `make bench` prints the table.
"""

import statistics
import time
from typing import Final

import anyio
import psycopg
import pyarrow as pa
import pytest

from tailer.events import ChangeBatch
from tailer.plan import Position
from tailer.sink import Progress
from tailer_sinks.sql.databases.postgresql import copied
from tailer_sinks.sql.sink import SqlSink
from tests.bench.conftest import PutLine
from tests.support.mirrors.databases import APP, PostgresDatabase, full
from tests.support.servers.postgres import Postgres

ROWS: Final = 100_000
VERSIONS: Final = 3
COMMITS: Final = 50
SLICE: Final = 20_000
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


async def measure(database: PostgresDatabase) -> tuple[float, float, list[float]]:
    """Return the seconds of inserts and of upserts, and those of each small commit."""
    sink = SqlSink.configure("orders", {**database.options, "key": ["id"]})
    inserted = upserted = 0.0
    for version in range(1, VERSIONS + 1):
        inserted += await deliver(sink, version, batch(version, "insert", version * ROWS, ROWS))
    for version in range(VERSIONS + 1, 2 * VERSIONS + 1):
        first = (version - VERSIONS) * ROWS
        images = batch(version, "delete", first, ROWS), batch(version, "insert", first, ROWS)
        upserted += await deliver(sink, version, *images)
    small = [
        await deliver(sink, version, batch(version, "insert", (VERSIONS + 10) * ROWS + version, 1))
        for version in range(2 * VERSIONS + 1, 2 * VERSIONS + 1 + COMMITS)
    ]
    await sink.aclose()
    return inserted, upserted, small


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
