"""The data source `tailer` in Spark: batches, streams and SQL, compared with Delta's change feed of the same tables.

Combinations are tested without Spark (`tests.support.spark.queries`); these tests need Spark itself.
"""

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import LongType, StructField, StructType

import tailer.spark
from tailer.events import CHANGE_TYPE, COMMIT_VERSION
from tests.support.oracle.rows import assert_same, rows_of
from tests.support.spark.queries import read_batch
from tests.support.spark.table import Table
from tests.support.tables.mapped import MappedTable


class Source:
    """The data source in a session."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        tailer.spark.register(spark)
        self.spark = spark
        self.checkpoint = folder / "checkpoint"

    def batch(self, path: Path, **options: Any) -> DataFrame:
        """Read a batch."""
        return self.spark.read.format("tailer").options(**options).load(str(path))

    def stream(
        self,
        path: Path,
        checkpoint: Path | None = None,
        *,
        trigger: dict[str, Any] | None = None,
        each: Callable[[int], object] = bool,
        provider: str = "tailer",
        **options: Any,
    ) -> tuple[StreamingQuery, list[pa.Table]]:
        """Run a query and collect its micro-batches; `each` is called with the number of each before it is read."""
        found: list[pa.Table] = []

        def take(rows: DataFrame, number: int) -> None:
            each(number)
            found.append(rows.toArrow())

        frame = self.spark.readStream.format(provider).options(**options).load(str(path))
        writer = frame.writeStream.option("checkpointLocation", str(checkpoint or self.checkpoint)).foreachBatch(take)
        return writer.trigger(**(trigger or {"availableNow": True})).start(), found

    def rows(self, path: Path, checkpoint: Path | None = None, **options: Any) -> pa.Table:
        """Return the rows of a query that ends by itself."""
        query, found = self.stream(path, checkpoint, **options)
        query.awaitTermination()
        return _united(found)

    def stopped(self, path: Path, checkpoint: Path | None = None, **options: Any) -> tuple[pa.Table, str]:
        """Return the rows of a query that fails, and its error text."""
        query, found = self.stream(path, checkpoint, **options)
        with pytest.raises(StreamingQueryException) as failure:
            query.awaitTermination()
        return _united(found), str(failure.value)


def _united(batches: list[pa.Table]) -> pa.Table:
    """Return all rows; no column if there was no batch."""
    return pa.concat_tables(batches) if batches else pa.table({})


@pytest.fixture
def source(spark: SparkSession, tmp_path: Path) -> Source:
    """The data source, with its own checkpoint folder."""
    return Source(spark, tmp_path)


@pytest.fixture(scope="module")
def orders(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Table:
    """Version 1 inserts, 2 updates, 3 deletes by vector, 4 inserts; the path and the partitions have odd characters."""
    table = Table(spark, tmp_path_factory.mktemp("source") / "b 50%+é#c")
    texts = "element_at(array('a/b', 'x:y', '50%', 'é', NULL, 'q?#&=+'), CAST(id % 6 AS INT) + 1)"
    moment = "timestamp_micros(1700000000123456 + id * 1000003)"
    made = f"SELECT id, {texts} AS p, {moment} AS at, named_struct('x', id) AS s FROM range(24)"
    table.create("id BIGINT, p STRING, at TIMESTAMP, s STRUCT<x: BIGINT>", made, vectors=True, partition="p")
    table.sql("UPDATE {t} SET at = at + INTERVAL 1 HOUR WHERE id % 5 = 0")
    table.sql("DELETE FROM {t} WHERE id % 7 = 0")
    table.sql("INSERT INTO {t} SELECT id, NULL, NULL, NULL FROM range(100, 103)")
    return table


def feed(spark: SparkSession, path: Path, **options: Any) -> DataFrame:
    """Read Delta's own change feed."""
    given = {"readChangeFeed": True, "startingVersion": 0, **options}
    return spark.read.format("delta").options(**given).load(str(path))


def ids(rows: pa.Table, column: str = "a") -> list[Any]:
    """Return a column's values, in order."""
    return sorted(rows[column].to_pylist())


def test_batch_stream_and_view_equal_the_feed_of_delta(source: Source, orders: Table) -> None:
    spark = source.spark
    expected = feed(spark, orders.path)
    found = source.batch(orders.path, startingVersion="earliest")
    assert found.dtypes == expected.dtypes
    answer = rows_of(expected.toArrow())
    assert_same(rows_of(found.toArrow()), answer, "batch")
    assert_same(rows_of(source.rows(orders.path, startingVersion=0, maxFilesPerTrigger=3)), answer, "stream")
    theirs = source.rows(
        orders.path, source.checkpoint.with_name("delta"), provider="delta", startingVersion=0, readChangeFeed=True
    )
    assert_same(rows_of(theirs), answer, "stream of Delta")
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW changes USING tailer OPTIONS (path '{orders.path}', startingVersion '2',"
        f" endingVersion '3', columns 'ID, P')"
    )
    wanted = expected.where("_commit_version BETWEEN 2 AND 3 AND id < 11").drop("at", "s")
    filtered = spark.table("changes").where("id < 11")
    assert_same(rows_of(filtered.toArrow()), rows_of(wanted.toArrow()), "view with a filter")
    assert spark.sql("SELECT count(*) FROM changes WHERE id < 11 AND _change_type = 'delete'").collect()[0][0] == 2


