"""Comparisons that all executors share leave the rows, and the positions, that one process leaves.

On every landing: the same with keys and both images, and net changes by values, in this module.
"""

import logging
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import anyio
import pyarrow as pa
import pytest
from anyio import to_thread
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import tailer.spark
from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.equal_rows.comparable_values import MAX_ROWS, Wanted
from tailer.changelog.equal_rows.fingerprints import BUCKETS, Fingerprints
from tailer.changelog.equal_rows.row_index import RowIndex
from tailer.changelog.rules import PairingRules, concerns, renumbered
from tailer.engine.local import LocalEngine
from tailer.events import CHANGE_TYPE, METADATA_FIELDS, ChangeBatch, ChangeType
from tailer.files.row_bitmaps import Bitmaps
from tailer.plan import ChangePlan
from tailer.spark.engine.engine import SparkEngine
from tailer.spark.engine.executors import Executors
from tailer.spark.native import comparing, equal_rows
from tailer.spark.native.changes import frame
from tailer.spark.native.comparing import SparkComparisons, compared
from tailer.spark.native.shared_index import FingerprintSums, bitmaps
from tailer.spark.source.admission import Work
from tailer.spark.source.views import TypedView
from tailer.spark.splits import NetChangesSplit, diff_splits, read_split
from tests.support.follow import follow, plans
from tests.support.oracle.rows import assert_same, rows_of
from tests.support.seeds import seeds
from tests.support.spark.batches import placed
from tests.support.tables.log_files import add, commit_info, metadata, parquet, protocol, remove, write_commit
from tests.support.tables.log_files import schema_string as schema_of
from tests.support.tables.mapped import Rewriting
from tests.support.tables.schema_changes import Reshaped

SEEDS: Final = seeds(1)
DROP: Final = PairingRules()
BY_KEY: Final = PairingRules(compute_updates=True, key=("k",))
UNCHANGED: Final = PairingRules(compute_updates=True, key=("k",), skip_unchanged=True)
NULL_KEYS: Final = PairingRules(compute_updates=True, key=("k",), null_keys=True)
Row = tuple[int, int, bool]
NAN: Final = float("nan")


@pytest.fixture(autouse=True)
def shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every comparison is shared, however small."""
    monkeypatch.setattr(comparing, "SHARED_BYTES", 0)


@pytest.fixture(params=[0, comparing.FEW_ROWS], ids=["all by Spark", "few rows here"])
def few_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, Spark answers all queries; else those about few rows are answered in this process."""
    monkeypatch.setattr(comparing, "FEW_ROWS", request.param)


def check(spark: SparkSession, path: Path) -> int:
    """Compare rows and positions of each version with those of one process; return how many versions were compared."""
    count = 0
    for found in follow(path, engine=ChangelogEngine(LocalEngine(), DROP)):
        if not concerns(found.plan, DROP):
            continue
        count += 1
        splits, alone = diff_splits(renumbered(found.plan, DROP), DROP)
        slices = [*alone, *(part for split in splits for part in compared(spark, split).slices)]
        batches = [batch for part in slices for batch in part.rows()]
        assert Counter(placed(batches)) == Counter(placed(found.batches)), f"version {found.plan.version} of {path}"
    return count


@pytest.mark.usefixtures("few_rows")
@pytest.mark.nightly
def test_rewritten_files_by_their_values(spark: SparkSession, tmp_path: Path) -> None:
    assert check(spark, Rewriting(tmp_path, 0).table.path) > 5


