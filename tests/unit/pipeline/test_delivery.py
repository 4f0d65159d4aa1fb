"""The loop, over a delivery that only writes down what it is asked for."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pyarrow as pa
import pytest
from anyio import to_thread
from deltalake import DeltaTable, write_deltalake

from tailer.errors import ChangesUnavailable, ConfigError, FileVacuumed, SinkRejected, TailerError
from tailer.formats.delta.table import DeltaTableLog
from tailer.pipeline.delivery import ResumePoint, VersionRange
from tailer.pipeline.loop import Pipeline
from tailer.pipeline.policy import OnDataLoss, OnSchemaChange, Policy
from tailer.pipeline.polling import Polling
from tailer.pipeline.retry import Retries
from tailer.plan import SNAPSHOT_TASKS, ChangePlan, Position
from tailer.sink import Sink
from tailer.start import Start
from tailer.stores.local import LocalStore
from tailer.stores.wakeup import TimerWake
from tailer_sinks.memory import MemorySink
from tests.support.streams import Growing

pytestmark = pytest.mark.anyio


class Scripted:
    """A delivery of up to `together` versions at once, and its only session; `fails` on the version of an error."""

    def __init__(self, table: DeltaTableLog, resume: ResumePoint | None, fails: TailerError | None = None) -> None:
        self.sink: Sink = MemorySink("memory")
        self.commands = None
        self.resume = resume
        self.table_id: str | None = None
        self.app_id: str | None = None
        self.announces_columns = False
        self.calls: list[str] = []
        self.together = 3
        self._table = table
        self._fails = fails

    @asynccontextmanager
    async def session(self, table_id: str) -> AsyncIterator["Scripted"]:
        self.calls.append("session")
        yield self

    async def record_start(self, plan: ChangePlan) -> None:
        self.calls.append(f"record {plan.version} {plan.schema.names}")

    async def snapshot(self, version: int, after: Position | None) -> bool:
        self.calls.append(f"snapshot {version} {after is not None}")
        return True

    def begin(self, version: int, schema: pa.Schema | None, last: int | None) -> None:
        self.calls.append(f"begin {version} {None if schema is None else schema.names} {last}")

    async def plan(self) -> VersionRange | None:
        plans: list[ChangePlan] = []
        while len(plans) < self.together and (plan := await self._table.next_plan()) is not None:
            plans.append(plan)
        return VersionRange.of(plans) if plans else None

    async def deliver(self, versions: VersionRange, after: Position | None) -> None:
        self.calls.append(f"deliver {versions.first} to {versions.last}")
        if self._fails is not None:
            raise self._fails

    async def commit(self) -> None:
        self.calls.append("commit")

    def narrow(self, error: TailerError) -> bool:
        self.calls.append("narrow")
        self.together, self._fails = 1, None
        return isinstance(error, SinkRejected)

    async def salvage(self, error: TailerError) -> bool:
        self.calls.append("salvage")
        return False


@pytest.fixture
def log(tmp_path: Path) -> DeltaTableLog:
    """Versions 0 to 4."""
    table = Growing(tmp_path / "t")
    for each in range(1, 5):
        table.insert([each])
    return DeltaTableLog(LocalStore(table.path))


def pipeline(log: DeltaTableLog, delivery: Scripted, start: str = "earliest", policy: Policy | None = None) -> Pipeline:
    """A pipeline up to the latest version."""
    policy = policy or Policy()
    until = Start.parse("latest")
    return Pipeline(
        "p", log, delivery, TimerWake(), Start.parse(start), until, policy, Polling(0.01, 0.01), Retries("p", 1.0)
    )


@pytest.mark.parametrize(
    ("start", "resume", "calls"),
    [
        ("earliest", None, ["begin 0 None 4", "deliver 0 to 2", "deliver 3 to 4"]),
        ("2", None, ["begin 2 None 4", "deliver 2 to 4"]),
        ("latest", None, ["record 4 ['id']", "begin 5 ['id'] 4"]),
        ("snapshot", None, ["snapshot 4 False", "begin 5 ['id'] 4"]),
        ("earliest", Position.end(3), ["begin 4 ['id'] 4", "deliver 4 to 4"]),
        ("earliest", Position(4, 0, 0), ["begin 4 ['id'] 4", "deliver 4 to 4"]),
        ("earliest", Position(2, SNAPSHOT_TASKS, 7), ["snapshot 2 True", "begin 3 ['id'] 4", "deliver 3 to 4"]),
        ("earliest", Position.opening(2, snapshot=True), ["snapshot 2 False", "begin 3 ['id'] 4", "deliver 3 to 4"]),
        ("latest", Position.opening(3), ["begin 3 None 4", "deliver 3 to 4"]),
    ],
)
async def test_where_a_session_begins_and_what_it_delivers(
    log: DeltaTableLog, start: str, resume: Position | None, calls: list[str]
) -> None:
    delivery = Scripted(log, None if resume is None else ResumePoint.following(resume))
    await pipeline(log, delivery, start).run()
    assert delivery.calls == ["session", *calls, "commit"]


async def test_a_refused_range_is_delivered_in_smaller_ones(log: DeltaTableLog) -> None:
    delivery = Scripted(log, ResumePoint(2), SinkRejected("memory", "too much", "Give less."))
    await pipeline(log, delivery).run()
    again = ["session", "begin 2 None 4", *(f"deliver {each} to {each}" for each in (2, 3, 4)), "commit"]
    assert delivery.calls == ["session", "begin 2 None 4", "deliver 2 to 4", "narrow", *again]


class Beating(MemorySink):
    """A sink that asks for a heartbeat every hundredth of a second. `thrice`: set by the third."""

    def __init__(self) -> None:
        super().__init__("memory")
        self.beats = 0
        self.thrice = anyio.Event()

    async def beat(self, app_id: str) -> float | None:
        """See `Heartbeat.beat`."""
        self.beats += 1
        if self.beats == 3:
            self.thrice.set()
        return 0.01


async def test_heartbeats_do_not_wait_for_the_next_look_at_a_quiet_table(log: DeltaTableLog) -> None:
    delivery, sink = Scripted(log, None), Beating()
    delivery.sink, delivery.app_id = sink, "p/t"
    start, polling = Start.parse("earliest"), Polling(3600, 3600)
    following = Pipeline("p", log, delivery, TimerWake(), start, None, Policy(), polling, Retries("p", 1.0))
    with anyio.fail_after(300):
        async with anyio.create_task_group() as group:
            group.start_soon(following.run)
            await sink.thrice.wait()
            following.stop()


async def test_an_error_that_lasts_is_raised_after_what_could_be_committed(log: DeltaTableLog) -> None:
    delivery = Scripted(log, None, ConfigError("columns", "no column 'a'"))
    with pytest.raises(ConfigError, match="no column 'a'"):
        await pipeline(log, delivery).run()
    assert delivery.calls[-3:] == ["deliver 0 to 2", "narrow", "salvage"]


async def test_without_gaps_a_lost_version_stops_the_pipeline(log: DeltaTableLog) -> None:
    lost = FileVacuumed(log.uri, 1, "a.parquet")
    delivery = Scripted(log, ResumePoint(1), lost)
    with anyio.fail_after(300), pytest.raises(FileVacuumed):
        await pipeline(log, delivery, policy=Policy(on_data_loss=OnDataLoss.SKIP)).run()


async def test_another_table_is_not_continued(log: DeltaTableLog) -> None:
    delivery = Scripted(log, ResumePoint(2))
    delivery.table_id = "another"
    with pytest.raises(TailerError, match="another"):
        await pipeline(log, delivery).run()
    assert "begin" not in " ".join(delivery.calls)


async def test_unknown_columns_stop_only_those_who_must_know_them(tmp_path: Path) -> None:
    """The log begins with a checkpoint of version 2, which adds a column, and the sink is at version 1."""
    path = tmp_path / "t"

    def write() -> None:
        for columns in ({"id": [1]}, {"id": [2]}, {"id": [3], "x": ["a"]}):
            write_deltalake(path, pa.table(columns), mode="append", schema_mode="merge")
        DeltaTable(path).create_checkpoint()
        for version in (0, 1):
            (path / "_delta_log" / f"{version:020d}.json").unlink()

    await to_thread.run_sync(write)
    log = DeltaTableLog(LocalStore(path))
    resume = ResumePoint.following(Position.end(1))
    delivery = Scripted(log, resume)
    await pipeline(log, delivery).run()
    assert delivery.calls == ["session", "begin 2 None 2", "deliver 2 to 2", "commit"]
    with pytest.raises(ChangesUnavailable, match="no longer has the schema before it"):
        await pipeline(log, Scripted(log, resume), policy=Policy(on_schema_change=OnSchemaChange.FAIL)).run()
