"""`ProgressTests`: the promises of a sink for `reset` and `has_delivered`."""

from tailer.errors import SinkRejected
from tailer_sinks.testing.rows import numbered
from tailer_sinks.testing.suite import APP, OTHER, SCHEMA, SinkSuite, deliver, up_to

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
