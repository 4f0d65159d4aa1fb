"""The pipeline loop: versions per transaction, start, end, resumption and stop. Faults are in `tests/faults`."""

import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pytest
from anyio import to_thread

import tailer.engine.local
from tailer.engine.local import LocalEngine
from tailer.errors import (
    ConfigError,
    SinkRejected,
    StorageRefused,
    StorageUnavailable,
    TableReplaced,
    TailerError,
    VersionAhead,
    VersionGone,
)
from tailer.events import ChangeBatch, ControlEvent
from tailer.formats.delta.table import DeltaTableLog
from tailer.pipeline.loop import Pipeline
from tailer.pipeline.policy import Limits, Policy
from tailer.pipeline.row_delivery import row_pipeline
from tailer.pipeline.status import PipelineState, PipelineStatus
from tailer.plan import Position
from tailer.sink import Progress, SinkTransaction, TransactionWrapper
from tailer.start import Start
from tailer.stores.local import LocalStore
from tailer.stores.wakeup import TimerWake, Wake
from tailer_sinks.memory import MemorySink
from tailer_sinks.testing import FaultySink
from tailer_sinks.testing.faults import Fault, Kind, Step
from tests.support.streams import APP, Destination, Growing, WholeVersions, become, pipeline

pytestmark = pytest.mark.anyio

LONG_S = 3600.0
COLUMNS = [("id", "long"), ("x", "string")]
FIELDS = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in COLUMNS]
WIDE = json.dumps({"type": "struct", "fields": FIELDS})


@pytest.fixture
def table(tmp_path: Path) -> Growing:
    """Make a table whose version 0 has no rows, and versions 1 to 9 three each."""
    found = Growing(tmp_path / "t")
    for version in range(1, 10):
        found.insert(range(10 * version, 10 * version + 3))
    return found


