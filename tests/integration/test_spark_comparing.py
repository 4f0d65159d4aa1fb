"""Comparisons that all executors share leave the rows, and the positions, that one process leaves."""

import random
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import tailer.spark
from tailer.changelog.carryovers import concerns
from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.rules import PairingRules
from tailer.changelog.task_ids import renumbered
from tailer.engine.local import LocalEngine
from tailer.spark.native import comparing
from tailer.spark.native.comparing import is_shared, left_over
from tailer.spark.splits import diff_splits, file_slices, read_split
from tests.support.follow import follow
from tests.support.spark.batches import placed
from tests.support.tables.log_files import add, commit_info, metadata, parquet, protocol, remove, write_commit
from tests.support.tables.log_files import schema_string as schema_of
from tests.support.tables.mapped import Rewriting
from tests.support.tables.schema_changes import Reshaped

SEEDS: Final = range(6)
DROP: Final = PairingRules()
BY_KEY: Final = PairingRules(compute_updates=True, key=("k",))
NAN: Final = float("nan")


@pytest.fixture(autouse=True)
def shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every comparison is shared, however small."""
    monkeypatch.setattr(comparing, "SHARED_BYTES", 0)


def check(spark: SparkSession, path: Path, rules: PairingRules = DROP, first: int = 0) -> int:
    """Compare rows and positions of each version with those of one process; return how many versions were shared."""
    count = 0
    for found in follow(path, first, engine=ChangelogEngine(LocalEngine(), rules)):
        if not concerns(found.plan, rules):
            continue
        splits, alone = diff_splits(renumbered(found.plan, rules), rules)
        batches = [batch for part in alone for batch in part.rows()]
        count += sum(map(is_shared, splits))
        for split in splits:
            left = left_over(spark, split) if is_shared(split) else split
            if concerns(left.plan, left.rules):
                batches += read_split(left)
            else:
                batches += [batch for part in file_slices(left.plan) for batch in part.rows()]
        assert Counter(placed(batches)) == Counter(placed(found.batches)), f"version {found.plan.version} of {path}"
    return count


@pytest.mark.parametrize("rules", [DROP, BY_KEY], ids=["values", "key"])
@pytest.mark.parametrize("seed", SEEDS)
def test_rewritten_files(spark: SparkSession, tmp_path: Path, seed: int, rules: PairingRules) -> None:
    assert check(spark, Rewriting(tmp_path, seed).table.path, rules) > 5


@pytest.mark.parametrize("seed", SEEDS)
def test_tables_whose_columns_change(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    assert check(spark, Reshaped(tmp_path, random.Random(seed)).run(9).path) > 0


def rewritten(path: Path, before: list[pa.Table], after: list[pa.Table], **columns: Any) -> Path:
    """Write a table whose version 1 replaces some files by others."""
    write_commit(path, 0, commit_info(operation="WRITE"), protocol(), metadata(schema_of(**columns)))
    names = {
        which: [f"{which}-{at}.parquet" for at in range(len(files))]
        for which, files in (("old", before), ("new", after))
    }
    for which, files in (("old", before), ("new", after)):
        for name, rows in zip(names[which], files, strict=True):
            parquet(path / name, rows, row_group_size=300)
    sizes = {name: (path / name).stat().st_size for own in names.values() for name in own}
    write_commit(path, 1, commit_info(operation="WRITE"), *(add(name, size=sizes[name]) for name in names["old"]))
    removed = [remove(name, size=sizes[name]) for name in names["old"]]
    write_commit(
        path, 2, commit_info(operation="WRITE"), *(add(name, size=sizes[name]) for name in names["new"]), *removed
    )
    return path


def test_many_equal_rows(spark: SparkSession, tmp_path: Path) -> None:
    """Of rows that are there many times, in several files, the first deleted or the last inserted ones are left."""

    def rows(*values: tuple[str, int]) -> pa.Table:
        return pa.table({"a": [value for value, many in values for _ in range(many)]})

    before = [rows(("x", 700), ("y", 5), ("z", 1)), rows(("w", 900), ("x", 400)), rows(("v", 3), ("x", 1))]
    after = [rows(("y", 9), ("x", 1000)), rows(("y", 400), ("w", 900)), rows(("x", 50), ("u", 2), ("z", 1))]
    assert check(spark, rewritten(tmp_path, before, after, a="string")) == 1
    found = tailer.spark.changes(spark, tmp_path, start=2).groupBy("a", "_change_type").count().collect()
    assert {tuple(row) for row in found} == {
        ("x", "delete", 51),
        ("y", "insert", 404),
        ("v", "delete", 3),
        ("u", "insert", 2),
    }


def test_values_that_sql_takes_for_equal(spark: SparkSession, tmp_path: Path) -> None:
    """Minus zero is not zero, NaN is NaN; null and an empty text differ; maps are compared as lists."""
    columns = {
        "a": "double",
        "b": "string",
        "m": {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True},
    }
    kind = pa.schema([("a", pa.float64()), ("b", pa.string()), ("m", pa.map_(pa.string(), pa.int64()))])
    one = [(0.0, None, None), (NAN, "n", []), (1.0, "", [("p", 1), ("q", None)]), (2.0, "same", [("p", 1)])]
    two = [(-0.0, None, None), (NAN, "n", []), (1.0, None, [("q", None), ("p", 1)]), (2.0, "same", [("p", 1)])]

    def table(rows: list[tuple[Any, ...]]) -> pa.Table:
        return pa.table([list(values) for values in zip(*rows, strict=True)], schema=kind)

    assert check(spark, rewritten(tmp_path, [table(one)], [table(two)], **columns)) == 1
    assert tailer.spark.changes(spark, tmp_path, start=2).count() == 4


def test_a_damaged_file_ends_the_query(spark: SparkSession, tmp_path: Path) -> None:
    rows = pa.table({"a": [f"value {at}" for at in range(1000)]})
    path = rewritten(tmp_path, [rows], [rows.slice(1)], a="string")
    damaged = path / "new-0.parquet"
    data = bytearray(damaged.read_bytes())
    data[20:60] = bytes(40)
    damaged.write_bytes(data)
    with pytest.raises(PySparkException, match=r"new-0\.parquet"):
        tailer.spark.changes(spark, path, start=2).collect()
