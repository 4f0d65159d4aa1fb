"""The ports of a destination: a sink, its transactions, and the progress store of sinks without transactions.

`Sink`, `SinkTransaction` and `AtLeastOnceSink` are classes to inherit: what a destination need not have, such as a
heartbeat, is a method with a default.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self, TypeVarTuple

import pyarrow as pa

from tailer.errors import SinkError
from tailer.events import ChangeBatch, ControlEvent
from tailer.plan import Position
from tailer.sink.heartbeats import Heartbeats
from tailer.stores.stores import Stores

__all__ = [
    "OTHER_CLASS",
    "AtLeastOnceSink",
    "Demands",
    "MirrorRepair",
    "MirrorRows",
    "Progress",
    "ProgressStore",
    "Sink",
    "SinkFactory",
    "SinkTransaction",
    "refused",
]


Ts = TypeVarTuple("Ts")


def refused(check: Callable[[*Ts], object], *arguments: *Ts) -> list[SinkError]:
    """Return the error that `check` raises, for `Sink.refusals`; an empty list where it raises none."""
    try:
        check(*arguments)
    except SinkError as error:
        return [error]
    return []


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of one stream in a sink: everything up to and including `position` is delivered.

    `app_id` is `<pipeline>/<table id>`, of others as in `tailer.sink.app_id`. This is Delta's `txn` idea (PROTOCOL.md,
    "Transaction Identifiers") for every sink.
    """

    app_id: str
    position: Position


@dataclass(frozen=True, slots=True)
class Demands:
    """Demands of a sink on the pipeline.

    `key`: the columns by which the destination identifies rows. Both images of an update then come together, and a
    single image belongs to a row whose key was added or removed by the version. `max_rows`, `max_bytes` (of Arrow
    memory): the limits of a transaction; None: no limit. `max_quiet_s`: how long an open transaction may wait for rows;
    None: no limit. `whole`: whether the destination needs all rows of the table: a first start that would leave out
    versions begins with a snapshot instead. `primary_key`: whether it takes that of the table (`Sink.use_key`).
    `gap_remedy`: how to configure a place where readers learn of a gap; empty: there is one.
    """

    key: tuple[str, ...] = ()
    max_rows: int | None = None
    max_bytes: int | None = None
    max_quiet_s: float | None = None
    whole: bool = False
    primary_key: bool = False
    gap_remedy: str = ""


OTHER_CLASS: Final = "\0"


