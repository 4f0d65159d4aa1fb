"""Tables without a change feed: only changed rows are events, and no changed row is missing.

Random histories that rewrite most rows unchanged (`tests.support.histories.rewrites`) are judged version by version
with delta-rs's and Spark's snapshots: the fold of the events holds, and there are as many events as rows in which two
snapshots differ. A history written twice, with a change feed and without one, has the same events when updates are
identified by key. Histories whose columns change are those of `tests.support.oracle.recorded`.

`make nightly` continues with new seeds until `LAKE_TAILER_SOAK_VERSIONS` versions (default 5000) were checked,
beginning at a random seed, or at `LAKE_TAILER_SEED`.

On every landing: one of four shapes of histories by both tests, in this module; the rules without Spark in
`unit/changelog/test_carryovers.py`.
"""

import json
import os
import random
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from itertools import count, product
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

import tailer as lake
from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.rules import Carryovers, PairingRules
from tailer.engine.local import LocalEngine
from tailer.events import CHANGE_TYPE, COMMIT_TIMESTAMP
from tailer.plan import TASKS, Regime
from tailer.schema.changes import describe_changes
from tests.support.daemon.commands import complaints, tailer
from tests.support.follow import Followed, follow, plans, run_plan
from tests.support.histories.rewrites import (
    TRACKED,
    UNIQUE,
    RewriteHistory,
    RewriteShape,
    changes,
    events,
    with_updates,
)
from tests.support.oracle.column_identity import Schema, restate, shared
from tests.support.oracle.recorded import HISTORIES, RecordedTable, read
from tests.support.oracle.rows import (
    GONE,
    METADATA,
    Rows,
    assert_same,
    delta_rs_snapshot,
    gone_and_come,
    rows_of,
    spark_snapshot,
)
from tests.support.seeds import seeds
from tests.support.spark.table import Table, kinds, schemas_in

SEED: Final = 20261121
SIDE_BY_SIDE: Final = 2

DROP: Final = PairingRules()
KEEP: Final = PairingRules(Carryovers.KEEP)
BY_KEY: Final = PairingRules(compute_updates=True, key=("id",), skip_unchanged=True)
BY_ROW_ID: Final = replace(BY_KEY, key=())
# The fold is the same with each of these rules.
OTHERS: Final = (KEEP, BY_ROW_ID, BY_KEY, replace(BY_KEY, carryovers=Carryovers.KEEP))
# Operations that keep the ids of rewritten rows.
KEEPING_IDS: Final = ("UPDATE", "DELETE", "MERGE", "OPTIMIZE")


def shape(vectors: bool, tracked: bool, partitioned: bool, rich: bool, unique: bool) -> RewriteShape:
    """A table without a feed."""
    traits = (*([TRACKED] if tracked else []), *([UNIQUE] if unique else []))
    return RewriteShape(False, vectors, partitioned, rich, traits)


# All combinations of vectors, row tracking and partitions in pairs, and the operations on such tables. A landing has
# the first one, with and without a feed.
DONE: Final = {
    shape(vectors=True, tracked=True, partitioned=False, rich=True, unique=True): (
        "merge",
        "update to the same",
        "delete",
        "vectors on or off",
        "update",
        "merge changing nothing",
        "overwrite with some of the same",
    ),
    shape(vectors=False, tracked=False, partitioned=False, rich=True, unique=False): (
        "insert again",
        "other zeros",
        "update to the same",
        "merge",
        "overwrite with some of the same",
        "make equal",
    ),
    shape(vectors=True, tracked=False, partitioned=True, rich=False, unique=False): (
        "update",
        "merge",
        "insert again",
        "dynamic overwrite",
        "vectors on or off",
        "delete",
        "make equal",
    ),
    shape(vectors=False, tracked=True, partitioned=True, rich=False, unique=True): (
        "update",
        "merge to the same",
        "optimize",
        "merge",
        "replace where with some of the same",
        "restore",
    ),
}
FED: Final = {replace(bare, feed=True): done for bare, done in DONE.items() if UNIQUE in bare.traits}
Histories = Callable[[RewriteShape], RewriteHistory]


def paired(rules: PairingRules) -> ChangelogEngine:
    """The engine under test."""
    return ChangelogEngine(LocalEngine(), rules)


def row_count(version: Followed) -> int:
    """Return the number of events of a version."""
    return sum(table.num_rows for table in version.tables)


def check(history: RewriteHistory) -> int:
    """Judge every version of a history without a feed; return their number."""
    raw = follow(history.path)
    assert [version.plan.version for version in raw] == list(range(history.latest + 1))
    found = {rules: follow(history.path, engine=paired(rules)) for rules in (DROP, *OTHERS)}
    before = Rows()
    for at, version in enumerate(raw):
        where = history.describe(at)
        after = snapshot_rows(history, at)
        here = {rules: versions[at] for rules, versions in found.items()}
        check_fold(before, after, here.values(), where)
        assert row_count(here[DROP]) == ((before - after) + (after - before)).total(), where
        check_places(version, here, where)
        check_resumed(random.Random(f"{history.seed} {at}"), version, here[BY_KEY], where)
        before = after
    return len(raw)


