"""The `TableLog` port of every table format: a log that is read forward, with one plan for each version.

Where versions are gone, a log may also plan the net difference between the versions around them. The numbers of its
tasks tell the version from which it begins, so that a pipeline that stopped inside it continues with the same rows.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

import pyarrow as pa

from tailer.errors import TailerError
from tailer.plan import SNAPSHOT_TASKS, TASKS, ChangePlan, Position
from tailer.start import Start, StartPoint
from tailer.stores.wakeup import Wake

__all__ = [
    "MOST_NET_TASKS",
    "MOST_NET_VERSIONS",
    "ChecksState",
    "Contradiction",
    "NetDifferences",
    "TableLog",
    "first_net_task",
    "net_start",
]

# Part of positions: a change would make pipelines that stopped inside a net difference lose or repeat rows.
_NET_TASKS: Final = 2**31  # of `TASKS`; the plan of one version never has so many
MOST_NET_TASKS: Final = 2**18
MOST_NET_VERSIONS: Final = 2**13


def first_net_task(before: int, version: int) -> int:
    """Return the number of the first task of the net difference from `before` to `version`.

    It has at most `MOST_NET_TASKS` tasks, and spans fewer than `MOST_NET_VERSIONS` versions.
    """
    return _NET_TASKS + (version - before) * MOST_NET_TASKS


def net_start(position: Position) -> int | None:
    """Return the version from which the net difference around `position` begins; None: `position` is not in one."""
    number = position.task % TASKS - _NET_TASKS
    if not 0 <= position.task < SNAPSHOT_TASKS or number < 0:
        return None
    return position.version - number // MOST_NET_TASKS


class TableLog(Protocol):
    """A table's log, read forward from one version.

    Only one task at a time may use an instance. Methods raise `StorageError`, `LogError` or `ChangeError`.
    """

    @property
    def uri(self) -> str:
        """The table's location."""
        ...

    @property
    def retention_ms(self) -> int | None:
        """Minimum time that files of a version are kept, in milliseconds, at the current state; None: not known yet."""
        ...

    @property
    def state_id(self) -> str | None:
        """The table's id at the current state; None before the first version, or before `seek`."""
        ...

    async def table_id(self) -> str:
        """Return the table's id at the latest version. A recreated table has another id."""
        ...

    async def ids(self, since: int) -> tuple[str, ...]:
        """Return all ids of the table at version `since` and later, as far back as the log goes, newest first."""
        ...

    async def latest(self) -> int:
        """Return the newest version."""
        ...

    async def resolve(self, start: Start) -> StartPoint:
        """Resolve `start`. A timestamp means the first version at or after it."""
        ...

    async def resolve_end(self, end: Start) -> int:
        """Resolve the last version to deliver. A timestamp means the last version at or before it."""
        ...

    async def seek(self, version: int) -> pa.Schema | None:
        """Prepare to read changes from `version` on, which may be the version after the latest.

        Returns the schema before `version` (see `ChangeTask.schema`); None for the first version.

        Raises `VersionGone` where the log no longer has it, `VersionAhead` for a later version.
        """
        ...

    async def next_plan(self) -> ChangePlan | None:
        """Return the plan of the next version; None where it does not exist yet. Costs one request to the store."""
        ...

    async def confirm(self, delivered: Position | None) -> None:
        """Raise `StorageUnavailable` if the last planned commit has changed since: it was read incompletely.

        `delivered`: what the sink has. If that ends inside the version, reading it again would give other rows before
        that position, so `LogRewritten` is raised. Call it before rows of the commit become visible. Costs one request
        to the store, which may not detect every change.
        """
        ...

    def snapshot_plans(self, version: int) -> AsyncGenerator[ChangePlan, None]:
        """Yield all rows of `version` as inserts: at least one plan, each with as many tasks as fit into memory."""
        ...

    async def after_loss(self, error: TailerError, version: int) -> int:
        """Return the first version after `version` whose changes can be read, where `error` stopped delivery.

        Raises `error` where there is no such version, or where the error is not about lost data.
        """
        ...

    def make_wake(self) -> Wake:
        """Make a wake-up for new versions of this table; no I/O."""
        ...


@runtime_checkable
class NetDifferences(Protocol):
    """The optional side of a `TableLog` that can compare two versions without those between them."""

    async def net_plan(self, before: int, version: int | None = None) -> ChangePlan:
        """Plan the net difference from the rows of `before` to those of `version`; None: the next one in the log.

        The number of its first task is `first_net_task`. `seek` before the next `next_plan`: the log may be at any
        version. Raises `ChangesUnavailable` where one of the two is gone, or they cannot be compared.
        """
        ...


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A version whose changes do not turn the table before it into the one after it. `path`: a file that shows it."""

    version: int
    path: str
    reason: str


@runtime_checkable
class ChecksState(Protocol):
    """The optional side of a `TableLog` whose versions may contradict the table's state."""

    async def contradictions(self) -> tuple[Contradiction, ...]:
        """Return the versions that do, among the newest ones: as far back as their state can be read quickly."""
        ...
