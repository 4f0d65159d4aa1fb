"""Cases of the change feed that no public table covers, written by Spark and named after their special property.

Each is checked like a random history: by Spark's change feed if there is one, and by the fold over Spark's snapshots.
Each also asserts that its log has the special property.

On every landing: what Spark wrote, recorded (`property/test_written_cases.py`).
"""

import os
import shutil
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import WriterProperties, write_deltalake

from tailer.plan import Regime
from tests.support.follow import follow
from tests.support.histories.random_history import latest_version
from tests.support.oracle.rows import METADATA, rows_of
from tests.support.spark.sql_types import literal
from tests.support.spark.table import Table, kinds

# Spark writes it again in `make nightly`; what it wrote is read in `test_written_cases.py`.
recorded = pytest.mark.nightly

NASTY: Final = (
    "a/b",
    "x:y",
    "50%",
    "a%2Fb",
    "two words",
    "é",
    "日本",
    "q?#&=+",
    "back\\slash",
    'quo"te',
    "it's",
    "[x]{y}^z",
)


@recorded
def test_unpaired_remove_with_vector_after_overwrite(table: Table) -> None:
    table.create("id BIGINT", "SELECT id FROM range(10)", vectors=True)
    table.sql("DELETE FROM {t} WHERE id = 3")
    table.sql("INSERT OVERWRITE {t} SELECT id FROM range(100, 102)")
    assert [remove["deletionVector"]["cardinality"] for remove in table.actions(3, "remove")] == [1]
    assert kinds(table.check()[3]) == {"delete": 9, "insert": 2}


@recorded
def test_unpaired_add_with_vector_via_restore(table: Table) -> None:
    table.create("id BIGINT", "SELECT id FROM range(10)", vectors=True)
    table.sql("DELETE FROM {t} WHERE id = 3")
    table.sql("INSERT OVERWRITE {t} SELECT id FROM range(100, 102)")
    table.sql("RESTORE TABLE {t} TO VERSION AS OF 2")
    assert [add["deletionVector"]["cardinality"] for add in table.actions(4, "add")] == [1]
    assert kinds(table.check()[4]) == {"delete": 2, "insert": 9}


@recorded
def test_restore_over_a_vector_gives_rows_back(table: Table) -> None:
    table.create("id BIGINT", "SELECT id FROM range(10)", vectors=True)
    for removed in (3, 4):
        table.sql(f"DELETE FROM {{t}} WHERE id = {removed}")
    table.sql("RESTORE TABLE {t} TO VERSION AS OF 2")
    table.sql("RESTORE TABLE {t} TO VERSION AS OF 1")
    versions = table.check()
    assert versions[4].table.column("id").to_pylist() == [4]
    assert versions[5].table.column("id").to_pylist() == [3]


def test_unpaired_add_with_vector_via_shallow_clone(table: Table, tmp_path: Path) -> None:
    table.create("id BIGINT, p STRING", "SELECT id, 'x:y' FROM range(10)", vectors=True, partition="p")
    table.sql("DELETE FROM {t} WHERE id = 3")
    clone = Table(table.spark, tmp_path / "clone with space")
    clone.sql(f"CREATE TABLE {{t}} SHALLOW CLONE delta.`{table.path}`")
    (add,) = clone.actions(0, "add")
    assert add["path"].startswith("file:")
    assert add["deletionVector"]["storageType"] == "p"
    clone.sql("DELETE FROM {t} WHERE id = 5")
    versions = clone.check()
    assert [kinds(version) for version in versions] == [{"insert": 9}, {"delete": 1}]


@recorded
def test_merge_that_changes_nothing(table: Table) -> None:
    table.create("id BIGINT, n INT", "SELECT id, 1 FROM range(10)")
    table.sql(
        "MERGE INTO {t} t USING (SELECT id FROM range(5)) s ON t.id = s.id "
        "WHEN NOT MATCHED BY SOURCE AND t.n > 5 THEN DELETE"
    )
    assert latest_version(table.path) == 2
    assert table.actions(2, "add")
    assert table.actions(2, "remove")
    assert table.check()[2].plan.regime is Regime.NONE


@recorded
def test_feed_disabled_in_the_middle_and_enabled_again(table: Table) -> None:
    table.create("id BIGINT, n INT", "SELECT id, 1 FROM range(10)")
    table.sql("UPDATE {t} SET n = 2 WHERE id < 3")
    table.sql("ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'false')")
    table.sql("UPDATE {t} SET n = 3 WHERE id < 2")
    table.sql("ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')")
    table.sql("UPDATE {t} SET n = 4 WHERE id < 1")
    versions = table.check(0, 2)
    table.check(5)
    assert kinds(versions[2]) == {"update_preimage": 3, "update_postimage": 3}
    assert kinds(versions[4]) == {"delete": 10, "insert": 10}
    assert kinds(versions[6]) == {"update_preimage": 1, "update_postimage": 1}


