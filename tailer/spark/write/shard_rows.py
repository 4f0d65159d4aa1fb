"""The rows of one shard on an executor: from Spark's exchange into the sink, exactly once.

Rows come in the order of their positions. The sink has the position of the shard (invariant 2), so rows up to it are
left out, whether a task runs again, a micro-batch does, or a query begins anew without its checkpoint. Of two tasks of
one shard the later one fences the earlier one, which then waits for the other to finish.
"""

import pickle
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

import anyio
import pyarrow as pa
import pyarrow.compute as pc
from anyio import to_thread
from pyspark import TaskContext

from tailer.config.pipelines import PipelineSettings
from tailer.errors import ConfigError, SinkFenced, SinkRejected, TailerError
from tailer.events import CHANGE_TYPE, COMMIT_VERSION, ChangeBatch, ChangeType
from tailer.pipeline.limits import Limits, TransactionSize
from tailer.plan import TASKS, Position, output_schema
from tailer.shards.division import Division
from tailer.shards.resharding import LayoutSink, place_of
from tailer.shards.worker import PATIENCE_S, ShardReport, is_finished, make_sink
from tailer.sink import Progress, Sink, SinkTransaction, app_id_of, shard_name
from tailer.spark.engine.worker import our_task
from tailer.spark.release import SameRelease
from tailer.spark.source.views import POSITIONS

__all__ = ["SHARD", "ShardRows", "check_place", "deliver_rows", "report_of"]

SHARD: Final = "_shard"
_REPORT: Final = pa.schema([pa.field("report", pa.binary())])
_TASK, _ROW = POSITIONS.names
_PREIMAGE: Final = pa.scalar(ChangeType.UPDATE_PREIMAGE.value)


@dataclass(frozen=True, slots=True)
class ShardRows:
    """A function for `map_in_arrow` that delivers one partition, the rows of the shard with its number.

    `settings`: of the pipeline; its options may hold secrets and are never shown. `columns`: of the table, as in
    `tailer.plan.ChangeTask.schema`. Rows are those after `begin` and up to `through`, of the table with the id
    `table_id`. It yields one row, with a pickled `ShardReport`.
    """

    settings: PipelineSettings
    columns: pa.Schema
    table_id: str
    begin: Position
    through: Position
    same: SameRelease

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Deliver the partition of this task."""
        context = TaskContext.get()
        assert context is not None, "an executor calls it"
        with our_task():
            report = report_of(self, context.partitionId(), batches)
            yield pa.record_batch([pa.array([pickle.dumps(report)])], schema=_REPORT)


def report_of(work: ShardRows, shard: int, batches: Iterator[pa.RecordBatch]) -> ShardReport:
    """Deliver the rows of a shard, and report that.

    An error of ours is part of it: running the task again would not help, but for `SinkFenced`, which is raised.
    """
    report = ShardReport(shard)
    try:
        anyio.run(deliver_rows, work, report, batches)
    except SinkFenced:
        raise
    except TailerError as error:
        report.error = error
    return report


async def deliver_rows(work: ShardRows, report: ShardReport, batches: Iterator[pa.RecordBatch]) -> None:
    """Deliver the rows of a shard; add them to `report`.

    Raises `SinkFenced` if another writer took it over and stands still.
    """
    settings, shard = work.settings, report.shard
    name = shard_name(settings.name, shard, settings.shards)
    table, sink = settings.open_table(), make_sink(settings)
    try:
        place = await place_of(name, table, sink)
        if place >= work.through:
            return
        check_place(name, place, work.begin, sink)
        layout = LayoutSink(sink, settings.name, Division.of(settings, sink))
        limits, app_id = settings.limits.within(sink.demands), app_id_of(name, work.table_id)
        try:
            async with _Transactions(layout, app_id, work.columns, limits, report.rows) as transactions:
                rows = _after(place, _changes(_of_shard(shard, batches), work))
                while (batch := await to_thread.run_sync(next, rows, None)) is not None:
                    await transactions.write(batch)
                await transactions.commit(work.through)
        except SinkFenced as fenced:
            try:
                finished = await is_finished(settings, name, work.through, PATIENCE_S * random.uniform(1, 2))
            except SinkFenced as error:
                # It is no shard of the pipeline any more.
                report.error = error
                return
            if not finished:
                raise fenced from None
    finally:
        with anyio.CancelScope(shield=True):
            await sink.aclose()


def check_place(name: str, place: Position, begin: Position, sink: Sink) -> None:
    """Raise `SinkRejected` if a stream at `place` would miss rows of a query that continues after `begin`."""
    if place.in_snapshot and not (begin.in_snapshot and begin.version == place.version):
        reason = f"{name} was delivered up to {place}, and this query does not read that snapshot"
        remedy = (
            "Start the query again with the checkpoint folder that it had. Or let the daemon deliver the rest, with "
            'the same name and sink, write = "executors" and as many shards.'
        )
        raise SinkRejected(sink.name, reason, remedy)
    if place < begin:
        reason = f"{name} was delivered up to {place}, and this query continues after {begin}"
        start = place.version + place.closes_version
        remedy = f"Give the query a new checkpoint folder and start = {start}: what was delivered is left out."
        raise SinkRejected(sink.name, reason, remedy)


class _Transactions:
    """The rows of a shard in transactions of `sink`, which stores any position, within `limits`.

    `rows`: counts those that are committed, by change type.
    """

    def __init__(self, sink: Sink, app_id: str, columns: pa.Schema, limits: Limits, rows: Counter[str]) -> None:
        self._sink = sink
        self._app_id = app_id
        self._schema = output_schema(columns)
        self._limits = limits
        self._rows = rows
        self._stack = AsyncExitStack()
        self._transaction: SinkTransaction | None = None
        self._held = TransactionSize(limits, 0)

    async def __aenter__(self) -> "_Transactions":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.__aexit__(*error)  # type: ignore[arg-type]

    async def write(self, batch: ChangeBatch) -> None:
        """Write rows. Commits if the transaction is due."""
        transaction = await self._open()
        await transaction.write(batch)
        self._held.add([batch])
        if self._held.is_due:
            await self.commit(Position(batch.version, batch.task, batch.last_row))

    async def commit(self, position: Position) -> None:
        """Commit what was written, up to `position`."""
        transaction = await self._open()
        await transaction.commit(Progress(self._app_id, position))
        self._rows += self._held.kinds
        self._transaction = None
        await self._stack.aclose()

    async def _open(self) -> SinkTransaction:
        if self._transaction is None:
            self._held = TransactionSize(self._limits, 0)
            begun = self._sink.begin(self._app_id, self._schema)
            self._transaction = await self._stack.enter_async_context(begun)
        return self._transaction


def _of_shard(shard: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches that have rows. Raises `AssertionError` if they are of another shard."""
    for batch in batches:
        if len(batch):
            assert pc.all(pc.equal(batch.column(SHARD), shard)).as_py(), "a partition has the rows of its shard"
            yield batch


