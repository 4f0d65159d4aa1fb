"""The `TableLog` port of every table format: a log that is read forward, with one plan for each version.

A class to inherit: what a log need not have is a method with a default.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

import pyarrow as pa

from tailer.errors import TailerError
from tailer.plan import ChangePlan, Position
from tailer.start import Start, StartPoint
from tailer.stores.wakeup import Wake

__all__ = ["TableLog"]


class TableLog(Protocol):
    """A table's log, read forward from one version. `uri`: the table's location.

    Only one task at a time may use an instance. Methods raise `StorageError`, `LogError` or `ChangeError`.
    """

    uri: str

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

    async def key(self, version: int) -> tuple[str, ...]:
        """Return the columns that a version names as its primary key; none where it names none."""
        return ()

    async def ids(self, since: int) -> tuple[str, ...]:
        """Return all ids of the table at version `since` and later, as far back as the log goes, newest first."""
        ...

    async def latest(self) -> int:
        """Return the newest version."""
        ...

    async def resolve(self, start: Start) -> StartPoint:
        """Resolve `start`. A timestamp means the first version at or after it.

        Where numbers have gaps, the version before the result must be part of the history, because it counts as
        delivered from then on: a start is the version after the last one before it.
        """
        ...

    async def resolve_end(self, end: Start) -> int:
        """Resolve the last version to deliver. A timestamp means the last version at or before it."""
        ...

    async def check_delivered(self, version: int) -> None:
        """Raise `ChangesUnavailable` where `version`, which was delivered, is not part of the history any more.

        Where numbers of versions have gaps, `seek` alone does not show that.
        """
        return

    async def seek(self, version: int) -> pa.Schema | None:
        """Prepare to read changes from `version` on, which may be the version after the latest.

        Returns the schema before `version` (see `ChangeTask.schema`); None for the first version.

        Raises `VersionGone` where the log no longer has it, `VersionAhead` for a later version.
        """
        ...

    async def next_plan(self) -> ChangePlan | None:
        """Return the plan of the next version; None where it does not exist yet."""
        plans = await self.next_plans(1)
        return plans[0] if plans else None

    async def next_plans(self, most: int) -> Sequence[ChangePlan]:
        """Return the next plans, at most `most`, as many as are cheap to make together; none where there is none yet.

        The error of a version is raised when that version is the first. One plan costs one request to the store.
        """
        ...

    async def confirm(self, delivered: Position | None) -> None:
        """Raise `StorageUnavailable` if the last planned commit has changed since: it was read incompletely.

        `delivered`: what the sink has. If that ends inside the version, reading it again would give other rows before
        that position, so `LogRewritten` is raised. Call it before rows of the commit become visible. Costs one request
        to the store, which may not detect every change. There is nothing to check where files of a log appear whole.
        """
        return

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