@recorded
def test_vectors_on_a_file_with_many_row_groups(table: Table) -> None:
    rows = pa.table({"id": pa.array(range(100), pa.int64())})
    properties = WriterProperties(max_row_group_size=7, write_batch_size=7)
    write_deltalake(table.path, rows, writer_properties=properties)
    table.sql(
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true', "
        "'delta.enableChangeDataFeed' = 'true')"
    )
    table.sql("DELETE FROM {t} WHERE id IN (0, 6, 7, 13, 50, 99)")
    table.sql("DELETE FROM {t} WHERE id % 10 = 5 OR id BETWEEN 70 AND 76")
    table.sql("RESTORE TABLE {t} TO VERSION AS OF 2")
    table.sql("INSERT OVERWRITE {t} SELECT id FROM range(3)")
    assert any(pq.read_metadata(file).num_row_groups > 10 for file in table.path.glob("*.parquet"))
    versions = table.check(1)
    assert versions[2].table.column("id").to_pylist() == [0, 6, 7, 13, 50, 99]
    assert kinds(versions[5]) == {"delete": 94, "insert": 3}


@recorded
def test_times_of_commit_files_that_go_backwards(table: Table, tmp_path: Path) -> None:
    table.create("id BIGINT", "SELECT id FROM range(3)")
    for first in (10, 20, 30):
        table.sql(f"INSERT INTO {{t}} SELECT id FROM range({first}, {first + 2})")
    copy = Table(table.spark, tmp_path / "copy")
    shutil.copytree(table.path, copy.path)
    for version, seconds in enumerate([10, 5, 5, 20, 20]):
        moment = 1_700_000_000 + seconds
        os.utime(copy.path / "_delta_log" / f"{version:020d}.json", (moment, moment))
    versions = copy.check()
    offsets = [version.plan.timestamp_ms - 1_700_000_000_000 for version in versions]
    assert offsets == [10_000, 10_001, 10_002, 20_000, 20_001]
    assert [version.plan.timestamp_ms for version in follow(copy.path, 3)] == [
        version.plan.timestamp_ms for version in versions[3:]
    ]


@recorded
def test_in_commit_timestamps_enabled_in_the_middle(table: Table) -> None:
    table.create("id BIGINT", "SELECT id FROM range(3)")
    table.sql("ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableInCommitTimestamps' = 'true')")
    table.sql("INSERT INTO {t} SELECT id FROM range(10, 12)")
    for version in (0, 1, 2, 3):
        os.utime(table.path / "_delta_log" / f"{version:020d}.json", (1_700_000_000, 1_700_000_000 + version))
    copy = Table(table.spark, table.path.with_name("copy"))
    shutil.copytree(table.path, copy.path)
    assert table.actions(3, "commitInfo")[0]["inCommitTimestamp"] == copy.check()[3].plan.timestamp_ms


@recorded
def test_partition_values_that_need_escapes(table: Table) -> None:
    values = ", ".join(f"({at}, {literal(value)})" for at, value in enumerate((*NASTY, None)))
    table.create("id BIGINT, p STRING", f"SELECT * FROM VALUES {values}", partition="p")
    assert any("%25" in add["path"] for add in table.actions(1, "add"))
    table.sql("UPDATE {t} SET id = id + 100 WHERE id % 2 = 0")
    table.sql("DELETE FROM {t} WHERE p = 'a/b' OR p = 'a%2Fb' OR p IS NULL")
    versions = table.check()
    assert set(versions[1].table.column("p").to_pylist()) == {*NASTY, None}


@pytest.mark.parametrize("vectors", [True, False], ids=["vectors", "no vectors"])
@recorded
def test_empty_text_and_null(table: Table, vectors: bool) -> None:
    """Both are null as a partition value, and two different values in a column."""
    rows = "SELECT * FROM VALUES (1, '', 'a'), (2, NULL, ''), (3, 'x', NULL), (4, '', NULL)"
    table.create("id BIGINT, p STRING, s STRING", rows, vectors=vectors, partition="p")
    table.sql("UPDATE {t} SET s = 'changed' WHERE id = 4")
    table.sql("DELETE FROM {t} WHERE id = 1")
    table.sql("OPTIMIZE {t}")
    table.sql("RESTORE TABLE {t} TO VERSION AS OF 1")
    table.sql("DELETE FROM {t}")
    versions = table.check()
    assert rows_of(versions[1].table, METADATA) == rows_of(
        pa.table({"id": [1, 2, 3, 4], "p": [None, None, "x", None], "s": ["a", "", None, None]})
    )


