"""Random histories in every way that Spark reads changes: all give the rows of `LocalEngine`.

The ways: splits as executors read them, the DataFrame of Spark's own reader, and such DataFrames of any micro-batches.
Half of the histories have change files, deletion vectors and overwritten tables; in the other half files are rewritten
without a feed, and rows are compared by all pairing rules.
"""

import random
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

import tailer
import tailer.spark
from tailer.spark.native import comparing
from tests.support.histories.long_history import LongHistory
from tests.support.oracle.rows import Rows, assert_same, rows_of
from tests.support.spark.follow_query import FollowQuery
from tests.support.spark.queries import Checkpoint, read_batch, rows_of_all
from tests.support.tables.mapped import Rewriting

pytestmark = pytest.mark.spark

SEEDS: Final = range(100)
AT_ONCE: Final = 10
COMMITS: Final = 9
RULES: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"carryovers": "keep"},
    {"computeUpdates": True, "key": ["k"]},
    {"netChanges": True, "computeUpdates": True, "key": ["k"]},
    {"netChanges": True},
)
NAMES: Final = {"computeUpdates": "compute_updates", "netChanges": "net"}

blocks = pytest.mark.parametrize("first", SEEDS[::AT_ONCE])


def expected(path: Path, first: int, last: int, options: dict[str, Any]) -> Rows:
    """Return the rows that threads of one process read."""
    given = {NAMES.get(name, name): value for name, value in options.items()}
    return rows_of(tailer.changes(path, start=first, end=last, **given).to_arrow())


def check(spark: SparkSession, path: Path, last: int, chance: random.Random, options: dict[str, Any]) -> None:
    """Compare all ways, from a random version on."""
    first = chance.randint(0, last)
    wanted, title = expected(path, first, last, options), f"{path} from {first} to {last}, {options}"
    texts = {name: ",".join(value) if isinstance(value, list) else value for name, value in options.items()}
    given = {"path": path, "startingVersion": first, "endingVersion": last, **texts}
    assert_same(rows_of(read_batch(**given)), wanted, f"executors: {title}")
    native = tailer.spark.changes(spark, path, start=first, end=last, **options)
    assert_same(rows_of(native.toArrow()), wanted, f"native: {title}")
    if "netChanges" in options:
        return  # Those of a micro-batch are others than those of all.
    checkpoint = Checkpoint()
    limits = {"maxFilesPerTrigger": chance.randint(1, 12), "maxRowsPerTrigger": chance.randint(20, 300)}
    assert FollowQuery(spark, checkpoint, **given, **limits).run() is None
    assert_same(rows_of(rows_of_all(checkpoint)), wanted, f"followed: {title}, {limits}")


@blocks
@pytest.mark.sampled(10)
def test_histories_with_a_feed_and_vectors(spark: SparkSession, first: int, tmp_path: Path) -> None:
    for seed in SEEDS[first : first + AT_ONCE]:
        history, chance = LongHistory(tmp_path / str(seed), seed=seed, length=COMMITS), random.Random(seed)
        history.publish(history.length)
        check(spark, history.path, history.last, chance, chance.choice(RULES[:2]))


@blocks
@pytest.mark.sampled(10)
def test_histories_of_rewritten_files(
    spark: SparkSession, first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Comparisons of one history in ten are shared by all executors."""
    for seed in SEEDS[first : first + AT_ONCE]:
        monkeypatch.setattr(comparing, "SHARED_BYTES", 0 if seed == first else 2**60)
        made, chance = Rewriting(tmp_path / str(seed), seed), random.Random(seed)
        check(spark, made.table.path, made.table.version, chance, chance.choice(RULES))
