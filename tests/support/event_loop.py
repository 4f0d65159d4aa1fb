"""A detector for code that blocks an event loop, for a busy machine.

A block is a callback of a loop that runs for long. Wall time alone is not enough: a thread that waits for a processor
looks the same as one that sleeps in a system call. Two measurements are more reliable:

- the processor time of the callback in the loop's thread, which preemption does not increase;
- samples of a watchdog thread at a fixed interval. Each sample counts at most one interval, so a watchdog on an
  overloaded machine counts little. The time that the loop's thread spent in the run queue is subtracted, where the
  kernel reports it.

A block is reported if one of them exceeds the limit, with the lines of code that the watchdog saw most often. Imports
do not count: they happen once per process, and their time depends on the page cache. Neither does the start of a
thread, which depends on the scheduler, nor what helpers of tests do by themselves, such as a query to a database.
"""

import asyncio
import gc
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final
from unittest.mock import patch

__all__ = ["BlockedLoop", "watch_event_loops"]

INTERVAL_S: Final = 0.02
LIMIT_S: Final = 0.5
BENIGN_LOOKS: Final = 2
STACK_DEPTH: Final = 12

_run_callback: Final = asyncio.Handle._run
_start_thread: Final = threading.Thread.start.__code__
_ROOT: Final = Path(__file__).parents[2]
_PRODUCT: Final = (f"{_ROOT / 'tailer'}/", f"{_ROOT / 'sinks'}/")
_HELPERS: Final = f"{_ROOT / 'tests' / 'support'}/"


@dataclass(frozen=True)
class BlockedLoop:
    """A callback that blocked its loop."""

    blocked_s: float
    stack: str

    def __str__(self) -> str:
        return f"the event loop was blocked for {self.blocked_s:.2f} s; most often seen in:\n{self.stack}"


@dataclass
class _Running:
    """A running callback, in the thread `ident`; the watchdog adds its samples."""

    ident: int
    native_id: int
    burnt_s: float
    queued_s: float | None = None
    first_queued_s: float | None = None
    looks: int = 0
    excused: int = 0
    collected_s: float = 0.0
    seen: Counter[str] = field(default_factory=Counter)

    def blocked_s(self, burnt_s: float) -> float:
        """The time for which this callback verifiably held its thread, without excused calls and garbage collection."""
        queued_s = (self.queued_s or 0.0) - (self.first_queued_s or 0.0)
        watched_s = self.looks * INTERVAL_S - queued_s
        return max(burnt_s - self.burnt_s, watched_s) - self.excused * INTERVAL_S - self.collected_s


def _queued_s(native_id: int) -> float:
    """Return how long a thread has waited for a processor so far; 0 if the kernel does not report it."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/self/task/{native_id}/schedstat").read_text().split()[1]) / 1e9
    return 0.0


def _is_excused(frame: FrameType | None) -> bool:
    owner = None
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith("<frozen importlib") or frame.f_code is _start_thread:
            return True
        if owner is None and file != __file__ and file.startswith((*_PRODUCT, _HELPERS)):
            owner = file
        frame = frame.f_back
    return owner is not None and owner.startswith(_HELPERS)


class _Watch:
    """The running callbacks of all threads, and a thread that samples them."""

    def __init__(self) -> None:
        self.found: list[BlockedLoop] = []
        self._running: dict[int, _Running] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look_often, name="event loop watchdog", daemon=True)

    def start(self) -> None:
        gc.callbacks.append(self._collecting)
        self._thread.start()

    def stop(self) -> None:
        gc.callbacks.remove(self._collecting)
        self._stop.set()
        self._thread.join()

    def run(self, handle: asyncio.Handle) -> None:
        """Run a callback in the loop's thread, as `asyncio.Handle._run` does, and check its time."""
        ident = threading.get_ident()
        running = _Running(ident, threading.get_native_id(), time.thread_time())
        self._running[ident] = running
        try:
            _run_callback(handle)
        finally:
            del self._running[ident]
            blocked_s = running.blocked_s(time.thread_time())
            if blocked_s > LIMIT_S:
                self.found.append(BlockedLoop(blocked_s, self._where(running, handle)))

    def _collecting(self, phase: str, _: dict[str, int]) -> None:
        """Garbage of the whole test run is not the callback's fault, so its collection does not count."""
        running = self._running.get(threading.get_ident())
        if running is not None:
            running.collected_s += time.perf_counter() * (-1 if phase == "start" else 1)

    def _look_often(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            for running in list(self._running.values()):
                self._look(running)

    def _look(self, running: _Running) -> None:
        running.queued_s = _queued_s(running.native_id)
        if running.first_queued_s is None:
            running.first_queued_s = running.queued_s
        running.looks += 1
        if running.looks <= BENIGN_LOOKS:  # nearly every callback has ended by now, so do not read its stack
            return
        frame = sys._current_frames().get(running.ident)
        running.excused += _is_excused(frame)
        running.seen["".join(traceback.format_stack(frame, STACK_DEPTH))] += 1

    @staticmethod
    def _where(running: _Running, handle: asyncio.Handle) -> str:
        """Return the stack seen most often; without a sample, only the callback."""
        return running.seen.most_common(1)[0][0] if running.seen else f"  {handle!r}"


@contextmanager
def watch_event_loops() -> Iterator[list[BlockedLoop]]:
    """Watch every asyncio loop of this process; yield a list of blocks that grows while the block runs."""
    watch = _Watch()

    def run(handle: asyncio.Handle) -> None:
        watch.run(handle)

    watch.start()
    try:
        # The only place that every callback of every loop passes through; there is no public one.
        with patch.object(asyncio.Handle, "_run", run):
            yield watch.found
    finally:
        watch.stop()
