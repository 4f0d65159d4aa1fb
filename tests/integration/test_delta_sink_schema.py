"""The fit of rows and tables: types, growing tables, and everything the delta sink refuses."""

import datetime as dt
import decimal
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from anyio import to_thread
from deltalake import DeltaTable, Schema
from pyspark.sql import SparkSession

from tailer.errors import SinkRejected, SinkUnavailable
from tailer.events import METADATA_FIELDS, ChangeBatch
from tailer.plan import Position, output_schema
from tailer.sink import Progress
from tailer_sinks.delta.sink import DeltaSink

APP = "pipeline/3f2a"
PLAIN = pa.schema([("id", pa.int64()), ("a", pa.string())])

pytestmark = pytest.mark.anyio


async def deliver(sink: DeltaSink, version: int, schema: pa.Schema, *values: dict[str, Any]) -> None:
    """Run one transaction of rows given by their table columns."""
    stamp = {"_change_type": "insert", "_commit_version": version, "_commit_timestamp": 1_700_000_000_000_000}
    full = output_schema(schema)
    rows = pa.RecordBatch.from_pylist([{**value, **stamp} for value in values], schema=full)
    await sink.progress(APP)
    async with sink.begin(APP, full) as transaction:
        await transaction.write(ChangeBatch("t", version, 0, rows, pa.array(range(len(values)), pa.int64())))
        await transaction.commit(Progress(APP, Position.end(version)))


def table(path: Path) -> DeltaTable:
    return DeltaTable(str(path))


def rows(path: Path, *columns: str) -> list[dict[str, Any]]:
    found = pa.table(table(path).scan()).select(list(columns)).to_pylist()
    return sorted(found, key=lambda row: str(row[columns[0]]))


def names(path: Path) -> list[str]:
    return [name for name in pa.schema(table(path).schema().to_arrow()).names if not name.startswith("_")]


def make(path: Path, schema: pa.Schema, **options: Any) -> None:
    DeltaTable.create(str(path), Schema.from_arrow(pa.schema([*schema, *METADATA_FIELDS])), **options)


EVERY_TYPE = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("flag", pa.bool_()),
        ("tiny", pa.int8()),
        ("small", pa.int16()),
        ("int", pa.int32()),
        ("single", pa.float32()),
        ("double", pa.float64()),
        ("exact", pa.decimal128(38, 18)),
        ("text", pa.string()),
        ("bytes", pa.binary()),
        ("day", pa.date32()),
        ("moment", pa.timestamp("us", tz="UTC")),
        ("wall", pa.timestamp("us")),
        ("nothing", pa.null()),
        (
            "inner",
            pa.struct([pa.field("x", pa.int64(), nullable=False), ("list", pa.list_(pa.field("item", pa.date32())))]),
        ),
        ("many", pa.list_(pa.field("element", pa.struct([("y", pa.string())]), nullable=False))),
        ("pairs", pa.map_(pa.string(), pa.field("value", pa.decimal128(5, 2), nullable=False))),
    ]
)
VALUES: dict[str, Any] = {
    "id": 1,
    "flag": True,
    "tiny": -128,
    "small": -32768,
    "int": 2**31 - 1,
    "single": 0.5,
    "double": 1e300,
    "exact": decimal.Decimal("-12345678901234567890.123456789012345678"),
    "text": "né 🦆\n",
    "bytes": b"\x00\xff",
    "day": dt.date(1582, 10, 14),
    "moment": dt.datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=dt.UTC),
    "wall": dt.datetime(1, 1, 1, 0, 0, 0, 1),  # noqa: DTZ001
    "nothing": None,
    "inner": {"x": -(2**63), "list": [dt.date(9999, 12, 31), None]},
    "many": [{"y": "one"}, {"y": None}],
    "pairs": [("a", decimal.Decimal("999.99"))],
}
NULLS = {"id": 2} | {name: None for name in EVERY_TYPE.names if name != "id"}


