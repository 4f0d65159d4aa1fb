"""The tables of the Spark benchmarks: thirty columns of mixed types, written by Spark and Delta.

Each is changed in a common way: appended rows, updates with a change feed, deletion vectors without one. Rows are
computed from their numbers, so a table is the same in every run.
"""

import json
import os
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import Final
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from tailer.spark.splits import MAX_SPLIT_BYTES
from tests.bench.change_tables import scattered
from tests.bench.rewritten import SPARK_COLUMNS
from tests.support.tables.log_files import add, commit_info, metadata, parquet, protocol, write_commit

__all__ = [
    "COLUMNS",
    "append_wide",
    "claim_files",
    "claim_size",
    "delete_by_vector",
    "grow_by_links",
    "mark_by_vectors",
    "merge_with_feed",
    "update_with_feed",
]

CLAIMED_BYTES: Final = 128 * 2**20

_KINDS: Final = {
    # Columns like measurements hardly compress, columns of codes repeat a few values, and some are in between.
    "INT": ("CAST(hash(id, {n}) AS INT)", "CAST(pmod(hash(id, {n}), 1000) AS INT)"),
    "LONG": ("xxhash64(id, {n})", "id * {n}"),
    "DOUBLE": ("hash(id, {n}) / 7e3", "CAST(pmod(hash(id, {n}), 500) AS DOUBLE) / 4"),
    "PRICE": ("CAST(pmod(hash(id, {n}), 10000000) / 100 AS DECIMAL(12, 2))",),
    "TEXT": ("concat('customer ', pmod(hash(id, {n}), 5000))", "hex(xxhash64(id, {n}))"),
    "TIME": ("timestamp_micros(1700000000000000 + id * 1001 + pmod(hash(id, {n}), 1000))",),
    "DAY": ("date_add(DATE'2020-01-01', pmod(hash(id, {n}), 2000))",),
    "FLAG": ("pmod(hash(id, {n}), 3) = 0",),
}
_MIX: Final = {"INT": 6, "LONG": 4, "DOUBLE": 4, "PRICE": 3, "TEXT": 6, "TIME": 2, "DAY": 2, "FLAG": 2}
COLUMNS: Final = (
    "id",
    *(
        f"{_KINDS[kind][n % len(_KINDS[kind])].format(n=n)} AS {kind.lower()}_{n}"
        for kind, count in _MIX.items()
        for n in range(count)
    ),
)


def append_wide(spark: SparkSession, path: Path, versions: int, rows: int) -> None:
    """Append versions of `rows` new rows, in one file each."""
    for version in range(versions):
        _create(_rows(spark, version * rows, rows, 1), path, ChangeDataFeed=True)


def update_with_feed(spark: SparkSession, path: Path, rows: int, updates: int, share: int) -> None:
    """Write version 0 with `rows` rows in two files, and updates of one row in `share`, in change files."""
    _create(_rows(spark, 0, rows, 2), path, ChangeDataFeed=True, DeletionVectors=False)
    for number in range(updates):
        spark.sql(f"UPDATE delta.`{path}` SET long_1 = -id WHERE id % {share} = {number}").collect()


def merge_with_feed(spark: SparkSession, path: Path, merges: int, events: int) -> None:
    """Write a table of the twelve columns of `rewritten`, and merges of `events` changes into it, one change file each.

    Of the changes 80 % are updates, whose images lie side by side in the file, 10 % deletes and 10 % inserts.
    """
    changed = events * 9 // 10  # updated or deleted
    rows = spark.range(0, merges * changed, 1, 4).selectExpr(*SPARK_COLUMNS)
    _create(rows, path, ChangeDataFeed=True, DeletionVectors=True)
    for number in range(merges):
        new = merges * changed + number * (events - changed)
        ranges = ((number * changed, (number + 1) * changed), (new, new + events - changed))
        ids = reduce(DataFrame.union, (spark.range(first, end, 1, 1) for first, end in ranges)).coalesce(1)
        ids.selectExpr(*SPARK_COLUMNS).createOrReplaceTempView("changed")
        spark.sql(
            f"MERGE INTO delta.`{path}` AS old USING changed AS new ON old.id = new.id "
            "WHEN MATCHED AND new.id % 9 = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET old.total = -new.total "
            "WHEN NOT MATCHED THEN INSERT *"
        ).collect()


def delete_by_vector(spark: SparkSession, path: Path, rows: int, deletes: int, share: int, *, tracked: bool) -> None:
    """Write version 0 with `rows` rows in two files, and deletes of one row in `share`, by deletion vectors alone."""
    _create(_rows(spark, 0, rows, 2), path, DeletionVectors=True, RowTracking=tracked)
    for number in range(deletes):
        spark.sql(f"DELETE FROM delta.`{path}` WHERE id % {share} = {number}").collect()


def mark_by_vectors(spark: SparkSession, path: Path, versions: int, rows: int, changed: int) -> None:
    """Write eight files of the twelve columns of `rewritten`; delete in odd versions, update half as many in even ones.

    The rows are those of `scattered`, and lie in all files.
    """
    _create(spark.range(0, rows, 1, 8).selectExpr(*SPARK_COLUMNS), path, DeletionVectors=True)
    for version, (first, step) in enumerate(scattered(versions, rows, changed), 1):
        change = f"DELETE FROM delta.`{path}`" if version % 2 else f"UPDATE delta.`{path}` SET total = -1 - total"
        spark.sql(f"{change} WHERE id % {step} = {first}").collect()


def _rows(spark: SparkSession, first: int, count: int, files: int) -> DataFrame:
    return spark.range(first, first + count, 1, files).selectExpr(*COLUMNS)


def _create(rows: DataFrame, path: Path, **features: bool) -> None:
    writer = rows.write.format("delta").mode("append")
    for name, on in features.items():
        writer = writer.option(f"delta.enable{name}", str(on).lower())
    writer.save(str(path))


def grow_by_links(path: Path, sizes: Sequence[int]) -> None:
    """Append versions of as many files as `sizes` says to a table with one file, all of them links to that file.

    `path`: a table without other readers. A file with another name is another file, and no bytes are copied.
    """
    (commit,) = (path / "_delta_log").glob("*.json")
    (line,) = (line for line in commit.read_text().splitlines() if line.startswith('{"add"'))
    written = json.loads(line)["add"]
    for version, count in enumerate(sizes, 1):
        names = [f"{version}-{number}.parquet" for number in range(count)]
        for name in names:
            os.link(path / written["path"], path / name)
        write_commit(
            path, version, commit_info(operation="WRITE"), *(add(name, size=written["size"]) for name in names)
        )


def claim_files(path: Path, files: int) -> None:
    """Commit a version 0 of so many missing files of 128 MB: for planning only."""
    adds = (add(f"part-{number:05}-{uuid4()}.c000.snappy.parquet", size=CLAIMED_BYTES) for number in range(files))
    write_commit(path, 0, commit_info(operation="WRITE"), protocol(), metadata(), *adds)


def claim_size(path: Path, splits: int) -> None:
    """Commit a version 0 of one file with one row and a large size in the log: only one split has rows."""
    parquet(path / "one.parquet", pa.table({"a": pa.array([1], pa.int64())}))
    write_commit(
        path,
        0,
        commit_info(operation="WRITE"),
        protocol(),
        metadata(),
        add("one.parquet", size=splits * MAX_SPLIT_BYTES),
    )
