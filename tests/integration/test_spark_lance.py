"""Lance datasets on Spark: the data source and the engine on executors give the rows that threads of one process do.

On every landing: the data source, in this module; executors that read plain rows
(`integration/test_spark_executors.py`).
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import lance
import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

import tailer
import tailer.spark
from tailer.spark.native import comparing
from tailer.spark.native.comparing import Compared
from tests.support.daemon.commands import background
from tests.support.seeds import repeats
from tests.support.spark.configuration import configuration
from tests.support.waiting import until

pytestmark = pytest.mark.spark

CHANGE: Final = "_change_type"
VERSION: Final = "_commit_version"


def rows(count: int, first: int = 0) -> pa.Table:
    """Return rows with a key, a text, and a vector."""
    ids = range(first, first + count)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(4.0 * count, dtype=np.float32) + first), 4)
    return pa.table({"id": pa.array(ids, pa.int64()), "name": [f"n{each}" for each in ids], "v": vectors})


@pytest.fixture(params=[False, True], ids=["addresses", "stable ids"])
def dataset(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A dataset of ten versions: appended, updated, deleted, merged, compacted, restored, with a column more."""
    path = tmp_path / "items.lance"
    lance.write_dataset(rows(100), path, enable_stable_row_ids=request.param, max_rows_per_file=40)
    found = lance.dataset(path)
    found.update({"name": "'changed'"}, where="id % 7 = 0")
    found.delete("id % 10 = 3")
    found.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows(30, 90))
    found.optimize.compact_files()
    lance.write_dataset(rows(50, 500), path, mode="append")
    lance.dataset(path, version=4).restore()  # type: ignore[no-untyped-call]
    found = lance.dataset(path)
    found.add_columns({"twice": "id * 2"})
    found.delete("id < 10")
    lance.write_dataset(rows(5, 900).append_column("twice", pa.array(range(5), pa.int64())), path, mode="append")
    return path


def values(row: dict[str, Any]) -> tuple[object, ...]:
    """Return the values of a change row; one without the newest column has null there."""
    return (*(row[each] for each in (VERSION, CHANGE, "id", "name")), tuple(row["v"]), row.get("twice"))


def by_threads(path: Path, **options: Any) -> Counter[tuple[object, ...]]:
    """Return the change rows as `tailer.changes` gives them."""
    return Counter(values(row) for batch in tailer.changes(path, **options) for row in batch.to_pylist())


def by_spark(frame: DataFrame) -> Counter[tuple[object, ...]]:
    """Return the change rows of the data source."""
    return Counter(values(row.asDict()) for row in frame.collect())


@pytest.mark.sampled(2)
def test_a_batch_has_all_rows(spark: SparkSession, dataset: Path) -> None:
    tailer.spark.register(spark)
    found = spark.read.format("tailer").option("startingVersion", "earliest").load(str(dataset))
    assert found.schema["v"].dataType.simpleString() == "array<float>"
    expected = by_threads(dataset)
    assert by_spark(found) == expected
    assert expected.total() > 250
    pairs = {"computeUpdates": "true", "key": "id"}
    paired = spark.read.format("tailer").options(startingVersion="earliest", **pairs).load(str(dataset))
    expected = by_threads(dataset, compute_updates=True, key=["id"])
    assert by_spark(paired) == expected
    assert {row[1] for row in expected} == {"insert", "delete", "update_preimage", "update_postimage"}
    snapshot = spark.read.format("tailer").option("snapshot", "true").load(str(dataset))
    assert Counter(row.id for row in snapshot.collect()) == Counter(
        lance.dataset(dataset).to_table(columns=["id"])["id"].to_pylist()
    )
    envelope = spark.read.format("tailer").options(startingVersion="earliest", schema="envelope").load(str(dataset))
    kinds = envelope.where("_change_type RLIKE '^(insert|delete|update_.*)$'")
    assert kinds.count() == by_threads(dataset).total()


