"""A sink around another one: passes everything on, for subclasses that change one part of a sink."""

from contextlib import AbstractAsyncContextManager

import pyarrow as pa

from tailer.sink.ports import Demands, Progress, Sink, SinkTransaction

__all__ = ["SinkWrapper"]


class SinkWrapper:
    """A `Sink` that passes every call on to `sink`.

    It has none of the optional sides that `sink` may have, such as `Heartbeat`.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    @property
    def name(self) -> str:
        """See `Sink.name`."""
        return self._sink.name

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

    @property
    def distributes(self) -> bool:
        """See `Sink.distributes`."""
        return self._sink.distributes

    async def progress(self, app_id: str) -> Progress | None:
        """See `Sink.progress`."""
        return await self._sink.progress(app_id)

    async def has_delivered(self, pipeline: str) -> bool:
        """See `Sink.has_delivered`."""
        return await self._sink.has_delivered(pipeline)

    async def reset(self, progress: Progress) -> None:
        """See `Sink.reset`."""
        await self._sink.reset(progress)

    def begin(self, app_id: str, schema: pa.Schema) -> AbstractAsyncContextManager[SinkTransaction]:
        """See `Sink.begin`."""
        return self._sink.begin(app_id, schema)

    async def aclose(self) -> None:
        """See `Sink.aclose`."""
        await self._sink.aclose()
