"""Filtering readers that skip files by statistics, delta-rs and Spark, lose no row of a target."""

import datetime as dt
import decimal
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from anyio import to_thread
from deltalake import DeltaTable, QueryBuilder
from pyarrow import parquet
from pyspark.sql import SparkSession

from tailer.errors import SinkRejected, SinkUnavailable
from tailer.events import ChangeBatch
from tailer.plan import Position, output_schema
from tailer.sink import Progress
from tailer_sinks.delta.sink import DeltaSink

APP = "pipeline/3f2a"
EXACT = pa.decimal128(20, 2)
INNER = pa.struct(
    [("exact", EXACT), ("double", pa.float64()), ("deep", pa.struct([("exact", EXACT), ("day", pa.date32())]))]
)
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("text", pa.string()),
        ("day", pa.date32()),
        ("moment", pa.timestamp("us", "UTC")),
        ("exact", EXACT),
        ("dotted.exact", EXACT),
        ("whole", pa.decimal128(38, 0)),
        ("single", pa.float32()),
        ("double", pa.float64()),
        ("inner", INNER),
        ("many", pa.list_(INNER)),
        ("pairs", pa.map_(pa.string(), EXACT)),
    ]
)
EXACTLY = decimal.Decimal("1234567890123456.78")
NAN = float("nan")
DEEP = {"exact": EXACTLY, "double": NAN, "deep": {"exact": EXACTLY, "day": dt.date(2026, 3, 1)}}
ROW: dict[str, Any] = {
    "id": 1,
    "text": "\U0010ffff" * 50 + "z",
    "day": dt.date(1500, 1, 1),
    "moment": dt.datetime(1500, 1, 1, 1, 2, 3, 123456, tzinfo=dt.UTC),
    "exact": EXACTLY,
    "dotted.exact": EXACTLY,
    "whole": decimal.Decimal(99999999999999999999),
    "single": NAN,
    "double": NAN,
    "inner": DEEP,
    "many": [DEEP],
    "pairs": [("a", EXACTLY)],
}
OTHER = {"id": 2, "double": 1.0, "single": 1.0}
# Each column, and the literal to compare it with, in SQL.
FILTERS = {
    "id": "1",
    "day": "date '1500-01-01'",
    "exact": "cast('1234567890123456.78' as decimal(20,2))",
    "{0}dotted.exact{0}": "cast('1234567890123456.78' as decimal(20,2))",
    "whole": "cast('99999999999999999999' as decimal(38,0))",
    "double": "cast('NaN' as double)",
    "single": "cast('NaN' as float)",
}
SPARK_FILTERS = FILTERS | {
    "text": "concat(repeat('\U0010ffff', 50), 'z')",
    "moment": "timestamp '1500-01-01 01:02:03.123456Z'",
    "inner.exact": FILTERS["exact"],
    "inner.double": FILTERS["double"],
    "inner.deep.exact": FILTERS["exact"],
    "inner.deep.day": "date '2026-03-01'",
    "many[0].exact": FILTERS["exact"],
    "pairs['a']": FILTERS["exact"],
}
DELTA_RS_FILTERS = FILTERS | {
    "inner['exact']": FILTERS["exact"],
    "inner['double']": FILTERS["double"],
    "inner['deep']['exact']": FILTERS["exact"],
    "many[1]['exact']": FILTERS["exact"],
}

pytestmark = pytest.mark.anyio


async def nothing() -> None:
    """Do nothing before the commit."""


async def deliver(
    sink: DeltaSink, version: int, rows: pa.RecordBatch, before_commit: Callable[[], Awaitable[None]] = nothing
) -> None:
    """Run one transaction of rows given without metadata columns."""
    schema = output_schema(rows.schema)
    stamp = [pa.repeat(pa.scalar(value), len(rows)) for value in ("insert", version, 1_700_000_000_000_000)]
    columns = [column.cast(field.type) for column, field in zip([*rows.columns, *stamp], schema, strict=True)]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    await sink.progress(APP)
    async with sink.begin(APP, schema) as transaction:
        await transaction.write(ChangeBatch("t", version, 0, batch, pa.array(range(len(rows)), pa.int64())))
        await before_commit()
        await transaction.commit(Progress(APP, Position.end(version)))


