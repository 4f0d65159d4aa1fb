"""Pipelines into a mirror of the `delta` sink, and their snapshots: at the start, after a loss, and by an order."""

from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pytest
from anyio import to_thread
from deltalake import DeltaTable, write_deltalake

from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.rules import PairingRules
from tailer.config.settings import load
from tailer.engine.local import LocalEngine
from tailer.errors import ChangesUnavailable, ConfigError, SinkRejected, SinkUnavailable
from tailer.events import Gap
from tailer.formats.delta.table import DeltaTableLog
from tailer.pipeline.backfill.command import BackfillCommand, BackfillPhase
from tailer.pipeline.loop import Pipeline
from tailer.pipeline.policy import Limits, OnDataLoss
from tailer.pipeline.row_delivery import row_pipeline
from tailer.pipeline.status import PipelineState, PipelineStatus
from tailer.plan import SNAPSHOT_TASKS, TASKS, Position
from tailer.sink import Progress, Sink, app_id_of, backfill_name, table_of
from tailer.start import Start, StartKind
from tailer.stores.local import LocalStore
from tailer.stores.wakeup import TimerWake
from tailer_sinks.delta.mirror import table as mirror_table
from tailer_sinks.testing.faults import Fault, FaultySink, Kind, Step
from tests.support.mirrors.delta import APP, batch, deliver, full, make_mirror, mirror_rows
from tests.support.streams import become

pytestmark = pytest.mark.long

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    """A table of four versions."""
    path = tmp_path / "orders"
    for ids in ([1, 2], [3], [4]):
        append(path, *ids)
    DeltaTable(path).update(updates={"amount": "amount + 1"}, predicate="id = 2")
    return path


def append(path: Path, *ids: int) -> None:
    rows = {"id": ids, "mail": [f"{each}@example.org" for each in ids], "amount": [10.0 * each for each in ids]}
    write_deltalake(path, pa.table(rows), mode="append")


def delete(path: Path, predicate: str) -> None:
    DeltaTable(path).delete(predicate)


def vacuum(path: Path, version: int) -> None:
    """Delete the data files that are new in a version."""
    before = DeltaTable(path, version - 1).file_uris()
    for file in DeltaTable(path, version).file_uris():
        if file not in before:
            Path(file).unlink()


def is_mirror(orders: Path, copy: Path) -> bool:
    def rows(path: Path) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = mirror_rows(path).to_pylist()
        return sorted(found, key=lambda row: int(row["id"]))

    return rows(orders) == rows(copy)


async def become_mirror(orders: Path, copy: Path) -> None:
    """Return when the copy is a mirror."""
    with anyio.fail_after(300):
        while not await to_thread.run_sync(is_mirror, orders, copy):  # noqa: ASYNC110 - a table does not notify
            await anyio.sleep(0.02)


