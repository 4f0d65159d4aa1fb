"""Data loss: a version that cannot be delivered, and how a pipeline gets past it.

A session that meets such a version ends, and `DataLoss` remembers the obstacle. The next session delivers everything
before it and then asks `DataLoss.get_past`: stop with the error, announce a gap and go on after it, or deliver a
snapshot, as `OnDataLoss` says. Where the log does not tell the state to go on from, a pipeline without an end waits
until that changes.
"""

import logging
import time
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from tailer.errors import (
    ChangeError,
    ChangesUnavailable,
    FileVacuumed,
    LogCorrupt,
    LogError,
    StateUnknown,
    TableReplaced,
    TailerError,
    VersionAhead,
    VersionGone,
)
from tailer.events import Gap
from tailer.pipeline.policy import OnDataLoss, Policy
from tailer.pipeline.sink_writer import Delivery
from tailer.pipeline.version_writer import VersionWriter
from tailer.pipeline.wakeup import Wake
from tailer.plan import Position
from tailer.table_log import TableLog

__all__ = ["DataLoss", "Obstacle"]

_log = logging.getLogger(__name__)

_LOST_LOG: Final = (VersionGone, LogCorrupt)
_LOST: Final = (*_LOST_LOG, FileVacuumed, ChangesUnavailable, TableReplaced)
_REMIND_S: Final = 600.0
_WAIT_POLLS: Final = 10  # between two looks at a log that does not tell the state


class DataLoss:
    """The obstacle that a pipeline met, if any, over all of its sessions. `poll_interval_s`: as in `Limits`."""

    def __init__(
        self,
        name: str,
        table: TableLog,
        policy: Policy,
        versions: VersionWriter,
        wake: Wake,
        poll_interval_s: float,
    ) -> None:
        self._name = name
        self._table = table
        self._policy = policy
        self._versions = versions
        self._wake = wake
        self._poll_interval_s = poll_interval_s
        self._obstacle: Obstacle | None = None
        self._awaited = _Awaited(name)

    @property
    def is_known(self) -> bool:
        """Whether there is an obstacle."""
        return self._obstacle is not None

    def forget_other(self, table_id: str) -> None:
        """Forget an obstacle that is not about the table `table_id`."""
        if self._obstacle is not None and not self._obstacle.stands_in(table_id):
            self._obstacle = None

    def is_news(self, error: TailerError) -> bool:
        """Whether `error` is the obstacle, and no session has tried to get past it yet."""
        return self._obstacle is not None and self._obstacle.error is error and not self._obstacle.met

    def stands_before(self, version: int, last: int | None) -> bool:
        """Whether the obstacle must be passed before `version` is delivered. `last`: the version to end with."""
        obstacle = self._obstacle
        if obstacle is None or isinstance(obstacle.error, TableReplaced):
            return obstacle is not None
        return version >= obstacle.version and (last is None or version <= last)

    def note(self, error: LogError | ChangeError, table_id: str, nothing_lost: bool) -> None:
        """Remember what stopped a session, if another one can do more than fail in the same way."""
        version: int | None = getattr(error, "version", None)
        lost = isinstance(error, _LOST) and self._policy.on_data_loss is not OnDataLoss.FAIL
        before = self._obstacle
        if error.table != self._table.uri or version is None or (nothing_lost and not lost):
            return
        # Trying to get past one and meeting another, a person must look.
        if before is None or not (before.met or (type(before.error), before.version) == (type(error), version)):
            if not self._awaited.is_about(error):
                _log.warning("%s: %s", self._name, error)
            self._obstacle = Obstacle(error, version, table_id, lost)

    async def wait(self, error: TailerError, has_end: bool) -> bool:
        """Wait for news of a log that tells no way past `error`; False where `error` is none to wait for.

        `has_end`: whether the pipeline ends at some version; it raises `StateUnknown` then.
        """
        goes_past = self._policy.on_data_loss is not OnDataLoss.FAIL
        if not goes_past or not isinstance(error, _LOST_LOG) or error.table != self._table.uri:
            return False
        loss = error if self._obstacle is None else self._obstacle.error
        missing = self._awaited.missing(self._table.uri, loss)
        if has_end:
            raise missing from error
        self._awaited.say(loss, missing)
        self._obstacle = None
        await self._wake.wait(self._poll_interval_s * _WAIT_POLLS)
        return True

    async def get_past(
        self, delivery: Delivery, version: int, in_snapshot: bool = False, after: Position | None = None
    ) -> int | None:
        """Get past the obstacle as the policy says; the version to go on with. None: the obstacle is gone.

        `in_snapshot`: whether it stood in the way of the snapshot of `version`, delivered up to `after`. Raises it.
        """
        obstacle = self._obstacle
        if obstacle is None or (not in_snapshot and await self._is_restored(version)):
            return None
        obstacle.met = True
        if not obstacle.lost:
            raise obstacle.error
        replaced = isinstance(obstacle.error, TableReplaced)
        if self._policy.on_data_loss is OnDataLoss.RESNAPSHOT or replaced:
            first = 0 if replaced else version
            least = version + 1 if in_snapshot and after is not None else first  # not once more the same files
            found: int | None = await self._resnapshot(delivery, first, least, obstacle)
        elif in_snapshot:
            raise obstacle.error  # to leave the rest of a whole table out is not what was asked for
        else:
            found = await self._skip(delivery, version, obstacle)
        if found is not None:
            _log.warning("%s: the changes of versions %d to %d are lost; going on", self._name, version, found - 1)
            self._obstacle = None
        return found

    async def _is_restored(self, version: int) -> bool:
        """Whether what was in the way at `version` is gone: another session finds out the rest."""
        if self._obstacle is None or not await self._obstacle.is_restored(self._table, version):
            return False
        self._obstacle = None
        await self._wake.wait(self._poll_interval_s)
        return True

    async def _resnapshot(self, delivery: Delivery, first: int, least: int, obstacle: "Obstacle") -> int:
        """Deliver all rows of the newest version that the log tells, at least `least`; the next one."""
        version = await self._table.latest()
        while version >= least:
            async with aclosing(self._table.snapshot_plans(version)) as pages:
                try:
                    page = await anext(pages)
                except _LOST_LOG as error:
                    if error.version is None or not 0 < error.version <= version:
                        raise
                    version = error.version - 1
                    continue
                gap = obstacle.gap(page.table_id, first, version, snapshot=True)
                plan = self._policy.shape(page)
                self._versions.check_schema(delivery.schema, plan)
                await delivery.skip(gap, plan.schema)
                await self._versions.pages(delivery, page, pages, None)
                return version + 1
        raise obstacle.error

    async def _skip(self, delivery: Delivery, version: int, obstacle: "Obstacle") -> int | None:
        """Tell the sink that changes from `version` on are lost; the first version that can be delivered again."""
        found, seen = await self._next_readable(obstacle.error, version)
        table_id = self._table.state_id or obstacle.table_id
        if await self._is_restored(version):  # while the log was read
            return None
        gap = obstacle.gap(table_id, version, found - 1, snapshot=False)
        await delivery.skip(gap, self._policy.shape_schema(seen) or pa.schema([]))
        return found

    async def _next_readable(self, error: TailerError, version: int) -> tuple[int, pa.Schema | None]:
        """Find the first version after `version` that can be entered, and the schema before it."""
        found = await self._table.after_loss(error, version)
        try:
            return found, await self._table.seek(found)
        except _LOST_LOG as further:
            return await self._next_readable(further, found)


