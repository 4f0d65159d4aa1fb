"""Conditions and projections on Spark: recorded histories, their versions with random texts, on every path.

The paths: the engine of the daemon on executors; `tailer.spark.changes` and the data source as a batch; streams of
`tailer.spark.follow` and of the data source. On the last four, Spark makes the projection. All are judged by the fold,
as without Spark in `test_where`.

On every landing: one history of each test; all of them without Spark in `property/test_where.py`.
"""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import write_deltalake
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import tailer
import tailer.spark
from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.rules import PairingRules
from tailer.engine import Engine
from tailer.errors import SchemaChanged
from tailer.events import COMMIT_VERSION
from tailer.pipeline.policy import Policy
from tailer.plan import ChangePlan, Regime
from tailer.spark.engine.engine import SparkEngine
from tailer.spark.engine.executors import Executors
from tests.support.follow import plans, run_plan
from tests.support.oracle.column_identity import restate
from tests.support.oracle.conditions import comparable_columns, random_condition
from tests.support.oracle.projections import Shape, random_projection
from tests.support.oracle.recorded import CASES_DATA, HISTORIES, RecordedTable, read
from tests.support.oracle.rows import METADATA, collected, rows_of
from tests.support.seeds import repeats

# In the first, the feed is switched, columns come, go, get other names and wider types; in the second are Variants.
ON_LANDING: Final = ("11", "mixed_shredding_vectors-feed")
TABLES: Final = {
    archive.name.removesuffix(".tar.xz").removesuffix(".1"): archive
    for archive in sorted([*HISTORIES.glob("*.tar.xz"), *CASES_DATA.glob("mixed_shredding_*.tar.xz")])
}
Deliver: TypeAlias = Callable[[DataFrame, int], None]

histories = pytest.mark.parametrize(
    "archive",
    [
        pytest.param(archive, id=name, marks=[] if name in ON_LANDING else pytest.mark.nightly)
        for name, archive in TABLES.items()
    ],
)


@pytest.fixture(scope="module")
def engine(spark: SparkSession) -> Iterator[Engine]:
    """An engine on the executors of the session, which compares rewritten files."""
    executors = Executors(spark)
    yield ChangelogEngine(SparkEngine(lambda: executors), PairingRules(compute_updates=True))
    executors.close()


def shaped(recorded: RecordedTable, first: int, last: int, chance: random.Random, *, star: bool) -> Shape | None:
    """Return random texts over the columns that are the same from before the version `first` to `last`, if any are."""
    columns = comparable_columns(recorded.schemas[first - 1], recorded.schemas[last])
    rows = {row for at in range(first - 1, last + 1) for row in rows_of(recorded.answers[at].snapshot)}
    values = sorted(rows, key=repr)
    if not columns:
        return None
    projection = random_projection(chance, columns, values, star=star)
    return Shape(random_condition(chance, columns, values), projection)


def versions(recorded: RecordedTable) -> list[ChangePlan]:
    """Return the plans that the fold can judge: a restored column brings back values that no event reports."""
    return [plan for plan in plans(recorded.path, recorded.first + 1) if plan.operation != "RESTORE"]


@histories
def test_versions_by_executors(engine: Engine, archive: Path, tmp_path: Path) -> None:
    recorded, chance, judged = read(archive, tmp_path), random.Random(archive.name), 0
    found = versions(recorded)
    for plan in chance.sample(found, min(len(found), repeats(12))):
        at = plan.version
        shape = shaped(recorded, at, at, chance, star=True)
        old, new = recorded.schemas[at - 1], recorded.schemas[at]
        before = rows_of(recorded.answers[at - 1].snapshot)
        deleted = new if plan.regime is Regime.CDC else old
        if shape is None or (deleted is old and restate(before, old, new) != before):
            continue  # updates of such a version have its columns in both images
        policy = Policy(where=shape.wanted.text, select=", ".join(shape.projection.texts))
        shape.judge(recorded, at, deleted, run_plan(policy.shape(plan), engine).tables, "executors")
        judged += 1
    assert judged


def spans(recorded: RecordedTable) -> list[range]:
    """Return runs of versions with the same columns, the first of which may have changed them."""
    found: list[range] = []
    for at in (plan.version for plan in versions(recorded)):
        if found and found[-1].stop == at and recorded.schemas[at - 1] == recorded.schemas[at]:
            found[-1] = range(found[-1].start, at + 1)
        else:
            found.append(range(at, at + 1))
    return found