class TestPipelines:
    """Pipelines that a configuration describes."""

    def run(self, folder: Path, options: str = "", last: int = 3, sink: str = 'key = ["id"]') -> pa.Table:
        """Run the pipeline `orders` up to version `last`. Return the mirror."""
        config = folder / "tailer.toml"
        config.write_text(
            f'[pipelines.orders]\ntable = "orders"\n{options}\n'
            f'[pipelines.orders.sink]\nkind = "delta"\npath = "copy"\nmode = "mirror"\n{sink}\n'
        )
        settings = load(config)
        (pipeline,) = settings.pipelines
        end, to = Start(StartKind.VERSION, last), settings.open_sink(pipeline)
        assert isinstance(to, Sink)
        made = pipeline.open_table(), to, LocalEngine(), TimerWake(), pipeline.start, end, pipeline.policy
        anyio.run(row_pipeline("orders", *made).run)
        assert DeltaTable(folder / "copy").transaction_version(app_id(folder / "orders")) == last
        return mirror_rows(folder / "copy").sort_by("amount")

    @pytest.mark.parametrize("start", ["earliest", "snapshot", "latest", "2", "2026-01-01T00:00:00Z"])
    def test_a_mirror_has_all_rows_wherever_it_starts(self, tmp_path: Path, orders: Path, start: str) -> None:
        found = self.run(tmp_path, f'start = "{start}"')
        assert found["amount"].to_pylist() == [10.0, 21.0, 30.0, 40.0]
        assert is_mirror(orders, tmp_path / "copy")

    def test_columns_and_rows_are_those_of_the_pipeline(self, tmp_path: Path, orders: Path) -> None:
        options = 'where = "id <> 3"\nselect = "id AS number, sha2(mail, 256) AS mail, amount"'
        found = self.run(tmp_path, options, sink='key = ["number"]')
        assert found.column_names == ["number", "mail", "amount"]
        assert found["number"].to_pylist() == [1, 2, 4]
        files = (tmp_path / "copy").rglob("*.parquet")
        assert not any(b"example.org" in file.read_bytes() for file in files)

    def test_a_row_without_a_key_of_its_own_stops_it(self, tmp_path: Path, orders: Path) -> None:
        append(orders, 1)
        with pytest.raises(SinkRejected, match="insert a key that is there"):
            self.run(tmp_path, last=4)

    def test_a_column_that_restore_brings_back_is_a_loss(self, tmp_path: Path, orders: Path) -> None:
        """The table stops to have the column, and RESTORE brings it back with its values."""
        rows = pa.table({"id": [1], "amount": [1.0]})
        write_deltalake(orders, rows, mode="overwrite", schema_mode="overwrite")
        self.run(tmp_path, 'start = "snapshot"', last=4)
        DeltaTable(orders).restore(3)
        with pytest.raises(ChangesUnavailable, match="RESTORE brought column mail back"):
            self.run(tmp_path, last=5)
        found = self.run(tmp_path, 'on_data_loss = "resnapshot"', last=5)
        assert found["amount"].to_pylist() == [10.0, 21.0, 30.0, 40.0]
        assert is_mirror(orders, tmp_path / "copy")

    def test_a_vacuumed_version_is_a_loss(self, tmp_path: Path, orders: Path) -> None:
        self.run(tmp_path, last=1)
        append(orders, 5)
        DeltaTable(orders).delete("id = 4")
        vacuum(orders, 2)
        with pytest.raises(SinkRejected, match="would not be a mirror"):
            self.run(tmp_path, 'on_data_loss = "skip-with-gap-event"', last=5)
        self.run(tmp_path, 'on_data_loss = "resnapshot"', last=5)
        assert is_mirror(orders, tmp_path / "copy")
        assert "are lost" in DeltaTable(tmp_path / "copy").history(1)[0]["gap"]


def app_id(orders: Path) -> str:
    return app_id_of("orders", str(DeltaTable(orders).metadata().id))


def pipeline(orders: Path, sink: Sink, status: PipelineStatus) -> Pipeline:
    """Return a pipeline without an end."""
    log = DeltaTableLog(LocalStore(orders))
    engine, limits = ChangelogEngine(LocalEngine(), PairingRules()), Limits(poll_interval_s=0.005)
    made = log, sink, engine, TimerWake(), Start.parse("earliest"), None, None, limits, None, status
    return row_pipeline("orders", *made)