def test_a_filter_gives_the_rows_that_it_gives_on_the_feed_of_delta(source: Source, orders: Table) -> None:
    condition = "_change_type <> 'delete' AND p LIKE 'a%' AND _commit_version > 1"
    wanted = rows_of(feed(source.spark, orders.path).where(condition).toArrow())
    assert wanted
    found = source.batch(orders.path, startingVersion=0).where(condition)
    assert_same(rows_of(found.toArrow()), wanted, "batch")
    narrow = source.batch(orders.path, startingVersion=0, columns="id").where("id < 11 AND _change_type = 'delete'")
    deleted = feed(source.spark, orders.path).where("id < 11 AND _change_type = 'delete'").drop("p", "at", "s")
    assert_same(rows_of(narrow.toArrow()), rows_of(deleted.toArrow()), "one column")


def test_instants_are_the_same_in_any_time_zone(source: Source, orders: Table) -> None:
    spark = source.spark
    times = "SELECT sum(unix_micros(at)), sum(unix_micros(_commit_timestamp)) FROM {frame}"
    expected = spark.sql(times, frame=feed(spark, orders.path)).collect()
    spark.conf.set("spark.sql.session.timeZone", "America/St_Johns")
    try:
        assert spark.sql(times, frame=source.batch(orders.path, startingVersion=0)).collect() == expected
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_a_query_on_the_move(source: Source, tmp_path: Path) -> None:
    """A query from a snapshot on, killed inside it, up to commits that arrive while it runs."""
    table = MappedTable(tmp_path / "t", a="long")
    for first in (0, 10, 20):
        table.insert(a=range(first, first + 10))
    options: dict[str, Any] = {"maxRowsPerTrigger": 8}

    def grow(number: int) -> None:
        if number == 1:
            table.insert(a=[100])
            table.delete_oldest()
            raise RuntimeError("killed")

    query, before = source.stream(table.path, each=grow, **options)
    with pytest.raises(StreamingQueryException, match="killed"):
        query.awaitTermination()
    query, behind = source.stream(table.path, trigger={"processingTime": "0 seconds"}, **options)
    try:
        query.processAllAvailable()
        version = table.insert(a=[101])
        query.processAllAvailable()
        reported = [json.loads(progress.sources[0].latestOffset) for progress in query.recentProgress]
    finally:
        query.stop()
    # A batch that is repeated after a restart has no progress report.
    latest = [offset["version"] for offset in reported if offset is not None]
    assert latest[0] == version - 1
    assert latest[-1] == version
    found = Counter[int]()
    for row in _united([*before, *behind]).to_pylist():
        found[row["a"]] += 1 if row[CHANGE_TYPE] == "insert" else -1
    assert found == {**dict.fromkeys(range(10), 0), **dict.fromkeys((*range(10, 30), 100, 101), 1)}


def test_available_now_ends_where_it_began_and_once_takes_all(source: Source, tmp_path: Path) -> None:
    table = MappedTable(tmp_path / "t", a="long")
    for number in range(3):
        table.insert(a=[number])
    options: dict[str, Any] = {"startingVersion": 0, "maxFilesPerTrigger": 1}
    query, found = source.stream(table.path, each=lambda number: table.insert(a=[100 + number]), **options)
    query.awaitTermination()
    assert [ids(rows) for rows in found] == [[0], [1], [2]]
    query, found = source.stream(table.path, trigger={"once": True}, **options)
    query.awaitTermination()
    assert [ids(rows) for rows in found] == [[100, 101, 102]]


def test_a_typed_stream_says_what_to_do_and_goes_on(source: Source, tmp_path: Path) -> None:
    table = MappedTable(tmp_path / "t", a="integer", b="string")
    table.insert(a=[1], b=["x"])

    def change(number: int) -> None:
        if number == 0:
            table.insert(a=[2], b=["y"])
            table.rename("b", "c")
            table.retype("a", "long")
            table.add_column("d", "double", a=[2**40], c=["z"], d=[0.5])

    found, text = source.stopped(
        table.path, each=change, trigger={"processingTime": "0 seconds"}, startingVersion=0, maxRowsPerTrigger=1
    )
    assert "column b was renamed to c" in text
    assert "\nRead with the option" in text
    assert "restart the query" in text
    assert ids(found) == [1, 2]
    rows = source.rows(table.path, startingVersion=0)
    assert rows.select(["a", "c", "d"]).to_pylist() == [{"a": 2**40, "c": "z", "d": 0.5}]


