"""Wrappers that pass everything on, for subclasses that change one part of a sink or of its transactions."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

import pyarrow as pa
from typing_extensions import override

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
    @override
    def splits_versions(self) -> bool:
        return self._sink.splits_versions

    @property
    @override
    def splits_snapshots(self) -> bool:
        return self._sink.splits_snapshots

    @property
    @override
    def demands(self) -> Demands:
        return self._sink.demands

    @override
    def use_key(self, key: tuple[str, ...]) -> None:
        self._sink.use_key(key)

    @property
    @override
    def distributes(self) -> bool:
        return self._sink.distributes

    @property
    @override
    def aborts(self) -> bool:
        return self._sink.aborts

    @override
    async def progress(self, app_id: str) -> Progress | None:
        return await self._sink.progress(app_id)

    @override
    async def has_delivered(self, pipeline: str) -> bool:
        return await self._sink.has_delivered(pipeline)

    @override
    async def check_first_start(self, pipeline: str, table_ids: Sequence[str]) -> None:
        await self._sink.check_first_start(pipeline, table_ids)

    @override
    def only_look(self) -> None:
        self._sink.only_look()

    @override
    async def refusals(self, app_id: str, schema: pa.Schema) -> Sequence[SinkError]:
        return await self._sink.refusals(app_id, schema)

    @override
    async def reset(self, progress: Progress) -> None:
        await self._sink.reset(progress)

    @override
    def begin(self, app_id: str, schema: pa.Schema) -> AbstractAsyncContextManager[SinkTransaction]:
        return self._sink.begin(app_id, schema)

    @override
    async def beat(self, app_id: str) -> float | None:
        return await self._sink.beat(app_id)

    @override
    def open_mirror(self, pipeline: str, version: int | None = None) -> AbstractAsyncContextManager[MirrorRows] | None:
        return self._sink.open_mirror(pipeline, version)

    @override
    def open_heartbeats(self, pipeline: str, timeout_s: float) -> Heartbeats | None:
        return self._sink.open_heartbeats(pipeline, timeout_s)

    @override
    async def aclose(self) -> None:
        await self._sink.aclose()


class TransactionWrapper(SinkTransaction):
    """A `SinkTransaction` that passes everything on to `transaction`, one batch at a time."""

    def __init__(self, transaction: SinkTransaction) -> None:
        self._transaction = transaction

    @override
    async def write(self, batch: ChangeBatch) -> None:
        await self._transaction.write(batch)

    @override
    async def announce(self, event: ControlEvent) -> None:
        await self._transaction.announce(event)

    @override
    async def commit(self, progress: Progress) -> None:
        await self._transaction.commit(progress)
