"""Iceberg tables as pipelines meet them: branches, tags, rollbacks, expiry, schemas over time, and what is refused."""

import json
import random
import shutil
import struct
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.rules import PairingRules
from tailer.cli.doctor.feed import check_feed
from tailer.config.tables import TableRef, open_files
from tailer.engine.local import LocalEngine
from tailer.errors import (
    ChangesUnavailable,
    ConfigError,
    DataCorrupt,
    FileOutsideTable,
    FileVacuumed,
    LogCorrupt,
    NotATable,
    TailerError,
    UnsupportedFeature,
    VersionAhead,
    VersionGone,
)
from tailer.events import ROW_ID
from tailer.formats.iceberg.table import IcebergTableLog
from tailer.pipeline.policy import OnDataLoss, Policy
from tailer.pipeline.row_delivery import row_pipeline
from tailer.plan import ChangePlan, TaskKind
from tailer.start import Start
from tailer.stores.local import LocalStore
from tailer.stores.ranges import ObjectEnd
from tailer.stores.wakeup import TimerWake
from tailer.table_log import TableLog
from tests.support.iceberg.table import COLUMNS, IcebergTable
from tests.support.streams import Destination

pytestmark = pytest.mark.anyio

Row = tuple[Any, ...]


@pytest.fixture
def table(tmp_path: Path) -> IcebergTable:
    """An empty table of format version 2."""
    return IcebergTable(tmp_path / "table")


def rows(*ids: int | None) -> Mapping[str, list[Any]]:
    """Return rows with these ids."""
    return {"id": list(ids), "name": [f"n{number}" for number in ids]}


def opened(table: IcebergTable, branch: str | None = None) -> TableLog:
    """Open a table."""
    return TableRef(str(table.path), branch=branch).open()


async def delivered(
    plan: ChangePlan, rules: PairingRules | None = None, columns: tuple[str, ...] = ("id",)
) -> list[Row]:
    """Return the kind of change and some columns of each row of a plan."""
    engine = ChangelogEngine(LocalEngine(), rules or PairingRules())
    async with engine.run([plan]) as batches:
        found = [row async for batch in batches for row in batch.rows.to_pylist()]
    return [(row["_change_type"], *(row[column] for column in columns if column in row)) for row in found]


async def changes(log: TableLog, first: int, rules: PairingRules | None = None) -> dict[int, list[Row]]:
    """Return the changes of each version from one on."""
    await log.seek(first)
    found = {}
    while (plan := await log.next_plan()) is not None:
        found[plan.version] = await delivered(plan, rules)
    return found


async def run(
    table: IcebergTable, there: Destination, start: str = "earliest", policy: Policy | None = None
) -> list[Row]:
    """Deliver a table up to its newest version."""
    places = Start.parse(start), Start.parse("latest")
    pipeline = row_pipeline("p", opened(table), there.sink(), LocalEngine(), TimerWake(), *places, policy)
    await pipeline.run()
    found = there.rows(f"p/{table.table_id}")
    return [(row["_commit_version"], row["_change_type"], row["id"]) for row in found]


async def test_a_branch_and_main_grow_apart(table: IcebergTable) -> None:
    table.commit([table.data(rows(1))])
    table.commit([table.data(rows(2))], branch="dev")
    table.commit([table.data(rows(3))])
    table.commit([table.data(rows(4))], branch="dev")
    table.tag("t", 2)
    dev, main = opened(table, "dev"), opened(table)
    assert await changes(main, 1) == {1: [("insert", 1)], 3: [("insert", 3)]}
    assert await changes(dev, 1) == {1: [("insert", 1)], 2: [("insert", 2)], 4: [("insert", 4)]}
    assert (await main.latest(), await dev.latest()) == (3, 4)
    assert await main.table_id() == table.table_id != await dev.table_id()
    assert (await dev.resolve(Start.parse("tag:t"))).version == 3
    assert (await main.resolve(Start.parse("3"))).version == 2  # the version after the one before
    assert (await main.resolve(Start.parse("1970-01-01T00:00:02Z"))).version == 2
    assert await main.resolve_end(Start.parse("1970-01-01T00:00:02Z")) == 1
    with pytest.raises(ConfigError, match="not one of the branch main"):
        await main.resolve(Start.parse("tag:t"))
    with pytest.raises(ConfigError, match="has no tag 'u'"):
        await main.resolve(Start.parse("tag:u"))
    with pytest.raises(ConfigError, match="has no branch 'x'"):
        await opened(table, "x").latest()
    with pytest.raises(VersionAhead):
        await main.seek(6)


