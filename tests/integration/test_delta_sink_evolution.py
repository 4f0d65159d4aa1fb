"""The delta sink with a changing source schema: the target's columns, in one commit, and the refusals."""

import datetime as dt
import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from anyio import to_thread
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from tailer.errors import SinkRejected, SinkUnavailable
from tailer.events import ChangeBatch, Gap, SchemaChange
from tailer.plan import Position, output_schema
from tailer.sink import Progress
from tailer_sinks.delta.sink import DeltaSink

APP = "pipeline/3f2a"

pytestmark = pytest.mark.anyio


def insert(version: int, schema: pa.Schema, *values: dict[str, Any], kind: str = "insert") -> ChangeBatch:
    """Make inserted rows from table columns."""
    stamp = {"_change_type": kind, "_commit_version": version, "_commit_timestamp": 1_700_000_000_000_000}
    rows = pa.RecordBatch.from_pylist([{**value, **stamp} for value in values], schema=output_schema(schema))
    return ChangeBatch("t", version, 0, rows, pa.array(range(len(values)), pa.int64()))


def change(version: int, before: pa.Schema, after: pa.Schema) -> SchemaChange:
    return SchemaChange("t", version, 1_700_000_000_000, output_schema(before), output_schema(after), ("it changed",))


async def deliver(target: Path, version: int, schema: pa.Schema, *items: ChangeBatch | SchemaChange | Gap) -> None:
    """Run one transaction that begins with `schema`, with a new instance."""
    async with DeltaSink("target", str(target)).begin(APP, output_schema(schema)) as transaction:
        for item in items:
            if isinstance(item, ChangeBatch):
                await transaction.write(item)
            else:
                await transaction.announce(item)
        await transaction.commit(Progress(APP, Position.end(version)))


def rows(target: Path, *columns: str) -> list[dict[str, Any]]:
    table = pa.table(DeltaTable(str(target)).scan())
    found: list[dict[str, Any]] = table.select([*columns, "_commit_version"]).to_pylist()
    found.sort(key=lambda row: (row.pop("_commit_version"), json.dumps(row, default=str)))
    return found


def types(target: Path) -> dict[str, pa.DataType]:
    schema = pa.schema(DeltaTable(str(target)).schema().to_arrow())
    return {field.name: field.type for field in schema if not field.name.startswith("_")}


def commits(target: Path) -> list[list[dict[str, Any]]]:
    files = sorted((target / "_delta_log").glob("*.json"))
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


async def test_deletes_of_the_old_and_inserts_of_the_new_columns_are_one_commit(
    tmp_path: Path, spark: SparkSession
) -> None:
    """A version that adds, drops and renames columns together with rows."""
    target = tmp_path / "target"
    inner, grown = pa.struct([("x", pa.int64())]), pa.struct([("y", pa.string()), ("x", pa.int64())])
    before = pa.schema([("id", pa.int64()), ("name", pa.string()), ("s", inner), ("l", pa.list_(inner))])
    after = pa.schema([("l", pa.list_(grown)), ("id", pa.int64()), ("title", pa.string()), ("s", grown)])
    old = {"id": 1, "name": "a", "s": {"x": 1}, "l": [{"x": 2}]}
    new = {"id": 1, "title": "a", "s": {"x": 1, "y": "s"}, "l": [None, {"x": 2, "y": "l"}]}
    await deliver(target, 1, before, insert(1, before, old))
    await deliver(
        target, 2, before, insert(2, before, old, kind="delete"), change(2, before, after), insert(2, after, new)
    )
    assert len(commits(target)) == 3  # the table's creation, and one for each transaction
    found = rows(target, "id", "name", "title", "s", "l", "_change_type")
    filled = {"name": "a", "title": None, "s": {"x": 1, "y": None}, "l": [{"x": 2, "y": None}]}
    assert [row for row in found if row["_change_type"] == "insert"] == [
        {**filled, "id": 1, "_change_type": "insert"},
        {**new, "name": None, "_change_type": "insert"},
    ]
    assert [row for row in found if row["_change_type"] == "delete"] == [{**filled, "id": 1, "_change_type": "delete"}]

    def read() -> list[Any]:
        frame = spark.read.format("delta").load(str(target)).orderBy("_commit_version", "_change_type")
        return [(row._change_type, row.name, row.title, row.s.y, row.l[-1].y) for row in frame.collect()]

    assert await to_thread.run_sync(read) == [
        ("insert", "a", None, None, None),
        ("delete", "a", None, None, None),
        ("insert", None, "a", "s", "l"),
    ]


