"""Run pipelines in one task group: begin stopped ones again, obey an operator, and drain on a signal.

A pipeline that stops with an error does not stop the others. If the error may pass (`revival_pause_s`), the pipeline
begins again by itself after a pause that grows. Otherwise it stays stopped until an operator resumes it, and the
process goes on as long as a command can reach it. It ends when no pipeline is left that could run: each one has done
its work, or no command could mend what has stopped it.

SIGTERM or Ctrl-C makes every pipeline finish the version it is at. Those that are not done after `drain_s`, or at a
second signal, are cancelled. Nothing is half committed (invariant 1), and the next process delivers the rest
(invariant 2). Whenever a pipeline begins, its work is made anew and begins with the sink's progress: a pause, an error
and a restart of the process are the same to it.
"""

import logging
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, Protocol

import anyio
from anyio.abc import TaskGroup, TaskStatus

from tailer.daemon.logs import about
from tailer.errors import ConfigError, TailerError
from tailer.pipeline.backfill.command import BackfillCommand
from tailer.pipeline.policy import OnDataLoss
from tailer.pipeline.retry import revival_pause_s
from tailer.pipeline.status import PipelineState, PipelineStatus

__all__ = ["Drainable", "Run", "Runs", "Stop", "Work", "run_all"]

_log = logging.getLogger(__name__)


class Drainable(Protocol):
    """A pipeline that can be asked to end."""

    async def run(self) -> None:
        """Work until the end, an error, or `stop`."""
        ...

    def stop(self) -> None:
        """Make `run` return after the transaction it is in."""
        ...


class Stop:
    """The wish that work ends after the transaction it is in."""

    def __init__(self) -> None:
        self._event = anyio.Event()
        self._calls: list[Callable[[], None]] = []

    @property
    def is_set(self) -> bool:
        """Return whether the work has to end."""
        return self._event.is_set()

    def set(self) -> None:
        """Let the work end."""
        self._event.set()
        for call in self._calls:
            call()

    async def wait(self, timeout_s: float) -> None:
        """Return when the work has to end, or after `timeout_s` seconds."""
        with anyio.move_on_after(timeout_s):
            await self._event.wait()

    @contextmanager
    def calling(self, call: Callable[[], None]) -> Iterator[None]:
        """Inside of the block, call `call` when the work has to end; at once if it has to already."""
        if self.is_set:
            call()
        self._calls.append(call)
        try:
            yield
        finally:
            self._calls.remove(call)

    async def run(self, pipeline: Drainable) -> None:
        """Run `pipeline`, and stop it when the work has to end."""
        with self.calling(pipeline.stop):
            await pipeline.run()


Work = Callable[[Stop], Awaitable[None]]
"""The work of a pipeline: until its end, an error, or the `Stop` that it is given. Each is done once, and made anew.

What some pipelines do before they deliver is work around other work: to find a table by its name, to stand by, to wait
for the table.
"""


