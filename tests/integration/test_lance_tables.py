"""Lance datasets through the real commands and pipelines, beside pylance."""

import json
import random
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import anyio
import lance
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import tailer
from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.rules import PairingRules
from tailer.config.pipelines import TablePattern
from tailer.config.tables import TableRef
from tailer.daemon.fleet.discovery import find_tables
from tailer.engine.local import LocalEngine
from tailer.errors import (
    ChangesUnavailable,
    ConfigError,
    FileOutsideTable,
    FileVacuumed,
    LogCorrupt,
    LogRewritten,
    NotATable,
    UnsupportedFeature,
    VersionAhead,
)
from tailer.events import Gap
from tailer.formats.lance.rows import opened
from tailer.formats.lance.table import dataset_id
from tailer.pipeline.policy import Limits, OnDataLoss, Policy
from tailer.pipeline.row_delivery import row_pipeline
from tailer.plan import ChangePlan
from tailer.start import Start
from tailer.stores.stores import Stores
from tailer.stores.wakeup import TimerWake
from tailer_sinks.delta.sink import DeltaSink
from tests.support.daemon.commands import tailer as command
from tests.support.seeds import seeds
from tests.support.streams import Destination, become
from tests.support.tables.lance_files import reflagged
from tests.support.tables.lance_histories import LanceHistory