def test_an_envelope_goes_on_where_delta_stops(source: Source, tmp_path: Path) -> None:
    """Renamed, dropped and widened columns; and a disabled feed, where Delta shows rows that did not change."""
    table = Table(source.spark, tmp_path / "t")
    properties = "'delta.columnMapping.mode' = 'name', 'delta.enableTypeWidening' = 'true'"
    table.create("a INT, b STRING, c INT", "SELECT int(id), 'x', 0 FROM range(10)", properties=properties)
    table.sql("ALTER TABLE {t} RENAME COLUMN b TO d")
    table.sql("ALTER TABLE {t} ALTER COLUMN a TYPE BIGINT")
    table.sql("ALTER TABLE {t} DROP COLUMN c")
    renamed = table.latest
    table.sql("ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'false')")
    table.sql("UPDATE {t} SET d = 'y' WHERE a = 3")
    theirs = {"provider": "delta", "readChangeFeed": True}
    _, text = source.stopped(table.path, tmp_path / "theirs", startingVersion=0, **theirs)
    assert "SCHEMA" in text
    rows = source.rows(table.path, startingVersion=0, schema="envelope", maxFilesPerTrigger=1).to_pylist()
    by_type = Counter(row[CHANGE_TYPE] for row in rows)
    assert by_type == {"insert": 11, "schema_change": 3, "delete": 1}
    last = [json.loads(row["value"]) for row in rows if row[COMMIT_VERSION] == table.latest]
    assert sorted(last, key=str) == [{"a": 3, "d": "x"}, {"a": 3, "d": "y"}]
    noise = source.rows(table.path, tmp_path / "noise", startingVersion=renamed, **theirs)
    assert noise.num_rows == 20
    ours = source.rows(table.path, tmp_path / "ours", startingVersion=renamed, computeUpdates=True, key="a")
    assert Counter(ours[CHANGE_TYPE].to_pylist()) == {"update_preimage": 1, "update_postimage": 1}


def test_a_batch_read_twice_while_commits_arrive(source: Source, tmp_path: Path) -> None:
    table = MappedTable(tmp_path / "t", a="long")
    table.insert(a=[1, 2])
    frame = source.batch(table.path, startingVersion=0)
    snapshot = source.batch(table.path, snapshot=True)
    assert ids(frame.toArrow()) == [1, 2]
    table.insert(a=[3])
    table.add_column("b", "string")
    assert ids(frame.toArrow()) == ids(snapshot.toArrow()) == [1, 2]
    assert set(snapshot.toArrow()[COMMIT_VERSION].to_pylist()) == {1}


def test_one_file_of_many_row_groups_has_many_partitions(source: Source, tmp_path: Path) -> None:
    table = MappedTable(tmp_path / "t", a="string")
    action = table.put(a=["x"])
    file = table.path / action["add"]["path"]
    values = pa.table({"a": [letter * 2**21 for letter in "abcdefghijklmnop"]})
    pq.write_table(values, file, row_group_size=1, compression="none", use_dictionary=False, write_statistics=False)
    # The reader trusts the size in the log: writing a file of that size takes too long.
    table.commit({"add": {**action["add"], "size": 2**28}})
    frame = source.batch(table.path, startingVersion=1)
    assert frame.rdd.getNumPartitions() == 4
    assert ids(frame.selectExpr("left(a, 1) AS a").toArrow()) == list("abcdefghijklmnop")


