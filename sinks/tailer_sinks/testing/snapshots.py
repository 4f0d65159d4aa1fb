"""`SnapshotTests`: the promises of a sink for a snapshot that is too large for one transaction."""

from collections.abc import Sequence

import pytest

from tailer.errors import SinkFenced, SinkRejected
from tailer.events import ChangeBatch
from tailer.plan import SNAPSHOT_TASKS, Position
from tailer.sink import Progress, Sink
from tailer_sinks.testing.announcements import gap
from tailer_sinks.testing.faults import Fault, FaultySink, Step, every_fault
from tailer_sinks.testing.rows import numbered
from tailer_sinks.testing.suite import APP, OTHER, SCHEMA, Item, SinkSuite, attempt, deliver, succeeds, up_to

__all__ = ["SnapshotTests", "inside", "part"]


def part(version: int, file: int, rows: int = 3, first_row: int = 0) -> ChangeBatch:
    """Make rows of one file of the snapshot of `version`."""
    batch = numbered(version, rows, file, first_row)
    return ChangeBatch(batch.table_id, version, SNAPSHOT_TASKS + file, batch.rows, batch.row_index)


def inside(batch: ChangeBatch) -> Progress:
    """Make the progress of a snapshot up to the last row of `batch`."""
    return Progress(APP, Position(batch.version, batch.task, batch.last_row))


def _parts(version: int) -> list[ChangeBatch]:
    """Make a snapshot; a file of it may be in several parts, and some files have no rows."""
    return [part(version, 0), part(version, 0, first_row=3), part(version, 1), part(version, 7, rows=2, first_row=90)]


