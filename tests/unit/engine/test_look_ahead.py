"""Look-ahead: the next version begins while the current one is delivered, and all else stays as it is."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final, cast

import anyio
import pyarrow as pa
import pytest

import tailer.engine.look_ahead
from tailer.engine.background import background
from tailer.engine.look_ahead import LookAhead, PrefetchedBatches
from tailer.engine.port import Engine
from tailer.errors import FileVacuumed, LogCorrupt
from tailer.events import ChangeBatch
from tailer.plan import ChangePlan, ChangeTask, FragmentRef, Position, Regime, TaskKind
from tailer.table_log import TableLog
from tests.support.streams import APP, Destination, Growing, become, pipeline

pytestmark = pytest.mark.anyio

SCHEMA: Final = pa.schema([("id", pa.int64())])
BIG: Final = 2**20


def plan(version: int, size: int = BIG) -> ChangePlan:
    task = ChangeTask("t", "id", version, 0, 0, TaskKind.INSERT, f"{version}.parquet", size, SCHEMA)
    return ChangePlan("t", "id", version, 0, None, Regime.FILES, SCHEMA, (task,))


class Log:
    """A table with `plans`; an error is raised in its place. `at_once`: most plans that are given out together."""

    def __init__(self, *plans: ChangePlan | Exception, at_once: int = 1) -> None:
        self.plans = list(plans)
        self.at_once = at_once
        self.asked = 0

    async def next_plan(self) -> ChangePlan | None:
        self.asked += 1
        found = self.plans.pop(0) if self.plans else None
        if isinstance(found, Exception):
            raise found
        return found

    async def next_plans(self, most: int) -> Sequence[ChangePlan]:
        found: list[ChangePlan] = []
        while len(found) < min(most, self.at_once):
            if found and (not self.plans or isinstance(self.plans[0], Exception)):
                break
            if (plan := await self.next_plan()) is None:
                break
            found.append(plan)
        return found


class OneRowEngine(Engine):
    """An engine that yields one row for each version, and knows which versions it runs."""

    def __init__(self) -> None:
        self.began: list[int] = []
        self.running: list[int] = []

    @asynccontextmanager
    async def run(self, plan: ChangePlan, after: Position | None = None) -> AsyncIterator[AsyncIterator[ChangeBatch]]:
        self.began.append(plan.version)
        self.running.append(plan.version)
        try:
            yield self._rows(plan)
        finally:
            self.running.remove(plan.version)

    async def _rows(self, plan: ChangePlan) -> AsyncIterator[ChangeBatch]:
        rows = pa.record_batch({"id": pa.array([plan.version])})
        yield ChangeBatch("id", plan.version, 0, rows, pa.array([0]))
        await anyio.sleep_forever()


@asynccontextmanager
async def looking(log: Log, engine: Engine, last: int | None = None) -> AsyncIterator[LookAhead]:
    async with background() as group:
        ahead = LookAhead(cast(TableLog, log), engine, lambda plan: plan, group)
        ahead.begin(last)
        yield ahead


async def turn(ahead: LookAhead) -> PrefetchedBatches:
    """Begin to read the next version; return its rows."""
    (found,) = await ahead.next_plans()
    shaped, rows = await ahead.read(found, None)
    assert shaped == found
    return rows


async def test_it_begins_with_the_next_version_of_a_backlog() -> None:
    log, engine = Log(*map(plan, range(4))), OneRowEngine()
    async with looking(log, engine) as ahead:
        (await turn(ahead)).stop()
        assert log.asked == 1, "a single version may be all there is"
        (await turn(ahead)).stop()
        assert log.asked == 3
        await become(lambda: engine.began == [0, 1, 2])
        rows = await turn(ahead)
        assert [batch.version for batch in await rows.take()] == [2]
        rows.stop()
        await become(lambda: engine.running == [3])
    assert engine.running == [], "nothing runs after the session"


async def test_after_a_wait_one_version_is_asked_for() -> None:
    log, engine = Log(plan(0), plan(1)), OneRowEngine()
    async with looking(log, engine) as ahead:
        await turn(ahead)
        await turn(ahead)
        assert await ahead.next_plans() == ()
        asked = log.asked
        log.plans = [plan(2), plan(3)]
        await turn(ahead)
        assert log.asked == asked + 1


async def test_small_versions_are_not_worth_it() -> None:
    log, engine = Log(*(plan(version, 1000) for version in range(4))), OneRowEngine()
    async with looking(log, engine) as ahead:
        for asked in range(1, 5):
            await turn(ahead)
            assert log.asked == asked


async def test_small_versions_of_lance_datasets_are() -> None:
    plans = [plan(version, 1000) for version in range(3)]
    rows = [replace(each.tasks[0], reader="lance", fragment=FragmentRef(each.version, 0, 10)) for each in plans]
    log = Log(*(replace(each, tasks=(task,)) for each, task in zip(plans, rows, strict=True)))
    engine = OneRowEngine()
    async with looking(log, engine) as ahead:
        await turn(ahead)
        await turn(ahead)
        await become(lambda: engine.began == [0, 1, 2])


class Noting(OneRowEngine):
    """An engine that reads the versions up to each of `ends` together."""

    def __init__(self, *ends: int) -> None:
        super().__init__()
        self.ends = set(ends)
        self.noted: list[int] = []

    def expect(self, plan: ChangePlan) -> bool:
        self.noted.append(plan.version)
        return plan.version not in self.ends

    def forget(self) -> None:
        self.noted = []


async def test_versions_that_are_read_together_are_planned_together() -> None:
    log, engine = Log(*map(plan, range(9))), Noting(4, 6)
    async with looking(log, engine) as ahead:
        await turn(ahead)
        assert (log.asked, engine.noted) == (1, []), "a single version may be all there is"
        await turn(ahead)
        assert log.asked == 5
        assert engine.noted == [1, 2, 3, 4, 2, 3, 4], "the next one begins with what is known"
        for _ in range(3):
            await turn(ahead)
        assert engine.noted[7:] == [3, 4, 4, 5, 6]
        await become(lambda: engine.began == [0, 1, 2, 3, 4, 5])
        ahead.begin(None)
        assert engine.noted == [], "the table is at another version"


async def test_an_error_of_a_later_version_waits_until_it_is_due() -> None:
    log, engine = Log(plan(0), plan(1), plan(2), LogCorrupt("t", "3.json", "no"), plan(4)), Noting()
    async with looking(log, engine) as ahead:
        for _ in range(3):
            await turn(ahead)
        for _ in range(2):
            with pytest.raises(LogCorrupt):
                await turn(ahead)
        assert [each.version for each in log.plans if isinstance(each, ChangePlan)] == [4]
        ahead.begin(None)
        assert (await turn(ahead)) is not None, "the error is forgotten where the table is at another version"


async def test_no_version_is_noted_after_the_last_one() -> None:
    log, engine = Log(*map(plan, range(5))), Noting()
    async with looking(log, engine, last=3) as ahead:
        for _ in range(4):
            await turn(ahead)
        assert log.asked == 4
        assert set(engine.noted) == {1, 2, 3}


async def test_nothing_is_planned_after_the_last_version() -> None:
    log, engine = Log(*map(plan, range(4))), OneRowEngine()
    async with looking(log, engine, last=2) as ahead:
        for _ in range(3):
            await turn(ahead)
        assert log.asked == 3
        assert [each.version for each in log.plans if isinstance(each, ChangePlan)] == [3]


async def test_an_error_waits_for_its_turn() -> None:
    lost = LogCorrupt("t", "00000000000000000002.json", "not JSON", 2)
    log, engine = Log(plan(0), plan(1), lost), OneRowEngine()
    async with looking(log, engine) as ahead:
        await turn(ahead)
        await turn(ahead)
        with pytest.raises(LogCorrupt) as found:
            await ahead.next_plans()
        assert found.value is lost


async def test_a_seek_forgets_what_is_ahead() -> None:
    log, engine = Log(*map(plan, range(4))), OneRowEngine()
    async with looking(log, engine) as ahead:
        for _ in range(2):
            (await turn(ahead)).stop()
        await become(lambda: engine.running == [2])
        ahead.begin(None)
        await become(lambda: engine.running == [])
        log.plans = [plan(7)]
        assert [batch.version for batch in await (await turn(ahead)).take()] == [7]


class TakingEngine(OneRowEngine):
    """An engine that takes plans together."""

    def takes(self, _: ChangePlan) -> bool:
        return True

    async def read_together(self, plans: Sequence[ChangePlan]) -> Sequence[Sequence[ChangeBatch]]:
        raise NotImplementedError


async def versions(ahead: LookAhead) -> list[int]:
    """Take the next plans as a delivery does; return their versions."""
    found = await ahead.next_plans()
    if len(found) == 1:
        (await ahead.read(found[0], None))[1].stop()
    return [each.version for each in found]


@pytest.mark.parametrize("at_once", [1, 3, 100])
async def test_small_versions_of_a_backlog_come_together(at_once: int) -> None:
    small = (plan(version, 1000) for version in range(5))
    log = Log(*small, plan(5), plan(6, 1000), plan(7, 1000), at_once=at_once)
    async with looking(log, TakingEngine()) as ahead:
        assert [await versions(ahead) for _ in range(5)] == [[0], [1, 2, 3, 4], [5], [6, 7], []]


@pytest.mark.parametrize("at_once", [1, 3, 100])
async def test_only_as_many_as_are_small_together(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    many = [replace(each, tasks=each.tasks * 50) for each in (plan(version, 10) for version in range(10))]
    async with looking(Log(*many, at_once=at_once), TakingEngine()) as ahead:
        assert [await versions(ahead) for _ in range(4)] == [[0], [1, 2, 3], [4, 5, 6], [7, 8, 9]]
    large = [plan(version, 200_000) for version in range(14)]
    async with looking(Log(*large, at_once=at_once), TakingEngine()) as ahead:
        assert [len(await versions(ahead)) for _ in range(4)] == [1, 6, 6, 1]
    monkeypatch.setattr(tailer.engine.look_ahead, "_MOST_S", 0.0)
    few = Log(*(plan(version, 10) for version in range(3)), at_once=at_once)
    async with looking(few, TakingEngine()) as ahead:
        assert [await versions(ahead) for _ in range(3)] == [[0], [1], [2]], "planning takes long"


@pytest.mark.parametrize("at_once", [1, 3, 100])
async def test_versions_that_differ_come_apart(at_once: int) -> None:
    other = replace(plan(2, 10), table_id="other")
    schema = pa.schema([pa.field("a", pa.int64(), metadata={"id": "2"})])
    renamed = replace(plan(4, 10), schema=schema)
    log = Log(plan(0, 10), plan(1, 10), other, plan(3, 10), renamed, plan(5, 10), at_once=at_once)
    async with looking(log, TakingEngine()) as ahead:
        assert [await versions(ahead) for _ in range(7)] == [[0], [1], [2], [3], [4], [5], []]


async def test_they_end_before_an_error_and_with_the_last_version() -> None:
    lost = LogCorrupt("t", "00000000000000000003.json", "not JSON", 3)
    async with looking(Log(*(plan(version, 10) for version in range(3)), lost), TakingEngine()) as ahead:
        assert [await versions(ahead) for _ in range(2)] == [[0], [1, 2]]
        for _ in range(2):
            with pytest.raises(LogCorrupt):
                await ahead.next_plans()
    log = Log(*(plan(version, 10) for version in range(9)))
    async with looking(log, TakingEngine(), last=3) as ahead:
        assert [await versions(ahead) for _ in range(2)] == [[0], [1, 2, 3]]
        assert log.asked == 4


@pytest.fixture
def _eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let versions of any size be worth it."""
    monkeypatch.setattr(tailer.engine.look_ahead, "_WORTH_BYTES", 0)


@pytest.mark.usefixtures("_eager")
async def test_a_lost_file_stops_at_its_version(tmp_path: Path) -> None:
    """A file that is gone when it is due, or earlier: the versions before are delivered and committed."""
    table, there = Growing(tmp_path / "t"), Destination()
    for version in range(5):
        table.insert([version])
    (table.path / "3-0.parquet").unlink()
    with pytest.raises(FileVacuumed) as found:
        await pipeline(table, there.sink(), until="latest").run()
    assert found.value.version == 3
    assert there.delivered(APP) == table.rows(last=2)


@pytest.mark.usefixtures("_eager")
@pytest.mark.parametrize("max_versions", [1, 3])
async def test_a_stop_leaves_no_version_out(tmp_path: Path, max_versions: int) -> None:
    """Whenever it is stopped, the next run goes on after what was committed, whatever was read ahead."""
    table, there = Growing(tmp_path / "t"), Destination()
    for version in range(12):
        table.insert([version, 100 + version])
    while (position := there.position(APP)) is None or position.version < table.version:
        running = pipeline(table, there.sink(), until="latest", max_versions=max_versions)
        there.then = running.stop
        await running.run()
    assert there.delivered(APP) == table.rows()
