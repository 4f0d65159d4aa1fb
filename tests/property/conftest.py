"""Spark with settings for the random histories."""

from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest
from pyspark.sql import SparkSession

from tailer.read import decoded_files
from tests.support.histories.random_history import quick
from tests.support.spark.table import Table


@pytest.fixture(scope="package")
def quick_spark(spark: SparkSession) -> Iterator[SparkSession]:
    """The shared session, with settings for small tables while it is used."""
    with quick(spark):
        yield spark


@pytest.fixture
def table(quick_spark: SparkSession, tmp_path: Path) -> Table:
    """A table that does not exist yet."""
    return Table(quick_spark, tmp_path / "table")


@pytest.fixture(autouse=True)
def forgetting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every other test read rows again that are else kept in memory; always the same ones."""
    if crc32(request.node.nodeid.encode()) % 2:
        monkeypatch.setattr(decoded_files, "BUDGET_BYTES", 0)