@recorded
def test_typed_partition_values(table: Table) -> None:
    columns = "id BIGINT, i INT, l BIGINT, d DATE, t TIMESTAMP, n TIMESTAMP_NTZ, c DECIMAL(10,2), b BOOLEAN, "
    columns += "f DOUBLE, y BINARY"
    row = (
        "1Y, 42L, DATE'2024-02-29', TIMESTAMP'2024-02-29 12:34:56.123456', TIMESTAMP_NTZ'1969-12-31 23:59:59.5', "
        "-1.50BD, true, -0.25D, X'61'"
    )
    nulls = ", ".join(["NULL"] * 9)
    partition = "i, l, d, t, n, c, b, f, y"
    table.create(columns, f"SELECT 1, {row} UNION ALL SELECT 2, {nulls}", partition=partition)
    table.sql("UPDATE {t} SET id = id + 10")
    table.sql("DELETE FROM {t} WHERE id = 12")
    table.check()


@pytest.mark.parametrize("feed", [True, False], ids=["feed", "rewrites"])
def test_chars(table: Table, feed: bool) -> None:
    """Spark pads what it reads, so an UPDATE writes other text than INSERT did, also as a partition value."""
    nested = (
        "s STRUCT<x: CHAR(3), y: VARCHAR(3), l: ARRAY<STRUCT<z: CHAR(2)>>>, a ARRAY<CHAR(3)>, m MAP<CHAR(2), CHAR(3)>"
    )
    values = "named_struct('x', 'x', 'y', 'y', 'l', array(named_struct('z', 'é'))), array('a', NULL), map('k', '')"
    table.create(
        f"id BIGINT, c CHAR(4), v VARCHAR(4), {nested}, p CHAR(2)",
        f"SELECT id, IF(id = 0, 'é', concat('k', id)), 'v', {values}, IF(id < 2, 'p', NULL) FROM range(5)",
        feed=feed,
        vectors=feed,
        partition="p",
        properties="'delta.columnMapping.mode' = 'name'",
    )
    table.sql("UPDATE {t} SET v = 'w' WHERE id IN (0, 3)")
    table.sql("DELETE FROM {t} WHERE c = 'k1'")
    table.sql("INSERT INTO {t} (id, c, p) VALUES (9, 'k9', 'p'), (10, '', '')")
    table.sql("UPDATE {t} SET c = 'z', p = 'q' WHERE p = 'p'")
    table.sql("OPTIMIZE {t}")
    table.check(feed_from=0 if feed else None, by_spark=True)


@pytest.mark.parametrize("position", ["FIRST", "AFTER id"])
@recorded
def test_columns_added_later_are_null_in_older_files(table: Table, position: str) -> None:
    table.create("id BIGINT, s STRUCT<a: INT>", "SELECT id, named_struct('a', 1) FROM range(4)", vectors=True)
    table.sql(
        f"ALTER TABLE {{t}} ADD COLUMNS (m MAP<STRING, INT> {position}, l ARRAY<STRUCT<x: DECIMAL(5,1)>>, b BINARY, "
        "e STRUCT<f: DATE>)"
    )
    table.sql("ALTER TABLE {t} ADD COLUMNS (s.z STRING FIRST)")
    table.sql("DELETE FROM {t} WHERE id = 1")
    table.sql("UPDATE {t} SET s.z = 'z', m = map('k', 1) WHERE id = 2")
    table.sql("INSERT OVERWRITE {t} SELECT * FROM {t} WHERE id = 2")
    table.check()


@recorded
def test_overwrite_with_another_partitioning(table: Table) -> None:
    """The removed files have the old partitioning, the added ones the new."""
    table.create("id BIGINT, p STRING, q STRING", "SELECT id, IF(id = 0, NULL, 'x'), NULL FROM range(3)", partition="p")
    rows = table.spark.sql("SELECT id, 'y' AS p, IF(id = 1, NULL, 'z') AS q FROM range(3)")
    writer = rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
    writer.partitionBy("q").save(str(table.path))
    table.sql("DELETE FROM {t} WHERE id = 1")
    table.check()


@recorded
def test_replace_where_writes_change_files(table: Table) -> None:
    table.create("id BIGINT, n INT", "SELECT id, 1 FROM range(10)")
    rows = table.spark.sql("SELECT id, 2 AS n FROM range(3, 6)")
    rows.write.format("delta").mode("overwrite").option("replaceWhere", "id >= 3 AND id < 6").save(str(table.path))
    table.check()
