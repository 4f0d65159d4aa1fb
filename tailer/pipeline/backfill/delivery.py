"""Delivery of a backfill to a sink: the rows of a snapshot, in a stream of its own, between two versions.

The version after the backfill waits, so nobody else may deliver it meanwhile. Before each transaction, the sink is
asked for the progress of the pipeline: if another instance has delivered something, this one stops (invariant 6).

Task numbers of a backfill are those of a snapshot in a range of its own: `SNAPSHOT_TASKS` + reading * `TASKS` + the
index in the plan. The reading is between 1 and 2**28, and made of CRC-32 of the command's id and of what shapes the
rows. No other snapshot has such numbers (`tailer.changelog.rules`, `tailer.read.shaping`). So a part of a backfill is
never finished with another condition or other columns.

A backfill never stops its pipeline. What a person must act on, such as a vacuumed file or a condition that does not fit
the columns, ends the backfill as failed. Everything that may pass ends the session, and the next one goes on after the
sink's progress.
"""

import json
import logging
import time
from bisect import bisect_left
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final
from zlib import crc32

from anyio.abc import TaskGroup

from tailer.engine import Engine
from tailer.engine.look_ahead import PrefetchedBatches
from tailer.errors import ConfigError, Retry, SinkFenced, TailerError
from tailer.events import Gap
from tailer.pipeline.backfill.command import BackfillCommand, BackfillPhase, Backfills
from tailer.pipeline.delivery import ResumePoint, Session
from tailer.pipeline.policy import Limits, Policy
from tailer.pipeline.retry import Retries
from tailer.pipeline.sink_writer import SinkWriter
from tailer.pipeline.status import Committed, PipelineStatus
from tailer.plan import BACKFILLS, SNAPSHOT_TASKS, TASKS, ChangePlan, Position
from tailer.sink import Progress, Sink, app_id_of, backfill_name
from tailer.table_log import TableLog

__all__ = ["BY_DRIVER", "COMPLETE", "RESNAPSHOT", "BackfillDelivery", "BetweenVersions", "backfill_plan"]

_log = logging.getLogger(__name__)

COMPLETE: Final = "delivers to a mirror, which has all rows"
RESNAPSHOT: Final = "`tailer resnapshot PIPELINE` replaces them."
BY_DRIVER: Final = 'Set write = "driver".'
_BY_EXECUTORS: Final = "is written by executors, which deliver no backfill"


def with_where(policy: Policy, where: str | None) -> Policy:
    """Return the policy for rows that also fulfil `where`. Raises `ConfigError` if that is no condition."""
    if where is None:
        return policy
    fault = next(Policy(where=where).faults(), None)
    if fault is not None:
        raise fault
    return replace(policy, where=where if policy.where is None else f"({policy.where}\n) AND ({where}\n)")


def backfill_plan(page: ChangePlan, command: BackfillCommand, policy: Policy) -> ChangePlan:
    """Return a page of a snapshot as part of a backfill. `policy`: of the pipeline. Raises as `Policy.shape` does."""
    policy = with_where(policy, command.where)
    plan = policy.shape(page)
    shape = {"columns": plan.schema.names, "id": command.id, "select": policy.select, "where": policy.where}
    text = json.dumps(shape, ensure_ascii=True, sort_keys=True, separators=(",", ":"))
    first = SNAPSHOT_TASKS + (1 + crc32(text.encode("ascii")) % BACKFILLS) * TASKS
    tasks = tuple(replace(task, index=first + task.index % TASKS) for task in plan.tasks)
    return replace(plan, tasks=tasks)


