"""Functions for `foreachBatch`, for streaming queries over the data source `tailer`.

A failed query runs its last batch again, with the same offsets and the same number. Each recipe says how it handles
that::

    changes = spark.readStream.format("tailer").option("startingVersion", 0).load("/data/orders")
    query = changes.writeStream.foreachBatch(append_once("/data/orders_changes", "orders"))
    query.option("checkpointLocation", "/data/checkpoints/orders").start()

- `append_once`: every change row, once; a repeated batch is left out.
- `merge_by_key`: a copy of the table, kept up to date row by row; repeating a batch changes nothing.
- `kafka_records`: rows for Spark's own Kafka sink, which may send a batch twice.

The daemon (`tailer run`) needs no query, delivers to Kafka exactly once, and follows schema changes by itself.
"""

from collections.abc import Callable, Sequence
from typing import Final
from uuid import uuid4

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from tailer.errors import ConfigError, SinkRejected
from tailer.events import CHANGE_TYPE, METADATA_FIELDS
from tailer.spark.source.spark_types import quoted

__all__ = ["append_once", "kafka_records", "merge_by_key"]

ForBatch = Callable[[DataFrame, int], None]

_NEW: Final = f"{CHANGE_TYPE} IN ('insert', 'update_postimage')"
_METADATA: Final = frozenset(field.name for field in METADATA_FIELDS)
_OURS: Final = _METADATA | {"_event_id"}


def append_once(target: str, app_id: str, *, adopt: bool = False) -> ForBatch:
    """Append each batch to the Delta table in the folder `target`, exactly once.

    Delta keeps the number of the last batch of `app_id` in the commit with its rows, and leaves out older batches. A
    query with a new checkpoint folder counts from 0: give it another `app_id`, or its batches are left out. Two queries
    must not share one. Columns that the source gains are added.

    A table without any of our columns belongs to somebody else, or is the source: a batch with such columns raises
    `SinkRejected` unless `adopt`.
    """

    def append(batch: DataFrame, number: int) -> None:
        if not adopt:
            _check_ours(batch, target)
        writer = batch.write.format("delta").mode("append").option("mergeSchema", "true")
        writer.option("txnAppId", app_id).option("txnVersion", str(number)).save(target)

    return append


def merge_by_key(target: str, key: Sequence[str]) -> ForBatch:
    """Keep the Delta table in the folder `target` equal to the source, with upserts and deletes by `key`.

    For typed rows read with `netChanges = true` and the same `key`, so that a batch has one change of each key. A
    repeated batch leaves the same rows. The first batch creates the table; begin with a snapshot, or with the first
    version. Raises `ConfigError` if no key is given, or for a name with `${`, which Spark's SQL replaces by a setting.
    """
    if not key:
        raise ConfigError("key", "is empty", "Name the columns that identify rows.")
    for option, text in (("target", target), *(("key", name) for name in key)):
        if "${" in text:
            reason = f"{text!r} has ${{ in it, which Spark's SQL replaces by a setting"
            raise ConfigError(option, reason, "Give it another name.")
    names = [quoted(name) for name in key]
    table = f"delta.{quoted(target)}"
    view = f"tailer_changes_{uuid4().hex}"
    # If a key is deleted and inserted, only the insert is kept.
    rows = (
        f"SELECT * FROM {view} AS each WHERE each.{_NEW} OR NOT EXISTS "
        f"(SELECT 1 FROM {view} AS other WHERE other.{_NEW} AND {_same('each', 'other', names)})"
    )

    def merge(batch: DataFrame, _number: int) -> None:
        session = batch.sparkSession
        columns = batch.drop(*_METADATA).limit(0).write.format("delta")
        columns.mode("ignore").save(target)
        if set(batch.columns) - set(session.read.format("delta").load(target).columns) - _METADATA:
            columns.mode("append").option("mergeSchema", "true").save(target)
        batch.createOrReplaceTempView(view)
        try:
            session.sql(
                f"MERGE INTO {table} AS old USING ({rows}) AS new ON {_same('old', 'new', names)} "
                f"WHEN MATCHED AND NOT new.{_NEW} THEN DELETE WHEN MATCHED THEN UPDATE SET * "
                f"WHEN NOT MATCHED AND new.{_NEW} THEN INSERT *"
            )
        finally:
            session.catalog.dropTempView(view)

    return merge


def kafka_records(batch: DataFrame) -> DataFrame:
    """Convert rows of the envelope for Spark's Kafka sink: `key`, `value` and `headers`.

    Spark's sink is at-least-once: a repeated batch is sent twice. The key is `_event_id`, the same both times, so a
    reader can leave out events it has seen. Write with `.write.format("kafka")` and Spark's options for it.
    """
    return batch.selectExpr(
        "_event_id AS key",
        "value",
        f"array(struct('{CHANGE_TYPE}' AS key, CAST({CHANGE_TYPE} AS BINARY) AS value)) AS headers",
    )


def _check_ours(batch: DataFrame, target: str) -> None:
    """Raise `SinkRejected` if the batch would be the first to add our columns to the table at `target`."""
    ours = _OURS.intersection(batch.columns)
    try:
        columns = batch.sparkSession.read.format("delta").load(target).columns
    except AnalysisException:
        return  # no table yet, or one for which the writer raises a better error
    if ours and ours.isdisjoint(columns):
        remedy = "Choose another path; or set adopt = True to write change rows there all the same."
        raise SinkRejected("append_once", f"{target} is a Delta table without our columns", remedy)


def _same(first: str, second: str, names: Sequence[str]) -> str:
    """Build the SQL condition that two rows have the same key."""
    return " AND ".join(f"{first}.{name} <=> {second}.{name}" for name in names)
