"""The network between processes and servers: requests that are refused, lost, late or slow, drawn from the seed.

A request is sent, takes effect at the server, and is answered. Each of the three may go wrong. What a process sent is
out of its hands: it takes effect even if the process has given up waiting for the answer, or is dead. That may be
minutes later, when another process has taken over.

A server is a function that is called at the moment of the effect, so each request is atomic there.
"""

import asyncio
import random
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, Final, TypeVar

from tests.simulation.physics import PROCESS, Died, Physics, Process

__all__ = ["CLIENT_TIMEOUT_S", "Fault", "Network", "NoAnswer", "Trace"]

T = TypeVar("T")

CLIENT_TIMEOUT_S: Final = 60.0


class Fault(StrEnum):
    """A kind of fault, which a run may have or not."""

    REFUSE = "refuse"  # the request never arrives, and the client learns that
    LOSE = "lose"  # it takes effect, and the answer is lost
    SLOW = "slow"  # it takes seconds
    HOLD = "hold"  # it takes effect long after the client has given up
    TEAR = "tear"  # the body of an answer ends early
    STALE = "stale"  # a listing lacks the newest objects
    MISS = "miss"  # an object is not found once
    CRASH = "crash"  # the process dies at any step
    RIVAL = "rival"  # a second process runs
    SKEW = "skew"  # wall clocks jump
    CLEAN = "clean"  # the log is cleaned up behind a checkpoint
    VACUUM = "vacuum"  # data files are deleted before they were read
    DAMAGE = "damage"  # a commit is unreadable, or needs a feature that nobody knows
    REPLACE = "replace"  # the table is replaced, in its log or with it
    SCHEMA = "schema"  # columns are added
    ORDER = "order"  # an operator pauses, skips, snapshots, backfills and reloads


class NoAnswer(Exception):
    """There is no answer from the server: the request may have taken effect, unless it was `refused`."""

    def __init__(self, reason: str, *, refused: bool = False) -> None:
        super().__init__(reason)
        self.refused = refused


class Trace:
    """The events of a run, with their virtual times."""

    def __init__(self, physics: Physics) -> None:
        self.lines: list[str] = []
        self._physics = physics

    def add(self, text: str) -> None:
        """Note an event, of the process that is at work if there is one."""
        process = PROCESS.get()
        who = "world" if process is None else process.name
        self.lines.append(f"{self._physics.now_s:10.3f} {who:6} {text}")


