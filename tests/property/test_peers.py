"""Faults of other change readers: their answer or failure, and the proof by the fold that ours is right.

Each test makes a table with Spark, shows the other reader's answer or failure, and judges ours by Spark's snapshots. If
the other reader is fixed, its half of the test fails; the test then becomes a plain comparison.

On every landing: nothing: it tests other readers, and says why we do not do the same.
"""

import subprocess
import sys
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
from deltalake import DeltaTable, WriterProperties, write_deltalake
from deltalake.exceptions import DeltaError
from pyspark.sql import SparkSession

from tailer.events import COMMIT_TIMESTAMP
from tests.support.follow import Followed, follow
from tests.support.histories.schema_evolution import REFUSALS
from tests.support.oracle.rows import Rows, rows_of, spark_feed
from tests.support.spark.table import Table, kinds
from tests.support.tables.golden import golden_delta

pytestmark = pytest.mark.nightly

SOURCE: Final = "(SELECT id FROM range(5)) s"


def delta_rs_feed(path: Path, first: int, last: int) -> pa.Table:
    """Read the changes of some versions with delta-rs."""
    return pa.table(DeltaTable(path).load_cdf(starting_version=first, ending_version=last).read_all())


def counted(feed: pa.Table) -> dict[str, int]:
    """Count the rows of a feed by change type."""
    found = feed.group_by("_change_type").aggregate([([], "count_all")]).to_pylist()
    return {row["_change_type"]: row["count_all"] for row in found}


def plain(*tables: pa.Table) -> Rows:
    """Return change rows without their commit timestamps."""
    return sum((rows_of(table, [COMMIT_TIMESTAMP]) for table in tables), Rows())


def ours(version: Followed) -> Rows:
    """Return our rows of a version, likewise."""
    return plain(*version.tables)


# --- delta-rs --------------------------------------------------------------------------------------------------------


def test_delta_rs_turns_a_vector_without_its_other_half_around(table: Table) -> None:
    table.create("id BIGINT", "SELECT id FROM range(10)", vectors=True)
    table.sql("DELETE FROM {t} WHERE id = 3")
    table.sql("INSERT OVERWRITE {t} SELECT id FROM range(100, 102)")
    table.sql("RESTORE TABLE {t} TO VERSION AS OF 2")
    versions = table.check()
    assert kinds(versions[3]) == {"delete": 9, "insert": 2}
    assert kinds(versions[4]) == {"delete": 2, "insert": 9}
    theirs = delta_rs_feed(table.path, 3, 3)
    assert counted(theirs) == {"delete": 1, "insert": 2}  # the row that was deleted earlier
    assert [row["id"] for row in theirs.to_pylist() if row["_change_type"] == "delete"] == [3]
    assert counted(delta_rs_feed(table.path, 4, 4)) == {"delete": 2, "insert": 1}


def test_delta_rs_does_not_find_files_whose_names_are_escaped(table: Table) -> None:
    values = ("a/b", "x:y", "é", "a%b", "q?#&=+")
    table.create("id BIGINT, p STRING", "SELECT id, 'plain' FROM range(2)", partition="p")
    for value in values:
        table.sql(f"INSERT INTO {{t}} SELECT id, '{value}' FROM range(2)")
    versions = table.check()
    for version, value in enumerate(values, 2):
        assert versions[version].table.column("p").to_pylist() == [value] * 2
        with pytest.raises(Exception, match=r"Object at location .* not found"):
            delta_rs_feed(table.path, version, version)


def test_delta_rs_aborts_on_a_vector_over_many_row_groups(table: Table) -> None:
    properties = WriterProperties(max_row_group_size=7, write_batch_size=7)
    write_deltalake(table.path, pa.table({"id": pa.array(range(100), pa.int64())}), writer_properties=properties)
    table.sql(
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true', "
        "'delta.enableChangeDataFeed' = 'true')"
    )
    table.sql("DELETE FROM {t} WHERE id IN (0, 6, 7, 50)")
    assert table.check(1)[2].table.column("id").to_pylist() == [0, 6, 7, 50]
    program = (
        "import sys; from deltalake import DeltaTable; "
        "DeltaTable(sys.argv[1]).load_cdf(starting_version=2, ending_version=2).read_all()"
    )
    done = subprocess.run([sys.executable, "-c", program, table.path], capture_output=True, text=True, check=False)
    assert done.returncode != 0, done.stdout
    assert "panicked" in done.stderr, done.stderr


