"""A sink with short transactions, or one that refuses a version: all earlier versions are delivered."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import pyarrow as pa
import pytest

import tailer.engine.look_ahead
from tailer.engine import Engine, background
from tailer.engine.local import LocalEngine
from tailer.engine.look_ahead import PrefetchedBatches
from tailer.errors import FileVacuumed, SinkFenced, SinkRejected, SinkUnavailable
from tailer.events import ChangeBatch, Gap, SchemaChange, joined_rows
from tailer.formats.delta.table import DeltaTableLog
from tailer.pipeline.loop import Pipeline
from tailer.pipeline.policy import OnDataLoss, Policy
from tailer.pipeline.row_delivery import row_pipeline
from tailer.plan import ChangePlan, Position
from tailer.sink import Demands, Progress, Sink, SinkTransaction, TransactionWrapper
from tailer.start import Start
from tailer.stores.local import LocalStore
from tailer.stores.wakeup import TimerWake
from tailer_sinks.memory import MemorySink
from tailer_sinks.testing import FaultySink
from tests.support.streams import APP, Destination, Growing, become, pipeline
from tests.support.tables.log_files import add, metadata, parquet, protocol, write_commit

pytestmark = pytest.mark.anyio


class Impatient(MemorySink):
    """A sink with a very short limit for idle transactions."""

    demands: Final = Demands(max_quiet_s=0.05)


class Slow(Engine):
    """An engine that yields only `batches` batches of `version` until it is released."""

    def __init__(self, version: int, batches: int) -> None:
        self.may = anyio.Event()
        self._inside = LocalEngine()
        self._version = version
        self._batches = batches

    @asynccontextmanager
    async def run(
        self, plans: Sequence[ChangePlan], after: Position | None = None
    ) -> AsyncIterator[AsyncIterator[ChangeBatch]]:
        async with self._inside.run(plans, after) as batches:
            yield self._slowly(batches)

    async def _slowly(self, batches: AsyncIterator[ChangeBatch]) -> AsyncIterator[ChangeBatch]:
        count = 0
        async for batch in batches:
            if batch.version == self._version:
                if count == self._batches:
                    await self.may.wait()
                count += 1
            yield batch


@pytest.mark.parametrize("batches", [0, 1])
async def test_available_rows_are_committed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batches: int
) -> None:
    monkeypatch.setattr(tailer.engine.look_ahead, "_MOST_VERSIONS", 1)
    table = Growing(tmp_path / "table")
    first = table.insert(range(3))
    second = table.insert(range(10, 13), range(20, 23))
    table.insert(range(30, 33))
    destination, engine = Destination(), Slow(second, batches)
    before = Position.end(first) if batches == 0 else Position(second, 0, 2)

    def goes_on() -> None:
        if destination.position() == before:
            engine.may.set()

    destination.then = goes_on
    with anyio.fail_after(300):
        await pipeline(table, Impatient("memory", destination), until="latest", engine=engine).run()
    assert before in [position for position, _ in destination.transactions]
    assert destination.delivered() == table.rows()


async def test_a_change_of_the_columns_names_those_that_are_others_now(tmp_path: Path) -> None:
    """On every level: the field of a struct has another place in files."""

    def mapped(*stored: str) -> dict[str, Any]:
        def field(name: str, kind: Any, physical: str) -> dict[str, Any]:
            known_as = {"delta.columnMapping.physicalName": physical}
            return {"name": name, "type": kind, "nullable": True, "metadata": known_as}

        inner = [field(name, "string", place) for name, place in zip(("street", "town"), stored, strict=True)]
        columns = [field("id", "long", "id"), field("place", {"type": "struct", "fields": inner}, "place")]
        return metadata(json.dumps({"type": "struct", "fields": columns}), **{"delta.columnMapping.mode": "name"})

    write_commit(tmp_path, 0, protocol(2), mapped("s1", "t1"))
    for version, stored in enumerate((("s1", "t1"), ("s1", "t2")), 1):
        rows = [{"id": version, "place": dict.fromkeys(stored, "x")}]
        file = parquet(tmp_path / f"{version}.parquet", pa.Table.from_pylist(rows))
        write_commit(tmp_path, version, mapped(*stored), add(file.name, size=file.stat().st_size))
    destination, log = Destination(), DeltaTableLog(LocalStore(tmp_path))
    sink, start, end = MemorySink("memory", destination), Start.parse("earliest"), Start.parse("latest")
    await row_pipeline("p", log, sink, LocalEngine(), TimerWake(), start, end).run()
    events = [each for app_id in destination.log for each in destination.events(app_id)]
    changes = [(each.version, each.replaced) for each in events if isinstance(each, SchemaChange)]
    assert changes == [(2, (("place", "town"),))]


async def test_an_error_comes_at_its_place(tmp_path: Path) -> None:
    table = Growing(tmp_path / "table")
    table.insert(range(3), range(3, 6))
    log = DeltaTableLog(LocalStore(table.path))
    await log.seek(0)
    plans = [plan for _ in range(table.version + 1) if (plan := await log.next_plan()) is not None]
    (table.path / f"{table.version}-1.parquet").unlink()
    seen = []
    async with background() as group:
        arrivals = PrefetchedBatches(group, LocalEngine(), plans[-1:])
        while batches := await arrivals.take():
            seen += joined_rows(batches).column("id").to_pylist()
        assert isinstance(arrivals.error, FileVacuumed)
    assert seen == [0, 1, 2]


class Picky(FaultySink):
    """A sink that refuses the rows of a version."""

    def __init__(self, sink: Sink, version: int) -> None:
        super().__init__(sink)
        self._version = version

    @asynccontextmanager
    async def begin(self, app_id: str, schema: pa.Schema) -> AsyncIterator[SinkTransaction]:
        async with super().begin(app_id, schema) as transaction:
            yield PickyTransaction(transaction, self._version)


class PickyTransaction(TransactionWrapper):
    def __init__(self, transaction: SinkTransaction, version: int) -> None:
        super().__init__(transaction)
        self._version = version

    async def write(self, batch: ChangeBatch) -> None:
        if batch.version == self._version:
            raise SinkRejected("picky", "I do not want these")
        await self._transaction.write(batch)


async def test_versions_before_a_refused_one_are_delivered(tmp_path: Path) -> None:
    table = Growing(tmp_path / "table")
    versions = [table.insert(range(10 * number, 10 * number + 3)) for number in range(6)]
    destination = Destination()
    with anyio.fail_after(300), pytest.raises(SinkRejected):
        await pipeline(table, Picky(destination.sink(), versions[4]), until="latest").run()
    assert destination.delivered() == table.rows(last=versions[3])


class Killed(BaseException):
    """The process has died."""


class Dying(MemorySink):
    """A sink for several writers. Its process dies once it has set progress."""

    distributes: Final = True

    async def reset(self, progress: Progress) -> None:
        await super().reset(progress)
        raise Killed


class Hooked(MemorySink):
    """A sink that calls `before` when a transaction begins."""

    async def before(self, app_id: str, schema: pa.Schema) -> None:
        """Do nothing."""

    @asynccontextmanager
    async def begin(self, app_id: str, schema: pa.Schema) -> AsyncIterator[SinkTransaction]:  # type: ignore[override]
        await self.before(app_id, schema)
        async with super().begin(app_id, schema) as transaction:
            yield transaction


class Overtaken(Hooked):
    """A sink beside which another instance delivers, up to `version`, before this one begins with another table id."""

    def __init__(self, destination: Destination, version: int) -> None:
        super().__init__("memory", destination)
        self._left = [version]

    async def before(self, app_id: str, schema: pa.Schema) -> None:
        if app_id != APP and self._left:
            other = MemorySink("other", self.destination)
            async with other.begin(APP, schema) as transaction:
                await transaction.commit(Progress(APP, Position.end(self._left.pop())))


class Shared(Overtaken):
    """The same, for several writers."""

    distributes: Final = True


def lose_versions_and_replace(table: Growing) -> list[int]:
    """Commit two versions whose files are gone, and replace the table by one with the id 4. Return the versions."""
    lost = [table.insert([2]), table.insert([3])]
    table.metadata = {**table.metadata, "id": "99999999-2222-3333-4444-555555555555"}
    gone = [table.remove(f"{version}-0.parquet") for version in range(1, table.version + 1)]
    table.commit({"metaData": table.metadata}, *gone, table.add(table.data("new.parquet", [4])))
    for version in lost:
        (table.path / f"{version}-0.parquet").unlink()
    return lost


async def test_a_death_does_not_hide_what_was_lost_before_the_table_was_replaced(tmp_path: Path) -> None:
    """Progress under the new id begins before the gap, not behind versions that nobody was told of."""
    table, policy = Growing(tmp_path / "table"), Policy(on_data_loss=OnDataLoss.RESNAPSHOT)
    table.insert([1])
    destination = Destination()
    await pipeline(table, destination.sink(), until="latest").run()
    lost = lose_versions_and_replace(table)
    with pytest.raises(Killed):
        await pipeline(table, Dying("memory", destination), until="latest", policy=policy).run()
    await pipeline(table, destination.sink(), until="latest", policy=policy).run()
    check_gap(destination, table, lost[0])


@pytest.mark.parametrize("kind", [Overtaken, Shared])
async def test_a_gap_over_a_replaced_table_begins_after_what_another_instance_delivered(
    tmp_path: Path, kind: type[Overtaken]
) -> None:
    table, policy = Growing(tmp_path / "table"), Policy(on_data_loss=OnDataLoss.RESNAPSHOT)
    table.insert([1])
    destination = Destination()
    await pipeline(table, destination.sink(), until="latest").run()
    lost = lose_versions_and_replace(table)
    with anyio.fail_after(300):
        await pipeline(table, kind(destination, lost[0]), until="latest", policy=policy).run()
    check_gap(destination, table, lost[1])


class Interrupted(Hooked):
    """A sink that does not answer when the first transaction begins."""

    def __init__(self, destination: Destination) -> None:
        super().__init__("memory", destination)
        self._left = [SinkUnavailable("memory", "no answer")]

    async def before(self, app_id: str, schema: pa.Schema) -> None:
        if self._left:
            raise self._left.pop()


async def test_a_gap_before_a_snapshot_is_announced_by_the_next_attempt(tmp_path: Path) -> None:
    """The start is a snapshot as well, of a table that took the place of another one."""
    first, other = Growing(tmp_path / "first"), Growing(tmp_path / "other")
    first.insert([1])
    destination, policy = Destination(), Policy(on_data_loss=OnDataLoss.RESNAPSHOT)
    await pipeline(first, destination.sink(), until="latest").run()
    create_anew(other)
    with anyio.fail_after(300):
        await pipeline(other, Interrupted(destination), "snapshot", "latest", policy=policy).run()
    check_gap(destination, other, 0)


def create_anew(table: Growing) -> None:
    """Write the log anew, under another id, with the id 4."""
    table.metadata = {**table.metadata, "id": "99999999-2222-3333-4444-555555555555"}
    table.version = -1
    table.commit({"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": table.metadata})
    table.commit(table.add(table.data("new.parquet", [4])))


class Beaten(Hooked):
    """A sink that does not answer when a transaction under the other table's id begins, which `other` delivers then."""

    def __init__(self, destination: Destination, other: Pipeline) -> None:
        super().__init__("memory", destination)
        self._left = [other]

    async def before(self, app_id: str, schema: pa.Schema) -> None:
        if app_id != APP and self._left:
            await self._left.pop().run()
            raise SinkUnavailable("memory", "no answer")