async def test_a_rollback_after_delivery_stops_by_name_and_a_snapshot_is_the_way_on(table: IcebergTable) -> None:
    for number in (1, 2, 3):
        table.commit([table.data(rows(number))])
    there = Destination()
    await run(table, there)
    log = opened(table)
    await log.seek(4)
    table.set_branch("main", 1)
    with pytest.raises(ChangesUnavailable, match="version 3, which was delivered"):
        await log.next_plan()
    with pytest.raises(ChangesUnavailable, match="version 3, which was delivered"):
        await run(table, there)
    table.commit([table.data(rows(4))])
    for _ in range(2):
        with pytest.raises(ChangesUnavailable, match="version 3, which was delivered"):
            await run(table, there)
    found = await run(table, there, policy=Policy(on_data_loss=OnDataLoss.RESNAPSHOT))
    assert found[3:] == [(4, "insert", 1), (4, "insert", 4)]
    assert await changes(opened(table), 1) == {1: [("insert", 1)], 4: [("insert", 4)]}


async def test_a_table_that_was_replaced_stops_by_name_and_a_snapshot_is_the_way_on(table: IcebergTable) -> None:
    """`REPLACE TABLE` keeps the id of the table and its numbers, but its next snapshot has no parent."""
    table.commit([table.data(rows(1))])
    table.commit([table.data(rows(2))])
    there, log = Destination(), opened(table)
    await run(table, there)
    await log.seek(3)
    del table.refs["main"]
    table.commit([table.data(rows(3))])
    with pytest.raises(ChangesUnavailable, match="version 2, which was delivered"):
        await log.next_plan()
    with pytest.raises(ChangesUnavailable, match="version 2, which was delivered"):
        await run(table, there)
    assert (await run(table, there, policy=Policy(on_data_loss=OnDataLoss.RESNAPSHOT)))[2:] == [(3, "insert", 3)]
    for start in ("earliest", "3", "snapshot"):
        anew = Destination()
        assert await run(table, anew, start) == [(3, "insert", 3)]
        assert await run(table, anew, start) == [(3, "insert", 3)]


async def test_a_gap_is_no_loss(table: IcebergTable) -> None:
    """Progress between versions whose numbers have a gap goes on, however it began."""
    table.commit([table.data(rows(1))])
    table.commit([table.data(rows(2))], branch="dev")
    table.commit([table.data(rows(3))])
    for start in ("earliest", "1", "2", "3", "latest", "snapshot"):
        there = Destination()
        await run(table, there, start)
        table.commit([table.data(rows(9))], branch="dev")
        last = table.commit([table.data(rows(10))])
        assert (await run(table, there, start))[-1] == (last, "insert", 10)


async def test_what_was_expired_is_named(table: IcebergTable) -> None:
    for number in (1, 2, 3):
        table.commit([table.data(rows(number))])
    there = Destination()
    table.expire(1)
    log = opened(table)
    assert (await log.resolve(Start.parse("earliest"))).version == 3
    assert await changes(log, 3) == {3: [("insert", 3)]}
    with pytest.raises(VersionGone, match="version 2 is missing") as gone:
        await log.seek(2)
    assert (gone.value.earliest, gone.value.latest, gone.value.resume) == (2, 3, 3)
    assert [row[2] for row in await run(table, there, "snapshot")] == [1, 2, 3]
    for number in (4, 5, 6):
        table.commit([table.data(rows(number))])
    table.expire(2, 3, 4)
    with pytest.raises(VersionGone, match="version 4 is missing"):
        await run(table, there)
    assert (await run(table, there, policy=Policy(on_data_loss=OnDataLoss.SKIP)))[3:] == [(6, "insert", 6)]


async def test_what_pyiceberg_expired_is_named(tmp_path: Path) -> None:
    """It forgets the parent of what follows an expired snapshot, which then looks like the first snapshot."""
    catalog = load_catalog(
        "prod", type="sql", uri=f"sqlite:///{tmp_path / 'catalog.db'}", warehouse=f"file://{tmp_path}"
    )
    catalog.create_namespace("sales")
    kept = catalog.create_table("sales.orders", pa.schema([("id", pa.int64())]))
    for number in (1, 2, 3):
        kept.append(pa.table({"id": [number]}))
    kept.delete("id = 1")
    for oldest in (3, 4):
        gone = [each.snapshot_id for each in kept.snapshots() if (each.sequence_number or 0) < oldest]
        kept.maintenance.expire_snapshots().by_ids(gone).commit()
        ref = TableRef(kept.metadata_location.removeprefix("file://"))
        log, check = ref.open(), await check_feed(ref, 100, None, open_files(), lambda _: None)
        assert (check.versions, check.unread) == (range(oldest + 1, 5), {})
        assert (await log.resolve(Start.parse("earliest"))).version == oldest + 1
        with pytest.raises(VersionGone, match=f"version {oldest} is missing"):
            await log.seek((await log.resolve(Start.parse(str(oldest)))).version)
    catalog.close()


