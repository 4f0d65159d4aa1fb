"""The ports of a destination, and the one adapter every non-transactional destination needs.

A sink is the only authority on which changes it has (invariant 2): the pipeline asks it for `progress`, hands it rows
and commits rows and progress together (invariant 1). Life of a transaction::

    async with sink.begin(app_id, schema) as transaction:      # leaving without commit aborts
        await transaction.write(batch)                         # any number of times, in position order
        await transaction.announce(event)                      # where the columns change, or changes are missing
        await transaction.commit(Progress(app_id, position))   # all of it becomes visible, or none

A destination that cannot commit rows and progress atomically (a terminal, an HTTP endpoint) is an `AtLeastOnceSink`
and says so by its type; `Recorded` makes it usable by the pipeline with progress kept in a `ProgressStore`.

Sinks are found through the entry-point group `tailer.sinks`, ours and third parties' alike. An entry names a class
with a classmethod `configure(name, options)` that validates without any I/O.
"""

import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Final, Protocol, Self, runtime_checkable

import pyarrow as pa

from tailer.errors import ConfigError
from tailer.events import ChangeBatch, ControlEvent
from tailer.plan import Position
from tailer.spelling import did_you_mean

__all__ = [
    "LAYOUT",
    "Append",
    "Appendable",
    "AtLeastOnceSink",
    "Demands",
    "FirstStart",
    "Heartbeat",
    "Progress",
    "ProgressStore",
    "Recorded",
    "Sink",
    "SinkFactory",
    "SinkTransaction",
    "configure_sink",
    "is_layout",
    "pipeline_of",
    "shard_name",
    "shard_of",
    "sink_kinds",
    "table_of",
]

ENTRY_POINTS: Final = "tailer.sinks"
LAYOUT: Final = "/shards/layout"


def pipeline_of(app_id: str) -> str:
    """The pipeline that an app_id is about."""
    return app_id.rpartition("/")[0]


def table_of(app_id: str) -> str:
    """The id of the table that an app_id is about."""
    return app_id.rpartition("/")[2]


def shard_name(pipeline: str, shard: int, shards: int) -> str:
    """What a shard of `pipeline` is called as a pipeline of its own; `shard` is from 0 to below `shards`."""
    return f"{pipeline}/{shard}-of-{shards}"


def shard_of(app_id: str) -> tuple[int, int] | None:
    """Which shard of how many the app_id is about; None where its pipeline is not divided."""
    found = re.fullmatch(r".*/(\d+)-of-(\d+)", pipeline_of(app_id))
    return None if found is None else (int(found[1]), int(found[2]))


def is_layout(app_id: str) -> bool:
    """Whether the app_id is about the number of a pipeline's shards (`LAYOUT`): its versions are none of a table."""
    return app_id.endswith(LAYOUT)


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


@dataclass(frozen=True, slots=True)
class Append:
    """Rows for which somebody else's Delta writer makes a commit. Survives pickle.

    `location`: the table's folder; the table is there. `schema`: what rows are written as; `merges`: whether the table
    gets columns by that. `conform`: makes change rows into rows to write, or raises `SinkRejected`. `check`: raises
    `SinkFenced` where the progress of `app_id` is not `expected` any more; it blocks, and runs anywhere. `note`: what
    the commit has to say beside its `txn` action. `version`: of the table, when progress was seen to be `expected`.
    """

    app_id: str
    expected: Position | None
    location: str
    schema: pa.Schema
    merges: bool
    conform: Callable[[pa.RecordBatch], pa.RecordBatch]
    check: Callable[[], None]
    note: str
    version: int


@runtime_checkable
class Appendable(Protocol):
    """What a `Sink` may also be: a Delta table to which a cluster's own writer may append, too.

    Its commits have a `txn` action of the app_id as this sink's own do. `SinkTransaction.commit` and such an append
    exclude each other: of two that go on from the same progress one takes place.
    """

    async def appending(self, app_id: str, schemas: Sequence[pa.Schema]) -> Append:
        """An append of rows of `schemas` on top of what `progress` said last, or else of what the table says now.

        Raises as entering `Sink.begin` does, and as `SinkTransaction.announce` for all schemas but the first.
        """
        ...

    async def confirm(self, append: Append, position: Position) -> bool:
        """Whether the append took place, up to `position`; False where nothing has. Raises `SinkFenced` otherwise.

        Raises `CommitUnknown` where the table cannot be read.
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


class Recorded:
    """An `AtLeastOnceSink` with its progress in a `ProgressStore`: rows are flushed, then progress is recorded."""

    splits_versions: Final = True
    splits_snapshots: Final = True
    demands: Final = Demands()
    distributes: Final = False

    def __init__(self, sink: AtLeastOnceSink, store: ProgressStore) -> None:
        self._sink = sink
        self._store = store

    @property
    def name(self) -> str:
        """The wrapped sink's name."""
        return self._sink.name

    async def progress(self, app_id: str) -> Progress | None:
        """What the store recorded."""
        return await self._store.progress(app_id)

    async def has_delivered(self, pipeline: str) -> bool:
        """What the store recorded."""
        return await self._store.has_delivered(pipeline)

    async def reset(self, progress: Progress) -> None:
        """Record `progress`."""
        await self._store.progress(progress.app_id)
        await self._store.record(progress)

    @asynccontextmanager
    async def begin(self, app_id: str, schema: pa.Schema) -> AsyncIterator[SinkTransaction]:
        """A transaction in name only: rows are handed over at once."""
        yield _RecordedTransaction(self._sink, self._store)

    async def aclose(self) -> None:
        """Close sink and store."""
        try:
            await self._sink.aclose()
        finally:
            await self._store.aclose()


class _RecordedTransaction:
    def __init__(self, sink: AtLeastOnceSink, store: ProgressStore) -> None:
        self._sink = sink
        self._store = store

    async def write(self, batch: ChangeBatch) -> None:
        await self._sink.write(batch)

    async def announce(self, event: ControlEvent) -> None:
        await self._sink.announce(event)

    async def commit(self, progress: Progress) -> None:
        await self._sink.flush()
        await self._store.record(progress)


class SinkFactory(Protocol):
    """What an entry point of the group `tailer.sinks` names."""

    @classmethod
    def configure(cls, name: str, options: Mapping[str, Any]) -> Self:
        """Validate `options` (the sink's table of the configuration without `kind`) and build the sink; no I/O.

        Raises `ConfigError` naming the option; several of them as an `ExceptionGroup`.
        """
        ...


def sink_kinds() -> list[str]:
    """The kinds of sinks that are installed."""
    return sorted(entry_points(group=ENTRY_POINTS).names)


def configure_sink(name: str, kind: str, options: Mapping[str, Any]) -> Sink | AtLeastOnceSink:
    """The sink of `kind`, configured as `name`; no I/O.

    Raises `ConfigError` for an unknown kind, a missing client library or a bad option; an `ExceptionGroup` of them for
    several bad options.
    """
    found = entry_points(group=ENTRY_POINTS, name=kind)
    if not found:
        remedy = f"{did_you_mean(kind, sink_kinds())} Installed kinds: {', '.join(sink_kinds())}."
        raise ConfigError(name, f"no sink of kind {kind!r}", remedy.lstrip())
    try:
        factory = next(iter(found)).load()
    except ImportError as error:
        remedy = f"Install its client: pip install 'lake-tailer[{kind}]'."
        raise ConfigError(name, f"the {kind} sink cannot be loaded: {error}", remedy) from error
    sink: Sink | AtLeastOnceSink = factory.configure(name, options)
    return sink
