"""`ProgressTests`: the promises of a sink for `reset`, `has_delivered`, heartbeats and replaced tables."""

from dataclasses import replace

import pytest

from tailer.errors import SinkFenced, SinkRejected, SinkUnavailable
from tailer.events import ChangeBatch
from tailer.sink import Heartbeat, Progress
from tailer_sinks.testing.rows import numbered
from tailer_sinks.testing.snapshots import inside, part
from tailer_sinks.testing.suite import APP, OTHER, SCHEMA, SinkSuite, attempt, deliver, up_to

__all__ = ["ProgressTests"]


class ProgressTests(SinkSuite):
    """Tests of progress that is set without rows, and of whether a pipeline has any."""

    async def test_reset_goes_forward_and_keeps_rows(self) -> None:
        async with self.opened() as sink:
            await deliver(sink, numbered(1))
            await sink.reset(up_to(APP, 7))
            assert await sink.progress(APP) == up_to(APP, 7)
        await self.assert_delivered(numbered(1))
        async with self.opened() as sink:
            assert await sink.progress(APP) == up_to(APP, 7)
            await deliver(sink, numbered(8))
        await self.assert_progress(up_to(APP, 8))
        await self.assert_delivered(numbered(1), numbered(8))

    async def test_reset_may_come_first(self) -> None:
        async with self.opened() as sink:
            await sink.reset(up_to(APP, 4))
            await deliver(sink, numbered(5))
        await self.assert_progress(up_to(APP, 5))
        await self.assert_delivered(numbered(5))

    async def test_reset_goes_back_or_is_refused(self) -> None:
        async with self.opened() as sink:
            await deliver(sink, numbered(1))
            await deliver(sink, numbered(2))
            try:
                await sink.reset(up_to(APP, 1))
            except SinkRejected:
                await self.assert_progress(up_to(APP, 2))
            else:
                await self.assert_progress(up_to(APP, 1))
        await self.assert_delivered(numbered(1), numbered(2))

    async def test_it_is_known_whether_a_pipeline_has_delivered(self) -> None:
        """`orders` is the pipeline of `APP` and `OTHER`; progress of pipelines with similar names does not count."""
        others = ("order", "orders2", "orders/eu")
        async with self.opened() as sink:
            assert not await sink.has_delivered("orders")
            await deliver(sink, numbered(1), app_id="orders2/5f0c")
            await sink.reset(up_to("order/5f0c", 3))
            async with sink.begin(APP, SCHEMA) as transaction:
                await transaction.write(numbered(1))
            assert not await sink.has_delivered("orders")
            assert [await sink.has_delivered(name) for name in others] == [True, True, False]
            await deliver(sink, numbered(1))
            assert await sink.has_delivered("orders")
            await deliver(sink, numbered(1), app_id=OTHER)
            async with self.opened() as second:
                assert await second.has_delivered("orders")
        await self.assert_has_delivered("orders")

    async def test_a_reset_counts_as_delivered(self) -> None:
        async with self.opened() as sink:
            await sink.reset(up_to(OTHER, 4))
            assert await sink.has_delivered("orders")
            await self.assert_has_delivered("orders")
            await sink.reset(up_to(OTHER, -1))
        await self.assert_has_delivered("orders")

    async def test_a_commit_without_rows_counts_as_delivered(self) -> None:
        async with self.opened() as sink, sink.begin(APP, SCHEMA) as transaction:
            await transaction.commit(up_to(APP, 0))
        await self.assert_has_delivered("orders")

    async def test_heartbeats_are_apart_from_rows(self) -> None:
        """Of a sink with a place for heartbeats: each pipeline has its own, from before the first row on."""
        beat = Heartbeat("first", 1, 5)
        async with self.opened() as sink:
            here, other = (sink.open_heartbeats(pipeline, 10.0) for pipeline in ("orders", "sales/eu"))
            if here is None or other is None:
                return
            try:
                assert await here.read() is None
                await here.write(beat)
                await other.write(Heartbeat("second", 7, released=True))
                assert [await here.read(), await other.read()] == [beat, Heartbeat("second", 7, released=True)]
                assert not await sink.has_delivered("orders")
                await deliver(sink, numbered(1))
                async with sink.begin(APP, SCHEMA) as transaction:
                    await here.write(replace(beat, count=6))  # it does not wait for the transaction
                    await transaction.write(numbered(2))
                    await transaction.commit(up_to(APP, 2))
                assert await here.read() == replace(beat, count=6)
            finally:
                await here.aclose()
                await other.aclose()
        async with self.opened() as sink:
            again = sink.open_heartbeats("orders", 10.0)
            assert again is not None
            assert await again.read() == replace(beat, count=6)
            await again.aclose()
        await self.assert_delivered(numbered(1), numbered(2))

    @pytest.mark.parametrize("delivered", [False, True], ids=["nothing-delivered", "delivered"])
    async def test_a_late_commit_about_a_replaced_table_is_fenced(self, delivered: bool) -> None:
        """An instance is frozen in a commit, and its successor finds another table in place of the first one."""
        if self.exactly_once and self.joins_tables:
            await self._check_late_commit(delivered, numbered(7), up_to(OTHER, 7), numbered(8), up_to(OTHER, 8))

    @pytest.mark.parametrize("delivered", [False, True], ids=["nothing-delivered", "delivered"])
    async def test_a_late_commit_is_fenced_by_a_part_of_a_snapshot_of_another_table(self, delivered: bool) -> None:
        """As before, but the successor has committed no more than a part of its first snapshot."""
        if self.exactly_once and self.joins_tables and self.make_sink().splits_snapshots:
            first = part(7, 0)
            begun = replace(inside(first), app_id=OTHER)
            await self._check_late_commit(delivered, first, begun, part(7, 1), up_to(OTHER, 7))

    async def _check_late_commit(
        self, delivered: bool, first: ChangeBatch, begun: Progress, rest: ChangeBatch, ended: Progress
    ) -> None:
        """Refuse a commit after the successor's first one, `begun`; the successor goes on to `ended`."""
        async with self.opened() as frozen, self.opened() as successor:
            assert await frozen.progress(APP) is None
            if delivered:
                await deliver(frozen, numbered(1))
            before = await successor.progress(APP)
            async with frozen.begin(APP, SCHEMA) as transaction:
                await transaction.write(numbered(2))
                assert await successor.progress(OTHER) is None
                await deliver(successor, first, app_id=OTHER, progress=begun)
                with pytest.raises((SinkFenced, SinkUnavailable)):
                    await transaction.commit(up_to(APP, 2))
            await deliver(successor, rest, app_id=OTHER, progress=ended)
        await self.assert_progress(before)
        await self.assert_progress(ended, OTHER)
        await self._assert_nothing_of(numbered(2))

    async def test_an_instance_with_a_replaced_table_is_fenced(self) -> None:
        """It is frozen between two commits, and does not look at the table again."""
        if not (self.exactly_once and self.joins_tables):
            return
        async with self.opened() as frozen, self.opened() as successor:
            await deliver(frozen, numbered(1))
            await deliver(successor, numbered(7), app_id=OTHER)
            assert not await attempt(frozen, numbered(2))
            await deliver(successor, numbered(8), app_id=OTHER)
        await self.assert_progress(up_to(APP, 1))
        await self.assert_progress(up_to(OTHER, 8), OTHER)
        await self._assert_nothing_of(numbered(2))

    async def test_an_instance_that_has_not_begun_is_fenced_by_a_replaced_table(self) -> None:
        """It is frozen between the look at its progress and its first transaction."""
        if not (self.exactly_once and self.joins_tables):
            return
        async with self.opened() as frozen, self.opened() as successor:
            await deliver(successor, numbered(1))
            assert await frozen.progress(APP) == up_to(APP, 1)
            await deliver(successor, numbered(7), app_id=OTHER)
            assert not await attempt(frozen, numbered(2))
            await deliver(successor, numbered(8), app_id=OTHER)
        await self.assert_progress(up_to(APP, 1))
        await self.assert_progress(up_to(OTHER, 8), OTHER)
        await self._assert_nothing_of(numbered(2))

    async def test_of_two_that_go_on_in_different_tables_one_commits(self) -> None:
        """One goes on with the former table, while its successor begins with another one after the same progress."""
        if not (self.exactly_once and self.joins_tables):
            return
        async with self.opened() as former, self.opened() as successor:
            await deliver(former, numbered(1))
            assert await successor.progress(APP) == up_to(APP, 1)
            assert await successor.progress(OTHER) is None
            async with successor.begin(OTHER, SCHEMA) as transaction:
                assert await successor.progress(APP) == up_to(APP, 1)
                went_on = await attempt(former, numbered(2))
                await transaction.write(numbered(7))
                if went_on:
                    with pytest.raises((SinkFenced, SinkUnavailable)):
                        await transaction.commit(up_to(OTHER, 7))
                else:
                    await transaction.commit(up_to(OTHER, 7))
        await self.assert_progress(up_to(APP, 2 if went_on else 1))
        await self.assert_progress(None if went_on else up_to(OTHER, 7), OTHER)

    async def _assert_nothing_of(self, batch: ChangeBatch) -> None:
        there = [*await self.delivered(APP), *await self.delivered(OTHER)]
        assert not {row.get("id") for row in there} & set(batch.rows["id"].to_pylist())
