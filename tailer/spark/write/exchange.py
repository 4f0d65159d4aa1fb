"""The way of rows to the shards that write them: Spark's own exchange.

Each file is read once, whatever the number of shards, and all executors share the comparison of a large version. Spark
brings the rows of a shard to one task, in the order of their positions, which writes them
(`tailer.spark.write.shard_rows`). Micro-batches of a query come this way (`tailer.spark.write.kafka_shards`), and large
versions of the daemon (`tailer.spark.write.shared_versions`).
"""

import pickle
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from tailer.errors import ConfigError
from tailer.events import CHANGE_TYPE, COMMIT_VERSION, ChangeType, has_variant, type_text
from tailer.plan import TASKS
from tailer.schema.exact_types import exact_type
from tailer.shards.assignment import shard_numbers
from tailer.shards.worker import ShardReport
from tailer.spark.release import SameRelease
from tailer.spark.source.spark_types import spark_schema
from tailer.spark.source.views import POSITIONS
from tailer.spark.write.arrow_map import map_in_arrow
from tailer.spark.write.shard_rows import SHARD, ShardRows, report_of

__all__ = ["check_columns", "deliver_exchanged", "exchanged"]

_REPORT: Final = StructType([StructField("report", BinaryType())])
_TASK, _ROW = POSITIONS.names


def exchanged(rows: DataFrame, key: Sequence[str], shards: int) -> DataFrame:
    """Return change rows with a partition for each shard, in the order of their positions.

    `rows`: with their positions (`POSITIONS`). `key`: the columns by which rows belong to shards; empty: their tasks.
    """
    if key:
        with_shard = StructType([*rows.schema, StructField(SHARD, IntegerType())])
        numbered = map_in_arrow(rows, _Numbered(tuple(key), shards, SameRelease()), with_shard)
    else:
        numbered = rows.withColumn(SHARD, sql.expr(f"CAST(_task % {TASKS} % {shards} AS INT)"))
    # The images of an update may have one position.
    is_postimage = sql.col(CHANGE_TYPE) == sql.lit(ChangeType.UPDATE_POSTIMAGE.value)
    return numbered.repartitionById(shards, SHARD).sortWithinPartitions(COMMIT_VERSION, _TASK, _ROW, is_postimage)


def deliver_exchanged(rows: DataFrame, work: ShardRows) -> list[ShardReport]:
    """Deliver rows that are `exchanged`. Return a report of each shard; blocks."""
    found = map_in_arrow(rows, work, _REPORT).collect()
    reports: list[ShardReport] = [pickle.loads(row["report"]) for row in found]
    # Spark may leave out a partition without rows. A notebook has an event loop of its own in this thread.
    missing = set(range(work.settings.shards)) - {report.shard for report in reports}
    with ThreadPoolExecutor(1, "tailer-shards") as thread:
        reports += [thread.submit(report_of, work, shard, iter(())).result() for shard in sorted(missing)]
    return reports


def check_columns(columns: pa.Schema) -> None:
    """Raise `ConfigError` for a column that would not come out of Spark's exchange as it went in."""
    remedy = 'Name the other columns in the option columns, or run the daemon: write = "executors".'
    spark_schema(columns)
    names = [name.lower() for name in columns.names]
    for field in columns:
        if names.count(field.name.lower()) > 1:
            raise ConfigError("columns", f"Spark does not tell {field.name} from a column in other letters", remedy)
        if field.name.lower() in {*POSITIONS.names, SHARD}:
            raise ConfigError("columns", f"{field.name} is a name that into_kafka uses for a column of its own", remedy)
        if has_variant(field.type) or not exact_type(field.type).equals(field.type):
            reason = f"column {field.name} is {type_text(field.type)}, which is another type in Spark"
            raise ConfigError("columns", reason, remedy)


@dataclass(frozen=True, slots=True)
class _Numbered:
    """A function for `map_in_arrow` that adds the shard of each row."""

    key: tuple[str, ...]
    shards: int
    same: SameRelease

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches with the shard of each row."""
        for batch in batches:
            numbers = shard_numbers([batch.column(name) for name in self.key], self.shards)
            yield batch.append_column(SHARD, numbers)