async def test_every_type_comes_back_as_it_was(tmp_path: Path, spark: SparkSession) -> None:
    target = tmp_path / "target"
    await deliver(DeltaSink("target", str(target)), 1, EVERY_TYPE, VALUES, NULLS)
    assert rows(target, *EVERY_TYPE.names) == [VALUES, NULLS]

    def read() -> list[dict[str, Any]]:
        frame = spark.read.format("delta").load(str(target)).orderBy("id").drop("wall", "day")
        return [row.asDict(recursive=True) for row in frame.collect()]

    first, second = await to_thread.run_sync(read)
    assert first["exact"] == VALUES["exact"]
    assert (first["inner"]["x"], first["pairs"], first["bytes"]) == (-(2**63), dict(VALUES["pairs"]), VALUES["bytes"])
    assert all(second[name] is None for name in second if name in EVERY_TYPE.names and name != "id")


async def test_the_table_grows_with_the_source_and_never_shrinks(tmp_path: Path, spark: SparkSession) -> None:
    target = tmp_path / "target"
    sink = DeltaSink("target", str(target))
    inner = pa.struct([("x", pa.int64())])
    wider = pa.struct([("w", pa.timestamp("us")), ("x", pa.int64())])
    await deliver(sink, 1, pa.schema([*PLAIN, ("s", inner)]), {"id": 1, "a": "x", "s": {"x": 1}})
    required = pa.field("b", pa.int32(), nullable=False)
    await deliver(sink, 2, pa.schema([required, ("s", wider), ("id", pa.int64())]), {"id": 2, "b": 5, "s": {"x": 2}})
    await deliver(sink, 3, PLAIN, {"id": 3, "a": "z"})
    assert names(target) == ["id", "a", "s", "b"]
    expected = [
        {"id": 1, "a": "x", "s": {"w": None, "x": 1}, "b": None},
        {"id": 2, "a": None, "s": {"w": None, "x": 2}, "b": 5},
        {"id": 3, "a": "z", "s": None, "b": None},
    ]
    got = rows(target, "id", "a", "s", "b")
    assert [{**row, "s": row["s"] and dict(sorted(row["s"].items()))} for row in got] == expected

    def read() -> list[int]:
        frame = spark.read.format("delta").load(str(target)).orderBy("id")
        return [row.id for row in frame.where("b is null").collect()]

    assert await to_thread.run_sync(read) == [1, 3]
    assert all(field.nullable for field in table(target).schema().fields)


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        (pa.schema([("id", pa.float64()), ("a", pa.string())]), r"id \(int64 in the table, double in the rows\)"),
        (pa.schema([("id", pa.bool_()), ("a", pa.date32())]), r"id \(int64 .* in the rows\), a \(string .* rows\)"),
        (pa.schema([("id", pa.int64()), ("A", pa.string())]), "column A is spelled a in the table"),
        (pa.schema([("s", pa.struct([("X", pa.int64())]))]), r"column s\.X is spelled s\.x in the table"),
        (pa.schema([("b", pa.int64()), ("B", pa.int64())]), "column B is spelled b in the table"),
        (pa.schema([("id", pa.int64()), ("s", pa.struct([("x", pa.string())]))]), r"s\.x \(int64 in the table"),
        (pa.schema([("id", pa.int64()), ("l", pa.list_(pa.string()))]), r"l\.element \(struct"),
        (pa.schema([("m", pa.map_(pa.int64(), pa.struct([("y", pa.int8())])))]), r"m\.key \(string in the table"),
        (pa.schema([("m", pa.map_(pa.string(), pa.struct([("y", pa.int64())])))]), r"m\.value\.y \(int8 in the table"),
        (pa.schema([("id", pa.time64("us"))]), r"no type for id \(time64"),
        (pa.schema([("t", pa.list_(pa.timestamp("ns")))]), r"no type for t \(list"),
    ],
)
async def test_rows_that_do_not_fit_are_refused_by_name(tmp_path: Path, schema: pa.Schema, named: str) -> None:
    target = tmp_path / "target"
    inner = pa.struct([("x", pa.int64())])
    mapped = pa.map_(pa.string(), pa.struct([("y", pa.int8())]))
    make(target, pa.schema([*PLAIN, ("s", inner), ("l", pa.list_(inner)), ("m", mapped)]))
    with pytest.raises(SinkRejected, match=named) as caught:
        await deliver(DeltaSink("target", str(target)), 1, schema, {})
    assert caught.value.hint
    assert table(target).version() == 0


