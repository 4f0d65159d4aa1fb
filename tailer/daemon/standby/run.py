"""A run of a pipeline by one of several instances: it watches until nobody is active, then delivers with heartbeats."""

import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final, TypeVar

import anyio

from tailer.config.pipelines import PipelineSettings
from tailer.daemon.fleet import Make
from tailer.daemon.runs import Drainable
from tailer.daemon.standby.watch import Watch
from tailer.engine.background import background
from tailer.errors import ConfigError, SinkError, SinkFenced, SinkUnavailable, TailerError
from tailer.pipeline.backfill.command import BackfillPhase
from tailer.pipeline.states import Active
from tailer.pipeline.status import PipelineStatus
from tailer.sink import Heartbeat, Heartbeats, Sink

__all__ = ["StandbyRun", "standing_by"]

T = TypeVar("T")

_BEATS: Final = 4  # in the time of silence after which a standby takes over
_LOOKS: Final = 8
_CLOSE_S: Final = 2.0

_log = logging.getLogger(__name__)


def standing_by(make: Make, instance: str, silence_s: float) -> Make:
    """Return what makes runs like those of `make` that stand by while another instance is active.

    Raises `ConfigError` for a pipeline whose sink has no place for heartbeats.
    """

    def made(pipeline: PipelineSettings, status: PipelineStatus, is_new: bool) -> Drainable:
        def open_heartbeats() -> Heartbeats:
            sink = pipeline.make_sink()
            opened = sink.open_heartbeats(pipeline.name, silence_s) if isinstance(sink, Sink) else None
            if opened is None:
                reason = f'cannot stand by: a sink of kind "{pipeline.sink_kind}" has no place for heartbeats here'
                remedy = "Run it in a daemon of its own, without --standby. kafka, sql and delta have one."
                raise ConfigError(pipeline.name, reason, remedy)
            return opened

        with suppress(SinkError):  # such as a secret that cannot be read now, which stops this pipeline alone
            open_heartbeats()
        return StandbyRun(status, open_heartbeats, lambda: make(pipeline, status, is_new), instance, silence_s)

    return made


