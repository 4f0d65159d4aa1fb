"""Faults fire where the script says, once, with the errors that a real destination would cause."""

import subprocess
import sys

import anyio
import pytest

from tailer.errors import CommitUnknown, SinkError, SinkRejected, SinkUnavailable
from tailer.sink import Sink
from tailer_sinks.memory import MemoryDestination, MemorySink
from tailer_sinks.testing import Fault, FaultySink, Kind, Step, change_batch
from tailer_sinks.testing.announcements import change, wider
from tailer_sinks.testing.rows import numbered
from tailer_sinks.testing.suite import APP, SCHEMA, Item, deliver, up_to

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("fault", "error", "committed"),
    [
        (Fault(Step.BEGIN, Kind.REJECT), SinkRejected, False),
        (Fault(Step.BEGIN, Kind.FAIL, after=True), SinkUnavailable, False),
        (Fault(Step.WRITE, Kind.FAIL, nth=2), SinkUnavailable, False),
        (Fault(Step.WRITE, Kind.FAIL, nth=2, after=True), SinkUnavailable, False),
        (Fault(Step.COMMIT, Kind.REJECT), SinkRejected, False),
        (Fault(Step.COMMIT, Kind.FAIL), CommitUnknown, False),
        (Fault(Step.COMMIT, Kind.FAIL, after=True), CommitUnknown, True),
    ],
    ids=str,
)
async def test_an_error_strikes_once(fault: Fault, error: type[SinkError], committed: bool) -> None:
    sink = FaultySink(MemorySink("memory"), fault)
    with pytest.raises(error, match="on purpose"):
        await deliver(sink, numbered(1), numbered(1, task=1))
    assert sink.fired == [fault]
    assert await sink.progress(APP) == (up_to(APP, 1) if committed else None)
    await deliver(sink, numbered(2))
    assert sink.fired == [fault]


@pytest.mark.parametrize("after", [False, True])
async def test_an_event_can_fail(after: bool) -> None:
    sink = FaultySink(MemorySink("memory"), Fault(Step.ANNOUNCE, Kind.FAIL, nth=2, after=after))
    items: list[Item] = [numbered(1), change(2), wider(2), change(3, wider(2).rows.schema, SCHEMA), numbered(3)]
    with pytest.raises(SinkUnavailable, match="announce 2"):
        await deliver(sink, *items)
    assert await sink.progress(APP) is None
    await deliver(sink, *items)
    assert await sink.progress(APP) == up_to(APP, 3)


async def test_progress_can_fail() -> None:
    sink = FaultySink(MemorySink("memory"), Fault(Step.PROGRESS, Kind.FAIL, nth=2))
    assert await sink.progress(APP) is None
    with pytest.raises(SinkUnavailable):
        await sink.progress(APP)


async def test_a_hold_lasts_until_it_is_released() -> None:
    destination = MemoryDestination()
    sink = FaultySink(MemorySink("memory", destination), Fault(Step.COMMIT, Kind.HOLD))
    async with anyio.create_task_group() as group:
        group.start_soon(deliver, sink, numbered(1))
        await sink.holding.wait()
        await anyio.sleep(0.02)
        assert APP not in destination.progress
        sink.release()
    assert destination.progress[APP] == up_to(APP, 1)


async def test_a_hold_ends_with_cancellation() -> None:
    destination = MemoryDestination()
    sink = FaultySink(MemorySink("memory", destination), Fault(Step.WRITE, Kind.HOLD, after=True))
    with anyio.move_on_after(0.02) as scope:
        await deliver(sink, numbered(1))
    assert scope.cancelled_caught
    assert destination.progress == {}


async def test_slow_is_slow_and_nothing_else() -> None:
    sink: Sink = FaultySink(MemorySink("memory"), Fault(Step.WRITE, Kind.SLOW, seconds=0.05))
    start = anyio.current_time()
    await deliver(sink, numbered(1))
    assert anyio.current_time() - start >= 0.05
    assert await sink.progress(APP) == up_to(APP, 1)


def test_a_crash_is_the_end_of_the_process() -> None:
    program = (
        "import anyio\n"
        "from tailer_sinks.memory import MemorySink\n"
        "from tailer_sinks.testing import Fault, FaultySink, Kind, Step\n"
        "from tailer_sinks.testing.suite import deliver\n"
        "from tailer_sinks.testing.rows import numbered\n"
        "sink = FaultySink(MemorySink('memory'), Fault(Step.COMMIT, Kind.CRASH))\n"
        "anyio.run(deliver, sink, numbered(1))\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9


async def test_a_crash_can_be_watched() -> None:
    crashes: list[str] = []
    sink = FaultySink(MemorySink("m"), Fault(Step.BEGIN, Kind.CRASH), crash=lambda: crashes.append("crash"))
    await deliver(sink, numbered(1))
    assert crashes == ["crash"]


def test_a_rejected_commit_cannot_have_taken_place() -> None:
    with pytest.raises(ValueError, match="did not take place"):
        Fault(Step.COMMIT, Kind.REJECT, after=True)


def test_columns_of_a_batch_are_of_one_length() -> None:
    with pytest.raises(ValueError, match="length"):
        change_batch(1, {"a": numbered(1).rows.column(0), "b": numbered(1, rows=2).rows.column(0)})
