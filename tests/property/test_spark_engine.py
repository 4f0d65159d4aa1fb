"""`SparkEngine` gives the batches of `LocalEngine`: the same rows, in the same order, with the same positions."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.rules import PairingRules
from tailer.engine import Engine
from tailer.engine.local import LocalEngine
from tailer.plan import ChangePlan, Position
from tailer.spark.engine.engine import SparkEngine
from tailer.spark.engine.executors import Executors
from tests.support.follow import plans, run_plan
from tests.support.oracle.recorded import HISTORIES, read
from tests.support.spark.batches import KEEP, Placed, placed
from tests.support.tables.golden import golden_delta
from tests.support.tables.golden_feeds import TABLES

WRITTEN: Final = sorted(HISTORIES.glob("*.tar.xz"))[:3]


@pytest.fixture(scope="module")
def engine(spark: SparkSession) -> Iterator[Engine]:
    """An engine on the executors of the session."""
    executors = Executors(spark)
    yield SparkEngine(lambda: executors)
    executors.close()


def rows(plan: ChangePlan, engine: Engine, rules: PairingRules, after: Position | None = None) -> list[Placed]:
    """Return the rows of a plan, in order."""
    return list(placed(run_plan(plan, ChangelogEngine(engine, rules), after).batches))


@pytest.mark.golden
@pytest.mark.parametrize("name", sorted(set(TABLES)))
def test_golden_tables(engine: Engine, name: str) -> None:
    for plan in plans(golden_delta(name)):
        assert rows(plan, engine, KEEP) == rows(plan, LocalEngine(), KEEP)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("archive", WRITTEN, ids=lambda archive: archive.name[:2])
def test_evolving_histories(engine: Engine, archive: Path, tmp_path: Path) -> None:
    recorded = read(archive, tmp_path)
    rules = PairingRules(compute_updates=True)
    for plan in plans(recorded.path, recorded.first):
        expected = rows(plan, LocalEngine(), rules)
        assert rows(plan, engine, rules) == expected
        if len(expected) > 3:
            version, task, row, *_ = expected[len(expected) // 2]
            after = Position(version, task, row)
            assert rows(plan, engine, rules, after) == rows(plan, LocalEngine(), rules, after)
