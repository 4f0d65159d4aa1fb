"""A log read forward: valid starts, changes noticed while waiting, and the cost of the next version."""

import json
import os
import shutil
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import anyio
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import tailer.formats.delta.table
from tailer.errors import (
    ChangesUnavailable,
    ConfigError,
    DataCorrupt,
    FileVacuumed,
    LogCorrupt,
    NotATable,
    StorageRefused,
    StorageUnavailable,
    TableReplaced,
    TailerError,
    UnsupportedFeature,
    VersionAhead,
    VersionGone,
)
from tailer.formats.delta.commit_plan import read_whole
from tailer.formats.delta.log.actions import CHUNK_BYTES
from tailer.formats.delta.log.following import GAP_CHECK_MISSES, GONE_CHECK_MISSES
from tailer.formats.delta.log.listing import LOG, commit_name
from tailer.formats.delta.table import DeltaTableLog
from tailer.plan import SNAPSHOT_TASKS, ChangePlan
from tailer.start import Start, StartKind, StartPoint
from tailer.stores.local import LocalStore
from tailer.stores.port import ObjectMeta, Objects, OpenObject, StoredObject
from tests.support.cloud.memory_store import MemoryStore
from tests.support.tables.log_files import (
    add,
    cdc,
    checkpoint,
    commit_info,
    inline_vector,
    metadata,
    protocol,
    remove,
    schema_string,
    write_commit,
)

T = TypeVar("T")
HEAD = (protocol(), metadata())

pytestmark = pytest.mark.anyio


def a_log(table: Path, versions: int) -> DeltaTableLog:
    """Make a table with a file added in each version, ten milliseconds after the one before it."""
    write_commit(table, 0, *HEAD, add("f0"), modified_ms=1000)
    for version in range(1, versions):
        write_commit(table, version, add(f"f{version}"), modified_ms=1000 + 10 * version)
    return DeltaTableLog(LocalStore(table))


def at(table: Path, version: int) -> Path:
    return table / commit_name(version)


def classic(table: Path, version: int, *actions: dict[str, Any]) -> Path:
    return checkpoint(table / LOG / f"{version:020d}.checkpoint.parquet", *actions)


async def following(log: DeltaTableLog, start: int) -> list[ChangePlan]:
    """Return all plans from `start` on."""
    await log.seek(start)
    found = []
    while (plan := await log.next_plan()) is not None:
        found.append(plan)
    return found


async def waiting(log: DeltaTableLog) -> None:
    """Ask for the next version until the log is checked again."""
    for _ in range(GAP_CHECK_MISSES):
        assert await log.next_plan() is None


async def test_versions_come_in_order_from_any_start(tmp_path: Path) -> None:
    log = a_log(tmp_path, 5)
    plans = await following(log, 0)
    assert [plan.version for plan in plans] == [0, 1, 2, 3, 4]
    for start in range(6):
        assert await following(DeltaTableLog(LocalStore(tmp_path)), start) == plans[start:]


async def test_the_schema_before_the_start(tmp_path: Path) -> None:
    log = a_log(tmp_path, 2)
    write_commit(tmp_path, 2, metadata(schema_string(a="long", b="date")))
    assert await log.seek(0) is None
    assert await log.seek(2) == pa.schema([("a", pa.int64())])
    assert await log.seek(3) == pa.schema([("a", pa.int64()), ("b", pa.date32())])


async def test_a_version_is_the_same_before_and_after_the_log_is_cleaned_up(tmp_path: Path) -> None:
    """A start at the checkpoint's own version gives that version its original timestamp."""
    log = a_log(tmp_path, 6)
    write_commit(tmp_path, 3, add("f3"), modified_ms=1015)
    plans = await following(log, 0)
    assert [plan.timestamp_ms for plan in plans] == [1000, 1010, 1020, 1021, 1040, 1050]
    classic(tmp_path, 3, *HEAD, *(add(f"f{version}") for version in range(4)))
    for cleaned_up in (0, 1):
        at(tmp_path, cleaned_up).unlink()
        for start in (3, 4):
            assert await following(DeltaTableLog(LocalStore(tmp_path)), start) == plans[start:]
    at(tmp_path, 2).unlink()
    assert await following(DeltaTableLog(LocalStore(tmp_path)), 4) == plans[4:]
    assert (await following(DeltaTableLog(LocalStore(tmp_path)), 3))[0].timestamp_ms == 1015