async def test_what_expires_below_a_running_pipeline_is_named(table: IcebergTable) -> None:
    """The difference of the snapshots around it could still be read, without what happened in between."""
    table.commit([table.data(rows(1))])
    log = opened(table)
    await log.seek(1)
    assert await log.next_plan() is not None
    for number in (2, 3, 4):
        table.commit([table.data(rows(number))])
    table.expire(1, 2)
    with pytest.raises(VersionGone, match="version 2 is missing"):
        await log.next_plan()


async def test_a_table_without_snapshots(table: IcebergTable) -> None:
    table.publish()
    log = opened(table)
    assert (await log.latest(), (await log.resolve(Start.parse("earliest"))).version) == (0, 0)
    there = Destination()
    assert await run(table, there, "snapshot") == []
    table.commit([table.data(rows(1))])
    assert await run(table, there, "snapshot") == [(1, "insert", 1)]


async def test_updates_have_both_images_by_row_id_or_by_key(table: IcebergTable) -> None:
    """Version 3 pairs rows by their ids. An upsert by equality deletes is paired where there is a key."""
    table.version = 3
    table.commit([table.data(rows(1, 2, 3))])
    old = table.states[table.id_of(1)][0]
    ids = pa.array([1], pa.int64())
    new = table.data({"id": [20], "name": ["n2"], "_row_id": ids}, {"id": 1, "name": 2, "_row_id": 2147483540})
    table.commit([new, table.vector(old, [1])])
    keys = table.equality({"id": [3]}, {"id": 1})
    table.commit([keys, table.data({"id": [3], "name": ["new"]})])
    pairs = PairingRules(compute_updates=True, key=("id",))
    update = [("update_preimage", 2), ("update_postimage", 20)]
    found = await changes(opened(table), 2)
    assert found == {2: update, 3: [("delete", 3), ("insert", 3)]}
    assert (await changes(opened(table), 3, pairs))[3] == [("update_preimage", 3), ("update_postimage", 3)]


async def test_rows_of_before_an_upgrade_have_no_ids_when_they_are_deleted(table: IcebergTable) -> None:
    """The first snapshot of format version 3 numbers them, but those that it deletes were delivered without ids."""
    file = table.data(rows(1, 2))
    table.commit([file])
    table.version, table.next_row_id = 3, 2
    table.states[table.id_of(1)] = [replace(table.file(file.path), first_row_id=0)]
    table.commit([table.vector(file, [0])])
    table.commit([table.vector(file, [0, 1])], [table.states[table.id_of(2)][-1]])
    log = opened(table)
    await log.seek(2)
    plans = [plan for _ in range(2) if (plan := await log.next_plan()) is not None]
    found = [row for plan in plans for row in await delivered(plan.with_row_ids(), columns=("id", ROW_ID))]
    assert found == [("delete", 1, None), ("delete", 2, 1)]


async def test_deletes_that_were_dropped_bring_rows_back(table: IcebergTable) -> None:
    file = table.data(rows(1, 2, 3))
    table.commit([file])
    mark = table.positions([(file, 0), (file, 2)])
    table.commit([mark])
    table.commit([table.positions([(file, 2)])], [mark])
    found = await changes(opened(table), 2)
    assert found == {2: [("delete", 1), ("delete", 3)], 3: [("insert", 1)]}


async def test_columns_are_known_by_field_ids(table: IcebergTable) -> None:
    """Two names change places, a column is dropped and added again: no row changes by that."""
    table.version = 3
    file = table.data({"id": [1, 2], "name": ["a", "b"]})
    table.commit([file])
    late = {"id": 3, "name": "id", "type": "string"}
    table.columns = ({"id": 1, "name": "name", "type": "long"}, late)
    new = table.data({"name": [1], "id": ["x"]})
    table.commit([new], [file])
    log = opened(table)
    await log.seek(2)
    plan = await log.next_plan()
    assert plan is not None
    assert plan.schema.names == ["name", "id"]
    assert plan.replaced == (("name",), ("id",))
    rewritten = await delivered(plan, columns=("id", "name"))
    # The dropped column had values, so the row that was written anew is another one.
    assert rewritten == [("delete", 1, "a"), ("delete", 2, "b"), ("insert", "x", 1)]