@pytest.fixture
def many_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divide work into many batches, as for a large version."""
    monkeypatch.setattr(tailer.engine.local, "READ_BYTES", 1)
    monkeypatch.setattr(tailer.engine.local, "CHUNK_BYTES", 1)


class TestGrouping:
    @pytest.mark.parametrize(
        ("limits", "ends"),
        [
            ({}, [9]),
            ({"max_versions": 1}, list(range(10))),
            ({"max_versions": 4}, [3, 7, 9]),
            ({"max_rows": 6}, [2, 4, 6, 8, 9]),
            ({"max_rows": 7}, [3, 6, 9]),
            ({"max_bytes": 1}, [1, 2, 3, 4, 5, 6, 7, 8, 9]),
            ({"max_seconds": 0}, list(range(10))),
        ],
        ids=str,
    )
    async def test_small_versions_share_a_transaction_within_the_limits(
        self, table: Growing, limits: dict[str, Any], ends: list[int]
    ) -> None:
        there = Destination()
        await pipeline(table, WholeVersions(there.sink()), until="latest", **limits).run()
        assert there.ends() == ends
        assert all(position.closes_version for position, _ in there.transactions)
        assert there.delivered() == table.rows()

    async def test_caught_up_means_commit_now(self, table: Growing) -> None:
        there = Destination()
        following = pipeline(table, there.sink(), max_seconds=LONG_S)
        async with anyio.create_task_group() as group:
            group.start_soon(following.run)
            await become(lambda: there.position() == Position.end(9))
            assert there.delivered() == table.rows()
            table.insert([100])
            table.insert([110])
            await become(lambda: there.position() == Position.end(11))
            following.stop()
        assert there.delivered() == table.rows()

    async def test_another_schema_begins_another_transaction(self, table: Growing) -> None:
        table.metadata["schemaString"] = WIDE
        name = table.data("wide.parquet", [7], x=["seven"])
        table.inserted.append((table.commit({"metaData": table.metadata}, table.add(name)), 7))
        table.insert([8])
        there = Destination()
        await pipeline(table, there.sink(), until="latest").run()
        assert there.ends() == [9, 11]
        assert there.delivered() == table.rows()
        assert [row.get("x") for row in there.rows(APP)][-3:] == [None, "seven", None]

    async def test_a_version_without_changes_moves_progress(self, table: Growing) -> None:
        name = table.data("compacted.parquet", [1, 2])
        table.commit(table.add(name, dataChange=False))
        there = Destination()
        await pipeline(table, there.sink(), until="latest").run()
        assert there.position() == Position.end(10)
        assert there.delivered() == table.rows()


@pytest.mark.usefixtures("many_batches")
class TestSplitting:
    @pytest.fixture
    def large(self, tmp_path: Path) -> Growing:
        """Make a table whose version 1 has 60 batches of 10 rows in three files, between small versions."""
        found = Growing(tmp_path / "large")
        found.insert(*(range(1000 * n, 1000 * n + 200) for n in range(3)), row_group_size=10)
        found.insert([7])
        return found

    async def test_a_large_version_is_split_where_the_sink_can(self, large: Growing) -> None:
        there = Destination()
        await pipeline(large, there.sink(), until="latest", max_rows=45).run()
        inside = [(position, rows) for position, rows in there.transactions if not position.closes_version]
        assert inside[:5] == [
            (Position(1, 0, 49), 50),
            (Position(1, 0, 99), 50),
            (Position(1, 0, 149), 50),
            (Position(1, 0, 199), 50),
            (Position(1, 1, 49), 50),
        ]
        assert there.position() == Position.end(2)
        assert there.delivered() == large.rows()

    async def test_a_sink_that_cannot_gets_it_whole(self, large: Growing) -> None:
        there = Destination()
        await pipeline(large, WholeVersions(there.sink()), until="latest", max_rows=45).run()
        assert there.transactions == [(Position.end(1), 600), (Position.end(2), 1)]
        assert there.delivered() == large.rows()

    @pytest.mark.parametrize("start", ["earliest", "snapshot"])
    async def test_it_goes_on_from_any_position(self, large: Growing, start: str) -> None:
        large.insert(range(5000, 5100), row_group_size=10)
        whole, there = Destination(), Destination()
        await pipeline(large, whole.sink(), start, until="latest").run()
        seen: list[Position] = []
        while there.position() != Position.end(4):
            with anyio.CancelScope() as scope:
                there.then = scope.cancel
                await pipeline(large, there.sink(), start, max_rows=70).run()
            seen.extend(filter(None, [there.position()]))
            if len(seen) == 1:
                large.insert([8])
        assert seen == sorted(set(seen))
        assert len(seen) > 9
        assert any(position.in_snapshot for position in seen) == (start == "snapshot")
        assert there.rows(APP)[:-1] == whole.rows(APP)
        assert there.delivered()[-1] == (4, 8)


class TestStart:
    async def test_earliest(self, table: Growing) -> None:
        there = Destination()
        await pipeline(table, there.sink(), "earliest", "latest").run()
        assert there.delivered() == table.rows()

    @pytest.mark.parametrize(("first", "last"), [(4, 6), (0, 0), (9, 9)])
    async def test_versions(self, table: Growing, first: int, last: int) -> None:
        there = Destination()
        await pipeline(table, there.sink(), str(first), str(last)).run()
        assert there.delivered() == table.rows(first, last)
        assert there.position() == Position.end(last)

    async def test_a_snapshot_then_changes(self, table: Growing) -> None:
        there = Destination()
        following = pipeline(table, there.sink(), "snapshot")
        async with anyio.create_task_group() as group:
            group.start_soon(following.run)
            await become(lambda: there.position() == Position.end(9))
            table.insert([100], [101])
            await become(lambda: there.position() == Position.end(10))
            following.stop()
        rows = there.rows(APP)
        assert [row["id"] for row in rows] == [each for _, each in table.rows()]
        assert {row["_commit_version"] for row in rows} == {9, 10}

    async def test_a_snapshot_of_a_table_without_rows(self, tmp_path: Path) -> None:
        there = Destination()
        await pipeline(Growing(tmp_path / "t"), there.sink(), "snapshot", "latest").run()
        assert there.transactions == [(Position.end(0), 0)]

    async def test_latest_is_recorded_at_once_and_survives_a_restart(self, table: Growing) -> None:
        there = Destination()
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(pipeline(table, there.sink(), "latest").run)
                await become(lambda: there.position() is not None)
                scope.cancel()
        assert there.transactions == [(Position.end(9), 0)]
        table.insert([100])
        await pipeline(table, there.sink(), "latest", "latest").run()
        assert there.delivered() == [(10, 100)]

    async def test_latest_up_to_latest_is_nothing(self, table: Growing) -> None:
        there = Destination()
        await pipeline(table, there.sink(), "latest", "latest").run()
        assert there.transactions == [(Position.end(9), 0)]

    async def test_progress_overrides_the_start(self, table: Growing) -> None:
        there = Destination()
        await there.sink().reset(Progress(APP, Position.end(5)))
        await pipeline(table, there.sink(), "snapshot", "latest").run()
        assert there.delivered() == table.rows(6)

    @pytest.mark.parametrize("start", ["10", "latest", "snapshot"])
    async def test_only_some_columns(self, table: Growing, start: str) -> None:
        table.metadata["schemaString"] = WIDE
        table.commit({"metaData": table.metadata}, table.add(table.data("10.parquet", [7], x=["seven"])))
        there = Destination()
        await pipeline(table, there.sink(), start, "latest", policy=Policy(("x",))).run()
        table.commit(table.add(table.data("11.parquet", [8], x=["eight"])))
        await pipeline(table, there.sink(), start, "latest", policy=Policy(("x",))).run()
        rows = there.rows(APP)
        assert {tuple(row) for row in rows} == {("x", "_change_type", "_commit_version", "_commit_timestamp")}
        assert rows[-1]["x"] == "eight"

    @pytest.mark.parametrize("start", ["earliest", "latest", "snapshot", "5"])
    async def test_a_missing_column_is_named_and_nothing_is_recorded(self, table: Growing, start: str) -> None:
        there = Destination()
        with pytest.raises(ConfigError, match="no column 'nme'"):
            await pipeline(table, there.sink(), start, policy=Policy(("id", "nme"))).run()
        assert there.transactions == []

    @pytest.mark.parametrize(
        ("start", "until"), [("5", "4"), ("5", "2"), ("latest", "8"), ("snapshot", "8"), ("snapshot", "3")]
    )
    async def test_an_end_before_the_start_is_refused_and_nothing_recorded(
        self, table: Growing, start: str, until: str
    ) -> None:
        there = Destination()
        with pytest.raises(ConfigError, match="comes after the end"):
            await pipeline(table, there.sink(), start, until).run()
        assert there.transactions == []

    async def test_two_moments_between_two_versions_are_nothing(self, tmp_path: Path) -> None:
        table = Growing(tmp_path / "t")
        table.metadata["configuration"] = {"delta.enableInCommitTimestamps": "true"}
        table.version = -1
        for version, moment in enumerate([1_000_000, 2_000_000, 3_000_000]):
            info = {"commitInfo": {"timestamp": 1, "inCommitTimestamp": moment}}
            protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["inCommitTimestamp"]}
            more = [{"protocol": protocol}, {"metaData": table.metadata}] if version == 0 else []
            table.commit(info, *more, table.add(table.data(f"{version}.parquet", [version])))
        there = Destination()
        await pipeline(table, there.sink(), "1970-01-01T00:33:30Z", "1970-01-01T00:40:00Z").run()
        assert there.transactions == []
        await pipeline(table, there.sink(), "1970-01-01T00:33:20Z", "1970-01-01T00:40:00Z").run()
        assert there.delivered() == [(1, 1)]


class TestEnd:
    async def test_latest_is_what_is_latest_when_it_begins(self, table: Growing) -> None:
        there = Destination()
        await pipeline(table, there.sink(), until="latest").run()
        table.insert([100])
        assert there.delivered() == table.rows(0, 9)
        await pipeline(table, there.sink(), until="latest").run()
        assert there.delivered() == table.rows()

    async def test_a_version_that_is_yet_to_come_is_waited_for(self, table: Growing) -> None:
        there = Destination()
        async with anyio.create_task_group() as group:
            group.start_soon(pipeline(table, there.sink(), until="11").run)
            await become(lambda: there.position() == Position.end(9))
            for each in (100, 110, 120):
                table.insert([each])
        assert there.delivered() == table.rows(0, 11)

    async def test_an_end_before_the_progress_ends_at_once(self, table: Growing) -> None:
        there = Destination()
        await pipeline(table, there.sink(), until="6").run()
        await pipeline(table, there.sink(), until="3").run()
        assert there.delivered() == table.rows(0, 6)


class Gate(FaultySink):
    """A sink that waits with a batch of `version` until `opened` is set."""

    def __init__(self, there: Destination, version: int) -> None:
        super().__init__(there.sink())
        self.reached, self.opened = anyio.Event(), anyio.Event()
        self._version = version

    def begin(self, app_id: str, schema: pa.Schema) -> Any:
        return _Gated(self, super().begin(app_id, schema))

    async def pass_through(self, batch: ChangeBatch) -> None:
        if batch.version == self._version:
            self.reached.set()
            await self.opened.wait()


class _Gated(SinkTransaction):
    def __init__(self, gate: Gate, wrapped: Any) -> None:
        self._gate, self._wrapped = gate, wrapped

    async def __aenter__(self) -> "_Gated":
        self._transaction = await self._wrapped.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._wrapped.__aexit__(*error)

    async def write(self, batch: ChangeBatch) -> None:
        await self._gate.pass_through(batch)
        await self._transaction.write(batch)

    async def announce(self, event: ControlEvent) -> None:
        await self._transaction.announce(event)

    async def commit(self, progress: Progress) -> None:
        await self._transaction.commit(progress)


class TestStop:
    async def test_while_waiting(self, table: Growing) -> None:
        there = Destination()
        following = pipeline(table, there.sink(), poll_interval_s=LONG_S)
        with anyio.fail_after(300):
            async with anyio.create_task_group() as group:
                group.start_soon(following.run)
                await become(lambda: there.position() == Position.end(9))
                following.stop()
        assert there.delivered() == table.rows()

    async def test_while_delivering_the_version_is_finished_and_no_other_begun(self, table: Growing) -> None:
        there = Destination()
        gate = Gate(there, version=4)
        following = pipeline(table, gate)
        async with anyio.create_task_group() as group:
            group.start_soon(following.run)
            await gate.reached.wait()
            assert there.position() is None
            following.stop()
            gate.opened.set()
        assert there.delivered() == table.rows(0, 4)
        assert there.position() == Position.end(4)

    async def test_before_it_began(self, table: Growing) -> None:
        there = Destination()
        following = pipeline(table, there.sink())
        following.stop()
        with anyio.fail_after(300):
            await following.run()
        assert there.transactions == []

    async def test_before_a_snapshot_is_begun(self, table: Growing) -> None:
        there = Destination()
        held = Stalled(table.path)
        following = pipeline(table, there.sink(), "snapshot", store=held)
        async with anyio.create_task_group() as group:
            group.start_soon(following.run)
            await held.reached.wait()
            following.stop()
            held.opened.set()
        assert there.transactions == []

    @pytest.mark.parametrize(
        "error", [StorageUnavailable("t", "503"), StorageRefused("t", "a folder")], ids=["503", "a folder"]
    )
    async def test_an_error_that_may_pass_is_none_afterwards(self, table: Growing, error: TailerError) -> None:
        """One that needs a person is raised: the next run will not get past it either."""
        held = Stalled(table.path, error)
        following = pipeline(table, Destination().sink(), store=held)
        may_pass = isinstance(error, StorageUnavailable)
        with nullcontext() if may_pass else pytest.RaisesGroup(type(error)):
            async with anyio.create_task_group() as group:
                group.start_soon(following.run)
                await held.reached.wait()
                following.stop()
                held.opened.set()

    async def test_nothing_is_left_behind(self, table: Growing) -> None:
        following = pipeline(table, Destination().sink(), wake=wake_of(table.path))
        with anyio.fail_after(300):
            async with anyio.create_task_group() as group:
                group.start_soon(following.run)
                await anyio.sleep(0.02)
                following.stop()
        assert to_thread.current_default_thread_limiter().borrowed_tokens == 0


def wake_of(table: Path) -> Wake:
    """The wake-up of the table in that folder."""
    return DeltaTableLog(LocalStore(table)).make_wake()


class Stalled(LocalStore):
    """A store that blocks the first listing, and then raises `error`, if any."""

    def __init__(self, root: Path, error: TailerError | None = None) -> None:
        super().__init__(root)
        self.reached, self.opened = anyio.Event(), anyio.Event()
        self._error = error

    async def list(self, prefix: str, start_after: str = "") -> Any:
        self.reached.set()
        await self.opened.wait()
        if self._error is not None:
            raise self._error
        return await super().list(prefix, start_after)


class TestArrivals:
    async def test_versions_that_come_while_others_are_delivered(self, table: Growing) -> None:
        there = Destination()
        gate = Gate(there, version=9)
        following = pipeline(table, gate)
        async with anyio.create_task_group() as group:
            group.start_soon(following.run)
            await gate.reached.wait()
            for each in range(100, 110):
                table.insert([each])
            gate.opened.set()
            await become(lambda: there.position() == Position.end(19))
            following.stop()
        assert there.delivered() == table.rows()
        assert there.ends() == [19]

    async def test_a_burst_of_tiny_versions_while_it_follows(self, table: Growing) -> None:
        there = Destination()
        following = pipeline(table, there.sink(), wake=wake_of(table.path))
        async with anyio.create_task_group() as group:
            group.start_soon(following.run)
            await become(lambda: there.position() == Position.end(9))
            await to_thread.run_sync(table.insert_again, [1, 2], 2000)
            await become(lambda: there.position() == Position.end(2009))
            following.stop()
        assert there.delivered() == table.rows()
        assert len(there.transactions) < 1000

    async def test_a_notice_is_enough(self, table: Growing) -> None:
        there = Destination()
        following = pipeline(table, there.sink(), wake=wake_of(table.path), poll_interval_s=LONG_S)
        async with anyio.create_task_group() as group:
            group.start_soon(following.run)
            await become(lambda: there.position() == Position.end(9))
            # The first commit may precede the watch; the timer would notice it after an hour.
            for each in range(100, 103):
                table.insert([each])
                await anyio.sleep(0.05)
            await become(lambda: there.position() == Position.end(12))
            following.stop()
        assert there.delivered() == table.rows()

    async def test_without_a_notice_the_timer_is_enough(self, table: Growing) -> None:
        there = Destination()
        following = pipeline(table, there.sink(), wake=wake_of(table.path / "nowhere"))
        async with anyio.create_task_group() as group:
            group.start_soon(following.run)
            await become(lambda: there.position() == Position.end(9))
            table.insert([100])
            await become(lambda: there.position() == Position.end(10))
            following.stop()
        assert there.delivered() == table.rows()


class TestRefusals:
    async def raised(self, following: Pipeline) -> TailerError:
        """Return the error that `run` raises: not in a group, and at once."""
        with anyio.fail_after(300), pytest.raises(TailerError) as found:
            await following.run()
        return found.value

    async def test_a_version_that_is_missing_in_the_middle(self, table: Growing) -> None:
        table.commit_file(5).unlink()
        there = Destination()
        error = await self.raised(pipeline(table, there.sink()))
        assert isinstance(error, VersionGone)
        assert error.version == 5
        assert there.delivered() == table.rows(0, 4)

    async def test_a_version_that_never_comes_though_later_ones_do(self, table: Growing) -> None:
        there = Destination()
        found: list[TailerError] = []

        async def follow() -> None:
            found.append(await self.raised(pipeline(table, there.sink())))

        async with anyio.create_task_group() as group:
            group.start_soon(follow)
            await become(lambda: there.position() == Position.end(9))
            table.version += 1
            table.insert([110])
        assert isinstance(found[0], VersionGone)
        assert found[0].version == 10
        assert there.delivered() == table.rows(0, 9)

    async def test_progress_beyond_the_log(self, table: Growing) -> None:
        there = Destination()
        await there.sink().reset(Progress(APP, Position.end(20)))
        assert isinstance(await self.raised(pipeline(table, there.sink())), VersionAhead)

    @pytest.mark.parametrize("progress", [None, 0, 5, 9])
    @pytest.mark.parametrize("start", ["earliest", "snapshot"])
    async def test_the_table_is_swapped_between_two_looks(
        self, table: Growing, monkeypatch: pytest.MonkeyPatch, start: str, progress: int | None
    ) -> None:
        """The folder becomes another table after its id was read: its rows must not count as the first one's."""
        other = Growing(table.path.parent / "other")
        other.metadata["id"] = "another"
        other.version = -1
        other.commit({"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": other.metadata})
        for each in range(1, 15):
            other.insert([each])
        table_id = DeltaTableLog.table_id

        async def swap(log: DeltaTableLog) -> str:
            found = await table_id(log)
            if other.path.exists():
                await to_thread.run_sync(shutil.rmtree, table.path)
                other.path.rename(table.path)
            return found

        monkeypatch.setattr(DeltaTableLog, "table_id", swap)
        there = Destination()
        if progress is not None:
            there.progress[APP] = Progress(APP, Position.end(progress))
            assert isinstance(await self.raised(pipeline(table, there.sink(), start)), TableReplaced)
            assert there.log == {}
        else:
            await pipeline(table, there.sink(), start, "latest").run()
            assert {each for _, each in there.delivered("p/another")} == set(range(1, 15))
        assert there.delivered(APP) == []