def found(path: Path) -> list[dict[str, Any]]:
    return sorted(pa.table(DeltaTable(str(path)).scan()).to_pylist(), key=lambda row: int(row["id"]))


def adds(path: Path) -> list[dict[str, Any]]:
    lines = [
        line for commit in sorted((path / "_delta_log").glob("*.json")) for line in commit.read_text().splitlines()
    ]
    return [action["add"] for action in map(json.loads, lines) if "add" in action]


def dates(*days: int) -> pa.RecordBatch:
    """Make rows of dates outside Python's range, given in days since 1970."""
    return pa.record_batch({"id": pa.array(range(len(days))), "day": pa.array(days, pa.int32()).cast(pa.date32())})


@pytest.mark.parametrize("operator", ["=", ">=", "<="])
async def test_delta_rs_finds_rows_that_it_filters(tmp_path: Path, operator: str) -> None:
    target = tmp_path / "target"
    await deliver(DeltaSink("target", str(target)), 1, pa.RecordBatch.from_pylist([ROW, OTHER], SCHEMA))

    def ids(condition: str) -> list[int]:
        query = QueryBuilder().register("t", DeltaTable(str(target))).execute(f"SELECT id FROM t WHERE {condition}")
        return list(pa.table(query.read_all())["id"].to_pylist())

    for column, value in DELTA_RS_FILTERS.items():
        condition = f"{column} {operator} {value}".format('"')
        assert 1 in await to_thread.run_sync(ids, condition), condition


async def test_spark_finds_rows_that_it_filters(tmp_path: Path, spark: SparkSession) -> None:
    target = tmp_path / "target"
    await deliver(DeltaSink("target", str(target)), 1, pa.RecordBatch.from_pylist([ROW, OTHER], SCHEMA))

    def ids(condition: str) -> list[int]:
        return [row.id for row in spark.sql(f"SELECT id FROM delta.`{target}` WHERE {condition}").collect()]

    for column, value in SPARK_FILTERS.items():
        for operator in ("=", ">=", "<="):
            condition = f"{column} {operator} {value}".format("`")
            assert 1 in await to_thread.run_sync(ids, condition), condition


async def test_the_log_says_what_is_exact_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "target"
    await deliver(DeltaSink("target", str(target)), 1, pa.RecordBatch.from_pylist([ROW, OTHER], SCHEMA))
    (add,) = adds(target)
    statistics = json.loads(add["stats"])
    known = {"id", "text", "day", "moment", "_change_type", "_commit_version", "_commit_timestamp"}
    assert statistics["numRecords"] == 2
    assert set(statistics["minValues"]) == set(statistics["maxValues"]) == set(statistics["nullCount"]) == known
    assert statistics["nullCount"]["text"] == 1
    column = parquet.read_metadata(target / add["path"]).row_group(0).column(0)
    assert column.compression == "SNAPPY"


async def test_names_of_mapped_columns_are_not_names_in_files(tmp_path: Path, spark: SparkSession) -> None:
    """A renamed column keeps its name in the files, and another column has that name now."""
    target = tmp_path / "target"
    stamps = "_change_type STRING, _commit_version LONG, _commit_timestamp TIMESTAMP"

    def create() -> None:
        spark.sql(
            f"CREATE TABLE delta.`{target}` (id LONG, exact DECIMAL(20,2), {stamps}) USING delta "
            "TBLPROPERTIES ('delta.columnMapping.mode'='name', 'delta.minReaderVersion'='2', "
            "'delta.minWriterVersion'='5')"
        )

    await to_thread.run_sync(create)
    rows = pa.record_batch({"id": pa.array([1]), "exact": pa.array([EXACTLY], EXACT)})
    await deliver(DeltaSink("target", str(target)), 1, rows)
    assert json.loads(adds(target)[0]["stats"])["minValues"] == {}
    seen = await to_thread.run_sync(
        lambda: spark.sql(f"SELECT id FROM delta.`{target}` WHERE exact = 1234567890123456.78BD").count()
    )
    assert seen == 1


