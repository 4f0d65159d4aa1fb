"""The port every table format plugs into: a log that is read forward, a plan for each version."""

from collections.abc import AsyncGenerator
from typing import Protocol

import pyarrow as pa

from tailer.errors import TailerError
from tailer.plan import ChangePlan
from tailer.start import Start, StartPoint

__all__ = ["TableLog"]


class TableLog(Protocol):
    """A table's log, read forward from one version: what a table format provides.

    An instance is used by one task at a time. Methods raise `StorageError`, `LogError` or `ChangeError`.
    """

    @property
    def uri(self) -> str:
        """The table's location."""
        ...

    @property
    def retention_ms(self) -> int | None:
        """How long after a version at least what it refers to is kept, as of the state reached; None: not known yet."""
        ...

    @property
    def state_id(self) -> str | None:
        """The table's identity where it was read to; None before the first version, or before `seek`."""
        ...

    async def table_id(self) -> str:
        """The table's identity at the latest version, which a recreated table does not share."""
        ...

    async def ids(self, since: int) -> tuple[str, ...]:
        """Every identity the table had at version `since` and later, as far back as the log goes, newest first."""
        ...

    async def latest(self) -> int:
        """The newest version there is now."""
        ...

    async def resolve(self, start: Start) -> StartPoint:
        """Make `start` definite. A timestamp means the first version not earlier than it."""
        ...

    async def resolve_end(self, end: Start) -> int:
        """The last version to deliver. A timestamp means the last version not later than it."""
        ...

    async def seek(self, version: int) -> pa.Schema | None:
        """Prepare to read changes from `version` on, which may be the one after the latest.

        Returns the schema in force before it (see `ChangeTask.schema`); None where nothing is before it.

        Raises `VersionGone` where the log no longer holds it, `VersionAhead` where it is further ahead than that.
        """
        ...

    async def next_plan(self) -> ChangePlan | None:
        """The plan of the next version, or None when there is none yet. Costs one look at the store."""
        ...

    async def confirm(self) -> None:
        """Raise `StorageUnavailable` if the commit that was planned last has changed since: it was not there whole.

        To be called before rows of it are made visible. Costs one look at the store, which may not be able to tell.
        """
        ...

    def snapshot_plans(self, version: int) -> AsyncGenerator[ChangePlan, None]:
        """All rows of `version`, as inserts: at least one plan, with as many tasks as fit into memory."""
        ...

    async def after_loss(self, error: TailerError, version: int) -> int:
        """The first version behind `version` whose changes can be read, given that `error` stopped delivery there.

        Raises `error` where there is none, or where it is not about something that is lost.
        """
        ...
