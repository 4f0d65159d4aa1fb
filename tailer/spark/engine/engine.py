"""`SparkEngine`: the daemon plans, executors read, and the rows come back in position order.

The pieces of a plan (`tailer.spark.splits`) run side by side on executors; each gives its batches as Arrow IPC, and the
driver takes them piece after piece. So the order of rows is that of `LocalEngine`, a lost executor is Spark's to
replace, and memory on the driver is bounded by the pieces under way. Where rows are compared before, `ChangelogEngine`
does it on the daemon's machine; what it found travels with the pieces.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from anyio import CancelScope, to_thread

from tailer.changelog.spill.bitmaps import SpilledBitmaps
from tailer.events import ChangeBatch
from tailer.plan import ChangePlan, DeletionVectorRef, Position, Refinement
from tailer.spark.engine.executors import Executors, Run
from tailer.spark.splits import Rows, Slice, run, slices, split

__all__ = ["SparkEngine"]

PIECE_BYTES: Final = 16 * 2**20  # of files: what comes of it is held by the driver, for a few pieces at a time
_ROW_INDEX: Final = "row_index"
_WRITING: Final = pa.ipc.IpcWriteOptions(compression="lz4")

# Of a slice's refinement: the rows that were dropped, and those updated, as they lay on the driver's disk.
_Found = tuple[bytes | None, bytes | None]


@dataclass(frozen=True, slots=True)
class _Item:
    """A piece, with what was found out about the rows of its slices."""

    piece: Rows
    found: tuple[_Found, ...]


class SparkEngine:
    """Runs plans on what `executors` gives, which may have to start first: it is called in a worker thread."""

    key: Final = ()

    def __init__(self, executors: Callable[[], Executors]) -> None:
        self._executors = executors

    @asynccontextmanager
    async def run(self, plan: ChangePlan, after: Position | None = None) -> AsyncIterator[AsyncIterator[ChangeBatch]]:
        """See `tailer.engine.local.Engine.run`. Iterating raises `EngineUnavailable`, too."""
        results = await to_thread.run_sync(self._begun, plan, after)
        try:
            async with aclosing(_batches(results, plan)) as batches:
                yield batches
        finally:
            with CancelScope(shield=True):
                await to_thread.run_sync(results.close)

    def _begun(self, plan: ChangePlan, after: Position | None) -> Run[_Item]:
        taken: dict[DeletionVectorRef, bytes] = {}  # once for all parts of a file
        items = [_packed(piece, taken) for piece in split(slices(plan, after), PIECE_BYTES)]
        return self._executors().run(_encoded, items)


async def _batches(results: Run[_Item], plan: ChangePlan) -> AsyncGenerator[ChangeBatch, None]:
    """The rows of the pieces. A pull that is cancelled ends with the run, which whoever cancels closes."""
    while (chunks := await _waited(results)) is not None:
        for chunk in chunks:
            yield await to_thread.run_sync(_decoded, chunk, plan)


async def _waited(results: Run[_Item]) -> list[bytes] | None:
    return await to_thread.run_sync(next, results, None, abandon_on_cancel=True)


def _packed(piece: Rows, taken: dict[DeletionVectorRef, bytes]) -> _Item:
    return _Item(piece, tuple(_found(part.task.refinement, taken) for part in piece.slices))


def _found(refinement: Refinement | None, taken: dict[DeletionVectorRef, bytes]) -> _Found:
    refs = (None, None) if refinement is None else (refinement.dropped, refinement.updated)
    for ref in refs:
        if ref is not None and ref not in taken:
            taken[ref] = SpilledBitmaps.read_framed(ref)
    dropped, updated = (None if ref is None else taken[ref] for ref in refs)
    return dropped, updated


def _encoded(item: _Item) -> Iterator[bytes]:
    """On an executor: the batches of a piece, each with where its rows lie."""
    with SpilledBitmaps() as bitmaps:
        parts = (
            _with(part, found, bitmaps.store_framed) for part, found in zip(item.piece.slices, item.found, strict=True)
        )
        for batch in run(Rows(tuple(parts))):
            place = {b"version": str(batch.version).encode(), b"task": str(batch.task).encode()}
            rows = batch.rows.append_column(_ROW_INDEX, batch.row_index).replace_schema_metadata(place)
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, rows.schema, options=_WRITING) as writer:
                writer.write_batch(rows)
            yield sink.getvalue().to_pybytes()


def _with(part: Slice, found: _Found, put: Callable[[bytes, int], DeletionVectorRef]) -> Slice:
    refinement = part.task.refinement
    if refinement is None:
        return part
    refs = (refinement.dropped, refinement.updated)
    dropped, updated = (
        None if ref is None or framed is None else put(framed, ref.cardinality)
        for ref, framed in zip(refs, found, strict=True)
    )
    return replace(part, task=replace(part.task, refinement=replace(refinement, dropped=dropped, updated=updated)))


def _decoded(chunk: bytes, plan: ChangePlan) -> ChangeBatch:
    with pa.ipc.open_stream(chunk) as reader:
        rows = reader.read_next_batch()
    place = rows.schema.metadata
    index = rows.column(_ROW_INDEX)
    own = rows.drop_columns([_ROW_INDEX]).replace_schema_metadata(None)
    return ChangeBatch(plan.table_id, int(place[b"version"]), int(place[b"task"]), own, index)
