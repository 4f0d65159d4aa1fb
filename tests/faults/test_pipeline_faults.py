"""Recovery after any fault at any step: the destination has every row exactly once and in order.

Faults of the sink, the store, the files and the process itself, at every step. The comparison reads the destination.
"""

import json
import multiprocessing
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import anyio
import pyarrow as pa
import pytest
from anyio import to_thread
from tenacity import wait_fixed, wait_none

import tailer.engine.local
import tailer.pipeline.retry
from tailer.errors import (
    FileVacuumed,
    SinkAccessRefused,
    SinkFenced,
    SinkRejected,
    SinkUnavailable,
    StorageUnavailable,
    TailerError,
)
from tailer.events import ChangeBatch, ControlEvent
from tailer.pipeline.loop import Pipeline
from tailer.pipeline.retry import revival_pause_s
from tailer.plan import ChangeTask, Position
from tailer.progress.recorded import Recorded
from tailer.read.execute import execute
from tailer.sink import Progress, Sink, SinkTransaction
from tailer.stores.local import LocalStore
from tailer.stores.port import StoredObject
from tailer_sinks.files.sink import FilesSink
from tailer_sinks.memory import MemoryProgressStore
from tailer_sinks.testing import Fault, FaultySink, Kind, Step
from tailer_sinks.testing.faults import every_fault
from tests.support.streams import APP, Destination, Growing, Lines, WholeVersions, become, deliver_to_files, pipeline

pytestmark = pytest.mark.anyio

T = TypeVar("T")
HOLDS = [Fault(step, Kind.HOLD, after=after) for step in Step for after in (False, True)]
KINDS = pytest.mark.parametrize("faulty", [FaultySink, WholeVersions], ids=["splits", "whole"])