@dataclass(frozen=True, slots=True)
class BackfillDelivery:
    """The delivery of backfills of the pipeline `name` to `sink`.

    `delivered`: the progress of the pipeline, which stays the same; None: it has none. Rows are read in `group`.
    """

    name: str
    table: TableLog
    sink: Sink
    engine: Engine
    policy: Policy
    limits: Limits
    retries: Retries
    delivered: Progress | None
    group: TaskGroup

    async def deliver(self, backfills: Backfills, command: BackfillCommand) -> bool:
        """Deliver what the sink lacks of the backfill. Return False if it was stopped or has ended meanwhile.

        Raises what table, engine and sink raise.
        """
        assert command.version is not None, "decided by `Backfills.begin`"
        files = 0
        async with aclosing(self.table.snapshot_plans(command.version)) as pages:
            async for page in pages:
                files += len(backfill_plan(page, command, self.policy).tasks)
        backfills.files, backfills.files_done = files, 0
        async with aclosing(self.table.snapshot_plans(command.version)) as pages:
            plan = backfill_plan(await anext(pages), command, self.policy)
            progress = await self.sink.progress(app_id_of(backfill_name(self.name, command.id), plan.table_id))
            after = None if progress is None else progress.position
            if after is not None and after.closes_version:
                backfills.files_done = backfills.files
                return True
            if after is not None and plan.tasks and after.task // TASKS != plan.tasks[0].index // TASKS:
                reason = f"a part of its backfill was delivered with another where, select or columns: {after}"
                raise ConfigError(self.name, reason, "Give the command again.")
            return await self._write(backfills, command, plan, pages, progress)

    async def _write(
        self,
        backfills: Backfills,
        command: BackfillCommand,
        plan: ChangePlan,
        rest: AsyncIterator[ChangePlan],
        progress: Progress | None,
    ) -> bool:
        """Write the rows of `plan` and the `rest` after `progress`. Return as `deliver`."""

        def committed(done: Committed) -> None:
            backfills.rows += sum(done.rows.values())
            self.retries.note_progress()
            self.retries.status.note_commit(done, moves=False)

        stream, after = backfill_name(self.name, command.id), None if progress is None else progress.position
        outcome = self._confirm, committed, self.policy.types
        async with SinkWriter(stream, self.sink, progress, self.limits, *outcome) as writer:
            if progress is None and command.announces_gap:
                reason = "an operator asked for a snapshot; no changes are lost"
                version, now_ms = plan.version, int(time.time() * 1000)
                gap = Gap(plan.table_id, version, version, now_ms, reason, snapshot=True, command=command.id)
                await writer.skip(gap, plan.schema, at_once=False)
            before = 0
            while True:
                rows = PrefetchedBatches(self.group, self.engine, [plan], after)
                try:
                    while batches := await writer.next_batches(rows):
                        self.retries.status.note_step()
                        is_stopped = self.sink.splits_snapshots and self.retries.is_stopping()
                        if is_stopped or backfills.command is not command:
                            await writer.salvage()
                            return False
                        await writer.write(batches, [plan])
                        backfills.files_done = before + bisect_left(
                            plan.tasks, batches[-1].task, key=lambda task: task.index
                        )
                    if rows.error is not None:
                        raise rows.error
                finally:
                    rows.stop()
                before += len(plan.tasks)
                backfills.files_done = before
                page = await anext(rest, None)
                if page is None and backfills.command is not command:
                    return False
                if page is None:
                    await writer.close_version(plan)
                    await writer.commit()
                    return True
                plan = backfill_plan(page, command, self.policy)

    async def _confirm(self, position: Position | None) -> None:
        """Raise if the version has changed since it was planned, or if another instance has delivered something."""
        await self.table.confirm(position)
        if self.delivered is None:
            return
        progress = await self.sink.progress(self.delivered.app_id)
        if progress != self.delivered:
            place = "nothing" if progress is None else str(progress.position)
            raise SinkFenced(self.sink.name, f"{self.delivered.app_id} is at {place} during its backfill")


class BetweenVersions:
    """The backfills of the pipeline `name`. `status`: has the operator's commands."""

    def __init__(self, name: str, status: PipelineStatus) -> None:
        self._name = name
        self._status = status
        self._backfills = status.backfills

    async def deliver(self, session: Session, point: ResumePoint) -> ResumePoint:
        """Commit everything before `point`, then deliver the backfill that is due. Return where to seek the table.

        Raises what table, engine and sink raise, if it may pass.
        """
        await session.commit()
        await self._deliver(session, point.version - 1)
        return ResumePoint(point.version, after=point.after)

    async def _deliver(self, session: Session, version: int) -> None:
        command = self._backfills.command
        if command is None:
            return  # cancelled during the commit
        try:
            self._check(session, command, version)
            decided = await self._backfills.begin(command, version)
            if decided is None or session.commands is None:
                return
            self._status.note_snapshot(version)
            _log.info("%s: %s %s of version %d begins", self._name, command.kind, command.id, decided.version)
            if not await session.commands.backfill(self._backfills, decided):
                return
        except TailerError as error:
            if error.retry is not Retry.MANUAL:
                raise
            _log.warning("%s: %s %s failed: %s; the pipeline goes on", self._name, command.kind, command.id, error)
            await self._end(BackfillPhase.FAILED, error)
            return
        _log.info("%s: %s %s is done", self._name, command.kind, command.id)
        self._status.gaps += command.announces_gap
        await self._end(BackfillPhase.DONE)

    async def resnapshot(self, version: int) -> None:
        """Turn the command of a snapshot into that of a backfill of `version`, the newest one."""
        self._status.command = None
        command = BackfillCommand.make(version, announces_gap=True)
        try:
            await self._backfills.give(command)
        except ConfigError as error:
            _log.warning("%s: no snapshot is delivered: %s", self._name, error)
            self._backfills.fail(command, error)

    def _check(self, session: Session, command: BackfillCommand, version: int) -> None:
        """Raise `ConfigError` if the command cannot be carried out."""
        if session.commands is None:
            raise ConfigError(self._name, _BY_EXECUTORS, BY_DRIVER)
        if session.sink.demands.whole and not command.announces_gap:
            raise ConfigError(self._name, COMPLETE, RESNAPSHOT)
        if command.announces_gap and command.version not in (None, version):
            reason = f"it is a snapshot of version {command.version}, and the pipeline is at version {version} by now"
            raise ConfigError("version", reason, "Run `tailer resnapshot PIPELINE` again.")
        if command.version is not None and command.version > version:
            reason = f"version {command.version} comes after version {version}, up to which the pipeline has delivered"
            raise ConfigError("version", reason, "Give an earlier version, or none.")

    async def _end(self, phase: BackfillPhase, error: TailerError | None = None) -> None:
        if self._backfills.command is None:
            return  # cancelled meanwhile
        try:
            await self._backfills.end(phase, error)
        except ConfigError as fault:
            _log.warning("%s: the end of a backfill was not recorded: %s", self._name, fault)
