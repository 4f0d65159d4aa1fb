"""`SinkTests`: the promises of a sink (`sinks`, "Writing a sink"), each as a test."""

from contextlib import suppress

import anyio
import pyarrow as pa
import pytest
from anyio import to_thread

from tailer.errors import SinkFenced, SinkRejected
from tailer.events import ChangeBatch
from tailer.plan import Position
from tailer.sink import Progress, Sink
from tailer_sinks.testing.announcements import AnnouncementTests, change, wider
from tailer_sinks.testing.faults import Fault, FaultySink, every_fault
from tailer_sinks.testing.progress import ProgressTests
from tailer_sinks.testing.rows import DELTA_TYPES, change_batch, numbered
from tailer_sinks.testing.snapshots import SnapshotTests
from tailer_sinks.testing.suite import APP, OTHER, SCHEMA, Item, attempt, deliver, succeeds, up_to

__all__ = ["SinkTests"]

LAST = 6  # the last version a run with faults delivers


class SinkTests(AnnouncementTests, ProgressTests, SnapshotTests):
    """The tests that every sink must pass; `tailer_sinks.testing` explains how to use them."""

    async def test_there_is_no_progress_at_first(self) -> None:
        await self.assert_progress(None)
        await self.assert_delivered()

    async def test_rows_and_progress_become_visible_together(self) -> None:
        async with self.opened() as sink:
            async with sink.begin(APP, SCHEMA) as transaction:
                await transaction.write(numbered(1))
                await self.assert_progress(None)
                await self.assert_delivered()
                await transaction.commit(up_to(APP, 1))
            await self.assert_progress(up_to(APP, 1))
            await self.assert_delivered(numbered(1))

    async def test_leaving_without_commit_leaves_nothing(self) -> None:
        async with self.opened() as sink:
            await deliver(sink, numbered(1))
            async with sink.begin(APP, SCHEMA) as transaction:
                await transaction.write(numbered(2))
            assert await sink.progress(APP) == up_to(APP, 1)
            await self.assert_delivered(numbered(1))
            await deliver(sink, numbered(2))
        await self.assert_progress(up_to(APP, 2))
        await self.assert_delivered(numbered(1), numbered(2))

    async def test_an_exception_leaves_nothing(self) -> None:
        async with self.opened() as sink:
            with suppress(ZeroDivisionError):
                async with sink.begin(APP, SCHEMA) as transaction:
                    await transaction.write(numbered(1))
                    raise ZeroDivisionError
            assert await sink.progress(APP) is None
            await self.assert_delivered()
            await deliver(sink, numbered(1))
        await self.assert_progress(up_to(APP, 1))
        await self.assert_delivered(numbered(1))

    async def test_a_new_instance_continues(self) -> None:
        for version in (1, 2, 3):
            async with self.opened() as sink:
                before = await sink.progress(APP)
                assert before == (up_to(APP, version - 1) if version > 1 else None)
                await deliver(sink, numbered(version))
        await self.assert_delivered(numbered(1), numbered(2), numbered(3))

    async def test_a_commit_without_rows_advances(self) -> None:
        async with self.opened() as sink:
            for version in (3, 4):
                async with sink.begin(APP, SCHEMA) as transaction:
                    await transaction.commit(up_to(APP, version))
                await self.assert_progress(up_to(APP, version))
            await deliver(sink, numbered(5))
            async with sink.begin(APP, SCHEMA) as transaction:
                await transaction.commit(up_to(APP, 7))
        await self.assert_progress(up_to(APP, 7))
        await self.assert_delivered(numbered(5))

    async def test_several_versions_share_a_transaction(self) -> None:
        batches = [numbered(1), numbered(2), numbered(2, task=1), numbered(5)]
        async with self.opened() as sink:
            async with sink.begin(APP, SCHEMA) as transaction:
                for batch in batches:
                    await transaction.write(batch)
                await transaction.commit(up_to(APP, 6))
            await deliver(sink, numbered(7))
        await self.assert_progress(up_to(APP, 7))
        await self.assert_delivered(*batches, numbered(7))

    async def test_order_is_kept(self) -> None:
        batches = [
            numbered(version, rows=50, task=task, first_row=first)
            for version in (9, 10)
            for task in (0, 1)
            for first in (0, 50)
        ]
        shuffled = [ChangeBatch(b.table_id, b.version, b.task, _backwards(b.rows), b.row_index) for b in batches]
        async with self.opened() as sink:
            await deliver(sink, *shuffled[:4])
            await deliver(sink, *shuffled[4:])
        await self.assert_delivered(*shuffled)

    async def test_small_batches_may_come_together(self) -> None:
        """Of many files, and of several versions."""
        first = [numbered(1, rows=1 + task % 3, task=task) for task in range(40)]
        second = [numbered(2, rows=1, first_row=7), numbered(2, rows=2, first_row=9), numbered(3, task=3), numbered(6)]
        async with self.opened() as sink:
            async with sink.begin(APP, SCHEMA) as transaction:
                await transaction.write_all(first[:2])
                await transaction.write(first[2])
                await transaction.write_all(first[3:])
                await transaction.write_all(second)
                await transaction.commit(up_to(APP, 6))
            await deliver(sink, numbered(7))
        await self.assert_progress(up_to(APP, 7))
        await self.assert_delivered(*first, *second, numbered(7))

    async def test_an_empty_batch_is_nothing(self) -> None:
        async with self.opened() as sink:
            await deliver(sink, numbered(1).slice(0, 0))
            await deliver(sink, numbered(2).slice(0, 0), numbered(2), numbered(2, task=1).slice(1, 0))
        await self.assert_progress(up_to(APP, 2))
        await self.assert_delivered(numbered(2))

    async def test_a_batch_may_be_a_slice(self) -> None:
        batch = numbered(1, rows=100)
        async with self.opened() as sink:
            await deliver(sink, batch.slice(10, 5), batch.slice(90, 10))
        await self.assert_delivered(batch.slice(10, 5), batch.slice(90, 10))

    async def test_a_batch_may_be_wide(self) -> None:
        columns = {f"column {n}": pa.array([n, None, -n], pa.int64()) for n in range(300)}
        async with self.opened() as sink:
            await deliver(sink, change_batch(1, columns))
        await self.assert_delivered(change_batch(1, columns))

    async def test_a_batch_may_be_big(self) -> None:
        batch = await to_thread.run_sync(numbered, 1, 50_000)
        async with self.opened() as sink:
            await deliver(sink, batch, numbered(1, task=1))
        await self.assert_delivered(batch, numbered(1, task=1))

    @pytest.mark.parametrize("name", DELTA_TYPES)
    async def test_every_type_survives(self, name: str) -> None:
        kind, values = DELTA_TYPES[name]
        batch = change_batch(1, {"id": pa.array(range(len(values) + 1)), "value": pa.array([*values, None], kind)})
        async with self.opened() as sink:
            if name in self.refused_types:
                with pytest.raises(SinkRejected):
                    await deliver(sink, batch)
                assert await sink.progress(APP) is None
            else:
                await deliver(sink, batch)
        await self.assert_delivered(*[] if name in self.refused_types else [batch])

    async def test_a_new_column_comes_with_the_next_transaction(self) -> None:
        async with self.opened() as sink:
            await deliver(sink, numbered(1))
            await deliver(sink, wider(2))
        await self.assert_announced(numbered(1), wider(2))

    async def test_streams_are_independent(self) -> None:
        async with self.opened() as sink:
            await deliver(sink, numbered(1))
            await deliver(sink, numbered(8), app_id=OTHER)
            await deliver(sink, numbered(9), app_id=OTHER)
        await self.assert_progress(up_to(APP, 1))
        await self.assert_progress(up_to(OTHER, 9), OTHER)
        await self.assert_delivered(numbered(1))
        await self.assert_delivered(numbered(8), numbered(9), app_id=OTHER)

    async def test_two_writers_at_once_deliver_once(self) -> None:
        async with self.opened() as first, self.opened() as second:
            outcomes = [await first.progress(APP), await second.progress(APP)]
            assert outcomes == [None, None]
            committed = 0
            try:
                async with first.begin(APP, SCHEMA) as transaction:
                    await transaction.write(numbered(1))
                    committed += await attempt(second, numbered(1))
                    await transaction.commit(up_to(APP, 1))
                committed += 1
            except SinkFenced:
                pass
            assert committed == 1
        await self.assert_progress(up_to(APP, 1))
        await self.assert_delivered(numbered(1))

    async def test_a_writer_with_an_old_view_is_fenced(self) -> None:
        async with self.opened() as old:
            assert await old.progress(APP) is None
            async with self.opened() as new:
                await deliver(new, numbered(1))
            assert not await attempt(old, numbered(1), numbered(2))
        await self.assert_progress(up_to(APP, 1))
        await self.assert_delivered(numbered(1))

    async def test_a_position_inside_a_version(self) -> None:
        part, rest = numbered(1).slice(0, 2), numbered(1).slice(2, 1)
        inside = Progress(APP, Position(1, 0, 1))
        async with self.opened() as sink:
            if not sink.splits_versions:
                with pytest.raises(SinkRejected):
                    await deliver(sink, part, progress=inside)
                assert await sink.progress(APP) is None
                return
            await deliver(sink, part, progress=inside)
            await self.assert_progress(inside)
            await self.assert_delivered(part)
            await deliver(sink, rest)
        await self.assert_progress(up_to(APP, 1))
        await self.assert_delivered(part, rest)

    @pytest.mark.parametrize("delay_s", [0.0, 0.001, 0.005, 0.02])
    async def test_cancellation_leaves_all_or_nothing(self, delay_s: float) -> None:
        batch = numbered(1, rows=20_000)
        async with self.opened() as sink:
            with anyio.move_on_after(delay_s):
                await deliver(sink, batch)
            progress = await sink.progress(APP)
            assert progress in (None, up_to(APP, 1))
            await self.assert_delivered(*[batch] if progress else [])
            if progress is None:
                await deliver(sink, batch)
        await self.assert_progress(up_to(APP, 1))
        await self.assert_delivered(batch)

    @pytest.mark.parametrize("step", ["write", "commit"])
    async def test_cancellation_before_a_step_leaves_all_or_nothing(self, step: str) -> None:
        async with self.opened() as sink:
            with anyio.CancelScope() as scope:
                async with sink.begin(APP, SCHEMA) as transaction:
                    if step == "write":
                        scope.cancel()
                    await transaction.write(numbered(1))
                    scope.cancel()
                    await transaction.commit(up_to(APP, 1))
            progress = await sink.progress(APP)
            assert progress in (None, up_to(APP, 1))
            await self.assert_delivered(*[numbered(1)] if progress else [])
            if progress is None:
                await deliver(sink, numbered(1))
        await self.assert_progress(up_to(APP, 1))
        await self.assert_delivered(numbered(1))

    @pytest.mark.parametrize("fault", every_fault(), ids=str)
    async def test_a_fault_loses_and_doubles_nothing(self, fault: Fault) -> None:
        sink = FaultySink(self.make_sink(), fault)
        while not await succeeds(_deliver_rest(sink)):
            await sink.aclose()
            sink = FaultySink(self.make_sink())
        await sink.aclose()
        await self.assert_progress(up_to(APP, LAST))
        await self.assert_announced(*(item for version in range(0, LAST + 1, 2) for item in _span(version)))


def _backwards(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.take(pa.array(range(len(rows) - 1, -1, -1), pa.int64()))


def _span(version: int) -> list[Item]:
    """Make two versions from `version` on, the second of which changes the columns."""
    versions = range(version, min(version + 2, LAST + 1))
    rows = [numbered(number, task=task) for number in versions for task in (0, 1)]
    return [*rows, change(versions[-1]), wider(versions[-1], task=2)]


async def _deliver_rest(sink: Sink) -> None:
    """Deliver versions up to `LAST`, two per transaction, from the sink's progress."""
    progress = await sink.progress(APP)
    version = 0 if progress is None else progress.position.version + 1
    while version <= LAST:
        await deliver(sink, *_span(version))
        version += 2