@pytest.mark.usefixtures("few_rows")
@pytest.mark.parametrize(
    ("seed", "rules"), list(enumerate([BY_KEY, UNCHANGED, NULL_KEYS], 1)), ids=["key", "unchanged", "null keys"]
)
@pytest.mark.sampled(6)
def test_both_images_of_an_update_have_one_place(
    spark: SparkSession, tmp_path: Path, seed: int, rules: PairingRules
) -> None:
    """As in one process, where a preimage comes right before its postimage."""
    updates, before = 0, kept_frames(spark)
    for found in follow(Rewriting(tmp_path, seed).table.path):
        if not concerns(found.plan, rules):
            continue
        splits, _ = diff_splits(renumbered(found.plan, rules), rules)
        view = TypedView(found.plan.schema, (), since=found.plan.version, positions=True)
        expected = [rows for split in splits for batch in read_split(split) for rows in view.rows(batch)]
        with ExitStack() as kept:
            here = frame(spark, "", view, Work(tuple(splits), ()), kept).toArrow()
        assert kept_frames(spark) <= before
        assert_same(rows_of(here), rows_of(pa.Table.from_batches(expected, here.schema)), f"{found.plan.version}")
        updates += sum(row == ChangeType.UPDATE_PREIMAGE.value for row in here[CHANGE_TYPE].to_pylist())
    assert updates > 9


def kept_frames(spark: SparkSession) -> int:
    """Return how many frames executors keep."""
    return int(spark.sparkContext._jsc.getPersistentRDDs().size())