def numbers(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "t": pa.array([f"t{each}" for each in ids])})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A dataset of three versions: an insert of 1, 2 and 3, a delete of 2, an insert of 4."""
    lance.write_dataset(numbers(1, 2, 3), path := tmp_path / "orders")
    lance.dataset(path).delete("id = 2")
    lance.write_dataset(numbers(4), path, mode="append")
    return path


CHANGES = [(1, "insert", 1), (1, "insert", 2), (1, "insert", 3), (2, "delete", 2), (3, "insert", 4)]


def read(path: Path, **options: object) -> list[tuple[int, str, int]]:
    rows = (row for batch in tailer.changes(path, **options) for row in batch.to_pylist())  # type: ignore[arg-type]
    return [(row["_commit_version"], row["_change_type"], row["id"]) for row in rows]


def manifest(path: Path, version: int) -> Path:
    return path / "_versions" / f"{2**64 - 1 - version:020d}.manifest"


def test_tail_prints_the_changes(path: Path) -> None:
    done = command("tail", path, "--from", "earliest", "--to", "latest", "--format", "jsonl")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["_commit_version"], row["_change_type"], row["id"]) for row in rows] == CHANGES
    assert rows[3] == {"id": 2, "t": "t2", **{key: rows[3][key] for key in rows[3] if key.startswith("_")}}
    assert "changes of versions 1 to 3" in done.stderr


def test_the_time_of_a_change_is_that_of_its_manifest(path: Path) -> None:
    (batch,) = tailer.changes(path, start=2, end=2)
    time: datetime = batch["_commit_timestamp"][0].as_py()
    times: list[Any] = [each["timestamp"] for each in lance.dataset(path).versions() if each["version"] == 2]
    assert abs(times[0].timestamp() - time.timestamp()) < 0.001
    assert read(path, start=time) == CHANGES[3:]


def test_a_snapshot_and_the_changes_after_it(path: Path) -> None:
    assert read(path, start="snapshot") == [(3, "insert", 1), (3, "insert", 3), (3, "insert", 4)]
    assert read(path, columns=["id"], start=3) == CHANGES[4:]


@pytest.mark.parametrize("stable", [False, True])
def test_chosen_rows_and_columns(tmp_path: Path, stable: bool) -> None:
    """They are what a filter in Python leaves of all rows; half an update is a delete or an insert."""
    data = tmp_path / "t"
    lance.write_dataset(numbers(*range(20)), data, enable_stable_row_ids=stable)
    lance.dataset(data).delete("id % 5 = 0")
    lance.dataset(data).update({"t": "concat('u', t)"}, where="id % 4 = 1")
    lance.write_dataset(numbers(*range(20, 30)), data, mode="append")
    every = [row for batch in tailer.changes(data) for row in batch.to_pylist()]
    where, select = "id > 3 AND t LIKE 't%'", "concat('*', right(t, 1)) AS t, id * 2 AS twice"
    found = [row for batch in tailer.changes(data, where=where, select=select) for row in batch.to_pylist()]
    plain = {"update_preimage": "delete", "update_postimage": "insert"}

    def chosen(row: dict[str, Any]) -> str:
        kind = row["_change_type"]
        return json.dumps([row["_commit_version"], plain.get(kind, kind), "*" + row["t"][-1], row["id"] * 2])

    wanted = sorted(chosen(row) for row in every if row["id"] > 3 and row["t"].startswith("t"))
    assert wanted == sorted(
        json.dumps([row["_commit_version"], row["_change_type"], row["t"], row["twice"]]) for row in found
    )
    assert {row["_change_type"] for row in found} == {"insert", "delete"}


def test_plan_names_fragments_and_needs_no_rows(path: Path) -> None:
    done = command("plan", path, 2, "--json")
    assert done.returncode == 0, done.stderr
    assert '"fragment": {"version": 1, "number": 0, "rows": 3' in done.stdout


@pytest.mark.anyio
@pytest.mark.parametrize("seed", seeds(2))
async def test_it_goes_on_after_any_transaction(tmp_path: Path, seed: int) -> None:
    """Stopped after each transaction, whatever is open, it delivers what one run delivers."""
    history, there, chance = LanceHistory(tmp_path / "t", 100 + seed, stable=seed > 0), Destination(), random.Random(1)
    await anyio.to_thread.run_sync(history.grow, 12)
    app_id = f"p/{dataset_id(str(history.path))}"
    while (position := there.position(app_id)) is None or position.version < max(history.rows):
        engine = ChangelogEngine(LocalEngine(), PairingRules())
        log, limits = TableRef(str(history.path)).open(), Limits(max_rows=chance.randint(1, 20))
        begin, end = Start.parse("earliest"), Start.parse("latest")
        pipeline = row_pipeline("p", log, there.sink(), engine, TimerWake(), begin, end, limits=limits)
        there.then = pipeline.stop
        await pipeline.run()
    wanted = await anyio.to_thread.run_sync(
        lambda: [row for each in tailer.changes(history.path) for row in each.to_pylist()]
    )
    assert there.rows(app_id) == wanted


def test_a_rewritten_column_gives_exact_pairs(path: Path) -> None:
    """Rows without ids of their own are paired by their place in the fragment, equal ones are left out."""
    dataset = lance.dataset(path)
    values = pa.table({"id": pa.array([1, 3], pa.int64()), "t": ["t1", "new"]})
    fragment = dataset.get_fragment(0)
    assert fragment is not None
    changed, fields = fragment.update_columns(values, left_on="id", right_on="id")
    operation = lance.LanceOperation.Update(updated_fragments=[changed], fields_modified=fields)
    lance.LanceDataset.commit(path, operation, read_version=3)
    rows = [row for batch in tailer.changes(path, start=4) for row in batch.to_pylist()]
    assert [(row["_change_type"], row["id"], row["t"]) for row in rows] == [
        ("update_preimage", 3, "t3"),
        ("update_postimage", 3, "new"),
    ]


def test_without_stable_ids_a_key_pairs_updates(path: Path) -> None:
    lance.dataset(path).update({"t": "'new'"}, where="id = 3")
    assert read(path, start=4) == [(4, "delete", 3), (4, "insert", 3)]
    paired = read(path, start=4, compute_updates=True, key=["id"])
    assert paired == [(4, "update_preimage", 3), (4, "update_postimage", 3)]


def test_changes_before_a_cleanup_are_lost(path: Path) -> None:
    """The version after a gap lacks the one before, and the next one can be read."""
    lance.write_dataset(numbers(5), path, mode="append")
    for version in (1, 2):
        manifest(path, version).unlink()
    assert read(path) == [(4, "insert", 5)]
    with pytest.raises(ChangesUnavailable) as found:
        read(path, start=3)
    assert str(found.value) == f"{path}: version 3: version 2, from which it began, was cleaned up"


def test_a_lost_file_is_named(path: Path) -> None:
    (lost,) = [Path(file.path) for file in lance.dataset(path).get_fragments()[1].data_files()]
    (path / "data" / lost).unlink()
    with pytest.raises(FileVacuumed) as found:
        read(path)
    assert (found.value.version, found.value.path) == (3, f"{path}/data/{lost}")


def test_a_lost_deletion_file_is_named(path: Path) -> None:
    (lost,) = (path / "_deletions").iterdir()
    lost.unlink()
    with pytest.raises(ChangesUnavailable, match=f"its deletion file _deletions/{lost.name} is gone"):
        read(path)


def test_versions_before_an_unknown_feature_are_delivered(path: Path) -> None:
    reflagged(manifest(path, 3), reader=2**20)
    seen: list[int] = []
    with pytest.raises(UnsupportedFeature, match="version 3 needs the reader feature flag 1048576"):
        seen.extend(batch["_commit_version"][0].as_py() for batch in tailer.changes(path))
    assert seen == [1, 2]


def test_a_place_without_versions_is_no_dataset(tmp_path: Path) -> None:
    (tmp_path / "t" / "_versions").mkdir(parents=True)
    with pytest.raises(NotATable) as found:
        read(tmp_path / "t")
    assert str(found.value) == f"{tmp_path}/t: not a Lance dataset: no manifest in _versions"


def test_a_version_that_does_not_exist_yet(path: Path) -> None:
    with pytest.raises(VersionAhead):
        read(path, start=9)


def test_a_clone_needs_its_origin_allowed(path: Path, tmp_path: Path) -> None:
    """A shallow clone has its data files in another dataset."""
    lance.dataset(path).shallow_clone(tmp_path / "clone", 3)
    clone = tmp_path / "clone"
    with pytest.raises(FileOutsideTable, match=str(path)):
        read(clone, start="snapshot")
    rows = sorted(each[2] for each in read(clone, start="snapshot", allowed_roots=[path]))
    assert rows == [1, 3, 4]
    lance.dataset(clone).delete("id = 3")
    assert read(clone, start=lance.dataset(clone).version, allowed_roots=[path])[0][1:] == ("delete", 3)


@pytest.mark.anyio
async def test_every_version_of_a_busy_writer_comes_once(path: Path) -> None:
    """A writer commits while the dataset is followed, and renames no version; another has the old names."""
    there, app_id, wanted = Destination(), f"p/{dataset_id(str(path))}", list(range(4, 24))
    log, limits = TableRef(str(path)).open(), Limits(poll_interval_s=0.005)
    pipeline = row_pipeline("p", log, there.sink(), LocalEngine(), log.make_wake(), Start.parse("4"), limits=limits)
    async with anyio.create_task_group() as group:
        group.start_soon(pipeline.run)
        for number in wanted:
            await anyio.to_thread.run_sync(lance.write_dataset, numbers(number), path, None, "append")
        await become(lambda: (at := there.position(app_id)) is not None and at.version >= 23)
        pipeline.stop()
    assert [(row["_commit_version"], row["id"]) for row in there.rows(app_id)] == [(each, each) for each in wanted]


@pytest.mark.anyio
async def test_manifests_may_be_renamed_meanwhile(tmp_path: Path) -> None:
    lance.write_dataset(numbers(1), path := tmp_path / "t", enable_v2_manifest_paths=False)
    log = TableRef(str(path)).open()
    await log.seek(1)
    assert (await log.next_plan()) is not None
    lance.dataset(path).migrate_manifest_paths_v2()  # type: ignore[no-untyped-call]
    lance.write_dataset(numbers(2), path, mode="append")
    found = [await log.next_plan() for _ in range(32)]
    assert [plan.version for plan in found if plan is not None] == [2]


@pytest.mark.anyio
async def test_another_dataset_in_its_place_is_noticed(path: Path) -> None:
    log = TableRef(str(path)).open()
    await log.seek(4)
    text = manifest(path, 2).read_bytes()
    lance.write_dataset(numbers(5), path, mode="append")
    manifest(path, 3).write_bytes(text)
    with pytest.raises(LogRewritten):
        await log.next_plan()


@pytest.mark.anyio
async def test_an_external_store_commits_versions(path: Path) -> None:
    """A staged manifest is no version yet. Its copy is, once, however often it is copied."""
    lance.write_dataset(numbers(5), path, mode="append")
    lance.write_dataset(numbers(6), path, mode="append")
    last = manifest(path, 5)
    staged = last.rename(last.with_name(f"{last.name}-6a1bf201-1361-46d6-87be-529e3e0704ff"))
    log = TableRef(str(path)).open()
    await log.seek(4)
    assert [plan and plan.version for plan in (await log.next_plan(), await log.next_plan())] == [4, None]
    for version, copy in ((4, manifest(path, 4).read_bytes()), (5, staged.read_bytes())):
        manifest(path, version).unlink(missing_ok=True)
        manifest(path, version).write_bytes(copy)
    assert [plan and plan.version for plan in (await log.next_plan(), await log.next_plan())] == [5, None]


def test_every_type_is_carried(tmp_path: Path) -> None:
    columns = {
        "half": pa.array([[1.5, 2.5]], pa.list_(pa.float16(), 2)),
        "vector": pa.array([[1.5, 2.5]], pa.list_(pa.float32(), 2)),
        "large": pa.array([b"x" * 100], pa.large_binary()),
        "long": pa.array(["x"], pa.large_string()),
        "unsigned": pa.array([2**64 - 1], pa.uint64()),
        "at": pa.array([1], pa.timestamp("ns")),
        "span": pa.array([1], pa.duration("ms")),
        "day": pa.array([1], pa.date32()),
        "hour": pa.array([1], pa.time64("us")),
        "price": pa.array([1], pa.int32()).cast(pa.decimal128(12, 2)),
        "map": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32())),
        "structs": pa.array([[{"x": 1}]], pa.large_list(pa.struct([("x", pa.int32())]))),
        "pairs": pa.array([[{"x": 1}]], pa.list_(pa.struct([("x", pa.int32())]), 1)),
        "nothing": pa.nulls(1),
    }
    dataset = lance.write_dataset(pa.table(columns), tmp_path / "t", data_storage_version="2.2")
    (batch,) = tailer.changes(tmp_path / "t")
    found = pa.Table.from_batches([batch]).select(list(columns))
    assert found.schema.types == dataset.schema.types
    assert found.equals(dataset.to_table())


def test_extension_types_are_what_they_are_stored_as(tmp_path: Path) -> None:
    """JSON is text, a UUID is bytes, and a blob is read whole."""
    blob = pa.field("blob", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    values = [pa.array(['{"a":1}'], pa.json_(pa.string())), pa.array([b"0" * 16], pa.uuid())]
    schema = pa.schema([("json", values[0].type), ("uuid", values[1].type), blob])
    table = pa.table([*values, pa.array([b"xx"], pa.large_binary())], schema=schema)
    lance.write_dataset(table, tmp_path / "t", data_storage_version="2.2")
    (row,) = (row for batch in tailer.changes(tmp_path / "t") for row in batch.to_pylist())
    assert (row["json"], row["uuid"], row["blob"]) == ('{"a":1}', b"0" * 16, b"xx")


def test_a_column_with_a_name_of_ours_is_refused(tmp_path: Path) -> None:
    lance.write_dataset(pa.table({"id": [1], "_change_type": [1]}), tmp_path / "t")
    with pytest.raises(UnsupportedFeature, match="column _change_type: change rows have a metadata column"):
        read(tmp_path / "t")
    assert read(tmp_path / "t", columns=["id"]) == [(1, "insert", 1)]


def test_a_clone_of_a_first_version_has_its_rows(tmp_path: Path) -> None:
    dataset = lance.write_dataset(numbers(1), tmp_path / "t")
    dataset.shallow_clone(tmp_path / "clone", 1)
    assert read(tmp_path / "clone", allowed_roots=[tmp_path / "t"]) == [(1, "insert", 1)]


def test_names_of_both_schemes_are_refused_if_they_stay(path: Path) -> None:
    (path / "_versions" / "1.manifest").write_bytes(manifest(path, 1).read_bytes())
    with pytest.raises(LogCorrupt, match=r"_versions/1\.manifest: named by version"):
        read(path)


@pytest.mark.anyio
async def test_a_plan_is_the_same_after_json(path: Path) -> None:
    log = TableRef(str(path)).open()
    await log.seek(2)
    plan = await log.next_plan()
    assert plan is not None
    assert ChangePlan.from_json(plan.to_json()) == plan


def test_a_dataset_without_pylance_says_what_to_install(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lance", None)
    opened._dataset.cache_clear()
    opened._folder.cache_clear()
    with pytest.raises(ConfigError) as found:
        read(path)
    assert "lake-tailer[lance]" in found.value.hint


@pytest.mark.anyio
@pytest.mark.parametrize("reaction", [OnDataLoss.SKIP, OnDataLoss.RESNAPSHOT])
async def test_a_pipeline_gets_past_a_cleanup(path: Path, reaction: OnDataLoss) -> None:
    """Versions 4 to 6 are cleaned up before they are delivered: a gap, then what can be read; or all rows anew."""
    there, app_id, end = Destination(), f"p/{dataset_id(str(path))}", Start.parse("latest")

    async def run() -> None:
        log, policy = TableRef(str(path)).open(), Policy(on_data_loss=reaction)
        start = Start.parse("earliest")
        await row_pipeline("p", log, there.sink(), LocalEngine(), TimerWake(), start, end, policy).run()

    await run()
    for number in range(5, 10):
        await anyio.to_thread.run_sync(lance.write_dataset, numbers(number), path, None, "append")
    for version in range(1, 7):
        manifest(path, version).unlink()
    await run()
    rows = [(row["_commit_version"], row["_change_type"], row["id"]) for row in there.rows(app_id)]
    (gap,) = there.events(app_id)
    assert isinstance(gap, Gap)
    if reaction is OnDataLoss.SKIP:
        assert (gap.first_version, gap.version, gap.snapshot) == (4, 7, False)
        assert rows == [*CHANGES, (8, "insert", 9)]
    else:
        assert (gap.first_version, gap.version, gap.snapshot) == (4, 8, True)
        assert rows == [*CHANGES, *((8, "insert", each) for each in (1, 3, 4, 5, 6, 7, 8, 9))]


@pytest.mark.anyio
async def test_a_template_finds_datasets_beside_delta_tables(path: Path) -> None:
    write_deltalake(path.parent / "items", numbers(1))
    (path.parent / "empty" / "_versions").mkdir(parents=True)
    found = await find_tables(TablePattern(str(path.parent), ("*",)), Stores())
    assert (found.tables, found.faults) == ({("orders",), ("items",)}, [])


@pytest.mark.anyio
async def test_a_template_finds_the_tables_of_its_format(path: Path) -> None:
    write_deltalake(path.parent / "items", numbers(1))
    pattern, stores = TablePattern(str(path.parent), ("*",)), Stores()
    for name, wanted in (("orders", "lance"), ("items", "delta")):
        assert (await find_tables(pattern, stores, table_format=wanted)).tables == {(name,)}


def test_a_format_that_is_named_wins(path: Path) -> None:
    """A folder with the logs of both formats has the changes of the format that is named."""
    write_deltalake(path, numbers(9))
    assert [each[2] for each in read(path)] == [9]
    assert read(path, table_format="lance") == CHANGES
    for verb in (("tail", path, "--from", "2", "--to", "2"), ("plan", path, 2)):
        assert command(*verb, "--table-format", "delta").returncode != 0
        assert command(*verb, "--table-format", "lance").returncode == 0


def test_a_wrong_format_is_named_with_the_next_step(path: Path) -> None:
    write_deltalake(path.parent / "items", numbers(9))
    for table, wrong, text in ((path, "delta", "not a Delta table"), (path.parent / "items", "lance", "not a Lance")):
        with pytest.raises(NotATable, match=f"{table}: {text}") as found:
            read(table, table_format=wrong)
        assert "table_format (--table-format)" in found.value.hint
    with pytest.raises(ConfigError, match="table_format: 'Lance' is no format of a table") as named:
        read(path, table_format="Lance")
    assert named.value.hint == "Did you mean 'lance'?"


@pytest.mark.anyio
async def test_delta_has_the_values_of_types_that_it_lacks(tmp_path: Path) -> None:
    """Vectors are arrays, at any depth and with nulls; every value is the same number or text."""
    vectors = pa.array([[1.5, None], None, [-0.0, 2.5]], pa.list_(pa.float16(), 2))
    table = pa.table(
        {
            "vector": vectors,
            "inside": pa.StructArray.from_arrays([vectors.cast(pa.list_(pa.float32(), 2))], ["v"]),
            "large": pa.array(["a", None, "b"], pa.large_string()),
            "bytes": pa.array([b"a", None, b""], pa.large_binary()),
            "unsigned": pa.array([2**64 - 1, None, 0], pa.uint64()),
            "small": pa.array([255, None, 0], pa.uint8()),
            "word": pa.array(["x", None, "x"]).dictionary_encode(),
            "at": pa.array([1, None, -1], pa.timestamp("ms")),
        }
    )
    await anyio.to_thread.run_sync(lance.write_dataset, table, tmp_path / "t")
    log, sink = TableRef(str(tmp_path / "t")).open(), DeltaSink("delta", str(tmp_path / "copy"))
    begin, end = Start.parse("earliest"), Start.parse("latest")
    await row_pipeline("p", log, sink, LocalEngine(), TimerWake(), begin, end).run()
    found = DeltaTable(tmp_path / "copy").to_pyarrow_table().select(table.schema.names)
    assert found.to_pylist() == table.to_pylist()
    assert found.schema.field("vector").type.value_type == pa.float32()
    assert found.schema.field("unsigned").type == pa.decimal128(20, 0)


def test_the_connection_check_reads_a_row(path: Path) -> None:
    config = path.parent / "tailer.toml"
    config.write_text(f'[pipelines.p]\ntable = "{path}"\nsink = {{kind = "files", path = "out"}}\n')
    done = command("check", "--connect", "--config", config)
    assert done.returncode == 0, done.stdout
    assert f"reached version 3 of {path}, and one of its files" in done.stdout
    for file in (path / "data").iterdir():
        file.write_bytes(b"not a data file")
    broken = command("check", "--connect", "--config", config)
    assert broken.returncode != 0, broken.stdout
    assert f"version 3: {path}" in broken.stdout