def no_op_merge(table: Table) -> None:
    """Make a table whose version 2 rewrites ten rows and changes none."""
    table.create("id BIGINT, n INT", "SELECT id, 1 FROM range(10)")
    table.sql(f"MERGE INTO {{t}} t USING {SOURCE} ON t.id = s.id WHEN NOT MATCHED BY SOURCE AND t.n > 5 THEN DELETE")


def test_delta_rs_shows_a_merge_that_changed_nothing(table: Table) -> None:
    no_op_merge(table)
    assert kinds(table.check()[2]) == {}
    assert counted(delta_rs_feed(table.path, 2, 2)) == {"delete": 10, "insert": 10}


def test_delta_rs_does_not_notice_that_there_is_no_feed(table: Table) -> None:
    """We read such a version and mark its plan as without a feed; delta-rs refuses it only sometimes."""
    table.sql("CREATE TABLE {t} (id BIGINT, n INT) USING delta")
    table.sql("INSERT INTO {t} SELECT /*+ COALESCE(1) */ id, 1 FROM range(10)")
    table.sql("UPDATE {t} SET n = 2 WHERE id = 3")
    versions = table.check(feed_from=None)
    assert [version.plan.feed for version in versions] == [False] * 3
    assert plain(delta_rs_feed(table.path, 2, 2)) == ours(versions[2])
    with pytest.raises(REFUSALS):
        spark_feed(table.spark, table.path, 2, 2)


def test_delta_rs_gives_nulls_for_columns_that_were_replaced(table: Table) -> None:
    table.create("id BIGINT, gone STRING", "SELECT id, 'x' FROM range(3)")
    writer = table.spark.sql("SELECT id, 2.5D AS come FROM range(2)").write.format("delta").mode("overwrite")
    writer.option("overwriteSchema", "true").save(str(table.path))
    versions = table.check(feed_from=None)
    assert versions[1].table.column("gone").to_pylist() == ["x"] * 3
    deleted, inserted = versions[2].tables
    assert deleted.column("gone").to_pylist() == ["x"] * 3
    assert inserted.column("come").to_pylist() == [2.5] * 2
    theirs = delta_rs_feed(table.path, 0, 1)
    assert "gone" not in theirs.schema.names
    assert theirs.column("come").to_pylist() == [None] * 3


@pytest.mark.parametrize("mode", ["name", "id"])
def test_delta_rs_does_not_read_mapped_columns(table: Table, mode: str) -> None:
    mapped = f"'delta.columnMapping.mode' = '{mode}'"
    table.create("id BIGINT, n INT", "SELECT id, 1 FROM range(4)", properties=mapped)
    table.sql("UPDATE {t} SET n = 2 WHERE id = 1")
    assert kinds(table.check()[2]) == {"update_preimage": 1, "update_postimage": 1}
    with pytest.raises((OSError, DeltaError), match="Column mapping is not supported"):
        delta_rs_feed(table.path, 0, 2)


# --- Spark -----------------------------------------------------------------------------------------------------------


def spark_stream(spark: SparkSession, path: Path, scratch: Path) -> dict[str, int]:
    """Count the rows of a Spark stream from version 0 on, by change type."""
    reader = spark.readStream.format("delta").option("readChangeFeed", "true").option("startingVersion", 0)
    kinds_only = reader.load(str(path)).selectExpr("_change_type AS kind")
    writer = kinds_only.writeStream.format("delta").option("checkpointLocation", str(scratch / "progress"))
    writer.trigger(availableNow=True).start(str(scratch / "found")).awaitTermination()
    rows = spark.read.format("delta").load(str(scratch / "found")).groupBy("kind").count().collect()
    return {row["kind"]: row["count"] for row in rows}


def test_spark_streams_unchanged_rows_where_the_feed_was_switched_off(table: Table, tmp_path: Path) -> None:
    """Its batch reader refuses the range. We deliver such rows too, with a plan marked as without a feed."""
    table.create("id BIGINT, n INT", "SELECT id, 1 FROM range(10)")
    table.sql("ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'false')")
    table.sql("UPDATE {t} SET n = 3 WHERE id < 2")
    versions = table.check(0, 1)
    assert [version.plan.feed for version in versions] == [True, True, False, False]
    assert kinds(versions[3]) == {"delete": 10, "insert": 10}
    with pytest.raises(REFUSALS, match="DELTA_MISSING_CHANGE_DATA"):
        spark_feed(table.spark, table.path)
    assert spark_stream(table.spark, table.path, tmp_path) == {"insert": 20, "delete": 10}


