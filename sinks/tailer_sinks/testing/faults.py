"""A sink that fails on purpose, at scripted places: for testing the code before a sink.

    sink = FaultySink(MemorySink("m"), Fault(Step.WRITE, Kind.FAIL, nth=2), Fault(Step.COMMIT, Kind.FAIL, after=True))

The script is deterministic: a fault fires once, at the `nth` time of its step on this instance, before the step or
after it. A commit that fails after it took place simulates a lost answer.
"""

import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum

import anyio
import pyarrow as pa
from typing_extensions import override

from tailer.errors import CommitUnknown, SinkRejected, SinkUnavailable
from tailer.events import ChangeBatch, ControlEvent
from tailer.sink import Progress, Sink, SinkTransaction, SinkWrapper, TransactionWrapper

__all__ = ["Fault", "FaultySink", "Kind", "Step", "every_fault"]


class Step(StrEnum):
    """The step at which a fault fires."""

    PROGRESS = "progress"
    BEGIN = "begin"
    WRITE = "write"
    ANNOUNCE = "announce"
    COMMIT = "commit"


class Kind(StrEnum):
    """The kind of fault."""

    REJECT = "reject"  # SinkRejected
    FAIL = "fail"  # SinkUnavailable; of a commit, CommitUnknown
    HOLD = "hold"  # nothing, until `FaultySink.release` or cancellation
    SLOW = "slow"  # a pause of `Fault.seconds`
    CRASH = "crash"  # SIGKILL to this process


@dataclass(frozen=True, slots=True)
class Fault:
    """One line of the script. `seconds` is for `Kind.SLOW`."""

    step: Step
    kind: Kind
    nth: int = 1
    after: bool = False
    seconds: float = 0.1

    def __post_init__(self) -> None:
        if self.kind is Kind.REJECT and self.step is Step.COMMIT and self.after:
            raise ValueError("a rejected commit did not take place")

    def __str__(self) -> str:
        return f"{self.kind} {'after' if self.after else 'before'} {self.step} {self.nth}"


def every_fault() -> list[Fault]:
    """List each fault that is an error or a pause, at the first and the second time of each step."""
    return [
        Fault(step, kind, nth, after, seconds=0.01)
        for step in Step
        for kind in (Kind.REJECT, Kind.FAIL, Kind.SLOW)
        for nth in (1, 2)
        for after in (False, True)
        if (step, kind, after) != (Step.COMMIT, Kind.REJECT, True)
    ]


class FaultySink(SinkWrapper):
    """`sink`, with `faults`. `has_delivered`, `reset` and `aclose` have none.

    `crash` may be replaced to avoid killing the process.
    """

    def __init__(
        self, sink: Sink, *faults: Fault, crash: Callable[[], None] = lambda: os.kill(os.getpid(), signal.SIGKILL)
    ) -> None:
        super().__init__(sink)
        self.fired: list[Fault] = []
        self.holding = anyio.Event()
        self._faults = faults
        self._crash = crash
        self._taken: Counter[Step] = Counter()
        self._released = anyio.Event()

    def release(self) -> None:
        """End a `Kind.HOLD`; `holding` is set when it has begun."""
        self._released.set()

    @override
    async def progress(self, app_id: str) -> Progress | None:
        async with self.step(Step.PROGRESS):
            return await self._sink.progress(app_id)

    @asynccontextmanager
    @override
    async def begin(self, app_id: str, schema: pa.Schema) -> AsyncIterator[SinkTransaction]:
        await self._strike(Step.BEGIN, after=False)
        async with self._sink.begin(app_id, schema) as transaction:
            await self._strike(Step.BEGIN, after=True)
            yield _FaultyTransaction(self, transaction)

    @asynccontextmanager
    async def step(self, step: Step) -> AsyncIterator[None]:
        """Run a step between its two chances to fail."""
        await self._strike(step, after=False)
        yield
        await self._strike(step, after=True)

    async def _strike(self, step: Step, *, after: bool) -> None:
        self._taken[step] += not after
        for fault in self._faults:
            if (fault.step, fault.nth, fault.after) == (step, self._taken[step], after) and fault not in self.fired:
                self.fired.append(fault)
                await self._suffer(fault)

    async def _suffer(self, fault: Fault) -> None:
        reason = f"on purpose: {fault}"
        match fault.kind:
            case Kind.REJECT:
                raise SinkRejected(self.name, reason)
            case Kind.FAIL if fault.step is Step.COMMIT:
                raise CommitUnknown(self.name, reason)
            case Kind.FAIL:
                raise SinkUnavailable(self.name, reason)
            case Kind.HOLD:
                self.holding.set()
                await self._released.wait()
            case Kind.SLOW:
                await anyio.sleep(fault.seconds)
            case Kind.CRASH:
                self._crash()


class _FaultyTransaction(TransactionWrapper):
    def __init__(self, sink: FaultySink, transaction: SinkTransaction) -> None:
        super().__init__(transaction)
        self._sink = sink

    async def write(self, batch: ChangeBatch) -> None:
        async with self._sink.step(Step.WRITE):
            await self._transaction.write(batch)

    async def announce(self, event: ControlEvent) -> None:
        async with self._sink.step(Step.ANNOUNCE):
            await self._transaction.announce(event)

    async def commit(self, progress: Progress) -> None:
        async with self._sink.step(Step.COMMIT):
            await self._transaction.commit(progress)
