"""Spark with settings for the random histories."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from zlib import crc32

import pytest
from pyspark.sql import SparkSession

from tailer.read import kept_rows
from tests.support.histories.random_history import quick
from tests.support.spark.table import Table

# This library is not built for Linux on all processors; only its own tests need it.
collect_ignore = [] if find_spec("delta_kernel_rust_sharing_wrapper") else ["test_peer_kernel.py"]


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
        monkeypatch.setattr(kept_rows, "KEPT_BYTES", 0)