class Run:
    """A pipeline in this process, which does its work again and again. `status` is told what happens.

    `make`: makes the work. `revives`: whether it begins again by itself after an error that may pass. `is_paused`:
    begin with a pause. `check_verb`: raises a `TailerError` for a command that the pipeline never takes.
    `check_backfill`: raises if a backfill cannot be done.

    Its state is that of `status`, with what was asked for: to pause (`is_paused`), or to end.
    """

    def __init__(
        self,
        status: PipelineStatus,
        make: Callable[[], Work],
        *,
        revives: bool,
        is_paused: bool = False,
        check_verb: Callable[[str], None] = lambda _verb: None,
        check_backfill: Callable[[BackfillCommand], Awaitable[None]] | None = None,
    ) -> None:
        self.status: Final = status
        self.check_verb: Final = check_verb
        self._check_backfill = check_backfill
        self.ended: Final = anyio.Event()
        self.error: Exception | None = None
        self._next: Work | None = make()  # made here, because settings that do not fit are refused at the start
        self._make = make
        self.revives: Final = revives
        self.is_running = False
        self.is_paused = is_paused
        self._ends = False
        self._stop = Stop()  # of the current work, or the last
        self._scope = anyio.CancelScope()
        self._stops = self._stopped_after = 0
        self._news = anyio.Event()

    @property
    def works(self) -> bool:
        """Return whether its last work found its table, and had no error."""
        return self.error is None and self.status.state not in (PipelineState.WAITING, PipelineState.STANDBY)

    @property
    def may_run(self) -> bool:
        """Return whether it runs, is paused, or begins again by itself."""
        return self.status.state is not PipelineState.STOPPED or self.status.retry_at_s is not None

    @property
    def awaits_command(self) -> bool:
        """Return whether it has stopped with an error after which a command may let it go on.

        Not so after a bug, or with a wrong configuration: another process has to begin.
        """
        return isinstance(self.error, TailerError) and not isinstance(self.error, ConfigError)

    async def run(self, changed: Callable[["Run"], None]) -> None:
        """Run until `end`. `changed`: called when the pipeline has stopped."""
        with about(self.status), self._scope:
            await self._run(changed)
        self.ended.set()

    async def finish(self, why: str, within_s: float) -> None:
        """End the work after its transaction, or cancel it after `within_s` seconds, and wait for its end."""
        self.end(why)
        with anyio.move_on_after(within_s):
            await self.ended.wait()
        if not self.ended.is_set():
            _log.info("%s: cancelled; its next run delivers what was not committed", self.status.name)
            self._scope.cancel()
            await self.ended.wait()

    async def _run(self, changed: Callable[["Run"], None]) -> None:
        while not self._ends:
            if self.is_paused:
                self.error = None
                self.status.note_pause()
                _log.info("%s: paused", self.status.name)
                await self._wait(None)
                continue
            if self._next is None:
                _log.info("%s: begins again from the sink's progress", self.status.name)
            pause_s = await self._work_once()
            if not self._has_command():
                if self.error is None:
                    _log.info("%s: has ended: %s", self.status.name, self.status.why)
                changed(self)
                if not self._ends:
                    await self._wait(pause_s)

    def pause(self) -> None:
        """End the current work after its transaction, and begin no other."""
        self.is_paused = True
        self._end_work("an operator pauses it")

    def resume(self) -> None:
        """Begin the work, unless it is under way; after a pause that has not come about yet, once it has."""
        self.is_paused = False
        if not self.is_running:
            self._news.set()

    def obey(self, reaction: OnDataLoss) -> None:
        """Get past lost data once as `reaction` says, or deliver a snapshot of all rows; begin if it has stopped."""
        self.status.command = reaction
        self.resume()
        self.status.on_command()

    async def backfill(self, command: BackfillCommand) -> None:
        """Backfill as `command` says; begin if it has stopped. Raises the `TailerError` for which it cannot be done."""
        if self._check_backfill is not None:
            await self._check_backfill(command)
        await self.status.backfills.give(command)
        self.resume()
        self.status.on_command()

    def end(self, why: str) -> None:
        """End the current work after its transaction, and then `run`."""
        self._ends = True
        self._end_work(why)

    def _end_work(self, why: str) -> None:
        if self.is_running:
            self.status.note_drain(why)
            self._stop.set()
        else:
            self._news.set()

    def _has_command(self) -> bool:
        """Return whether an operator has decided what comes next: paused it, or resumed it before it was paused."""
        return self.is_paused or (self._stop.is_set and not self._ends)

    async def _work_once(self) -> float | None:
        """Do the work once. Return after how many seconds it begins again; None: only on a command."""
        self.is_running, self.error, self._stop, self._news = True, None, Stop(), anyio.Event()
        self.status.note_start()
        try:
            work, self._next = self._next or self._make(), None
            await work(self._stop)
        except Exception as error:  # noqa: BLE001 - kept with its traceback, and raised after the last pipeline
            self.error = error
        finally:
            self.is_running = False
            if self.error is None:
                self.status.note_stop()
        if self.error is None:
            return None
        self._stops = 1 if self.status.transactions > self._stopped_after else self._stops + 1
        self._stopped_after = self.status.transactions
        pause_s = revival_pause_s(self.error, self._stops) if self.revives and not self._ends else None
        self.status.note_stop(self.error, None if pause_s is None else time.time() + pause_s)
        return pause_s

    async def _wait(self, seconds: float | None) -> None:
        with anyio.move_on_after(seconds):
            await self._news.wait()
        self._news = anyio.Event()


async def run_all(pipelines: Mapping[str, Drainable], drain_s: float) -> dict[str, Exception]:
    """Run pipelines, given by name, once, until all have ended; return the errors by name.

    After SIGTERM or SIGINT they have `drain_s` seconds to finish; a second signal cancels them.
    """

    def make(pipeline: Drainable) -> Work:
        return lambda stop: stop.run(pipeline)

    runs = [Run(PipelineStatus(name), partial(make, pipeline), revives=False) for name, pipeline in pipelines.items()]
    return await Runs(runs, drain_s).run()