async def test_a_rewrite_after_a_new_column_with_a_default_stops_too(table: IcebergTable) -> None:
    """A row that is written anew with the default is equal to the one before, as that is read now."""
    table.version = 3
    file = table.data(rows(1, 2))
    table.commit([file])
    table.columns = (*COLUMNS, {"id": 3, "name": "c", "type": "long", "initial-default": 5})
    table.commit([table.data({**rows(1, 2), "c": [5, 6]})], [file])
    with pytest.raises(ChangesUnavailable, match="version 2: column c is new, and its default"):
        await changes(opened(table), 2)


async def test_a_new_column_with_a_default_stops_where_rows_get_it_unwritten(table: IcebergTable) -> None:
    """All rows of before have the default from then on, which no file says: a snapshot has it."""
    table.version = 3
    file = table.data(rows(1))
    table.commit([file])
    there = Destination()
    await run(table, there)
    table.columns = (*COLUMNS, {"id": 3, "name": "c", "type": "long", "initial-default": 5})
    table.commit([table.data({**rows(2), "c": [6]})])
    with pytest.raises(ChangesUnavailable, match="version 2: column c is new, and its default") as stopped:
        await run(table, there)
    assert "resnapshot" in stopped.value.hint
    await run(table, there, policy=Policy(on_data_loss=OnDataLoss.RESNAPSHOT))
    found = there.rows(f"p/{table.table_id}")
    assert [(row["id"], row.get("c")) for row in found] == [(1, None), (1, 5), (2, 6)]
    table.commit([table.data({**rows(3), "c": [7]})])
    assert await changes(opened(table), 3) == {3: [("insert", 3)]}


async def test_a_compaction_after_a_new_column_with_a_default_stops_too(table: IcebergTable) -> None:
    table.version = 3
    file = table.data(rows(1))
    table.commit([file])
    struct = {"type": "struct", "fields": [{"id": 4, "name": "f", "type": "long"}]}
    table.columns = (*COLUMNS, {"id": 3, "name": "s", "type": struct})
    table.commit([])
    assert await changes(opened(table), 2) == {2: []}
    late = {"id": 5, "name": "g", "type": "long", "initial-default": 5}
    struct = {"type": "struct", "fields": [*struct["fields"], late]}
    table.columns = (*COLUMNS, {"id": 3, "name": "s", "type": struct})
    table.commit([table.data(rows(1))], [file], operation="replace")
    with pytest.raises(ChangesUnavailable, match="version 3: column g is new"):
        await changes(opened(table), 3)


async def test_a_commit_of_deletes_reads_the_manifests_of_its_partitions_alone(table: IcebergTable) -> None:
    table.columns = (*COLUMNS, {"id": 3, "name": "p", "type": "string"})
    table.specs = [({"name": "p", "source-id": 3, "field-id": 1000, "transform": "identity"},)]
    near, far = [(("p", name),) for name in ("a", "b")]
    files = {
        name: table.data(rows(number, 10 + number), partition=place)
        for number, (name, place) in enumerate([("hit", near), ("kept", near), ("away", far)])
    }
    for file in files.values():
        table.commit([file])
    table.commit([table.positions([(files["away"], 1)], partition=far)])
    assert await read_manifests(table, 4, ["away"]) == [("delete", 12)]
    table.commit([table.positions([(files["hit"], 0)], partition=near)])
    assert await read_manifests(table, 5, ["hit"]) == [("delete", 0)]
    table.commit([table.equality({"id": [0, 1, 2]}, {"id": 1}, partition=near)])
    assert await read_manifests(table, 6, ["hit", "kept"]) == [("delete", 1)]
    table.specs.append(())
    table.commit([table.equality({"id": [0, 1, 2]}, {"id": 1}, spec=1)])
    assert await read_manifests(table, 7, ["hit", "kept", "away"]) == [("delete", 2)]


async def read_manifests(table: IcebergTable, version: int, needed: list[str]) -> list[Row]:
    """Return the changes of a version, while manifests of the first three versions are there only if needed."""
    places = {
        name: table.manifest([file for file in table.states[table.id_of(number)] if file.sequence == number])
        for number, name in enumerate(["hit", "kept", "away"], start=1)
    }
    hidden = [(path, path.rename(f"{path}.hidden")) for name, path in places.items() if name not in needed]
    log = opened(table)
    await log.seek(version)
    plan = await log.next_plan()
    assert plan is not None
    for path, hidden_path in hidden:
        hidden_path.rename(path)
    return await delivered(plan)


