"""Data loss: a version that cannot be delivered, and how a pipeline gets past it.

A session that reads such a version ends, and `DataLoss` remembers it as an `UndeliverableVersion`. The next session
delivers everything before it and then calls `DataLoss.get_past`. As `OnDataLoss` says, that stops with the error,
announces a gap and continues after it, or delivers a snapshot. An operator may ask for either of the last two once, in
place of what the policy says; a snapshot can also be asked for where nothing is lost, and then takes the place of the
next version that is due, or of an open snapshot of an earlier version. If the log no longer holds the state to continue
from, a pipeline without an end waits until the log changes.
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
    SinkFenced,
    StateUnknown,
    TableReplaced,
    TailerError,
    VersionAhead,
    VersionGone,
)
from tailer.events import Gap
from tailer.pipeline.delivery import ResumePoint, Session, TakesCommands, tell_key
from tailer.pipeline.policy import OnDataLoss, Policy
from tailer.pipeline.status import PipelineStatus
from tailer.stores.wakeup import Wake
from tailer.table_log import TableLog

__all__ = ["DataLoss", "Due", "is_lost"]

_log = logging.getLogger(__name__)

_LOST_LOG: Final = (VersionGone, LogCorrupt)
_LOST: Final = (*_LOST_LOG, FileVacuumed, ChangesUnavailable, TableReplaced)
_REMIND_S: Final = 600.0
_WAIT_POLLS: Final = 10  # between two reads of a log without the state to continue from


def is_lost(error: BaseException | None) -> bool:
    """Return whether `error` says that changes are lost for good, so that a pipeline may go on after them."""
    return isinstance(error, _LOST)


class DataLoss:
    """The undeliverable version of a pipeline, if there is one, remembered over all of its sessions.

    `poll_interval_s`: as in `Limits`. `status`: has the operator's command. `due`: set by the loop before it plans, and
    before it delivers.
    """

    def __init__(
        self, name: str, table: TableLog, policy: Policy, wake: Wake, poll_interval_s: float, status: PipelineStatus
    ) -> None:
        self._name = name
        self._table = table
        self._policy = policy
        self._wake = wake
        self._poll_interval_s = poll_interval_s
        self._status = status
        self._undeliverable: UndeliverableVersion | None = None
        self._begins, self._table_id = 0, ""  # the first version of the session, and the table's id when it began
        self._awaited: tuple[type[TailerError], int | None] | None = None  # the loss that it waits to get past
        self._said_s = 0.0
        self.due: Due | None = None

    @property
    def is_known(self) -> bool:
        """Return whether there is an undeliverable version."""
        return self._undeliverable is not None

    @property
    def _reaction(self) -> OnDataLoss:
        return self._status.command or self._policy.on_data_loss

    async def obey(self, point: ResumePoint) -> bool:
        """If an operator asked for a snapshot, put it in place of what is due at `point`, and return True.

        The rest of a snapshot of the newest version comes first: it cannot begin again at positions that the sink has.
        """
        if self._status.command is not OnDataLoss.RESNAPSHOT or self._undeliverable is not None:
            return False
        if point.snapshot and await self._table.latest() <= point.version:
            return False
        error = ChangesUnavailable(self._table.uri, point.version, "an operator asked for a snapshot in its place")
        version, table_id, begins = point.version, self._table_id, self._begins
        self._undeliverable = UndeliverableVersion(error, version, table_id, skippable=True, begins=begins, fresh=False)
        return True

    def note_resume(self, point: ResumePoint) -> None:
        """Note where a session begins. Forget the undeliverable version if the sink has got past it.

        It may have a part of what is delivered in its place, or another instance has delivered what comes after it.
        """
        undeliverable, self._begins = self._undeliverable, point.version
        if undeliverable is None:
            return
        if point.snapshot and not point.fresh and undeliverable.snapshot == point.version:
            self._forget()
        elif undeliverable.is_passed(point):
            self._undeliverable = None
        undeliverable.fresh |= point.fresh

    def note_caught_up(self) -> None:
        """Forget the command to skip what is lost: everything can be read."""
        if self._status.command is OnDataLoss.SKIP:
            self._status.command = None

    def _forget(self) -> None:
        """Forget the undeliverable version: the pipeline is past it."""
        self._status.gaps += 1
        self._undeliverable = self._status.command = None

    def forget_other(self, table_id: str) -> None:
        """Forget an undeliverable version of another table than `table_id`, with which a session begins."""
        self._table_id, self.due = table_id, None
        if self._undeliverable is not None and not self._undeliverable.applies_to(table_id):
            self._undeliverable = None

    def is_news(self, error: TailerError) -> bool:
        """Return whether `error` is about the undeliverable version and no session has tried to get past it yet."""
        return self._undeliverable is not None and self._undeliverable.error is error and not self._undeliverable.tried

    def blocks(self, version: int, last: int | None) -> bool:
        """Return whether the undeliverable version must be passed before `version`. `last`: the version to end with."""
        undeliverable = self._undeliverable
        if undeliverable is None or isinstance(undeliverable.error, TableReplaced):
            return undeliverable is not None
        return version >= undeliverable.version and (last is None or version <= last)

    def end_before(self, version: int, last: int | None) -> int | None:
        """Return the last version to plan from `version` on: the one before the undeliverable one, or `last`."""
        undeliverable = self._undeliverable
        if undeliverable is None or undeliverable.version <= version:
            return last
        before = undeliverable.version - 1
        return before if last is None else min(before, last)

    def note(self, error: LogError | ChangeError, table_id: str, nothing_lost: bool, *, fresh: bool) -> None:
        """Remember `error`, which stopped a session, unless another session would only fail in the same way.

        `fresh`: whether the session began without progress.
        """
        version: int | None = getattr(error, "version", None)
        lost = isinstance(error, _LOST) and self._reaction is not OnDataLoss.FAIL
        before = self._undeliverable
        if error.table != self._table.uri or version is None or (nothing_lost and not lost):
            return
        version = version if self.due is None else self.due.number_of(version)
        # A second version that fails while getting past the first needs a person.
        if before is None or not (before.tried or (type(before.error), before.version) == (type(error), version)):
            if self._awaited != _loss(error):
                _log.warning("%s: %s", self._name, error)
            self._undeliverable = UndeliverableVersion(error, version, table_id, lost, self._begins, fresh)

    async def wait(self, error: TailerError, has_end: bool) -> bool:
        """Wait for a change of a log that offers no way past `error`. Return False if `error` is not of that kind.

        `has_end`: whether the pipeline ends at some version. It then raises `StateUnknown` instead of waiting.
        """
        goes_past = self._reaction is not OnDataLoss.FAIL
        if not goes_past or not isinstance(error, _LOST_LOG) or error.table != self._table.uri:
            return False
        loss = error if self._undeliverable is None else self._undeliverable.error
        missing = StateUnknown(self._table.uri, getattr(loss, "version", None) or 0, str(loss))
        if has_end:
            raise missing from error
        if self._awaited != _loss(loss) or time.monotonic() - self._said_s >= _REMIND_S:
            _log.warning("%s: %s; waiting", self._name, missing)
            self._awaited, self._said_s = _loss(loss), time.monotonic()
        self._undeliverable = None
        await self._wake.wait(self._poll_interval_s * _WAIT_POLLS)
        return True

    async def get_past(self, session: Session, point: ResumePoint) -> ResumePoint | None:
        """Get past the undeliverable version at `point` as the policy says and return the place to continue from.

        Returns None if the version has become readable again. Raises the error itself if the policy says so, or if the
        policy does not cover it: a snapshot whose rest cannot be read is not skipped.
        """
        undeliverable, version = self._undeliverable, point.version
        if undeliverable is None or (not point.snapshot and await self._is_restored(version)):
            return None
        undeliverable.tried = True
        commands = session.commands
        if commands is None or not undeliverable.skippable:
            raise undeliverable.error
        replaced = isinstance(undeliverable.error, TableReplaced)
        if self._reaction is OnDataLoss.RESNAPSHOT or replaced:
            if replaced and not point.fresh and await self._table.latest() < version + point.snapshot:
                reason = f"of the table that replaced {undeliverable.table_id}, all versions are delivered already"
                raise SinkFenced(session.sink.name, reason)
            first = 0 if replaced and point.fresh else version
            least = version + 1 if point.snapshot and point.after is not None else first  # never the same files again
            final = replaced or point.snapshot
            readable = await self._resnapshot(session, first, least, undeliverable, is_final=final)
        elif point.snapshot:
            raise undeliverable.error  # the policy does not cover leaving out the rest of a table
        else:
            readable = await self._skip(commands, version, undeliverable)
        if readable is None:
            return None
        _log.warning("%s: leaving out the changes of versions %d to %d", self._name, version, readable - 1)
        self._forget()
        return ResumePoint(readable)

    async def _is_restored(self, version: int) -> bool:
        """Return whether the log can be read again at `version`; the next session then reads the rest."""
        if self._undeliverable is None or not await self._undeliverable.is_restored(self._table, version):
            return False
        self._undeliverable = None
        self.note_caught_up()
        await self._wake.wait(self._poll_interval_s)
        return True

    async def _resnapshot(
        self, session: Session, first: int, least: int, lost: "UndeliverableVersion", *, is_final: bool
    ) -> int | None:
        """Deliver all rows of the newest readable version, `least` or later. Return the version after it.

        Unless `is_final`, check once more that `first` is not back, now that the snapshot is planned; None if it is.
        """
        version = await self._table.latest()
        while version >= least and session.commands is not None:
            async with aclosing(self._table.snapshot_plans(version)) as pages:
                try:
                    page = await anext(pages)
                except _LOST_LOG as error:
                    if error.version is None or not 0 < error.version <= version:
                        raise
                    version = error.version - 1
                    continue
                if not is_final and await self._is_restored(first):
                    return None
                gap = lost.gap(page.table_id, first, version, snapshot=True)
                lost.snapshot = version
                self._status.note_snapshot(version)
                await tell_key(session.sink, self._table, version)
                await session.commands.resnapshot(gap, page, pages)
                return version + 1
        raise lost.error

    async def _skip(self, commands: TakesCommands, version: int, undeliverable: "UndeliverableVersion") -> int | None:
        """Announce the gap that begins at `version` and return the first version that can be delivered after it."""
        readable, seen = await self._next_readable(undeliverable.error, version)
        table_id = self._table.state_id or undeliverable.table_id
        if await self._is_restored(version):  # restored while the log was read
            return None
        gap = undeliverable.gap(table_id, version, readable - 1, snapshot=False)
        await commands.skip(gap, self._policy.shape_schema(seen, self._table.uri, readable) or pa.schema([]))
        return readable

    async def _next_readable(self, error: TailerError, version: int) -> tuple[int, pa.Schema | None]:
        """Find the first version after `version` that can be sought, and the schema before it."""
        readable = await self._table.after_loss(error, version)
        try:
            return readable, await self._table.seek(readable)
        except _LOST_LOG as further:
            return await self._next_readable(further, readable)


@dataclass(slots=True)
class UndeliverableVersion:
    """A version of the table `table_id` that stopped a session, which began with version `begins`, with `error`.

    A version before `begins` was not due: the state to continue from depends on it. `skippable`: whether the pipeline
    may continue after it. `fresh`: whether a session has found no progress in the table as it is now. `tried`: whether
    a session has tried to get past it. `snapshot`: the version whose rows are delivered in its place; None: not begun.
    """

    error: LogError | ChangeError
    version: int
    table_id: str
    skippable: bool
    begins: int
    fresh: bool
    tried: bool = False
    snapshot: int | None = None

    def gap(self, table_id: str, first: int, last: int, snapshot: bool) -> Gap:
        """Make the gap to announce for the lost versions `first` to `last`."""
        return Gap(table_id, first, last, int(time.time() * 1000), str(self.error), snapshot)

    def is_passed(self, point: ResumePoint) -> bool:
        """Return whether `point`, after the sink's progress, is behind it: an instance has delivered what follows.

        Nothing compares versions of a table that was replaced with those of the other one, so what counts is that this
        one had no progress before, and has some now. Progress that ends before version 0 is none: it precedes the gap.
        """
        if isinstance(self.error, TableReplaced) and self.fresh:
            return not point.fresh and (point.snapshot or point.version > 0)
        return not point.fresh and self.begins <= self.version < point.version

    def applies_to(self, table_id: str) -> bool:
        """Return whether it still stops the pipeline if the table is `table_id`."""
        return isinstance(self.error, TableReplaced) or self.table_id == table_id

    async def is_restored(self, table: TableLog, version: int) -> bool:
        """Return whether a lost log can be read again at `version`, so that no changes are lost.

        Leaves `table` at any version. Raises `StorageError`, `VersionAhead`.
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
            _log.info("%s: %s", table.uri, error)  # the next read raises it
        return True


@dataclass(frozen=True, slots=True)
class Due:
    """The version that is due. `planned`: the number of the first one from it on; None: it could not be planned."""

    version: int
    planned: int | None = None

    def number_of(self, version: int) -> int:
        """Return the version that is due where a version that fails is the first from there on, after a gap."""
        is_next = self.version < version and self.planned in (None, version)
        return self.version if is_next else version


def _loss(error: TailerError) -> tuple[type[TailerError], int | None]:
    return type(error), getattr(error, "version", None)
