"""The rows of one shard on an executor: from Spark's exchange into the sink (`tailer.shards.worker`).

They come in one of two forms: as rows of Spark's own types, where Spark has read them by itself (`spark_changes`), or
packed by our own executors (`packed_changes`).
"""

import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from tailer.events import CHANGE_TYPE, COMMIT_VERSION, ChangeBatch, ChangeType
from tailer.plan import output_schema
from tailer.shards.packed_rows import unpacked
from tailer.shards.worker import PATIENCE_S, ShardReport, ShardWork, report_of
from tailer.spark.release import SameRelease, our_task
from tailer.spark.source.views import POSITIONS

__all__ = ["SHARD", "ShardRows", "packed_changes", "spark_changes"]

SHARD: Final = "_shard"
_REPORT: Final = pa.schema([pa.field("report", pa.binary())])
_TASK, _ROW = POSITIONS.names
_PREIMAGE: Final = pa.scalar(ChangeType.UPDATE_PREIMAGE.value)


Changes = Callable[[ShardReport, Iterator[pa.RecordBatch]], Iterator[ChangeBatch]]
"""Yields the rows of the shard of a report out of Spark's exchange, and tells it what else comes. Survives pickle."""


@dataclass(frozen=True, slots=True)
class ShardRows:
    """A function for `map_in_arrow` that delivers one partition, the rows of the shard with its number.

    It yields one row, with a pickled `ShardReport`.
    """

    same: SameRelease
    work: ShardWork
    changes: Changes

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Deliver the partition of this task."""
        context = TaskContext.get()
        assert context is not None, "an executor calls it"
        with our_task():
            # An attempt that another one fences is run again by Spark.
            report = self.report(context.partitionId(), batches, PATIENCE_S * 2 ** context.attemptNumber())
            yield pa.record_batch([pa.array([pickle.dumps(report)])], schema=_REPORT)

    def report(self, shard: int, batches: Iterator[pa.RecordBatch], patience_s: float = PATIENCE_S) -> ShardReport:
        """Deliver the rows of a shard; see `tailer.shards.worker.report_of`."""
        report = ShardReport(shard)
        return report_of(self.work, report, self.changes(report, batches), patience_s)


def packed_changes(
    table_id: str, lone: Mapping[int, pa.Schema], report: ShardReport, batches: Iterator[pa.RecordBatch]
) -> Iterator[ChangeBatch]:
    """Yield the rows of parts (`tailer.shards.packed_rows`) of the table with the id `table_id`.

    `lone`: by version, the columns of its lone rows, as in `tailer.plan.ChangeTask.schema`.
    """
    columns = {version: output_schema(schema) for version, schema in lone.items()}
    return unpacked(batches, report.shard, table_id, columns, report.note)


def spark_changes(
    table_id: str, columns: pa.Schema, report: ShardReport, batches: Iterator[pa.RecordBatch]
) -> Iterator[ChangeBatch]:
    """Yield change rows with `columns` (`tailer.plan.ChangeTask.schema`), which come with positions (`POSITIONS`).

    The two images of an update that have one position stay together.
    """
    schema = output_schema(columns)
    held: pa.RecordBatch | None = None
    for arrived in batches:
        if not len(arrived):
            continue
        is_own = pc.all(pc.equal(arrived.column(SHARD), report.shard)).as_py()
        assert is_own, "a partition has the rows of its shard"
        batch = arrived if held is None else pa.concat_batches([held, arrived])
        held = None
        if batch.column(CHANGE_TYPE)[-1] == _PREIMAGE:
            batch, held = batch.slice(0, len(batch) - 1), batch.slice(len(batch) - 1)
        yield from _by_task(batch, schema, table_id)
    if held is not None:
        yield from _by_task(held, schema, table_id)


def _by_task(batch: pa.RecordBatch, schema: pa.Schema, table_id: str) -> Iterator[ChangeBatch]:
    """Yield the rows of each task, which come one after the other."""
    if not len(batch):
        return
    versions, tasks = batch.column(COMMIT_VERSION), batch.column(_TASK)
    others = len(batch) - 1
    changes = pc.or_(
        pc.not_equal(versions.slice(0, others), versions.slice(1)), pc.not_equal(tasks.slice(0, others), tasks.slice(1))
    )
    starts = [0, *(place + 1 for place in pc.indices_nonzero(changes).to_pylist())]
    columns = [batch.column(place).cast(field.type) for place, field in enumerate(schema)]
    rows = pa.RecordBatch.from_arrays(columns, schema=schema)
    for start, end in zip(starts, [*starts[1:], len(batch)], strict=True):
        part, index = rows.slice(start, end - start), batch.column(_ROW).slice(start, end - start)
        yield ChangeBatch(table_id, versions[start].as_py(), tasks[start].as_py(), part, index)