@pytest.mark.parametrize("day", [2**31 - 1, -(2**31), 95_026_237, 95_026_236])
async def test_dates_that_delta_rs_cannot_measure_are_written(tmp_path: Path, day: int) -> None:
    target = tmp_path / "target"
    sink = DeltaSink("target", str(target))
    rows = dates(0, day)
    nested = pa.StructArray.from_arrays([rows.column("day")], ["day"])
    many = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), rows.column("day"))
    await deliver(sink, 1, rows.append_column("s", nested).append_column("l", many))
    await deliver(sink, 2, dates(0, 1))
    table = pa.table(DeltaTable(str(target)).scan(["id", "day", "s", "l"], "_commit_version = 1"))
    table = table.sort_by("id")
    assert table["day"].combine_chunks().equals(rows.column("day"))
    assert table["s"].combine_chunks().field("day").equals(rows.column("day"))
    assert table["l"].combine_chunks().values.equals(rows.column("day"))
    far, near = (json.loads(add["stats"])["maxValues"] for add in adds(target))
    assert "day" not in far
    assert near["day"] == "1970-01-02"


async def test_partition_values_that_are_null_to_delta_or_no_directory_are_refused(tmp_path: Path) -> None:
    sink = DeltaSink("target", str(tmp_path / "text"), ["p"])
    for text, named in (("__HIVE_DEFAULT_PARTITION__", "column p holds .*__HIVE"), ("", "column p holds an empty")):
        with pytest.raises(SinkRejected, match=named):
            await deliver(sink, 1, pa.record_batch({"id": pa.array([1, 2, 3]), "p": pa.array(["a", None, text])}))
    with pytest.raises(SinkRejected, match="name too long"):
        await deliver(sink, 1, pa.record_batch({"id": pa.array([1]), "p": pa.array(["x" * 300])}))
    await deliver(sink, 1, pa.record_batch({"id": pa.array([1]), "p": pa.array(["__HIVE_DEFAULT_PARTITION__?"])}))
    assert [row["p"] for row in found(tmp_path / "text")] == ["__HIVE_DEFAULT_PARTITION__?"]
    with pytest.raises(SinkRejected, match="column day holds a date"):
        await deliver(DeltaSink("target", str(tmp_path / "far"), ["day"]), 1, dates(0, 2**31 - 1))


async def test_partitions_of_a_table_that_came_meanwhile_are_checked(tmp_path: Path) -> None:
    target = tmp_path / "target"
    rows = pa.record_batch({"id": pa.array([1]), "p": pa.array([""])})
    partitioned = DeltaSink("other", str(target), ["p"])

    async def create() -> None:
        async with partitioned.begin("other/x", output_schema(rows.schema)) as transaction:
            await transaction.commit(Progress("other/x", Position.end(1)))

    sink = DeltaSink("target", str(target))
    with pytest.raises(SinkUnavailable, match="was created by another writer"):
        await deliver(sink, 1, rows, create)
    with pytest.raises(SinkRejected, match="column p holds an empty string"):
        await deliver(sink, 1, rows)


@pytest.mark.parametrize("kind", [pa.struct([]), pa.list_(pa.struct([("x", pa.struct([]))]))])
async def test_a_struct_without_fields_is_refused_by_name(tmp_path: Path, kind: pa.DataType) -> None:
    rows = pa.RecordBatch.from_pylist([{"id": 1}], pa.schema([("id", pa.int64()), ("hollow", kind)]))
    with pytest.raises(SinkRejected, match="hollow"):
        await deliver(DeltaSink("target", str(tmp_path / "target")), 1, rows)
    assert not (tmp_path / "target").exists()