@dataclass(slots=True)
class Obstacle:
    """What stopped a session at `version` of the table `table_id`.

    `lost`: whether to go on behind it. `met`: whether that was tried.
    """

    error: LogError | ChangeError
    version: int
    table_id: str
    lost: bool
    met: bool = False

    def gap(self, table_id: str, first: int, last: int, snapshot: bool) -> Gap:
        """The gap to announce for the lost versions `first` to `last`."""
        return Gap(table_id, first, last, int(time.time() * 1000), str(self.error), snapshot)

    def stands_in(self, table_id: str) -> bool:
        """Whether it still is in the way when the table is `table_id`."""
        return isinstance(self.error, TableReplaced) or self.table_id == table_id

    async def is_restored(self, table: TableLog, version: int) -> bool:
        """Whether a log that was lost can be read again at `version`, whose changes are then not lost.

        Leaves `table` anywhere. Raises `StorageError`, `VersionAhead`.
        """
        if not isinstance(self.error, _LOST_LOG):
            return False
        try:
            await table.seek(version)
            await table.next_plan()
        except _LOST_LOG:
            return False
        except VersionAhead:
            raise
        except (LogError, ChangeError) as error:
            _log.info("%s: %s", table.uri, error)  # for whoever reads on
        return True


class _Awaited:
    """The loss that the pipeline `name` waits to get past: said once, and again every ten minutes."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loss: tuple[type[TailerError], int | None] | None = None
        self._said = 0.0

    def is_about(self, error: TailerError) -> bool:
        """Whether `error` is that loss."""
        return self._loss == _loss(error)

    @staticmethod
    def missing(table: str, error: TailerError) -> StateUnknown:
        """The loss as an error: the log of `table` tells no way past `error`."""
        version: int | None = getattr(error, "version", None)
        return StateUnknown(table, 0 if version is None else version, str(error))

    def say(self, error: TailerError, missing: StateUnknown) -> None:
        """Log that a way past `error` is waited for, as `missing` says, unless that was said lately."""
        if not self.is_about(error) or time.monotonic() - self._said >= _REMIND_S:
            _log.warning("%s: %s; waiting. %s", self._name, missing, missing.hint)
            self._loss, self._said = _loss(error), time.monotonic()


def _loss(error: TailerError) -> tuple[type[TailerError], int | None]:
    return type(error), getattr(error, "version", None)