def snapshot_rows(history: RewriteHistory, version: int) -> Rows:
    """Return all rows of a version: the latest from Spark, the others from the faster reader."""
    if version == history.latest:
        return spark_snapshot(history.spark, history.path, version)
    return delta_rs_snapshot(history.path, version)


def check_fold(before: Rows, after: Rows, versions: Iterable[Followed], where: str) -> None:
    """Check that the events of a version turn the previous snapshot into the next one, with any rules."""
    for version in versions:
        kept, come = gone_and_come(before, version.tables, where)
        assert_same(kept + come, after, where)


def check_places(raw: Followed, found: Mapping[PairingRules, Followed], where: str) -> None:
    """Check that positions stay, and which of several equal events remain, and which are one update."""
    tracked = any(task.tracking is not None for task in raw.plan.tasks)
    left = changes(events(run_plan(raw.plan.with_row_ids()) if tracked else raw))
    assert events(found[KEEP]) == events(raw), where
    assert events(found[DROP]) == left, where
    assert events(found[BY_KEY]) == with_updates(left, "id"), where
    assert events(found[BY_ROW_ID]) == with_updates(left), where


def check_resumed(chosen: random.Random, raw: Followed, whole: Followed, where: str) -> None:
    """Check that resuming after any row, a dropped one included, gives the remaining events."""
    if whole.positions:
        place = chosen.choice(raw.positions)
        first = whole.positions[0].task // TASKS * TASKS  # of these comparison rules
        rest = run_plan(raw.plan, paired(BY_KEY), replace(place, task=first + place.task))
        assert events(rest) == [event for event in events(whole) if event.position > place], f"after {place}, {where}"


def check_twins(on: RewriteHistory, off: RewriteHistory) -> None:
    """Compare two histories written alike: their events agree with updates by key, and by row id where rows have one.

    Without a request for updates, the feed is used unchanged. With `changes = "compare"` it is as if there was none.
    """
    assert on.story == off.story
    for key in ([], ["id"]):
        compared = lake.changes(on.path, changes="compare", compute_updates=bool(key), key=key).to_arrow()
        plain = lake.changes(off.path, compute_updates=bool(key), key=key).to_arrow()
        where = f"{on.path} compared, against {off.path}, by {key}"
        assert_same(rows_of(compared, [COMMIT_TIMESTAMP]), rows_of(plain, [COMMIT_TIMESTAMP]), where)
    for raw, left in zip(follow(on.path), follow(on.path, engine=paired(DROP)), strict=True):
        assert events(left) == events(raw), on.describe(raw.plan.version)
    for rules in (BY_KEY, *([BY_ROW_ID] if TRACKED in off.shape.traits else [])):
        fed, bare = (follow(history.path, engine=paired(rules)) for history in (on, off))
        for theirs, ours in zip(fed, bare, strict=True):
            if rules is BY_KEY or theirs.plan.operation in KEEPING_IDS:
                where = f"{rules}, {on.path} against {off.describe(ours.plan.version)}"
                assert_same(untimed(ours), untimed(theirs), where)
        assert Regime.CDC in {version.plan.regime for version in fed}
        assert Regime.CDC not in {version.plan.regime for version in bare}
        assert {"update_preimage", "update_postimage"} <= {kind for version in bare for kind in kinds(version)}


def untimed(version: Followed) -> Rows:
    """Return a version's events without the commit time."""
    return sum((rows_of(table, [COMMIT_TIMESTAMP]) for table in version.tables), Rows())


def check_recorded(recorded: RecordedTable) -> int:
    """Judge the versions of a written history without a feed; return how many delete and insert equal rows.

    Events without comparison are judged elsewhere. Of these, exactly those remain that have no equal row on the other
    side of the version. Deleted rows are compared in the columns of the version.
    """
    compared = 0
    raw, found = follow(recorded.path, recorded.first), follow(recorded.path, recorded.first, engine=paired(DROP))
    for theirs, ours in zip(raw, found, strict=True):
        at = theirs.plan.version
        if theirs.plan.feed:
            assert events(ours) == events(theirs), recorded.where(at, "feed")
            continue
        schemas = recorded.schemas.get(at - 1, recorded.schemas[at]), recorded.schemas[at]
        gone, come = sides(theirs, *schemas)
        left_gone, left_come = sides(ours, *schemas)
        assert_same(left_gone, gone - come, recorded.where(at, "deleted"))
        assert_same(left_come, come - gone, recorded.where(at, "inserted"))
        left = set(events(ours))
        assert events(ours) == [event for event in events(theirs) if event in left], recorded.where(at, "order")
        compared += bool(gone & come)
    return compared


