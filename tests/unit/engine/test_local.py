"""`LocalEngine`: the same rows in the same order for any parallelism; bounded, and clean after the block."""

import asyncio
import gc
import random
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import anyio
import pyarrow as pa
import pytest

import tailer.engine.local
from tailer.engine.local import LocalEngine
from tailer.errors import DataCorrupt, SinkUnavailable
from tailer.events import ChangeBatch
from tailer.formats.delta.table import DeltaTableLog
from tailer.plan import END, SNAPSHOT_TASKS, ChangePlan, ChangeTask, Position, Regime, TaskKind, remaining
from tailer.stores.local import LocalStore
from tests.support.cases import cases
from tests.support.follow import plans, run_plan, snapshot
from tests.support.streams import become
from tests.support.tables.handwritten import HandwrittenTable

pytestmark = pytest.mark.anyio

SCHEMA = pa.schema([("id", pa.int64())])
BIG = 64 * 2**20
Seen = list[tuple[int, int]]


def plan(*sizes: int, version: int = 7, first: int = 0) -> ChangePlan:
    """Make a plan with a task for each file size."""
    tasks = [
        ChangeTask("t", "id", version, 0, first + index, TaskKind.INSERT, f"{index}.parquet", size, SCHEMA)
        for index, size in enumerate(sizes)
    ]
    return ChangePlan("t", "id", version, 0, None, Regime.FILES, SCHEMA, tuple(tasks))


class Reader:
    """A replacement of `execute`: yields `batches` batches of two rows per task, and counts the open readers."""

    def __init__(self, batches: int = 3) -> None:
        self.batches = batches
        self.delay_s = 0.0
        self.fails: dict[int, Exception] = {}
        self.began: list[int] = []
        self.given: list[int] = []
        self.open = self.most_open = 0
        self._lock = threading.Lock()

    def __call__(self, task: ChangeTask, after_row: int = -1, **_: object) -> Iterator[ChangeBatch]:
        with self._lock:
            self.began.append(task.index)
            self.open += 1
            self.most_open = max(self.most_open, self.open)
        try:
            for number in range(self.batches):
                time.sleep(random.random() * self.delay_s)
                rows = [row for row in (2 * number, 2 * number + 1) if row > after_row]
                if rows:
                    index = pa.array(rows, pa.int64())
                    self.given.append(task.index)
                    yield ChangeBatch("id", task.version, task.index, pa.record_batch({"id": index}), index)
            if task.index in self.fails:
                raise self.fails[task.index]
        finally:
            with self._lock:
                self.open -= 1


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Reader:
    """A reader whose batches are each read separately, for as many interleavings as possible."""
    found = Reader()
    monkeypatch.setattr(tailer.engine.local, "execute", found)
    monkeypatch.setattr(tailer.engine.local, "READ_BYTES", 1)
    return found


async def run(engine: LocalEngine, of: ChangePlan, seen: Seen, after: Position | None = None) -> None:
    """Run a plan and record (task, row) of all rows."""
    async with engine.run([of], after) as batches:
        async for batch in batches:
            seen.extend((batch.task, row) for row in batch.row_index.to_pylist())


@pytest.mark.parametrize(("room_bytes", "read"), [(0, 1), (BIG, 4)])
async def test_without_room_nothing_is_read_ahead(reader: Reader, room_bytes: int, read: int) -> None:
    """Many plans whose consumers stand still hold a batch each. They go on, and lose nothing."""
    gc.collect()  # what tests before this one left would make room when it goes
    engine, go_on = LocalEngine(4, ahead_bytes=pa.total_allocated_bytes() + room_bytes), anyio.Event()
    seen: list[Seen] = [[] for _ in range(20)]

    async def consume(into: Seen) -> None:
        async with engine.run([plan(*[BIG] * 6)]) as batches:
            async for batch in batches:
                into.extend((batch.task, row) for row in batch.row_index.to_pylist())
                await go_on.wait()

    async with anyio.create_task_group() as group:
        for into in seen:
            group.start_soon(consume, into)
        await become(lambda: all(seen))
        await anyio.sleep(0.1)
        assert len(reader.given) == 20 * read
        go_on.set()
    assert seen == [everything(6)] * 20