@pytest.fixture(autouse=True)
def no_time_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry without delays, and divide work into many batches, as for a large version."""
    monkeypatch.setattr(tailer.pipeline.retry, "wait_random_exponential", lambda **_: wait_none())
    monkeypatch.setattr(tailer.engine.local, "READ_BYTES", 1)
    monkeypatch.setattr(tailer.engine.local, "CHUNK_BYTES", 1)


@pytest.fixture
def table(tmp_path: Path) -> Growing:
    """Nine versions, one of them large: four batches in each of three files. Three change the schema."""
    found = Growing(tmp_path / "t")
    found.insert([1, 2])
    found.add_column("a")
    found.insert(*(range(100 * n, 100 * n + 40) for n in (1, 2, 3)), row_group_size=10)
    found.add_column("b")
    found.insert([400], [401])
    found.add_column("c")
    for each in (500, 600):
        found.insert([each], [each + 1])
    return found


def following(table: Growing, sink: Sink, **more: Any) -> Pipeline:
    """Make a pipeline with several transactions, within and across versions."""
    return pipeline(table, sink, until="latest", **{"max_versions": 2, "max_rows": 25, **more})


def check(table: Growing, there: Destination) -> None:
    """Check that everything is delivered once and in order, and that progress agrees."""
    assert there.delivered() == table.rows()
    assert there.position() == Position.end(table.version)
    positions = [position for position, _ in there.transactions]
    assert positions == sorted(set(positions))


class TestFaultsOfTheSink:
    @KINDS
    @pytest.mark.parametrize("fault", every_fault(), ids=str)
    async def test_at_every_step(self, table: Growing, fault: Fault, faulty: type[FaultySink]) -> None:
        there = Destination()
        sink = faulty(there.sink(), fault)
        try:
            await following(table, sink).run()
        except SinkRejected:
            # Not if whole versions were aborted with it: these are delivered again, and nothing is refused then.
            assert fault.kind is Kind.REJECT
            await following(table, faulty(there.sink())).run()
        check(table, there)

    async def test_at_all_of_them_one_after_the_other(self, table: Growing) -> None:
        there = Destination()
        faults = [Fault(step, Kind.FAIL, nth, after=nth % 2 == 0) for step in Step for nth in range(1, 9)]
        sink = FaultySink(there.sink(), *faults)
        await following(table, sink, max_versions=1, max_rows=1).run()
        assert set(sink.fired) == set(faults)
        check(table, there)

    @pytest.mark.sampled(3)
    @pytest.mark.parametrize("fault", every_fault(), ids=str)
    async def test_at_least_once_means_that(self, table: Growing, fault: Fault) -> None:
        """A destination without transactions may get rows again, but never misses or reorders any."""
        records: dict[str, Progress] = {}
        lines = Lines()
        for faults in ([fault], []):
            sink = FaultySink(Recorded(lines, MemoryProgressStore(records=records)), *faults)
            with suppress(SinkRejected):
                await following(table, sink).run()
        assert list(dict.fromkeys(lines.rows)) == table.rows()
        assert records[APP].position == Position.end(table.version)

    @KINDS
    @pytest.mark.parametrize("fault", HOLDS, ids=str)
    async def test_an_instance_that_wakes_up_after_another_took_over_does_no_harm(
        self, table: Growing, fault: Fault, faulty: type[FaultySink]
    ) -> None:
        there = Destination()
        sink = faulty(there.sink(), fault)

        async def sleeper() -> None:
            with suppress(SinkFenced):
                await following(table, sink).run()

        async with anyio.create_task_group() as group:
            group.start_soon(sleeper)
            await sink.holding.wait()
            await following(table, faulty(there.sink())).run()
            check(table, there)
            sink.release()
        check(table, there)

    @KINDS
    @pytest.mark.parametrize("fault", HOLDS, ids=str)
    async def test_cancellation_at_every_step(self, table: Growing, fault: Fault, faulty: type[FaultySink]) -> None:
        there = Destination()
        sink = faulty(there.sink(), fault)
        with anyio.fail_after(300):
            async with anyio.create_task_group() as group:
                group.start_soon(following(table, sink).run)
                await sink.holding.wait()
                group.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(0.01)
                    sink.release()
        # A commit in progress completes; an open transaction does not. Rows before a change of schema are committed.
        assert len(there.transactions) == (fault.step in (Step.COMMIT, Step.ANNOUNCE))
        await following(table, faulty(there.sink())).run()
        check(table, there)

    @KINDS
    @pytest.mark.parametrize("after", [False, True])
    async def test_a_commit_that_takes_too_long_is_asked_about(
        self, table: Growing, after: bool, faulty: type[FaultySink], caplog: pytest.LogCaptureFixture
    ) -> None:
        there = Destination()
        sink = faulty(there.sink(), Fault(Step.COMMIT, Kind.HOLD, nth=2, after=after))
        with anyio.fail_after(300):
            await following(table, sink, commit_deadline_s=0.03).run()
        assert "no answer within 0.03 s" in caplog.text
        assert "one version at a time" not in caplog.text, "it was not refused"
        check(table, there)

    async def test_a_failure_while_leaving_a_committed_transaction(self, table: Growing) -> None:
        there = Destination()
        await following(table, BadGoodbye(there.sink())).run()
        check(table, there)

    @pytest.mark.parametrize("step", [Step.BEGIN, Step.WRITE, Step.COMMIT])
    async def test_a_bug_of_a_sink_comes_out_as_it_is(self, table: Growing, step: Step) -> None:
        def crash() -> None:
            raise ZeroDivisionError

        there = Destination()
        with pytest.raises(ZeroDivisionError):
            await following(table, FaultySink(there.sink(), Fault(step, Kind.CRASH), crash=crash)).run()
        await following(table, there.sink()).run()
        check(table, there)


class BadGoodbye(FaultySink):
    """A sink that fails every other time when a transaction is left, committed or not."""

    leavings = 0

    @asynccontextmanager
    async def begin(self, app_id: str, schema: pa.Schema) -> AsyncIterator[SinkTransaction]:
        async with super().begin(app_id, schema) as transaction:
            yield transaction
        self.leavings += 1
        if self.leavings % 2:
            raise SinkUnavailable(self.name, "connection reset")


class FlakyStore(LocalStore):
    """A store that fails the `nth` request."""

    def __init__(self, root: Path, nth: int) -> None:
        super().__init__(root)
        self.questions = 0
        self._nth = nth

    def _ask(self) -> None:
        self.questions += 1
        if self.questions == self._nth:
            raise StorageUnavailable(self.uri, "on purpose")

    async def read(self, name: str, decode: Callable[[StoredObject], T]) -> T:
        self._ask()
        return await super().read(name, decode)

    async def list(self, prefix: str, start_after: str = "") -> Any:
        self._ask()
        return await super().list(prefix, start_after)


class TestFaultsOfTheSource:
    @pytest.mark.parametrize("start", ["earliest", "snapshot", "latest"])
    async def test_a_store_that_fails_at_every_question(self, table: Growing, start: str) -> None:
        nth, asked = 1, 1
        while nth <= asked:
            there = Destination()
            store = FlakyStore(table.path, nth)
            await pipeline(table, there.sink(), start, "latest", store=store, max_versions=2, max_rows=25).run()
            assert there.position() == Position.end(table.version)
            ids = [each for _, each in there.delivered()]
            assert sorted(ids) == ([] if start == "latest" else sorted(each for _, each in table.rows()))
            nth, asked = nth + 1, store.questions
        assert nth > 5

    async def test_a_store_that_fails_while_former_ids_are_sought(self, tmp_path: Path) -> None:
        """The table had another id for a while, and the newest progress is under that id."""
        table = Growing(tmp_path / "t")
        table.insert([1])
        for table_id, row in (("other", 2), (APP.removeprefix("p/"), 3)):
            table.metadata = {**table.metadata, "id": table_id}
            name = table.data(f"{row}.parquet", [row])
            table.inserted.append((table.commit({"metaData": table.metadata}, table.add(name)), row))
        nth, asked = 1, 1
        while nth <= asked:
            there = Destination()
            await pipeline(table, there.sink(), until="2").run()
            assert (there.position(), there.position("p/other")) == (Position.end(1), Position.end(2))
            store = FlakyStore(table.path, nth)
            await pipeline(table, there.sink(), until="latest", store=store).run()
            assert there.delivered() == [(1, 1), (3, 3)]
            assert there.delivered("p/other") == [(2, 2)]
            nth, asked = nth + 1, store.questions
        assert nth > 5

    @KINDS
    async def test_a_file_that_fails_at_every_batch(
        self, table: Growing, monkeypatch: pytest.MonkeyPatch, faulty: type[FaultySink]
    ) -> None:
        failed = nth = 0

        def flaky(task: ChangeTask, after_row: int = -1, **_: object) -> Iterator[ChangeBatch]:
            nonlocal nth, failed
            for batch in execute(task, after_row):
                nth -= 1
                if nth == 0:
                    failed += 1
                    raise StorageUnavailable(task.uri, "on purpose")
                yield batch

        monkeypatch.setattr(tailer.engine.local, "execute", flaky)
        for first in range(1, 20):
            nth = first
            there = Destination()
            await following(table, faulty(there.sink())).run()
            check(table, there)
        assert failed == 19

    @KINDS
    async def test_a_file_that_is_gone(self, table: Growing, faulty: type[FaultySink]) -> None:
        (table.path / "3-1.parquet").unlink()
        there = Destination()
        for _ in range(2):
            with pytest.raises(FileVacuumed, match=r"3-1\.parquet"):
                await following(table, faulty(there.sink())).run()
        delivered = there.delivered()
        assert delivered == table.rows()[: len(delivered)]
        position = there.position()
        assert position is None or position < Position(3, 1, 0)

    async def test_progress_never_passes_a_task_that_failed_in_a_way_of_its_own(
        self, table: Growing, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The sink neither waits nor yields, and could commit after every batch."""

        def broken(task: ChangeTask, after_row: int = -1, **_: object) -> Iterator[ChangeBatch]:
            for batch in execute(task, after_row):
                if (task.version, task.index, batch.last_row) == (3, 1, 29):
                    raise ZeroDivisionError
                yield batch

        monkeypatch.setattr(tailer.engine.local, "execute", broken)
        eager = Eager()
        for _ in range(10):
            with pytest.raises(ZeroDivisionError):
                await pipeline(table, eager, max_rows=1).run()
        assert eager.rows == [row for row in table.rows(0, 3) if row < (3, 220)]
        assert eager.position == Position(3, 1, 19)


