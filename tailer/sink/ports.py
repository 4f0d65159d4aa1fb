"""The ports of a destination: a sink, its transactions, and the store of progress for those that have none."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol, Self, runtime_checkable

import pyarrow as pa

from tailer.events import ChangeBatch, ControlEvent
from tailer.plan import Position

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
]


@dataclass(frozen=True, slots=True)
class Progress:
    """What a sink has of one stream: everything up to and including `position`.

    `app_id` is `<pipeline>/<table id>`, of a shard `<pipeline>/<shard>-of-<shards>/<table id>`; Delta's `txn` idea
    (PROTOCOL.md, "Transaction Identifiers") everywhere.
    """

    app_id: str
    position: Position


@dataclass(frozen=True, slots=True)
class Demands:
    """What a sink asks of the pipeline in front of it.

    `key`: the columns by which the destination tells rows apart; both images of an update then come together, and an
    image without the other one is of a row whose key came or went with the version. `max_rows`, `max_bytes` (of Arrow
    memory): the most that a transaction should hold; None: as much as the pipeline likes. `max_quiet_s`: how long an
    open transaction may be left without rows while some are waited for; None: for any time.
    """

    key: tuple[str, ...] = ()
    max_rows: int | None = None
    max_bytes: int | None = None
    max_quiet_s: float | None = None


class SinkTransaction(Protocol):
    """Rows on their way into a sink, invisible until `commit`."""

    async def write(self, batch: ChangeBatch) -> None:
        """Take rows. Batches come in position order, all of the schema given to `begin` or announced since.

        Raises `SinkUnavailable` or `SinkRejected`; the transaction is lost then.
        """
        ...

    async def announce(self, event: ControlEvent) -> None:
        """Take what is not a row, at its place between the rows. After a `SchemaChange` rows have its `after`.

        Raises as `write` does: `SinkRejected` where the destination cannot hold rows of the new schema.
        """
        ...

    async def commit(self, progress: Progress) -> None:
        """Make the rows and the progress visible together. May be called once, also without any row.

        Raises `CommitUnknown` where the outcome cannot be told, `SinkFenced` where another instance has committed for
        this app_id since `begin`.
        """
        ...


@runtime_checkable
class Sink(Protocol):
    """A place for changes, and the only authority on which of them it has."""

    @property
    def name(self) -> str:
        """What messages call it."""
        ...

    @property
    def splits_versions(self) -> bool:
        """Whether `commit` takes a position in the middle of a version; False: only positions that close one."""
        ...

    @property
    def splits_snapshots(self) -> bool:
        """Whether `commit` takes a position in the middle of a snapshot, which may be a whole table's worth of rows."""
        ...

    @property
    def demands(self) -> Demands:
        """What it asks of the pipeline."""
        ...

    @property
    def distributes(self) -> bool:
        """Whether several processes may write at once, each with a sink of these options and app_ids of its own.

        Entering `begin` then takes the app_id over: from then on who had it before is refused, for good.
        """
        ...

    async def progress(self, app_id: str) -> Progress | None:
        """What was committed last for `app_id`, asked anew from the destination; None if nothing was."""
        ...

    async def has_delivered(self, pipeline: str) -> bool:
        """Whether `pipeline` has progress in any table (`pipeline_of`), whichever that was.

        This is how a table that was put in the place of another one is noticed.
        """
        ...

    async def reset(self, progress: Progress) -> None:
        """Set progress without rows, forward or back: the operator's tool. Rows that are there stay there."""
        ...

    def begin(self, app_id: str, schema: pa.Schema) -> AbstractAsyncContextManager[SinkTransaction]:
        """Open a transaction, first for rows of `schema` (`tailer.plan.output_schema`). One at a time per app_id."""
        ...

    async def aclose(self) -> None:
        """Let go of connections and locks."""
        ...


@runtime_checkable
class Heartbeat(Protocol):
    """What a `Sink` may also be: one that tells its readers that there is nothing to tell."""

    async def beat(self, app_id: str) -> None:
        """Called between transactions whenever the pipeline is caught up, at every look for a new version.

        Raises as a transaction does.
        """
        ...


@runtime_checkable
class FirstStart(Protocol):
    """What a `Sink` may also be: one that can tell a first start from progress that was lost."""

    async def check_first_start(self, pipeline: str, table_ids: Sequence[str]) -> None:
        """Called before a pipeline begins of which the sink has no progress. `table_ids`: all that its table has had.

        Raises `SinkRejected` where the destination seems to have rows of it already.
        """
        ...


@runtime_checkable
class AtLeastOnceSink(Protocol):
    """A destination without transactions: rows may be repeated after a failure, never lost."""

    @property
    def name(self) -> str:
        """What messages call it."""
        ...

    async def write(self, batch: ChangeBatch) -> None:
        """Hand rows over."""
        ...

    async def announce(self, event: ControlEvent) -> None:
        """Hand over what is not a row, at its place between the rows."""
        ...

    async def flush(self) -> None:
        """Return when everything written has left our hands."""
        ...

    async def aclose(self) -> None:
        """Let go of connections."""
        ...


class ProgressStore(Protocol):
    """Where progress is kept for sinks that cannot keep it themselves."""

    async def progress(self, app_id: str) -> Progress | None:
        """What was recorded last for `app_id`."""
        ...

    async def has_delivered(self, pipeline: str) -> bool:
        """See `Sink.has_delivered`."""
        ...

    async def record(self, progress: Progress) -> None:
        """Replace what is recorded. Raises `SinkFenced` where another instance has written since it was read."""
        ...

    async def aclose(self) -> None:
        """Let go of the store."""
        ...


class SinkFactory(Protocol):
    """What an entry point of the group `tailer.sinks` names."""

    @classmethod
    def configure(cls, name: str, options: Mapping[str, Any]) -> Self:
        """Validate `options` (the sink's table of the configuration without `kind`) and build the sink; no I/O.

        Raises `ConfigError` naming the option; several of them as an `ExceptionGroup`.
        """
        ...
