"""`tailer.spark.follow`: micro-batches are those of the data source as a stream, and recipes deliver them once."""

import json
import random
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import tailer.spark
from tailer.errors import ConfigError
from tailer.events import CHANGE_TYPE
from tailer.spark.recipes import append_once
from tests.support.oracle.recorded import CASES_DATA, HISTORIES, read
from tests.support.oracle.rows import assert_same, rows_of
from tests.support.spark.follow_query import FollowQuery
from tests.support.spark.queries import Checkpoint, Query, read_batch
from tests.support.spark.table import Table
from tests.support.tables.log_files import add, metadata, parquet, protocol, schema_string, write_commit
from tests.support.tables.mapped import MappedTable

RECORDED: Final = [
    path
    for path in (*sorted(HISTORIES.glob("*.tar.xz")), *sorted(CASES_DATA.glob("*.tar.xz")))
    if not re.search("variant|shred", path.name)  # PySpark cannot hand Variants over as Arrow's
]
Batches = dict[int, pa.Table]


class Following:
    """Follows tables with a checkpoint folder, and keeps each batch by its number."""

    def __init__(self, spark: SparkSession, checkpoint: Path) -> None:
        self._spark = spark
        self._checkpoint = checkpoint
        self.batches: Batches = {}

    def start(self, path: Path, each: Callable[[int], object] = bool, **options: Any) -> StreamingQuery:
        """Start a query up to what is there. `each` is called after a batch, with its number."""

        def deliver(changes: DataFrame, number: int) -> None:
            self.batches[number] = changes.toArrow()
            each(number)

        query = tailer.spark.follow(self._spark, path, deliver, **options).trigger(availableNow=True)
        return query.option("checkpointLocation", str(self._checkpoint)).start()

    def run(self, path: Path, each: Callable[[int], object] = bool, **options: Any) -> None:
        """Run such a query to its end."""
        self.start(path, each, **options).awaitTermination()

    def rows(self) -> pa.Table:
        """Return the rows of all batches."""
        return pa.concat_tables(self.batches[number] for number in sorted(self.batches))


@pytest.fixture
def following(spark: SparkSession, tmp_path: Path) -> Following:
    return Following(spark, tmp_path / "checkpoint")


@pytest.fixture
def orders(spark: SparkSession, tmp_path: Path) -> Table:
    """Inserts, updates, deletes by vector, and inserts again."""
    table = Table(spark, tmp_path / "b 50%+é")
    table.create("id BIGINT, p STRING", "SELECT id, CONCAT('p', id % 3) FROM range(24)", vectors=True, partition="p")
    table.sql("UPDATE {t} SET p = 'p0' WHERE id % 5 = 0")
    table.sql("DELETE FROM {t} WHERE id % 7 = 0")
    table.sql("INSERT INTO {t} VALUES (100, NULL), (101, 'p1')")
    return table


def test_micro_batches_are_those_of_the_data_source(following: Following, orders: Table, tmp_path: Path) -> None:
    """The same offsets, and the same rows between them."""
    checkpoint = Checkpoint()
    assert Query(checkpoint, path=orders.path, startingVersion=0, maxFilesPerTrigger=2).run() is None
    following.run(orders.path, start=0, maxFilesPerTrigger=2)
    assert len(checkpoint.batches) > 4
    assert following.batches.keys() == checkpoint.batches.keys()
    for number, rows in checkpoint.batches.items():
        assert following.batches[number].schema.equals(rows.schema)
        assert_same(rows_of(following.batches[number]), rows_of(rows), f"batch {number}")
        recorded = (tmp_path / "checkpoint" / "offsets" / str(number)).read_text().splitlines()
        assert recorded[-1] == json.dumps(json.loads(checkpoint.offsets[number + 1]))