class Runs:
    """The pipelines of a process, `by_name`. `run` runs them; see the module.

    `attend`: runs beside them until the end, and may change which ones there are. `hang_up`: called at SIGHUP.
    `stays`: whether to go on without any pipeline that could run, because others may come. `takes_commands`: whether
    commands can reach the pipelines, so that to go on with those that await one makes sense.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        drain_s: float,
        attend: Callable[[], Awaitable[None]] | None = None,
        hang_up: Callable[[], None] | None = None,
    ) -> None:
        self.by_name: Final = {run.status.name: run for run in runs}
        self.drain_s = drain_s
        self.stays = self.takes_commands = False
        self._attend = attend
        self._hang_up = hang_up
        self._scope, self._attending = anyio.CancelScope(), anyio.CancelScope()
        self._is_changing = False
        self._group: TaskGroup | None = None

    async def run(self) -> dict[str, Exception]:
        """Run until nothing is left that could run, or a signal; return the errors of stopped pipelines by name."""
        async with anyio.create_task_group() as group:
            await group.start(self._obey_signals)
            with self._scope:
                async with anyio.create_task_group() as self._group:
                    for run in self.by_name.values():
                        self._group.start_soon(run.run, self._stopped)
                    if self._attend is not None:
                        self._group.start_soon(self._attend_until_the_end, self._attend)
            if self._scope.cancelled_caught and (names := self._names()):
                _log.info("cancelled %s; the next run delivers what was not committed", names)
            group.cancel_scope.cancel()
        return {name: run.error for name, run in self.by_name.items() if run.error is not None}

    async def _attend_until_the_end(self, attend: Callable[[], Awaitable[None]]) -> None:
        with self._attending:
            await attend()

    async def replace(self, leaving: Mapping[str, str], make: Callable[[], Sequence[Run]]) -> None:
        """End the pipelines `leaving`, given with the reason, and then begin those that `make` makes."""
        self._is_changing = True
        try:
            async with anyio.create_task_group() as group:
                for name, why in leaving.items():
                    group.start_soon(self.by_name[name].finish, why, self.drain_s)
            for name in leaving:
                del self.by_name[name]
            for run in make():
                self.by_name[run.status.name] = run
                assert self._group is not None, "called by `attend`"
                self._group.start_soon(run.run, self._stopped)
        finally:
            self._is_changing = False
        self._end_without_work()

    def _stopped(self, run: Run) -> None:
        """Report why the pipeline has stopped; end all if it was the last that could run."""
        error, status = run.error, run.status
        # A command reports at its end what ended its only run.
        if error is not None and (run.revives or self._has_work()):
            bug = None if isinstance(error, TailerError) else error
            later = "no pipeline is left"
            if self._has_work():
                later = "the others go on" if self._may_run() else "it waits for a command"
            if status.retry_at_s is not None:
                later = f"it begins again in {status.retry_at_s - time.time():.0f} s"
            _log.error("%s stopped: %s; %s", status.name, error, later, exc_info=bug)
        self._end_without_work()

    def _may_run(self) -> bool:
        return self.stays or self._is_changing or any(run.may_run for run in self.by_name.values())

    def _has_work(self) -> bool:
        awaits = self.takes_commands and any(run.awaits_command for run in self.by_name.values())
        return awaits or self._may_run()

    def _end_without_work(self) -> None:
        if not self._has_work():
            self._end("")

    def _end(self, why: str) -> None:
        self._attending.cancel()
        for run in self.by_name.values():
            run.end(why)

    async def _obey_signals(self, *, task_status: TaskStatus[None]) -> None:
        """Start the drain and its deadline at the first signal; cancel at the second."""
        hang_up, numbers = self._hang_up, [signal.SIGTERM, signal.SIGINT]
        if hang_up is not None:
            numbers.append(signal.SIGHUP)
        with anyio.open_signal_receiver(*numbers) as signals:
            _log.info("running %s; SIGTERM or Ctrl-C to stop", self._names() or "no pipeline yet")  # true from here on
            task_status.started()
            draining = False
            async for number in signals:
                if hang_up is not None and number == signal.SIGHUP:
                    hang_up()
                    continue
                if draining:
                    self._scope.cancel()
                    continue
                draining = True
                self._scope.deadline = anyio.current_time() + self.drain_s
                word = signal.Signals(number).name
                if names := self._names():
                    _log.info("%s: draining %s, %g s at most", word, names, self.drain_s)
                else:
                    _log.info("%s: ending; no pipeline is at work", word)
                self._end(word)

    def _names(self) -> str:
        return ", ".join(name for name, run in self.by_name.items() if not run.ended.is_set() and not run.error)