async def test_of_two_instances_one_announces_the_gap_over_a_table_that_was_made_anew(tmp_path: Path) -> None:
    """The instance that began with a later version of the former table does not deliver all rows again."""
    former, anew, link = Growing(tmp_path / "former"), Growing(tmp_path / "anew"), tmp_path / "link"
    former.insert([1])
    destination, policy = Destination(), Policy(on_data_loss=OnDataLoss.RESNAPSHOT)
    await pipeline(former, destination.sink(), until="latest").run()
    create_anew(anew)
    link.symlink_to(former.path)
    other = pipeline(anew, destination.sink(), until="latest", policy=policy)
    first = pipeline(former, Beaten(destination, other), policy=policy, store=LocalStore(link))
    async with anyio.create_task_group() as group:
        group.start_soon(first.run)
        former.insert([2])
        await become(lambda: destination.position() == Position.end(2))
        (tmp_path / "next").symlink_to(anew.path)
        (tmp_path / "next").replace(link)
        app_id = f"p/{anew.metadata['id']}"
        await become(lambda: destination.position(app_id) == Position.end(1))
        anew.insert([5])
        await become(lambda: destination.position(app_id) == Position.end(2))
        first.stop()
    gaps = [each for each in destination.events(app_id) if isinstance(each, Gap)]
    assert [(each.first_version, each.version, each.snapshot) for each in gaps] == [(0, 1, True)]
    assert destination.delivered(app_id) == [(1, 4), (2, 5)]