@pytest.mark.parametrize("few_rows", [0, comparing.FEW_ROWS], ids=["all by Spark", "few rows here"])
@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"computeUpdates": True, "key": ["id"]},
        {"netChanges": True},
        {"netChanges": True, "computeUpdates": True, "key": ["id"]},
    ],
    ids=["values", "key", "net", "net by key"],
)
@pytest.mark.sampled(10)
def test_all_executors_compare(
    spark: SparkSession, dataset: Path, few_rows: int, rules: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    shared: list[object] = []

    def compared(*arguments: Any) -> Compared:
        shared.append(arguments[1])
        return made(*arguments)

    made = comparing.compared
    monkeypatch.setattr(comparing, "compared", compared)
    monkeypatch.setattr(comparing, "FEW_ROWS", few_rows)
    found = []
    for shared_bytes in (2**60, 0):
        monkeypatch.setattr(comparing, "SHARED_BYTES", shared_bytes)
        found.append(by_spark(tailer.spark.changes(spark, dataset, columns=["id", "name", "v"], **rules)))
    assert shared
    assert found[0] == found[1]
    assert found[0].total() > 100


def streamed(spark: SparkSession, path: Path, folder: Path, **options: str) -> None:
    """Follow the dataset from its first version to its end."""
    follow(spark, path, folder, startingVersion="earliest", **options)


def follow(spark: SparkSession, path: Path, folder: Path, **options: str) -> None:
    """Follow the dataset to its end."""
    stream = spark.readStream.format("tailer").options(**options).load(str(path))
    query = stream.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    query.option("path", str(folder / "out")).trigger(availableNow=True).start().awaitTermination()


@pytest.mark.sampled(2)
def test_a_stream_goes_on_after_it_has_ended(spark: SparkSession, dataset: Path, tmp_path: Path) -> None:
    tailer.spark.register(spark)
    streamed(spark, dataset, tmp_path, maxFilesPerTrigger="2")
    assert by_spark(spark.read.parquet(str(tmp_path / "out"))) == by_threads(dataset)
    lance.dataset(dataset).delete("id > 902")
    lance.dataset(dataset).update({"name": "'again'"}, where="id = 50")
    streamed(spark, dataset, tmp_path, maxFilesPerTrigger="2")
    assert by_spark(spark.read.parquet(str(tmp_path / "out"))) == by_threads(dataset)


def test_a_branch_is_read_by_name(spark: SparkSession, tmp_path: Path) -> None:
    tailer.spark.register(spark)
    path = tmp_path / "plain"
    lance.write_dataset(rows(5), path)
    branch = lance.dataset(path).create_branch("dev")
    branch.delete("id = 1")
    options = {"startingVersion": "earliest", "tableFormat": "LANCE", "branch": "dev"}
    (row,) = spark.read.format("tailer").options(**options).load(str(path)).collect()
    assert (row[CHANGE], row.id) == ("delete", 1)


@pytest.mark.sampled(2)
def test_tags_are_places_between_versions(spark: SparkSession, dataset: Path, tmp_path: Path) -> None:
    """A batch and a stream between two tags. A tag that moves later does not move a stream that has begun."""
    tailer.spark.register(spark)
    found = lance.dataset(dataset)
    found.tags.create("Begin", 2)
    found.tags.create("end", 7)
    expected = by_threads(dataset, start="tag:Begin", end="tag:end")
    assert {row[0] for row in expected} == {3, 4, 7}
    places = {"startingVersion": "tag:Begin", "endingVersion": "tag:end"}
    assert by_spark(spark.read.format("tailer").options(**places).load(str(dataset))) == expected
    follow(spark, dataset, tmp_path, startingVersion="tag:Begin", endingVersion="tag:end")
    assert by_spark(spark.read.parquet(str(tmp_path / "out"))) == expected
    found.tags.update("Begin", 9)
    found.tags.update("end", found.version)
    follow(spark, dataset, tmp_path, startingVersion="tag:Begin", endingVersion="tag:end", columns="id,name,v")
    rest = Counter({(*row[:5], None): count for row, count in by_threads(dataset, start=8).items()})
    first = Counter({(*row[:5], None): count for row, count in expected.items()})
    assert by_spark(spark.read.parquet(str(tmp_path / "out"))) == first + rest
    with pytest.raises(Exception, match=r"startingVersion: .* has no 'begin' among its tags"):
        spark.read.format("tailer").option("startingVersion", "tag:begin").load(str(dataset)).collect()


@pytest.mark.parametrize(
    ("column", "named"),
    [
        (pa.array([1], pa.timestamp("ns")), "column x is timestamp\\[ns\\], which Spark lacks"),
        (pa.array([1], pa.duration("us")), None),
        (pa.array([200], pa.uint8()), 200),
        (pa.array([2**63], pa.uint64()), 2**63),
        (pa.array([np.float16(1.5)], pa.float16()), 1.5),
        (pa.array(["a"]).dictionary_encode(), "a"),
        (pa.array([b"a"], pa.large_binary()), bytearray(b"a")),
    ],
    ids=lambda each: str(getattr(each, "type", "")),
)
def test_types_that_spark_lacks(spark: SparkSession, tmp_path: Path, column: pa.Array, named: object) -> None:
    """They are read as the type that has each value, or refused by name."""
    tailer.spark.register(spark)
    lance.write_dataset(pa.table({"id": [1], "x": column}), tmp_path / "t")
    reader = spark.read.format("tailer").option("startingVersion", "earliest")
    if isinstance(named, str) and "lacks" in named:
        with pytest.raises(Exception, match=named):
            reader.load(str(tmp_path / "t"))
        (row,) = reader.option("columns", "id").load(str(tmp_path / "t")).collect()
        assert row.id == 1
    elif named is not None:
        (row,) = reader.load(str(tmp_path / "t")).collect()
        assert row.x == named
    else:
        (row,) = reader.load(str(tmp_path / "t")).collect()
        assert row.x.microseconds == 1


@pytest.mark.nightly
def test_executors_read_for_the_daemon(tmp_path: Path) -> None:
    """A pipeline with `engine = "spark"` into a Delta table, killed in between: every change once."""
    source = tmp_path / "source"
    lance.write_dataset(rows(1000), source, enable_stable_row_ids=True, max_rows_per_file=100)
    for number in range(3):
        lance.dataset(source).update({"name": f"'u{number}'"}, where=f"id % 3 = {number}")
    config = configuration(tmp_path, "spark", more='write = "driver"')
    for number in range(1 + repeats(1)):
        wanted = expected(source)
        with background("run", "--config", config, SPARK_LOCAL_IP="127.0.0.1") as daemon:
            until(lambda wanted=wanted: copied(tmp_path / "target-spark") == wanted)  # type: ignore[misc]
            daemon.kill()
        lance.dataset(source).delete(f"id % 100 = {number}")


def keys(batches: Iterator[dict[str, Any]]) -> Counter[tuple[object, ...]]:
    """Return what distinguishes change rows."""
    return Counter((row[VERSION], row[CHANGE], row["id"], row["name"], tuple(row["v"])) for row in batches)


def copied(target: Path) -> Counter[tuple[object, ...]]:
    """Return the change rows in the target."""
    if not (target / "_delta_log").exists():
        return Counter()
    return keys(iter(DeltaTable(target).to_pyarrow_table().to_pylist()))


def expected(source: Path) -> Counter[tuple[object, ...]]:
    """Return the change rows as `tailer.changes` gives them."""
    return keys(row for batch in tailer.changes(source) for row in batch.to_pylist())