class SnapshotTests(SinkSuite):
    """A position inside a snapshot is valid progress if the sink supports it."""

    @property
    def _splits(self) -> bool:
        return self.make_sink().splits_snapshots

    async def test_a_position_inside_a_snapshot_is_taken_or_refused(self) -> None:
        first = part(4, 0)
        async with self.opened() as sink:
            if sink.splits_snapshots:
                await deliver(sink, first, progress=inside(first))
            else:
                with pytest.raises(SinkRejected):
                    await deliver(sink, first, progress=inside(first))
        await self.assert_progress(inside(first) if self._splits else None)
        await self.assert_delivered(*[first] if self._splits else [])

    @pytest.mark.parametrize("version", [0, 1, 7])
    @pytest.mark.parametrize("reopened", [False, True], ids=["same instance", "new instances"])
    async def test_a_snapshot_continues_after_every_part(self, version: int, reopened: bool) -> None:
        if not self._splits:
            return
        parts, sink = _parts(version), self.make_sink()
        places: list[Progress | None] = [*map(inside, parts[:-1]), up_to(APP, version), up_to(APP, version + 1)]
        for before, batch, after in zip([None, *places], [*parts, numbered(version + 1)], places, strict=False):
            if reopened:
                await sink.aclose()
                sink = self.make_sink()
                assert await sink.progress(APP) == before
            await deliver(sink, batch, progress=after)
            await self.assert_progress(after)
        await sink.aclose()
        await self.assert_delivered(*parts, numbered(version + 1))

    async def test_the_rest_of_a_snapshot_and_changes_share_a_transaction(self) -> None:
        if not self._splits:
            return
        parts = _parts(5)
        async with self.opened() as sink:
            for part in parts[:2]:
                await deliver(sink, part, progress=inside(part))
            await deliver(sink, *parts[2:], numbered(6), progress=up_to(APP, 8))
            await self.assert_progress(up_to(APP, 8))
            await deliver(sink, numbered(9))
        await self.assert_progress(up_to(APP, 9))
        await self.assert_delivered(*parts, numbered(6), numbered(9))

    async def test_a_snapshot_may_be_closed_without_rows(self) -> None:
        if not self._splits:
            return
        first = part(5, 0)
        async with self.opened() as sink:
            await deliver(sink, first, progress=inside(first))
            async with sink.begin(APP, SCHEMA) as transaction:
                await transaction.commit(up_to(APP, 5))
            await self.assert_progress(up_to(APP, 5))
            await deliver(sink, numbered(6))
        await self.assert_progress(up_to(APP, 6))
        await self.assert_delivered(first, numbered(6))

    async def test_an_abort_leaves_the_parts_before_it(self) -> None:
        if not self._splits:
            return
        parts = _parts(0)
        async with self.opened() as sink:
            await deliver(sink, parts[0], progress=inside(parts[0]))
            async with sink.begin(APP, SCHEMA) as transaction:
                await transaction.write(parts[1])
            assert await sink.progress(APP) == inside(parts[0])
            await self.assert_delivered(parts[0])
            await deliver(sink, *parts[1:])
        await self.assert_progress(up_to(APP, 0))
        await self.assert_delivered(*parts)

    @pytest.mark.parametrize("begun", [0, 1, 2])
    async def test_of_two_writers_of_a_snapshot_one_commits(self, begun: int) -> None:
        if not self._splits:
            return
        parts = _parts(3)
        async with self.opened() as sink:
            for part in parts[:begun]:
                await deliver(sink, part, progress=inside(part))
        committed = 0
        async with self.opened() as first, self.opened() as second:
            assert await first.progress(APP) == await second.progress(APP)
            try:
                async with first.begin(APP, SCHEMA) as transaction:
                    await transaction.write(parts[begun])
                    committed += await attempt(second, parts[begun], progress=inside(parts[begun]))
                    await transaction.commit(inside(parts[begun]))
                committed += 1
            except SinkFenced:
                pass
        assert committed == 1
        await self.assert_progress(inside(parts[begun]))
        await self.assert_delivered(*parts[: begun + 1])

    @pytest.mark.parametrize("closed", [False, True])
    async def test_an_old_view_of_a_snapshot_is_fenced(self, closed: bool) -> None:
        if not self._splits:
            return
        parts = _parts(3)
        after = up_to(APP, 3) if closed else inside(parts[1])
        async with self.opened() as sink:
            await deliver(sink, parts[0], progress=inside(parts[0]))
        async with self.opened() as old:
            assert await old.progress(APP) == inside(parts[0])
            async with self.opened() as new:
                assert await new.progress(APP) == inside(parts[0])
                await deliver(new, parts[1], progress=after)
            assert not await attempt(old, *parts[1:])
            assert not await attempt(old, parts[1], progress=inside(parts[1]))
        await self.assert_progress(after)
        await self.assert_delivered(*parts[:2])

    @pytest.mark.parametrize("version", [3, 9])
    async def test_reset_leaves_the_rest_of_a_snapshot_out(self, version: int) -> None:
        if not self._splits:
            return
        first = part(3, 2)
        async with self.opened() as sink:
            await deliver(sink, first, progress=inside(first))
            await sink.reset(up_to(APP, version))
            assert await sink.progress(APP) == up_to(APP, version)
        await self.assert_progress(up_to(APP, version))
        async with self.opened() as sink:
            assert await sink.progress(APP) == up_to(APP, version)
            await deliver(sink, numbered(version + 1))
        await self.assert_progress(up_to(APP, version + 1))
        await self.assert_delivered(first, numbered(version + 1))

    async def test_reset_to_before_half_a_snapshot_is_done_or_refused(self) -> None:
        if not self._splits:
            return
        parts = _parts(3)
        async with self.opened() as sink:
            await deliver(sink, parts[0], progress=inside(parts[0]))
            try:
                await sink.reset(up_to(APP, 2))
            except SinkRejected:
                await self.assert_progress(inside(parts[0]))
            else:
                await self.assert_progress(up_to(APP, 2))
                await sink.reset(up_to(APP, 3))
                return
            assert await sink.progress(APP) == inside(parts[0])
            await deliver(sink, *parts[1:])
        await self.assert_progress(up_to(APP, 3))
        await self.assert_delivered(*parts)

    async def test_a_snapshot_after_a_gap_may_be_split(self) -> None:
        if not self._splits:
            return
        parts = _parts(8)
        async with self.opened() as sink:
            await deliver(sink, numbered(1))
            await deliver(sink, gap(2, 8, snapshot=True), parts[0], progress=inside(parts[0]))
            await self.assert_progress(inside(parts[0]))
            await deliver(sink, parts[1], progress=inside(parts[1]))
            await deliver(sink, *parts[2:], numbered(9))
        await self.assert_progress(up_to(APP, 9))
        await self.assert_announced(numbered(1), gap(2, 8, snapshot=True), *parts, numbered(9))

    async def test_a_snapshot_that_is_lost_half_way_ends_in_a_gap(self) -> None:
        if not self._splits:
            return
        once, again = part(3, 0), part(6, 0)
        items: Sequence[Item] = [gap(3, 6, snapshot=True), again]
        async with self.opened() as sink:
            await deliver(sink, once, progress=inside(once))
            await deliver(sink, *items, progress=inside(again))
            await self.assert_progress(inside(again))
            await deliver(sink, gap(6, 7))
            await self.assert_progress(up_to(APP, 7))
            await deliver(sink, numbered(8))
        await self.assert_progress(up_to(APP, 8))
        await self.assert_announced(once, *items, gap(6, 7), numbered(8))

    async def test_other_streams_do_not_see_a_snapshot(self) -> None:
        if not self._splits:
            return
        parts = _parts(3)
        async with self.opened() as sink:
            await deliver(sink, parts[0], progress=inside(parts[0]))
            await deliver(sink, numbered(1), app_id=OTHER)
            await deliver(sink, numbered(2), app_id=OTHER)
            assert await sink.progress(APP) == inside(parts[0])
            await deliver(sink, *parts[1:])
        await self.assert_progress(up_to(APP, 3))
        await self.assert_progress(up_to(OTHER, 2), OTHER)
        await self.assert_delivered(*parts)
        await self.assert_delivered(numbered(1), numbered(2), app_id=OTHER)

    @pytest.mark.parametrize("fault", [fault for fault in every_fault() if fault.step is not Step.ANNOUNCE], ids=str)
    async def test_a_fault_inside_a_snapshot_loses_and_doubles_nothing(self, fault: Fault) -> None:
        if not self._splits:
            return
        sink = FaultySink(self.make_sink(), fault)
        while not await succeeds(_deliver_rest(sink)):
            await sink.aclose()
            sink = FaultySink(self.make_sink())
        await sink.aclose()
        await self.assert_progress(up_to(APP, 0))
        await self.assert_delivered(*_parts(0))


async def _deliver_rest(sink: Sink) -> None:
    """Deliver the snapshot of version 0 from the sink's progress, one part per transaction."""
    progress = await sink.progress(APP)
    parts = _parts(0)
    for part in parts:
        if progress is None or inside(part).position > progress.position:
            await deliver(sink, part, progress=up_to(APP, 0) if part is parts[-1] else inside(part))
