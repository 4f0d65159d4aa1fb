"""Change rows in this process: the simplest sink that keeps the whole contract, for tests and for embedding.

`MemoryDestination` takes the place of a server: it outlives the sinks that write to it, of which there may be several.
A `MemorySink` is one instance of a writer. `MemoryProgressStore` keeps progress for sinks that cannot
(`tailer.progress.recorded.Recorded`), in records that may also be shared.

A configuration cannot name this kind of sink, because everything in it would be lost with the process.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from anyio.lowlevel import checkpoint

from tailer.errors import SinkFenced, SinkRejected
from tailer.events import ChangeBatch, ControlEvent, SchemaChange
from tailer.sink import Progress, Sink, SinkTransaction, main_app_id, pipeline_of

__all__ = ["MemoryDestination", "MemoryProgressStore", "MemorySink"]


@dataclass(slots=True)
class MemoryDestination:
    """Committed batches and events in order, and progress, by app_id."""

    log: dict[str, list[ChangeBatch | ControlEvent]] = field(default_factory=dict)
    progress: dict[str, Progress] = field(default_factory=dict)
    _writers: dict[str, tuple[object, str, Progress | None]] = field(default_factory=dict)
    _latest: dict[str, str] = field(default_factory=dict)  # by pipeline: the app_id of the last commit

    @property
    def batches(self) -> dict[str, list[ChangeBatch]]:
        """The batches by app_id."""
        return {app_id: [item for item in log if isinstance(item, ChangeBatch)] for app_id, log in self.log.items()}

    def events(self, app_id: str) -> list[ControlEvent]:
        """Return all events of `app_id` in order."""
        return [item for item in self.log.get(app_id, []) if not isinstance(item, ChangeBatch)]

    def rows(self, app_id: str) -> list[dict[str, Any]]:
        """Return all rows of `app_id` in order, as Python values."""
        return [row for batch in self.batches.get(app_id, []) for row in batch.rows.to_pylist()]

    def latest(self, app_id: str) -> str:
        """Return the app_id under which the pipeline of `app_id` has committed last; its own if it has not."""
        main = main_app_id(app_id)
        return self._latest.get(pipeline_of(main), main)

    def enter(self, app_id: str) -> object:
        """Make the caller the only writer of `app_id`. The returned token is valid until another writer enters."""
        token, latest = object(), self.latest(app_id)
        self._writers[app_id] = token, latest, self.progress.get(latest)
        return token

    def commit(self, token: object, items: list[ChangeBatch | ControlEvent], progress: Progress) -> bool:
        """Add rows, events and progress in one step (invariant 1). Return False if `token` is no longer valid.

        So it is if the pipeline has gone on with another source table since the caller entered, or in the former one.
        """
        main = main_app_id(progress.app_id)
        writer, latest, position = self._writers.get(progress.app_id, (None, "", None))
        if writer is not token or self.latest(main) not in (latest, main):
            return False
        if self.latest(main) != main and self.progress.get(latest) != position:
            return False
        self._latest[pipeline_of(main)] = main
        self.log.setdefault(progress.app_id, []).extend(items)
        self.progress[progress.app_id] = progress
        return True


class MemorySink(Sink):
    """A `Sink` that writes to a `MemoryDestination`, its own if none is given."""

    splits_versions: Final = True
    splits_snapshots: Final = True

    def __init__(self, name: str, destination: MemoryDestination | None = None) -> None:
        self.name = name
        self.destination = MemoryDestination() if destination is None else destination
        self._seen: dict[str, tuple[Progress | None, str]] = {}

    async def progress(self, app_id: str) -> Progress | None:
        """Return the progress in the destination."""
        await checkpoint()
        self._seen[app_id] = self._state(app_id)
        return self._seen[app_id][0]

    async def has_delivered(self, pipeline: str) -> bool:
        """Return whether the destination has progress of the pipeline."""
        await checkpoint()
        return any(pipeline_of(app_id) == pipeline for app_id in self.destination.progress)

    async def reset(self, progress: Progress) -> None:
        """Set the destination's progress and fence its writer."""
        await checkpoint()
        self.destination.commit(self.destination.enter(progress.app_id), [], progress)
        self._seen[progress.app_id] = self._state(progress.app_id)

    @asynccontextmanager
    async def begin(self, app_id: str, schema: pa.Schema) -> AsyncIterator["_MemoryTransaction"]:
        """Fence every other writer of `app_id`. Raises `SinkFenced` if one has committed since progress was read."""
        position, latest = self._state(app_id)
        seen, before = self._seen.setdefault(app_id, (position, latest))
        if seen != position or latest not in (before, main_app_id(app_id)):
            raise SinkFenced(self.name, f"{app_id} is at {position} now, and the pipeline in {latest}")
        yield _MemoryTransaction(self, self.destination.enter(app_id), schema)

    def commit(self, token: object, items: list[ChangeBatch | ControlEvent], progress: Progress) -> None:
        """Commit a `_MemoryTransaction`. Raises `SinkFenced`."""
        if not self.destination.commit(token, items, progress):
            raise SinkFenced(self.name, f"{progress.app_id} has another writer")
        self._seen[progress.app_id] = self._state(progress.app_id)

    def _state(self, app_id: str) -> tuple[Progress | None, str]:
        return self.destination.progress.get(app_id), self.destination.latest(app_id)

    async def aclose(self) -> None:
        """Do nothing: no resources are held."""


class _MemoryTransaction(SinkTransaction):
    """Batches and events in a list until `commit`."""

    def __init__(self, sink: MemorySink, token: object, schema: pa.Schema) -> None:
        self._sink = sink
        self._token = token
        self._schema = schema
        self._items: list[ChangeBatch | ControlEvent] = []

    async def write(self, batch: ChangeBatch) -> None:
        await checkpoint()
        if not batch.rows.schema.equals(self._schema):
            raise SinkRejected(self._sink.name, f"rows of another schema than was announced: {batch.rows.schema.names}")
        self._items.append(batch)

    async def announce(self, event: ControlEvent) -> None:
        await checkpoint()
        if isinstance(event, SchemaChange):
            self._schema = event.after
        self._items.append(event)

    async def commit(self, progress: Progress) -> None:
        await checkpoint()
        self._sink.commit(self._token, self._items, progress)


class MemoryProgressStore:
    """A `ProgressStore` over a dictionary, which may be shared by several instances."""

    def __init__(self, name: str = "memory", records: dict[str, Progress] | None = None) -> None:
        self._name = name
        self._records = {} if records is None else records
        self._seen: dict[str, Progress | None] = {}

    async def progress(self, app_id: str) -> Progress | None:
        """Return the recorded progress."""
        await checkpoint()
        self._seen[app_id] = self._records.get(app_id)
        return self._seen[app_id]

    async def has_delivered(self, pipeline: str) -> bool:
        """Return whether progress of the pipeline is recorded."""
        await checkpoint()
        return any(pipeline_of(app_id) == pipeline for app_id in self._records)

    async def record(self, progress: Progress) -> None:
        """Replace the recorded progress. Raises `SinkFenced` if that is not what this instance saw last."""
        await checkpoint()
        current = self._records.get(progress.app_id)
        if current != self._seen.get(progress.app_id):
            raise SinkFenced(self._name, f"{progress.app_id} is at {current} now")
        self._records[progress.app_id] = self._seen[progress.app_id] = progress

    async def aclose(self) -> None:
        """Do nothing: no resources are held."""