@dataclass
class Network:
    """The network of one run. `rates`: how likely a request has each fault, until `calm_s`."""

    physics: Physics
    trace: Trace
    chance: random.Random
    rates: dict[Fault, float]
    calm_s: float
    on_send: Callable[[Process, str], None] = lambda *_: None
    seen: dict[Fault, int] = field(default_factory=dict)
    late_s: float = 0.0  # by when every write on its way has arrived
    stalled_until_s: float = 0.0
    _parked: dict[Process, dict[asyncio.TimerHandle, Callable[[], None]]] = field(default_factory=dict)

    def draw(self, *kinds: Fault) -> Fault | None:
        """Return the fault of a request that can have these kinds."""
        number = self.chance.random()
        if self.physics.now_s >= self.calm_s:
            return None
        for kind in kinds:
            number -= self.rates.get(kind, 0.0)
            if number < 0:
                self.note(kind)
                return kind
        return None

    def note(self, kind: Fault) -> None:
        """Count a fault that has happened."""
        self.seen[kind] = self.seen.get(kind, 0) + 1

    @property
    def is_stalled(self) -> bool:
        """Return whether no request arrives now."""
        return self.physics.now_s < self.stalled_until_s

    def stall(self, seconds: float) -> None:
        """Let no request arrive for a while. Clients give them up after `CLIENT_TIMEOUT_S`."""
        self.note(Fault.HOLD)
        self.trace.add(f"STALL of the network for {seconds:.0f} s")
        self.stalled_until_s = self.physics.now_s + seconds

    def send(self, what: str, effect: Callable[[], T]) -> "asyncio.Future[T]":
        """Send a request. The future has what `effect` returns or raises, or `NoAnswer`, or `Died`."""
        process = PROCESS.get()
        answer: asyncio.Future[T] = self.physics.loop.create_future()
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        if process is not None and process.dead:
            answer.set_exception(Died())
            return answer
        if process is not None:
            self.on_send(process, what)
        fault = self.draw(Fault.REFUSE, Fault.LOSE, Fault.SLOW, Fault.HOLD)
        there_s, back_s = self._way(fault), self._way(None if fault is Fault.HOLD else fault)
        self.trace.add(f"{what}{'' if fault is None else f'   <{fault}>'}")
        if fault is Fault.REFUSE:
            self.later(back_s, lambda: self._answer(answer, error=NoAnswer("connection refused", refused=True)))
            return answer
        there_s = max(there_s, self.stalled_until_s - self.physics.now_s)
        if there_s > CLIENT_TIMEOUT_S:
            self.late_s = max(self.late_s, self.physics.now_s + there_s)
        lost_s = self.chance.choice((back_s, CLIENT_TIMEOUT_S / 2)) if fault is Fault.LOSE else None
        arrive = partial(self._arrive, effect, answer, back_s, lost_s, process)
        handle = self.later(there_s, arrive)
        if process is not None:
            process.in_flight[answer] = None
            self._parked.setdefault(process, {})[handle] = arrive
        self.later(CLIENT_TIMEOUT_S, lambda: self._answer(answer, error=NoAnswer("no answer in time")))
        return answer

    def _way(self, fault: Fault | None) -> float:
        """Return how long a request, or its answer, is on its way, in seconds."""
        match fault:
            case Fault.SLOW:
                return self.chance.uniform(0, 20)
            case Fault.HOLD:
                return self.chance.choice((61.0, 70.0, 150.0, 400.0)) * self.chance.uniform(1, 1.5)
        return self.chance.choice((0.001, 0.01, 0.1)) * self.chance.random()

    def _arrive(
        self,
        effect: Callable[[], T],
        answer: "asyncio.Future[T]",
        back_s: float,
        lost_s: float | None,
        process: Process | None,
    ) -> None:
        """Let a request take effect, and send the answer; `lost_s`: when the client learns that it is lost."""
        result: T | None = None
        failure: Exception | None = None
        try:
            result = effect()
        except Exception as error:  # noqa: BLE001 - the server's answer
            failure = error
        if process is not None:
            process.in_flight.pop(answer, None)
        if lost_s is not None:
            self.later(lost_s, lambda: self._answer(answer, error=NoAnswer("connection reset")))
        else:
            self.later(back_s, lambda: self._answer(answer, result, failure))

    def kill(self, process: Process) -> None:
        """End a process. What it has sent is lost, or arrives when it would have, or minutes later."""
        process.dead = True
        for handle, arrive in self._parked.pop(process, {}).items():
            if not handle.cancelled() and handle.when() > self.physics.now_s:
                handle.cancel()
                match self.chance.randrange(3):
                    case 0:
                        self.later(self.chance.uniform(0, 0.1), arrive)
                    case 1:
                        after_s = self.chance.uniform(0, 300)
                        self.late_s = max(self.late_s, self.physics.now_s + after_s)
                        self.later(after_s, arrive)
        for answer in list(process.in_flight):
            self._answer(answer, error=Died())

    def later(self, seconds: float, work: Callable[[], None]) -> asyncio.TimerHandle:
        """Let a server do something after a while."""
        # An empty context: what is on its way belongs to no process.
        return self.physics.loop.call_later(seconds, work, context=_NOBODY)

    @staticmethod
    def _answer(answer: "asyncio.Future[Any]", result: Any = None, error: BaseException | None = None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)


_NOBODY: Final = Context()
