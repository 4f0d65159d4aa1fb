"""`AnnouncementTests`: the promises of a sink for events, and for rows whose columns change."""

from collections.abc import Sequence
from itertools import pairwise

import pyarrow as pa
import pytest

from tailer.errors import SinkRejected
from tailer.events import ChangeBatch, Gap, SchemaChange
from tailer_sinks.testing.rows import MOMENT_MS, change_batch, numbered
from tailer_sinks.testing.suite import APP, SCHEMA, Item, SinkSuite, deliver, play, up_to

__all__ = ["AnnouncementTests", "change", "gap", "wider"]


def wider(version: int, rows: int = 3, task: int = 0) -> ChangeBatch:
    """Make rows as `numbered` does, with one more column."""
    batch = numbered(version, rows, task)
    extra = pa.array([row / 2 if row % 3 else None for row in range(rows)], pa.float64())
    columns = {name: batch.rows.column(name) for name in batch.rows.schema.names if not name.startswith("_")}
    return change_batch(version, {**columns, "extra": extra}, task)


def change(version: int, before: pa.Schema = SCHEMA, after: pa.Schema | None = None) -> SchemaChange:
    """Make a schema change, by default from `numbered` to `wider`."""
    changes = ('column extra was added, "quoted"', "é")
    return SchemaChange("table", version, MOMENT_MS, before, wider(0).rows.schema if after is None else after, changes)


def gap(first: int, version: int, *, snapshot: bool = False) -> Gap:
    """Make a gap of lost versions."""
    return Gap("table", first, version, MOMENT_MS, "the log was cleaned up", snapshot)


class AnnouncementTests(SinkSuite):
    """Events arrive with the rows around them, or not at all."""

    async def test_rows_before_and_after_a_change_share_a_transaction(self) -> None:
        items: list[Item] = [numbered(5), change(5), wider(5, task=1), wider(6)]
        async with self.opened() as sink:
            await deliver(sink, numbered(4))
            await deliver(sink, *items)
            await deliver(sink, wider(7))
        await self.assert_progress(up_to(APP, 7))
        await self.assert_announced(numbered(4), *items, wider(7))

    async def test_columns_come_and_go_in_a_transaction(self) -> None:
        shapes = [
            {"id": pa.array([1, 2]), "old": pa.array(["a", None])},
            {"new": pa.array(["b"]), "id": pa.array([3])},
            {"id": pa.array([4]), "inner": pa.array([{"x": 1}])},
            {"inner": pa.array([{"y": "c", "x": 2}, None]), "list": pa.array([[{"p": 1}], []])},
            {"list": pa.array([[{"q": 2.5}, None]]), "old": pa.array(["d"])},
        ]
        batches = [change_batch(version, columns) for version, columns in enumerate(shapes, 1)]
        items: list[Item] = [batches[0]]
        for before, after in pairwise(batches):
            items += [change(after.version, before.rows.schema, after.rows.schema), after]
        async with self.opened() as sink:
            await deliver(sink, *items)
            await deliver(sink, change_batch(9, shapes[0]))
        await self.assert_announced(*items, change_batch(9, shapes[0]))

    async def test_an_event_may_come_without_rows(self) -> None:
        async with self.opened() as sink:
            await deliver(sink, numbered(1))
            await deliver(sink, change(2))
            await self.assert_progress(up_to(APP, 2))
            await deliver(sink, gap(3, 6))
            await deliver(sink, wider(7))
        await self.assert_progress(up_to(APP, 7))
        await self.assert_announced(numbered(1), change(2), gap(3, 6), wider(7))

    async def test_a_gap_may_come_first_and_be_followed_by_a_snapshot(self) -> None:
        items: list[Item] = [gap(2, 4, snapshot=True), numbered(4), numbered(4, task=1)]
        async with self.opened() as sink:
            await deliver(sink, *items)
        await self.assert_progress(up_to(APP, 4))
        await self.assert_announced(*items)

    async def test_a_gap_stands_where_it_was_announced(self) -> None:
        items: list[Item] = [numbered(1), gap(2, 4), numbered(5), change(6), gap(6, 8), wider(9)]
        async with self.opened() as sink:
            await deliver(sink, *items)
        await self.assert_announced(*items)

    async def test_an_aborted_transaction_leaves_no_event(self) -> None:
        async with self.opened() as sink:
            await deliver(sink, numbered(1))
            async with sink.begin(APP, SCHEMA) as transaction:
                await transaction.announce(gap(2, 3))
                await transaction.write(numbered(4))
                await transaction.announce(change(5))
            assert await sink.progress(APP) == up_to(APP, 1)
            await self.assert_announced(numbered(1))
            await deliver(sink, numbered(2))
        await self.assert_progress(up_to(APP, 2))
        await self.assert_announced(numbered(1), numbered(2))

    async def test_events_and_progress_become_visible_together(self) -> None:
        async with self.opened() as sink:
            async with sink.begin(APP, SCHEMA) as transaction:
                await transaction.announce(gap(1, 2))
                await transaction.announce(change(3))
                await self.assert_progress(None)
                await self.assert_announced()
                await transaction.commit(up_to(APP, 3))
            await self.assert_progress(up_to(APP, 3))
            await self.assert_announced(gap(1, 2), change(3))

    async def test_rows_that_were_not_announced_are_refused(self) -> None:
        if not self.exactly_once:
            return  # rows can be printed without their schema
        async with self.opened() as sink:
            for items in ([wider(1)], [numbered(1), change(1), numbered(1, task=1)]):
                async with sink.begin(APP, SCHEMA) as transaction:
                    with pytest.raises(SinkRejected):
                        await play(transaction, *items)
            assert await sink.progress(APP) is None
        await self.assert_announced()

    @pytest.mark.parametrize("apart", [False, True], ids=["in a transaction", "between transactions"])
    async def test_wider_numbers_arrive_or_are_refused_by_name(self, apart: bool) -> None:
        narrow = change_batch(1, {"number": pa.array([1, None], pa.int32())})
        wide = change_batch(2, {"number": pa.array([2**40, None], pa.int64())})
        event = change(2, narrow.rows.schema, wide.rows.schema)
        async with self.opened() as sink:
            if apart:
                await deliver(sink, narrow)
            refusal = None
            try:
                await deliver(sink, *([] if apart else [narrow]), event, wide)
            except SinkRejected as error:
                refusal = error
        if refusal is None:
            await self.assert_announced(narrow, event, wide)
        else:
            assert "number" in str(refusal)
            assert refusal.hint
            await self.assert_announced(*[narrow] if apart else [])

    async def test_narrower_numbers_arrive(self) -> None:
        wide = change_batch(1, {"number": pa.array([2**40], pa.int64())})
        narrow = change_batch(2, {"number": pa.array([-(2**31), None], pa.int32())})
        items: Sequence[Item] = [wide, change(2, wide.rows.schema, narrow.rows.schema), narrow]
        async with self.opened() as sink:
            await deliver(sink, *items)
            again = change_batch(3, {"number": pa.array([5], pa.int16())})
            await deliver(sink, again)
        await self.assert_announced(*items, again)