class Refusing(TransactionWrapper):
    """A transaction that is refused when it is committed with the row 50."""

    def __init__(self, inner: SinkTransaction) -> None:
        super().__init__(inner)
        self._refused = False

    async def write(self, batch: ChangeBatch) -> None:
        self._refused |= 50 in batch.rows["id"].to_pylist()
        await self._transaction.write(batch)

    async def commit(self, progress: Progress) -> None:
        if self._refused:
            raise SinkRejected("memory", "row 50", "Change it.")
        await self._transaction.commit(progress)


class RefusesAtCommit(MemorySink):
    """A sink that refuses the row 50 only when it is committed."""

    @asynccontextmanager
    async def begin(self, app_id: str, schema: pa.Schema) -> AsyncIterator[SinkTransaction]:  # type: ignore[override]
        async with super().begin(app_id, schema) as transaction:
            yield Refusing(transaction)


@pytest.mark.parametrize(("start", "recorded"), [("latest", Position.end(9)), ("10", None)])
async def test_a_start_after_the_latest_version_is_no_progress(
    table: Growing, start: str, recorded: Position | None
) -> None:
    """Status shows what the sink knows: it records `latest` at once, but not a version."""
    there, status = Destination(), PipelineStatus("p")
    log, wake, limits = DeltaTableLog(LocalStore(table.path)), TimerWake(), Limits(poll_interval_s=0.005)
    first = Start.parse(start)
    following = row_pipeline("p", log, there.sink(), LocalEngine(2), wake, first, limits=limits, status=status)
    async with anyio.create_task_group() as group:
        group.start_soon(following.run)
        await become(lambda: status.backlog.caught_up_s is not None)
        assert (there.position(), status.backlog.position, status.backlog.versions) == (recorded, recorded, 0)
        following.stop()


