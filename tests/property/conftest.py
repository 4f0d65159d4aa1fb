"""Spark as the random histories want it."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.histories.random_history import quick
from tests.support.spark.table import Table

# This peer is not built for Linux on all processors; the tests about it are nobody else's.
collect_ignore = [] if find_spec("delta_kernel_rust_sharing_wrapper") else ["test_peer_kernel.py"]


@pytest.fixture(scope="package")
def quick_spark(spark: SparkSession) -> Iterator[SparkSession]:
    """The session all suites share, with settings of this one while it runs."""
    with quick(spark):
        yield spark


@pytest.fixture
def table(quick_spark: SparkSession, tmp_path: Path) -> Table:
    """A table that is not there yet."""
    return Table(quick_spark, tmp_path / "table")