def everything(tasks: int, batches: int = 3) -> Seen:
    return [(task, row) for task in range(tasks) for row in range(2 * batches)]


class TestRemaining:
    PLAN = plan(1, 1, 1, version=7)

    @cases(
        ("after", "expected"),
        [
            (None, [(0, -1), (1, -1), (2, -1)]),
            (Position.end(6), [(0, -1), (1, -1), (2, -1)]),
            (Position(6, 2, 99), [(0, -1), (1, -1), (2, -1)]),
            (Position(7, 0, 5), [(0, 5), (1, -1), (2, -1)]),
            (Position(7, 1, 0), [(1, 0), (2, -1)]),
            (Position(7, 1), [(1, END), (2, -1)]),
            (Position(7, 2, 3), [(2, 3)]),
            (Position(7, 3, 0), []),
            (Position.end(7), []),
            (Position(8, 0, 0), []),
            (Position.end(9), []),
        ],
    )
    def test_changes(self, after: Position | None, expected: Seen) -> None:
        assert [(task.index, row) for task, row in remaining(self.PLAN, after)] == expected

    def test_a_snapshot(self) -> None:
        of = plan(1, 1, version=7, first=SNAPSHOT_TASKS)
        assert [row for _, row in remaining(of, None)] == [-1, -1]
        assert [row for _, row in remaining(of, Position.end(6))] == [-1, -1]
        assert [row for _, row in remaining(of, Position(7, SNAPSHOT_TASKS, 4))] == [4, -1]
        assert [row for _, row in remaining(of, Position(7, SNAPSHOT_TASKS + 1, 8))] == [8]
        assert remaining(of, Position.end(7)) == []

    def test_a_plan_without_tasks(self) -> None:
        assert remaining(plan(), None) == []


@pytest.mark.parametrize("threads", [1, 2, 8])
@pytest.mark.parametrize("sizes", [[BIG] * 12, [1] * 12, [1, BIG, 1, 1, 2**19, 2**19, BIG, 1, 1, 1, BIG, 1]], ids=str)
async def test_order_does_not_depend_on_who_is_faster(reader: Reader, threads: int, sizes: list[int]) -> None:
    reader.delay_s = 0.003
    seen: Seen = []
    await run(LocalEngine(threads), plan(*sizes), seen)
    assert seen == everything(12)
    assert reader.open == 0


@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize("size", [1, BIG])
async def test_it_continues_after_any_position(size: int) -> None:
    all_rows = everything(3)
    for place, (task, row) in enumerate(all_rows):
        seen: Seen = []
        await run(LocalEngine(2), plan(size, size, size), seen, Position(7, task, row))
        assert seen == all_rows[place + 1 :]


@pytest.mark.parametrize("size", [1, BIG])
@pytest.mark.parametrize("error", [DataCorrupt("t", 7, "2.parquet", "torn"), ZeroDivisionError()], ids=repr)
async def test_an_error_comes_after_the_earlier_rows_and_before_the_later_ones(
    reader: Reader, size: int, error: Exception
) -> None:
    reader.fails[2] = error
    reader.delay_s = 0.002
    seen: Seen = []
    with pytest.raises(type(error)) as raised:
        await run(LocalEngine(8), plan(*[size] * 6), seen)
    assert raised.value is error
    assert seen == everything(3)
    assert reader.open == 0


async def test_rows_before_an_error_come_even_if_both_were_pulled_at_once(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tailer.engine.local, "READ_BYTES", BIG)
    reader.fails[1] = DataCorrupt("t", 7, "1.parquet", "torn")
    seen: Seen = []
    with pytest.raises(DataCorrupt):
        await run(LocalEngine(2), plan(1, 1, 1), seen)
    assert seen == everything(2)