async def test_keys_in_a_store_are_read_by_ranges(table: IcebergTable) -> None:
    """Of a large file, the key column alone is read."""
    noise = [random.Random(number).randbytes(300).hex() for number in range(20_000)]
    file = table.data({"id": list(range(20_000)), "name": noise})
    table.commit([replace(file, path="s3://bucket/data/1.parquet")])
    table.commit([table.equality({"id": [7, 20_001]}, {"id": 1})])
    store = Ranges(Path(file.path))
    log = IcebergTableLog(LocalStore(table.path), lambda _: cast(Any, store), ("s3://bucket/data",))
    await log.seek(2)
    plan = await log.next_plan()
    assert plan is not None
    assert [(task.kind, task.uri, task.include and task.include.cardinality) for task in plan.tasks] == [
        (TaskKind.DELETE, "s3://bucket/data/1.parquet", 1)
    ]
    assert 0 < store.read_bytes < file.size / 4


async def test_an_equality_delete_reads_the_files_that_may_have_its_keys(table: IcebergTable) -> None:
    """Keys that are far apart leave out the files between them."""
    files = [table.data(rows(*range(10 * number, 10 * number + 10))) for number in range(10)]
    table.commit(files)
    table.commit([table.positions([(file, 0) for file in files[1:-1]])])
    table.commit([table.equality({"id": [3, 96, 100]}, {"id": 1})])
    for file in files[1:-1]:
        shutil.move(file.path, table.path)
    log = opened(table)
    await log.seek(3)
    plan = await log.next_plan()
    assert plan is not None
    assert await delivered(plan) == [("delete", 3), ("delete", 96)]
    table.commit([table.equality({"id": [5, 6, None]}, {"id": 1})])  # a null, and no file has one
    plan = await log.next_plan()
    assert plan is not None
    assert await delivered(plan) == [("delete", 5), ("delete", 6)]


class Ranges:
    """A store that can only read ranges of one file. `read_bytes`: those that were read."""

    uri = "s3://bucket/data"

    def __init__(self, path: Path) -> None:
        self._data = path.read_bytes()
        self.read_bytes = 0

    def ranges(self, _: str) -> "Ranges":
        """Return the ranges of the file."""
        return self

    def end(self, length: int) -> ObjectEnd:
        """See `ObjectRanges.end`."""
        self.read_bytes += length
        return ObjectEnd(len(self._data), self._data[-length:])

    def read(self, offset: int, length: int) -> bytes:
        """See `ObjectRanges.read`."""
        self.read_bytes += length
        return self._data[offset : offset + length]


async def test_a_condition_leaves_out_files_whose_bounds_show_that_no_row_fulfils_it(table: IcebergTable) -> None:
    for number in (1, 2, 3, 4):
        table.commit([table.data(rows(number, number + 1))])
    table.commit([table.data({"id": [None, None], "name": ["x", "y"]})])
    for number in (1, 5):
        table.lose(number)
    policy = Policy(where="id > 2 AND name < 'n5'")
    places = Start.parse("earliest"), Start.parse("latest")
    there = Destination()
    log = TableRef(str(table.path)).open(policy=Policy(where="true"))
    await row_pipeline("p", log, there.sink(), LocalEngine(), TimerWake(), *places, policy).run()
    assert [row["id"] for row in there.rows(f"p/{table.table_id}")] == [3, 3, 4, 4]


async def test_a_schema_is_made_once(table: IcebergTable) -> None:
    for number in (1, 2):
        table.commit([table.data(rows(number))])
    log = opened(table)
    await log.seek(1)
    first, second = await log.next_plan(), await log.next_plan()
    table.commit([table.data(rows(3))])
    third = await log.next_plan()
    assert first is not None
    assert second is not None
    assert third is not None
    assert first.schema is second.schema is third.schema


async def test_a_look_at_newer_metadata_hides_no_rollback(table: IcebergTable) -> None:
    for number in (1, 2):
        table.commit([table.data(rows(number))])
    log = opened(table)
    await log.seek(3)
    table.set_branch("main", 1)
    table.commit([table.data(rows(4))])
    assert await log.latest() == 3
    for _ in range(2):
        with pytest.raises(ChangesUnavailable, match="version 2, which was delivered"):
            await log.next_plan()


async def test_another_snapshot_with_the_number_of_the_delivered_one_stops(table: IcebergTable) -> None:
    """A copy of the metadata was put back, and what follows it has numbers that were given before."""
    for number in (1, 2):
        table.commit([table.data(rows(number))])
    log = opened(table)
    await log.seek(3)
    table.refs["main"] = {"snapshot-id": table.id_of(1), "type": "branch"}
    del table.snapshots[1:]
    table.sequence = 1
    table.commit([table.data(rows(9))])
    with pytest.raises(ChangesUnavailable, match="version 2, which was delivered"):
        await log.next_plan()


