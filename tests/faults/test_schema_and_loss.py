"""Pipelines through schema changes, replaced tables and lost changes.

Every run is checked twice: without interruption, and killed after each of its transactions and started again.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pytest

from tailer.errors import (
    ChangesUnavailable,
    DataCorrupt,
    FileVacuumed,
    LogCorrupt,
    LogRewritten,
    SchemaChanged,
    SinkFenced,
    SinkRejected,
    StateUnknown,
    TableReplaced,
    TailerError,
    UnsupportedFeature,
    VersionAhead,
    VersionGone,
)
from tailer.events import Gap, SchemaChange
from tailer.formats.delta.log.listing import commit_name
from tailer.pipeline.policy import OnDataLoss, OnSchemaChange, Policy
from tailer.plan import Position
from tailer.sink import Progress, Sink, SinkTransaction
from tailer_sinks.testing import FaultySink
from tests.support.streams import APP, Destination, Growing, WholeVersions, become, pipeline

pytestmark = pytest.mark.anyio

OTHER = "p/22222222-2222-3333-4444-555555555555"
SKIP = Policy(on_data_loss=OnDataLoss.SKIP)
RESNAPSHOT = Policy(on_data_loss=OnDataLoss.RESNAPSHOT)


def schema_string(**columns: str) -> str:
    """Make a Delta schema of nullable columns."""
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in columns.items()]
    return json.dumps({"type": "struct", "fields": fields})


def change_schema(table: Growing, *more: dict[str, Any], **columns: str) -> int:
    """Commit a new schema, and other actions."""
    table.metadata = {**table.metadata, "schemaString": schema_string(**columns)}
    return table.commit({"metaData": table.metadata}, *more)


def story(there: Destination, app_id: str = APP) -> list[Any]:
    """Return the content of the destination, in order: rows as (version, change, values) and events."""
    entry: list[Any] = []
    for item in there.log.get(app_id, []):
        if isinstance(item, SchemaChange):
            entry.append((item.version, *item.changes))
        elif isinstance(item, Gap):
            entry.append(("gap", item.first_version, item.version, item.snapshot))
        else:
            for row in item.rows.to_pylist():
                values = {key: value for key, value in row.items() if not key.startswith("_")}
                entry.append((row["_commit_version"], row["_change_type"], *values.items()))
    return entry


async def deliver(table: Growing, policy: Policy | None = None, *, whole: bool = False, start: str = "earliest") -> Any:
    """Deliver everything, without interruption and with one after each transaction; return the destination."""
    there, again = Destination(), Destination()
    await pipeline(table, _sink(there, whole), start, "latest", policy=policy, max_seconds=3600).run()
    before = None
    while again.progress != before:
        before = dict(again.progress)
        with anyio.CancelScope() as scope:
            again.then = scope.cancel
            await pipeline(table, _sink(again, whole), start, "latest", policy=policy, max_rows=1, max_versions=1).run()
    assert {app: story(again, app) for app in again.log} == {app: story(there, app) for app in there.log}
    return there


def _sink(there: Destination, whole: bool) -> Sink:
    return WholeVersions(there.sink()) if whole else there.sink()


@pytest.fixture(params=[False, True], ids=["splitting", "whole"])
def whole(request: pytest.FixtureRequest) -> bool:
    """True if the sink cannot store a position inside a version."""
    return bool(request.param)


class TestSchema:
    async def test_columns_come_and_go_between_versions(self, tmp_path: Path, whole: bool) -> None:
        table = Growing(tmp_path / "t")
        table.insert([1])
        change_schema(table, id="long", x="string")
        table.commit(table.add(table.data("3.parquet", [2], x=["two"])))
        change_schema(table, x="string", id="long")
        change_schema(table, id="long")
        table.insert([3])
        there = await deliver(table, whole=whole)
        assert story(there) == [
            (1, "insert", ("id", 1)),
            (2, "column x string was added"),
            (3, "insert", ("id", 2), ("x", "two")),
            *[entry for entry in story(there) if entry[0] == 4],
            (5, "column x was dropped"),
            (6, "insert", ("id", 3)),
        ]
        assert [entry[0] for entry in story(there)].count(4) == 1

    async def test_deleted_rows_have_the_columns_they_had(self, tmp_path: Path, whole: bool) -> None:
        """An overwrite with another schema: deleted rows have the columns and types of their inserts."""
        table = Growing(tmp_path / "t")
        change_schema(table, table.add(table.data("1.parquet", [1, 2], x=["a", "b"])), id="long", x="string")
        new = table.data("2.parquet", [1], x=pa.array([7], pa.int32()), y=[True])
        change_schema(table, table.add(new), table.remove("1.parquet"), id="long", x="integer", y="boolean")
        events = story(await deliver(table, whole=whole))
        assert [entry for entry in events if entry[0] == 2 and entry[1] in ("delete", "insert")] == [
            (2, "delete", ("id", 1), ("x", "a")),
            (2, "delete", ("id", 2), ("x", "b")),
            (2, "insert", ("id", 1), ("x", 7), ("y", True)),
        ]
        assert events[-2][0] == 2
        assert "column y bool was added" in events[-2]

    async def test_restored_rows_lack_the_column_that_was_added(self, tmp_path: Path, whole: bool) -> None:
        table = Growing(tmp_path / "t")
        table.insert([1])
        before = table.metadata
        added = table.add(table.data("2.parquet", [1], x=["one"]))
        change_schema(table, added, table.remove("1-0.parquet"), id="long", x="string")
        table.metadata = before
        table.commit({"metaData": before}, table.add("1-0.parquet"), table.remove("2.parquet"))
        assert story(await deliver(table, whole=whole)) == [
            (1, "insert", ("id", 1)),
            (2, "delete", ("id", 1)),
            (2, "column x string was added"),
            (2, "insert", ("id", 1), ("x", "one")),
            (3, "delete", ("id", 1), ("x", "one")),
            (3, "column x was dropped"),
            (3, "insert", ("id", 1)),
        ]

    async def test_removed_files_have_the_partitioning_they_had(self, tmp_path: Path) -> None:
        table = Growing(tmp_path / "t")
        table.metadata = {**table.metadata, "partitionColumns": ["p"]}
        one = table.add(table.data("1.parquet", [1]), partitionValues={"p": "x"})
        change_schema(table, one, id="long", p="string")
        table.metadata = {**table.metadata, "partitionColumns": ["id"]}
        table.data("2.parquet", [0], p=["z"])
        new = table.add("2.parquet", partitionValues={"id": "5"})
        change_schema(table, new, table.remove("1.parquet", partitionValues={"p": "x"}), id="long", p="string")
        assert [entry for entry in story(await deliver(table)) if entry[0] == 2] == [
            (2, "delete", ("id", 1), ("p", "x")),
            (2, "insert", ("id", 5), ("p", "z")),
        ]

    @pytest.mark.parametrize("with_rows", [False, True])
    async def test_fail_stops_before_the_version_and_delivers_those_before(
        self, tmp_path: Path, whole: bool, with_rows: bool
    ) -> None:
        table = Growing(tmp_path / "t")
        table.insert([1])
        table.insert([2])
        more = [table.add(table.data("3.parquet", [3], x=["x"]))] if with_rows else []
        change_schema(table, *more, id="long", x="string")
        there = Destination()
        policy = Policy(on_schema_change=OnSchemaChange.FAIL)
        with pytest.raises(SchemaChanged, match=r"version 3 .*column x string was added") as stopped:
            await pipeline(table, _sink(there, whole), policy=policy).run()
        assert "evolve" in stopped.value.hint
        assert there.delivered() == table.rows(0, 2)
        assert there.position() == Position.end(2)

    async def test_fail_does_not_mind_what_does_not_change_the_rows(self, tmp_path: Path) -> None:
        table = Growing(tmp_path / "t")
        table.metadata = {**table.metadata, "configuration": {"delta.appendOnly": "false"}, "description": "new"}
        table.commit({"metaData": table.metadata})
        change_schema(table, id="long", x="string")
        there = Destination()
        policy = Policy(("id",), on_schema_change=OnSchemaChange.FAIL)
        table.insert([5])
        await pipeline(table, there.sink(), until="latest", policy=policy).run()
        assert there.delivered() == table.rows()

    async def test_a_sink_that_cannot_hold_the_new_rows_has_all_before(self, tmp_path: Path, whole: bool) -> None:
        table = Growing(tmp_path / "t")
        table.insert([1])
        change_schema(table, id="string")
        there = Destination()

        with pytest.raises(SinkRejected):
            await pipeline(table, Refusing(there, whole), until="latest").run()
        assert there.delivered() == table.rows()

    async def test_a_dropped_column_that_was_asked_for_stops_before_the_version(self, tmp_path: Path) -> None:
        table = Growing(tmp_path / "t")
        change_schema(table, table.add(table.data("1.parquet", [1], x=["a"])), id="long", x="string")
        change_schema(table, id="long")
        there = Destination()
        with pytest.raises(TailerError, match="no column 'x' at version 2"):
            await pipeline(table, there.sink(), "1", policy=Policy(("x",))).run()
        assert there.position() == Position.end(1)


class Refusing(FaultySink):
    """A sink whose destination takes rows of one schema only."""

    def __init__(self, there: Destination, whole: bool) -> None:
        super().__init__(there.sink())
        self._whole = whole

    @property
    def splits_versions(self) -> bool:
        """As given."""
        return not self._whole

    @property
    def splits_snapshots(self) -> bool:
        """As given."""
        return not self._whole

    def begin(self, app_id: str, schema: pa.Schema) -> Any:
        return _RefusingTransaction(super().begin(app_id, schema))


class _RefusingTransaction(SinkTransaction):
    def __init__(self, wrapped: Any) -> None:
        self._wrapped = wrapped

    async def __aenter__(self) -> "_RefusingTransaction":
        self._transaction = await self._wrapped.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._wrapped.__aexit__(*error)

    async def write(self, batch: Any) -> None:
        await self._transaction.write(batch)

    async def announce(self, event: Any) -> None:
        raise SinkRejected("there", f"version {event.version} has other columns")

    async def commit(self, progress: Progress) -> None:
        await self._transaction.commit(progress)


def replace_table(table: Growing, *actions: dict[str, Any]) -> int:
    """Make the actions of REPLACE TABLE: another id."""
    table.metadata = {**table.metadata, "id": OTHER.removeprefix("p/")}
    return table.commit({"metaData": table.metadata}, *actions)


class TestReplaceTable:
    @pytest.fixture
    def table(self, tmp_path: Path) -> Growing:
        """A table that version 2 replaces."""
        table = Growing(tmp_path / "t")
        table.insert([1])
        replace_table(table, table.remove("1-0.parquet"), table.add(table.data("2.parquet", [2])))
        table.insert([3])
        return table

    async def test_the_stream_goes_on_under_the_new_id(self, table: Growing, whole: bool) -> None:
        there = await deliver(table, whole=whole)
        assert story(there, APP) == [(1, "insert", ("id", 1))]
        assert story(there, OTHER) == [
            (2, "delete", ("id", 1)),
            (2, "insert", ("id", 2)),
            (3, "insert", ("id", 3)),
        ]

    async def test_versions_written_while_stopped_are_delivered(self, table: Growing) -> None:
        there = Destination()
        await pipeline(table, there.sink(), until="0").run()
        await pipeline(table, there.sink(), "latest", until="latest").run()
        assert [entry[0] for entry in story(there, APP)] == [1]
        assert [entry[0] for entry in story(there, OTHER)] == [2, 2, 3]

    async def test_back_to_the_first_table(self, table: Growing, whole: bool) -> None:
        """RESTORE may bring the old id back: its old progress is not the current progress."""
        table.metadata = {**table.metadata, "id": APP.removeprefix("p/")}
        table.commit({"metaData": table.metadata}, table.add("1-0.parquet"))
        table.insert([9])
        there = await deliver(table, whole=whole)
        assert [entry[0] for entry in story(there, OTHER)] == [2, 2, 3]
        assert [entry[0] for entry in story(there, APP)] == [1, 4, 5]

    async def test_an_instance_that_slept_is_fenced(self, table: Growing) -> None:
        """It finished the old table; another instance continued with the new one."""
        there = Destination()
        sleepy = pipeline(table, there.sink(), max_versions=1)
        woken = False

        def then() -> None:
            nonlocal woken
            if there.position() == Position.end(1) and not woken:
                woken = True
                there.progress[OTHER] = Progress(OTHER, Position.end(3))

        there.then = then
        with pytest.raises(SinkFenced):
            await sleepy.run()
        assert story(there, OTHER) == []

    async def test_the_log_begins_after_the_replacement(self, table: Growing) -> None:
        for version in (0, 1, 2):
            table.commit_file(version).unlink()
        there = Destination()
        with pytest.raises(TailerError):
            await pipeline(table, there.sink(), until="latest").run()
        assert there.transactions == []


class TestRecreated:
    def recreate(self, table: Growing, versions: int) -> Growing:
        """Make another table at the same path, at least as long as the first."""
        shutil.rmtree(table.path)
        other = Growing(table.path)
        other.metadata["id"] = OTHER.removeprefix("p/")
        other.version = -1
        other.commit({"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": other.metadata})
        for each in range(versions):
            other.insert([1000 + each])
        return other

    @pytest.fixture
    def table(self, tmp_path: Path) -> Growing:
        table = Growing(tmp_path / "t")
        table.insert([1])
        table.insert([2])
        return table

    @pytest.mark.parametrize("versions", [1, 2, 3, 9])
    async def test_while_it_is_followed(self, table: Growing, versions: int) -> None:
        there = Destination()
        found: list[TailerError] = []

        async def follow() -> None:
            with pytest.raises(TailerError) as stopped:
                await pipeline(table, there.sink()).run()
            found.append(stopped.value)

        async with anyio.create_task_group() as group:
            group.start_soon(follow)
            await become(lambda: there.position() == Position.end(2))
            self.recreate(table, versions)
            if versions == 2:
                await anyio.sleep(0.05)
                other = Growing.__new__(Growing)
                other.__dict__.update(table.__dict__, version=2)
                other.commit(other.add("1-0.parquet"))
        assert isinstance(found[0], TableReplaced)
        assert found[0].found_id == OTHER.removeprefix("p/")
        assert story(there, OTHER) == []
        assert there.delivered() == table.rows()

    @pytest.mark.parametrize("policy", [SKIP, RESNAPSHOT], ids=["skip", "resnapshot"])
    async def test_going_on_with_the_new_table(self, table: Growing, policy: Policy) -> None:
        there = Destination()
        following = pipeline(table, there.sink(), policy=policy)
        async with anyio.create_task_group() as group:
            group.start_soon(following.run)
            await become(lambda: there.position() == Position.end(2))
            other = self.recreate(table, 3)
            await become(lambda: there.position(OTHER) == Position.end(3))
            other.insert([7])
            await become(lambda: there.position(OTHER) == Position.end(4))
            following.stop()
        assert story(there, OTHER) == [
            ("gap", 0, 3, True),
            *[(3, "insert", ("id", each)) for each in (1000, 1001, 1002)],
            (4, "insert", ("id", 7)),
        ]
        assert there.delivered() == table.rows()

    @pytest.mark.parametrize("start", ["earliest", "latest", "snapshot", "2"])
    async def test_while_we_were_away(self, table: Growing, start: str) -> None:
        """A restart finds another table, and does not continue with it unasked."""
        there = Destination()
        await pipeline(table, there.sink(), until="latest").run()
        self.recreate(table, 4)
        for _ in range(2):
            with pytest.raises(TableReplaced) as found:
                await pipeline(table, there.sink(), start).run()
            assert "tailer progress reset" in found.value.hint
            assert there.position(OTHER) is None
        await there.sink().reset(Progress(OTHER, Position.end(-1)))
        await pipeline(table, there.sink(), start, until="latest").run()
        assert there.position() == Position.end(2)
        assert [entry[0] for entry in story(there, OTHER)] == [1, 2, 3, 4]

    @pytest.mark.parametrize("policy", [SKIP, RESNAPSHOT], ids=["skip", "resnapshot"])
    async def test_while_we_were_away_and_going_on_by_itself(self, table: Growing, policy: Policy) -> None:
        there = Destination()
        await pipeline(table, there.sink(), until="latest").run()
        self.recreate(table, 2)
        await pipeline(table, there.sink(), "latest", until="latest", policy=policy).run()
        assert story(there, OTHER) == [
            ("gap", 0, 2, True),
            *[(2, "insert", ("id", each)) for each in (1000, 1001)],
        ]


class TestLoss:
    @pytest.fixture
    def table(self, tmp_path: Path) -> Growing:
        """A table whose versions 1 to 6 insert a row each."""
        table = Growing(tmp_path / "t")
        for version in range(1, 7):
            table.insert([version])
        return table

    def checkpoint(self, table: Growing, version: int) -> None:
        """Write a JSON checkpoint, as any writer may have left it."""
        name = f"{version:020d}.checkpoint.{'0' * 8}-0000-0000-0000-{version:012d}.json"
        protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["v2Checkpoint"]}
        lines = [{"checkpointMetadata": {"version": version}}, {"metaData": table.metadata}]
        lines += [{"protocol": {**protocol, "writerFeatures": ["v2Checkpoint"]}}]
        lines += [table.add(f"{each}-0.parquet", dataChange=False) for each in range(1, version + 1)]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (table.path / "_delta_log" / name).write_text(text)

    async def stopped(self, table: Growing, policy: Policy | None = None, *, whole: bool = False) -> Any:
        """Return the error that ends a pipeline, and the destination."""
        there = Destination()
        with anyio.fail_after(300), pytest.raises(TailerError) as found:
            await pipeline(table, _sink(there, whole), policy=policy, until="latest").run()
        return found.value, there

    @pytest.mark.parametrize("damage", ["vacuumed", "garbage", "truncated", "empty", "missing"])
    async def test_versions_before_the_loss_are_delivered(self, table: Growing, damage: str, whole: bool) -> None:
        kinds: dict[str, Any] = {"vacuumed": FileVacuumed, "missing": VersionGone}
        self.damage(table, damage)
        error, there = await self.stopped(table, whole=whole)
        assert type(error) is kinds.get(damage, LogCorrupt)
        assert error.version == 4
        assert error.hint
        assert there.delivered() == table.rows(0, 3)
        assert there.position() == Position.end(3)

    def damage(self, table: Growing, damage: str) -> None:
        """Lose version 4, in one of several ways."""
        commit = table.commit_file(4)
        match damage:
            case "vacuumed":
                (table.path / "4-0.parquet").unlink()
            case "missing":
                commit.unlink()
            case "garbage":
                commit.write_bytes(b"\x00\xff" * 50)
            case "truncated":
                commit.write_bytes(commit.read_bytes()[:-20])
            case "empty":
                commit.write_bytes(b"")

    async def test_skip_continues_after_a_vacuumed_file(self, table: Growing, whole: bool) -> None:
        self.damage(table, "vacuumed")
        there = await deliver(table, SKIP, whole=whole)
        assert story(there) == [
            *[(version, "insert", ("id", version)) for version in (1, 2, 3)],
            ("gap", 4, 4, False),
            *[(version, "insert", ("id", version)) for version in (5, 6)],
        ]

    async def test_skip_takes_each_loss_for_itself(self, table: Growing, whole: bool) -> None:
        for version in (2, 3, 6):
            (table.path / f"{version}-0.parquet").unlink()
        there = await deliver(table, SKIP, whole=whole)
        assert [entry[:2] if entry[0] == "gap" else entry[0] for entry in story(there)] == [
            1,
            ("gap", 2),
            ("gap", 3),
            4,
            5,
            ("gap", 6),
        ]

    @pytest.mark.parametrize("damage", ["missing", "garbage", "truncated"])
    async def test_skip_goes_on_at_the_next_checkpoint(self, table: Growing, damage: str, whole: bool) -> None:
        """Nothing else defines the state after a lost commit."""
        self.damage(table, damage)
        error, there = await self.stopped(table, SKIP, whole=whole)
        assert isinstance(error, StateUnknown)
        assert (error.version, there.position()) == (4, Position.end(3))
        assert "on_data_loss" not in error.hint
        self.checkpoint(table, 5)
        there = await deliver(table, SKIP, whole=whole)
        assert story(there) == [
            *[(version, "insert", ("id", version)) for version in (1, 2, 3)],
            ("gap", 4, 4, False),
            *[(version, "insert", ("id", version)) for version in (5, 6)],
        ]

    @pytest.mark.parametrize("damage", ["vacuumed", "missing", "garbage"])
    async def test_resnapshot(self, table: Growing, damage: str, whole: bool) -> None:
        self.damage(table, damage)
        self.checkpoint(table, 5)
        if damage == "vacuumed":
            table.commit(table.remove("4-0.parquet"), table.add(table.data("new.parquet", [44])))
        latest = table.version
        there = await deliver(table, RESNAPSHOT, whole=whole)
        rows = [entry for entry in story(there) if entry[0] == latest]
        ids = {1, 2, 3, 5, 6, 44} if damage == "vacuumed" else {1, 2, 3, 4, 5, 6}
        assert story(there)[:4] == [
            *[(version, "insert", ("id", version)) for version in (1, 2, 3)],
            ("gap", 4, latest, True),
        ]
        assert {entry[2][1] for entry in rows} == ids
        assert len(story(there)) == 4 + len(ids)
        table.insert([7])
        await pipeline(table, _sink(there, whole), until="latest", policy=RESNAPSHOT).run()
        assert story(there)[-1] == (latest + 1, "insert", ("id", 7))

    async def test_a_snapshot_lost_halfway_starts_over(self, table: Growing) -> None:
        there = Destination()
        with anyio.CancelScope() as scope:
            there.then = scope.cancel
            await pipeline(table, there.sink(), "snapshot", max_rows=1).run()
        assert there.position() is not None
        table.commit(*[table.remove(f"{version}-0.parquet") for version in range(1, 7)])
        for version in range(1, 7):
            (table.path / f"{version}-0.parquet").unlink()
        table.insert([70])
        there.then = bool
        await pipeline(table, there.sink(), "snapshot", "latest", policy=RESNAPSHOT).run()
        assert story(there)[1:] == [("gap", 6, 8, True), (8, "insert", ("id", 70))]

    async def test_a_log_cleaned_up_below_our_progress(self, table: Growing, whole: bool) -> None:
        there = Destination()
        await pipeline(table, _sink(there, whole), until="2").run()
        self.checkpoint(table, 5)
        for version in range(5):
            table.commit_file(version).unlink()
        with pytest.raises(VersionGone) as found:
            await pipeline(table, _sink(there, whole), until="latest").run()
        assert found.value.version == 3
        await pipeline(table, _sink(there, whole), until="latest", policy=SKIP).run()
        assert story(there)[2:] == [("gap", 3, 4, False), (5, "insert", ("id", 5)), (6, "insert", ("id", 6))]

    async def test_a_log_that_went_backwards_is_no_loss_to_go_past(self, table: Growing) -> None:
        there = Destination()
        await pipeline(table, there.sink(), until="latest").run()
        for version in (5, 6):
            table.commit_file(version).unlink()
        for policy in (None, SKIP, RESNAPSHOT):
            with pytest.raises(VersionAhead):
                await pipeline(table, there.sink(), policy=policy).run()

    async def test_it_goes_backwards_while_it_is_followed(self, table: Growing) -> None:
        there = Destination()
        found: list[TailerError] = []

        async def follow() -> None:
            with pytest.raises(TailerError) as stopped:
                await pipeline(table, there.sink()).run()
            found.append(stopped.value)

        async with anyio.create_task_group() as group:
            group.start_soon(follow)
            await become(lambda: there.position() == Position.end(6))
            table.commit_file(6).unlink()
        assert isinstance(found[0], VersionAhead)

    async def test_a_corrupt_data_file_is_not_a_loss(self, table: Growing, whole: bool) -> None:
        """It may be repaired, so its rows are not known to be lost."""
        (table.path / "4-0.parquet").write_bytes(b"PAR1 no more PAR1")
        for policy in (None, SKIP):
            error, there = await self.stopped(table, policy, whole=whole)
            assert isinstance(error, DataCorrupt)
            assert there.position() == Position.end(3)

    async def test_an_unknown_earlier_state_is_not_guessed(self, table: Growing) -> None:
        """The log begins at a checkpoint of the version that deletes rows and changes the schema."""
        added = table.add(table.data("7.parquet", [7], x=["x"]))
        change_schema(table, added, table.remove("1-0.parquet"), id="long", x="string")
        self.checkpoint(table, 7)
        for version in range(7):
            table.commit_file(version).unlink()
        there = Destination()
        with pytest.raises(ChangesUnavailable, match="no longer has"):
            await pipeline(table, there.sink(), start="7", until="latest").run()
        assert there.transactions == []

    async def test_a_file_that_was_touched_is_still_that_file(self, table: Growing) -> None:
        there = Destination()
        following = pipeline(table, there.sink())
        async with anyio.create_task_group() as group:
            group.start_soon(following.run)
            await become(lambda: there.position() == Position.end(6))
            (table.path / commit_name(6)).touch()
            table.insert([7])
            await become(lambda: there.position() == Position.end(7))
            following.stop()
        assert there.delivered() == table.rows()

    @pytest.mark.parametrize("damage", ["garbage", "truncated", "empty"])
    async def test_an_old_commit_that_is_damaged_does_not_pass_for_one_that_says_nothing(
        self, table: Growing, damage: str
    ) -> None:
        """Version 4 may have changed the schema; the damaged file does not tell."""
        there = Destination()
        await pipeline(table, there.sink(), until="5").run()
        self.damage(table, damage)
        with pytest.raises(LogCorrupt) as found:
            await pipeline(table, there.sink(), until="latest").run()
        assert found.value.version == 4
        assert there.position() == Position.end(5)

    async def test_two_losses_of_different_kinds_are_one_way_on(self, table: Growing, whole: bool) -> None:
        (table.path / "4-0.parquet").unlink()
        table.commit_file(5).unlink()
        self.checkpoint(table, 5)
        assert story(await deliver(table, SKIP, whole=whole))[3:] == [("gap", 4, 5, False), (6, "insert", ("id", 6))]

    async def test_an_impossible_snapshot_is_an_error(self, table: Growing, whole: bool) -> None:
        """A file that is still live is missing, so no snapshot can be read. That is an error without a retry."""
        (table.path / "1-0.parquet").unlink()
        error, there = await self.stopped(table, RESNAPSHOT, whole=whole)
        assert isinstance(error, FileVacuumed)
        assert there.delivered() == []

    async def test_the_rest_of_a_snapshot_is_not_skipped(self, table: Growing) -> None:
        (table.path / "3-0.parquet").unlink()
        there = Destination()
        with pytest.raises(FileVacuumed):
            await pipeline(table, there.sink(), "snapshot", "latest", policy=SKIP, max_rows=1).run()
        assert {entry[2] for entry in story(there)} <= {("id", 1), ("id", 2)}

    async def test_a_gap_is_reported_at_its_place(self, table: Growing) -> None:
        """The table is replaced later on."""
        (table.path / "3-0.parquet").unlink()
        replace_table(table, table.remove("6-0.parquet"))
        there = await deliver(table, SKIP)
        assert ("gap", 3, 3, False) in story(there, APP)
        assert story(there, OTHER) == [(7, "delete", ("id", 6))]

    async def test_an_unknown_schema_change_is_not_guessed(self, table: Growing) -> None:
        """The log was cleaned up to a checkpoint of the next version, which may change the schema."""
        there = Destination()
        await pipeline(table, there.sink(), until="latest").run()
        change_schema(table, table.add(table.data("7.parquet", [7], x=["x"])), id="long", x="string")
        self.checkpoint(table, 7)
        for version in range(7):
            table.commit_file(version).unlink()
        with pytest.raises(ChangesUnavailable, match="the log no longer has the schema before it"):
            await pipeline(table, there.sink(), until="latest").run()
        table.insert([8])
        await pipeline(table, there.sink(), until="latest", policy=SKIP).run()
        assert story(there)[6:] == [("gap", 7, 7, False), (8, "insert", ("id", 8), ("x", None))]

    @pytest.mark.parametrize("policy", [None, SKIP, RESNAPSHOT], ids=["fail", "skip", "resnapshot"])
    async def test_a_rewritten_log_is_detected(self, table: Growing, policy: Policy | None) -> None:
        """Restored from a copy and continued: the delivered versions are no part of it."""
        there = Destination()
        found: list[TailerError] = []

        async def follow() -> None:
            with pytest.raises(TailerError) as stopped:
                await pipeline(table, there.sink(), policy=policy, poll_interval_s=0.3).run()
            found.append(stopped.value)

        async with anyio.create_task_group() as group:
            group.start_soon(follow)
            await become(lambda: there.position() == Position.end(6))
            for version in (5, 6):
                table.commit_file(version).unlink()
            table.version = 4
            for each in (55, 66, 77):
                table.commit(table.add(table.data(f"other-{each}.parquet", [each])))
        assert isinstance(found[0], LogRewritten | VersionAhead)
        assert there.delivered() == table.rows()

    async def test_an_unreadable_later_version_does_not_block_earlier_ones(self, table: Growing) -> None:
        table.commit({"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["teleport"]}})
        table.insert([8])
        error, there = await self.stopped(table)
        assert isinstance(error, UnsupportedFeature)
        assert error.version == 7
        assert there.delivered() == table.rows(0, 6)