def test_an_empty_table(source: Source, tmp_path: Path) -> None:
    table = MappedTable(tmp_path / "t", a="long")
    assert source.batch(table.path, snapshot=True).toArrow().num_rows == 0
    assert source.batch(table.path, startingVersion=0).rdd.getNumPartitions() <= 1
    assert source.rows(table.path).num_rows == 0
    table.insert(a=[1])
    assert ids(source.rows(table.path)) == [1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingVersoin": 0}, "Did you mean 'startingVersion'?"),
        ({}, "Give startingVersion, startingTimestamp or snapshot = true."),
        ({"startingVersion": 0, "columns": "nope"}, "The columns are: a."),
    ],
)
def test_wrong_options_are_answered_with_the_next_step(
    source: Source, tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    table = MappedTable(tmp_path / "t", a="long")
    with pytest.raises(PySparkException) as failure:
        source.batch(table.path, **options).collect()
    assert said in str(failure.value)


def test_a_schema_of_ones_own(source: Source, tmp_path: Path) -> None:
    """The table's own schema is accepted; any other is refused, with a hint."""
    table = MappedTable(tmp_path / "t", a="long")
    table.insert(a=[1])
    reader = source.spark.read.format("tailer").option("startingVersion", 0)
    own = reader.load(str(table.path)).schema
    assert reader.schema(own).load(str(table.path)).count() == 1
    with pytest.raises(PySparkException, match="select or cast the columns after load"):
        reader.schema(StructType([StructField("a", LongType())])).load(str(table.path)).collect()


def test_checkpoints_of_something_else(source: Source, orders: Table, tmp_path: Path) -> None:
    table = MappedTable(tmp_path / "t", a="long")
    table.insert(a=[1])
    source.rows(table.path, startingVersion=0, appId="one")
    table.insert(a=[2])
    _, text = source.stopped(table.path, startingVersion=0, appId="two")
    assert "\nGive the appId that the query began with" in text
    _, text = source.stopped(orders.path, startingVersion=0, appId="one")
    assert "\nStart a query with a new checkpoint folder" in text
    assert ids(source.rows(table.path, startingVersion=0, appId="one")) == [2]
    foreign = tmp_path / "foreign"
    source.rows(orders.path, foreign, provider="delta", startingVersion=0, readChangeFeed=True)
    _, text = source.stopped(table.path, foreign, startingVersion=0)
    assert "\nGive this source a checkpoint folder of its own" in text


def test_a_file_that_is_gone(source: Source, tmp_path: Path) -> None:
    table = MappedTable(tmp_path / "t", a="long")
    table.insert(a=[1])
    table.insert(a=[2])
    gone = table.path / list(table.files)[1]
    gone.rename(tmp_path / "aside")
    rows, text = source.stopped(table.path, startingVersion=0, maxFilesPerTrigger=1)
    assert ids(rows) == [1]
    assert gone.name in text
    assert "VACUUM" in text
    (tmp_path / "aside").rename(gone)
    assert ids(source.rows(table.path, startingVersion=0)) == [2]


def test_starting_and_ending_times_beside_those_of_delta(source: Source, tmp_path: Path) -> None:
    """At a commit, and a millisecond beside it; both ends belong to the range."""
    spark, table = source.spark, Table(source.spark, tmp_path / "t")
    table.create("a BIGINT", "SELECT 1L")
    for number in (2, 3):
        table.sql(f"INSERT INTO {{t}} VALUES ({number})")
    for version in range(4):
        moment = (1_750_000_000 + 60 * version) * 10**9
        os.utime(table.commit_file(version), ns=(moment, moment))
    table.rewrite(3, [json.loads(line) for line in table.commit_file(3).read_text().splitlines()])
    os.utime(table.commit_file(3), ns=((1_750_000_180) * 10**9,) * 2)
    at = {version: f"2025-06-15 15:{6 + version:02d}:40" for version in range(4)}
    cases = [
        {"startingTimestamp": at[2]},
        {"startingTimestamp": f"{at[1]}.001"},
        {"startingTimestamp": "2020-01-01 00:00:00", "endingTimestamp": at[2]},
        {"startingTimestamp": at[1], "endingTimestamp": "2025-06-15 15:08:39.999"},
    ]
    for case in cases:
        theirs = spark.read.format("delta").options(readChangeFeed=True, **case).load(str(table.path))
        assert_same(rows_of(read_batch(path=table.path, **case)), rows_of(theirs.toArrow()), str(case))
    assert ids(source.rows(table.path, startingTimestamp=at[2])) == [2, 3]


def test_rows_ids_and_updates_by_row_tracking(source: Source, tmp_path: Path) -> None:
    table = Table(source.spark, tmp_path / "t")
    tracked = "'delta.enableRowTracking' = 'true'"
    table.create("a BIGINT, b STRING", "SELECT id, 'x' FROM range(20)", feed=False, properties=tracked)
    table.sql("UPDATE {t} SET b = 'y' WHERE a IN (3, 4)")
    table.sql("UPDATE {t} SET b = 'x' WHERE a = 4")
    options = {"startingVersion": 2, "rowIds": True, "computeUpdates": True}
    rows = source.batch(table.path, **options).toArrow().to_pylist()
    found = sorted((row[COMMIT_VERSION], row["a"], row[CHANGE_TYPE], row["_row_id"]) for row in rows)
    assert [row[:3] for row in found] == [
        (2, 3, "update_postimage"),
        (2, 3, "update_preimage"),
        (2, 4, "update_postimage"),
        (2, 4, "update_preimage"),
        (3, 4, "update_postimage"),
        (3, 4, "update_preimage"),
    ]
    assert all(row[3] == row[1] for row in found)
    net = source.rows(table.path, startingVersion=2, netChanges=True, computeUpdates=True)
    assert Counter(net[CHANGE_TYPE].to_pylist()) == {"update_preimage": 1, "update_postimage": 1}
    assert set(net["a"].to_pylist()) == {3}