def test_from_a_snapshot_on_with_failures_and_new_versions(following: Following, tmp_path: Path) -> None:
    """A batch that failed comes again with its number and its rows."""
    table = MappedTable(tmp_path / "t", a="long")
    for first in (0, 10, 20):
        table.insert(a=range(first, first + 10))
    seen: dict[int, Counter[Any]] = {}

    def fail(number: int) -> None:
        rows = rows_of(following.batches[number])
        if number in seen:
            assert_same(rows, seen[number], f"batch {number} again")
            return
        seen[number] = rows
        table.insert(a=[100 + number])
        if number == 1:
            table.delete_oldest()
        raise RuntimeError("killed")

    for _ in range(4):
        with pytest.raises(StreamingQueryException, match="killed"):
            following.run(table.path, fail, maxRowsPerTrigger=8)
    following.run(table.path, maxRowsPerTrigger=8)
    found = Counter[int]()
    for row in following.rows().to_pylist():
        found[row["a"]] += 1 if row[CHANGE_TYPE] == "insert" else -1
    assert found == {**dict.fromkeys(range(10), 0), **dict.fromkeys((*range(10, 30), *range(100, 104)), 1)}


def test_a_batch_is_appended_once(spark: SparkSession, orders: Table, tmp_path: Path) -> None:
    """Also if the query fails behind the append."""
    target, append = tmp_path / "target", append_once(str(tmp_path / "target"), "orders")
    failed = set[int]()

    def deliver(changes: DataFrame, number: int) -> None:
        append(changes, number)
        if number not in failed:
            failed.add(number)
            raise RuntimeError("lost")

    query = tailer.spark.follow(spark, orders.path, deliver, start=0, maxFilesPerTrigger=3).trigger(availableNow=True)
    query = query.option("checkpointLocation", str(tmp_path / "checkpoint"))
    for _ in range(3):
        with pytest.raises(StreamingQueryException, match="lost"):
            query.start().awaitTermination()
    failed |= set(range(100))
    query.start().awaitTermination()
    found = pa.table(DeltaTable(target).scan())
    expected = read_batch(path=orders.path, startingVersion=0)
    assert_same(rows_of(found.select(expected.column_names)), rows_of(expected), "target")


def test_a_query_goes_on_from_the_checkpoint_of_the_data_source(
    following: Following, spark: SparkSession, orders: Table, tmp_path: Path
) -> None:
    tailer.spark.register(spark)
    before: list[pa.Table] = []
    plain = spark.readStream.format("tailer").options(startingVersion=0, endingVersion=1).load(str(orders.path))
    writer = plain.writeStream.foreachBatch(lambda rows, _: before.append(rows.toArrow())).trigger(availableNow=True)
    writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    following.run(orders.path, start=0)
    assert min(following.batches) == len(before)
    found = pa.concat_tables([*before, following.rows()])
    assert_same(rows_of(found), rows_of(read_batch(path=orders.path, startingVersion=0)), "both")


def test_without_an_end_a_query_follows_the_table(spark: SparkSession, tmp_path: Path) -> None:
    table = MappedTable(tmp_path / "t", a="long")
    table.insert(a=[1])
    found: list[pa.Table] = []
    query = tailer.spark.follow(spark, table.path, lambda changes, _: found.append(changes.toArrow()), start="latest")
    running = query.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        running.processAllAvailable()
        for number in (2, 3):
            table.insert(a=[number])
            running.processAllAvailable()
    finally:
        running.stop()
    assert [rows["a"].to_pylist() for rows in found if len(rows)] == [[2], [3]]


def test_queries_at_once_have_batches_of_their_own(spark: SparkSession, orders: Table, tmp_path: Path) -> None:
    """Of one start each, also if it is the same `DataStreamWriter` that is started."""
    found: list[int] = []
    query = tailer.spark.follow(
        spark, orders.path, lambda rows, _: found.append(rows.count()), start=0, maxFilesPerTrigger=2
    ).trigger(availableNow=True)
    running = [query.option("checkpointLocation", str(tmp_path / name)).start() for name in ("one", "other")]
    for each in running:
        each.awaitTermination()
    assert sum(found) == 2 * read_batch(path=orders.path, startingVersion=0).num_rows