@pytest.mark.parametrize("is_behind", [False, True])
async def test_an_instance_that_looks_late_at_a_table_made_anew(tmp_path: Path, is_behind: bool) -> None:
    """Another instance delivered version 1 of it meanwhile. `is_behind`: it has not delivered versions 2 and 3.

    What was delivered does not come again. Without a version that was not, there is nothing to go on with.
    """
    former, anew, link = Growing(tmp_path / "former"), Growing(tmp_path / "anew"), tmp_path / "link"
    former.insert([1])
    destination, policy = Destination(), Policy(on_data_loss=OnDataLoss.RESNAPSHOT)
    await pipeline(former, destination.sink(), until="latest").run()
    create_anew(anew)
    link.symlink_to(former.path)
    first = pipeline(former, destination.sink(), policy=policy, store=LocalStore(link))
    app_id, fenced = f"p/{anew.metadata['id']}", []

    async def run() -> None:
        try:
            await first.run()
        except SinkFenced as error:
            fenced.append(error)

    with anyio.fail_after(300):
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            former.insert([2])
            await become(lambda: destination.position() == Position.end(2))
            await pipeline(anew, destination.sink(), until="latest", policy=policy).run()
            if is_behind:
                anew.insert([5])
                anew.insert([6])
            (tmp_path / "next").symlink_to(anew.path)
            (tmp_path / "next").replace(link)
            await become(lambda: bool(fenced) or destination.position(app_id) == Position.end(3))
            first.stop()
    gaps = [(each.first_version, each.version) for each in destination.events(app_id) if isinstance(each, Gap)]
    if is_behind:
        assert gaps[-1] == (2, 3)
        assert sorted(destination.delivered(app_id)) == [(1, 4), (3, 4), (3, 5), (3, 6)]
    else:
        assert fenced
        assert destination.delivered(app_id) == [(1, 4)]


def check_gap(destination: Destination, table: Growing, first: int) -> None:
    """Assert that under the table's new id one gap is announced, from `first` to its snapshot."""
    app_id = f"p/{table.metadata['id']}"
    gaps = [each for each in destination.events(app_id) if isinstance(each, Gap)]
    assert [(each.first_version, each.version, each.snapshot) for each in gaps] == [(first, table.version, True)]
    assert destination.delivered(app_id) == [(table.version, 4)]