@pytest.mark.anyio
class TestOrders:
    """`tailer resnapshot` and `tailer backfill` while nothing is lost."""

    @pytest.mark.sampled(3)
    @pytest.mark.parametrize(
        "fault",
        [
            None,
            *(
                Fault(step, Kind.FAIL, 1, after)
                for step in (Step.BEGIN, Step.WRITE, Step.COMMIT)
                for after in (False, True)
            ),
        ],
        ids=str,
    )
    async def test_an_ordered_snapshot_makes_the_mirror_equal_again(
        self, tmp_path: Path, orders: Path, fault: Fault | None
    ) -> None:
        copy, status = tmp_path / "copy", PipelineStatus("orders")
        sink = make_mirror(copy)
        async with anyio.create_task_group() as group:
            run = pipeline(orders, sink, status)
            group.start_soon(run.run)
            await become(lambda: status.state is PipelineState.STREAMING)
            run.stop()
        await to_thread.run_sync(delete, copy, "id >= 3")  # somebody else
        status = PipelineStatus("orders")
        run = pipeline(orders, sink if fault is None else FaultySink(sink, fault), status)
        status.command = OnDataLoss.RESNAPSHOT
        async with anyio.create_task_group() as group:
            group.start_soon(run.run)
            await become(lambda: status.gaps == 1)
            await become_mirror(orders, copy)
            await to_thread.run_sync(append, orders, 7, 8)
            await to_thread.run_sync(delete, orders, "id = 3")
            await become_mirror(orders, copy)
            run.stop()
        assert DeltaTable(copy).transaction_version(app_id(orders)) == 5
        notes = [each["gap"] for each in DeltaTable(copy).history() if "gap" in each]
        assert notes == ["an operator asked for a snapshot; no changes are lost"]

    async def test_columns_that_a_merge_cannot_follow_need_one(self, tmp_path: Path, orders: Path) -> None:
        copy, status = tmp_path / "copy", PipelineStatus("orders")
        sink = make_mirror(copy)
        rows = pa.table({"id": [1, 2], "mail": [b"1", b"2"]})
        write_deltalake(orders, rows, mode="overwrite", schema_mode="overwrite")
        with pytest.raises(SinkRejected, match=r"mail is string there, and binary in the rows") as refused:
            await pipeline(orders, sink, status).run()
        assert refused.value.hint == "Ask for a snapshot with `tailer resnapshot PIPELINE`."
        assert mirror_rows(copy).num_rows == 4
        status = PipelineStatus("orders")
        status.command = OnDataLoss.RESNAPSHOT
        run = pipeline(orders, sink, status)
        async with anyio.create_task_group() as group:
            group.start_soon(run.run)
            await become_mirror(orders, copy)
            await to_thread.run_sync(delete, orders, "id = 1")
            await become_mirror(orders, copy)
            run.stop()

    async def test_a_backfill_is_refused(self, tmp_path: Path, orders: Path) -> None:
        status = PipelineStatus("orders")
        run = pipeline(orders, make_mirror(tmp_path / "copy"), status)
        await status.backfills.give(BackfillCommand.make())
        async with anyio.create_task_group() as group:
            group.start_soon(run.run)
            await become(lambda: status.backfills.phase is BackfillPhase.FAILED)
            await become_mirror(orders, tmp_path / "copy")
            run.stop()
        assert isinstance(status.backfills.error, ConfigError)


def inserts(version: int, *ids: int, task: int = 0) -> Any:
    return batch(version, "insert", SCHEMA, [{"id": each, "name": f"{each} at {version}"} for each in ids], task)


def names(path: Path) -> dict[int, str]:
    return {row["id"]: row["name"] for row in mirror_rows(path).to_pylist()}


