"""An event loop whose time is virtual, and worker threads of which one runs at a time: one seed gives one run.

`Physics` stands in for what a process gets from its machine. Its loop never waits: where nothing is ready, the clock
jumps to the next timer. Which of the ready callbacks runs next is drawn from the seed, and so are the delays of worker
threads. Those of the product are real threads here, too, but the loop and the threads hand one baton on: a thread runs
until it ends or waits for an answer of the network, and gives the baton back meanwhile. So requests in the middle of
blocking code interleave with everything else, in an order that the seed decides.

`Physics.run` replaces, while a run lasts, everything from which a process could learn of the real machine: clocks,
random numbers, threads. The product takes clocks also as defaults of parameters, so these are replaced where they are
bound. Tasks have hashes that count up, because sets of tasks decide the order of cancellations, as do sets of scopes.
"""

import asyncio
import gc
import importlib
import os
import pkgutil
import random
import sys
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from functools import cache
from heapq import heappop
from itertools import count
from types import FunctionType
from typing import Any, Final, TypeVar
from unittest.mock import patch

from anyio import CancelScope, CapacityLimiter, to_thread
from anyio._backends._asyncio import CancelScope as AnyioScope
from anyio.lowlevel import checkpoint

import tailer
import tailer.stores.read_ahead
import tailer_sinks

__all__ = ["PROCESS", "Died", "Physics", "Process", "Stuck", "settle"]

T = TypeVar("T")

EPOCH_S: Final = 1_700_000_000.0
_MOST_STEPS: Final = 1_500_000
STEP_S: Final = 20e-6  # of virtual time for each callback
_NOT_SIMULATED: Final = ("tailer.spark", "tailer.cli", "tailer.__main__", "tailer.formats.lance")
_START_S: Final = 1000.0  # of the monotonic clock


class Died(BaseException):
    """The process is dead: nothing that it does has an effect any more. No code of the product catches this."""


class Stuck(Exception):
    """Nothing is left that could ever run, or there is no end to it."""


@dataclass(eq=False)
class Process:
    """A process that runs the daemon. `skew_s`: how far its wall clock is off."""

    name: str
    dead: bool = False
    skew_s: float = 0.0
    in_flight: dict[Any, None] = field(default_factory=dict)


PROCESS: Final[ContextVar[Process | None]] = ContextVar("process", default=None)


class _Task(asyncio.Task[Any]):
    """A task with a hash that is the same in every run."""

    numbers = count()

    def __init__(self, *args: Any, **more: Any) -> None:
        self._number = next(_Task.numbers)
        super().__init__(*args, **more)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class _InOrder(dict[Any, None]):
    """A set whose elements come in the order in which they were added."""

    def add(self, element: Any) -> None:
        self[element] = None

    def remove(self, element: Any) -> None:
        del self[element]

    def discard(self, element: Any) -> None:
        self.pop(element, None)


_begin_scope = AnyioScope.__init__


def _begin_scope_in_order(scope: AnyioScope, *args: Any, **more: Any) -> None:
    """Make a scope that cancels the scopes in it in the order of their beginning."""
    _begin_scope(scope, *args, **more)
    scope._child_scopes = _InOrder()  # type: ignore[assignment]


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop with virtual time that runs ready callbacks in an order drawn from `chance`."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.now_s = 0.0
        self._steps = 0
        self._chance = chance
        self._frozen: dict[Process | None, list[Any]] = {}
        self.set_task_factory(lambda loop, coro, **more: _Task(coro, loop=loop, **more))

    def time(self) -> float:
        """Return the virtual time."""
        return self.now_s

    def _run_once(self) -> None:
        ready: Any = self._ready  # type: ignore[attr-defined]
        timers: Any = self._scheduled  # type: ignore[attr-defined]
        while timers and timers[0]._cancelled:
            heappop(timers)._scheduled = False
        if not ready:
            if not timers:
                raise Stuck
            self.now_s = max(self.now_s, timers[0]._when)
        self.now_s += STEP_S
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise Stuck
        while timers and timers[0]._when <= self.now_s:
            handle = heappop(timers)
            handle._scheduled = False
            ready.append(handle)
        if len(ready) > 1:
            ready.rotate(-self._chance.randrange(len(ready)))
        handle = ready.popleft()
        process = handle._context.get(PROCESS)
        if process in self._frozen:
            self._frozen[process].append(handle)
        elif not handle._cancelled:
            handle._run()

    def freeze(self, process: Process, seconds: float) -> None:
        """Let a process stand still: what is due in it waits. Its requests go on their way."""
        self._frozen.setdefault(process, [])
        self.call_later(seconds, self.thaw, process, context=Context())

    def thaw(self, process: Process) -> None:
        """Let a process go on."""
        for handle in self._frozen.pop(process, ()):
            self._ready.append(handle)  # type: ignore[attr-defined]