@pytest.mark.parametrize(
    ("missing", "start", "version"),
    [([0], 0, 0), ([0], 2, 0), ([0, 1, 2], 2, 2), ([4], 4, 4), ([4], 5, 4), ([4], 6, 4)],
)
async def test_entering_where_a_version_is_missing(
    tmp_path: Path, missing: list[int], start: int, version: int
) -> None:
    log = a_log(tmp_path, 7)
    for gone in missing:
        at(tmp_path, gone).unlink()
    with pytest.raises(VersionGone) as caught:
        await log.seek(start)
    assert caught.value.version == version
    assert caught.value.latest == 6


async def test_a_gap_is_raised_when_it_is_reached(tmp_path: Path) -> None:
    log = a_log(tmp_path, 7)
    at(tmp_path, 4).unlink()
    await log.seek(2)
    assert [(await log.next_plan()) is not None for _ in range(2)] == [True, True]
    with pytest.raises(VersionGone) as caught:
        await log.next_plan()
    assert (caught.value.version, caught.value.earliest, caught.value.latest) == (4, 0, 6)


async def test_entering_where_only_a_checkpoint_is_left(tmp_path: Path) -> None:
    log = a_log(tmp_path, 5)
    classic(tmp_path, 4, *HEAD)
    for version in range(2, 5):
        at(tmp_path, version).unlink()
    for start, missing in ((2, 2), (4, 4)):
        with pytest.raises(VersionGone) as caught:
            await log.seek(start)
        assert caught.value.version == missing
    assert await following(log, 5) == []
    for version in range(2):
        at(tmp_path, version).unlink()
    assert (await log.latest(), await following(log, 5)) == (4, [])


async def test_entering_ahead_of_the_log(tmp_path: Path) -> None:
    log = a_log(tmp_path, 3)
    assert await following(log, 3) == []
    with pytest.raises(VersionAhead) as caught:
        await log.seek(4)
    assert (caught.value.version, caught.value.latest) == (3, 2)


async def test_no_table(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(NotATable):
            await DeltaTableLog(LocalStore(folder)).latest()


@pytest.mark.parametrize("gate", [[], [protocol()], [metadata()]])
async def test_a_first_commit_without_protocol_or_metadata(tmp_path: Path, gate: list[dict[str, Any]]) -> None:
    write_commit(tmp_path, 0, *gate, add("f"))
    log = DeltaTableLog(LocalStore(tmp_path))
    await log.seek(0)
    with pytest.raises(LogCorrupt, match=r"no (protocol|metaData) action"):
        await log.next_plan()
    if metadata() in gate:
        assert await log.table_id() == "id"
    else:
        with pytest.raises(LogCorrupt, match="no metaData action"):
            await log.table_id()


async def test_a_quiet_table_stays_quiet(tmp_path: Path) -> None:
    log = a_log(tmp_path, 2)
    await log.seek(2)
    await waiting(log)
    await waiting(log)
    write_commit(tmp_path, 2, add("f2"))
    plan = await log.next_plan()
    assert plan is not None
    assert plan.version == 2


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda table: write_commit(table, 3, add("f")), VersionGone),
        (lambda table: classic(table, 2, *HEAD), VersionGone),
        (lambda table: at(table, 1).unlink(), VersionAhead),
        (lambda table: shutil.rmtree(table / LOG), NotATable),
    ],
    ids=["the next version is skipped", "only its checkpoint came", "the log went back", "the log went away"],
)
async def test_log_faults_are_noticed_while_waiting(
    tmp_path: Path, change: Callable[[Path], object], error: type[TailerError]
) -> None:
    log = a_log(tmp_path, 2)
    await log.seek(2)
    assert await log.next_plan() is None
    change(tmp_path)
    with pytest.raises(error):
        await waiting(log)


async def test_a_table_that_is_deleted_is_noticed_soon(tmp_path: Path) -> None:
    log = a_log(tmp_path, 2)
    await following(log, 0)
    shutil.rmtree(tmp_path / LOG)
    for _ in range(GONE_CHECK_MISSES - 2):  # `following` missed once
        assert await log.next_plan() is None
    with pytest.raises(NotATable, match="any more: was the table moved or deleted"):
        await log.next_plan()


async def test_a_predecessor_that_was_cleaned_up_is_no_loss(tmp_path: Path) -> None:
    log = a_log(tmp_path, 2)
    await following(log, 0)
    classic(tmp_path, 1, *HEAD)
    at(tmp_path, 1).unlink()
    await waiting(log)


class LaggingStore(LocalStore):
    """A store in which another writer commits twice between the read of the next version and the listing."""

    async def list(self, prefix: str, start_after: str = "") -> Objects:
        for version in (2, 3):
            write_commit(self.root, version, add(f"f{version}"))
        return await super().list(prefix, start_after)


