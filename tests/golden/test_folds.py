"""Golden tables by their rows: the latest ones, and the fold of our changes over another reader's snapshots."""

import shutil
from pathlib import Path
from typing import Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tailer.plan import Regime
from tests.support.follow import follow, snapshot
from tests.support.oracle.rows import METADATA, Rows, assert_same, delta_rs_snapshot, fold, rows_of, spark_snapshot
from tests.support.spark.table import Table
from tests.support.tables.golden import expected_snapshot, golden, golden_delta

ANSWERED: Final = (
    "basic-with-inserts-deletes-checkpoint",
    "basic-with-inserts-overwrite-restore",
    "basic-with-inserts-updates",
    "corrupted-last-checkpoint-kernel",
    "data-reader-nested-struct",
    "data-reader-timestamp_ntz",
    "data-reader-timestamp_ntz-name-mode",
    "decimal-various-scale-precision",
    "deltalog-getChanges",
    "dv-partitioned-with-checkpoint",
    "kernel-timestamp-int96",
    "log-replay-dv-key-cases",
    "log-replay-special-characters",
    "log-replay-special-characters-a",
    "multi-part-checkpoint",
    "only-checkpoint-files",
    "parquet-all-types",
    "time-travel-schema-changes-b",
    "v2-checkpoint-json",
)
FOLDED: Final = (
    "app-txn-checkpoint",
    "basic-dv-with-checkpoint",
    "basic-with-inserts-deletes-checkpoint",
    "basic-with-inserts-overwrite-restore",
    "basic-with-inserts-updates",
    "cdc_ict_table",
    "cdf-column-mapping-id-mode",
    "cdf-column-mapping-name-mode",
    "cdf-table",
    "cdf-table-backtick-column-names",
    "cdf-table-data-change",
    "cdf-table-delete-conditional-all-rows",
    "cdf-table-delete-unconditional",
    "cdf-table-non-partitioned",
    "cdf-table-with-cdc-and-dvs",
    "cdf-table-with-dv",
    "corrupted-last-checkpoint-kernel",
    "data-reader-nested-struct",
    "data-reader-partition-values",
    "data-reader-timestamp_ntz",
    "data-reader-timestamp_ntz-name-mode",
    "decimal-various-scale-precision",
    "dv-partitioned-with-checkpoint",
    "kernel-timestamp-int96",
    "log-replay-dv-key-cases",
    "multi-part-checkpoint",
    "only-checkpoint-files",
    "parquet-all-types",
    "partitioned_with_materialize_feature",
    "simple_table_with_cdc",
    "time-travel-schema-changes-b",
    "timestamp-partitioned-table",
    "v2-checkpoint-json",
    "v2-checkpoints-json-with-sidecars",
    "v2-checkpoints-parquet-without-sidecars",
    "v2-classic-checkpoint-parquet",
    "void-column",
)


def latest_rows(path: Path) -> Rows:
    """Read the newest rows of a table."""
    return rows_of(snapshot(path).table, METADATA)


def check_fold(path: Path) -> None:
    """Check that our changes turn each of delta-rs's snapshots into the next, and that our last snapshot equals its."""
    before: Rows = Rows()
    for version in follow(path):
        at = version.plan.version
        where = f"{path.name} version {at} ({version.plan.operation})"
        after = delta_rs_snapshot(path, at)
        assert_same(fold(before, version.table, where), after, where)
        before = after
    assert_same(latest_rows(path), before, f"{path.name}: the latest snapshot")


@pytest.mark.parametrize("name", ANSWERED)
def test_latest_rows_are_the_expected_ones(name: str) -> None:
    files = sorted(expected_snapshot(name).glob("*.parquet"))
    answer = pa.concat_tables([pq.read_table(file) for file in files], promote_options="default")
    assert_same(latest_rows(golden_delta(name)), rows_of(answer), name)


def test_every_known_snapshot_is_tested() -> None:
    answers = {path.name.removesuffix(".expected-snapshot") for path in golden("delta").glob("*.expected-snapshot")}
    assert answers == {*ANSWERED, "data-reader-partition-values"}


def test_a_partition_timestamp_without_a_zone_is_utc() -> None:
    """The expected rows were written seven hours behind UTC; all other values must match."""
    name = "data-reader-partition-values"
    files = sorted(expected_snapshot(name).glob("*.parquet"))
    answer = pa.concat_tables([pq.read_table(file) for file in files])
    at = answer.schema.get_field_index("as_timestamp")
    utc = [None if value is None else value - 7 * 3_600_000_000 for value in _micros(answer.column(at))]
    moved = pa.array(utc, pa.int64()).cast(pa.timestamp("us", "UTC"))
    assert_same(latest_rows(golden_delta(name)), rows_of(answer.set_column(at, "as_timestamp", moved)), name)


def _micros(column: pa.ChunkedArray) -> list[int | None]:
    return list(column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).to_pylist())


@pytest.mark.parametrize("name", FOLDED)
def test_fold_at_every_version(name: str) -> None:
    check_fold(golden_delta(name))


def test_timestamps_at_the_edge_of_the_calendar(spark: SparkSession) -> None:
    """delta-rs overflows on these, so Spark is the oracle."""
    path = golden_delta("table_with_edge_timestamps")
    (version,) = follow(path)
    expected = spark_snapshot(spark, path, 0)
    assert_same(rows_of(version.table, METADATA), expected, path.name)
    assert_same(latest_rows(path), expected, path.name)


def test_types_widened_at_every_depth(spark: SparkSession) -> None:
    """delta-rs refuses type widening, so Spark is the oracle: from an int to a long in a struct, a map and an array."""
    table = Table(spark, golden_delta("type-widening-nested"))
    versions = table.check(feed_from=None)
    assert [len(version.table) for version in versions] == [1, 0, 1]


def test_variants_on_every_level(spark: SparkSession) -> None:
    """Variants of a preview of the feature, in structs, arrays and maps."""
    assert Table(spark, golden_delta("unshredded-variant")).check(feed_from=None, by_spark=True)


def test_rename_between_versions_keeps_rows() -> None:
    """Version 3 of this table renames `id` to `newid`; no row changes, and later ones have the new name."""
    path = golden_delta("table_with_partitioning_mapping")
    versions = follow(path)
    before: Rows = Rows()
    for version in versions[:3]:
        before = fold(before, version.table, f"version {version.plan.version}")
        assert_same(before, delta_rs_snapshot(path, version.plan.version), f"version {version.plan.version}")
    assert versions[3].plan.regime is Regime.NONE
    renamed = delta_rs_snapshot(path, 3)
    assert_same(fold(renamed, versions[4].table, "version 4"), delta_rs_snapshot(path, 4), "version 4")


def test_hundreds_of_vectors_in_shared_files(tmp_path: Path) -> None:
    """The writer prefixed the names of its vector files with a name of its test suite, which is removed here."""
    path = tmp_path / "table-with-dv-large"
    shutil.copytree(golden_delta(path.name), path)
    for vectors in path.glob("*.bin"):
        vectors.rename(vectors.with_name(vectors.name.removeprefix("test%dv%prefix-")))
    check_fold(path)


def test_absolute_vector_path_with_special_characters(tmp_path: Path) -> None:
    path = tmp_path / "table-with-dv-special-char"
    shutil.copytree(golden_delta(path.name), path)
    commit = path / "_delta_log" / f"{0:020d}.json"
    folder = quote(str(path / "folder&with%special char"))
    commit.write_text(commit.read_text().replace("{{FOLDER_WITH_SPECIAL_CHAR}}", folder))
    (version,) = follow(path)
    assert len(version.table) == 5
    check_fold(path)