class _Job:
    """A call in a worker thread, in the context of its caller."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._context = copy_context()
        self.process = PROCESS.get()
        self._result: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._result = self._context.run(self._work)
        except BaseException as error:  # noqa: BLE001 - raised by `outcome`
            self._error = error

    def outcome(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._result


class _Worker:
    """A thread that runs jobs while it has the baton."""

    def __init__(self) -> None:
        self.job: _Job | None = None
        self.waits_for: asyncio.Future[Any] | None = None
        self._go, self._back = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._back.acquire()
        threading.Thread(target=self._run, name="simulated worker", daemon=True).start()

    def resume(self) -> "asyncio.Future[Any] | None":
        """Give the baton to the thread until it waits, for what is returned, or has ended its job (None)."""
        self.waits_for = None
        self._go.release()
        self._back.acquire()
        return self.waits_for

    def park(self, future: "asyncio.Future[T]") -> T:
        """Give the baton back until `future` is done. Raises `Died`."""
        self.waits_for = future
        self._back.release()
        self._go.acquire()
        if self.job is not None and self.job.process is not None and self.job.process.dead:
            raise Died
        return future.result()

    def _run(self) -> None:
        while True:
            self._go.acquire()
            if self.job is None:
                return
            self.job.run()
            self._back.release()


class _Ahead:
    """Work that the product submits to threads of its own (`tailer.stores.read_ahead`): a future and its executor."""

    def __init__(self, physics: "Physics", work: Callable[[], Any]) -> None:
        self._physics = physics
        self._begun = self._cancelled = False
        self._job = _Job(work)
        self._done: asyncio.Future[None] = physics.loop.create_future()
        self._task = physics.loop.create_task(self._drive())

    async def _drive(self) -> None:
        await asyncio.sleep(self._physics.delay_s())
        if not self._cancelled and not (self._job.process is not None and self._job.process.dead):
            self._begun = True
            await self._physics.drive(self._job)
        self._done.set_result(None)

    def cancel(self) -> bool:
        """Return whether it had not begun, and will not."""
        self._cancelled = self._cancelled or not self._begun
        return self._cancelled

    def result(self) -> Any:
        """Wait for it in a worker thread."""
        if not self._done.done():
            self._physics.wait(self._done)
        return self._job.outcome()


class Physics:
    """The machine of one run, given by `seed`."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(f"order {seed}")
        self._bytes = random.Random(f"bytes {seed}")
        self._seed = seed
        _Task.numbers = count()
        self.loop = VirtualLoop(self.chance)
        self._idle: list[_Worker] = []
        self._all: list[_Worker] = []
        self._current: _Worker | None = None

    @property
    def now_s(self) -> float:
        """The virtual seconds since the beginning."""
        return self.loop.now_s

    def delay_s(self) -> float:
        """Return a short delay, as of the start of a thread."""
        return self.chance.choice((0.0, 0.0001, 0.001, 0.005)) * self.chance.random()

    async def drive(self, job: _Job) -> None:
        """Run a job in a thread to its end."""
        worker = self._idle.pop() if self._idle else _Worker()
        if worker not in self._all:
            self._all.append(worker)
        worker.job = job
        while (waiting := self._resume(worker)) is not None:
            done = self.loop.create_future()
            waiting.add_done_callback(lambda _, done=done: done.done() or done.set_result(None))  # type: ignore[misc]
            await done
        self._idle.append(worker)

    def _resume(self, worker: _Worker) -> "asyncio.Future[Any] | None":
        before, self._current = self._current, worker
        try:
            return worker.resume()
        finally:
            self._current = before

    def wait(self, future: "asyncio.Future[T]") -> T:
        """Wait in a worker thread for a future of the loop. Raises `Died`."""
        if self._current is None:
            raise RuntimeError("blocking code runs in the event loop")
        return self._current.park(future)

    async def run_sync(self, work: Callable[..., T], *args: Any, limiter: CapacityLimiter | None = None, **_: Any) -> T:
        """Stand in for `anyio.to_thread.run_sync`."""
        await checkpoint()
        async with limiter or to_thread.current_default_thread_limiter():
            with CancelScope(shield=True):
                job = _Job(lambda: work(*args))
                if job.process is not None and job.process.dead:
                    raise Died
                await asyncio.sleep(self.delay_s())
                await self.drive(job)
        result: T = job.outcome()
        return result

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run `main` to its end, with nothing of the real machine in sight."""
        with self._installed():
            try:
                return self.loop.run_until_complete(main)
            finally:
                for worker in self._all:
                    if worker in self._idle:
                        worker.job = None
                        worker._go.release()
                self.loop.close()

    @contextmanager
    def _installed(self) -> Iterator[None]:
        state, was_collecting = random.getstate(), gc.isenabled()
        bound, gmtime = _clock_defaults(), time.gmtime
        clocks: dict[Any, Any] = {time.monotonic: self._monotonic, time.time: self._time}
        with ExitStack() as stack:
            for target, name, new in (
                (AnyioScope, "__init__", _begin_scope_in_order),
                (to_thread, "run_sync", self.run_sync),
                (time, "monotonic", self._monotonic),
                (time, "time", self._time),
                (time, "time_ns", lambda: int(self._time() * 1e9)),
                (time, "gmtime", lambda at=None: gmtime(self._time() if at is None else at)),
                (time, "sleep", self._sleep),
                (os, "urandom", self._bytes.randbytes),
                (random, "_urandom", self._bytes.randbytes),
                (tailer.stores.read_ahead, "_threads", lambda: self),
            ):
                stack.enter_context(patch.object(target, name, new))
            for function, defaults in bound:
                function.__defaults__ = tuple(clocks.get(each, each) if callable(each) else each for each in defaults)
                stack.callback(setattr, function, "__defaults__", defaults)
            random.seed(self._seed)
            gc.disable()  # finalizers would run at any moment
            try:
                yield
            finally:
                random.setstate(state)
                if was_collecting:
                    gc.enable()

    def submit(self, work: Callable[..., Any], *args: Any) -> _Ahead:
        """Stand in for `ThreadPoolExecutor.submit`."""
        return _Ahead(self, lambda: work(*args))

    def _monotonic(self) -> float:
        return _START_S + self.loop.now_s

    def _time(self) -> float:
        process = PROCESS.get()
        return EPOCH_S + self.loop.now_s + (0.0 if process is None else process.skew_s)

    def _sleep(self, seconds: float) -> None:
        future: asyncio.Future[None] = self.loop.create_future()
        self.loop.call_later(seconds, future.set_result, None)
        self.wait(future)


@cache
def _clock_defaults() -> tuple[tuple[FunctionType, tuple[Any, ...]], ...]:
    """Return the functions of the product with a clock as the default of a parameter, and their defaults.

    Imports the product: what is imported during a run would be bound to the clocks of that run for ever.
    """
    for package in (tailer, tailer_sinks):
        for found_module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found_module.name.startswith(_NOT_SIMULATED):
                importlib.import_module(found_module.name)
    clocks = (time.monotonic, time.time)
    found: dict[FunctionType, tuple[Any, ...]] = {}
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] in ("tailer", "tailer_sinks")]
    for module in modules:
        for thing in list(vars(module).values()):
            for each in (thing, *(vars(thing).values() if isinstance(thing, type) else ())):
                function = getattr(each, "__func__", each)
                if isinstance(function, FunctionType) and any(one in clocks for one in function.__defaults__ or ()):
                    found[function] = function.__defaults__ or ()
    return tuple(found.items())


async def settle(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Wait until the tasks of dead processes have ended."""
    for _ in range(100_000):
        if all(task.done() for task in tasks):
            return
        await asyncio.sleep(0.01)
    raise AssertionError("a dead process does not end")