async def test_partitions(tmp_path: Path, spark: SparkSession) -> None:
    target = tmp_path / "target"
    sink = DeltaSink("target", str(target), ["a", "day"])
    schema = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("a", pa.string())])
    values: list[dict[str, Any]] = [
        {"id": 1, "day": dt.date(2026, 2, 28), "a": "a b/c=%é"},
        {"id": 2, "day": None, "a": None},
        {"id": 3, "day": dt.date(1, 1, 1), "a": "null"},
    ]
    await deliver(sink, 1, schema, *values)
    assert rows(target, "id", "day", "a") == values
    got = await to_thread.run_sync(lambda: spark.read.format("delta").load(str(target)).orderBy("id").collect())
    assert [(row.id, row.a) for row in got] == [(1, "a b/c=%é"), (2, None), (3, "null")]
    with pytest.raises(SinkRejected, match="column a holds an empty string"):
        await deliver(sink, 2, schema, {"id": 4, "a": ""})
    with pytest.raises(SinkRejected, match="is partitioned by a, day"):
        await deliver(DeltaSink("target", str(target), ["day"]), 2, schema, {"id": 4})
    for column, why in (("nope", "there is no column nope"), ("_commit_timestamp", "_commit_timestamp is timestamp")):
        with pytest.raises(SinkRejected, match=why):
            await deliver(DeltaSink("target", str(tmp_path / "new"), [column]), 2, schema, {"id": 4})
    await deliver(DeltaSink("target", str(target)), 2, schema, {"id": 4, "a": "z"})
    assert len(rows(target, "id")) == 4


async def test_tables_that_could_forget_or_lose_rows_are_refused(tmp_path: Path) -> None:
    target = tmp_path / "target"
    sink = DeltaSink("target", str(target))
    await deliver(sink, 1, PLAIN, {"id": 1})
    retention, feed = "delta.setTransactionRetentionDuration", "delta.enableChangeDataFeed"
    for key, value in ((retention, "interval 1 days"), (feed, "true")):
        other = tmp_path / key
        configuration: Any = {key: value}
        make(other, PLAIN, configuration=configuration)
        with pytest.raises(SinkRejected, match=key) as caught:
            await DeltaSink("target", str(other)).progress(APP)
        assert caught.value.hint == f"ALTER TABLE delta.`{other}` UNSET TBLPROPERTIES ('{key}')"
    async with sink.begin(APP, output_schema(PLAIN)) as transaction:  # set while a transaction is open
        table(target).alter.set_table_properties({retention: "interval 1 days"})
        with pytest.raises(SinkUnavailable, match="Metadata changed"):
            await transaction.commit(Progress(APP, Position.end(2)))
    with pytest.raises(SinkRejected):
        async with sink.begin(APP, output_schema(PLAIN)):
            pass


