"""`SparkEngine`: the daemon plans, executors read, and the rows come back in position order.

The splits of a plan (`tailer.spark.splits`) run in parallel on executors. Each returns its batches as Arrow IPC, and
the driver takes them split after split. So the order of rows is that of `LocalEngine`, Spark replaces a lost executor,
and memory on the driver is bounded by the running splits. If rows must be compared first, `ChangelogEngine` does so on
the daemon's machine, and its results travel with the splits.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from anyio import CancelScope, to_thread

from tailer.changelog.spill import SpilledBitmaps
from tailer.engine import Engine
from tailer.events import ChangeBatch
from tailer.plan import ChangePlan, DeletionVectorRef, Position, Refinement
from tailer.read.data_files import LOCAL, DataFiles
from tailer.spark.engine.executors import Executors, Run
from tailer.spark.splits import FileSlice, FilesSplit, file_slices, file_splits, read_split

__all__ = ["SparkEngine"]

SPLIT_BYTES: Final = 16 * 2**20  # of files; the driver holds the rows of a few splits at a time
_ROW_INDEX: Final = "row_index"
_WRITING: Final = pa.ipc.IpcWriteOptions(compression="lz4")

# A slice's refinement: its dropped and its updated rows, as spilled to the driver's disk.
_FramedBitmaps = tuple[bytes | None, bytes | None]


@dataclass(frozen=True, slots=True)
class _Item:
    """A split, with the results of comparing the rows of its slices."""

    split: FilesSplit
    found: tuple[_FramedBitmaps, ...]


class SparkEngine(Engine):
    """An engine that runs plans on `executors`, which open files with `files`.

    `executors` is called in a worker thread, because Spark may have to start first.
    """

    key: Final = ()

    def __init__(self, executors: Callable[[], Executors], files: DataFiles = LOCAL) -> None:
        self._executors = executors
        self._files = files

    @asynccontextmanager
    async def run(
        self, plans: Sequence[ChangePlan], after: Position | None = None
    ) -> AsyncIterator[AsyncIterator[ChangeBatch]]:
        """See `tailer.engine.local.Engine.run`. Iteration may also raise `EngineUnavailable`."""
        results = await to_thread.run_sync(self._begin, plans, after)
        try:
            async with aclosing(_batches(results, plans[0].table_id)) as batches:
                yield batches
        finally:
            with CancelScope(shield=True):
                await to_thread.run_sync(results.close)

    def _begin(self, plans: Sequence[ChangePlan], after: Position | None) -> Run[_Item]:
        bitmaps: dict[DeletionVectorRef, bytes] = {}  # read once for all slices of a file
        slices = [part for plan in plans for part in file_slices(plan, after)]
        splits = file_splits(slices, SPLIT_BYTES, self._files)
        items = [
            _Item(split, tuple(_framed_bitmaps(part.task.refinement, bitmaps) for part in split.slices))
            for split in splits
        ]
        return self._executors().run(_encode_batches, items)


async def _batches(results: Run[_Item], table_id: str) -> AsyncGenerator[ChangeBatch, None]:
    """Yield the rows of the splits. A cancelled wait ends with the run, which the canceller closes."""
    while (chunks := await to_thread.run_sync(next, results, None, abandon_on_cancel=True)) is not None:
        for chunk in chunks:
            yield await to_thread.run_sync(_decode_batch, chunk, table_id)


def _framed_bitmaps(refinement: Refinement | None, bitmaps: dict[DeletionVectorRef, bytes]) -> _FramedBitmaps:
    refs = (None, None) if refinement is None else (refinement.dropped, refinement.updated)
    for ref in refs:
        if ref is not None and ref not in bitmaps:
            bitmaps[ref] = SpilledBitmaps.read_framed(ref)
    dropped, updated = (None if ref is None else bitmaps[ref] for ref in refs)
    return dropped, updated


def _encode_batches(item: _Item) -> Iterator[bytes]:
    """Yield the batches of a split, each with the positions of its rows. Runs on an executor."""
    with SpilledBitmaps() as bitmaps:
        both = zip(item.split.slices, item.found, strict=True)
        parts = (_with_bitmaps(part, framed, bitmaps.store_framed) for part, framed in both)
        for batch in read_split(replace(item.split, slices=tuple(parts))):
            numbers = {b"version": str(batch.version).encode(), b"task": str(batch.task).encode()}
            rows = batch.rows.append_column(_ROW_INDEX, batch.row_index).replace_schema_metadata(numbers)
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, rows.schema, options=_WRITING) as writer:
                writer.write_batch(rows)
            yield sink.getvalue().to_pybytes()


def _with_bitmaps(
    part: FileSlice, framed_bitmaps: _FramedBitmaps, put: Callable[[bytes, int], DeletionVectorRef]
) -> FileSlice:
    refinement = part.task.refinement
    if refinement is None:
        return part
    refs = (refinement.dropped, refinement.updated)
    dropped, updated = (
        None if ref is None or framed is None else put(framed, ref.cardinality)
        for ref, framed in zip(refs, framed_bitmaps, strict=True)
    )
    return replace(part, task=replace(part.task, refinement=replace(refinement, dropped=dropped, updated=updated)))


def _decode_batch(chunk: bytes, table_id: str) -> ChangeBatch:
    with pa.ipc.open_stream(chunk) as reader:
        rows = reader.read_next_batch()
    numbers = rows.schema.metadata
    index = rows.column(_ROW_INDEX)
    own = rows.drop_columns([_ROW_INDEX]).replace_schema_metadata(None)
    return ChangeBatch(table_id, int(numbers[b"version"]), int(numbers[b"task"]), own, index)
