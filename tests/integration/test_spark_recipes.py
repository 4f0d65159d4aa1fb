"""The recipes for `foreachBatch`: exact even if a batch is processed twice.

On every landing: the same with `follow`, and a failure behind each append (`integration/test_spark_follow.py`).
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import tailer.spark
from tailer.errors import ConfigError, SinkRejected
from tailer.spark.recipes import append_once, kafka_records, merge_by_key

Done = Callable[[DataFrame, int], None]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A table with a few versions: inserts, then updates, a delete and a key that returns."""
    path = tmp_path / "source"
    write_deltalake(path, pa.table({"k": pa.array([1, 2, 3], pa.int64()), "v": ["a", "b", "c"]}))
    write_deltalake(path, pa.table({"k": pa.array([4], pa.int64()), "v": ["d"]}), mode="append")
    DeltaTable(path).update(updates={"v": "'B'"}, predicate="k = 2")
    DeltaTable(path).delete("k = 3")
    write_deltalake(path, pa.table({"k": pa.array([3], pa.int64()), "v": ["again"]}), mode="append")
    DeltaTable(path).delete("k = 1")
    return path


def changes(spark: SparkSession, source: Path, **options: Any) -> DataFrame:
    """Read the table's changes from its first version on, a few rows at a time."""
    tailer.spark.register(spark)
    reader = spark.readStream.format("tailer").option("startingVersion", 0).option("maxFilesPerTrigger", 2)
    return reader.options(**options).load(str(source))


def run(rows: DataFrame, each: Done, checkpoint: Path) -> None:
    """Run all available batches."""
    query = rows.writeStream.foreachBatch(each).trigger(availableNow=True)
    query.option("checkpointLocation", str(checkpoint)).start().awaitTermination()


def failing_behind(each: Done, at: int) -> Done:
    """Make `each` fail after batch `at`: Spark does not know that it was processed."""

    def done(batch: DataFrame, number: int) -> None:
        each(batch, number)
        if number == at:
            raise RuntimeError("lost")

    return done


def run_with_failures(rows: DataFrame, each: Done, checkpoint: Path) -> None:
    """Run all batches; the first two are processed twice."""
    for at in (0, 1):
        with pytest.raises(StreamingQueryException):
            run(rows, failing_behind(each, at), checkpoint)
    run(rows, each, checkpoint)


def contents(path: Path) -> Counter[tuple[int, str]]:
    """Return keys and values of a table."""
    return Counter((row["k"], row["v"]) for row in pa.table(DeltaTable(path).scan()).to_pylist())


@pytest.mark.nightly
def test_a_batch_is_appended_once(source: Path, tmp_path: Path, spark: SparkSession) -> None:
    target = tmp_path / "target"
    rows = changes(spark, source)
    run_with_failures(rows, append_once(str(target), "orders"), tmp_path / "checkpoint")
    direct = spark.read.format("tailer").option("startingVersion", 0).load(str(source))
    assert Counter(map(tuple, spark.read.format("delta").load(str(target)).collect())) == Counter(
        map(tuple, direct.collect())
    )


@pytest.mark.parametrize("schema", ["typed", "envelope"])
def test_a_table_without_our_columns_is_not_appended_to(
    source: Path, tmp_path: Path, spark: SparkSession, schema: str
) -> None:
    """Neither the source, also by a link, nor any other; with `adopt` it is."""
    (tmp_path / "link").symlink_to(source)
    tailer.spark.register(spark)
    rows = spark.read.format("tailer").option("startingVersion", 0).option("schema", schema).load(str(source))
    version = DeltaTable(source).version()
    for target in (source, tmp_path / "link"):
        with pytest.raises(SinkRejected, match="without our columns") as raised:
            append_once(str(target), "orders")(rows, 0)
        assert "adopt = True" in raised.value.hint
    assert DeltaTable(source).version() == version
    other = tmp_path / "other"
    write_deltalake(other, pa.table({"k": pa.array([1], pa.int64())}))
    append_once(str(other), "orders", adopt=True)(rows, 0)
    append_once(str(other), "orders")(rows, 1)
    assert DeltaTable(other).version() == 2


def test_a_copy_is_kept_by_key(source: Path, tmp_path: Path, spark: SparkSession) -> None:
    target = tmp_path / "target"
    each = merge_by_key(str(target), ["k"])
    run_with_failures(changes(spark, source, netChanges="true", key="k"), each, tmp_path / "checkpoint")
    assert contents(target) == contents(source)
    new = pa.table({"k": pa.array([7], pa.int64()), "v": ["g"], "w": ["new"]})
    write_deltalake(source, new, mode="append", schema_mode="merge")
    DeltaTable(source).delete("k = 4")
    # A query ended by a schema change is started again with the new columns.
    run(changes(spark, source, netChanges="true", key="k"), each, tmp_path / "checkpoint")
    assert contents(target) == contents(source)
    assert "w" in [field.name for field in DeltaTable(target).schema().fields]


def test_a_key_is_needed() -> None:
    with pytest.raises(ConfigError, match="key"):
        merge_by_key("target", [])


@pytest.mark.parametrize(("target", "key", "named"), [("a${env:HOME}", "k", "target"), ("a", "${spark.master}", "key")])
def test_names_in_which_sql_would_put_settings(target: str, key: str, named: str) -> None:
    with pytest.raises(ConfigError, match=rf"{named}.*has \$\{{ in it"):
        merge_by_key(target, [key])


def test_records_for_kafka_identify_repeated_ones(source: Path, tmp_path: Path, spark: SparkSession) -> None:
    found: list[tuple[str, str]] = []

    def keep(batch: DataFrame, _number: int) -> None:
        records = kafka_records(batch)
        assert records.columns == ["key", "value", "headers"]
        found.extend((row["key"], row["value"]) for row in records.collect())

    run_with_failures(changes(spark, source, schema="envelope"), keep, tmp_path / "checkpoint")
    assert len(found) > len(set(found))
    envelope = spark.read.format("tailer").option("startingVersion", 0).option("schema", "envelope")
    rows = envelope.load(str(source)).collect()
    assert {key for key, _ in found} == {row["_event_id"] for row in rows}
    assert len(set(found)) == len(rows)
