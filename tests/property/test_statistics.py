"""Statistics of random files: each value that is read lies in the range of its column, and no damage is believed."""

import random
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import anyio
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from tailer.config.tables import TableRef
from tailer.errors import TailerError
from tailer.events import METADATA_FIELDS
from tailer.pipeline.policy import Policy
from tailer.read.execute import execute
from tests.support.oracle.noted_statistics import noted_statistics
from tests.support.oracle.ranges import check_ranges, check_task, ranges_of_groups, task_ranges
from tests.support.seeds import examples, seeds
from tests.support.spark.table import Table
from tests.support.tables.damaged import broken
from tests.support.tables.log_files import parquet, task

US, ZONED = pa.timestamp("us"), pa.timestamp("us", "UTC")
# Types of the file, and of the table.
TYPES: Final = [
    (pa.bool_(), pa.bool_()),
    (pa.int8(), pa.int8()),
    (pa.int16(), pa.int32()),
    (pa.int32(), pa.int64()),
    (pa.int32(), pa.float64()),
    (pa.int64(), pa.int64()),
    (pa.int64(), pa.decimal128(22, 2)),
    (pa.uint32(), pa.int64()),
    (pa.float32(), pa.float32()),
    (pa.float32(), pa.float64()),
    (pa.float64(), pa.float64()),
    (pa.decimal128(7, 2), pa.decimal128(7, 2)),
    (pa.decimal128(7, 2), pa.decimal128(20, 5)),
    (pa.decimal128(18, 0), pa.decimal128(18, 0)),
    (pa.decimal128(38, 10), pa.decimal128(38, 10)),
    (pa.date32(), pa.date32()),
    (pa.date32(), US),
    (US, US),
    (ZONED, ZONED),
    (pa.timestamp("ms"), US),
    (pa.timestamp("ms", "UTC"), ZONED),
    (pa.timestamp("ns"), US),
    (pa.timestamp("ns", "UTC"), ZONED),
    (pa.string(), pa.string()),
    (pa.large_string(), pa.string()),
    (pa.binary(), pa.binary()),
]
NUMBERS: Final = [0.0, -0.0, 1.5, -2.25, float("nan"), float("inf"), float("-inf"), 1e-300, 3e38]
LETTERS: Final = "aZ~ ä\u0439\uffee\U0001f600\U0010ffff\0"


def value(chance: random.Random, kind: pa.DataType) -> Any:
    """Return a value of a type."""
    if pa.types.is_boolean(kind):
        return chance.random() < 0.5
    if pa.types.is_integer(kind):
        bits = kind.bit_width - pa.types.is_signed_integer(kind)
        number = chance.choice([chance.randrange(2**bits), chance.randrange(9), 2**bits - 1])
        return -number if pa.types.is_signed_integer(kind) and chance.random() < 0.5 else number
    if pa.types.is_floating(kind):
        number = chance.choice([*NUMBERS, chance.uniform(-9, 9)])
        return 0.0 if kind == pa.float32() and abs(number) < 1e-30 and number else number
    if pa.types.is_decimal(kind):
        digits = chance.randrange(10 ** chance.randint(1, kind.precision)) * chance.choice([1, -1])
        return Decimal(f"{digits}E-{kind.scale}")
    if pa.types.is_date32(kind):
        return date(1970, 1, 1) + timedelta(days=chance.randint(-500_000, 500_000))
    if pa.types.is_timestamp(kind):
        step = 1000 if kind.unit == "ms" else 1
        micros = chance.randint(-(10**15), 10**15) // step * step
        return datetime(1970, 1, 1, tzinfo=UTC if kind.tz else None) + timedelta(microseconds=micros)
    text = "".join(chance.choice(LETTERS) for _ in range(chance.choice([0, 1, 3, 40, 100])))
    return text.encode() if pa.types.is_binary(kind) else text


def column(chance: random.Random, kind: pa.DataType, rows: int) -> pa.Array:
    """Return a column, part of which may be all null or without nulls."""
    found: list[Any] = []
    while len(found) < rows:
        nulls = chance.choice([0, 0.2, 1])
        found += [None if chance.random() < nulls else value(chance, kind) for _ in range(chance.randint(1, 12))]
    return pa.array(found[:rows], kind)