@pytest.mark.parametrize("until", ["latest", None])
async def test_versions_before_one_that_is_refused_at_the_commit_are_delivered(
    table: Growing, until: str | None
) -> None:
    there = Destination()
    with anyio.fail_after(300), pytest.raises(SinkRejected, match="row 50"):
        await pipeline(table, RefusesAtCommit("memory", there), until=until).run()
    assert there.delivered() == table.rows(last=4)


async def test_the_newest_version_is_known_while_the_sink_does_not_answer(table: Growing) -> None:
    """The session fails before it looks at the table."""
    faults = [Fault(Step.PROGRESS, Kind.FAIL, nth) for nth in range(1, 1000)]
    sink, status = FaultySink(Destination().sink(), *faults), PipelineStatus("p")
    log, wake = DeltaTableLog(LocalStore(table.path)), TimerWake()
    limits = Limits(poll_interval_s=0.02)
    following = row_pipeline(
        "p", log, sink, LocalEngine(2), wake, Start.parse("earliest"), limits=limits, status=status
    )
    async with anyio.create_task_group() as group:
        group.start_soon(following.run)
        await become(lambda: status.state is PipelineState.RETRYING)
        assert (status.backlog.latest, status.backlog.versions) == (table.version, None)
        table.insert([900])
        await become(lambda: status.backlog.latest == table.version)
        following.stop()


async def test_the_newest_version_is_known_where_lost_changes_stop_the_pipeline(table: Growing) -> None:
    table.commit_file(3).unlink()
    log, status = DeltaTableLog(LocalStore(table.path)), PipelineStatus("p")
    engine, start = LocalEngine(2), Start.parse("earliest")
    with pytest.raises(VersionGone):
        await row_pipeline("p", log, Destination().sink(), engine, TimerWake(), start, status=status).run()
    assert (status.backlog.latest, status.backlog.versions) == (table.version, table.version - 2)