@pytest.mark.parametrize("threads", [1, 3])
async def test_looking_ahead_is_bounded(reader: Reader, threads: int) -> None:
    reader.batches = 5
    taken = 0
    async with LocalEngine(threads).run([plan(*[BIG] * 20)]) as batches:
        async for batch in batches:
            taken += 1
            if taken % 7 == 0:
                await anyio.sleep(0.01)  # time to read ahead
            ahead = len(reader.given) - taken
            assert ahead <= threads + 1
            assert max(reader.began) <= batch.task + threads + 1
    assert taken == 100
    assert reader.most_open <= threads + 1


@pytest.mark.usefixtures("reader")
async def test_small_files_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    pulls: list[int] = []
    pull = tailer.engine.local._read_some

    def counted(batches: Iterator[ChangeBatch], most_bytes: int) -> tuple[list[ChangeBatch], bool, Exception | None]:
        pulls.append(threading.get_ident())
        return pull(batches, most_bytes)

    monkeypatch.setattr(tailer.engine.local, "READ_BYTES", BIG)
    monkeypatch.setattr(tailer.engine.local, "_read_some", counted)
    seen: Seen = []
    await run(LocalEngine(2), plan(*[1000] * 40), seen)
    assert seen == everything(40)
    assert len(pulls) == 1
    await run(LocalEngine(2), plan(), seen)
    assert len(pulls) == 1


@pytest.mark.parametrize(("size", "most_open"), [(1000, 1), (4000, 1), (0, 5), (5000, 5), (100_000, 5)])
async def test_one_thread_reads_tiny_files(reader: Reader, size: int, most_open: int) -> None:
    """A size of 0 is unknown: such a file may be large."""
    seen: Seen = []
    async with LocalEngine(4).run([plan(*[size] * 500)]) as batches:
        async for batch in batches:
            seen.extend((batch.task, row) for row in batch.row_index.to_pylist())
            if len(seen) < 100:
                await anyio.sleep(0.001)  # time to read ahead
    assert seen == everything(500)
    assert (reader.most_open == 1) == (most_open == 1)


@pytest.mark.parametrize("size", [1, BIG])
async def test_leaving_early_stops_the_work_and_closes_the_files(reader: Reader, size: int) -> None:
    reader.batches = 50
    async with LocalEngine(4).run([plan(*[size] * 20)]) as batches:
        async for _ in batches:
            await anyio.sleep(0.01)
            break
    assert reader.open == 0
    given = len(reader.given)
    await anyio.sleep(0.02)
    assert len(reader.given) == given


async def test_leaving_without_a_look_closes_the_files(reader: Reader) -> None:
    async with LocalEngine(4).run([plan(*[BIG] * 20)]):
        await anyio.sleep(0.01)
    assert reader.open == 0


@pytest.mark.parametrize("size", [1, BIG])
async def test_an_error_of_the_consumer_passes_unchanged(reader: Reader, size: int) -> None:
    error = SinkUnavailable("s", "down")

    async def take_one() -> None:
        async with LocalEngine(4).run([plan(*[size] * 20)]) as batches:
            async for _ in batches:
                await anyio.sleep(0.01)  # by now all other tasks wait for their consumer
                raise error

    with pytest.raises(SinkUnavailable) as raised:
        await take_one()
    assert raised.value is error
    assert reader.open == 0


@pytest.mark.parametrize("size", [1, BIG])
async def test_cancellation_waits_for_the_threads_and_closes_the_files(reader: Reader, size: int) -> None:
    reader.batches, reader.delay_s = 1000, 0.005
    with anyio.move_on_after(0.05) as scope:
        await run(LocalEngine(3), plan(*[size] * 10), [])
    assert scope.cancelled_caught
    assert reader.open == 0