@pytest.mark.usefixtures("few_rows")
@pytest.mark.parametrize(("seed", "rules"), list(enumerate([DROP, BY_KEY])), ids=["values", "key"])
@pytest.mark.sampled(4)
def test_net_changes(spark: SparkSession, tmp_path: Path, seed: int, rules: PairingRules) -> None:
    path = Rewriting(tmp_path, seed).table.path
    versions = [found.plan for found in follow(path)]
    for first in (0, len(versions) // 2):
        split = NetChangesSplit(tuple(versions[first:]), rules)
        here = Counter(placed(read_split(split)))
        assert Counter(placed(batch for part in compared(spark, split).slices for batch in part.rows())) == here


@pytest.fixture
def executors(spark: SparkSession) -> Iterator[Executors]:
    """Executors of the session, as the daemon uses them."""
    found = Executors(spark)
    yield found
    found.close()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("rules", [UNCHANGED, DROP], ids=["unchanged", "values"])
def test_the_engine_of_the_daemon(
    spark: SparkSession, executors: Executors, tmp_path: Path, rules: PairingRules
) -> None:
    """Rows come in the order of one process, preimages beside their postimages."""
    path = Rewriting(tmp_path, 7).table.path
    engine = ChangelogEngine(SparkEngine(lambda: executors), rules, shared=SparkComparisons(lambda: spark))
    for here, there in zip(
        follow(path, engine=ChangelogEngine(LocalEngine(), rules)), follow(path, engine=engine), strict=True
    ):
        assert list(placed(there.batches)) == list(placed(here.batches))


def test_a_comparison_that_spark_gives_up(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The daemon compares by itself; a query has one executor compare."""

    def given_up(_sums: DataFrame) -> DataFrame:
        raise PySparkException("all executors are gone")

    monkeypatch.setattr(equal_rows, "uneven", given_up)
    path = Rewriting(tmp_path, 8).table.path
    engine = ChangelogEngine(LocalEngine(), BY_KEY, shared=SparkComparisons(lambda: spark))
    here = follow(path, engine=ChangelogEngine(LocalEngine(), BY_KEY))
    with caplog.at_level(logging.WARNING):
        there = follow(path, engine=engine)
        rows = tailer.spark.changes(spark, path, computeUpdates=True, key=["k"]).count()
    assert [list(placed(each.batches)) for each in there] == [list(placed(each.batches)) for each in here]
    assert rows == sum(len(batch) for each in here for batch in each.batches)
    assert "all executors are gone; this process compares version" in caplog.text
    assert "one executor compares version" in caplog.text


def test_a_stopped_comparison_stops_its_jobs(spark: SparkSession, tmp_path: Path) -> None:
    columns = pa.table(
        {"a": pa.array(range(2_000_000)), "b": pa.array([f"text {at % 1000}" for at in range(2_000_000)])}
    )
    path = rewritten(tmp_path, [columns], [columns.slice(1)], a="long", b="string")
    tracker = spark.sparkContext.statusTracker()
    (plan,) = plans(path, 2)
    engine = ChangelogEngine(LocalEngine(), DROP, shared=SparkComparisons(lambda: spark))

    def wait_for_a_job() -> None:
        while not tracker.getActiveJobsIds():
            time.sleep(0.01)

    async def stop() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(_run, engine, plan)
            await to_thread.run_sync(wait_for_a_job)
            group.cancel_scope.cancel()

    anyio.run(stop)
    assert not tracker.getActiveJobsIds()


async def _run(engine: ChangelogEngine, plan: ChangePlan) -> None:
    async with engine.run([plan]) as batches:
        async for _ in batches:
            pytest.fail("the comparison was to be stopped")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.sampled(3)
def test_tables_whose_columns_change(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    assert check(spark, Reshaped(tmp_path, random.Random(seed)).run(9).path) > 0


@pytest.mark.parametrize("seed", seeds(2))
@pytest.mark.sampled(3)
def test_queries(spark: SparkSession, seed: int) -> None:
    """Equal rows in any number, of any tasks and sides, against the index of one process."""
    chance = random.Random(seed)
    different = chance.choice([3, 40, 4000])
    rows: list[Row] = []
    for task in range(6):
        for at in range(chance.choice([0, 1, 30, 600])):
            deleted = chance.random() < 0.5 if task == 2 else task < 2
            rows.append((chance.randrange(different), task * MAX_ROWS + 3 * at, deleted))
    columns = "high long, low long, address long, deleted boolean"
    # Both halves must count.
    made = spark.createDataFrame([(value // 2, value % 2, *rest) for value, *rest in rows], columns)
    frame = made.repartition(3).persist()
    with index_of(rows) as index:
        uneven = equal_rows.counted(frame).where("all_deleted <> all_inserted")
        one_sided = uneven.where(f"NOT ({equal_rows.BOTH_SIDES})")
        left = equal_rows.ends(one_sided).union(equal_rows.of_fingerprints(frame, one_sided))
        assert bits(left.union(equal_rows.first_or_last(frame, uneven))) == filled(index.unmatched())
        others = equal_rows.counted(frame).where(f"NOT ({equal_rows.SINGLE})")
        left = equal_rows.ends(others).union(equal_rows.of_fingerprints(frame, others))
        assert bits(left) == filled(index.unmatched_singles())
        repeated = [each for each in uneven.collect() if max(each["all_deleted"], each["all_inserted"]) > 1]
        mixed = sum(min(each["all_deleted"], each["all_inserted"]) > 0 for each in uneven.collect())
        many = sum(min(each["all_deleted"], each["all_inserted"]) == 0 for each in repeated)
        assert equal_rows.tally(uneven) == (many, mixed)
    counts = equal_rows.counted(frame).where(equal_rows.BOTH_SIDES)
    by_number = equal_rows.paired_singles(counts).union(equal_rows.paired_many(frame, counts))
    for in_turn, paired in ((False, by_number), (True, equal_rows.paired_in_turn(frame))):
        with index_of(rows) as index:
            deleted_rows, inserted_rows, _ = index.pair(in_turn)
            assert bits(paired.selectExpr("deleted AS address")) == filled(deleted_rows)
            assert bits(paired.selectExpr("inserted AS address")) == filled(inserted_rows)
            partners = sorted(tuple(row) for row in paired.select("deleted", "inserted").collect())
            order = sorted(inserted for _, inserted in partners)
            ranks = [rank for batch in index.partner_ranks() for rank in batch["rank"].to_pylist()]
            assert ranks == [order.index(inserted) for _, inserted in partners]
    frame.unpersist()


@dataclass
class Batches:
    """Batches of one source, in place of a split."""

    found: list[ChangeBatch]

    def batches(self) -> Iterator[tuple[int, ChangeBatch]]:
        """Yield them with the number of the source."""
        return ((3, batch) for batch in self.found)


def test_kept_rows_and_those_in_some_buckets(spark: SparkSession) -> None:
    """The rows that executors keep, many in each, are those of `Fingerprints`, whether all or some are wanted."""
    found = []
    for first in range(0, 3000, 1000):
        kinds = pa.array(["delete" if at % 3 else "insert" for at in range(1000)])
        metadata = [kinds, *(pa.nulls(1000, field.type) for field in METADATA_FIELDS[1:])]
        names = ["value", *(field.name for field in METADATA_FIELDS)]
        rows = pa.RecordBatch.from_arrays([pa.array(range(first, first + 1000), pa.int64()), *metadata], names)
        found.append(ChangeBatch("id", 1, 7, rows, pa.array(range(first, first + 1000), pa.int64())))
    fingerprints, wanted = Fingerprints("a salt"), Wanted(tuple(ChangeType))
    split: Any = Batches(found)
    every = pa.Table.from_batches(fingerprints.rows(split.batches(), wanted, {}))
    packed = pa.Table.from_batches(FingerprintSums(fingerprints, wanted).read(split))
    unpacked = equal_rows.unpacked(spark.createDataFrame(packed))
    assert unpacked.toArrow().sort_by("address").to_pylist() == every.to_pylist()
    some = {low % BUCKETS for low in every["low"].to_pylist()[::7]}
    buckets = spark.createDataFrame(pa.table({"bucket": pa.array(some, pa.int32())}))
    expected = [row for row in every.to_pylist() if row["low"] % BUCKETS in some]
    assert 0 < len(expected) < len(every)
    assert equal_rows.in_buckets(unpacked, buckets).toArrow().sort_by("address").to_pylist() == expected


@contextmanager
def index_of(rows: list[Row]) -> Iterator[RowIndex]:
    """Index rows: a value, an address, and whether it is deleted."""
    index = RowIndex()
    index.begin()
    for task in sorted({address // MAX_ROWS for _, address, _ in rows}):
        own = [(value, address % MAX_ROWS, gone) for value, address, gone in rows if address // MAX_ROWS == task]
        kinds = pa.array(["delete" if gone else "insert" for *_, gone in own])
        metadata = [kinds, *(pa.nulls(len(own), field.type) for field in METADATA_FIELDS[1:])]
        names = ["value", *(field.name for field in METADATA_FIELDS)]
        batch = pa.RecordBatch.from_arrays([pa.array([value for value, *_ in own], pa.int64()), *metadata], names)
        places = pa.array([place for _, place, _ in own], pa.int64())
        index.add([(task, iter([ChangeBatch("id", 1, task, batch, places)]))], tuple(ChangeType))
    yield index
    index.close()


def bits(addresses: DataFrame) -> dict[int, list[int]]:
    """Return the positions of each task."""
    found: dict[int, list[int]] = {}
    for row in sorted(addresses.collect()):
        found.setdefault(row["address"] // MAX_ROWS, []).append(row["address"] % MAX_ROWS)
    assert filled(bitmaps(addresses)) == found
    return found


def filled(found: Bitmaps) -> dict[int, list[int]]:
    return {task: list(rows) for task, rows in found.items() if rows}


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
    """Minus zero is not zero, NaN is NaN; null and an empty text differ; the order of a map's entries is nothing."""
    columns = {
        "a": "double",
        "b": "string",
        "m": {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True},
    }
    kind = pa.schema([("a", pa.float64()), ("b", pa.string()), ("m", pa.map_(pa.string(), pa.int64()))])
    one = [(0.0, None, None), (NAN, "n", []), (1.0, "", [("p", 1), ("q", None)]), (2.0, "same", [("p", 1)])]
    two = [(-0.0, None, None), (NAN, "n", []), (1.0, None, [("q", None), ("p", 1)]), (2.0, "same", [("p", 1)])]
    one.append((3.0, "moved", [("p", 1), ("q", None)]))
    two.append((3.0, "moved", [("q", None), ("p", 1)]))

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
