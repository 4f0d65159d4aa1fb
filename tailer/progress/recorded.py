"""The adapter for destinations without transactions: flush the rows, then record the progress."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import pyarrow as pa
from typing_extensions import override

from tailer.errors import SinkError
from tailer.events import ChangeBatch, ControlEvent
from tailer.sink import (
    AtLeastOnceSink,
    Progress,
    ProgressStore,
    Sink,
    SinkTransaction,
)

__all__ = ["Recorded"]


class Recorded(Sink):
    """An `AtLeastOnceSink` whose progress is kept in a `ProgressStore`: rows are flushed, then progress is recorded."""

    splits_versions: Final = True
    splits_snapshots: Final = True
    aborts: Final = False

    def __init__(self, sink: AtLeastOnceSink, store: ProgressStore) -> None:
        self.name = sink.name
        self._sink = sink
        self._store = store

    async def progress(self, app_id: str) -> Progress | None:
        """Return the progress in the store."""
        return await self._store.progress(app_id)

    async def has_delivered(self, pipeline: str) -> bool:
        """Return whether the store has progress of the pipeline."""
        return await self._store.has_delivered(pipeline)

    @override
    async def refusals(self, app_id: str, schema: pa.Schema) -> Sequence[SinkError]:
        return await self._sink.refusals(schema)

    async def reset(self, progress: Progress) -> None:
        """Record `progress`."""
        await self._store.progress(progress.app_id)
        await self._store.record(progress)

    @asynccontextmanager
    async def begin(self, app_id: str, schema: pa.Schema) -> AsyncIterator[SinkTransaction]:
        """Begin a transaction in name only: rows are handed over at once, or held back until `commit`."""
        try:
            yield _RecordedTransaction(self._sink, self._store)
        finally:
            self._sink.forget()

    async def aclose(self) -> None:
        """Close sink and store."""
        try:
            await self._sink.aclose()
        finally:
            await self._store.aclose()


class _RecordedTransaction(SinkTransaction):
    def __init__(self, sink: AtLeastOnceSink, store: ProgressStore) -> None:
        self.writes_together = sink.writes_together
        self._sink = sink
        self._store = store

    async def write(self, batch: ChangeBatch) -> None:
        await self._sink.write(batch)

    async def write_all(self, batches: Sequence[ChangeBatch]) -> None:
        await self._sink.write_all(batches)

    async def announce(self, event: ControlEvent) -> None:
        await self._sink.announce(event)

    async def commit(self, progress: Progress) -> None:
        await self._sink.flush()
        await self._store.record(progress)