async def test_fields_inside_a_map_come_and_go(tmp_path: Path, spark: SparkSession) -> None:
    """delta-rs writes them, but cannot read files that lack some: Spark can."""
    target = tmp_path / "target"
    first = pa.schema([("m", pa.map_(pa.string(), pa.struct([("x", pa.int64())])))])
    second = pa.schema([("m", pa.map_(pa.string(), pa.struct([("y", pa.string())])))])
    await deliver(target, 1, first, insert(1, first, {"m": [("a", {"x": 1})]}))
    await deliver(
        target, 2, first, change(2, first, second), insert(2, second, {"m": [("b", {"y": "z"}), ("c", None)]})
    )
    await deliver(target, 3, first, insert(3, first, {"m": [("d", {"x": 4})]}))
    expected = [{"a": (1, None)}, {"b": (None, "z"), "c": None}, {"d": (4, None)}]

    def read() -> list[Any]:
        frame = spark.read.format("delta").load(str(target)).orderBy("_commit_version")
        return [{key: each and (each.x, each.y) for key, each in row.m.items()} for row in frame.collect()]

    assert await to_thread.run_sync(read) == expected


WIDER = [
    (pa.int8(), 5, pa.int16(), 300, "SMALLINT"),
    (pa.int32(), 5, pa.int64(), 2**40, "BIGINT"),
    (pa.int32(), 5, pa.float64(), 1e300, "DOUBLE"),
    (pa.float32(), 0.5, pa.float64(), 1e300, "DOUBLE"),
    (pa.int32(), 5, pa.decimal128(12, 2), Decimal("1234567890.25"), "DECIMAL(12,2)"),
    (pa.decimal128(5, 1), Decimal("1.5"), pa.decimal128(12, 3), Decimal("123456789.125"), "DECIMAL(12,3)"),
    (pa.date32(), dt.date(2026, 3, 1), pa.timestamp("us"), dt.datetime(1, 1, 1, 0, 0, 1), "TIMESTAMP_NTZ"),  # noqa: DTZ001
    (pa.null(), None, pa.string(), "x", "STRING"),
]


@pytest.mark.parametrize(("narrow", "small", "wide", "large", "sql"), WIDER)
async def test_a_column_that_was_widened_is_refused_before_its_rows_come(
    tmp_path: Path, narrow: pa.DataType, small: Any, wide: pa.DataType, large: Any, sql: str
) -> None:
    target = tmp_path / "target"
    before, after = pa.schema([("id", pa.int64()), ("c", narrow)]), pa.schema([("id", pa.int64()), ("c", wide)])
    await deliver(target, 1, before, insert(1, before, {"id": 1, "c": small}))
    async with DeltaSink("target", str(target)).begin(APP, output_schema(before)) as transaction:
        with pytest.raises(SinkRejected, match=r"columns of .* do not fit: c \(") as caught:
            await transaction.announce(change(2, before, after))
    assert f"CAST(`c` AS {sql}) AS `c`" in caught.value.hint
    with pytest.raises(SinkRejected, match=r"do not fit: c \("):
        await deliver(target, 2, after, insert(2, after, {"id": 2, "c": large}))
    assert types(target) == {"id": pa.int64(), "c": narrow}
    assert rows(target, "id", "c") == [{"id": 1, "c": small}]


