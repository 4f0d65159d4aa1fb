"""Versions of many small files: their rows reach the sink together, and all else is as if each came by itself."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.lowlevel
import pyarrow as pa
import pytest

from tailer.engine import Engine, background
from tailer.engine.local import LocalEngine
from tailer.engine.look_ahead import AHEAD_BYTES, PrefetchedBatches
from tailer.errors import FileVacuumed, StorageUnavailable
from tailer.events import ChangeBatch, joined_rows
from tailer.formats.delta.table import DeltaTableLog
from tailer.plan import ChangePlan, Position
from tailer.sink import Progress, Sink, SinkTransaction, TransactionWrapper
from tailer.stores.local import LocalStore
from tailer_sinks.testing import FaultySink
from tests.support.streams import APP, Destination, Growing, pipeline
from tests.support.together import Together, TogetherWhole

pytestmark = pytest.mark.anyio

FILES: Final = 100


class Ready(Engine):
    """An engine that has all `batches` at once."""

    def __init__(self, batches: Sequence[ChangeBatch]) -> None:
        self.batches = batches
        self.given = 0

    @asynccontextmanager
    async def run(
        self, plans: Sequence[ChangePlan], after: Position | None = None
    ) -> AsyncIterator[AsyncIterator[ChangeBatch]]:
        yield self._all()

    async def _all(self) -> AsyncIterator[ChangeBatch]:
        for batch in self.batches:
            self.given += 1
            yield batch


def many(tmp_path: Path) -> Growing:
    """Make a table with a version of many files of one to three rows, between two of one file."""
    table = Growing(tmp_path / "table")
    table.insert(range(3))
    table.insert(*(range(10 * number, 10 * number + 1 + number % 3) for number in range(1, FILES + 1)))
    table.insert(range(3))
    return table


async def last_plan(table: Growing) -> ChangePlan:
    log = DeltaTableLog(LocalStore(table.path))
    await log.seek(table.version)
    plan = await log.next_plan()
    assert plan is not None
    return plan


def places(batches: Sequence[ChangeBatch]) -> list[Position]:
    return [Position(each.version, each.task, row) for each in batches for row in each.row_index.to_pylist()]


async def deliver(table: Growing, sink: Sink, **limits: Any) -> None:
    with anyio.fail_after(300):
        await pipeline(table, sink, until="latest", **limits).run()


async def test_rows_of_many_files_come_together(tmp_path: Path) -> None:
    table, alone, destination = many(tmp_path), Destination(), Destination()
    sink = Together(destination)
    await deliver(table, alone.sink())
    await deliver(table, sink)
    assert destination.delivered() == alone.delivered() == table.rows()
    (batches,), (expected,) = destination.batches.values(), alone.batches.values()
    assert places(batches) == places(expected)
    assert max(map(len, sink.taken)) > FILES // 4
    assert max(len({batch.task for batch in group}) for group in sink.taken) > FILES // 4


@pytest.mark.parametrize(
    "limits", [{"max_rows": 7}, {"max_bytes": 200}, {"max_rows": 1}, {"max_seconds": 0.0}], ids=str
)
async def test_transactions_end_at_the_same_places(tmp_path: Path, limits: dict[str, Any]) -> None:
    table, alone, destination = many(tmp_path), Destination(), Destination()
    await deliver(table, alone.sink(), **limits)
    await deliver(table, Together(destination), **limits)
    assert destination.transactions == alone.transactions
    assert len(destination.transactions) > 20
    assert destination.delivered() == table.rows()


async def test_a_transaction_that_cannot_end_in_a_version_takes_it_together(tmp_path: Path) -> None:
    table, destination = many(tmp_path), Destination()
    sink = TogetherWhole(destination)
    await deliver(table, sink, max_rows=1)
    assert destination.ends() == [1, 2, 3]
    assert destination.delivered() == table.rows()
    assert max(map(len, sink.taken)) > FILES // 4


async def test_it_continues_after_any_row(tmp_path: Path) -> None:
    table, alone = many(tmp_path), Destination()
    await deliver(table, alone.sink())
    (expected,) = alone.batches.values()
    for place in places(expected)[5:-3:31]:
        destination = Destination()
        sink = Together(destination)
        await sink.reset(Progress(APP, place))
        await deliver(table, sink)
        (found,) = destination.batches.values()
        assert places(found) == [each for each in places(expected) if each > place]


async def test_an_error_comes_after_the_same_rows(tmp_path: Path) -> None:
    table = many(tmp_path)
    (table.path / f"{table.version - 1}-70.parquet").unlink()
    found = []
    for together in (False, True):
        destination = Destination()
        with pytest.raises(FileVacuumed, match="-70"):
            await deliver(table, Together(destination) if together else destination.sink())
        (batches,) = destination.batches.values()
        found.append((destination.transactions, places(batches)))
    assert found[0] == found[1]
    assert found[0][1][-1].task == 69


class BreakingSink(FaultySink):
    """A sink in which one write fails, behind rows of the same step, with an error of the store."""

    def __init__(self, destination: Destination) -> None:
        super().__init__(destination.sink())
        self.left = 2 * FILES // 3

    @asynccontextmanager
    async def begin(self, app_id: str, schema: pa.Schema) -> AsyncIterator[SinkTransaction]:
        async with super().begin(app_id, schema) as transaction:
            yield BreakingTransaction(transaction, self)


class BreakingTransaction(TransactionWrapper):
    def __init__(self, transaction: SinkTransaction, sink: BreakingSink) -> None:
        super().__init__(transaction)
        self._sink = sink

    async def write(self, batch: ChangeBatch) -> None:
        await self._transaction.write(batch)
        self._sink.left -= 1
        if self._sink.left == 0:
            raise StorageUnavailable("spool", "full for a moment")


async def test_a_step_that_fails_in_the_middle_is_not_committed(tmp_path: Path) -> None:
    """The rows that the sink took of it are in no transaction, and come again."""
    table, destination = many(tmp_path), Destination()
    sink = BreakingSink(destination)
    await deliver(table, sink)
    assert sink.left < 0
    assert destination.delivered() == table.rows()


async def test_another_schema_divides_them(tmp_path: Path) -> None:
    table, destination = Growing(tmp_path / "table"), Destination()
    table.insert(*([number] for number in range(20)))
    removed = [table.remove(f"1-{number}.parquet") for number in range(20)]
    added = [table.add(table.data(f"{number}.parquet", [number])) for number in range(20)]
    schema = json.loads(table.metadata["schemaString"])
    schema["fields"].append({"name": "extra", "type": "string", "nullable": True, "metadata": {}})
    table.commit({"metaData": {**table.metadata, "schemaString": json.dumps(schema)}}, *removed, *added)
    sink = Together(destination)
    await deliver(table, sink)
    assert all(len({tuple(batch.rows.schema.names) for batch in group}) == 1 for group in sink.taken)
    kinds = [row["_change_type"] for row in destination.rows(APP)]
    assert kinds == ["insert"] * 20 + ["delete"] * 20 + ["insert"] * 20
    assert max(map(len, sink.taken)) > 1


@pytest.mark.parametrize(("rows", "most"), [(1, 128), (20_000, 1), (200_000, 1)])
async def test_what_comes_together_is_bounded(tmp_path: Path, rows: int, most: int) -> None:
    table = many(tmp_path)
    plan = await last_plan(table)
    index = pa.array(range(rows), pa.int64())
    batch = ChangeBatch(plan.table_id, plan.version, 0, pa.record_batch({"id": index, "again": index}), index)
    engine = Ready([batch] * 1000)
    taken = 0
    async with background() as group:
        arrivals = PrefetchedBatches(group, engine, [plan])
        while found := await arrivals.take():
            taken += len(found)
            await anyio.lowlevel.checkpoint()
            assert len(found) <= most
            assert sum(each.size_bytes for each in found[:-1]) < AHEAD_BYTES
            assert engine.given - taken <= most + 1
    assert taken == 1000


async def test_progress_is_the_last_row_of_its_transaction(tmp_path: Path) -> None:
    """Also where a transaction ends between batches that come together."""
    table, destination = many(tmp_path), Destination()
    await deliver(table, Together(destination), max_rows=7)
    (batches,) = destination.batches.values()
    committed = 0
    for position, rows in destination.transactions:
        committed += rows
        assert committed == sum(place <= position for place in places(batches))
    assert len(destination.transactions) > FILES // 10


async def test_large_batches_are_written_one_by_one(tmp_path: Path) -> None:
    table, destination = Growing(tmp_path / "table"), Destination()
    sink = Together(destination)
    table.insert(*([number] if number % 10 else range(9000) for number in range(40)))
    await deliver(table, sink)
    assert destination.delivered() == table.rows()
    groups = [group for group in sink.taken if len(group) > 1]
    assert groups
    assert all(sum(batch.size_bytes for batch in group) <= AHEAD_BYTES for group in groups)


async def test_batches_can_be_taken_after_a_cancellation(tmp_path: Path) -> None:
    table = many(tmp_path)
    async with background() as group:
        arrivals = PrefetchedBatches(group, LocalEngine(), [await last_plan(table)])
        with anyio.move_on_after(0) as scope:
            await arrivals.take()
        assert scope.cancelled_caught
        assert joined_rows(await arrivals.take()).column("id").to_pylist() == [0, 1, 2]
        assert await arrivals.take() == []