async def test_a_table_that_was_made_again_has_another_id(table: IcebergTable) -> None:
    for number in (1, 2, 3):
        table.commit([table.data(rows(number))])
    log = opened(table)
    await log.seek(4)
    shutil.rmtree(table.path)
    other = IcebergTable(table.path)
    other.commit([other.data(rows(9))])
    plans = [plan for _ in range(40) if (plan := await log.next_plan()) is not None]
    assert [(plan.table_id, plan.version) for plan in plans] == [(other.table_id, 1)]


async def test_an_append_reads_no_deletes_of_before(table: IcebergTable) -> None:
    file = table.data(rows(1, 2))
    table.commit([file])
    table.commit([table.positions([(file, 0)])])
    mark = table.states[table.id_of(2)][1]
    table.commit([table.data(rows(3))])
    table.manifest([mark]).unlink()
    assert await changes(opened(table), 3) == {3: [("insert", 3)]}
    with pytest.raises(ChangesUnavailable, match="is gone"):
        await changes(opened(table), 2)


async def test_an_encrypted_table_is_refused(table: IcebergTable) -> None:
    table.commit([table.data(rows(1))])
    table.snapshots[0]["key-id"] = "k"
    table.publish()
    with pytest.raises(UnsupportedFeature, match="encryption"):
        await changes(opened(table), 1)


async def test_a_promoted_key_and_a_null_one_find_their_rows(table: IcebergTable) -> None:
    table.columns = ({"id": 1, "name": "id", "type": "int"}, COLUMNS[1])
    table.commit([table.data(rows(1, 2, None))])
    table.columns = COLUMNS
    table.commit([table.equality({"id": pa.array([2, None, 2**40], pa.int64())}, {"id": 1})])
    again = table.data(rows(2))
    late = table.equality({"id": pa.array([2], pa.int64())}, {"id": 1})
    table.commit([again, late])  # deletes nothing of its own commit
    found = await changes(opened(table), 2)
    assert found == {2: [("delete", 2), ("delete", None)], 3: [("insert", 2)]}


async def test_a_key_that_is_null_alone_finds_its_row(table: IcebergTable) -> None:
    """No bounds have it: those of the file are of its other rows."""
    table.commit([table.data(rows(1, None))])
    table.commit([table.equality({"id": pa.array([None], pa.int64())}, {"id": 1})])
    assert await changes(opened(table), 2) == {2: [("delete", None)]}


async def test_files_without_field_ids_are_read_by_the_name_mapping(table: IcebergTable) -> None:
    table.commit([table.data(rows(1), ids={})])
    await opened(table).seek(1)
    with pytest.raises(DataCorrupt, match="no field ids"):
        await changes(opened(table), 1)
    names = [{"field-id": 1, "names": ["id"]}, {"field-id": 2, "names": ["other", "name"]}]
    table.properties["schema.name-mapping.default"] = json.dumps(names)
    table.publish()
    assert await changes(opened(table), 1) == {1: [("insert", 1)]}


async def test_compressed_metadata_and_a_hint_that_lags(table: IcebergTable) -> None:
    table.compressed = True
    for number in (1, 2, 3):
        table.commit([table.data(rows(number))])
    (table.path / "metadata" / "version-hint.text").write_text("1\n")
    log = opened(table)
    assert list(await changes(log, 1)) == [1, 2, 3]
    table.commit([table.data(rows(4))])
    table.compressed = False
    table.commit([table.data(rows(5))])
    plans = [await log.next_plan() for _ in range(40)]  # another spelling is found by a listing, now and then
    assert [plan.version for plan in plans if plan is not None] == [4, 5]


async def test_names_of_a_catalog_are_refused_but_one_state_can_be_read(table: IcebergTable) -> None:
    table.commit([table.data(rows(1))])
    table.commit([table.data(rows(2))])
    folder = table.path / "metadata"
    for number in (1, 2):
        (folder / f"v{number}.metadata.json").rename(folder / f"0000{number}-abc.metadata.json")
    with pytest.raises(NotATable, match="named by a catalog") as refused:
        await opened(table).latest()
    assert "00002-abc.metadata.json" in refused.value.hint
    log = TableRef(str(folder / "00001-abc.metadata.json")).open()
    assert (log.uri, await changes(log, 1)) == (str(table.path), {1: [("insert", 1)]})


