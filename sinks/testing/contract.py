"""`SinkTests`: what a sink promises (`sinks`, "Writing one"), each promise a test."""

import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, ClassVar, Final

import anyio
import pyarrow as pa
import pytest
from anyio import to_thread

from sinks.testing.faults import Fault, FaultySink, every_fault
from sinks.testing.rows import DELTA_TYPES, change_batch, flat_rows, numbered
from tailer.errors import CommitUnknown, SinkFenced, SinkRejected, SinkUnavailable
from tailer.events import ChangeBatch
from tailer.plan import Position
from tailer.sink import Progress, Sink

__all__ = ["SinkTests"]

APP: Final = "orders/5f0c6a1e-77aa-4f3b-9d0e-6a3c1b2d4e5f"
OTHER: Final = "orders/c1f7e4d2-0000-4aaa-8bbb-123456789abc"
SCHEMA: Final[pa.Schema] = numbered(0).rows.schema
LAST: Final = 6  # the last version a run with faults delivers

Rows = list[dict[str, Any]]


def expected(*batches: ChangeBatch) -> Rows:
    """The rows of `batches` as a reader must find them."""
    return [row for batch in batches for row in flat_rows(batch.rows)]


def up_to(app_id: str, version: int) -> Progress:
    """All of `version`."""
    return Progress(app_id, Position.end(version))


async def deliver(sink: Sink, *batches: ChangeBatch, app_id: str = APP, progress: Progress | None = None) -> None:
    """One transaction with `batches`; `progress` is by default the end of the last one's version."""
    async with sink.begin(app_id, batches[-1].rows.schema) as transaction:
        for batch in batches:
            await transaction.write(batch)
        await transaction.commit(progress or up_to(app_id, batches[-1].version))


class SinkTests(ABC):
    """What every sink must pass; `sinks.testing` says how to use it."""

    pytestmark = pytest.mark.anyio

    exactly_once: ClassVar[bool] = True
    """False for an `AtLeastOnceSink`, whose rows may be early or repeated."""
    keeps_order: ClassVar[bool] = True
    """False where the destination has no order to read rows back in."""
    refused_types: ClassVar[frozenset[str]] = frozenset()
    """Names in `DELTA_TYPES` that the destination has no place for: they must be refused, not altered."""

    @abstractmethod
    def make_sink(self) -> Sink:
        """A new instance over this test's destination, which is empty when the test begins."""

    @abstractmethod
    async def delivered(self, app_id: str) -> Rows:
        """What a reader finds for `app_id`, in order, as `flat_rows`."""

    @pytest.fixture
    def anyio_backend(self) -> str:
        """The daemon runs on asyncio."""
        return "asyncio"

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Sink]:
        """A new instance, closed at the end."""
        sink = self.make_sink()
        try:
            yield sink
        finally:
            await sink.aclose()

    async def assert_delivered(self, *batches: ChangeBatch, app_id: str = APP) -> None:
        """A reader finds the rows of `batches`: exactly those, in that order, as far as the sink promises it."""
        found = await self.delivered(app_id)
        await to_thread.run_sync(self._compare, found, batches)  # many rows may take a while

    def _compare(self, found: Rows, batches: Sequence[ChangeBatch]) -> None:
        wanted = expected(*batches)
        if not self.exactly_once:
            of_these = set(map(_text, wanted))
            assert [row for row in _without_repeats(found) if _text(row) in of_these] == wanted
        elif self.keeps_order:
            assert found == wanted
        else:
            assert sorted(map(_text, found)) == sorted(map(_text, wanted))

    async def assert_progress(self, progress: Progress | None, app_id: str = APP) -> None:
        """A new instance finds `progress`."""
        async with self.opened() as sink:
            assert await sink.progress(app_id) == progress

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

    async def test_a_new_instance_goes_on(self) -> None:
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
        wider = change_batch(2, {"id": pa.array([1]), "name": pa.array(["x"]), "extra": pa.array([1.5])})
        async with self.opened() as sink:
            await deliver(sink, numbered(1))
            await deliver(sink, wider)
        found, wanted = await self.delivered(APP), expected(numbered(1), wider)
        assert sorted(map(_known, found)) == sorted(map(_known, wanted))

    async def test_streams_are_independent(self) -> None:
        async with self.opened() as sink:
            async with sink.begin(APP, SCHEMA) as one:
                await one.write(numbered(1))
                await deliver(sink, numbered(8), app_id=OTHER)
                await one.commit(up_to(APP, 1))
            await deliver(sink, numbered(9), app_id=OTHER)
        await self.assert_progress(up_to(APP, 1))
        await self.assert_progress(up_to(OTHER, 9), OTHER)
        await self.assert_delivered(numbered(1))
        await self.assert_delivered(numbered(8), numbered(9), app_id=OTHER)

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

    async def test_two_writers_at_once_deliver_once(self) -> None:
        async with self.opened() as first, self.opened() as second:
            outcomes = [await first.progress(APP), await second.progress(APP)]
            assert outcomes == [None, None]
            committed = 0
            try:
                async with first.begin(APP, SCHEMA) as transaction:
                    await transaction.write(numbered(1))
                    committed += await _attempt(second, numbered(1))
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
            assert not await _attempt(old, numbered(1), numbered(2))
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
        while not await _finished(sink):
            await sink.aclose()
            sink = FaultySink(self.make_sink())
        await sink.aclose()
        await self.assert_progress(up_to(APP, LAST))
        await self.assert_delivered(*(numbered(version, task=task) for version in range(LAST + 1) for task in (0, 1)))


def _text(row: dict[str, Any]) -> str:
    """A row as something that can be sorted. The order of columns is the destination's."""
    return json.dumps(row, sort_keys=True)


def _known(row: dict[str, Any]) -> str:
    """A row without its nulls: a column that came later is null in the rows before it, or not there at all."""
    return _text({name: value for name, value in row.items() if value is not None})


def _backwards(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.take(pa.array(range(len(rows) - 1, -1, -1), pa.int64()))


def _without_repeats(rows: Rows) -> Rows:
    return list({_text(row): row for row in rows}.values())


async def _attempt(sink: Sink, *batches: ChangeBatch) -> bool:
    """Whether the rows were committed; being fenced is the one reason why not."""
    try:
        await deliver(sink, *batches)
    except SinkFenced:
        return False
    return True


async def _finished(sink: Sink) -> bool:
    """Deliver versions up to `LAST`, two a transaction, from where the sink is; False after an error."""
    try:
        progress = await sink.progress(APP)
        version = 0 if progress is None else progress.position.version + 1
        while version <= LAST:
            last = min(version + 1, LAST)
            span = range(version, last + 1)
            await deliver(sink, *(numbered(each, task=task) for each in span for task in (0, 1)))
            version = last + 1
    except (SinkUnavailable, SinkRejected, CommitUnknown):
        return False
    return True