async def test_commits_that_come_between_the_question_and_the_listing(tmp_path: Path) -> None:
    a_log(tmp_path, 2)
    log = DeltaTableLog(LaggingStore(tmp_path))
    log._next, log._state = 2, None
    await waiting(log)
    log = DeltaTableLog(LocalStore(tmp_path))
    assert [plan.version for plan in await following(log, 2)] == [2, 3]


class OutdatedStore(LocalStore):
    """A store whose listings end with version 1 while `is_outdated`."""

    is_outdated = True

    async def list(self, prefix: str, start_after: str = "") -> Objects:
        found = await super().list(prefix, start_after)
        return [meta for meta in found if meta.name <= commit_name(1) or not self.is_outdated]


async def test_an_outdated_listing_is_no_log_that_went_backwards(tmp_path: Path) -> None:
    a_log(tmp_path, 4)
    store = OutdatedStore(tmp_path)
    log = DeltaTableLog(store)
    with pytest.raises(StorageUnavailable, match=r"00003\.json.*a listing lacks it"):
        await log.seek(4)
    store.is_outdated = False
    await log.seek(4)
    store.is_outdated = True
    with pytest.raises(StorageUnavailable, match=r"00003\.json.*a listing lacks it"):
        await waiting(log)


class TornStore(LocalStore):
    """A store whose first listing lacks the first commit, and those after it do not."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._lacking = {commit_name(0)}

    async def list(self, prefix: str, start_after: str = "") -> Objects:
        lacking, self._lacking = self._lacking, set()
        return [meta for meta in await super().list(prefix, start_after) if meta.name not in lacking]


async def test_a_commit_that_only_the_first_listing_lacks_is_not_lost(tmp_path: Path) -> None:
    a_log(tmp_path, 4)
    log = DeltaTableLog(TornStore(tmp_path))
    with pytest.raises(StorageUnavailable, match=r"00000\.json.*a listing lacked it"):
        await log.resolve(Start.parse("earliest"))
    assert await log.resolve(Start.parse("earliest")) == StartPoint(0)


async def test_a_table_made_anew_within_the_second_is_another_one() -> None:
    """Names, sizes and times in whole seconds are those of the former table."""
    store, now_ms = MemoryStore(), int(time.time()) * 1000

    def create(table_id: str) -> None:
        data = "".join(json.dumps(each) + "\n" for each in (protocol(), metadata(table_id=table_id))).encode()
        store.objects[commit_name(0)] = StoredObject(ObjectMeta(commit_name(0), len(data), now_ms), data)

    log = DeltaTableLog(store)
    for table_id in ("first", "other"):
        create(table_id)
        assert await log.table_id() == table_id
        assert await log.ids(-1) == (table_id,)


async def test_a_table_made_anew_within_the_second_does_not_go_on_as_the_former_one() -> None:
    """It was followed already, from its first commit on. The content of the new one has another tag."""
    store, now_ms = MemoryStore(), int(time.time()) * 1000

    def commit(version: int, table_id: str) -> None:
        actions = (protocol(), metadata(table_id=table_id)) if version == 0 else (add("a"),)
        data = "".join(json.dumps(each) + "\n" for each in actions).encode()
        meta = ObjectMeta(commit_name(version), len(data), now_ms, table_id)
        store.objects[commit_name(version)] = StoredObject(meta, data)

    log = DeltaTableLog(store)
    commit(0, "first")
    await log.seek(0)
    assert await log.next_plan() is not None
    commit(0, "other")
    commit(1, "other")
    with pytest.raises(TableReplaced):
        await log.next_plan()


async def test_a_broken_commit_stops_us_before_it_until_it_is_repaired(tmp_path: Path) -> None:
    log = a_log(tmp_path, 3)
    whole = at(tmp_path, 1).read_text()
    at(tmp_path, 1).write_text(whole[:-5])
    await log.seek(0)
    assert await log.next_plan() is not None
    for _ in range(2):
        with pytest.raises(LogCorrupt) as caught:
            await log.next_plan()
        assert (caught.value.version, caught.value.line, caught.value.path) == (1, 1, commit_name(1))
    at(tmp_path, 1).write_text(whole)
    plan = await log.next_plan()
    assert plan is not None
    assert plan.version == 1


async def test_a_folder_in_the_place_of_a_commit(tmp_path: Path) -> None:
    log = a_log(tmp_path, 2)
    at(tmp_path, 2).mkdir()
    assert await log.latest() == 1
    await log.seek(2)
    with pytest.raises(StorageRefused):
        await log.next_plan()


async def test_the_protocol_is_checked_at_the_start_and_at_each_version(tmp_path: Path) -> None:
    log = a_log(tmp_path, 2)
    write_commit(tmp_path, 2, protocol(3, ["teleport"]))
    write_commit(tmp_path, 3, protocol(1), add("f3"))
    await log.seek(1)
    assert await log.next_plan() is not None
    with pytest.raises(UnsupportedFeature) as caught:
        await log.next_plan()
    assert caught.value.version == 2
    with pytest.raises(UnsupportedFeature):
        await log.seek(3)
    assert await following(log, 4) == []


async def test_another_table_at_the_same_place(tmp_path: Path) -> None:
    log = a_log(tmp_path, 2)
    write_commit(tmp_path, 2, metadata(table_id="other"))
    await log.seek(2)
    assert log.state_id == "id"
    plan = await log.next_plan()
    assert plan is not None
    assert (plan.table_id, log.state_id, await log.table_id()) == ("other", "other", "other")
    write_commit(tmp_path, 3, metadata(table_id="id"), add("f3"))
    assert await log.ids(-1) == ("id", "other")
    assert await log.ids(2) == ("id", "other")
    assert await log.ids(3) == ("id",)
    classic(tmp_path, 2, protocol(1), metadata(table_id="other"))
    for version in range(3):
        (tmp_path / commit_name(version)).unlink()
    assert await log.ids(0) == ("id", "other")


@pytest.mark.parametrize("lost", [VersionGone("t", 2), LogCorrupt("t", commit_name(2), "garbage", 2)])
async def test_after_a_loss_a_checkpoint_defines_the_next_version(tmp_path: Path, lost: TailerError) -> None:
    log = a_log(tmp_path, 6)
    at(tmp_path, 2).write_text("garbage")
    with pytest.raises(type(lost)):
        await log.after_loss(lost, 2)
    classic(tmp_path, 1, *HEAD)
    with pytest.raises(type(lost)):
        await log.after_loss(lost, 2)
    classic(tmp_path, 5, *HEAD)
    assert await log.after_loss(lost, 2) == 5
    assert await log.after_loss(lost, 5) == 6
    classic(tmp_path, 3, *HEAD)
    assert await log.after_loss(lost, 2) == 3
    at(tmp_path, 3).unlink()
    assert await log.after_loss(lost, 2) == 4


async def gone(table: Path, start: Start) -> VersionGone:
    """Return the error of a start that needs a lost version."""
    log = DeltaTableLog(LocalStore(table))
    try:
        await log.table_id()
        await log.seek((await log.resolve(start)).version)
    except VersionGone as error:
        return error
    raise AssertionError("the start works")


async def test_a_lost_version_comes_with_the_starts_that_work(tmp_path: Path) -> None:
    a_log(tmp_path, 6)
    at(tmp_path, 3).unlink()
    for start in (Start(StartKind.VERSION, 3), Start(StartKind.VERSION, 4), Start(StartKind.LATEST)):
        found = await gone(tmp_path, start)
        assert (found.resume, found.starts) == (None, ()), start
    classic(tmp_path, 4, *HEAD)
    found = await gone(tmp_path, Start(StartKind.VERSION, 3))
    assert (found.resume, found.starts) == (4, ("latest", "snapshot"))
    assert [plan.version for plan in await following(DeltaTableLog(LocalStore(tmp_path)), 4)] == [4, 5]


async def test_a_log_that_is_only_a_checkpoint_names_snapshot(tmp_path: Path) -> None:
    classic(tmp_path, 5, *HEAD)
    for start in (Start(StartKind.EARLIEST), Start(StartKind.VERSION, 5)):
        found = await gone(tmp_path, start)
        assert (found.earliest, found.latest, found.resume, found.starts) == (None, 5, 6, ("latest", "snapshot"))


async def test_after_a_loss_only_a_checkpoint_defines_the_next_version(tmp_path: Path) -> None:
    """Neither later commits that set protocol and metadata do, nor a version checksum, which Spark writes."""
    log, lost = a_log(tmp_path, 8), VersionGone("t", 2)
    at(tmp_path, 2).unlink()
    write_commit(tmp_path, 5, {"commitInfo": {"txnId": "t5"}}, metadata(), protocol(1), add("f5"))
    checksum = {"txnId": "t5", "numFiles": 7, **protocol(1), "metadata": metadata()["metaData"]}
    at(tmp_path, 5).with_suffix(".crc").write_text(json.dumps(checksum))
    with pytest.raises(VersionGone):
        await log.after_loss(lost, 2)
    with pytest.raises(VersionGone) as caught:
        await DeltaTableLog(LocalStore(tmp_path)).seek(6)
    assert "may write a checkpoint of version 2 or of a later one" in caught.value.hint
    classic(tmp_path, 6, *HEAD)
    assert await log.after_loss(lost, 2) == 6
    assert [plan.version for plan in await following(DeltaTableLog(LocalStore(tmp_path)), 6)] == [6, 7]


async def test_after_a_loss_a_commit_that_defines_the_state_is_skipped(tmp_path: Path) -> None:
    """The commit can be read, but not planned, so delivery continues at the version after it."""
    log = a_log(tmp_path, 6)
    write_commit(tmp_path, 2, add("f2"), add("f2"))
    await log.seek(2)
    with pytest.raises(LogCorrupt) as caught:
        await log.next_plan()
    assert await log.after_loss(caught.value, 2) == 3


async def test_a_snapshot_names_the_commit_that_is_missing(tmp_path: Path) -> None:
    log = a_log(tmp_path, 6)
    at(tmp_path, 2).unlink()
    with pytest.raises(VersionGone) as caught:
        await anext(log.snapshot_plans(5))
    assert (caught.value.version, caught.value.latest) == (2, 5)


async def test_after_a_loss_of_files_the_next_version_is_next(tmp_path: Path) -> None:
    log = a_log(tmp_path, 6)
    assert await log.after_loss(FileVacuumed("t", 2, "f"), 2) == 3
    assert await log.after_loss(ChangesUnavailable("t", 2, "why"), 2) == 3
    corrupt = DataCorrupt("t", 2, "f", "why")
    with pytest.raises(DataCorrupt):
        await log.after_loss(corrupt, 2)


async def test_a_snapshot_of_many_files_comes_in_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tailer.formats.delta.table, "PAGE_FILES", 3)
    for files in (0, 2, 3, 7):
        table = tmp_path / str(files)
        write_commit(table, 0, *HEAD, *(add(f"f{number}", modificationTime=9 - number) for number in range(files)))
        pages = [plan async for plan in DeltaTableLog(LocalStore(table)).snapshot_plans(0)]
        assert len(pages) == max(1, -(-files // 3))
        tasks = [task for plan in pages for task in plan.tasks]
        assert [task.index for task in tasks] == [SNAPSHOT_TASKS + number for number in range(files)]
        assert [task.uri[-2:] for task in tasks] == [f"f{number}" for number in reversed(range(files))]


async def earliest(table: Path) -> int:
    return (await DeltaTableLog(LocalStore(table)).resolve(Start(StartKind.EARLIEST))).version


@pytest.mark.parametrize(
    ("actions", "first"),
    [
        ([metadata(schema_string(b="long")), remove("f0"), add("g")], 3),
        ([metadata(), add("g")], 2),
        ([remove("f0"), add("g")], 2),
        ([metadata(), remove("f0", data_change=False)], 2),
        ([remove("f0"), remove("f0", inline_vector([1]))], 3),
        (["broken"], 2),
    ],
)
async def test_the_earliest_version_can_be_read(tmp_path: Path, actions: list[Any], first: int) -> None:
    """The commit of the log's first checkpoint may need the state before it."""
    a_log(tmp_path, 2)
    write_commit(tmp_path, 2, *actions)
    classic(tmp_path, 2, *HEAD, add("g"))
    assert await earliest(tmp_path) == 0
    for version in range(2):
        at(tmp_path, version).unlink()
    assert await earliest(tmp_path) == first
    if actions != ["broken"]:
        await following(DeltaTableLog(LocalStore(tmp_path)), first)
    assert await DeltaTableLog(LocalStore(tmp_path)).resolve_end(Start(StartKind.EARLIEST)) == 2
    write_commit(tmp_path, 3, add("h"))
    assert await earliest(tmp_path) == first