class StandbyRun:
    """A run of a pipeline by the instance `instance`; see the package. `status` is told who is active.

    `open_heartbeats`: opens their place. `make`: makes the run of the active instance. `silence_s`: after how long
    without a heartbeat the instance takes over.
    """

    def __init__(
        self,
        status: PipelineStatus,
        open_heartbeats: Callable[[], Heartbeats],
        make: Callable[[], Drainable],
        instance: str,
        silence_s: float,
    ) -> None:
        self._name = status.name
        self._status = status
        self._open = open_heartbeats
        self._make = make
        self._next: Drainable | None = make()  # made here, because settings that do not fit are refused at the start
        self._silence_s = silence_s
        self._watch = Watch(instance, silence_s)
        self._sent = Heartbeat(instance, 0)
        self._running: Drainable | None = None
        self._stopping = anyio.Event()
        self._lost = ""  # why the instance is not active any more

    async def run(self) -> None:
        """See `Drainable.run`."""
        heartbeats = self._open()
        try:
            while await self._stand_by(heartbeats):
                if await self._deliver(heartbeats):
                    return
        finally:
            with anyio.move_on_after(_CLOSE_S, shield=True):
                await heartbeats.aclose()
                if self._next is not None:  # it has a sink, which its run closes
                    self._next.stop()
                    await self._next.run()

    def stop(self) -> None:
        """See `Drainable.stop`."""
        self._stopping.set()
        if self._running is not None:
            self._running.stop()

    async def _stand_by(self, heartbeats: Heartbeats) -> bool:
        """Wait until no instance is active, and become it. Return False once it is stopped.

        Raises `SinkRejected` where heartbeats cannot be read as things are.
        """
        fault = ""
        while not self._stopping.is_set():
            asked_s = time.monotonic()
            try:
                found = await self._ask(heartbeats.read)
                before, fault = self._watch.seen, ""
                is_due = self._watch.see(found, asked_s)
                if self._watch.seen != before:
                    self._note_active(found, is_here=False)
                    if before is not None and self._status.active is not None:
                        self._drop_command()
                active = self._status.active
                self._status.note_standby(f"{active.instance} is active" if active else "no instance is active yet")
                if is_due and await self._claim(heartbeats):
                    return True
            except SinkUnavailable as error:
                self._watch.miss()
                if str(error) != fault:
                    _log.warning("%s: heartbeats cannot be read: %s", self._name, error)
                    self._status.note_error(error)
                fault = str(error)
            await self._pause()
        return False

    async def _claim(self, heartbeats: Heartbeats) -> bool:
        """Begin a term of our own. Return False if another instance has done so."""
        before = self._watch.seen
        self._sent = Heartbeat(self._sent.instance, 1 if before is None else before.term + 1)
        while not self._stopping.is_set():
            await self._ask(lambda: heartbeats.write(self._sent))
            await self._pause()  # another standby may do the same
            found = await self._ask(heartbeats.read)
            if found == self._sent:
                if before is None or before.instance == found.instance:
                    _log.info("%s: %s is active from here on", self._name, found.instance)
                else:
                    _log.info("%s: %s is active from here on, after %s", self._name, found.instance, before.instance)
                    await self._drop_backfill(before.instance)
                return True
            if found is not None and found.rank > self._sent.rank:
                return False
        await self._release(heartbeats)
        return False

    def _drop_command(self) -> None:
        """Drop a command that has not been obeyed: once this instance is active again, it may be long out of date."""
        status = self._status
        if status.command is not None and status.active is not None:
            text = "%s: %s is not done: %s is active; give the command to that instance"
            _log.warning(text, self._name, status.command, status.active.instance)
            status.command = None

    async def _drop_backfill(self, before: str) -> None:
        """End a backfill that was under way here: changes that `before` has delivered since must not come before it."""
        backfills = self._status.backfills
        if backfills.command is None:
            return
        reason = f"{before} has been active since backfill {backfills.command.id} was asked for"
        error = ConfigError(self._name, reason, "Give the command again.")
        _log.warning("%s: the backfill has failed: %s", self._name, error)
        try:
            await backfills.end(BackfillPhase.FAILED, error)
        except ConfigError as fault:
            _log.warning("%s: the end of a backfill was not recorded: %s", self._name, fault)

    async def _deliver(self, heartbeats: Heartbeats) -> bool:
        """Run the pipeline as its active instance. Return False if another one is active now.

        Whoever waits for the next heartbeat is told when the run has ended, whatever ended it.
        """
        self._running, self._next, self._lost = self._next or self._make(), None, ""
        self._status.note_start()
        self._note_active(self._sent, is_here=True)
        if self._stopping.is_set():
            self._running.stop()
        try:
            with anyio.CancelScope() as scope:
                async with background() as besides:
                    besides.start_soon(self._beat, heartbeats, scope)
                    await self._running.run()
        except SinkFenced as error:
            self._lose(str(error))
            # Whoever fenced us leaves heartbeats soon, if it can: an own one must become old first.
            self._watch.begin(may_resume=False)
        except TailerError:
            if not self._lost:
                raise
            self._watch.begin(may_resume=True)
        else:
            self._watch.begin(may_resume=True)
        finally:
            self._running = None
            if not self._lost:
                await self._release(heartbeats)
        return not self._lost

    async def _beat(self, heartbeats: Heartbeats, scope: anyio.CancelScope) -> None:
        """Send heartbeats, until another instance is active or none can be sent; then cancel `scope`."""
        sent_s, fault = time.monotonic(), ""
        while not self._lost:
            began_s = time.monotonic()
            try:
                found = await self._ask(heartbeats.read)
                if found is not None and found.rank > self._sent.rank:
                    self._lose(f"{found.instance} is active now")
                    break
                self._sent = replace(self._sent, count=self._sent.count + 1)
                await self._ask(lambda: heartbeats.write(self._sent))
            except SinkError as error:
                if time.monotonic() - sent_s >= self._silence_s:
                    self._lose(f"no heartbeat could be sent for {self._silence_s:g} s: {error}")
                elif not fault:
                    _log.warning("%s: no heartbeat could be sent: %s", self._name, error)
                fault = str(error)
            else:
                sent_s, fault = began_s, ""
                self._note_active(self._sent, is_here=True)
            await anyio.sleep(self._silence_s / _BEATS)
        scope.cancel()

    async def _release(self, heartbeats: Heartbeats) -> None:
        """Let a standby take over at once. Where that fails, it takes over later."""
        try:
            with anyio.move_on_after(_CLOSE_S, shield=True):
                await heartbeats.write(replace(self._sent, count=self._sent.count + 1, released=True))
        except SinkError as error:
            _log.warning("%s: a standby has to wait: %s", self._name, error)

    def _note_active(self, heartbeat: Heartbeat | None, *, is_here: bool) -> None:
        if heartbeat is None or heartbeat.released:
            self._status.active = None
        else:
            before, now_s = self._status.active, time.time()
            self._status.active = Active.after(before, heartbeat.instance, is_here=is_here, now_s=now_s)

    def _lose(self, why: str) -> None:
        self._lost, self._status.active = why, None
        _log.warning("%s: stands by: %s", self._name, why)

    async def _ask(self, call: Callable[[], Awaitable[T]]) -> T:
        limit_s = self._silence_s / 2
        try:
            with anyio.fail_after(limit_s):
                return await call()
        except TimeoutError as error:
            raise SinkUnavailable(self._name, f"no answer about heartbeats within {limit_s:g} s") from error

    async def _pause(self) -> None:
        with anyio.move_on_after(self._silence_s / _LOOKS):
            await self._stopping.wait()
