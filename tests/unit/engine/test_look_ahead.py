"""Look-ahead: the next version begins while the current one is delivered, and all else stays as it is."""

import gc
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final, cast
from weakref import ref

import anyio
import pyarrow as pa
import pytest

from tailer.engine import Engine, background
from tailer.engine.look_ahead import LookAhead, PrefetchedBatches
from tailer.errors import LogCorrupt
from tailer.events import ChangeBatch
from tailer.plan import ChangePlan, ChangeTask, FragmentRef, Position, Regime, TaskKind
from tailer.table_log import TableLog
from tests.support.streams import become

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

    async def next_plans(self, most: int) -> Sequence[ChangePlan]:
        self.asked += 1
        if self.plans and isinstance(self.plans[0], Exception):
            raise self.plans.pop(0)  # type: ignore[misc]
        found: list[ChangePlan] = []
        while self.plans and isinstance(self.plans[0], ChangePlan) and len(found) < min(most, self.at_once):
            found.append(self.plans.pop(0))  # type: ignore[arg-type]
        return found


class OneRowEngine(Engine):
    """An engine that yields one row for each version, and knows which versions it runs."""

    def __init__(self) -> None:
        self.began: list[int] = []
        self.running: list[int] = []

    @asynccontextmanager
    async def run(
        self, plans: Sequence[ChangePlan], after: Position | None = None
    ) -> AsyncIterator[AsyncIterator[ChangeBatch]]:
        self.began += [plan.version for plan in plans]
        self.running.append(plans[0].version)
        try:
            yield self._rows(plans[0])
        finally:
            self.running.remove(plans[0].version)

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
    plans = await ahead.next_plans()
    shaped, rows = await ahead.read(plans, None)
    assert shaped == plans
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


async def test_a_pipeline_that_waits_holds_no_rows() -> None:
    log, engine = Log(*map(plan, range(3))), OneRowEngine()
    async with looking(log, engine) as ahead:
        for _ in range(2):
            (await turn(ahead)).stop()
        rows = await turn(ahead)  # begun while the one before was delivered
        rows.stop()
        held = ref(rows)
        del rows
        assert await ahead.next_plans() == ()
        with anyio.fail_after(10):
            await become(lambda: gc.collect() >= 0 and held() is None)


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


async def test_a_small_version_after_the_last_one_is_not_read_with_those_before() -> None:
    """Numbers of versions may have gaps, so none has the number of the last one."""
    log = Log(*(plan(version, 1) for version in (0, 1, 2, 5)))
    async with looking(log, OneRowEngine(), last=3) as ahead:
        await turn(ahead)
        assert [each.version for each in await ahead.next_plans()] == [1, 2]
        assert [each.version for each in await ahead.next_plans()] == [5]


class PartEngine(OneRowEngine):
    """An engine that yields two rows for each version, and reads several versions up to a row of the second one."""

    @asynccontextmanager
    async def run(
        self, plans: Sequence[ChangePlan], after: Position | None = None
    ) -> AsyncIterator[AsyncIterator[ChangeBatch]]:
        yield self._parts(plans, after)

    async def _parts(self, plans: Sequence[ChangePlan], after: Position | None) -> AsyncIterator[ChangeBatch]:
        for position in (Position(plan.version, 0, row) for plan in plans for row in range(2)):
            if len(plans) > 1 and position == Position(1, 0, 1):
                raise LogCorrupt("t", "1.parquet", "damaged", 1)
            if after is None or position > after:
                rows = pa.record_batch({"id": pa.array([position.version])})
                yield ChangeBatch("id", position.version, 0, rows, pa.array([position.row]))


async def test_versions_that_cannot_be_read_together_go_on_after_the_last_row() -> None:
    found = []
    async with background() as group:
        rows = PrefetchedBatches(group, PartEngine(), [plan(version) for version in range(3)])
        while batches := await rows.take():
            found += [(batch.version, batch.last_row) for batch in batches]
    assert found == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert (rows.whole, rows.error) == (3, None)


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


async def versions(ahead: LookAhead) -> list[int]:
    """Take the next plans as a delivery does; return their versions."""
    plans = await ahead.next_plans()
    if plans:
        (await ahead.read(plans, None))[1].stop()
    return [plan.version for plan in plans]