@pytest.mark.parametrize("size", [1, BIG])
async def test_cancellation_past_anyio_is_no_other_error(reader: Reader, size: int) -> None:
    reader.batches, reader.delay_s = 20, 0.1
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(run(LocalEngine(3), plan(*[size] * 10), []), 0.03)
    await become(lambda: reader.open == 0)


async def test_plans_may_run_at_once_on_one_engine(reader: Reader) -> None:
    reader.delay_s = 0.002
    engine = LocalEngine(2)
    results: list[Seen] = [[] for _ in range(4)]
    async with anyio.create_task_group() as group:
        for seen in results:
            group.start_soon(run, engine, plan(*[BIG] * 5), seen)
    assert results == [everything(5)] * 4


async def test_the_event_loop_stays_free_while_a_file_is_read(reader: Reader) -> None:
    reader.delay_s, reader.batches = 0.05, 2
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await anyio.sleep(0.001)
            ticks += 1

    async with anyio.create_task_group() as group:
        group.start_soon(tick)
        await run(LocalEngine(1), plan(1, BIG, BIG), [])
        group.cancel_scope.cancel()
    assert ticks > 3


@pytest.fixture
def table(tmp_path: Path) -> HandwrittenTable:
    """Write files with many row groups, deletion vectors, and a change file."""
    found = HandwrittenTable(tmp_path / "t")
    names = [found.data(f"{n}.parquet", range(1000 * n, 1000 * n + 700), row_group_size=97) for n in range(9)]
    found.commit(*[found.add(name) for name in names])
    vector = found.vector(1, range(0, 700, 3))
    found.commit(found.remove(names[2]), found.add(names[2], vector), found.remove(names[5]))
    kinds = ["update_preimage", "update_postimage", "delete", "insert"]
    found.data("_change_data/c.parquet", range(40), 7, _change_type=[kinds[n % 4] for n in range(40)])
    found.commit({"cdc": {"path": "_change_data/c.parquet", "partitionValues": {}, "size": 1, "dataChange": False}})
    return found


@pytest.mark.parametrize("stretch_bytes", [1, 2**20])
def test_batches_are_the_same_for_any_number_of_threads(
    table: HandwrittenTable, monkeypatch: pytest.MonkeyPatch, stretch_bytes: int
) -> None:
    monkeypatch.setattr(tailer.engine.local, "CHUNK_BYTES", stretch_bytes)
    for of in plans(table.path):
        runs = [run_plan(of, LocalEngine(threads)) for threads in (1, 2, 8)]
        assert runs[0].positions == sorted(set(runs[0].positions))
        for other in runs[1:]:
            assert other.positions == runs[0].positions
            assert [batch.rows for batch in other.batches] == [batch.rows for batch in runs[0].batches]
    assert snapshot(table.path).table.num_rows == 9 * 700 - 700 - 234


async def test_the_rows_after_a_position_are_exactly_the_rest(table: HandwrittenTable) -> None:
    engine = LocalEngine(2)
    log = DeltaTableLog(LocalStore(table.path))
    await log.seek(0)
    for of in [await log.next_plan() for _ in range(4)] + [plan async for plan in log.snapshot_plans(3)]:
        assert of is not None
        whole: Seen = []
        await run(engine, of, whole)
        assert len(whole) == len(set(whole))
        for place in range(0, len(whole), 397):
            rest: Seen = []
            await run(engine, of, rest, Position(of.version, *whole[place]))
            assert rest == whole[place + 1 :]


def open_files(below: Path) -> int:
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found += entry.readlink().is_relative_to(below)
    return found


async def test_real_files_are_closed(table: HandwrittenTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tailer.engine.local, "CHUNK_BYTES", 1)
    monkeypatch.setattr(tailer.engine.local, "READ_BYTES", 1)
    of = (await anyio.to_thread.run_sync(plans, table.path))[1]
    async with LocalEngine(4).run([of]) as batches:
        async for _ in batches:
            await anyio.sleep(0.01)
            assert open_files(tmp_path) > 0
            break
    gc.collect()
    assert open_files(tmp_path) == 0
