"""Spark as the random histories want it."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.histories import quick


@pytest.fixture(scope="package")
def quick_spark(spark: SparkSession) -> Iterator[SparkSession]:
    """The session all suites share, with settings of this one while it runs."""
    with quick(spark):
        yield spark