def test_a_change_of_columns_ends_the_query_and_a_restart_goes_on(following: Following, tmp_path: Path) -> None:
    table = MappedTable(tmp_path / "t", a="integer", b="string")
    table.insert(a=[1], b=["x"])

    def change(number: int) -> None:
        if number == 0:
            table.insert(a=[2], b=["y"])
            table.rename("b", "c")
            table.insert(a=[3], c=["z"])

    following.run(table.path, change, start=0)
    query = following.start(table.path, start=0, columns=["A"])
    query.awaitTermination()
    assert following.batches[1].column_names[0] == "a"
    assert sorted(row for rows in following.batches.values() for row in rows["a"].to_pylist()) == [1, 2, 3]


def test_another_condition_in_the_middle_of_a_version_is_refused(following: Following, tmp_path: Path) -> None:
    """Between versions it may change."""
    path, some, others = tmp_path / "t", "a % 2 = 0", "a % 2 = 1"

    def commit(version: int, *firsts: int) -> None:
        rows = [pa.table({"a": pa.array(range(first, first + 10), pa.int64())}) for first in firsts]
        files = [parquet(path / f"{first}.parquet", own) for first, own in zip(firsts, rows, strict=True)]
        write_commit(path, version, *(add(file.name, size=file.stat().st_size) for file in files))

    def fail(number: int) -> None:
        if number == 1:
            raise RuntimeError("killed")

    write_commit(path, 0, protocol(), metadata(schema_string(a="long")))
    commit(1, 0, 10, 20)
    one: dict[str, Any] = {"start": 0, "maxFilesPerTrigger": 1}
    with pytest.raises(StreamingQueryException, match="killed"):
        following.run(path, fail, where=some, **one)
    choices: tuple[dict[str, Any], ...] = ({"where": others}, {})
    for options in choices:
        with pytest.raises(StreamingQueryException, match="version 1 was delivered in part, with other choices"):
            following.run(path, **one, **options)
    following.run(path, where=some, **one)
    assert sorted(following.rows()["a"].to_pylist()) == list(range(0, 30, 2))
    following.batches.clear()
    commit(2, 100)
    following.run(path, where=others, **one)
    assert sorted(following.rows()["a"].to_pylist()) == list(range(101, 110, 2))


def test_wrong_arguments_are_refused_before_the_query(spark: SparkSession, orders: Table) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"end": "latest"}, "availableNow"),
        ({"end": 3}, "Give start"),
        ({"schema": "envelope"}, "spark.readStream.format"),
        ({"snapshot": "true"}, "start ="),
        ({"maxFilesPerTrigger": 0}, "maxFilesPerTrigger"),
    ]
    for options, said in wrong:
        with pytest.raises(ConfigError) as refused:
            tailer.spark.follow(spark, orders.path, lambda *_: None, **options)
        assert said in f"{refused.value} {refused.value.hint}"
    with pytest.raises(ConfigError, match="nobody"):
        tailer.spark.follow(spark, orders.path, lambda *_: None, columns=["nobody"])


@pytest.mark.parametrize("archive", RECORDED, ids=lambda archive: archive.name.split(".")[0])
@pytest.mark.sampled(10)
def test_recorded_histories(spark: SparkSession, archive: Path, tmp_path: Path) -> None:
    """With limits by which some files are cut; what stops one stream stops the other, at the same offset."""
    recorded, chance = read(archive, tmp_path), random.Random(archive.name)
    limits = {"maxFilesPerTrigger": chance.randint(4, 60), "maxRowsPerTrigger": chance.randint(10, 4000)}
    options = {"path": recorded.path, "startingVersion": recorded.first, **limits}
    options |= {"carryovers": chance.choice(("keep", "drop"))}
    rows, followed = Checkpoint(), Checkpoint()
    stopped = Query(rows, **options).run()
    also_stopped = FollowQuery(spark, followed, **options).run()
    assert (type(also_stopped), str(also_stopped)) == (type(stopped), str(stopped))
    assert [json.loads(each) for each in followed.offsets] == [json.loads(each) for each in rows.offsets]
    assert followed.batches.keys() == rows.batches.keys()
    for number, expected in rows.batches.items():
        assert followed.batches[number].schema.equals(expected.schema)
        assert_same(rows_of(followed.batches[number]), rows_of(expected), f"{archive.name}, batch {number}, {options}")
