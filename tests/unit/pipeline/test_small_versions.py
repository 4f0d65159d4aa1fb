"""Small versions of a backlog are read and written together, and all else is as if each came by itself.

Random histories with damage are delivered twice: one version at a time, and several together. Both must make
the same transactions with the same rows and events, and end with the same error.
"""

import json
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

import tailer.engine.local
import tailer.engine.look_ahead
import tailer.pipeline.sink_writer
from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.rules import PairingRules
from tailer.engine import Engine
from tailer.engine.local import LocalEngine
from tailer.errors import FileVacuumed, SinkRejected, SinkUnavailable, TailerError
from tailer.events import ChangeBatch, ControlEvent, Gap, SchemaChange
from tailer.pipeline.policy import OnDataLoss, OnSchemaChange, Policy
from tailer.plan import ChangePlan, ChangeTask, Position
from tailer.progress.recorded import Recorded
from tailer.read.execute import execute
from tailer.sink import Demands, Progress, Sink, SinkTransaction, TransactionWrapper
from tailer_sinks.memory import MemoryProgressStore, MemorySink
from tests.support import streams
from tests.support.seeds import seeds
from tests.support.streams import APP, Destination, Growing, become, pipeline
from tests.support.together import Together, TogetherWhole

pytestmark = pytest.mark.anyio

SEEDS: Final = seeds(10)
VERSIONS: Final = 60
REPLACED: Final = "p/22222222-2222-3333-4444-555555555555"


@dataclass(slots=True)
class Remembering(Destination):
    """A destination that remembers what was in each transaction."""

    contents: list[tuple[Progress, list[ChangeBatch | ControlEvent]]] = field(default_factory=list)

    def commit(self, token: object, items: list[ChangeBatch | ControlEvent], progress: Progress) -> bool:
        took_place = Destination.commit(self, token, items, progress)
        if took_place:
            self.contents.append((progress, items))
        return took_place

    def described(self) -> list[tuple[object, ...]]:
        """Return the end of each transaction, and before it its rows and events."""
        found: list[tuple[object, ...]] = []
        for progress, items in self.contents:
            found += [each for item in items for each in described(item)]
            found.append((progress,))
        return found


def described(item: ChangeBatch | ControlEvent) -> list[tuple[object, ...]]:
    """Return an item as plain values; when a gap was noticed is left out."""
    match item:
        case ChangeBatch():
            rows = zip(item.row_index.to_pylist(), map(str, item.rows.to_pylist()), strict=True)
            return [(item.table_id, item.version, item.task, *row) for row in rows]
        case SchemaChange():
            return [("schema", item.version, item.changes, str(item.after))]
        case Gap():
            return [("gap", item.first_version, item.version, item.reason, item.snapshot)]


class History(Growing):
    """A table with commits of many kinds; `damage` takes something away."""

    def step(self, draw: random.Random) -> None:
        """Commit something."""
        match draw.choice(("rows",) * 12 + ("nothing", "column", "remove", "vector", "large", "replace", "pair")):
            case "rows":
                files = [range(start, start + draw.randint(0, 4)) for start in range(draw.randint(1, 3))]
                self.insert(*files)
            case "nothing":
                self.commit({"commitInfo": {"timestamp": 1, "operation": "OPTIMIZE"}})
            case "column":
                self.add_column(f"c{self.version}")
            case "remove":
                self.commit(*map(self.remove, self.insert_two()))
            case "vector":
                name = self.data(f"{self.version}-v.parquet", range(9))
                self.commit(self.add(name))
                marked = self.vector(self.version, [draw.randrange(9)])
                self.commit(self.remove(name), self.add(name, marked))
            case "large":
                self.insert([draw.getrandbits(60) for _ in range(500)])
            case "replace":
                self.metadata = {**self.metadata, "id": REPLACED.removeprefix("p/")}
                self.commit({"metaData": self.metadata})
            case "pair":
                old, new = self.insert_two()
                self.commit(self.remove(old), self.add(self.data(f"{self.version}-n.parquet", range(3)), None))
                self.commit(self.remove(new))

    def insert_two(self) -> list[str]:
        """Commit two files; return their names."""
        version = self.insert(range(3), range(2))
        return [f"{version}-{number}.parquet" for number in range(2)]

    def damage(self, draw: random.Random) -> None:
        """Take something away."""
        version = draw.randint(1, self.version)
        match draw.choice(("file", "file", "commit", "text", "nothing")):
            case "file":
                names = [action["add"]["path"] for action in self.actions(version) if "add" in action]
                if names:
                    (self.path / names[-1]).unlink(missing_ok=True)
            case "commit":
                self.commit_file(version).unlink()
            case "text":
                self.commit_file(version).write_text('{"add": {"path":')

    def actions(self, version: int) -> list[dict[str, Any]]:
        """Return the actions of a commit."""
        return [json.loads(line) for line in self.commit_file(version).read_text().splitlines()]