async def test_rows_that_delta_rs_cannot_write_are_refused_with_its_reason(tmp_path: Path) -> None:
    constrained = tmp_path / "constrained"
    make(constrained, PLAIN)
    table(constrained).alter.add_constraint({"positive": "id > 0"})
    sink = DeltaSink("target", str(constrained))
    with pytest.raises(SinkRejected, match="1 rows failed validation check") as caught:
        await deliver(sink, 1, PLAIN, {"id": -1, "a": "confidential"})
    assert "confidential" not in str(caught.value)
    required = tmp_path / "required"
    make(required, pa.schema([pa.field("id", pa.int64(), nullable=False), ("a", pa.string())]))
    with pytest.raises(SinkRejected, match="failed validation check"):
        await deliver(DeltaSink("target", str(required)), 1, PLAIN, {"id": None})
    await deliver(DeltaSink("target", str(required)), 1, PLAIN, {"id": 1})
    assert not table(required).schema().fields[0].nullable
    for reader, writer in (([], ["identityColumns"]), (["fancy"], ["fancy"]), ([], ["rowTracking", "domainMetadata"])):
        featured = tmp_path / f"featured-{writer[0]}"
        make(featured, PLAIN)
        commit = featured / "_delta_log" / f"{0:020d}.json"
        protocol = {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": reader,
            "writerFeatures": writer,
        }
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        actions = [action for action in actions if "protocol" not in action] + [{"protocol": protocol}]
        commit.write_text("\n".join(map(json.dumps, actions)))
        with pytest.raises(SinkRejected, match="(?i)" + writer[0].lower()):
            await deliver(DeltaSink("target", str(featured)), 1, PLAIN, {"id": 1})


async def test_tables_made_by_spark(tmp_path: Path, spark: SparkSession) -> None:
    """Deletion vectors, generated columns and column mapping are written correctly, or refused."""
    columns = "id LONG, a STRING, _change_type STRING, _commit_version LONG, _commit_timestamp TIMESTAMP"

    def create(name: str, more: str) -> Path:
        spark.sql(f"CREATE TABLE delta.`{tmp_path / name}` ({columns} {more}")
        return tmp_path / name

    def read(path: Path) -> list[tuple[Any, ...]]:
        return sorted(tuple(row) for row in spark.read.format("delta").load(str(path)).select("id", "a").collect())

    vectors = await to_thread.run_sync(create, "v", ") USING delta TBLPROPERTIES ('delta.enableDeletionVectors'=true)")
    mapped = await to_thread.run_sync(create, "m", ") USING delta TBLPROPERTIES ('delta.columnMapping.mode'='name')")
    generated = await to_thread.run_sync(create, "g", ", twice LONG GENERATED ALWAYS AS (id * 2)) USING delta")
    for target in (vectors, mapped, generated):
        await deliver(DeltaSink("target", str(target)), 1, PLAIN, {"id": 1, "a": "x"}, {"id": 2, "a": "y"})
        assert await to_thread.run_sync(read, target) == [(1, "x"), (2, "y")]
    await to_thread.run_sync(spark.sql, f"DELETE FROM delta.`{vectors}` WHERE id = 1")
    await deliver(DeltaSink("target", str(vectors)), 2, PLAIN, {"id": 3, "a": "z"})
    assert await to_thread.run_sync(read, vectors) == [(2, "y"), (3, "z")]
    assert rows(generated, "id", "twice") == [{"id": 1, "twice": 2}, {"id": 2, "twice": 4}]
    with pytest.raises(SinkRejected, match="lacks b, and maps columns"):
        await deliver(DeltaSink("target", str(mapped)), 2, pa.schema([*PLAIN, ("b", pa.int64())]), {"id": 3})
    assert await to_thread.run_sync(read, mapped) == [(1, "x"), (2, "y")]


async def test_a_path_that_is_no_table(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    sink = DeltaSink("target", str(empty))
    assert await sink.progress(APP) is None
    await deliver(sink, 1, PLAIN, {"id": 1})
    assert rows(empty, "id") == [{"id": 1}]


@pytest.mark.long
def test_memory_does_not_grow_with_the_transaction(tmp_path: Path) -> None:
    """Ten million rows, 700 MB of Arrow memory, in one commit."""
    target = tmp_path / "target"
    command = [sys.executable, "-m", "tests.integration.delta_bulk_writer", str(target), "10000000"]
    peak_bytes = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert table(target).version() == 1
    assert sum(pa.table(table(target).get_add_actions())["num_records"].to_pylist()) >= 10_000_000
    assert peak_bytes < 500_000_000