@pytest.mark.parametrize(("values", "first"), [({"p": "1"}, 1), ({}, 2), (None, 2)])
async def test_the_earliest_version_of_a_partitioned_table(tmp_path: Path, values: Any, first: int) -> None:
    head = (protocol(), metadata(schema_string(a="long", p="string"), ["p"]))
    write_commit(tmp_path, 1, remove("f", partitionValues=values))
    classic(tmp_path, 1, *head)
    assert await earliest(tmp_path) == first
    if first == 2:
        with pytest.raises(ChangesUnavailable, match=r"remove of f lacks partition values .* is not in the log"):
            await following(DeltaTableLog(LocalStore(tmp_path)), 1)


async def test_a_remove_of_a_file_that_is_not_live_is_delivered(tmp_path: Path) -> None:
    """Spark's feed has it, too; its partition values are those that the path had."""
    write_commit(tmp_path, 0, protocol(), metadata(schema_string(a="long", p="string"), ["p"]))
    write_commit(tmp_path, 1, add("f", inline_vector([1]), partitionValues={"p": "1"}))
    write_commit(tmp_path, 2, remove("f", partitionValues={}))
    write_commit(tmp_path, 3, remove("g", partitionValues={}))
    log = DeltaTableLog(LocalStore(tmp_path))
    await log.seek(2)
    plan = await log.next_plan()
    assert plan is not None
    assert [(task.partition_values, task.exclude) for task in plan.tasks] == [((("p", "1"),), None)]
    with pytest.raises(ChangesUnavailable, match="remove of g has no value of p, and no add of it is in the log"):
        await log.next_plan()