async def test_the_first_format_version_is_read_but_not_followed(table: IcebergTable) -> None:
    table.version = 1
    table.commit([table.data(rows(1, 2))])
    with pytest.raises(UnsupportedFeature, match="needs format version 1") as refused:
        await run(table, Destination())
    assert "format-version to 2" in refused.value.hint
    log = opened(table)
    point = await log.resolve(Start.parse("snapshot"))
    pages = [await delivered(page) async for page in log.snapshot_plans(point.version)]
    assert (point.snapshot, pages) == (True, [[("insert", 1), ("insert", 2)]])
    table.version = 2
    table.publish()
    with pytest.raises(TailerError):  # what it delivered had another number
        await opened(table).seek(point.version + 1)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (UnsupportedFeature, "a file in ORC"),
        (UnsupportedFeature, "of type geometry"),
        (UnsupportedFeature, "equality deletes by column score"),
        (LogCorrupt, "its key 9 is no column"),
        (LogCorrupt, "two deletion vectors"),
        (DataCorrupt, "the manifest says 2"),
        (FileOutsideTable, "/elsewhere/f.parquet"),
        (FileVacuumed, "is missing"),
        (LogCorrupt, "twice"),
    ],
)
async def test_what_cannot_be_read_is_named(table: IcebergTable, error: type[TailerError], words: str) -> None:
    table.version = 3
    file = table.data(rows(1, 2))
    table.commit([file])
    match words.split(maxsplit=1)[0]:
        case "a":
            table.commit([replace(table.data(rows(3)), format="ORC")])
        case "of":
            table.columns = (*COLUMNS, {"id": 3, "name": "g", "type": "geometry"})
            table.commit([])
        case "equality":
            table.columns = (*COLUMNS, {"id": 3, "name": "score", "type": "double"})
            table.commit([table.equality({"score": [1.0]}, {"score": 3})])
        case "its":
            table.commit([replace(table.equality({"id": [1]}, {"id": 1}), keys=(9,))])
        case "two":
            table.commit([table.vector(file, [0]), table.vector(file, [1], 8)])
        case "the":
            table.commit([replace(table.vector(file, [0]), records=2)])
        case "/elsewhere/f.parquet":
            table.commit([replace(table.data(rows(3)), path="file:///elsewhere/f.parquet")])
        case "is":
            table.commit([replace(table.positions([(file, 0)]), path=f"{file.path}.gone")])
        case "twice":
            table.commit([new := table.data(rows(3)), new])
    with pytest.raises(error, match=words):
        await changes(opened(table), 2)


@pytest.mark.parametrize(
    ("kind", "transform", "types", "values"),
    [
        ("date", "day", ({"type": "int", "logicalType": "date"}, "int"), (date(2024, 1, 1), 19723)),
        ("date", "identity", ("int", {"type": "int", "logicalType": "date"}), (19723, date(2024, 1, 1))),
        ("double", "identity", ("double", "double"), (float("nan"), float("nan"))),
        ("timestamp_ns", "identity", ("long", "long"), (1704067200000000000, 1704067200000000000)),
    ],
)
async def test_deletes_are_of_the_partition_however_a_writer_spells_it(
    tmp_path: Path, kind: str, transform: str, types: tuple[Any, Any], values: tuple[Any, Any]
) -> None:
    field = {"name": "x", "transform": transform, "source-id": 2, "field-id": 1000}
    table = IcebergTable(tmp_path / "table", columns=(COLUMNS[0], {"id": 2, "name": "x", "type": kind}))
    table.specs[0] = [{**field, "avro": types[0]}]
    file = table.data({"id": [1, 2, 3]}, partition=(("x", values[0]),))
    table.commit([file])
    table.specs[0] = [{**field, "avro": types[1]}]
    there = {"partition": (("x", values[1]),)}
    table.commit([table.positions([(file, 0)], **there), table.equality({"id": [2]}, {"id": 1}, **there)])
    log = opened(table)
    assert (await changes(log, 1))[2] == [("delete", 1), ("delete", 2)]
    (plan,) = [plan async for plan in log.snapshot_plans(2)]
    assert [row[1] for row in await delivered(plan)] == [3]
    if kind == "date" and transform == "identity":
        assert [row[1] for row in await delivered(plan, columns=("x",))] == [date(2024, 1, 1)]


async def test_an_id_that_stands_for_another_schema_is_read_anew(table: IcebergTable) -> None:
    """Metadata can be set back, by a catalog or from a copy: numbers of schemas are given again then."""
    table.commit([table.data(rows(1))])
    log = opened(table)
    await log.seek(2)
    table.columns = (*COLUMNS, {"id": 3, "name": "a", "type": "string"})
    table.publish()
    assert await log.next_plan() is None
    newest = await cast("IcebergTableLog", log).newest()
    assert cast("IcebergTableLog", log).schema_of(newest, None).names == ["id", "name", "a"]
    table.schemas.pop()
    table.columns = (*COLUMNS, {"id": 3, "name": "b", "type": "long"})
    table.commit([table.data({"id": [2], "name": ["x"], "b": [7]})])
    plan = await log.next_plan()
    assert plan is not None
    assert await delivered(plan, columns=("id", "b")) == [("insert", 2, 7)]