@dataclass
class Reading:
    """Versions of a table that Spark reads and projects."""

    spark: SparkSession
    recorded: RecordedTable
    span: range
    shape: Shape

    def judge_batches(self) -> None:
        """Judge them as a batch, unless the first version changes types, for which rows before it are refused."""
        first, last, where = self.span[0], self.span[-1], self.shape.wanted.text
        path, schemas = self.recorded.path, self.recorded.schemas
        source = self.spark.read.format("tailer").options(startingVersion=first, endingVersion=last, where=where)
        ways: dict[str, Callable[[], DataFrame]] = {
            "tailer.spark.changes": lambda: tailer.spark.changes(self.spark, path, start=first, end=last, where=where),
            "data source": lambda: source.load(str(path)),
        }
        for way, frame in ways.items():
            try:
                found = self._project(frame())
            except (SchemaChanged, PySparkException) as error:
                if "SchemaChanged" in repr(error) and schemas[first - 1] != schemas[first]:
                    continue
                raise
            self._judge(found, way)

    def judge_streams(self, limit: int, folder: Path) -> None:
        """Judge them as streams, with checkpoints in `folder`. `limit`: on the files of a micro-batch."""
        first, last, path = self.span[0], self.span[-1], self.recorded.path
        options: dict[str, str | int] = {"where": self.shape.wanted.text, "maxFilesPerTrigger": limit}
        source = self.spark.readStream.format("tailer").options(startingVersion=first, endingVersion=last, **options)
        ways: dict[str, Callable[[Deliver], DataStreamWriter]] = {
            "tailer.spark.follow": lambda deliver: tailer.spark.follow(
                self.spark, path, deliver, start=first, end=last, **options
            ),
            "stream": source.load(str(path)).writeStream.foreachBatch,
        }
        for way, stream in ways.items():
            batches: list[pa.Table] = []

            def deliver(rows: DataFrame, _: int, batches: list[pa.Table] = batches) -> None:
                batches.append(self._project(rows))

            query = stream(deliver).option("checkpointLocation", str(folder / way))
            query.trigger(availableNow=True).start().awaitTermination()
            self._judge(pa.concat_tables(batches), way)

    def _project(self, frame: DataFrame) -> pa.Table:
        return collected(frame.selectExpr(*self.shape.projection.texts, *METADATA))

    def _judge(self, found: pa.Table, way: str) -> None:
        """Judge rows that all have the columns of the last version, version by version."""
        for at in self.span:
            own = found.filter(pc.equal(found[COMMIT_VERSION], at))
            self.shape.judge(self.recorded, at, self.recorded.schemas[at], [own], way)


@histories
def test_versions_as_frames_of_spark(spark: SparkSession, archive: Path, tmp_path: Path) -> None:
    """Some runs of versions with the same columns as batches, and the longest as streams."""
    tailer.spark.register(spark)
    recorded, chance = read(archive, tmp_path), random.Random(archive.name)
    found = spans(recorded)
    longest = max(found, key=len)
    for span in {longest, *chance.sample(found, min(len(found), repeats(3)))}:
        shape = shaped(recorded, span[0], span[-1], chance, star=False)
        if shape is not None:
            reading = Reading(spark, recorded, span, shape)
            reading.judge_batches()
            if span == longest:
                reading.judge_streams(chance.randint(2, 9), tmp_path)


@pytest.mark.parametrize(("where", "wanted"), [("1 = 1", True), ("NULL", False), ("1 = 2", False)])
def test_constants_by_executors(engine: Engine, where: str, wanted: bool, tmp_path: Path) -> None:
    recorded = read(CASES_DATA / "replace_where_writes_change_files.1.tar.xz", tmp_path)
    for plan in plans(recorded.path, 1):
        whole, found = (
            sum(map(len, run_plan(each, engine).tables)) for each in (plan, Policy(where=where).shape(plan))
        )
        assert found == (whole if wanted else 0)


def test_rows_with_nan_that_statistics_leave_out(spark: SparkSession, tmp_path: Path) -> None:
    """Deliver a row that Spark's SQL wants, and that Spark finds only if it skips nothing by statistics."""
    path, where = tmp_path / "table", "ratio > 12.43"
    write_deltalake(path, pa.table({"ratio": [1.5, float("nan")]}))
    (row,) = (row for batch in tailer.changes(path, start=0, where=where) for row in batch.to_pylist())
    assert math.isnan(row["ratio"])
    found = {}
    for skips_files in ("true", "false"):
        for skips_groups in ("true", "false"):
            session = spark.newSession()
            session.conf.set("spark.databricks.delta.stats.skipping", skips_files)
            session.conf.set("spark.sql.parquet.filterPushdown", skips_groups)
            found[skips_files, skips_groups] = session.read.format("delta").load(str(path)).where(where).count()
    assert found == {("true", "true"): 0, ("true", "false"): 0, ("false", "true"): 0, ("false", "false"): 1}
