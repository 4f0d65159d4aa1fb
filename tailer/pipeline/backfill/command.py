"""The command to backfill a pipeline, and how far it is."""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from anyio import Lock, to_thread

__all__ = ["BackfillCommand", "BackfillPhase", "Backfills"]


@dataclass(frozen=True, slots=True)
class BackfillCommand:
    """A command to backfill, as it is persisted.

    `id`: part of the app id. `version`: whose rows are delivered; None: the one that the pipeline has when it begins.
    `where`: the condition that rows must fulfil; None: all rows. `announces_gap`: whether a gap comes before the rows,
    so that readers discard their copies.
    """

    id: str
    version: int | None = None
    where: str | None = None
    announces_gap: bool = False

    @property
    def kind(self) -> str:
        """The word for people: a backfill, or the snapshot of `tailer resnapshot`."""
        return "snapshot" if self.announces_gap else "backfill"

    @classmethod
    def make(
        cls, version: int | None = None, where: str | None = None, *, announces_gap: bool = False
    ) -> "BackfillCommand":
        """Make a command with an id that no other has."""
        moment = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        return cls(f"{moment}-{secrets.token_hex(4)}", version, where, announces_gap)


class BackfillPhase(StrEnum):
    """The phase of a backfill."""

    WAITING = "waiting"  # it has not begun
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


Keep = Callable[[BackfillCommand | None], None]


class Backfills:
    """The backfills of a pipeline: one at a time. One thread writes; any thread may read.

    `command`: the one that has not ended; None: there is none. `shown`: the last one; None: there was none. `files`:
    how many it reads; None: not known. `files_done`: how many of them are delivered. `rows`: committed since the
    process began. `error`: that it failed with.
    """

    def __init__(self) -> None:
        self.command: BackfillCommand | None = None
        self.shown: BackfillCommand | None = None
        self.phase = BackfillPhase.DONE
        self.files: int | None = None
        self.files_done = self.rows = 0
        self.error: Exception | None = None
        self.ended_s = 0.0
        self._keep: Keep = lambda _command: None
        self._lock = Lock()

    def restore(self, command: BackfillCommand | None, keep: Keep) -> None:
        """Go on with a kept command, if there is one. `keep`: persists a command, or that there is none; blocking."""
        self._keep = keep
        if command is not None:
            self._show(command)

    async def give(self, command: BackfillCommand) -> None:
        """Persist `command`, then begin with it. Raises `ConfigError` if it cannot be persisted."""
        async with self._lock:
            await to_thread.run_sync(self._keep, command)
            self._show(command)

    async def begin(self, command: BackfillCommand, version: int) -> BackfillCommand | None:
        """Decide for the rows of `version`. Return the command with it; None if the command has ended meanwhile.

        Raises `ConfigError` if that cannot be persisted.
        """
        async with self._lock:
            if self.command is not command:
                return None
            if command.version is None:
                command = replace(command, version=version)
                await to_thread.run_sync(self._keep, command)
            self.command, self.shown, self.phase = command, command, BackfillPhase.RUNNING
            return command

    async def end(self, phase: BackfillPhase, error: Exception | None = None) -> None:
        """End the command. Raises `ConfigError` if that cannot be persisted: it then comes back at the next start.

        One that is done comes back as done, because the sink says so.
        """
        async with self._lock:
            self.command, self.phase, self.error, self.ended_s = None, phase, error, time.time()
            await to_thread.run_sync(self._keep, None)

    def fail(self, command: BackfillCommand, error: Exception) -> None:
        """Note a command that failed before it was given."""
        self._show(command)
        self.command, self.phase, self.error, self.ended_s = None, BackfillPhase.FAILED, error, time.time()

    def _show(self, command: BackfillCommand) -> None:
        self.command, self.shown, self.phase, self.error = command, command, BackfillPhase.WAITING, None
        self.files, self.files_done, self.rows = None, 0, 0