class Eager(Sink, SinkTransaction):
    """A sink that stores rows at the moment of the commit, without ever suspending."""

    name = "eager"
    splits_versions = True
    splits_snapshots = True

    def __init__(self) -> None:
        self.rows: list[tuple[int, int]] = []
        self.position: Position | None = None
        self._written: list[tuple[int, int]] = []

    async def progress(self, app_id: str) -> Progress | None:
        return None if self.position is None else Progress(app_id, self.position)

    async def has_delivered(self, pipeline: str) -> bool:
        return self.position is not None

    async def reset(self, progress: Progress) -> None:
        self.position = progress.position

    @asynccontextmanager
    async def begin(self, app_id: str, schema: pa.Schema) -> AsyncIterator["Eager"]:
        self._written = []
        yield self

    async def write(self, batch: ChangeBatch) -> None:
        self._written.extend((batch.version, each) for each in batch.rows.column("id").to_pylist())

    async def announce(self, event: ControlEvent) -> None:
        """Do nothing: rows are enough here."""

    async def commit(self, progress: Progress) -> None:
        self.rows.extend(self._written)
        self.position = progress.position

    async def aclose(self) -> None:
        """Do nothing: no resources are held."""


class TestFaultsOfTheProcess:
    @pytest.mark.parametrize(
        "fault",
        [Fault(step, Kind.CRASH, nth, after) for step in Step for nth in (1, 3) for after in (False, True)],
        ids=str,
    )
    async def test_killed_at_every_step(self, table: Growing, tmp_path: Path, fault: Fault) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["__main__", deliver_to_files.__module__])
        out = tmp_path / "out"
        process = context.Process(target=deliver_to_files, args=(table, out, fault))
        await to_thread.run_sync(process.start)
        await to_thread.run_sync(process.join)
        killed = fault.step is not Step.PROGRESS or fault.nth == 1
        assert process.exitcode == (-signal.SIGKILL if killed else 0)
        before = await to_thread.run_sync(self.delivered, out)
        assert before == table.rows()[: len(before)]
        sink = FilesSink("files", out)
        await pipeline(table, sink, until="latest", max_versions=2).run()
        assert await sink.progress(APP) == Progress(APP, Position.end(table.version))
        await sink.aclose()
        assert await to_thread.run_sync(self.delivered, out) == table.rows()

    def delivered(self, out: Path) -> list[tuple[int, int]]:
        """Read the rows that a reader of the directory finds."""
        files = sorted((out / APP).glob("*.jsonl"))
        rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        return [(int(row["_commit_version"]), int(row["id"])) for row in rows if "id" in row]


