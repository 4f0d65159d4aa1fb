"""The port between the loop and the two ways to deliver versions.

The loop (`tailer.pipeline.loop`) decides what comes next; a `Delivery` brings it to the sink:

- `tailer.pipeline.row_delivery`: the driver runs the plan of each version, and writes its rows to the sink;
- `tailer.spark.write.shard_delivery`: executors read a range, exchange its rows, and deliver each shard of them.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final, Protocol, Self

import pyarrow as pa

from tailer.errors import ChangesUnavailable, TailerError
from tailer.events import Gap
from tailer.pipeline.backfill.command import BackfillCommand, Backfills
from tailer.plan import TASKS, ChangePlan, Position
from tailer.sink import Sink
from tailer.start import StartPoint
from tailer.table_log import TableLog

__all__ = [
    "Delivery",
    "ResumePoint",
    "Session",
    "TakesCommands",
    "VersionRange",
    "check_known_columns",
    "first_point",
    "tell_key",
]

_NET_TASKS: Final = 2**31  # the number, modulo `TASKS`, from which tasks of net differences were numbered


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """A place in the table's history from which a session delivers.

    `version`: the first one to deliver. `snapshot`: whether all of its rows are due as inserts, and not its changes.
    `after`: the position up to which the sink has rows; None: it has no row of this version. `knows_columns`: whether
    the sink has rows of the version just before, so that a change of their columns must be announced to it. `fresh`:
    whether the sink has no progress.
    """

    version: int
    snapshot: bool = False
    after: Position | None = None
    knows_columns: bool = False
    fresh: bool = False

    @classmethod
    def following(cls, position: Position) -> Self:
        """Return the place after `position`, up to which the sink has everything."""
        begun = not position.opens_version
        version = position.version + position.closes_version
        after = position if begun else None
        return cls(version, position.in_snapshot, after, knows_columns=begun)

    @property
    def in_net_difference(self) -> bool:
        """Return whether the sink has a part of a net difference, which former releases delivered across a gap.

        The version's own plan has other tasks: continuing with it would leave out rows.
        """
        after = self.after
        return after is not None and after.is_inside and not self.snapshot and after.task % TASKS >= _NET_TASKS

    @property
    def is_between(self) -> bool:
        """Return whether there is a version before, and nothing is delivered of `version`."""
        return self.version > 0 and not self.snapshot and not (self.after is not None and self.after.is_inside)

    @property
    def last_begun(self) -> int:
        """The last version of which the sink has rows, or would have them if the version had any."""
        return self.version if self.after is not None and self.after.is_inside else self.version - 1


@dataclass(frozen=True, slots=True)
class VersionRange:
    """The versions `first` to `last`, which are delivered together.

    `oldest_ms`: when the first one was committed; None: not known. `size_bytes`: of their files. `plans`: of each
    version, or the pages of one snapshot.
    """

    first: int
    last: int
    oldest_ms: int | None = None
    size_bytes: int = 0
    plans: tuple[ChangePlan, ...] = ()

    @classmethod
    def of(cls, plans: Sequence[ChangePlan]) -> Self:
        """Return the range of `plans`, at least one, all of one table."""
        size_bytes = sum(plan.size_bytes for plan in plans)
        return cls(plans[0].version, plans[-1].version, plans[0].timestamp_ms, size_bytes, tuple(plans))


class Session(Protocol):
    """A session of a delivery: from the sink's progress to the end, `stop`, or an error.

    The loop calls `begin` once the table is at the next version, and then `plan` and `deliver` in turn. Methods raise
    what table, engine and sink raise.

    `sink`: to be asked for progress and kept alive. `resume`: the place after the sink's progress, as it was when the
    session began; None: no progress.
    """

    sink: Sink
    resume: ResumePoint | None

    @property
    def table_id(self) -> str | None:
        """The table's id under which progress was committed last; None: none yet, or the writers check it."""
        ...

    @property
    def announces_columns(self) -> bool:
        """True if the sink hears of changes of columns, for which those before the first version must be known."""
        ...

    @property
    def app_id(self) -> str | None:
        """The stream to keep alive while nothing is due; None: none yet."""
        ...

    @property
    def commands(self) -> "TakesCommands | None":
        """The side that can leave out lost versions and backfill others; None: lost versions stop the pipeline."""
        ...

    async def record_start(self, plan: ChangePlan) -> None:
        """Commit that the version of `plan`, which has no rows, is delivered."""
        ...

    async def snapshot(self, version: int, after: Position | None) -> bool:
        """Deliver all rows of `version` after `after`. Return False if it was stopped before the end."""
        ...

    def begin(self, version: int, schema: pa.Schema | None, last: int | None) -> None:
        """Prepare to plan from `version` on, where the table is, up to `last` (None: no end).

        `schema`: the delivered columns just before it; None: the sink need not hear of a change.
        """
        ...

    async def plan(self) -> VersionRange | None:
        """Plan the next versions to deliver together; None if there is nothing new."""
        ...

    async def deliver(self, versions: VersionRange, after: Position | None) -> None:
        """Deliver `versions`; of the first one the rows after `after`, if that is inside it. May leave them open."""
        ...

    async def commit(self) -> None:
        """Commit what is delivered and still open."""
        ...

    def narrow(self, error: TailerError) -> bool:
        """Deliver fewer versions at once from the next session on, if that gets past `error`. Return whether it may."""
        ...

    async def salvage(self, error: TailerError) -> bool:
        """Commit what can be committed before `error` ends the session. Return False if whole versions are aborted."""
        ...


class Delivery(Protocol):
    """A way to deliver a table to a sink. It outlives its sessions, and keeps no progress (invariant 2)."""

    def session(self, table_id: str) -> AbstractAsyncContextManager[Session]:
        """Open a session that begins with the sink's progress. `table_id`: the table's id at its latest version."""
        ...


class TakesCommands(Protocol):
    """The side of a `Session` that can leave out lost versions and backfill others (`Session.commands`).

    Only a delivery of rows has it: its sink takes control events between them.
    """

    async def skip(self, gap: Gap, schema: pa.Schema) -> None:
        """Announce `gap`, after which rows have `schema`."""
        ...

    async def resnapshot(self, gap: Gap, page: ChangePlan, rest: AsyncIterator[ChangePlan]) -> None:
        """Announce `gap`, then deliver a snapshot in place of the lost versions: `page`, then the `rest`."""
        ...

    async def backfill(self, backfills: Backfills, command: BackfillCommand) -> bool:
        """Deliver the rest of a backfill. Return False if it was stopped or has ended meanwhile."""
        ...


async def first_point(table: TableLog, start: StartPoint, sink: Sink) -> ResumePoint:
    """Return where a pipeline without progress begins. A sink that needs the whole table gets a snapshot."""
    if sink.demands.whole and start.version > 0 and not start.snapshot:
        return ResumePoint(min(start.version, await table.latest()), snapshot=True, fresh=True)
    return ResumePoint(start.version, start.snapshot, fresh=True)


def check_known_columns(table: TableLog, point: ResumePoint, columns: pa.Schema | None) -> None:
    """Raise `ChangesUnavailable` if the sink has rows, and it is not known which `columns` they have."""
    if point.knows_columns and columns is None and point.version > 0:
        reason = "it may change the schema, and the log no longer has the schema before it"
        raise ChangesUnavailable(table.uri, point.version, reason)


async def tell_key(sink: Sink, table: TableLog, version: int) -> None:
    """Give `sink` the primary key of a version of `table`, if it demands one. Raises what the table raises."""
    if sink.demands.primary_key:
        sink.use_key(await table.key(version))
