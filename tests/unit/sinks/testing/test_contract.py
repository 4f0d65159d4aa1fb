"""The contract suite detects faults: sinks that break one promise each fail the test of that promise."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pyarrow as pa
import pytest

from tailer.events import ChangeBatch, ControlEvent, Gap
from tailer.plan import Position
from tailer.sink import Progress, Sink, SinkTransaction, TransactionWrapper
from tailer_sinks.encoding import event_values
from tailer_sinks.memory import MemoryDestination, MemorySink
from tailer_sinks.testing import SinkTests, flat_rows

pytestmark = pytest.mark.anyio


class Changed(MemorySink):
    """A sink whose transactions pass through `change`."""

    @asynccontextmanager
    async def begin(self, app_id: str, schema: pa.Schema) -> AsyncIterator[Any]:
        async with super().begin(app_id, schema) as transaction:
            yield self.change(transaction, app_id)

    def change(self, transaction: SinkTransaction, app_id: str) -> Any:
        raise AssertionError


class Transaction(TransactionWrapper):
    """A transaction that passes everything on."""

    def __init__(self, transaction: SinkTransaction, sink: MemorySink, app_id: str) -> None:
        super().__init__(transaction)
        self.sink = sink
        self.app_id = app_id


class EarlyRows(Changed):
    """A sink that shows rows before the commit."""

    class Early(Transaction):
        async def write(self, batch: ChangeBatch) -> None:
            self.sink.destination.log.setdefault(self.app_id, []).append(batch)

    def change(self, transaction: SinkTransaction, app_id: str) -> Any:
        return self.Early(transaction, self, app_id)


class LateProgress(Changed):
    """A sink that commits rows first and progress a little later."""

    class Late(Transaction):
        async def commit(self, progress: Progress) -> None:
            before = self.sink.destination.progress.get(self.app_id)
            await self._transaction.commit(progress)
            if before is None:
                del self.sink.destination.progress[self.app_id]

    def change(self, transaction: SinkTransaction, app_id: str) -> Any:
        return self.Late(transaction, self, app_id)


class RoundedNumbers(Changed):
    """A sink that rounds numbers."""

    class Rounded(Transaction):
        async def write(self, batch: ChangeBatch) -> None:
            index = batch.rows.schema.get_field_index("value")
            if index >= 0 and pa.types.is_decimal(batch.rows.schema.field(index).type):
                column = batch.rows.column(index).cast(pa.float64()).cast(batch.rows.schema.field(index).type)
                rows = batch.rows.set_column(index, batch.rows.schema.field(index), column)
                batch = ChangeBatch(batch.table_id, batch.version, batch.task, rows, batch.row_index)
            await self._transaction.write(batch)

    def change(self, transaction: SinkTransaction, app_id: str) -> Any:
        return self.Rounded(transaction, self, app_id)


class NewestFirst(Changed):
    """A sink that reverses the order."""

    class Reversed(Transaction):
        async def commit(self, progress: Progress) -> None:
            await self._transaction.commit(progress)
            self.sink.destination.log.get(self.app_id, []).reverse()

    def change(self, transaction: SinkTransaction, app_id: str) -> Any:
        return self.Reversed(transaction, self, app_id)


class EarlyEvents(Changed):
    """A sink that shows events before the commit."""

    class Early(Transaction):
        async def announce(self, event: ControlEvent) -> None:
            self.sink.destination.log.setdefault(self.app_id, []).append(event)

    def change(self, transaction: SinkTransaction, app_id: str) -> Any:
        return self.Early(transaction, self, app_id)


class LateEvents(Changed):
    """A sink that shows events after the rows that follow them."""

    class Late(Transaction):
        async def commit(self, progress: Progress) -> None:
            await self._transaction.commit(progress)
            log = self.sink.destination.log.get(self.app_id, [])
            log.sort(key=lambda item: not isinstance(item, ChangeBatch))

    def change(self, transaction: SinkTransaction, app_id: str) -> Any:
        return self.Late(transaction, self, app_id)


class SilentGaps(Changed):
    """A sink that drops gaps."""

    class Silent(Transaction):
        async def announce(self, event: ControlEvent) -> None:
            if not isinstance(event, Gap):
                await self._transaction.announce(event)

    def change(self, transaction: SinkTransaction, app_id: str) -> Any:
        return self.Silent(transaction, self, app_id)


class NarrowedNumbers(Changed):
    """A sink that casts all numbers to the type of the first rows."""

    class Narrowed(Transaction):
        async def write(self, batch: ChangeBatch) -> None:
            index = batch.rows.schema.get_field_index("number")
            if index >= 0 and batch.rows.schema.field(index).type == pa.int64():
                column = batch.rows.column(index).cast(pa.int32(), safe=False).cast(pa.int64())
                rows = batch.rows.set_column(index, batch.rows.schema.field(index), column)
                batch = ChangeBatch(batch.table_id, batch.version, batch.task, rows, batch.row_index)
            await self._transaction.write(batch)

    def change(self, transaction: SinkTransaction, app_id: str) -> Any:
        return self.Narrowed(transaction, self, app_id)


class WholeVersionsOnly(Changed):
    """A sink that loses positions inside a version."""

    class Whole(Transaction):
        async def commit(self, progress: Progress) -> None:
            await self._transaction.commit(Progress(progress.app_id, Position.end(progress.position.version)))

    def change(self, transaction: SinkTransaction, app_id: str) -> Any:
        return self.Whole(transaction, self, app_id)


class StuckInSnapshots(MemorySink):
    """A sink that keeps the position in a snapshot apart, so that a reset does not replace it."""

    async def reset(self, progress: Progress) -> None:
        at = self.destination.progress.get(progress.app_id)
        if at is None or not at.position.in_snapshot:
            await super().reset(progress)


class Unfenced(MemorySink):
    """A sink without fencing."""

    async def progress(self, app_id: str) -> Progress | None:
        progress = await super().progress(app_id)
        self._seen.clear()
        return progress


class OneStream(MemorySink):
    """A sink with one progress for all streams."""

    async def progress(self, app_id: str) -> Progress | None:
        return next((Progress(app_id, each.position) for each in self.destination.progress.values()), None)


class OwnMemory(MemorySink):
    """A sink whose `has_delivered` knows only the commits of this instance."""

    async def has_delivered(self, pipeline: str) -> bool:
        return any(app_id.startswith(f"{pipeline}/") and seen is not None for app_id, seen in self._seen.items())


class BeginningsOfNames(MemorySink):
    """A sink that confuses pipelines with a common prefix."""

    async def has_delivered(self, pipeline: str) -> bool:
        return any(app_id.startswith(pipeline) for app_id in self.destination.progress)


class OnlyRows(MemorySink):
    """A sink whose `has_delivered` needs rows."""

    async def has_delivered(self, pipeline: str) -> bool:
        return any(app_id.startswith(f"{pipeline}/") and rows for app_id, rows in self.destination.log.items())


def suite_for(kind: type[MemorySink]) -> SinkTests:
    class Suite(SinkTests):
        def __init__(self) -> None:
            self.memory = MemoryDestination()

        def make_sink(self) -> Sink:
            return kind("broken", self.memory)

        async def delivered(self, app_id: str) -> list[dict[str, Any]]:
            rows = []
            for item in self.memory.log.get(app_id, []):
                rows += flat_rows(item.rows) if isinstance(item, ChangeBatch) else [event_values(item)]
            return rows

    return Suite()


@pytest.mark.parametrize(
    ("kind", "test", "arguments"),
    [
        (EarlyRows, "test_rows_and_progress_become_visible_together", ()),
        (EarlyRows, "test_leaving_without_commit_leaves_nothing", ()),
        (EarlyRows, "test_an_exception_leaves_nothing", ()),
        (EarlyRows, "test_two_writers_at_once_deliver_once", ()),
        (LateProgress, "test_a_new_instance_continues", ()),
        (LateProgress, "test_rows_and_progress_become_visible_together", ()),
        (RoundedNumbers, "test_every_type_survives", ("decimal(38,18)",)),
        (NewestFirst, "test_order_is_kept", ()),
        (EarlyEvents, "test_an_aborted_transaction_leaves_no_event", ()),
        (EarlyEvents, "test_events_and_progress_become_visible_together", ()),
        (LateEvents, "test_rows_before_and_after_a_change_share_a_transaction", ()),
        (LateEvents, "test_a_gap_stands_where_it_was_announced", ()),
        (LateEvents, "test_a_gap_may_come_first_and_be_followed_by_a_snapshot", ()),
        (SilentGaps, "test_an_event_may_come_without_rows", ()),
        (NarrowedNumbers, "test_wider_numbers_arrive_or_are_refused_by_name", (False,)),
        (NarrowedNumbers, "test_narrower_numbers_arrive", ()),
        (WholeVersionsOnly, "test_a_position_inside_a_version", ()),
        (WholeVersionsOnly, "test_a_position_inside_a_snapshot_is_taken_or_refused", ()),
        (WholeVersionsOnly, "test_a_snapshot_continues_after_every_part", (0, True)),
        (EarlyRows, "test_an_abort_leaves_the_parts_before_it", ()),
        (EarlyRows, "test_of_two_writers_of_a_snapshot_one_commits", (1,)),
        (SilentGaps, "test_a_snapshot_after_a_gap_may_be_split", ()),
        (StuckInSnapshots, "test_reset_leaves_the_rest_of_a_snapshot_out", (3,)),
        (Unfenced, "test_an_old_view_of_a_snapshot_is_fenced", (False,)),
        (Unfenced, "test_a_writer_with_an_old_view_is_fenced", ()),
        (OneStream, "test_streams_are_independent", ()),
        (OwnMemory, "test_it_is_known_whether_a_pipeline_has_delivered", ()),
        (BeginningsOfNames, "test_it_is_known_whether_a_pipeline_has_delivered", ()),
        (OnlyRows, "test_a_reset_counts_as_delivered", ()),
        (OnlyRows, "test_a_commit_without_rows_counts_as_delivered", ()),
    ],
)
async def test_a_broken_promise_is_found(kind: type[MemorySink], test: str, arguments: tuple[str, ...]) -> None:
    await getattr(suite_for(MemorySink), test)(*arguments)
    with pytest.raises(AssertionError):
        await getattr(suite_for(kind), test)(*arguments)