@pytest.mark.parametrize(("narrow", "small", "wide", "large"), [case[:-1] for case in WIDER])
async def test_narrower_rows_are_cast_up(
    tmp_path: Path, narrow: pa.DataType, small: Any, wide: pa.DataType, large: Any
) -> None:
    target = tmp_path / "target"
    nested = [
        pa.schema([("c", kind), ("s", pa.struct([("c", kind)])), ("l", pa.list_(kind))]) for kind in (wide, narrow)
    ]
    values = [{"c": value, "s": {"c": value}, "l": [value, None]} for value in (large, small)]
    await deliver(target, 1, nested[0], insert(1, nested[0], values[0]))
    await deliver(target, 2, nested[1], insert(2, nested[1], values[1]), change(2, *reversed(nested)))
    async with DeltaSink("target", str(target)).begin(APP, output_schema(nested[1])):
        assert types(target) == {field.name: field.type for field in nested[0]}
    found = rows(target, "c", "s", "l")
    if wide == pa.timestamp("us") and narrow == pa.date32():
        small = dt.datetime.combine(small, dt.time())
        values[1] = {"c": small, "s": {"c": small}, "l": [small, None]}
    assert found == values


async def test_rows_of_both_types_make_a_new_table_of_the_wider_one(tmp_path: Path) -> None:
    target = tmp_path / "target"
    before, after = pa.schema([("c", pa.int32())]), pa.schema([("c", pa.int64())])
    items = (insert(1, before, {"c": 1}), change(1, before, after), insert(1, after, {"c": 2**40}))
    await deliver(target, 1, before, *items)
    assert types(target) == {"c": pa.int64()}
    assert sorted(row["c"] for row in rows(target, "c")) == [1, 2**40]
    text = pa.schema([("c", pa.string())])
    with pytest.raises(SinkRejected, match="column c is int32 in some rows and string in others"):
        await deliver(tmp_path / "other", 1, before, insert(1, before, {"c": 1}), change(1, before, text))
    # Without rows nothing has to fit.
    await deliver(tmp_path / "other", 1, before, change(1, before, text), insert(1, text, {"c": "x"}))
    assert types(tmp_path / "other") == {"c": pa.string()}


async def test_a_table_that_another_writer_made_meanwhile_may_be_wider(tmp_path: Path) -> None:
    target = tmp_path / "target"
    narrow, wide = pa.schema([("c", pa.int32())]), pa.schema([("c", pa.int64()), ("d", pa.string())])
    async with DeltaSink("target", str(target)).begin(APP, output_schema(narrow)) as transaction:
        await transaction.write(insert(1, narrow, {"c": 1}))
        async with DeltaSink("target", str(target)).begin("other", output_schema(wide)) as other:
            await other.write(insert(1, wide, {"c": 2**40, "d": "x"}))
            await other.commit(Progress("other", Position.end(1)))
        await transaction.commit(Progress(APP, Position.end(1)))
    assert rows(target, "c", "d") == [{"c": 1, "d": None}, {"c": 2**40, "d": "x"}]


async def test_the_remedy_for_a_widened_column_works(tmp_path: Path, spark: SparkSession) -> None:
    """The target is rewritten as the hint says; progress and partitions stay, and the stream continues."""
    target = tmp_path / "target"
    before = pa.schema([("n", pa.int32()), ("part", pa.string()), ("a`b.c", pa.float32()), ("rest", pa.string())])
    after = pa.schema([("n", pa.int64()), ("part", pa.string()), ("a`b.c", pa.float64()), ("rest", pa.string())])
    small = {"n": 1, "part": "x", "a`b.c": 0.5, "rest": "r"}
    large = {"n": 2**40, "part": "y", "a`b.c": 1e300, "rest": None}
    sink = DeltaSink("target", str(target), ["part"])
    async with sink.begin(APP, output_schema(before)) as transaction:
        await transaction.write(insert(1, before, small))
        await transaction.commit(Progress(APP, Position.end(1)))
    with pytest.raises(SinkRejected) as caught:
        await deliver(target, 2, before, change(2, before, after), insert(2, after, large))
    (statement,) = re.findall("CREATE OR REPLACE .*", caught.value.hint)
    await to_thread.run_sync(spark.sql, statement)
    assert await sink.progress(APP) == Progress(APP, Position.end(1))
    async with sink.begin(APP, output_schema(before)) as transaction:
        await transaction.announce(change(2, before, after))
        await transaction.write(insert(2, after, large))
        await transaction.commit(Progress(APP, Position.end(2)))
    assert rows(target, *before.names) == [small, large]


