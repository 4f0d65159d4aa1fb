"""The ports of a destination: a sink, its transactions, and the progress store of sinks without transactions."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol, Self, runtime_checkable

import pyarrow as pa

from tailer.events import ChangeBatch, ControlEvent
from tailer.plan import Position
from tailer.stores.stores import Stores

__all__ = [
    "AtLeastOnceSink",
    "Demands",
    "FirstStart",
    "Heartbeat",
    "Progress",
    "ProgressStore",
    "Sink",
    "SinkFactory",
    "SinkTransaction",
    "StoreWriter",
]


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of one stream in a sink: everything up to and including `position` is delivered.

    `app_id` is `<pipeline>/<table id>`, of a shard `<pipeline>/<shard>-of-<shards>/<table id>`. This is Delta's `txn`
    idea (PROTOCOL.md, "Transaction Identifiers") for every sink.
    """

    app_id: str
    position: Position


@dataclass(frozen=True, slots=True)
class Demands:
    """Demands of a sink on the pipeline.

    `key`: the columns by which the destination identifies rows. Both images of an update then come together, and a
    single image belongs to a row whose key was added or removed by the version. `max_rows`, `max_bytes` (of Arrow
    memory): the limits of a transaction; None: no limit. `max_quiet_s`: how long an open transaction may wait for rows;
    None: no limit.
    """

    key: tuple[str, ...] = ()
    max_rows: int | None = None
    max_bytes: int | None = None
    max_quiet_s: float | None = None


class SinkTransaction(Protocol):
    """Rows on their way into a sink, invisible until `commit`."""

    async def write(self, batch: ChangeBatch) -> None:
        """Take rows. Batches come in position order, with the schema given to `begin` or announced since.

        Raises `SinkUnavailable` or `SinkRejected`; the transaction is lost then.
        """
        ...

    async def announce(self, event: ControlEvent) -> None:
        """Take an event, at its place between the rows. After a `SchemaChange` rows have its schema `after`.

        Raises as `write` does: `SinkRejected` if the destination cannot hold rows of the new schema.
        """
        ...

    async def commit(self, progress: Progress) -> None:
        """Make the rows and the progress visible together. May be called once, also without any row.

        Raises `CommitUnknown` if the outcome is unknown, `SinkFenced` if another instance has committed for this app_id
        since `begin`.
        """
        ...


@runtime_checkable
class Sink(Protocol):
    """A destination of changes, and the only authority on which of them it has."""

    @property
    def name(self) -> str:
        """The name of the sink in messages."""
        ...

    @property
    def splits_versions(self) -> bool:
        """Return whether `commit` takes a position inside a version; False: only the end of one."""
        ...

    @property
    def splits_snapshots(self) -> bool:
        """Return whether `commit` takes a position inside a snapshot, which may be as large as a whole table."""
        ...

    @property
    def demands(self) -> Demands:
        """The demands on the pipeline."""
        ...

    @property
    def distributes(self) -> bool:
        """Return whether several processes may write at once, each with a sink of these options and its own app_ids.

        Entering `begin` then takes the app_id over: its earlier writer is refused from then on, for good.
        """
        ...

    async def progress(self, app_id: str) -> Progress | None:
        """Read the progress committed last for `app_id` from the destination. None: no progress."""
        ...

    async def has_delivered(self, pipeline: str) -> bool:
        """Return whether `pipeline` (`pipeline_of`) has progress in any table.

        This identifies a table that has replaced another one.
        """
        ...

    async def reset(self, progress: Progress) -> None:
        """Set progress without rows, forward or back. For operators only. Existing rows stay."""
        ...

    def begin(self, app_id: str, schema: pa.Schema) -> AbstractAsyncContextManager[SinkTransaction]:
        """Open a transaction, first for rows of `schema` (`tailer.plan.output_schema`). One at a time per app_id."""
        ...

    async def aclose(self) -> None:
        """Release connections and locks."""
        ...


@runtime_checkable
class Heartbeat(Protocol):
    """The optional side of a `Sink` that has something to do when there are no changes.

    It informs its readers, or notices that another instance has taken over.
    """

    async def beat(self, app_id: str) -> float | None:
        """Send a heartbeat if one is due. Return the seconds until the next call; None: none before the next change.

        Called between transactions, while the pipeline is caught up. Raises as a transaction does.
        """
        ...


@runtime_checkable
class FirstStart(Protocol):
    """The optional side of a `Sink` that distinguishes a first start from lost progress."""

    async def check_first_start(self, pipeline: str, table_ids: Sequence[str]) -> None:
        """Check a pipeline that is about to begin without progress in the sink.

        `table_ids`: all ids that its table has had. Raises `SinkRejected` if the destination seems to have its rows
        already.
        """
        ...


@runtime_checkable
class AtLeastOnceSink(Protocol):
    """A destination without transactions: rows may be repeated after a failure, but are never lost."""

    @property
    def name(self) -> str:
        """The name of the sink in messages."""
        ...

    async def write(self, batch: ChangeBatch) -> None:
        """Hand rows over."""
        ...

    async def announce(self, event: ControlEvent) -> None:
        """Hand over an event, at its place between the rows."""
        ...

    async def flush(self) -> None:
        """Return when everything written was handed to the destination."""
        ...

    async def aclose(self) -> None:
        """Release connections."""
        ...


class ProgressStore(Protocol):
    """A store of progress for sinks that cannot keep it themselves."""

    async def progress(self, app_id: str) -> Progress | None:
        """Return the progress recorded last for `app_id`."""
        ...

    async def has_delivered(self, pipeline: str) -> bool:
        """See `Sink.has_delivered`."""
        ...

    async def record(self, progress: Progress) -> None:
        """Replace the recorded progress. Raises `SinkFenced` if another instance has written since it was read."""
        ...

    async def aclose(self) -> None:
        """Release the store."""
        ...


@runtime_checkable
class StoreWriter(Protocol):
    """The optional side of a sink whose option `path` may be in an object store."""

    def use_stores(self, stores: Stores) -> None:
        """Take the configured stores, before anything else is called; no I/O. Raises `ConfigError`."""
        ...


class SinkFactory(Protocol):
    """The class that an entry point of the group `tailer.sinks` names."""

    @classmethod
    def configure(cls, name: str, options: Mapping[str, Any]) -> Self:
        """Validate `options` (the sink's table of the configuration without `kind`) and build the sink; no I/O.

        Raises `ConfigError` naming the option; several of them as an `ExceptionGroup`.
        """
        ...