def struct(chance: random.Random, fields: dict[str, pa.Array], rows: int) -> pa.Array:
    mask = pa.array([chance.random() < 0.2 for _ in range(rows)]) if chance.random() < 0.5 else None
    return pa.StructArray.from_arrays(list(fields.values()), names=list(fields), mask=mask)


@pytest.mark.parametrize("seed", seeds(15))
def test_each_value_is_in_its_range(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    rows, kinds = chance.randint(1, 40), [chance.choice(TYPES) for _ in range(chance.randint(1, 6))]
    columns = {f"c{number}": column(chance, kind, rows) for number, (kind, _) in enumerate(kinds)}
    inner, inner_kinds = columns, [wanted for _, wanted in kinds]
    fields = [pa.field(name, kind) for name, kind in zip(columns, inner_kinds, strict=True)]
    below = struct(chance, inner, rows)
    nested = struct(chance, {"x": pa.array([[1]] * rows), "s": below, **inner}, rows)
    table = pa.table({**columns, "l": pa.array([[1, 2]] * rows), "n": nested})
    schema = pa.schema([("n", pa.struct([*fields[::-1], ("s", pa.struct([*fields, ("absent", pa.int8())]))])), *fields])
    path = parquet(
        tmp_path / "f",
        table,
        row_group_size=chance.randint(1, rows),
        use_dictionary=chance.random() < 0.5,
        store_schema=chance.random() < 0.5,
        data_page_version=chance.choice(["1.0", "2.0"]),
        store_decimal_as_integer=chance.random() < 0.5,
        use_deprecated_int96_timestamps=chance.random() < 0.2,
    )
    each = task(path, schema)
    batches = [batch.rows for batch in execute(each)]
    read = pa.Table.from_batches(batches).drop_columns([field.name for field in METADATA_FIELDS])
    first = 0
    for group, ranges in enumerate(ranges_of_groups(each)):
        count = pq.read_metadata(path).row_group(group).num_rows
        check_ranges(ranges, read.slice(first, count))
        assert ("n", "s", "absent") in ranges
        first += count
    assert first == rows


@pytest.mark.parametrize("seed", seeds(15))
def test_each_value_is_in_the_range_of_its_file_in_the_log(tmp_path: Path, seed: int) -> None:
    """The log is written by delta-rs, which truncates and rounds as it likes."""
    chance = random.Random(seed)
    kinds = [kind for kind in dict.fromkeys(kind for _, kind in TYPES) if chance.random() < 0.6] or [pa.int64()]
    log = TableRef(str(tmp_path / "t")).open(policy=Policy(where="true"))
    for _ in range(3):
        rows = chance.randint(1, 20)
        columns = {f"c{number}": column(chance, kind, rows) for number, kind in enumerate(kinds)}
        nested = struct(chance, {"s": struct(chance, columns, rows), **columns}, rows)
        parts = pa.array([chance.choice([None, "x", "ä"]) for _ in range(rows)], pa.string())
        table = pa.table({**columns, "n": nested, "p": parts})
        write_deltalake(tmp_path / "t", table, mode="append", partition_by=["p"])
    known: list[int] = []

    async def check() -> None:
        await log.seek(0)
        while (plan := await log.next_plan()) is not None:
            known.extend(map(check_task, plan.tasks))

    anyio.run(check)
    assert sum(known) > 3


@pytest.mark.parametrize("seed", seeds(50))
def test_each_value_is_in_the_range_that_any_writer_notes(seed: int) -> None:
    chance = random.Random(seed)
    rows = chance.randint(1, 20)
    kinds = chance.sample(list(dict.fromkeys(kind for _, kind in TYPES)), 6)
    columns = {f"c{number}": column(chance, kind, rows) for number, kind in enumerate(kinds)}
    table = pa.table({**columns, "n": struct(chance, columns, rows)})
    noted = replace(task("f", table.schema), stats=noted_statistics(chance, table))
    check_ranges(task_ranges(noted, table.schema), table)


ROWS: Final = """
    SELECT 7 AS i, 0.1F AS f, 0.1D AS x, 1.25 AS d, 'a' AS s, TIMESTAMP'2026-03-01 12:00:00.000001' AS t,
        TIMESTAMP_NTZ'2026-03-01 12:00:00.999999' AS n, DATE'2026-03-01' AS o, named_struct('a', 1, 'b', 'x') AS u,
        'x' AS p
    UNION ALL SELECT -3, float('nan'), -0.0D, -99.99, repeat('😀', 40), TIMESTAMP'1950-01-01 00:00:00.000001',
        TIMESTAMP_NTZ'1950-01-01 00:00:00.000001', DATE'1950-01-01', NULL, 'x'
    UNION ALL SELECT NULL, 0.3F, double('infinity'), NULL, repeat('￮', 33), NULL, NULL, NULL,
        named_struct('a', NULL, 'b', repeat('z', 50)), NULL
    UNION ALL SELECT 5, 16777217F, 1e-300D, 0.01, NULL, TIMESTAMP'0001-01-01 00:00:00', NULL, DATE'9999-12-31',
        named_struct('a', -1, 'b', ''), NULL
"""


@pytest.mark.parametrize("mode", ["none", "name"])
def test_each_value_is_in_its_ranges_by_spark(table: Table, mode: str) -> None:
    """Statistics of columns that were widened and renamed, and of files with deletion vectors."""
    columns = "i INT, f FLOAT, x DOUBLE, d DECIMAL(5,2), s STRING, t TIMESTAMP, n TIMESTAMP_NTZ, o DATE,"
    properties = f"'delta.columnMapping.mode' = '{mode}', 'delta.enableTypeWidening' = 'true'"
    table.create(f"{columns} u STRUCT<a: INT, b: STRING>, p STRING", ROWS, False, True, "p", properties)
    table.sql("DELETE FROM {t} WHERE i = 7")
    for name, kind in (
        ("i", "BIGINT"),
        ("f", "DOUBLE"),
        ("d", "DECIMAL(20,4)"),
        ("o", "TIMESTAMP_NTZ"),
        ("u.a", "BIGINT"),
    ):
        table.sql(f"ALTER TABLE {{t}} ALTER COLUMN {name} TYPE {kind}")
    if mode == "name":
        table.sql("ALTER TABLE {t} RENAME COLUMN s TO other")
        table.sql("ALTER TABLE {t} RENAME COLUMN u.b TO c")
    table.sql(f"INSERT INTO {{t}} {ROWS}")
    table.sql("UPDATE {t} SET i = 2147483648 WHERE i = 5")
    known: list[int] = []

    async def check() -> None:
        log = TableRef(str(table.path)).open(policy=Policy(where="true"))
        await log.seek(0)
        while (plan := await log.next_plan()) is not None:
            known.extend(map(check_task, plan.tasks))
        async for page in log.snapshot_plans(table.latest):
            known.extend(map(check_task, page.tasks))

    anyio.run(check)
    assert len(known) > 8
    assert sum(known) > 10 * len(known)


def original(folder: Path) -> bytes:
    table = pa.table(
        {"a": [1, 2, None], "b": ["x", "y", "z"], "s": [{"c": 1.5}, None, {"c": 2.5}], "d": [Decimal(1), None, None]}
    )
    return parquet(folder / "original", table, row_group_size=2).read_bytes()


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A folder, and the bytes of a file."""
    folder = tmp_path_factory.mktemp("damaged")
    return folder, original(folder)


@settings(max_examples=examples(50), deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_damaged_footers(damaged: tuple[Path, bytes], data: st.DataObject) -> None:
    """Arrow, asked for the same, ends the process for some of them."""
    folder, content = damaged
    path = folder / "f"
    path.write_bytes(data.draw(broken([content])))
    fields = [
        ("a", pa.int64()),
        ("b", pa.string()),
        ("d", pa.decimal128(1, 0)),
        ("s", pa.struct([("c", pa.float64())])),
    ]
    with suppress(TailerError):
        ranges_of_groups(task(path, pa.schema(fields)))