@pytest.mark.parametrize("change", ["RENAME COLUMN n TO m", "DROP COLUMN n"])
def test_spark_stops_at_a_column_renamed_or_dropped(table: Table, tmp_path: Path, change: str) -> None:
    mapped = "'delta.columnMapping.mode' = 'name'"
    table.create("id BIGINT, n INT", "SELECT id, 1 FROM range(4)", properties=mapped)
    table.sql("DELETE FROM {t} WHERE id = 1")
    table.sql(f"ALTER TABLE {{t}} {change}")
    table.sql("DELETE FROM {t} WHERE id = 2")
    versions = table.check(feed_from=4)
    assert versions[2].table.column("n").to_pylist() == [1]
    assert "n" not in versions[4].table.schema.names
    with pytest.raises(REFUSALS, match="DELTA_CHANGE_DATA_FEED_INCOMPATIBLE"):
        spark_feed(table.spark, table.path)
    with pytest.raises(REFUSALS, match="DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE"):
        spark_stream(table.spark, table.path, tmp_path)


def test_spark_cannot_read_old_changes_once_a_type_was_widened(table: Table) -> None:
    widening = "'delta.enableTypeWidening' = 'true'"
    table.create("id BIGINT, n INT", "SELECT id, 1 FROM range(4)", properties=widening)
    table.sql("DELETE FROM {t} WHERE id = 1")
    assert len(spark_feed(table.spark, table.path, 0, 2)) == 2
    table.sql("ALTER TABLE {t} ALTER COLUMN n TYPE BIGINT")
    with pytest.raises(REFUSALS, match="DELTA_CHANGE_DATA_FEED_INCOMPATIBLE"):
        spark_feed(table.spark, table.path, 0, 2)
    versions = table.check(feed_from=None)
    assert versions[2].table.schema.field("n").type == pa.int32()


def test_spark_gives_up_on_a_file_added_again(table: Table) -> None:
    table.create("id BIGINT", "SELECT id FROM range(4)")
    (add,) = table.actions(1, "add")
    table.commit({"remove": {**add, "deletionTimestamp": 1, "extendedFileMetadata": True}}, {"add": add})
    assert kinds(table.check(0, 1)[2]) == {}
    with pytest.raises(REFUSALS, match="one or both of add and remove contain DV"):
        spark_feed(table.spark, table.path)


@pytest.mark.golden
def test_spark_loses_rows_of_vectors_padded_by_the_rust_crate(quick_spark: SparkSession) -> None:
    path = golden_delta("cdf-table-with-dv")
    theirs = spark_feed(quick_spark, path)
    assert sum(table.num_rows for table in theirs.values()) == 22
    versions = follow(path)
    assert sum(len(version.table) for version in versions) == 24
    lost = sum((ours(version) for version in versions), Rows()) - plain(*theirs.values())
    assert sorted((dict(row)["_change_type"], dict(row)["value"]) for row in lost) == [("delete", 3), ("insert", 3)]
    assert plain(delta_rs_feed(path, 0, 6)) == sum((ours(version) for version in versions), Rows())


def test_spark_gives_nulls_once_the_partitioning_changed(table: Table) -> None:
    """It looks for the values of the new partition columns in old files, which do not have them."""
    table.create("id BIGINT, p STRING", "SELECT id, 'x' FROM range(2)")
    writer = table.spark.sql("SELECT id, 'y' AS p FROM range(1)").write.format("delta").mode("overwrite")
    writer.option("overwriteSchema", "true").partitionBy("p").save(str(table.path))
    versions = table.check(feed_from=None)
    assert versions[2].table.column("p").to_pylist() == ["x", "x", "y"]
    theirs = spark_feed(table.spark, table.path)
    assert theirs[1].column("p").to_pylist() == [None] * 2
    assert [row["p"] for row in theirs[2].to_pylist() if row["_change_type"] == "delete"] == [None] * 2