async def test_metadata_without_a_schema_has_no_columns(tmp_path: Path) -> None:
    bare = metadata()
    del bare["metaData"]["schemaString"]
    write_commit(tmp_path, 0, protocol(), bare)
    write_commit(tmp_path, 1, metadata(), add("f"))
    write_commit(tmp_path, 2, bare, remove("f"))
    write_commit(tmp_path, 3, metadata())
    found = await following(DeltaTableLog(LocalStore(tmp_path)), 0)
    assert [(plan.schema.names, [task.schema.names for task in plan.tasks]) for plan in found] == [
        ([], []),
        (["a"], [["a"]]),
        ([], [["a"]]),
        (["a"], []),
    ]
    assert [plan.is_bare for plan in found] == [True, False, True, False]
    classic(tmp_path, 2, protocol(), {"metaData": bare["metaData"] | {"schemaString": None}})
    for version in (0, 1):
        at(tmp_path, version).unlink()
    log = DeltaTableLog(LocalStore(tmp_path))
    assert (await earliest(tmp_path), await log.seek(3)) == (3, pa.schema([]))
    assert [plan.schema.names async for plan in log.snapshot_plans(2)] == [[]]


@pytest.mark.parametrize("action", [add("f"), remove("f"), cdc("f")])
@pytest.mark.parametrize("schema", [None, schema_string()])
async def test_a_file_of_a_table_without_columns_is_refused(
    tmp_path: Path, action: dict[str, Any], schema: str | None
) -> None:
    write_commit(tmp_path, 0, protocol(), {"metaData": metadata()["metaData"] | {"schemaString": schema}})
    write_commit(tmp_path, 1, action)
    log = DeltaTableLog(LocalStore(tmp_path))
    await log.seek(1)
    with pytest.raises(LogCorrupt, match="f belongs to a table that has no columns"):
        await log.next_plan()
    if "add" in action:
        with pytest.raises(LogCorrupt):
            await anext(log.snapshot_plans(1))


