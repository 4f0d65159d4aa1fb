"""VARIANT columns in the target of the delta sink: VARIANT on every level, with the same values, also as it grows."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from anyio import to_thread
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tailer.errors import SinkRejected
from tailer.events import VARIANT, ChangeBatch, Gap, SchemaChange
from tailer.plan import Position, output_schema
from tailer.sink import Progress
from tailer_sinks.delta.sink import DeltaSink
from tailer_sinks.delta.table import TargetTable
from tests.support.variant.encoder import Layout, Scalar, encode, metadata, names_in

APP: Final = "pipeline/3f2a"
V: Final = pa.schema([("id", pa.int64()), ("v", VARIANT)])
PLAIN: Final = pa.schema([("id", pa.int64())])

pytestmark = pytest.mark.anyio


def variant(number: int) -> dict[str, bytes]:
    """Encode `{"n": number}`."""
    value = {"n": Scalar(5, number, str(number))}
    names = sorted(names_in(value))
    return {"metadata": metadata(names), "value": encode(value, names, layouts())}


def layouts() -> Iterator[Layout]:
    while True:
        yield Layout()


def insert(version: int, schema: pa.Schema, *values: dict[str, Any]) -> ChangeBatch:
    """Make inserted rows from table columns."""
    stamp = {"_change_type": "insert", "_commit_version": version, "_commit_timestamp": 1_700_000_000_000_000}
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


def types(target: Path) -> dict[str, Any]:
    """Return the types of the table's columns as Delta names them."""
    fields = json.loads(DeltaTable(str(target)).schema().to_json())["fields"]
    return {field["name"]: field["type"] for field in fields if not field["name"].startswith("_")}


async def texts(spark: SparkSession, target: Path, *columns: str) -> list[list[str | None]]:
    """Return the columns of the target's rows as Spark's JSON, in order of `_commit_version` and `id`."""

    def rows() -> list[list[str | None]]:
        frame = spark.read.format("delta").load(str(target)).orderBy("_commit_version", "id")
        return [list(row) for row in frame.selectExpr(*columns).collect()]

    return await to_thread.run_sync(rows)


async def test_variants_on_every_level(tmp_path: Path, spark: SparkSession) -> None:
    target = tmp_path / "target"
    nested = [("s", pa.struct([("v", VARIANT)])), ("a", pa.list_(VARIANT)), ("m", pa.map_(pa.string(), VARIANT))]
    schema = pa.schema([*V, *nested])
    null = {"metadata": metadata([]), "value": b"\x00"}
    full = {"id": 1, "v": variant(1), "s": {"v": variant(2)}, "a": [variant(3), None, null], "m": [("k", variant(4))]}
    empty: dict[str, Any] = {"id": 2, "v": None, "s": {"v": None}, "a": [], "m": None}
    await deliver(target, 1, schema, insert(1, schema, full, empty, {"id": 3, "v": null}))
    assert types(target)["v"] == "variant"
    assert types(target)["a"]["elementType"] == "variant"
    assert types(target)["m"]["valueType"] == "variant"
    assert types(target)["s"]["fields"][0]["type"] == "variant"
    found = await texts(spark, target, "to_json(v)", "v IS NULL", "to_json(s)", "to_json(a)", "to_json(m)")
    assert found == [
        ['{"n":1}', False, '{"v":{"n":2}}', '[{"n":3},null,null]', '{"k":{"n":4}}'],
        [None, True, "{}", "[]", None],
        ["null", False, None, None, None],
    ]
    await deliver(target, 2, schema, Gap("t", 2, 2, 1_700_000_000_000, "lost", snapshot=False))
    await deliver(target, 3, schema, insert(3, schema, {"id": 4, "v": variant(5)}))
    assert (await texts(spark, target, "to_json(v)"))[-1] == ['{"n":5}']


async def test_variant_columns_come_and_go(tmp_path: Path, spark: SparkSession) -> None:
    """Also beside other columns that are added: no append may merge schemas, or VARIANT becomes a struct."""
    target = tmp_path / "target"
    other = pa.schema([*V, ("note", pa.string()), ("w", pa.list_(VARIANT))])
    await deliver(target, 1, PLAIN, insert(1, PLAIN, {"id": 1}))
    await deliver(
        target,
        2,
        PLAIN,
        insert(2, PLAIN, {"id": 2}),
        change(2, PLAIN, V),
        insert(2, V, {"id": 3, "v": variant(3)}),
    )
    await deliver(target, 3, other, insert(3, other, {"id": 4, "v": variant(4), "note": "n", "w": [variant(5)]}))
    await deliver(target, 4, PLAIN, insert(4, PLAIN, {"id": 5}))
    assert types(target) == {
        "id": "long",
        "v": "variant",
        "note": "string",
        "w": {"type": "array", "elementType": "variant", "containsNull": True},
    }
    assert await texts(spark, target, "id", "to_json(v)", "note", "to_json(w)") == [
        [1, None, None, None],
        [2, None, None, None],
        [3, '{"n":3}', None, None],
        [4, '{"n":4}', "n", '[{"n":5}]'],
        [5, None, None, None],
    ]


async def test_two_instances_add_the_same_column(tmp_path: Path) -> None:
    """The second one finds the column, and its rows are delivered once."""
    target = tmp_path / "target"
    await deliver(target, 1, PLAIN, insert(1, PLAIN, {"id": 1}))
    table, batch = TargetTable("target", str(target)), insert(2, V, {"id": 2, "v": variant(2)})
    anchor = table.anchor(APP, batch.rows.schema, Position.end(1))
    other = TargetTable("target", str(target)).anchor("other/1", output_schema(V), None)
    rows = pa.Table.from_batches([batch.rows])
    TargetTable("target", str(target)).append(
        other, Position.end(1), lambda schema: rows.select(schema.names).cast(schema).to_reader()
    )
    table.append(anchor, Position.end(2), lambda schema: rows.select(schema.names).cast(schema).to_reader())
    assert types(target) == {"id": "long", "v": "variant"}
    assert Counter(pa.table(DeltaTable(str(target)).scan(["id"]))["id"].to_pylist()) == {1: 1, 2: 2}


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        (V, pa.schema([("id", pa.int64()), ("v", pa.struct([("metadata", pa.binary())]))]), "variant in the table"),
        (pa.schema([("id", pa.int64()), ("v", pa.string())]), V, "variant in the rows"),
        (
            pa.schema([*V, ("s", pa.struct([("x", pa.int64())]))]),
            pa.schema([*V, ("s", pa.struct([("x", pa.int64()), ("y", pa.int64())]))]),
            "lacks s.y",
        ),
    ],
)
async def test_types_that_do_not_fit_are_refused(
    tmp_path: Path, first: pa.Schema, second: pa.Schema, reason: str
) -> None:
    target = tmp_path / "target"
    await deliver(target, 1, first, insert(1, first, {"id": 1}))
    before = types(target)
    with pytest.raises(SinkRejected, match=reason):
        await deliver(target, 2, second, insert(2, second, {"id": 2}))
    assert types(target) == before


async def test_a_partition_cannot_be_a_variant(tmp_path: Path) -> None:
    sink = DeltaSink("target", str(tmp_path / "target"), ["v"])
    with pytest.raises(SinkRejected, match="v is variant"):
        async with sink.begin(APP, output_schema(V)):
            pass
