"""Backfills: the rows of a version between two versions, once and whole, whatever fails meanwhile."""

import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from deltalake import DeltaTable

from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.rules import PairingRules
from tailer.engine.local import LocalEngine
from tailer.errors import ConfigError, FileVacuumed, SinkFenced, VersionGone
from tailer.events import ChangeBatch, Gap
from tailer.formats.delta.table import DeltaTableLog
from tailer.pipeline.backfill.command import BackfillCommand, BackfillPhase
from tailer.pipeline.loop import Pipeline
from tailer.pipeline.policy import Limits, OnDataLoss, Policy
from tailer.pipeline.row_delivery import row_pipeline
from tailer.pipeline.status import PipelineState, PipelineStatus
from tailer.plan import SNAPSHOT_TASKS, Position
from tailer.sink import Progress, Sink, app_id_of, backfill_name
from tailer.start import Start
from tailer.stores.local import LocalStore
from tailer.stores.wakeup import TimerWake
from tailer_sinks.files.sink import FilesSink
from tailer_sinks.sql.sink import SqlSink
from tailer_sinks.testing.faults import Fault, FaultySink, Kind, Step
from tests.support.mirrors.databases import verified
from tests.support.seeds import seeds
from tests.support.streams import APP, Destination, Growing, WholeVersions, become
from tests.support.tables.handwritten import HandwrittenTable

pytestmark = pytest.mark.anyio

LONG_S: Final = 3600.0


class Kept:
    """The orders of a pipeline as a daemon keeps them over its restarts."""

    def __init__(self) -> None:
        self.order: BackfillCommand | None = None
        self.fails = False

    def keep(self, order: BackfillCommand | None) -> None:
        """Keep the order, unless the disk is full."""
        if self.fails:
            raise ConfigError("orders", "the disk is full")
        self.order = order

    @property
    def is_empty(self) -> bool:
        """Return whether no order is kept."""
        return self.order is None

    def status(self) -> PipelineStatus:
        """Return the status at the start of a daemon."""
        made = PipelineStatus("p")
        made.backfills.restore(self.order, self.keep)
        return made


@pytest.fixture
def table(tmp_path: Path) -> Growing:
    """A table whose versions 1 to 4 insert two files of two rows each."""
    found = Growing(tmp_path / "t")
    for version in range(1, 5):
        found.insert([10 * version, 10 * version + 1], [10 * version + 2, 10 * version + 3])
    return found