async def test_a_key_that_was_a_date_finds_its_rows(tmp_path: Path) -> None:
    """Bounds of the file are days, and those of the delete microseconds."""
    table = IcebergTable(tmp_path / "table", 3, (COLUMNS[0], {"id": 2, "name": "x", "type": "date"}))
    days = (date(2024, 1, 1), date(2024, 1, 2))
    file = table.data({"id": [1, 2], "x": list(days)})
    table.commit([replace(file, bounds=((2, (struct.pack("<i", 19723), struct.pack("<i", 19724)), 0),))])
    table.columns = (COLUMNS[0], {"id": 2, "name": "x", "type": "timestamp"})
    moment = struct.pack("<q", int(datetime(2024, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000)
    delete = table.equality({"x": [datetime(2024, 1, 1)]}, {"x": 2})  # noqa: DTZ001 - as the column has it
    table.commit([replace(delete, bounds=((2, (moment, moment), 0),))])
    assert await changes(opened(table), 2) == {2: [("delete", 1)]}


async def test_a_default_in_nanoseconds(tmp_path: Path) -> None:
    for text, nanos in (("2024-01-01T00:00:00.5", 500_000_000), ("2024-01-01T00:00:00.123456789", 123_456_789)):
        table = IcebergTable(tmp_path / str(nanos), 3)
        file = table.data(rows(1))
        table.columns = (*COLUMNS, {"id": 3, "name": "x", "type": "timestamp_ns", "initial-default": text})
        table.commit([file])
        log = opened(table)
        await log.seek(1)
        plan = await log.next_plan()
        assert plan is not None
        async with ChangelogEngine(LocalEngine(), PairingRules()).run([plan]) as batches:
            (batch,) = [batch async for batch in batches]
        assert batch.rows["x"].cast(pa.int64()).to_pylist() == [1_704_067_200_000_000_000 + nanos]


async def test_a_compaction_after_a_name_was_given_to_another_column_says_so(table: IcebergTable) -> None:
    file = table.data(rows(1))
    table.commit([file])
    table.columns = (COLUMNS[0], {"id": 3, "name": "name", "type": "string"})
    table.commit([table.data({"id": [1], "name": [None]})], [file], operation="replace")
    log = opened(table)
    await log.seek(2)
    plan = await log.next_plan()
    assert plan is not None
    assert (plan.tasks, plan.replaced) == ((), (("name",),))


async def test_a_file_that_is_added_again_has_the_rows_back_that_older_deletes_took(table: IcebergTable) -> None:
    file = table.data(rows(1, 2))
    table.commit([file])
    table.commit([table.equality({"id": [1]}, {"id": 1})])
    table.commit([file], [file])
    assert await changes(opened(table), 2) == {2: [("delete", 1)], 3: [("insert", 1)]}


async def test_deletes_that_name_nothing_are_named(tmp_path: Path) -> None:
    for reason in ("names no data file", "names no column"):
        table = IcebergTable(tmp_path / reason, 3)
        file = table.data(rows(1, 2))
        table.commit([file])
        vector, by_key = table.vector(file, [0]), table.equality({"id": [1]}, {"id": 1})
        is_vector = reason == "names no data file"
        table.commit([replace(vector, referenced=None) if is_vector else replace(by_key, keys=())])
        with pytest.raises(LogCorrupt, match=reason):
            await changes(opened(table), 2)


async def test_a_default_in_a_new_struct_changes_no_row_of_before(table: IcebergTable) -> None:
    table.commit([table.data(rows(1))])
    inner = {"id": 4, "name": "c", "type": "long", "required": False, "initial-default": 5}
    table.columns = (*COLUMNS, {"id": 3, "name": "s", "type": {"type": "struct", "fields": [inner]}})
    table.commit([table.data(rows(2))])
    assert await changes(opened(table), 2) == {2: [("insert", 2)]}


async def test_a_type_that_the_table_has_no_more_does_not_stop_equality_deletes(table: IcebergTable) -> None:
    table.columns = (*COLUMNS, {"id": 3, "name": "g", "type": "geometry"})
    table.publish()
    table.columns = COLUMNS
    table.commit([table.data(rows(1, 2))])
    table.commit([table.equality({"id": [1]}, {"id": 1})])
    assert await changes(opened(table), 2) == {2: [("delete", 1)]}
