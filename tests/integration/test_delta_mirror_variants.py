"""Variants in a mirror of the `delta` sink: the values of the source, by a MERGE and by writing all rows again."""

import json
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tailer.engine.local import LocalEngine
from tailer.errors import SinkRejected
from tailer.events import VARIANT, Gap, SchemaChange
from tailer.pipeline.policy import Policy
from tailer.pipeline.verification.comparison import Verification, verify
from tailer.plan import SNAPSHOT_TASKS
from tailer.variant import Variant
from tailer_sinks.delta.mirror import table as mirror_table
from tailer_sinks.delta.writes import rows_schema_of
from tests.support.mirrors.delta import batch, deliver, full, make_mirror
from tests.support.mirrors.planted import follow, log_of
from tests.support.oracle.recorded import CASES_DATA, read
from tests.support.variant.encoder import Layout, Scalar, encode, metadata, names_in

pytestmark = [pytest.mark.anyio, pytest.mark.long]

KIND: Final = pa.struct([("list", pa.list_(VARIANT)), ("n", pa.int64())])
SCHEMA: Final = pa.schema([("id", pa.int64()), ("v", VARIANT), ("s", KIND)])


@pytest.fixture(params=["merge", "rewrite"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way of a transaction into the table: a MERGE, or all rows written again."""
    if request.param == "rewrite":
        monkeypatch.setattr(mirror_table, "_MERGE_BYTES", -1)


def variant(number: int) -> dict[str, bytes]:
    """Encode `{"n": number}`."""

    def layouts() -> Iterator[Layout]:
        while True:
            yield Layout()

    value = {"n": Scalar(5, number, str(number))}
    names = sorted(names_in(value))
    return {"metadata": metadata(names), "value": encode(value, names, layouts())}


def row(one: int, number: int | None) -> dict[str, Any]:
    found = None if number is None else variant(number)
    return {"id": one, "v": found, "s": {"list": [None, found], "n": number}}


def values(path: Path) -> dict[int, Any]:
    """Return the rows of a mirror, each Variant as text."""

    def shown(value: Any) -> Any:
        if isinstance(value, dict) and set(value) == {"metadata", "value"}:
            return json.loads(Variant(value["metadata"], value["value"]).to_json())
        if isinstance(value, dict):
            return {name: shown(each) for name, each in value.items()}
        return [shown(each) for each in value] if isinstance(value, list) else value

    rows = DeltaTable(path).to_pyarrow_table().to_pylist()
    return {each["id"]: (shown(each["v"]), shown(each["s"])) for each in rows}


def expected(number: int | None) -> Any:
    found = None if number is None else {"n": number}
    return found, {"list": [None, found], "n": number}


async def verified(path: Path, source: Path) -> Verification:
    async with make_mirror(path).open_mirror("orders") as mirror:
        return await verify(mirror, log_of(source), LocalEngine(), Policy(), 9)


@pytest.mark.usefixtures("way")
async def test_rows_are_merged_and_stay_variants(tmp_path: Path) -> None:
    sink = make_mirror(tmp_path)
    await deliver(sink, batch(1, "insert", SCHEMA, [row(one, one) for one in (1, 2, 3)] + [row(4, None)]))
    DeltaTable(tmp_path).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    kinds = ["update_preimage", "update_postimage", "delete", "insert", "update_preimage", "update_postimage"]
    changes = [row(1, 1), row(1, 10), row(2, 2), row(5, 5), row(4, None), row(4, 40)]
    await deliver(sink, batch(2, kinds, SCHEMA, changes))
    wanted = {1: 10, 3: 3, 4: 40, 5: 5}
    assert values(tmp_path) == {one: expected(number) for one, number in wanted.items()}
    assert rows_schema_of(DeltaTable(tmp_path).schema()).equals(SCHEMA)
    await deliver(
        sink,
        Gap("t", 3, 4, 0, "lost", snapshot=True),
        batch(4, "insert", SCHEMA, [row(7, 7)], task=SNAPSHOT_TASKS),
        schema=full(SCHEMA),
    )
    assert values(tmp_path) == {7: expected(7)}
    assert rows_schema_of(DeltaTable(tmp_path).schema()).equals(SCHEMA)


async def test_columns_beside_variants_cannot_change(tmp_path: Path) -> None:
    plain, wide = pa.schema([("id", pa.int64())]), pa.schema([*SCHEMA, ("extra", pa.int32())])
    sink, other = make_mirror(tmp_path / "a"), make_mirror(tmp_path / "b")
    await deliver(sink, batch(1, "insert", SCHEMA, [row(1, 1)]))
    await deliver(other, batch(1, "insert", plain, [{"id": 1}]))
    for mirror, before, after in ((sink, SCHEMA, wide), (sink, SCHEMA, plain), (other, plain, SCHEMA)):
        origins = {each: each for each in before.names if each in after.names}
        change = SchemaChange("t", 2, 0, full(before), full(after), ("it changed",), origins)
        with pytest.raises(SinkRejected, match="has or gets Variants, and other columns"):
            await deliver(mirror, change, batch(2, "insert", after, [{"id": 2}]))
    gap = Gap("t", 2, 3, 0, "lost", snapshot=True)
    with pytest.raises(SinkRejected, match="has or gets Variants, and other columns"):
        await deliver(sink, gap, batch(3, "insert", wide, [row(1, 1)], task=SNAPSHOT_TASKS), schema=full(wide))
    assert (values(tmp_path / "a"), rows_schema_of(DeltaTable(tmp_path / "b").schema())) == ({1: expected(1)}, plain)


async def test_a_recorded_table_is_mirrored_and_verified(tmp_path: Path) -> None:
    recorded = read(CASES_DATA / "variants_shredded-vectors-files.1.tar.xz", tmp_path / "t")
    await follow(make_mirror(tmp_path / "copy"), recorded.path, recorded.last, Policy())
    result = await verified(tmp_path / "copy", recorded.path)
    assert (result.is_equal, result.version) == (True, recorded.last)
    assert result.source_rows > 1


async def test_files_that_spark_has_written_are_merged(tmp_path: Path, spark: SparkSession) -> None:
    """Spark writes the fields of a Variant in another order, and with Parquet's annotation."""
    sink = make_mirror(tmp_path)
    await deliver(sink, batch(1, "insert", SCHEMA, [row(1, 1), row(2, 2)]))
    await deliver(sink, batch(2, "insert", SCHEMA, [row(3, 3), row(4, None)]))
    optimize = partial(spark.sql, f"OPTIMIZE delta.`{tmp_path}`")
    await anyio.to_thread.run_sync(lambda: optimize().collect())
    changes = [row(1, 1), row(1, 10), row(2, 2), row(5, 5)]
    await deliver(sink, batch(3, ["update_preimage", "update_postimage", "delete", "insert"], SCHEMA, changes))
    assert values(tmp_path) == {1: expected(10), 3: expected(3), 4: expected(None), 5: expected(5)}
    query = f"SELECT id, to_json(v) AS v, to_json(s.list[1]) AS l FROM delta.`{tmp_path}` ORDER BY id"
    found = await anyio.to_thread.run_sync(lambda: [tuple(each) for each in spark.sql(query).collect()])
    texts = {1: '{"n":10}', 3: '{"n":3}', 4: None, 5: '{"n":5}'}
    assert found == [(one, text, text) for one, text in texts.items()]


async def test_variants_of_other_types_differ(tmp_path: Path) -> None:
    """Their JSON texts are the same: a date and its text, a decimal and its text, a binary and its Base64, and NaN."""
    sink, schema = make_mirror(tmp_path), pa.schema([("id", pa.int64()), ("v", VARIANT), ("s", pa.list_(VARIANT))])
    date, decimal, longer = b"\x2c\x92\x47\0\0", b"\x20\x01\x0f\0\0\0", b"\x20\x02\x96\0\0\0"
    binary, nan = b"\x3c\x03\0\0\0abc", b"\x1c" + struct.pack("<d", float("nan"))
    texts = [bytes([len(text) << 2 | 1]) + text for text in (b"2020-03-01", b"1.5", b"YWJj", b"NaN")]
    found = [{"metadata": b"\x01\0\0", "value": value} for value in (date, decimal, binary, nan, *texts, longer)]
    rows = [{"id": one, "v": each, "s": [each]} for one, each in enumerate(found)]
    await deliver(sink, batch(0, "insert", schema, rows))
    async with sink.open_mirror("orders") as mirror:
        (kept,) = mirror.rows()
    for name in ("v", "s"):
        shown = dict(zip(kept.column("id").to_pylist(), kept.column(name).to_pylist(), strict=True))
        assert shown["1"] == shown["8"]
        assert len(set(shown.values())) == len(found) - 1