def _changes(batches: Iterator[pa.RecordBatch], work: ShardRows) -> Iterator[ChangeBatch]:
    """Yield the rows of each task. The two images of an update that have one position stay together."""
    schema = output_schema(work.columns)
    held: pa.RecordBatch | None = None
    for each in batches:
        batch = each if held is None else pa.concat_batches([held, each])
        held = None
        if batch.column(CHANGE_TYPE)[-1] == _PREIMAGE:
            batch, held = batch.slice(0, len(batch) - 1), batch.slice(len(batch) - 1)
        yield from _by_task(batch, schema, work.table_id)
    if held is not None:
        yield from _by_task(held, schema, work.table_id)


def _by_task(batch: pa.RecordBatch, schema: pa.Schema, table_id: str) -> Iterator[ChangeBatch]:
    """Yield the rows of each task, which come one after the other."""
    if not len(batch):
        return
    versions, tasks = batch.column(COMMIT_VERSION), batch.column(_TASK)
    others = len(batch) - 1
    changes = pc.or_(
        pc.not_equal(versions.slice(0, others), versions.slice(1)), pc.not_equal(tasks.slice(0, others), tasks.slice(1))
    )
    starts = [0, *(at + 1 for at in pc.indices_nonzero(changes).to_pylist())]
    columns = [batch.column(at).cast(field.type) for at, field in enumerate(schema)]
    rows = pa.RecordBatch.from_arrays(columns, schema=schema)
    for start, end in zip(starts, [*starts[1:], len(batch)], strict=True):
        part, index = rows.slice(start, end - start), batch.column(_ROW).slice(start, end - start)
        yield ChangeBatch(table_id, versions[start].as_py(), tasks[start].as_py(), part, index)


def _after(place: Position, batches: Iterator[ChangeBatch]) -> Iterator[ChangeBatch]:
    """Yield the rows after `place`. Raises `ConfigError` if that is inside of a version that was read in another way.

    By other rules, other rows come before a place (`tailer.changelog.task_ids`).
    """
    for batch in batches:
        if batch.version == place.version and place.is_inside and batch.task // TASKS != place.task // TASKS:
            reason = f"a part of version {batch.version} was delivered with other rules or columns"
            remedy = (
                "Restore columns, carryovers, computeUpdates, key and rowIds until the query is past that version. If "
                "the table has other columns since, give the query once a new checkpoint folder, a start up to that "
                f"version, and end = {batch.version}; or let the daemon deliver the rest."
            )
            raise ConfigError("carryovers", reason, remedy)
        task, reached = (batch.version, batch.task), (place.version, place.task)
        rest = batch.after(place.row) if task == reached else batch
        if task >= reached and len(rest):
            yield rest
