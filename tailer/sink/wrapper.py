"""Wrappers that pass everything on, for subclasses that change one part of a sink or of its transactions."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

import pyarrow as pa

from tailer.errors import SinkError
from tailer.events import ChangeBatch, ControlEvent
from tailer.sink.heartbeats import Heartbeats
from tailer.sink.ports import Demands, MirrorRows, Progress, Sink, SinkTransaction

__all__ = ["SinkWrapper", "TransactionWrapper"]


class SinkWrapper(Sink):
    """A `Sink` that passes every call on to `sink`."""

    def __init__(self, sink: Sink) -> None:
        self.name = sink.name
        self._sink = sink

    @property
    def splits_versions(self) -> bool:
        """See `Sink.splits_versions`."""
        return self._sink.splits_versions

    @property
    def splits_snapshots(self) -> bool:
        """See `Sink.splits_snapshots`."""
        return self._sink.splits_snapshots

    @property
    def demands(self) -> Demands:
        """See `Sink.demands`."""
        return self._sink.demands

    def use_key(self, key: tuple[str, ...]) -> None:
        """See `Sink.use_key`."""
        self._sink.use_key(key)

    @property
    def distributes(self) -> bool:
        """See `Sink.distributes`."""
        return self._sink.distributes

    @property
    def aborts(self) -> bool:
        """See `Sink.aborts`."""
        return self._sink.aborts

    async def progress(self, app_id: str) -> Progress | None:
        """See `Sink.progress`."""
        return await self._sink.progress(app_id)

    async def has_delivered(self, pipeline: str) -> bool:
        """See `Sink.has_delivered`."""
        return await self._sink.has_delivered(pipeline)

    async def check_first_start(self, pipeline: str, table_ids: Sequence[str]) -> None:
        """See `Sink.check_first_start`."""
        await self._sink.check_first_start(pipeline, table_ids)

    def only_look(self) -> None:
        """See `Sink.only_look`."""
        self._sink.only_look()

    async def refusals(self, app_id: str, schema: pa.Schema) -> Sequence[SinkError]:
        """See `Sink.refusals`."""
        return await self._sink.refusals(app_id, schema)

    async def reset(self, progress: Progress) -> None:
        """See `Sink.reset`."""
        await self._sink.reset(progress)

    def begin(self, app_id: str, schema: pa.Schema) -> AbstractAsyncContextManager[SinkTransaction]:
        """See `Sink.begin`."""
        return self._sink.begin(app_id, schema)

    async def beat(self, app_id: str) -> float | None:
        """See `Sink.beat`."""
        return await self._sink.beat(app_id)

    def open_mirror(self, pipeline: str) -> AbstractAsyncContextManager[MirrorRows] | None:
        """See `Sink.open_mirror`."""
        return self._sink.open_mirror(pipeline)

    def open_heartbeats(self, pipeline: str, timeout_s: float) -> Heartbeats | None:
        """See `Sink.open_heartbeats`."""
        return self._sink.open_heartbeats(pipeline, timeout_s)

    async def aclose(self) -> None:
        """See `Sink.aclose`."""
        await self._sink.aclose()


class TransactionWrapper(SinkTransaction):
    """A `SinkTransaction` that passes everything on to `transaction`, one batch at a time."""

    def __init__(self, transaction: SinkTransaction) -> None:
        self._transaction = transaction

    async def write(self, batch: ChangeBatch) -> None:
        """See `SinkTransaction.write`."""
        await self._transaction.write(batch)

    async def announce(self, event: ControlEvent) -> None:
        """See `SinkTransaction.announce`."""
        await self._transaction.announce(event)

    async def commit(self, progress: Progress) -> None:
        """See `SinkTransaction.commit`."""
        await self._transaction.commit(progress)