async def test_a_column_that_lies_deep_or_became_something_else_needs_a_new_path(tmp_path: Path) -> None:
    target = tmp_path / "target"
    before = pa.schema([("s", pa.struct([("c", pa.int32())])), ("n", pa.int32())])
    await deliver(target, 1, before, insert(1, before, {"n": 1}))
    for kinds in ((pa.int64(), pa.int32()), (pa.int64(), pa.int64()), (pa.int32(), pa.string())):
        after = pa.schema([("s", pa.struct([("c", kinds[0])])), ("n", kinds[1])])
        with pytest.raises(SinkRejected, match="do not fit") as caught:
            await deliver(target, 2, before, change(2, before, after))
        assert caught.value.hint == "Choose a new path for the new schema."
    assert rows(target, "n") == [{"n": 1}]


async def test_a_date_beyond_all_timestamps_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "target"
    wide, narrow = pa.schema([("c", pa.timestamp("us"))]), pa.schema([("c", pa.date32())])
    await deliver(target, 1, wide, insert(1, wide, {"c": dt.datetime(2026, 3, 1)}))  # noqa: DTZ001
    with pytest.raises(SinkRejected, match="column c has a value that is not a valid timestamp"):
        await deliver(target, 2, narrow, insert(2, narrow, {"c": 2**31 - 1}))
    assert len(rows(target, "c")) == 1


async def test_a_gap_is_a_row_and_in_the_commit_info(tmp_path: Path, spark: SparkSession) -> None:
    target = tmp_path / "target"
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("day", pa.date32())])
    sink = DeltaSink("target", str(target), ["day"])
    gaps = [Gap("t", 2, 4, 1_700_000_000_123, "files are gone", False), Gap("t", 6, 8, 1_700_000_000_123, "log", True)]
    async with sink.begin(APP, output_schema(schema)) as transaction:
        await transaction.write(insert(1, schema, {"id": 1, "day": dt.date(2026, 3, 1)}))
        await transaction.announce(gaps[0])
        await transaction.announce(gaps[1])
        await transaction.write(insert(8, schema, {"id": 8, "day": dt.date(2026, 3, 2)}))
        await transaction.commit(Progress(APP, Position.end(8)))
    (said,) = [action["commitInfo"] for action in commits(target)[-1] if "commitInfo" in action]
    assert said["gap"] == "versions 2 to 4 are lost: files are gone; versions 6 to 8 are lost: log"
    assert said["txnId"]

    def read() -> list[tuple[Any, ...]]:
        frame = spark.read.format("delta").load(str(target)).orderBy("_commit_version", "id")
        return [(row._change_type, row._commit_version, row.id, row.day) for row in frame.collect()]

    assert await to_thread.run_sync(read) == [
        ("insert", 1, 1, dt.date(2026, 3, 1)),
        ("gap", 4, None, None),
        ("gap", 8, None, None),
        ("insert", 8, 8, dt.date(2026, 3, 2)),
    ]
    found = rows(target, "_change_type", "_commit_timestamp")
    (moment,) = {row["_commit_timestamp"] for row in found if row["_change_type"] == "gap"}
    assert moment == dt.datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=dt.UTC)


async def test_columns_that_came_while_a_transaction_was_open_are_not_lost(tmp_path: Path) -> None:
    """Another stream extends the table between begin and announce: nothing is committed, and the retry fits."""
    target = tmp_path / "target"
    plain, wider = pa.schema([("id", pa.int64())]), pa.schema([("id", pa.int64()), ("b", pa.string())])
    await deliver(target, 1, plain, insert(1, plain, {"id": 1}))
    sink = DeltaSink("target", str(target))
    async with sink.begin(APP, output_schema(plain)) as transaction:
        write_deltalake(str(target), pa.table({"id": [9], "b": [1.5]}), mode="append", schema_mode="merge")
        await transaction.announce(change(2, plain, wider))
        await transaction.write(insert(2, wider, {"id": 2, "b": "x"}))
        with pytest.raises(SinkUnavailable, match="Metadata changed"):
            await transaction.commit(Progress(APP, Position.end(2)))
    assert await sink.progress(APP) == Progress(APP, Position.end(1))
    with pytest.raises(SinkRejected, match=r"b \(double in the table, string in the rows\)"):
        await deliver(target, 2, plain, change(2, plain, wider))