@pytest.fixture(autouse=True)
def one_batch_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the loop see each batch."""
    monkeypatch.setattr("tailer.engine.look_ahead._AHEAD_BATCHES", 1)


@pytest.fixture
def kept() -> Kept:
    """The orders."""
    return Kept()


def make(
    table: HandwrittenTable,
    sink: Sink,
    status: PipelineStatus,
    until: str | None = "latest",
    policy: Policy | None = None,
    *,
    poll_s: float = 0.005,
    rows: int = 1,
) -> Pipeline:
    """Make a pipeline with a transaction for each batch."""
    log = DeltaTableLog(LocalStore(table.path), statistics=True)
    end = None if until is None else Start.parse(until)
    engine = ChangelogEngine(LocalEngine(2), PairingRules())
    limits = Limits(max_rows=rows, poll_interval_s=poll_s)
    begin = Start.parse("earliest")
    return row_pipeline("p", log, sink, engine, TimerWake(), begin, end, policy, limits, None, status)


async def deliver(table: HandwrittenTable, sink: Sink, status: PipelineStatus, until: str = "latest") -> None:
    with anyio.fail_after(300):
        await make(table, sink, status, until).run()


def reads(there: Destination, order: BackfillCommand | None) -> list[tuple[int, int]]:
    """Return the rows (version, id) of a backfill."""
    assert order is not None
    return there.delivered(app_id_of(backfill_name("p", order.id), APP.removeprefix("p/")))


def ids(table: Growing, last: int) -> list[int]:
    return [each for _, each in table.rows(last=last)]


async def running(run: Pipeline, until: Callable[[], bool]) -> None:
    """Run the pipeline until the condition holds."""
    async with anyio.create_task_group() as group:
        group.start_soon(run.run)
        await become(until)
        run.stop()


@pytest.mark.parametrize("where", [None, "id >= 20 AND id <> 31"])
async def test_all_rows_come_between_two_versions(table: Growing, kept: Kept, where: str | None) -> None:
    there, status = Destination(), kept.status()
    await deliver(table, there.sink(), status, "2")
    order = BackfillCommand.make(where=where)
    await status.backfills.give(order)
    await deliver(table, there.sink(), status)
    wanted = [each for each in ids(table, 2) if where is None or (each >= 20 and each != 31)]
    assert reads(there, order) == [(2, each) for each in wanted]
    assert there.delivered() == table.inserted
    versions = [position.version for position, _ in there.transactions]
    assert versions == sorted(versions)
    assert (status.backfills.phase, status.backfills.files_done) == (BackfillPhase.DONE, status.backfills.files)
    assert (status.backfills.rows, kept.order) == (len(wanted), None)
    stream = app_id_of(backfill_name("p", order.id), APP.removeprefix("p/"))
    assert there.position(stream) == Position.end(2)
    batches = [each for each in there.log[stream] if isinstance(each, ChangeBatch)]
    assert all(each.task > SNAPSHOT_TASKS + 2**32 for each in batches)  # reads, of no other snapshot


async def test_it_needs_no_commit(table: Growing, kept: Kept) -> None:
    there, status = Destination(), kept.status()
    run = make(table, there.sink(), status, None, poll_s=LONG_S)
    async with anyio.create_task_group() as group:
        group.start_soon(run.run)
        await become(lambda: status.state is PipelineState.STREAMING)
        order = BackfillCommand.make()
        await status.backfills.give(order)
        status.on_command()
        await become(lambda: status.backfills.phase is BackfillPhase.DONE)
        await become(lambda: status.state is PipelineState.STREAMING)
        run.stop()
    assert reads(there, order) == [(4, each) for each in ids(table, 4)]
    assert there.position() == Position.end(4)


async def test_a_resnapshot_needs_no_commit(table: Growing, kept: Kept) -> None:
    there, status = Destination(), kept.status()
    run = make(table, there.sink(), status, None, poll_s=LONG_S)
    async with anyio.create_task_group() as group:
        group.start_soon(run.run)
        await become(lambda: status.state is PipelineState.STREAMING)
        status.command = OnDataLoss.RESNAPSHOT
        status.on_command()
        await become(lambda: status.gaps == 1)
        run.stop()
    order = status.backfills.shown
    assert reads(there, order) == [(4, each) for each in ids(table, 4)]
    assert order is not None
    stream = app_id_of(backfill_name("p", order.id), APP.removeprefix("p/"))
    gap, *_ = there.log[stream]
    assert isinstance(gap, Gap)
    assert (gap.first_version, gap.version, gap.snapshot, gap.command) == (4, 4, True, order.id)
    assert (status.command, kept.order, there.delivered()) == (None, None, table.inserted)
    table.insert([5])
    await deliver(table, there.sink(), status)
    assert there.delivered() == table.inserted
    assert not [each for each in there.log[APP] if isinstance(each, Gap)]


@pytest.mark.parametrize("boundary", ["version", "chunk"])
async def test_a_log_that_skipped_changes_equals_the_source_after_a_resnapshot(
    table: Growing, kept: Kept, tmp_path: Path, boundary: str
) -> None:
    options = {"url": f"sqlite:///{tmp_path}/log.db", "mode": "append", "boundary": boundary}
    sink, log = SqlSink.configure("p", options), DeltaTableLog(LocalStore(table.path), statistics=True)
    await deliver(table, sink, kept.status(), "3")
    with closing(sqlite3.connect(tmp_path / "log.db")) as database, database:
        database.execute("DELETE FROM p WHERE _commit_version = 2")  # as if a skip had left them out
    assert not (await verified(sink, "p", log, Policy())).is_equal
    status = kept.status()
    for order in (BackfillCommand.make(where="id < 12"), BackfillCommand.make(announces_gap=True)):
        await status.backfills.give(order)
        await deliver(table, sink, status)
        equality = await verified(sink, "p", log, Policy())
        assert (equality.is_equal, equality.version) == (order.announces_gap, table.version)
        table.insert([50])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("nth", [1, 2, 3, 5])
@pytest.mark.parametrize("step", [Step.PROGRESS, Step.BEGIN, Step.WRITE, Step.ANNOUNCE, Step.COMMIT])
@pytest.mark.parametrize("announces_gap", [False, True])
async def test_a_fault_at_every_step(
    table: Growing, kept: Kept, step: Step, nth: int, after: bool, announces_gap: bool
) -> None:
    there, status = Destination(), kept.status()
    await deliver(table, there.sink(), status, "3")
    order = BackfillCommand.make(announces_gap=announces_gap)
    await status.backfills.give(order)
    await deliver(table, FaultySink(there.sink(), Fault(step, Kind.FAIL, nth, after)), status)
    assert reads(there, order) == [(3, each) for each in ids(table, 3)]
    stream = app_id_of(backfill_name("p", order.id), APP.removeprefix("p/"))
    assert len([each for each in there.log[stream] if isinstance(each, Gap)]) == announces_gap
    assert (there.delivered(), kept.order) == (table.inserted, None)


class _KilledError(BaseException):
    """The process ends here."""


def _kill() -> None:
    raise _KilledError


@pytest.mark.parametrize("seed", seeds(8))
async def test_killed_at_random_while_commits_go_on(table: Growing, kept: Kept, seed: int) -> None:
    """Nothing survives a kill but the sink and the orders that are kept."""
    chance, there = random.Random(seed), Destination()
    await deliver(table, there.sink(), kept.status(), str(chance.randrange(1, 4)))
    stood = there.position()
    assert stood is not None
    order = BackfillCommand.make(where=chance.choice([None, "id % 2 = 0"]))
    kept.order, number = order, 100
    for _ in range(200):
        fault = Fault(chance.choice(list(Step)), Kind.CRASH, chance.randrange(1, 6), chance.random() < 0.5)
        sink = there.sink() if kept.is_empty else FaultySink(there.sink(), fault, crash=_kill)
        try:
            await deliver(table, sink, kept.status())
        except* _KilledError:
            if chance.random() < 0.5:
                table.insert([number])
                number += 1
        if kept.is_empty:
            break
    wanted = [each for each in ids(table, stood.version) if order.where is None or each % 2 == 0]
    assert reads(there, order) == [(stood.version, each) for each in wanted]
    await deliver(table, there.sink(), kept.status())
    assert there.delivered() == table.inserted
    versions = [position.version for position, _ in there.transactions]
    assert versions == sorted(versions)


async def test_a_reader_in_order_of_arrival_has_the_table(tmp_path: Path, kept: Kept) -> None:
    """A row that is deleted after the backfill began stays deleted."""
    table, there, status = Growing(tmp_path / "t"), Destination(), kept.status()
    table.insert([1, 2, 3], [4, 5])
    await deliver(table, there.sink(), status)
    await status.backfills.give(BackfillCommand.make())
    before = len(there.transactions)

    def delete() -> None:
        if len(there.transactions) == before + 2:
            table.commit(table.remove("1-0.parquet"))

    there.then = delete
    await running(make(table, there.sink(), status, None), lambda: there.position() == Position.end(2))
    arrived = [position.version for position, count in there.transactions[before:] for _ in range(count)]
    assert arrived == [1, 1, 1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("splits", [False, True])
async def test_cancelled_halfway(table: Growing, kept: Kept, splits: bool) -> None:
    there, status = Destination(), kept.status()
    await deliver(table, there.sink(), status, "3")
    order = BackfillCommand.make()
    await status.backfills.give(order)
    fault = Fault(Step.WRITE, Kind.HOLD, 4)
    sink = (FaultySink if splits else WholeVersions)(there.sink(), fault)
    run = make(table, sink, status, None)
    async with anyio.create_task_group() as group:
        group.start_soon(run.run)
        await sink.holding.wait()
        await status.backfills.end(BackfillPhase.CANCELLED)
        sink.release()
        await become(lambda: there.position() == Position.end(4))
        run.stop()
    assert status.backfills.phase is BackfillPhase.CANCELLED
    assert 0 < len(reads(there, order)) < 12 if splits else reads(there, order) == []
    assert (there.delivered(), kept.order) == (table.inserted, None)


async def test_stopped_halfway_it_goes_on(table: Growing, kept: Kept) -> None:
    there, status = Destination(), kept.status()
    await deliver(table, there.sink(), status, "3")
    order = BackfillCommand.make()
    await status.backfills.give(order)
    sink = FaultySink(there.sink(), Fault(Step.WRITE, Kind.HOLD, 4))
    run = make(table, sink, status)
    async with anyio.create_task_group() as group:
        group.start_soon(run.run)
        await sink.holding.wait()
        run.stop()
        sink.release()
    assert 0 < len(reads(there, order)) < 12
    assert there.position() == Position.end(3)
    await deliver(table, there.sink(), kept.status())
    assert reads(there, order) == [(3, each) for each in ids(table, 3)]
    assert there.delivered() == table.inserted


@pytest.mark.parametrize("loss", ["a file of the next version", "the log up to the next version"])
async def test_stopped_halfway_before_a_loss(table: Growing, kept: Kept, tmp_path: Path, loss: str) -> None:
    """The rest of a backfill of the version before a loss comes before the snapshot, or never."""

    def sink() -> SqlSink:
        return SqlSink.configure("p", {"url": f"sqlite:///{tmp_path}/log.db", "mode": "append", "boundary": "chunk"})

    def rows(query: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(tmp_path / "log.db")) as database:
            return database.execute(query).fetchall()

    reached = "SELECT version FROM lake_tailer_mirrors"
    backfilled = f"_task >= {SNAPSHOT_TASKS + 2**32}"
    policy = Policy(on_data_loss=OnDataLoss.RESNAPSHOT)
    status = kept.status()
    await deliver(table, sink(), status, "3")
    await status.backfills.give(BackfillCommand.make())
    held = FaultySink(sink(), Fault(Step.WRITE, Kind.HOLD, 4))
    run = make(table, held, status)
    async with anyio.create_task_group() as group:
        group.start_soon(run.run)
        await held.holding.wait()
        run.stop()
        held.release()
    part = rows(f"SELECT _commit_version, id FROM p WHERE {backfilled}")
    assert 0 < len(part) < len(ids(table, 3))
    table.insert([50])
    DeltaTable(table.path).delete("id IN (10, 40, 41, 42, 43)")
    if loss == "a file of the next version":
        (table.path / "4-0.parquet").unlink()
    else:
        DeltaTable(table.path).create_checkpoint()
        for version in range(6):
            table.commit_file(version).unlink()
    status = kept.status()
    there = sink()
    await running(make(table, there, status, None, policy), lambda: rows(reached) == [(6,)] and kept.is_empty)
    whole = loss == "a file of the next version"
    assert status.backfills.phase is (BackfillPhase.DONE if whole else BackfillPhase.FAILED)
    assert whole or isinstance(status.backfills.error, VersionGone)
    found = rows(f"SELECT _commit_version, id FROM p WHERE {backfilled} ORDER BY rowid")
    assert found == ([(3, each) for each in ids(table, 3)] if whole else part)
    ordered = rows(f"SELECT {backfilled}, _change_type, id FROM p ORDER BY rowid")
    gap = next(at for at, row in enumerate(ordered) if row[1] == "gap")
    assert not any(is_backfilled for is_backfilled, _, _ in ordered[gap:])
    left = sorted({*ids(table, 5)} - {10, 40, 41, 42, 43})
    assert sorted(each for _, kind, each in ordered[gap:] if kind == "insert") == left
    found_equal = await verified(there, "p", DeltaTableLog(LocalStore(table.path), statistics=True), policy)
    assert (found_equal.is_equal, found_equal.version) == (True, 6)


FAILURES: Final[list[tuple[dict[str, Any], type[Exception], str]]] = [
    ({"where": "colour = 'red'"}, ConfigError, "colour"),
    ({"where": "id = 1) OR (id = 2"}, ConfigError, "where"),
    ({"version": 9}, ConfigError, "version 9 comes after version 4"),
    ({"version": 1}, VersionGone, "is missing from the log"),
    ({"version": 4}, FileVacuumed, "3-0.parquet"),
]


@pytest.mark.parametrize(("order", "kind", "text"), FAILURES)
async def test_one_that_cannot_be_done_fails_alone(
    table: Growing, kept: Kept, order: dict[str, Any], kind: type[Exception], text: str
) -> None:
    there, status = Destination(), kept.status()
    await deliver(table, there.sink(), status)
    if kind is VersionGone:
        DeltaTable(table.path).create_checkpoint()
        for version in range(4):
            table.commit_file(version).unlink()
    if kind is FileVacuumed:
        (table.path / "3-0.parquet").unlink()
    await status.backfills.give(BackfillCommand.make(**order))
    table.insert([50])
    await running(make(table, there.sink(), status, None), lambda: there.position() == Position.end(5))
    assert (status.backfills.phase, kept.order) == (BackfillPhase.FAILED, None)
    assert isinstance(status.backfills.error, kind)
    assert text in str(status.backfills.error)
    assert there.delivered() == table.inserted


async def test_an_older_version(table: Growing, kept: Kept) -> None:
    there, status = Destination(), kept.status()
    await deliver(table, there.sink(), status)
    order = BackfillCommand.make(2, "id > 11")
    await status.backfills.give(order)
    await deliver(table, there.sink(), status)
    await running(make(table, there.sink(), status, None), lambda: status.backfills.phase is BackfillPhase.DONE)
    assert reads(there, order) == [(2, each) for each in ids(table, 2) if each > 11]


async def test_both_conditions_count(table: Growing, kept: Kept) -> None:
    there, status = Destination(), kept.status()
    policy = Policy(where="id < 30 -- not more")
    await make(table, there.sink(), status, "4", policy).run()
    order = BackfillCommand.make(where="id > 20 OR id < 11")
    await status.backfills.give(order)
    run = make(table, there.sink(), status, None, policy)
    await running(run, lambda: status.backfills.phase is BackfillPhase.DONE)
    assert [each for _, each in reads(there, order)] == [10, 21, 22, 23]


async def test_another_condition_does_not_finish_it(table: Growing, kept: Kept) -> None:
    there, status = Destination(), kept.status()
    await deliver(table, there.sink(), status)
    await status.backfills.give(BackfillCommand.make())
    sink = FaultySink(there.sink(), Fault(Step.WRITE, Kind.HOLD, 4))
    run = make(table, sink, status, None)
    async with anyio.create_task_group() as group:
        group.start_soon(run.run)
        await sink.holding.wait()
        run.stop()
        sink.release()
    run = make(table, there.sink(), status, None, Policy(where="id > 11"))
    await running(run, lambda: status.backfills.phase is BackfillPhase.FAILED)
    assert "with another where, select or columns" in str(status.backfills.error)


async def test_an_instance_that_delivers_meanwhile_ends_it(table: Growing, kept: Kept) -> None:
    there, status = Destination(), kept.status()
    await deliver(table, there.sink(), status, "3")
    order = BackfillCommand.make()
    await status.backfills.give(order)
    sink = FaultySink(there.sink(), Fault(Step.WRITE, Kind.HOLD, 4))
    run = make(table, sink, status)
    with pytest.RaisesGroup(pytest.RaisesExc(SinkFenced, match="during its backfill")):
        async with anyio.create_task_group() as group:
            group.start_soon(run.run)
            await sink.holding.wait()
            there.progress[APP] = Progress(APP, Position.end(4))  # by another instance, which knows of no backfill
            sink.release()
    assert len(reads(there, order)) == 6


async def test_it_waits_for_the_rest_of_a_version(table: Growing, kept: Kept) -> None:
    there, status = Destination(), kept.status()
    await deliver(table, there.sink(), status, "3")
    sink = FaultySink(there.sink(), Fault(Step.WRITE, Kind.HOLD, 2))
    run = make(table, sink, status)
    async with anyio.create_task_group() as group:
        group.start_soon(run.run)
        await sink.holding.wait()
        group.cancel_scope.cancel()
    assert (at := there.position()) is not None
    assert at.is_inside
    order = BackfillCommand.make()
    await status.backfills.give(order)
    await running(make(table, there.sink(), status, None), lambda: status.backfills.phase is BackfillPhase.DONE)
    assert there.delivered() == table.inserted
    assert reads(there, order) == [(4, each) for each in ids(table, 4)]


async def test_an_order_that_cannot_be_kept_is_refused(table: Growing, kept: Kept) -> None:
    there, status = Destination(), kept.status()
    kept.fails = True
    with pytest.raises(ConfigError, match="the disk is full"):
        await status.backfills.give(BackfillCommand.make())
    await deliver(table, there.sink(), status)
    status.command = OnDataLoss.RESNAPSHOT
    await running(make(table, there.sink(), status, None), lambda: status.backfills.phase is BackfillPhase.FAILED)
    assert there.delivered() == table.inserted


async def test_a_mirror_takes_a_whole_snapshot_alone(table: Growing, kept: Kept, tmp_path: Path) -> None:
    """A condition would say of no other row whether the mirror has it."""

    def run(until: str | None) -> Pipeline:
        sink = SqlSink.configure("p", {"url": f"sqlite:///{tmp_path}/mirror.db", "key": ["id"]})
        return make(table, sink, status, until)

    def mirrored() -> list[int]:
        with closing(sqlite3.connect(tmp_path / "mirror.db")) as database:
            return [each for (each,) in database.execute("SELECT id FROM p ORDER BY id")]

    status = kept.status()
    await run("latest").run()
    await status.backfills.give(BackfillCommand.make(where="id > 20"))
    await running(run(None), lambda: status.backfills.phase is BackfillPhase.FAILED)
    assert "a mirror, which has all rows" in str(status.backfills.error)
    with closing(sqlite3.connect(tmp_path / "mirror.db")) as database, database:
        database.execute("DELETE FROM p WHERE id > 20")
        database.execute("INSERT INTO p (id) VALUES (5)")
    status.command = OnDataLoss.RESNAPSHOT
    await running(run(None), lambda: status.backfills.phase is BackfillPhase.DONE)
    assert mirrored() == ids(table, 4)
    table.insert([50])
    await run("latest").run()
    assert mirrored() == ids(table, 5)


async def test_a_snapshot_of_a_mirror_ends_if_the_pipeline_is_past_it(
    table: Growing, kept: Kept, tmp_path: Path
) -> None:
    """The daemon was down in the middle of the snapshot, and then changes were lost."""

    def run(status: PipelineStatus | None, until: str | None) -> Pipeline:
        sink = SqlSink.configure("p", {"url": f"sqlite:///{tmp_path}/mirror.db", "key": ["id"]})
        return make(table, sink, status or PipelineStatus("p"), until, Policy(on_data_loss=OnDataLoss.RESNAPSHOT))

    await run(None, "latest").run()
    kept.order = BackfillCommand.make(4, announces_gap=True)
    table.insert([50])
    table.insert([60])
    DeltaTable(table.path).create_checkpoint()
    for version in range(6):
        table.commit_file(version).unlink()
    status = kept.status()
    await running(run(status, None), lambda: kept.is_empty)
    assert "snapshot of version 4, and the pipeline is at version 6" in str(status.backfills.error)
    with closing(sqlite3.connect(tmp_path / "mirror.db")) as database:
        assert [each for (each,) in database.execute("SELECT id FROM p ORDER BY id")] == ids(table, 6)


async def test_files_of_a_backfill_are_in_a_folder_of_its_own(table: Growing, kept: Kept, tmp_path: Path) -> None:
    status = kept.status()
    await deliver(table, FilesSink("files", tmp_path / "out"), status)
    order = BackfillCommand.make()
    await status.backfills.give(order)
    run = make(table, FilesSink("files", tmp_path / "out"), status, None)
    await running(run, lambda: status.backfills.phase is BackfillPhase.DONE)
    folder = tmp_path / "out" / "p" / f"~backfill-{order.id}" / APP.removeprefix("p/")
    lines = [line for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]
    assert len(lines) == 16