class MirrorRows(Protocol):
    """One state of a destination that should equal its source at `version`. Methods block.

    `app_id`: under which it was filled last. `known_from`: the first version whose rows can be read; a mirror has one
    version. `columns`: those of the source; `key`: those that identify a row, none for a log of changes. `columns_at`:
    of a history, which keeps dropped columns, the version at which its columns have these names. `lower_names`: whether
    `columns` are those of the source in lower case.

    Rows have a text for each value, null for null. Two texts are equal if, and only if, the destination distinguishes
    the values as little as the source does. The text of a value of a class that its column does not have begins with
    `OTHER_CLASS`, the name of the class and a space.
    """

    app_id: str
    version: int
    known_from: int
    columns: tuple[str, ...]
    key: tuple[str, ...]
    columns_at: int | None = None
    lower_names: bool = False

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows; of a log of changes, those that were inserted. May be called again for the same rows."""
        ...

    def deleted_rows(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a log of changes that were deleted. Without them, the other ones equal the source."""
        ...

    def as_stored(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield rows of the source, which have `columns`, as the destination would hold them.

        Of a history, rows may lack columns, and have narrower types: they have been there since.

        Raises `SinkRejected` for a value that it cannot hold.
        """
        ...

    def stored_keys(self, rows: pa.RecordBatch) -> pa.Table:
        """Return the key of each row of the source, in their order, as the destination would hold it."""
        ...

    def begin_repair(self) -> "MirrorRepair":
        """Begin to replace rows, which have a key."""
        ...


class MirrorRepair(Protocol):
    """Rows of a mirror that are replaced by rows of the source, all of them in `commit`. Methods block."""

    def remove(self, keys: pa.RecordBatch) -> None:
        """Remove the rows with these keys, which are as `MirrorRows.rows` yields them."""
        ...

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows of the source, which have `MirrorRows.columns`, after all rows are removed."""
        ...

    def commit(self) -> bool:
        """Replace the rows. Return False, and change nothing, if the mirror has gone on since it was read.

        Its pipeline has committed then, or somebody else, if the destination cannot tell them apart.

        Raises `SinkUnavailable`, `SinkRejected` (nothing was changed) or `CommitUnknown`.
        """
        ...


class SinkTransaction(ABC):
    """Rows on their way into a sink, invisible until `commit`.

    `writes_together`: whether `write_all` takes batches in one step, also those of several versions.
    """

    writes_together: bool = False

    @abstractmethod
    async def write(self, batch: ChangeBatch) -> None:
        """Take rows. Batches come in position order, with the schema given to `begin` or announced since.

        Raises `SinkUnavailable` or `SinkRejected`; the transaction is lost then.
        """

    async def write_all(self, batches: Sequence[ChangeBatch]) -> None:
        """Take batches, at least one, as `write` takes one after the other. Raises and is cancelled as `write`.

        They follow each other and have one schema. Their tasks may differ, and their versions if `writes_together`.
        """
        for batch in batches:
            await self.write(batch)

    @abstractmethod
    async def announce(self, event: ControlEvent) -> None:
        """Take an event, at its place between the rows. After a `SchemaChange` rows have its schema `after`.

        Raises as `write` does: `SinkRejected` if the destination cannot hold rows of the new schema.
        """

    @abstractmethod
    async def commit(self, progress: Progress) -> None:
        """Make the rows and the progress visible together. May be called once, also without any row.

        Raises `CommitUnknown` if the outcome is unknown, `SinkFenced` if another instance has committed since `begin`
        for this app_id, or for one of the pipeline in another table, which has taken the place of this one or was there
        before. If the sink cannot tell why it was refused, `SinkUnavailable`.
        """


class Sink(ABC):
    """A destination of changes, and the only authority on which of them it has.

    `name`: in messages. `writes_to_stores`: whether the option `path` may be in an object store.
    """

    name: str
    writes_to_stores: bool = False

    def use_stores(self, stores: Stores) -> None:  # noqa: B027 - a default
        """Take the configured stores, before anything else is called; no I/O. Raises `ConfigError`."""

    @property
    @abstractmethod
    def splits_versions(self) -> bool:
        """Return whether `commit` takes a position inside a version; False: only the end of one."""

    @property
    @abstractmethod
    def splits_snapshots(self) -> bool:
        """Return whether `commit` takes a position inside a snapshot, which may be as large as a whole table."""

    @property
    def demands(self) -> Demands:
        """The demands on the pipeline."""
        return Demands()

    def use_key(self, key: tuple[str, ...]) -> None:  # noqa: B027 - a default
        """Take the primary key of the table, if the sink demands it; none: the table has none.

        It is that of the version where the destination is, or of the snapshot that follows. Nobody enforces it. Columns
        may be missing from the rows, or have other names there.
        """

    @property
    def distributes(self) -> bool:
        """Return whether several processes may write at once, each with a sink of these options and its own app_ids.

        Entering `begin` then takes the app_id over: its earlier writer is refused from then on, for good.
        """
        return False

    @property
    def aborts(self) -> bool:
        """Return whether rows that are not committed are taken back; False: they stay."""
        return True

    @abstractmethod
    async def progress(self, app_id: str) -> Progress | None:
        """Read the progress committed last for `app_id` from the destination. None: no progress."""

    @abstractmethod
    async def has_delivered(self, pipeline: str) -> bool:
        """Return whether `pipeline` (`pipeline_of`) has progress in any table.

        This identifies a table that has replaced another one.
        """

    async def check_first_start(self, pipeline: str, table_ids: Sequence[str]) -> None:  # noqa: B027 - a default
        """Check a pipeline that is about to begin without progress in the sink: lost progress is no first start.

        `table_ids`: all ids that its table has had. Raises `SinkRejected` if the destination seems to have its rows
        already.
        """

    def only_look(self) -> None:  # noqa: B027 - a default
        """Leave the destination as it is from now on, whatever is asked: for a check beside a running pipeline."""

    async def refusals(self, app_id: str, schema: pa.Schema) -> Sequence[SinkError]:
        """Return all errors with which `begin` or the first rows would be refused, as far as can be known without rows.

        Nothing is changed at the destination. Called after `progress`. Raises what `progress` raises.
        """
        return ()

    @abstractmethod
    async def reset(self, progress: Progress) -> None:
        """Set progress without rows, forward or back. For operators only. Existing rows stay."""

    @abstractmethod
    def begin(self, app_id: str, schema: pa.Schema) -> AbstractAsyncContextManager[SinkTransaction]:
        """Open a transaction, first for rows of `schema` (`tailer.plan.output_schema`). One at a time per app_id."""

    async def beat(self, app_id: str) -> float | None:
        """Send a heartbeat if one is due. Return the seconds until the next call; None: none before the next change.

        A sink informs its readers so, or notices that another instance has taken over. Called between transactions,
        while the pipeline is caught up. Raises as a transaction does.
        """
        return None

    def open_mirror(self, pipeline: str, version: int | None = None) -> AbstractAsyncContextManager[MirrorRows] | None:
        """Read what `pipeline` has delivered, as one state, while it may go on; None: that cannot be compared.

        `version`: of a history, the rows as of this version; None: the newest. Entering raises `SinkUnavailable`, and
        `SinkRejected` if there is no version yet, or not this one.
        """
        return None

    def open_heartbeats(self, pipeline: str, timeout_s: float) -> Heartbeats | None:
        """Open the place for the heartbeats of `pipeline`, with connections of its own; no I/O. None: there is none.

        Calls end after about `timeout_s` seconds where the destination is silent. Heartbeats take the destination's
        own means, cost little, and leave no trace in what readers read.
        """
        return None

    @abstractmethod
    async def aclose(self) -> None:
        """Release connections and locks."""


class AtLeastOnceSink(ABC):
    """A destination without transactions: rows may be repeated after a failure, but are never lost.

    `name`: in messages. `writes_together`: whether `write_all` takes batches in one step, also those of several
    versions. After `SinkRejected` it gets these again, one version at a time: it takes none of them, or rows come
    twice. `writes_to_stores`: see `Sink`.
    """

    name: str
    writes_together: bool = False
    writes_to_stores: bool = False

    def use_stores(self, stores: Stores) -> None:  # noqa: B027 - a default
        """See `Sink.use_stores`."""

    async def refusals(self, schema: pa.Schema) -> Sequence[SinkError]:
        """Return all errors with which the first rows would be refused, as `Sink.refusals`."""
        return ()

    @abstractmethod
    async def write(self, batch: ChangeBatch) -> None:
        """Hand rows over."""

    async def write_all(self, batches: Sequence[ChangeBatch]) -> None:
        """See `SinkTransaction.write_all`."""
        for batch in batches:
            await self.write(batch)

    @abstractmethod
    async def announce(self, event: ControlEvent) -> None:
        """Hand over an event, at its place between the rows."""

    @abstractmethod
    async def flush(self) -> None:
        """Return when everything written was handed to the destination."""

    def forget(self) -> None:  # noqa: B027 - a default
        """Forget rows that are held back: their transaction ended without `flush`, and they come again."""

    @abstractmethod
    async def aclose(self) -> None:
        """Release connections."""


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


class SinkFactory(Protocol):
    """The class that an entry point of the group `tailer.sinks` names."""

    @classmethod
    def configure(cls, name: str, options: Mapping[str, Any]) -> Self:
        """Validate `options` (the sink's table of the configuration without `kind`) and build the sink; no I/O.

        Raises `ConfigError` naming the option; several of them as an `ExceptionGroup`.
        """
        ...
