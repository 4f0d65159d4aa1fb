"""Golden tables through the data source `tailer`: a batch and a stream give the rows of `LocalEngine`."""

import random

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

import tailer.spark
from tests.support.oracle.rows import assert_same, type_name
from tests.support.spark.follow_query import FollowQuery
from tests.support.spark.queries import Checkpoint, Query, Trigger, read_batch, rows_of_all
from tests.support.tables.golden import expected_feed, golden_delta
from tests.support.tables.golden_feeds import TABLES, expected_table, rows

ON_SPARK = ("cdc_ict_table", "cdf-column-mapping-id-mode", "cdf-table-backtick-column-names", "cdf-table-with-dv")


def limits(chance: random.Random) -> dict[str, int]:
    """Limits of a micro-batch, mostly low ones."""
    names = chance.sample(("maxFilesPerTrigger", "maxRowsPerTrigger", "maxBytesPerTrigger"), chance.randint(0, 3))
    most = {"maxFilesPerTrigger": 4, "maxRowsPerTrigger": 9, "maxBytesPerTrigger": 4000}
    return {name: chance.randint(1, most[name]) for name in names}


@pytest.mark.parametrize("name", sorted(set(TABLES)))
def test_batches_and_streams_are_the_expected_feed(name: str) -> None:
    """With any limits and any trigger; the columns and their types are those of Delta's feed."""
    feed, chance = expected_feed(name), random.Random(name)
    expected = rows(expected_table(name))
    options = {"path": golden_delta(name), "startingVersion": feed.first, "endingVersion": feed.last}
    batch = read_batch(**options)
    assert_same(rows(batch), expected, name)
    types = [(field.name, type_name(field.type)) for field in batch.schema]
    assert types == [(field.name, type_name(field.type)) for field in expected_table(name).schema]
    for trigger in Trigger:
        checkpoint = Checkpoint()
        given = {**options, **limits(chance)}
        assert Query(checkpoint, **given).run(trigger) is None
        assert_same(rows(rows_of_all(checkpoint)), expected, f"{name} {trigger} {given}")


@pytest.mark.parametrize("name", ON_SPARK)
def test_spark_reads_the_expected_feed(name: str, spark: SparkSession) -> None:
    tailer.spark.register(spark)
    feed, expected = expected_feed(name), expected_table(name)
    frame = spark.read.format("tailer").options(startingVersion=feed.first, endingVersion=feed.last)
    found = frame.load(str(golden_delta(name)))
    assert found.schema == from_arrow_schema(expected.schema)
    assert_same(rows(found.toArrow()), rows(expected), name)


def test_sparks_own_reader_gives_the_expected_feeds(spark: SparkSession) -> None:
    """Of all tables, in one session; `tests/integration/test_spark_native.py` says which files that reader has."""
    for name in sorted(set(TABLES)):
        feed, expected = expected_feed(name), expected_table(name)
        found = tailer.spark.changes(spark, golden_delta(name), start=feed.first, end=feed.last)
        assert found.schema == from_arrow_schema(expected.schema), name
        assert_same(rows(found.toArrow()), rows(expected), name)


@pytest.mark.parametrize("name", sorted(set(TABLES)))
@pytest.mark.sampled(3)
def test_a_followed_table_gives_the_expected_feed(name: str, spark: SparkSession) -> None:
    """With any limits; a file that a limit cuts goes through `execute`."""
    feed, checkpoint, chance = expected_feed(name), Checkpoint(), random.Random(name)
    options = {"path": golden_delta(name), "startingVersion": feed.first, "endingVersion": feed.last}
    assert FollowQuery(spark, checkpoint, **options, **limits(chance)).run() is None
    assert_same(rows(rows_of_all(checkpoint)), rows(expected_table(name)), name)