@pytest.mark.anyio
class TestStreams:
    """The stream of an ordered snapshot beside that of the changes."""

    APP_ID = app_id_of(backfill_name("orders", "20260301T115001-1f3a5c7e"), table_of(APP))
    GAP = Gap("t", 3, 3, 0, "ordered", snapshot=True, command="20260301T115001-1f3a5c7e")
    TASK = SNAPSHOT_TASKS + 5 * TASKS

    async def test_it_takes_the_place_of_all_rows_and_keeps_the_progress(self, tmp_path: Path) -> None:
        sink = make_mirror(tmp_path)
        await deliver(sink, inserts(3, 1, 2))
        rows = inserts(3, 1, task=self.TASK), inserts(3, 7, task=self.TASK + 1)
        await deliver(sink, self.GAP, *rows, schema=full(SCHEMA), app_id=self.APP_ID)
        assert names(tmp_path) == {1: "1 at 3", 7: "7 at 3"}
        for each in (sink, make_mirror(tmp_path)):
            assert await each.progress(APP) == Progress(APP, Position.end(3))
            assert await each.progress(self.APP_ID) == Progress(self.APP_ID, Position.end(3))
        await deliver(sink, batch(4, "delete", SCHEMA, [{"id": 7}]), inserts(4, 8))
        assert names(tmp_path) == {1: "1 at 3", 8: "8 at 4"}

    async def test_of_a_snapshot_and_a_later_version_one_commits(self, tmp_path: Path) -> None:
        """Another instance commits meanwhile, once the version and once the snapshot."""
        late, first = make_mirror(tmp_path), make_mirror(tmp_path)
        await deliver(first, inserts(3, 1, 2))
        async with late.begin(self.APP_ID, full(SCHEMA)) as transaction:
            await transaction.announce(self.GAP)
            await transaction.write(inserts(3, 1, 2, task=self.TASK))
            await deliver(first, inserts(4, 9))
            with pytest.raises(SinkUnavailable):
                await transaction.commit(Progress(self.APP_ID, Position.end(3)))
        assert names(tmp_path) == {1: "1 at 3", 2: "2 at 3", 9: "9 at 4"}
        gap = Gap("t", 4, 4, 0, "ordered", snapshot=True, command="x")
        async with first.begin(APP, full(SCHEMA)) as transaction:
            await transaction.write(inserts(5, 10))
            await deliver(late, gap, inserts(4, 1, task=self.TASK), schema=full(SCHEMA), app_id=self.APP_ID)
            with pytest.raises(SinkUnavailable):
                await transaction.commit(Progress(APP, Position.end(5)))
        assert names(tmp_path) == {1: "1 at 4"}

    @pytest.mark.parametrize("way", ["merge", "rewrite", "snapshot"])
    @pytest.mark.parametrize("other", ["OPTIMIZE", "INSERT"])
    async def test_another_writer_makes_the_transaction_fail(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, other: str
    ) -> None:
        """OPTIMIZE changes no row. To delta-rs it contradicts no commit that replaces all rows."""
        sink = make_mirror(tmp_path)
        for version in (1, 2, 3):
            await deliver(sink, inserts(version, version))
        monkeypatch.setattr(mirror_table, "_MERGE_BYTES", -1 if way == "rewrite" else 2**40)
        items = [batch(4, "delete", SCHEMA, [{"id": 1}]), inserts(4, 5)]
        if way == "snapshot":
            items = [Gap("t", 4, 4, 0, "lost", snapshot=True), inserts(4, 2, 5, task=SNAPSHOT_TASKS)]
        async with sink.begin(APP, full(SCHEMA)) as transaction:
            for each in items:
                await (transaction.announce(each) if isinstance(each, Gap) else transaction.write(each))
            if other == "OPTIMIZE":
                await to_thread.run_sync(DeltaTable(tmp_path).optimize.compact)
            else:
                write_deltalake(tmp_path, pa.table({"id": [900], "name": ["theirs"]}), mode="append")
            with pytest.raises(SinkUnavailable, match="another writer has changed"):
                await transaction.commit(Progress(APP, Position.end(4)))
        await deliver(sink, *items, schema=full(SCHEMA))
        ours = {2, 5} if way == "snapshot" else {2, 3, 5}
        assert names(tmp_path).keys() == ours | ({900} if other == "INSERT" and way != "snapshot" else set())

    async def test_it_is_a_mirror_of_the_same_pipeline(self, tmp_path: Path) -> None:
        await deliver(make_mirror(tmp_path), inserts(3, 1))
        other = app_id_of(backfill_name("items", "20260301T115001-1f3a5c7e"), table_of(APP))
        with pytest.raises(SinkRejected, match="pipeline orders fills"):
            await make_mirror(tmp_path).progress(other)
