"""The place of a backfill in the loop: between two versions, without waiting for the next one.

A backfill never stops its pipeline. What a person must act on, such as a vacuumed file or a condition that does not fit
the columns, ends the backfill as failed. Everything that may pass ends the session, and the next one goes on after the
sink's progress.
"""

import logging
from typing import Final

from tailer.errors import ConfigError, Retry, TailerError
from tailer.pipeline.backfill.command import BackfillCommand, BackfillPhase
from tailer.pipeline.delivery import ResumePoint, Session
from tailer.pipeline.status import PipelineStatus

__all__ = ["BY_DRIVER", "COMPLETE", "RESNAPSHOT", "BetweenVersions"]

_log = logging.getLogger(__name__)

COMPLETE: Final = "delivers to a mirror, which has all rows"
RESNAPSHOT: Final = "`tailer resnapshot PIPELINE` replaces them."
BY_DRIVER: Final = 'Set write = "driver".'
_BY_EXECUTORS: Final = "is written by executors, which deliver no backfill"


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
