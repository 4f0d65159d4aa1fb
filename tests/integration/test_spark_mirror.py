"""A mirror in Delta that executors merge: the same rows and progress as from the driver alone."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.support.histories.long_history import LongHistory
from tests.support.spark.executor_writes import Delivering, rows_of

MIRROR: Mapping[str, Any] = {"mode": "mirror", "key": ["id"]}


@pytest.fixture
def history(tmp_path: Path) -> LongHistory:
    """A busy table, whose updates change keys."""
    made = LongHistory(tmp_path / "source", seed=7, length=60)
    made.publish(59)
    return made


@pytest.fixture
def delivering(history: LongHistory, tmp_path: Path) -> Delivering:
    """A pipeline to a mirror that does not exist yet."""
    return Delivering(history.path, tmp_path / "target", options=MIRROR)


def operations(target: Path) -> list[str]:
    """Return what each commit of the target is."""
    return [each["operation"] for each in reversed(DeltaTable(target).history())]


def same_as_driver(delivering: Delivering) -> None:
    """Check that the target equals that of the driver, and the source."""
    beside = delivering.into(delivering.target.with_name("beside"))
    beside.by_driver()
    assert rows_of(delivering.target) == rows_of(beside.target)
    ours, theirs = DeltaTable(delivering.target), DeltaTable(beside.target)
    assert ours.schema() == theirs.schema()
    assert ours.protocol() == theirs.protocol()
    assert ours.metadata().partition_columns == theirs.metadata().partition_columns
    assert ours.metadata().configuration == theirs.metadata().configuration
    assert delivering.progress() == beside.progress() == delivering.latest
    for name in ("orders/#delivered", "orders/#key"):
        assert ours.transaction_version(name) == theirs.transaction_version(name) is not None


def test_a_backlog_is_one_merge(delivering: Delivering, spark: SparkSession) -> None:
    delivering.by_executors(spark)
    assert operations(delivering.target)[-1] == "MERGE"
    assert DeltaTable(delivering.target).version() == 2  # its creation, the driver's first commit, and one MERGE
    same_as_driver(delivering)
    delivering.by_executors(spark)
    assert DeltaTable(delivering.target).version() == 2
    last = json.loads((delivering.target / "_delta_log" / f"{2:020d}.json").read_text().splitlines()[0])
    assert "Spark" in last["commitInfo"]["engineInfo"]


def test_driver_and_executors_go_on_where_the_other_stopped(delivering: Delivering, spark: SparkSession) -> None:
    delivering.by_driver(15)
    delivering.by_executors(spark, 30)
    delivering.by_driver(40)
    delivering.by_executors(spark)
    same_as_driver(delivering)