def sides(version: Followed, before: Schema, after: Schema) -> tuple[Rows, Rows]:
    """Return a version's deleted rows, in the columns of `after`, and its inserted ones.

    A row with a value in a dropped column equals no other row.
    """
    gone, come, kept = Rows(), Rows(), shared(after, before)
    for table in version.tables:
        deleted = pc.is_in(table.column(CHANGE_TYPE), pa.array(GONE))
        for row, many in rows_of(table.filter(deleted), METADATA).items():
            (said,) = restate(Rows({row: 1}), before, after)
            lost = row not in restate(Rows({row: 1}), before, kept)
            gone[(*said, ("lost", row)) if lost else said] += many
        come += rows_of(table.filter(pc.invert(deleted)), METADATA)
    return gone, come


@pytest.fixture(scope="module")
def histories(quick_spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Histories:
    """One history of each shape, made when a test asks for it."""
    folder, operations = tmp_path_factory.mktemp("carried"), DONE | FED

    @cache
    def history(shape: RewriteShape) -> RewriteHistory:
        return RewriteHistory(quick_spark, folder / str(shape), SEED, shape).do(*operations[shape])

    return history


@pytest.mark.parametrize("shape", DONE, ids=str)
@pytest.mark.sampled(4)
def test_only_what_changed_and_all_of_it(histories: Histories, shape: RewriteShape) -> None:
    assert check(histories(shape)) >= len(DONE[shape])


@pytest.mark.parametrize("shape", FED, ids=str)
@pytest.mark.sampled(4)
def test_the_same_history_with_and_without_a_feed(histories: Histories, shape: RewriteShape) -> None:
    check_twins(histories(shape), histories(replace(shape, feed=False)))


@pytest.mark.long
def test_written_histories_in_which_columns_change(tmp_path: Path) -> None:
    compared = 0
    for archive in sorted(HISTORIES.glob("*.tar.xz")):
        compared += check_recorded(read(archive, tmp_path / archive.name))
    assert compared == 8


@pytest.mark.parametrize("tracked", [True, False], ids=["row tracking", "no row tracking"])
def test_merge_that_adds_a_column(table: Table, tracked: bool) -> None:
    properties = f"'delta.enableRowTracking' = '{str(tracked).lower()}'"
    table.create(COLUMNS, TEN_ROWS, feed=False, properties=properties)
    table.sql(
        "MERGE WITH SCHEMA EVOLUTION INTO {t} USING (SELECT id, 'new' AS name, 7 AS extra FROM range(8, 12)) AS s "
        "ON {t}.id = s.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    judged(table, {"delete": 2, "insert": 4}, {"update_preimage": 2, "update_postimage": 2, "insert": 2})


def test_overwrite_that_adds_a_column(table: Table) -> None:
    table.create(COLUMNS, TEN_ROWS, feed=False)
    rows = table.spark.read.format("delta").load(str(table.path))
    added = rows.selectExpr("id", "name", "n", "IF(id = 3, 'new', NULL) AS extra").where("id <> 5").cache()
    assert added.count() == 9
    added.write.format("delta").mode("overwrite").option("mergeSchema", "true").save(str(table.path))
    added.unpersist()
    judged(table, {"delete": 2, "insert": 1}, {"update_preimage": 1, "update_postimage": 1, "delete": 1})


def test_overwrite_that_changes_a_type(table: Table) -> None:
    table.create(COLUMNS, TEN_ROWS, feed=False)
    rows = table.spark.read.format("delta").load(str(table.path)).selectExpr("id", "name", "CAST(n AS STRING) AS n")
    rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(str(table.path))
    raw = follow(table.path)[-1]
    for rules in (DROP, BY_KEY):
        assert events(follow(table.path, engine=paired(rules))[-1]) == events(raw)
    assert kinds(raw) == {"delete": 10, "insert": 10}


def test_restore_of_a_dropped_column(table: Table) -> None:
    """A row whose file was written without the column keeps its id and commit version, with another value."""
    properties = "'delta.columnMapping.mode' = 'name', 'delta.enableRowTracking' = 'true'"
    table.create(COLUMNS, TEN_ROWS, feed=False, properties=properties)
    table.sql("ALTER TABLE {t} DROP COLUMN n")
    table.sql("DELETE FROM {t} WHERE id = 0")
    table.sql("RESTORE TABLE {t} TO VERSION AS OF 1")
    # Rows with null in the column do not change.
    judged(table, {"delete": 8, "insert": 9}, {"update_preimage": 8, "update_postimage": 8, "insert": 1}, compared=2)


MAPPED: Final = "'delta.columnMapping.mode' = 'name', 'delta.minReaderVersion' = '2', 'delta.minWriterVersion' = '5'"


def test_net_changes_where_column_mapping_is_removed(table: Table) -> None:
    """Spark rewrites every file under other physical names: columns are matched by name."""
    table.create(COLUMNS, "SELECT id, 'old', 1 FROM range(4)", feed=False, properties=MAPPED)
    table.sql("INSERT INTO {t} SELECT id, 'new', 2 FROM range(4, 6)")
    table.sql("DELETE FROM {t} WHERE id = 0")
    table.sql("ALTER TABLE {t} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'none')")
    assert [(version.plan.version, version.tables) for version in follow(table.path, 4)] == [(4, [])]
    assert describe_changes(*(plan.schema for plan in plans(table.path, 3))) == ()
    table.sql("UPDATE {t} SET n = 3 WHERE id = 5")
    table.sql("DELETE FROM {t} WHERE id = 1")
    assert net(table, 4) == [("delete", 0, 3), ("insert", 4, 2), ("insert", 5, 2)]
    assert net(table, 6) == [
        ("delete", 0, 3),
        ("delete", 1, 6),
        ("insert", 4, 2),
        ("insert", 5, 5),
    ]
    updated = net(table, 6, "--compute-updates", "--key", "id")
    assert updated == net(table, 6)


@pytest.mark.parametrize("again", [False, True], ids=["dropped", "dropped and added again"])
def test_net_changes_of_rows_that_differ_in_a_dropped_column(table: Table, again: bool) -> None:
    table.create(COLUMNS, "SELECT id, 'old', CAST(id AS INT) FROM range(4)", feed=False, properties=MAPPED)
    table.sql("UPDATE {t} SET n = 9 WHERE id = 2")
    table.sql("ALTER TABLE {t} DROP COLUMN n")
    table.sql("ALTER TABLE {t} ADD COLUMN n INT" if again else "INSERT INTO {t} SELECT 7, 'new'")
    last = table.latest
    found = [(kind, key) for kind, key, _ in net(table, last)]
    assert found == [("delete", 2), ("insert", 2), *([] if again else [("insert", 7)])]


def test_overwrite_that_drops_a_column(table: Table) -> None:
    """Rows with a value in the column become other rows."""
    table.create(COLUMNS, TEN_ROWS, feed=False)
    rows = table.spark.read.format("delta").load(str(table.path)).select("id", "name")
    rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(str(table.path))
    judged(table, {"delete": 9, "insert": 9}, {"delete": 9, "insert": 9})


def net(table: Table, last: int, *options: str) -> list[tuple[str, int, int]]:
    """Return change type, id and version of the output of `tail` from version 2 on."""
    done = tailer("tail", table.path, "--from", 2, "--to", last, "--net-changes", *options)
    assert (done.returncode, complaints(done.stderr)) == (0, [])
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    # Lines about schema changes come between the rows.
    return sorted((row["_change_type"], row["id"], row["_commit_version"]) for row in rows if "id" in row)


COLUMNS: Final = "id BIGINT, name STRING, n INT"
TEN_ROWS: Final = "SELECT id, 'old', IF(id = 4, NULL, CAST(id AS INT)) FROM range(10)"


def judged(table: Table, changed: dict[str, int], updates: dict[str, int], compared: int = 1) -> None:
    """Check the number of changes of the latest version, and of updates by key.

    `compared`: the number of versions that delete and insert equal rows, in this table without a feed.
    """
    schemas = schemas_in(table.path)
    story = [f"version {version}" for version in schemas]
    assert check_recorded(RecordedTable(table.path, "a case", story, schemas, {})) == compared
    for rules, expected in ((DROP, changed), (replace(BY_KEY, skip_unchanged=False), updates)):
        assert kinds(follow(table.path, engine=paired(rules))[-1]) == expected


@pytest.mark.nightly
def test_random_histories_for_long(quick_spark: SparkSession, tmp_path: Path) -> None:
    wanted = int(os.environ.get("LAKE_TAILER_SOAK_VERSIONS", "5000"))
    numbers = count(seeds(1).start)
    shapes = [shape(*kind) for kind in product((False, True), repeat=5)]

    def one(off: RewriteShape, seed: int) -> int:
        folder = tmp_path / str(seed)
        folder.mkdir()
        bare = RewriteHistory(quick_spark, folder / "bare", seed, off)
        bare.run(20)
        versions = check(bare)
        if UNIQUE in off.traits:
            fed = RewriteHistory(quick_spark, folder / "fed", seed, replace(off, feed=True))
            fed.run(20)
            check_twins(fed, bare)
        shutil.rmtree(folder)
        return versions

    def made() -> Iterator[int]:
        with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            while True:
                yield from pool.map(one, shapes, numbers)

    checked = 0
    for versions in made():
        checked += versions
        print(f"{checked} versions checked")
        if checked >= wanted:
            return
