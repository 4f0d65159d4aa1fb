"""Warm standby: several processes run one configuration, and of each pipeline one of them is active.

The active instance of a pipeline leaves heartbeats at its destination (`tailer.sink.heartbeats`), from a task of its
own in the event loop that also delivers. The others read them. When they stay the same for `standby_after_s` seconds, a
standby takes over: it writes a heartbeat with a higher term, and begins a run as after any restart, with the sink's
progress.

Heartbeats decide only who delivers, never what is delivered. That the former active instance can commit nothing more
is up to the sink, as for any two instances (invariant 6). So a wrong decision costs seconds, not rows.

No two clocks are compared. A standby measures silence by its own monotonic clock, from its own looks: a heartbeat
carries a count, and no time. So neither skew nor jumps of clocks matter.

All instances run the same command. One that loses the pipeline becomes a standby again.
"""

import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final, TypeVar

import anyio

from tailer.config.pipelines import PipelineSettings
from tailer.daemon.fleet.fleet import Make
from tailer.daemon.runs import Stop, Work
from tailer.engine import background
from tailer.errors import ConfigError, SinkError, SinkFenced, SinkUnavailable, TailerError
from tailer.pipeline.backfill.command import BackfillPhase
from tailer.pipeline.states import Active
from tailer.pipeline.status import PipelineStatus
from tailer.sink import Heartbeat, Heartbeats, Sink

__all__ = ["Standby", "Watch", "standing_by"]


class Watch:
    """The looks of the instance `instance`, which takes over after `silence_s` seconds without a new heartbeat.

    `seen`: the last heartbeat.
    """

    def __init__(self, instance: str, silence_s: float) -> None:
        self._instance: Final = instance
        self._silence_s: Final = silence_s
        self._since_s: float | None = None
        self.seen: Heartbeat | None = None
        self.may_resume = True

    def see(self, heartbeat: Heartbeat | None, asked_s: float) -> bool:
        """Note a heartbeat that was asked for at `asked_s`. Return whether nobody is active.

        The time before the question counts: a standby that was frozen after the answer learns nothing from the time
        that has passed since. None: there is no heartbeat. One of an earlier term was under way for long, and tells
        nothing; nor does one that has gone, such as with its folder: the active instance sends another.
        """
        is_late = self.seen is not None and (heartbeat is None or heartbeat.rank < self.seen.rank)
        if self._since_s is None or not (is_late or heartbeat == self.seen):
            self._since_s = asked_s
        if not is_late:
            self.seen = heartbeat
            is_own = heartbeat is not None and heartbeat.instance == self._instance and self.may_resume
            if heartbeat is None or heartbeat.released or is_own:
                return True
        return asked_s - self._since_s >= self._silence_s

    def miss(self) -> None:
        """Note a look without an answer: silence is measured anew, for the active instance may have had none either."""
        self._since_s = None

    def begin(self, *, may_resume: bool) -> None:
        """Begin to watch. `may_resume`: take over at once if our own heartbeat is still the last one."""
        self._since_s, self.may_resume = None, may_resume


T = TypeVar("T")

_BEATS: Final = 4  # in the time of silence after which a standby takes over
_LOOKS: Final = 8
_CLOSE_S: Final = 2.0

_log = logging.getLogger(__name__)


def standing_by(make: Make, instance: str, silence_s: float) -> Make:
    """Return what makes work like that of `make` that stands by while another instance is active.

    Raises `ConfigError` for a pipeline whose sink has no place for heartbeats.
    """

    def make_standby(pipeline: PipelineSettings, status: PipelineStatus, is_new: bool) -> Work:
        def open_heartbeats() -> Heartbeats:
            sink = pipeline.make_sink()
            heartbeats = sink.open_heartbeats(pipeline.name, silence_s) if isinstance(sink, Sink) else None
            if heartbeats is None:
                reason = f'cannot stand by: a sink of kind "{pipeline.sink_kind}" has no place for heartbeats here'
                remedy = "Run it in a daemon of its own, without --standby. kafka, sql and delta have one."
                raise ConfigError(pipeline.name, reason, remedy)
            return heartbeats

        with suppress(SinkError):  # such as a secret that cannot be read now, which stops this pipeline alone
            open_heartbeats()
        return Standby(status, open_heartbeats, lambda: make(pipeline, status, is_new), instance, silence_s).work

    return make_standby


