"""`exchanged`: change rows that executors read come to their shards in the order of their positions."""

import random
from collections.abc import Sequence

import pytest
from pyspark.sql import SparkSession

from tailer.events import ChangeType
from tailer.spark.write.exchange import exchanged
from tailer.spark.write.shard_rows import SHARD

SHARDS = 3
PARTITIONS = 4
COLUMNS = "id LONG, _change_type STRING, _commit_version LONG, _task LONG, _row LONG"
PREIMAGE, POSTIMAGE = ChangeType.UPDATE_PREIMAGE.value, ChangeType.UPDATE_POSTIMAGE.value


@pytest.mark.spark
@pytest.mark.parametrize("key", [("id",), ()], ids=["by key", "by task"])
def test_rows_of_a_shard_are_in_order(spark: SparkSession, key: Sequence[str]) -> None:
    """The rows come from several partitions, each in any order; the two images of an update have one position."""
    positions = [(version, task, row) for version in range(4) for task in range(5) for row in range(6)]
    images = [(number, kind, *at) for number, at in enumerate(positions) for kind in (PREIMAGE, POSTIMAGE)]
    random.Random(1).shuffle(images)
    frame = spark.createDataFrame(images, COLUMNS).repartition(PARTITIONS)

    shards = exchanged(frame, key, SHARDS).rdd.glom().collect()

    assert [{row[SHARD] for row in rows} for rows in shards] == [{shard} for shard in range(SHARDS)]
    found = [[tuple(row)[:-1] for row in rows] for rows in shards]
    assert sorted(row for rows in found for row in rows) == sorted(images)
    assert found == [sorted(rows, key=lambda row: (*row[2:], row[1] == POSTIMAGE)) for rows in found]
