"""A snapshot that an operator commands: once, and whole, whatever fails meanwhile."""

from pathlib import Path

import anyio
import pytest

from tailer.engine.local import LocalEngine
from tailer.errors import ChangesUnavailable, FileVacuumed
from tailer.events import Gap
from tailer.formats.delta.table import DeltaTableLog
from tailer.pipeline.policy import Limits, OnDataLoss, Policy
from tailer.pipeline.row_delivery import row_pipeline
from tailer.pipeline.status import PipelineStatus
from tailer.plan import Position
from tailer.sink import Progress, Sink
from tailer.start import Start
from tailer.stores.local import LocalStore
from tailer.stores.wakeup import TimerWake
from tailer_sinks.testing.faults import Fault, FaultySink, Kind, Step
from tests.support.streams import APP, Destination, Growing, pipeline

pytestmark = pytest.mark.anyio

LATEST = Start.parse("latest")


@pytest.fixture
def table(tmp_path: Path) -> Growing:
    """A table whose versions 1 to 4 insert a row each."""
    found = Growing(tmp_path / "t")
    for version in range(1, 5):
        found.insert([version])
    return found


async def deliver(table: Growing, sink: Sink, status: PipelineStatus, until: Start = LATEST) -> None:
    """Deliver the table up to `until`, each batch in a transaction of its own."""
    limits = Limits(max_rows=1, poll_interval_s=0.005)
    log = DeltaTableLog(LocalStore(table.path))
    made = row_pipeline(
        "p", log, sink, LocalEngine(2), TimerWake(), Start.parse("earliest"), until, None, limits, None, status
    )
    with anyio.fail_after(300):
        await made.run()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("nth", [1, 2, 3, 4])
@pytest.mark.parametrize("step", [Step.PROGRESS, Step.BEGIN, Step.WRITE, Step.ANNOUNCE, Step.COMMIT])
async def test_a_fault_at_every_step_of_an_ordered_snapshot(table: Growing, step: Step, nth: int, after: bool) -> None:
    there, status = Destination(), PipelineStatus("p")
    await deliver(table, there.sink(), status, Start.parse("2"))
    status.command = OnDataLoss.RESNAPSHOT
    await deliver(table, FaultySink(there.sink(), Fault(step, Kind.FAIL, nth, after)), status)
    assert there.delivered() == [(1, 1), (2, 2), (4, 1), (4, 2), (4, 3), (4, 4)]
    assert [(event.first_version, event.version) for event in there.events(APP) if isinstance(event, Gap)] == [(3, 4)]
    assert there.position() == Position.end(4)
    assert status.command is None
    table.insert([5])
    await deliver(table, there.sink(), status)
    assert there.delivered()[-1] == (5, 5)


@pytest.mark.parametrize(("command", "rows"), [(OnDataLoss.RESNAPSHOT, [1, 2, 3, 4]), (OnDataLoss.SKIP, [])])
async def test_a_part_of_a_net_difference_stops_until_it_is_ordered_past(
    table: Growing, command: OnDataLoss, rows: list[int]
) -> None:
    """Former releases delivered it. The rest of it is not in the plan of version 4, with which it ends."""
    there, status = Destination(), PipelineStatus("p")
    await deliver(table, there.sink(), status, Start.parse("2"))
    inside = Position(4, 2**31 + 2 * 2**18, 0)
    there.progress[APP] = Progress(APP, inside)
    with pytest.raises(ChangesUnavailable, match="a part of its net difference"):
        await deliver(table, there.sink(), status)
    assert (there.position(), there.delivered()) == (inside, [(1, 1), (2, 2)])
    status.command = command
    await deliver(table, there.sink(), status)
    assert there.delivered() == [(1, 1), (2, 2), *((4, each) for each in rows)]
    assert [(event.first_version, event.version) for event in there.events(APP) if isinstance(event, Gap)] == [(4, 4)]
    assert there.position() == Position.end(4)


async def test_an_order_to_skip_ends_when_everything_can_be_read(table: Growing) -> None:
    there, status = Destination(), PipelineStatus("p")
    status.command = OnDataLoss.SKIP
    async with anyio.create_task_group() as group:
        log = DeltaTableLog(LocalStore(table.path))
        made = row_pipeline("p", log, there.sink(), LocalEngine(2), TimerWake(), Start.parse("earliest"), status=status)
        group.start_soon(made.run)
        with anyio.fail_after(300):
            while status.command is not None:  # noqa: ASYNC110 - a destination does not notify
                await anyio.sleep(0.01)
        made.stop()
    version = table.insert([5])
    (table.path / f"{version}-0.parquet").unlink()
    with pytest.raises(FileVacuumed):
        await deliver(table, there.sink(), status)
    assert there.position() == Position.end(4)


async def test_a_snapshot_is_not_ordered_in_place_of_what_another_instance_has_delivered(table: Growing) -> None:
    there, status = Destination(), PipelineStatus("p")
    await deliver(table, there.sink(), status, Start.parse("2"))
    status.command = OnDataLoss.RESNAPSHOT
    sink = FaultySink(there.sink(), Fault(Step.BEGIN, Kind.HOLD))
    async with anyio.create_task_group() as group:
        group.start_soon(deliver, table, sink, status)
        await sink.holding.wait()
        await deliver(table, there.sink(), PipelineStatus("p"))
        sink.release()
    assert there.delivered() == [(1, 1), (2, 2), (3, 3), (4, 4)]


async def test_a_lost_version_that_another_instance_got_past_costs_no_other_one(table: Growing) -> None:
    """The instance that was slower goes on after it: what comes next can be read, and is not left out."""
    (table.path / "3-0.parquet").unlink()
    there, skips = Destination(), Policy(on_data_loss=OnDataLoss.SKIP)
    await pipeline(table, there.sink(), until="2").run()
    sink = FaultySink(there.sink(), Fault(Step.BEGIN, Kind.HOLD))
    async with anyio.create_task_group() as group:
        group.start_soon(pipeline(table, sink, until="5", policy=skips).run)
        await sink.holding.wait()
        await pipeline(table, there.sink(), until="4", policy=skips).run()
        table.insert([5])
        sink.release()
    assert there.delivered() == [(1, 1), (2, 2), (4, 4), (5, 5)]
    assert [(event.first_version, event.version) for event in there.events(APP) if isinstance(event, Gap)] == [(3, 3)]