class Standby:
    """The work of a pipeline by the instance `instance`; see the module. `status` is told who is active.

    `open_heartbeats`: opens their place. `make`: makes the work of the active instance. `silence_s`: after how long
    without a heartbeat the instance takes over.
    """

    def __init__(
        self,
        status: PipelineStatus,
        open_heartbeats: Callable[[], Heartbeats],
        make: Callable[[], Work],
        instance: str,
        silence_s: float,
    ) -> None:
        self._name = status.name
        self._status = status
        self._open = open_heartbeats
        self._make = make
        self._next: Work | None = make()  # made here, because settings that do not fit are refused at the start
        self._silence_s = silence_s
        self._watch = Watch(instance, silence_s)
        self._sent = Heartbeat(instance, 0)
        self._lost = ""  # why the instance is not active any more

    async def work(self, stop: Stop) -> None:
        """Stand by and deliver in turn, until the delivery ends."""
        heartbeats = self._open()
        try:
            while await self._stand_by(heartbeats, stop):
                if await self._deliver(heartbeats, stop):
                    return
        finally:
            with anyio.move_on_after(_CLOSE_S, shield=True):
                await heartbeats.aclose()
                if self._next is not None:  # it has a sink, which its work closes
                    at_once = Stop()
                    at_once.set()
                    await self._next(at_once)

    async def _stand_by(self, heartbeats: Heartbeats, stop: Stop) -> bool:
        """Wait until no instance is active, and become it. Return False once it is stopped.

        Raises `SinkRejected` where heartbeats cannot be read as things are.
        """
        fault = ""
        while not stop.is_set:
            asked_s = time.monotonic()
            try:
                heartbeat = await self._ask(heartbeats.read)
                before, fault = self._watch.seen, ""
                is_due = self._watch.see(heartbeat, asked_s)
                if self._watch.seen != before:
                    self._note_active(heartbeat, is_here=False)
                    if before is not None and self._status.active is not None:
                        self._drop_command()
                active = self._status.active
                self._status.note_standby(f"{active.instance} is active" if active else "no instance is active yet")
                if is_due and await self._claim(heartbeats, stop):
                    return True
            except SinkUnavailable as error:
                self._watch.miss()
                if str(error) != fault:
                    _log.warning("%s: heartbeats cannot be read: %s", self._name, error)
                    self._status.note_error(error)
                fault = str(error)
            await stop.wait(self._silence_s / _LOOKS)
        return False

    async def _claim(self, heartbeats: Heartbeats, stop: Stop) -> bool:
        """Begin a term of our own. Return False if another instance has done so."""
        before = self._watch.seen
        self._sent = Heartbeat(self._sent.instance, 1 if before is None else before.term + 1)
        while not stop.is_set:
            await self._ask(lambda: heartbeats.write(self._sent))
            await stop.wait(self._silence_s / _LOOKS)  # another standby may do the same
            last = await self._ask(heartbeats.read)
            if last == self._sent:
                if before is None or before.instance == last.instance:
                    _log.info("%s: %s is active from here on", self._name, last.instance)
                else:
                    _log.info("%s: %s is active from here on, after %s", self._name, last.instance, before.instance)
                    await self._drop_backfill(before.instance)
                return True
            if last is not None and last.rank > self._sent.rank:
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

    async def _deliver(self, heartbeats: Heartbeats, stop: Stop) -> bool:
        """Deliver as the active instance. Return False if another one is active now.

        Release the heartbeat when the delivery ends, for any reason.
        """
        work, self._next, self._lost = self._next or self._make(), None, ""
        self._status.note_start()
        self._note_active(self._sent, is_here=True)
        try:
            with anyio.CancelScope() as scope:
                async with background() as besides:
                    besides.start_soon(self._beat, heartbeats, scope)
                    await work(stop)
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
            if not self._lost:
                await self._release(heartbeats)
        return not self._lost

    async def _beat(self, heartbeats: Heartbeats, scope: anyio.CancelScope) -> None:
        """Send heartbeats, until another instance is active or none can be sent; then cancel `scope`."""
        sent_s, fault = time.monotonic(), ""
        while not self._lost:
            began_s = time.monotonic()
            try:
                last = await self._ask(heartbeats.read)
                if last is not None and last.rank > self._sent.rank:
                    self._lose(f"{last.instance} is active now")
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
