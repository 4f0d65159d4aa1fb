"""The rows of a shard out of Spark's exchange: by task, pairs together, without those that were delivered."""

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pytest

from tailer.errors import ConfigError
from tailer.events import METADATA_FIELDS, ChangeBatch
from tailer.plan import SNAPSHOT_TASKS, TASKS, Position
from tailer.shards import worker
from tailer.shards.worker import ShardReport
from tailer.spark.write.shard_rows import SHARD, spark_changes

COLUMNS: Final = pa.schema([("id", pa.int64())])
PAIR: Final = ("update_preimage", "update_postimage")
# Version, task, row, change type.
ROWS: Final = [
    (1, 0, 0, "delete"),
    (1, 0, 4, "delete"),
    (1, 1, 0, "insert"),
    *((2, 5, 7, kind) for kind in PAIR),
    *((2, 5, 9, kind) for kind in PAIR),
    (3, 0, 0, "update_preimage"),
]


def batches(size: int, rows: list[tuple[int, int, int, str]] = ROWS) -> Iterator[pa.RecordBatch]:
    """Yield the rows as Spark gives them, `size` at a time."""
    for first in range(0, len(rows), size):
        part = rows[first : first + size]
        versions, tasks, places, kinds = (list(column) for column in zip(*part, strict=True))
        columns: dict[str, Any] = {
            "id": pa.array(range(first, first + len(part)), pa.int64()),
            "_change_type": pa.array(kinds, pa.string()),
            "_commit_version": pa.array(versions, pa.int64()),
            "_commit_timestamp": pa.array([0] * len(part), pa.timestamp("us", tz="America/St_Johns")),
            "_task": pa.array(tasks, pa.int64()),
            "_row": pa.array(places, pa.int64()),
            SHARD: pa.array([2] * len(part), pa.int32()),
        }
        yield pa.record_batch(columns)


def found(size: int, place: Position) -> list[ChangeBatch]:
    """Return the batches after a place."""
    return list(worker._after(place, spark_changes("t", COLUMNS, ShardReport(2), batches(size))))


def ids(some: list[ChangeBatch]) -> list[int]:
    return [number for batch in some for number in batch.rows.column("id").to_pylist()]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_rows_of_each_task_with_pairs_together(size: int) -> None:
    some = found(size, Position.opening(0))
    assert ids(some) == list(range(len(ROWS)))
    for batch in some:
        assert batch.table_id == "t"
        assert batch.rows.schema.equals(pa.schema([*COLUMNS, *METADATA_FIELDS]))
        assert set(batch.rows.column("_commit_version").to_pylist()) == {batch.version}
        if batch.task == 5:
            assert batch.rows.column("_change_type").to_pylist() == list(PAIR) * (len(batch) // 2)
            assert batch.row_index.to_pylist()[::2] == batch.row_index.to_pylist()[1::2]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize(
    ("place", "first"),
    [
        (Position(1, 0, 0), 1),
        (Position(1, 0, 4), 2),
        (Position(1, 1, 0), 3),
        (Position.end(1), 3),
        (Position(2, 5, 7), 5),
        (Position.end(2), 7),
        (Position.end(9), 8),
        (Position.opening(1, snapshot=True), 3),
    ],
)
def test_what_was_delivered_is_left_out(size: int, place: Position, first: int) -> None:
    assert ids(found(size, place)) == list(range(first, len(ROWS)))


@pytest.mark.parametrize("task", [TASKS + 5, SNAPSHOT_TASKS + 5])
def test_a_place_by_other_rules_is_refused(task: int) -> None:
    """By other rules, other rows come before it."""
    with pytest.raises(ConfigError, match="a part of version 2 was delivered with other rules"):
        found(100, Position(2, task, 7))


def test_rows_of_another_shard_are_refused() -> None:
    with pytest.raises(AssertionError, match="the rows of its shard"):
        list(spark_changes("t", COLUMNS, ShardReport(1), batches(3)))