@pytest.mark.parametrize("dated", [False, True])
async def test_a_snapshot_of_a_damaged_commit_that_a_checkpoint_makes_up_for(tmp_path: Path, dated: bool) -> None:
    """All but the time inside of the commit, where the table has such times."""
    times = {"delta.enableInCommitTimestamps": str(dated).lower()}
    write_commit(tmp_path, 0, protocol(), metadata(**times), commit_info(inCommitTimestamp=1), add("f0"))
    write_commit(tmp_path, 1, '{"add": {')
    classic(tmp_path, 1, protocol(), metadata(**times), add("f1"))
    log = DeltaTableLog(LocalStore(tmp_path))
    if dated:
        with pytest.raises(LogCorrupt):
            await anext(log.snapshot_plans(1))
        return
    pages = [page async for page in log.snapshot_plans(1)]
    assert [Path(task.uri).name for page in pages for task in page.tasks] == ["f1"]


class VanishingStore(LocalStore):
    """Loses a commit between the listing and the last look at it."""

    async def scan(self, name: str, work: Callable[[OpenObject], T]) -> T:
        if work is read_whole:
            (self.root / name).unlink()
        return await super().scan(name, work)


async def test_a_commit_that_vanishes_during_a_snapshot_ends_it(tmp_path: Path) -> None:
    a_log(tmp_path, 3)
    pages = DeltaTableLog(VanishingStore(tmp_path)).snapshot_plans(2)
    with anyio.fail_after(300), pytest.raises(StorageUnavailable, match="it was removed while the log was being read"):
        await anext(pages)