async def outcome(table: Growing, sink: Sink, engine: Engine, **settings: Any) -> str:
    """Deliver all there is; return the error."""
    try:
        with anyio.fail_after(300):
            await pipeline(table, sink, until="latest", engine=engine, **settings).run()
    except TailerError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def engine(rules: PairingRules | None) -> Engine:
    return LocalEngine(2) if rules is None else ChangelogEngine(LocalEngine(2), rules)


@pytest.mark.parametrize("seed", SEEDS)
async def test_random_histories(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    table = History(tmp_path / "table")
    while table.version < VERSIONS:
        table.step(draw)
    if draw.random() < 0.6:
        table.damage(draw)
    monkeypatch.setattr(tailer.engine.look_ahead, "_WORTH_BYTES", 4000)
    divided = draw.random() < 0.3
    if divided:
        monkeypatch.setattr(tailer.engine.local, "READ_BYTES", draw.choice((100, 1000)))
    limits = draw.choice(
        ({}, {"max_versions": draw.randint(1, 9)}, {"max_rows": draw.randint(1, 40)}, {"max_bytes": 900})
    )
    loss = draw.choice((OnDataLoss.FAIL, OnDataLoss.FAIL, OnDataLoss.SKIP, OnDataLoss.RESNAPSHOT))
    change = draw.choice((OnSchemaChange.EVOLVE, OnSchemaChange.EVOLVE, OnSchemaChange.FAIL))
    columns = draw.choice(((), (), ("id",)))
    settings = {**limits, "policy": Policy(columns, on_data_loss=loss, on_schema_change=change)}
    rules = draw.choice((None, PairingRules(), PairingRules(compute_updates=True, key=("id",))))
    make = draw.choice((Together, TogetherWhole))
    alone, together = Remembering(), Remembering()
    sink = make(together)
    error = await outcome(table, sink, engine(rules), **settings)
    monkeypatch.setattr(tailer.engine.look_ahead, "_MOST_VERSIONS", 1)
    assert await outcome(table, make(alone), engine(rules), **settings) == error
    assert together.described() == alone.described()
    if not (error or limits or divided):
        assert max(len({batch.version for batch in group}) for group in sink.taken) > 1


@pytest.fixture(autouse=True)
def plans_in_any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan a backlog in the same steps on a slow machine."""
    monkeypatch.setattr(tailer.engine.look_ahead, "_MOST_S", 60.0)


async def deliver(table: Growing, sink: Sink, **settings: Any) -> None:
    with anyio.fail_after(300):
        await pipeline(table, sink, until="latest", **settings).run()


def small(path: Path, versions: int = 30) -> Growing:
    """Make a table of versions with a row each."""
    table = Growing(path)
    for version in range(1, versions + 1):
        table.insert([version])
    return table


async def test_a_backlog_is_written_in_few_steps(tmp_path: Path) -> None:
    table, destination = small(tmp_path / "table"), Destination()
    sink = Together(destination)
    await deliver(table, sink)
    assert destination.delivered() == table.rows()
    assert [len(group) for group in sink.taken] == [30], "version 0 has no rows, and may have been all there is"


async def test_nothing_is_held_back_while_following(tmp_path: Path) -> None:
    """Each version is committed when it is there, also if others came before."""
    table, destination = small(tmp_path / "table"), Destination()
    following = pipeline(table, Together(destination), max_seconds=3600.0)
    async with anyio.create_task_group() as group:
        group.start_soon(following.run)
        for _ in range(3):
            await become(lambda: destination.delivered() == table.rows())
            table.insert([table.version])
            table.insert([table.version])
        await become(lambda: destination.delivered() == table.rows())
        following.stop()


async def test_it_continues_after_any_row(tmp_path: Path) -> None:
    table = small(tmp_path / "table", 6)
    for version in range(7):
        destination = Destination()
        sink = Together(destination)
        await sink.reset(Progress(APP, Position.end(version)))
        await deliver(table, sink)
        assert destination.delivered() == table.rows(version + 1)


class Stopping(Together):
    """A sink that stops its pipeline at the end of the first transaction after two steps."""

    stop: Any = None

    @asynccontextmanager
    async def begin(self, app_id: str, schema: Any) -> AsyncIterator[Any]:
        async with super().begin(app_id, schema) as transaction:
            yield transaction
            if len(self.taken) > 2:
                self.stop()


async def test_a_stop_ends_after_a_step(tmp_path: Path) -> None:
    table, destination = small(tmp_path / "table", 40), Destination()
    sink = Stopping(destination)
    following = pipeline(table, sink, max_versions=8)
    sink.stop = following.stop
    with anyio.fail_after(300):
        await following.run()
    assert destination.ends() == [7, 15, 23]
    assert destination.delivered() == table.rows(0, 23)


class StoppingInside(TogetherWhole):
    """A sink of whole versions that stops its pipeline with its third step."""

    stop: Callable[[], None]

    @asynccontextmanager
    async def begin(self, app_id: str, schema: Any) -> AsyncIterator[Any]:
        async with super().begin(app_id, schema) as transaction:
            yield StoppingTransaction(transaction, self)


class StoppingTransaction(TransactionWrapper):
    writes_together = True

    def __init__(self, inside: SinkTransaction, sink: StoppingInside) -> None:
        super().__init__(inside)
        self._sink = sink

    async def write_all(self, batches: Sequence[ChangeBatch]) -> None:
        await self._transaction.write_all(batches)
        if len(self._sink.taken) == 3:
            self._sink.stop()


async def test_a_stop_ends_between_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the last step had the end of one and the beginning of the next."""
    table, destination = Growing(tmp_path / "table"), Destination()
    for number in range(10):
        table.insert([number], [number], [number])
    sink = StoppingInside(destination)
    following = pipeline(table, sink)
    sink.stop = following.stop
    monkeypatch.setattr(tailer.pipeline.sink_writer, "AHEAD_BYTES", 200)
    with anyio.fail_after(300):
        await following.run()
    assert all(position.closes_version for position, _ in destination.transactions)
    assert destination.delivered() == table.rows(0, destination.ends()[-1])


async def test_a_lost_file_is_found_again_alone(tmp_path: Path) -> None:
    """The error names the version, all before it are committed, and none after it."""
    table, destination = small(tmp_path / "table"), Destination()
    (table.path / "17-0.parquet").unlink()
    with pytest.raises(FileVacuumed) as found:
        await deliver(table, TogetherWhole(destination))
    assert found.value.version == 17
    assert destination.delivered() == table.rows(0, 16)


async def test_rows_that_the_sink_took_before_an_error_come_again(tmp_path: Path) -> None:
    table, destination = small(tmp_path / "table"), Destination()
    sink = Failing(destination)
    await deliver(table, sink)
    assert sink.failed
    assert destination.delivered() == table.rows()


class Failing(Together):
    """A sink of which the first step with several versions fails at its end."""

    failed = False

    @asynccontextmanager
    async def begin(self, app_id: str, schema: Any) -> AsyncIterator[Any]:
        async with super().begin(app_id, schema) as transaction:
            yield FailingTransaction(transaction, self)


class FailingTransaction(TransactionWrapper):
    writes_together = True

    def __init__(self, inside: SinkTransaction, sink: Failing) -> None:
        super().__init__(inside)
        self._sink = sink

    async def write_all(self, batches: Sequence[ChangeBatch]) -> None:
        await self._transaction.write_all(batches)
        if len(batches) > 1 and not self._sink.failed:
            self._sink.failed = True
            raise SinkUnavailable("memory", "it failed")


class Impatient(MemorySink):
    """A sink with a very short limit for idle transactions."""

    demands: Final = Demands(max_quiet_s=0.05)


class Slow(LocalEngine):
    """An engine that reads versions after the first one only when it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.may = anyio.Event()

    @asynccontextmanager
    async def run(
        self, plans: Sequence[ChangePlan], after: Position | None = None
    ) -> AsyncIterator[AsyncIterator[ChangeBatch]]:
        if plans[0].version > 0:
            await self.may.wait()
        async with super().run(plans, after) as batches:
            yield batches


async def test_what_is_there_is_committed_while_the_rest_is_read(tmp_path: Path) -> None:
    table, destination, engine = small(tmp_path / "table"), Destination(), Slow()
    following = pipeline(table, Impatient("memory", destination), until="latest", engine=engine)
    async with anyio.create_task_group() as group:
        group.start_soon(following.run)
        await become(lambda: destination.ends() == [0])
        engine.may.set()
    assert destination.delivered() == table.rows()


class Refusing(Together):
    """A sink that refuses a version."""

    refused: Final = 15

    @asynccontextmanager
    async def begin(self, app_id: str, schema: Any) -> AsyncIterator[Any]:
        async with super().begin(app_id, schema) as transaction:
            yield RefusingTransaction(transaction, self.refused)


class RefusingTransaction(TransactionWrapper):
    writes_together = True

    def __init__(self, inside: SinkTransaction, refused: int) -> None:
        super().__init__(inside)
        self._refused = refused

    async def write(self, batch: ChangeBatch) -> None:
        await self.write_all([batch])

    async def write_all(self, batches: Sequence[ChangeBatch]) -> None:
        if any(batch.version == self._refused for batch in batches):
            raise SinkRejected("memory", "it does not fit")
        await self._transaction.write_all(batches)


@pytest.mark.parametrize("limits", [{}, {"max_versions": 8}], ids=str)
async def test_versions_before_a_refused_one_are_delivered(tmp_path: Path, limits: dict[str, Any]) -> None:
    """Also those that are in the first step of a transaction, with the refused one."""
    table, destination = small(tmp_path / "table", 9), Destination()
    table.add_column("more")
    for version in range(11, 31):
        table.insert([version])
    with pytest.raises(SinkRejected):
        await deliver(table, Refusing(destination), **limits)
    assert destination.delivered() == table.rows(0, 14)


class RefusingWhole(Refusing, TogetherWhole):
    """A sink of whole versions that refuses one."""


async def test_a_version_that_is_refused_alone_is_not_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where a limit ends the transaction with it."""
    table, destination = small(tmp_path / "table"), Destination()
    with pytest.raises(SinkRejected):
        await deliver(table, RefusingWhole(destination), max_rows=1)
    assert destination.delivered() == table.rows(0, 14)
    assert "one version at a time" not in caplog.text


async def test_any_error_comes_where_its_version_is_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that nobody expects, too."""
    table, destination = small(tmp_path / "table"), Destination()

    def failing(task: ChangeTask, *more: Any, **named: Any) -> Iterator[ChangeBatch]:
        if task.version == 17:
            raise RuntimeError("nobody expects it")
        return execute(task, *more, **named)

    monkeypatch.setattr("tailer.engine.local.execute", failing)
    with pytest.raises(RuntimeError, match="nobody expects it"):
        await deliver(table, Together(destination), max_versions=4)
    assert destination.ends() == [3, 7, 11, 15]


async def test_without_room_no_more_is_read_than_its_sink_waits_for(tmp_path: Path) -> None:
    table, destination = small(tmp_path / "table"), Destination()
    sink = Together(destination)
    await deliver(table, sink, engine=LocalEngine(ahead_bytes=0))
    assert destination.delivered() == table.rows()
    assert {len(group) for group in sink.taken} == {1}


async def test_a_sink_that_takes_one_batch_at_a_time_gets_one_version_at_a_time(tmp_path: Path) -> None:
    """Between two of them, limits and a stop count."""
    table, lines = small(tmp_path / "table"), StoppingLines()
    following = pipeline(table, Recorded(lines, MemoryProgressStore("memory")), until="latest")
    lines.stop_at, lines.stop = 20, following.stop
    with anyio.fail_after(300):
        await following.run()
    assert lines.rows == table.rows(0, 20)


class StoppingLines(streams.Lines):
    """A destination that stops its pipeline with a version."""

    stop_at: int
    stop: Callable[[], None]

    async def write(self, batch: ChangeBatch) -> None:
        await super().write(batch)
        if batch.version == self.stop_at:
            self.stop()


class Strict(streams.Lines):
    """A destination that takes all batches of a step or none."""

    writes_together = True

    def __init__(self, refused: int) -> None:
        super().__init__()
        self._refused = refused

    async def write(self, batch: ChangeBatch) -> None:
        await self.write_all([batch])

    async def write_all(self, batches: Sequence[ChangeBatch]) -> None:
        if any(batch.version == self._refused for batch in batches):
            raise SinkRejected("lines", "it does not fit")
        for batch in batches:
            await super().write(batch)


@pytest.mark.parametrize("refused", [1, 15, 129, 140])
async def test_also_a_destination_without_transactions_gets_those_before_a_refused_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, refused: int
) -> None:
    """In the same session: nothing that it has is handed over again, now or after a restart.

    The refused version is in the middle of a step, or its first one.
    """
    table, lines, store = small(tmp_path / "table", 140), Strict(refused), MemoryProgressStore("memory")
    with pytest.raises(SinkRejected):
        await deliver(table, Recorded(lines, store))
    assert lines.rows == table.rows(0, refused - 1)
    assert await store.progress(APP) == Progress(APP, Position.end(refused - 1))
    assert "one version at a time" not in caplog.text


class StrictAndStopping(Strict, StoppingLines):
    """A destination that refuses a version, and stops its pipeline with an earlier one."""


async def test_a_stop_counts_between_versions_of_a_refused_step(tmp_path: Path) -> None:
    table, lines, store = small(tmp_path / "table", 140), StrictAndStopping(100), MemoryProgressStore("memory")
    following = pipeline(table, Recorded(lines, store), until="latest")
    lines.stop_at, lines.stop = 5, following.stop
    with anyio.fail_after(300):
        await following.run()
    assert lines.rows == table.rows(0, 5)
    assert await store.progress(APP) == Progress(APP, Position.end(5))