class Clock:
    """The clock of the pipeline."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(tailer.pipeline.retry, "time", found)
    return found


class Ailing(FaultySink):
    """A sink that takes `seconds` for each `step`, and fails the first `failures` of them.

    The `refused_logins` after them are of its login.
    """

    refused_logins = 0

    def __init__(self, there: Destination, clock: Clock, step: Step, failures: int, seconds: float) -> None:
        super().__init__(there.sink())
        self.asked = 0
        self._clock, self._ails, self._failures, self._seconds = clock, step, failures, seconds

    async def _strike(self, step: Step, *, after: bool) -> None:
        if step is self._ails and not after:
            self.asked += 1
            self._clock.now_s += self._seconds
            if self.asked <= self._failures:
                raise SinkUnavailable(self.name, f"no answer to question {self.asked}")
            if self.asked <= self._failures + self.refused_logins:
                raise SinkAccessRefused(self.name, f"question {self.asked} is refused")


class TestPatience:
    @pytest.mark.parametrize("step", [step for step in Step if step is not Step.ANNOUNCE])  # it follows a success
    async def test_it_ends_and_the_error_is_the_last_one_bare(self, table: Growing, clock: Clock, step: Step) -> None:
        there = Destination()
        sink = Ailing(there, clock, step, failures=1000, seconds=10)
        with pytest.raises(SinkUnavailable, match="no answer to question 5"):
            await following(table, sink, retry_for_s=40).run()
        assert there.transactions == []

    async def test_a_login_that_is_refused_is_tried_for_ten_seconds(
        self, table: Growing, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They begin with the first refusal, however long there was no answer before."""
        monkeypatch.setattr(tailer.pipeline.retry, "_BRIEF_PAUSE_S", 0)
        sink = Ailing(Destination(), clock, Step.PROGRESS, failures=5, seconds=4)
        sink.refused_logins = 1000
        with pytest.raises(SinkAccessRefused, match="question 9 is refused") as refused:
            await following(table, sink).run()
        assert revival_pause_s(refused.value, 1) == 60
        there = Destination()
        sink = Ailing(there, clock, Step.PROGRESS, failures=5, seconds=4)
        sink.refused_logins = 3
        await following(table, sink).run()
        check(table, there)

    async def test_none_is_none(self, table: Growing, clock: Clock) -> None:
        sink = Ailing(Destination(), clock, Step.WRITE, failures=1000, seconds=0)
        with pytest.raises(SinkUnavailable, match="no answer to question 1"):
            await following(table, sink, retry_for_s=0).run()

    async def test_it_counts_from_the_first_failure_however_long_that_took(self, table: Growing, clock: Clock) -> None:
        there = Destination()
        await following(table, Ailing(there, clock, Step.WRITE, failures=1, seconds=3600), retry_for_s=10).run()
        check(table, there)

    async def test_the_retry_count_restarts_after_every_success(self, table: Growing, clock: Clock) -> None:
        there = Destination()
        sink = FaultySink(there.sink(), *[Fault(Step.BEGIN, Kind.FAIL, nth) for nth in range(2, 40, 2)])

        def pass_time() -> None:
            clock.now_s += 30

        there.then = pass_time
        await following(table, sink, max_versions=1, max_rows=1, retry_for_s=40).run()
        assert len(sink.fired) > 10
        check(table, there)

    async def test_having_nothing_to_do_is_a_success(self, table: Growing, clock: Clock) -> None:
        there = Destination()
        store = FlakyStore(table.path, nth=-1)
        tailing = pipeline(table, there.sink(), store=store, retry_for_s=40)
        async with anyio.create_task_group() as group:
            group.start_soon(tailing.run)
            await become(lambda: there.position() == Position.end(table.version))
            for _ in range(3):
                clock.now_s += 3600
                store._nth = store.questions + 1
                asked = store.questions
                await become(lambda asked=asked: store.questions > asked + 40)  # type: ignore[misc]
            table.insert([700])
            await become(lambda: there.position() == Position.end(table.version))
            tailing.stop()
        check(table, there)

    async def test_stopping_ends_a_pause(self, table: Growing, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tailer.pipeline.retry, "wait_random_exponential", lambda **_: wait_fixed(3600))
        sink = Ailing(Destination(), Clock(), Step.BEGIN, failures=1000, seconds=0)
        tailing = following(table, sink)
        with anyio.fail_after(300):
            async with anyio.create_task_group() as group:
                group.start_soon(tailing.run)
                await become(lambda: sink.asked == 1)
                await anyio.sleep(0.01)
                tailing.stop()
        assert sink.asked == 1

    async def test_an_error_while_stopping_is_not_tried_again(
        self, table: Growing, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It is no failure either: the next run delivers the rest."""
        there = Destination()
        sink = FaultySink(there.sink(), Fault(Step.WRITE, Kind.HOLD, nth=2), Fault(Step.COMMIT, Kind.FAIL, nth=2))
        tailing = following(table, sink)
        async with anyio.create_task_group() as group:
            group.start_soon(tailing.run)
            await sink.holding.wait()
            tailing.stop()
            sink.release()
        (record,) = caplog.records
        assert "fail before commit 2; the next run begins from the sink's progress" in record.message
        await following(table, there.sink()).run()
        check(table, there)

    @pytest.mark.parametrize("error", [SinkFenced("s", "another"), SinkRejected("s", "no")], ids=repr)
    async def test_errors_for_an_operator_are_not_retried(self, table: Growing, error: TailerError) -> None:
        """Except once, for the versions refused together with the faulty one, or for the request of a dead rival."""
        there = Destination()
        asked = 0

        def refuse() -> None:
            nonlocal asked
            asked += 1
            raise error

        there.then = refuse
        with pytest.raises(type(error)) as raised:
            await following(table, there.sink()).run()
        assert raised.value is error
        assert asked == 2