class CountingStore(LocalStore):
    """A store that records its requests."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.asked: list[str] = []

    def scan_now(self, name: str, work: Callable[[OpenObject], T]) -> T:
        self.asked.append(name)
        return super().scan_now(name, work)

    async def list(self, prefix: str, start_after: str = "") -> Objects:
        self.asked.append(prefix)
        return await super().list(prefix, start_after)


@pytest.mark.parametrize("length", [3, 100])
async def test_a_new_version_costs_one_look_however_long_the_log(tmp_path: Path, length: int) -> None:
    a_log(tmp_path, length)
    store = CountingStore(tmp_path)
    log = DeltaTableLog(store)
    await log.seek(length - 1)
    store.asked.clear()
    assert await log.next_plan() is not None
    assert await log.next_plan() is None
    assert store.asked == [commit_name(length - 1), commit_name(length)]


async def test_only_commits_that_leave_something_out_look_back(tmp_path: Path) -> None:
    values = {"p": "1"}
    write_commit(tmp_path, 0, protocol(), metadata(schema_string(a="long", p="string"), ["p"]))
    write_commit(tmp_path, 1, *(add(name, partitionValues=values) for name in "fghi"))
    write_commit(tmp_path, 2, remove("f", partitionValues=values))
    write_commit(tmp_path, 3, remove("g", partitionValues=None), add("g", inline_vector([1]), partitionValues=values))
    write_commit(tmp_path, 4, remove("h", partitionValues={}))
    write_commit(tmp_path, 5, remove("i", partitionValues={}, dataChange=False))
    write_commit(tmp_path, 6, cdc("c", partitionValues=values), remove("i", partitionValues={}))
    store = CountingStore(tmp_path)
    plans = await following(DeltaTableLog(store), 0)
    assert [name for name in store.asked if name.endswith(".json")] == [
        commit_name(version) for version in (0, 1, 2, 3, 4, 3, 2, 1, 5, 6, 7)
    ]
    assert {task.partition_values for plan in plans for task in plan.tasks} == {(("p", "1"),)}


async def test_entering_reads_back_only_to_the_newest_metadata(tmp_path: Path) -> None:
    a_log(tmp_path, 50)
    write_commit(tmp_path, 40, protocol(), metadata())
    store = CountingStore(tmp_path)
    await DeltaTableLog(store).seek(45)
    hint = f"{LOG}/_last_checkpoint"
    assert store.asked == [hint, LOG, *(commit_name(version) for version in range(44, 39, -1))]


async def test_commits_that_lie_for_a_while_are_read_once(tmp_path: Path) -> None:
    """One that has just been written may still grow, and is read again."""
    a_log(tmp_path, 50)
    os.utime(at(tmp_path, 49))
    store = CountingStore(tmp_path)
    log = DeltaTableLog(store)
    await log.table_id()
    assert {name: store.asked.count(commit_name(name)) for name in range(50)} == dict.fromkeys(range(50), 1)
    await log.ids(-1)
    again = [name for name in store.asked if store.asked.count(name) > 1 and name.endswith(".json")]
    assert set(again) == {commit_name(49)}
    write_commit(tmp_path, 48, protocol(), metadata())
    await log.ids(-1)
    assert store.asked.count(commit_name(48)) == 2


@pytest.mark.parametrize(
    ("text", "point", "end"),
    [
        ("earliest", StartPoint(0), 0),
        ("latest", StartPoint(4), 3),
        ("2", StartPoint(2), 2),
        ("4", StartPoint(4), 4),
        ("1970-01-01T00:00:01.010Z", StartPoint(1), 1),
        ("1970-01-01T00:00:01.011Z", StartPoint(2), 1),
    ],
)
async def test_starts_and_ends(tmp_path: Path, text: str, point: StartPoint, end: int) -> None:
    log = a_log(tmp_path, 4)
    assert await log.resolve(Start.parse(text)) == point
    assert await log.resolve_end(Start.parse(text)) == end


async def test_moments_outside_the_history(tmp_path: Path) -> None:
    log = a_log(tmp_path, 4)
    with pytest.raises(ConfigError):
        await log.resolve(Start(StartKind.TIMESTAMP, 1031))
    with pytest.raises(ConfigError):
        await log.resolve_end(Start(StartKind.TIMESTAMP, 999))
    assert await log.resolve(Start(StartKind.SNAPSHOT)) == StartPoint(3, snapshot=True)


async def whole_snapshot(log: DeltaTableLog, version: int) -> ChangePlan:
    """Return the only plan of a small snapshot."""
    (plan,) = [plan async for plan in log.snapshot_plans(version)]
    return plan


async def live(table: Path, version: int) -> list[str]:
    plan = await whole_snapshot(DeltaTableLog(LocalStore(table)), version)
    return [task.uri.rpartition("/")[2] + (" -" if task.exclude else "") for task in plan.tasks]


async def test_the_files_of_a_snapshot(tmp_path: Path) -> None:
    first, second = inline_vector([1]), inline_vector([1, 2])
    write_commit(tmp_path, 0, *HEAD, add("a"), add("b"), add("c%20d"), cdc("x"))
    write_commit(tmp_path, 1, add("a", first), remove("a"), remove("b"))
    write_commit(tmp_path, 2, remove("a", first), add("a", second), add("b", data_change=False))
    write_commit(tmp_path, 3, remove("a", second), remove(f"{tmp_path}/c%20d"), add("a"))
    expected = [["a", "b", "c d"], ["a -", "c d"], ["a -", "b", "c d"], ["a", "b"]]
    for version, files in enumerate(expected):
        assert await live(tmp_path, version) == files
    classic(tmp_path, 1, *HEAD, add("a", first), add("c%20d"))
    for version, files in enumerate(expected):
        assert await live(tmp_path, version) == files


@pytest.mark.parametrize("own_ms", [None, 77])
async def test_a_snapshot_is_the_same_once_a_checkpoint_stands_for_its_commit(
    tmp_path: Path, own_ms: int | None
) -> None:
    info = [commit_info(inCommitTimestamp=own_ms)] if own_ms is not None else []
    write_commit(tmp_path, 0, *HEAD, modified_ms=2000)
    write_commit(tmp_path, 1, *info, add("a"), modified_ms=1000)
    before = await whole_snapshot(DeltaTableLog(LocalStore(tmp_path)), 1)
    assert before.timestamp_ms == (2001 if own_ms is None else own_ms)
    classic(tmp_path, 1, *HEAD, add("a"))
    assert await whole_snapshot(DeltaTableLog(LocalStore(tmp_path)), 1) == before


async def test_a_snapshot_of_which_only_the_checkpoint_is_left(tmp_path: Path) -> None:
    os.utime(classic(tmp_path, 1, *HEAD, add("a")), (5, 5))
    plan = await whole_snapshot(DeltaTableLog(LocalStore(tmp_path)), 1)
    assert ([task.uri for task in plan.tasks], plan.timestamp_ms) == ([f"{tmp_path}/a"], 5000)


async def test_a_plan_takes_less_than_1_kb_for_a_file_that_changed_rows(tmp_path: Path) -> None:
    """Statistics, which can be long, are not kept (invariant 7)."""
    files, statistics = 20_000, json.dumps({"numRecords": 1, "minValues": {"a": "x" * 800}})
    name = "a=1/part-{:05d}-28558bf2-39cc-4803-9b78-d6139d32b6a8-c000.snappy.parquet"
    write_commit(tmp_path, 0, *HEAD)
    write_commit(tmp_path, 1, *(add(name.format(number), stats=statistics) for number in range(files)))
    log = DeltaTableLog(LocalStore(tmp_path))
    await log.seek(1)
    tracemalloc.start()
    try:
        plan = await log.next_plan()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert plan is not None
    assert len(plan.tasks) == files
    assert peak < files * 1000 + 8 * CHUNK_BYTES


async def test_hints_are_not_relied_upon(tmp_path: Path) -> None:
    a_log(tmp_path, 3)
    (tmp_path / LOG / "_last_checkpoint").write_text('{"version":999,"size":-1')
    (tmp_path / LOG / f"{2:020d}.crc").write_text("not even JSON")
    (tmp_path / LOG / f"{0:020d}.{2:020d}.compacted.json").write_text(json.dumps(add("f0")))
    assert len(await following(DeltaTableLog(LocalStore(tmp_path)), 0)) == 3
    assert await live(tmp_path, 2) == ["f0", "f1", "f2"]


def test_beside_another_reader_of_a_real_table(tmp_path: Path) -> None:
    """delta-rs writes, deletes and checkpoints; both readers find the same files in every snapshot."""
    for number in range(6):
        write_deltalake(tmp_path, pa.table({"p": [number % 2], "a": [number]}), mode="append", partition_by=["p"])
        if number == 3:
            table = DeltaTable(tmp_path)
            table.delete("a = 1")
            table.create_checkpoint()
    for version in range(DeltaTable(tmp_path).version() + 1):
        plan = anyio.run(whole_snapshot, DeltaTableLog(LocalStore(tmp_path)), version)
        assert sorted(task.uri for task in plan.tasks) == sorted(DeltaTable(tmp_path, version=version).file_uris())
