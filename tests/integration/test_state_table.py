"""The state table: real files, real processes, other Delta readers; and losses that are no first start."""

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import anyio
import pytest
from anyio import to_thread
from deltalake import DeltaTable, Field, Schema
from deltalake.schema import PrimitiveType
from pyspark.sql import SparkSession

from tailer.errors import (
    LogCorrupt,
    LogError,
    NotATable,
    SinkFenced,
    SinkRejected,
    SinkUnavailable,
    StorageUnavailable,
    UnsupportedFeature,
    VersionGone,
)
from tailer.formats.delta.log.listing import LOG, commit_name
from tailer.plan import END, SNAPSHOT_TASKS, Position
from tailer.progress.delta_commit import write_commit
from tailer.progress.state_table import CHECKPOINT_EVERY, StateTable
from tailer.sink import Progress, pipeline_of
from tailer.stores.bucket.store import BucketStore
from tailer.stores.local import LocalStore
from tailer.stores.port import Objects, ObjectStore
from tailer.stores.s3 import S3Options
from tailer.stores.s3.bucket import S3Bucket
from tests.support.cloud.memory_store import MemoryStore
from tests.support.s3.link import S3Link
from tests.support.s3.server import S3Server

APP = "pipeline/3f2a"

pytestmark = [pytest.mark.anyio, pytest.mark.long]


@pytest.fixture(params=["local", "memory", pytest.param("s3", marks=pytest.mark.stores)])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    if request.param == "s3":
        server: S3Server = request.getfixturevalue("versitygw")
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        return BucketStore(S3Bucket(server.new_bucket(), S3Options(endpoint=server.endpoint)), "state")
    return LocalStore(tmp_path / "state") if request.param == "local" else MemoryStore()


# Too many for a server.
hundreds_of_commits = pytest.mark.parametrize("store", ["local", "memory"], indirect=True)


def at(version: int, app: str = APP) -> Progress:
    return Progress(app, Position.end(version))


async def fill(store: ObjectStore, records: int, app: str = APP, first: int = 0) -> StateTable:
    """Write `records` records, versions from `first` on."""
    table = StateTable(store)
    for version in range(first, first + records):
        await table.record(at(version, app))
    return table


@pytest.mark.parametrize(
    "position",
    [
        Position.end(-1),
        Position.end(0),
        Position(0, 0, 0),
        Position(0, 0, END),
        Position(57, 3, 12_345_678_901),
        Position(0, SNAPSHOT_TASKS, 0),
        Position(57, END - 1, END),
        Position.end(2**62),
    ],
)
async def test_every_position_comes_back(store: ObjectStore, position: Position) -> None:
    table = StateTable(store)
    assert await table.progress(APP) is None
    assert await store.list(LOG) == []
    for before in (None, Position.end(3), Position(4, 1, 1)):
        if before is not None:
            await table.record(Progress(APP, before))
        await table.record(Progress(APP, position))
        assert await table.progress(APP) == Progress(APP, position)
        assert await StateTable(store).progress(APP) == Progress(APP, position)
    assert await table.progress("pipeline/3f2") is None


@pytest.mark.stores
async def test_requests(versitygw: S3Server, link: S3Link) -> None:
    """A look at the version before, the commit, and a listing; one more GET for each commit of another stream."""
    store = BucketStore(S3Bucket(versitygw.new_bucket(), S3Options(endpoint=link.endpoint)), "state")
    first = await fill(store, 2)
    link.requests.clear()
    await first.record(at(2))
    assert link.methods() == ["HEAD", "PUT", "LIST"]
    await fill(store, 3, "other/1")
    link.requests.clear()
    await first.record(at(3))
    # The PUT is refused: two looks at whose the commit is, then the three that were missed.
    refused, then = ["HEAD", "PUT", "HEAD", "GET", "LIST"], ["HEAD", "PUT", "LIST"]
    assert link.methods() == [*refused, *["GET"] * 3, *then]
    link.requests.clear()
    assert await StateTable(store).progress(APP) == at(3)
    # One GET more: the listing may lack the newest.
    assert Counter(link.methods()) == {"LIST": 1, "GET": 9}


async def test_the_table_of_a_commit_that_was_not_read_back_is_the_same(store: ObjectStore) -> None:
    """An instance continues from its own commits with the state that another one reads."""
    table = StateTable(store)
    for number in range(6):
        await table.record(at(number, f"app{number % 2}"))
        await fill(store, 1, "other/1", number)
    await table.record(at(9, "app0"))
    reader = StateTable(store)
    await reader.progress("app0")
    assert reader._log == table._log


async def test_only_one_instance_records(store: ObjectStore) -> None:
    first, second = StateTable(store), StateTable(store)
    assert await first.progress(APP) is None
    assert await second.progress(APP) is None
    await first.record(at(1))
    with pytest.raises(SinkFenced):
        await second.record(at(1))
    with pytest.raises(SinkFenced):  # without a new read it is refused again
        await second.record(at(2))
    await first.record(at(2))
    assert await second.progress(APP) == at(2)
    await second.record(at(3))
    with pytest.raises(SinkFenced):
        await first.record(at(3))
    assert await StateTable(store).progress(APP) == at(3)


@hundreds_of_commits
async def test_other_streams_do_not_disturb(store: ObjectStore) -> None:
    first, second = StateTable(store), StateTable(store)
    for version in range(130):  # beyond two checkpoints
        await first.record(at(version, "a/1"))
        await second.record(at(version, "b/1"))
    assert (await second.progress("a/1"), await first.progress("b/1")) == (at(129, "a/1"), at(129, "b/1"))

    async def count(app: str, table: StateTable) -> None:
        for version in range(130, 160):
            await table.record(at(version, app))

    shared = StateTable(store)
    async with anyio.create_task_group() as tasks:
        for app, table in (("a/1", first), ("b/1", second), ("c/1", shared), ("d/1", shared)):
            tasks.start_soon(count, app, table)
    for app in ("a/1", "b/1", "c/1", "d/1"):
        assert await StateTable(store).progress(app) == at(159, app)


async def test_instances_in_two_tables_of_a_pipeline_know_of_each_other(store: ObjectStore) -> None:
    """One follows a table, and one that which took its place. The latter may ask for its progress late, as a writer."""
    former, later, others = StateTable(store), StateTable(store), StateTable(store)
    await former.progress("orders/1")
    await later.progress("orders/1")
    await former.record(Progress("orders/1", Position.end(3)))
    await others.record(Progress("orders2/1", Position.end(9)))
    with pytest.raises(SinkUnavailable, match="another instance has delivered orders/1 meanwhile"):
        await later.record(Progress("orders/2", Position.end(6)))
    assert await later.progress("orders/1") == Progress("orders/1", Position.end(3))
    for version in (6, 7):
        await later.record(Progress("orders/2", Position.end(version)))
    with pytest.raises(SinkUnavailable, match="another instance has delivered orders/2 meanwhile"):
        await former.record(Progress("orders/1", Position.end(4)))
    assert await former.progress("orders/2") == Progress("orders/2", Position.end(7))
    await others.record(Progress("orders2/2", Position.end(10)))


async def test_the_log_stays_small_and_quick(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    table = StateTable(store)
    seconds: list[float] = []
    most = 0
    for version in range(2000):
        started = perf_counter()
        await table.record(at(version))
        seconds.append(perf_counter() - started)
        most = max(most, len(await store.list(LOG)))
    assert most < 120
    assert median(seconds[-200:]) < 0.05
    assert median(seconds[-200:]) < 3 * median(seconds[100:300]) + 0.005
    assert await StateTable(store).progress(APP) == at(1999)


async def test_other_readers_agree(tmp_path: Path, spark: SparkSession) -> None:
    """delta-rs and Spark open the table before there is a checkpoint, at one, and after the log was shortened."""
    store = LocalStore(tmp_path)
    table = StateTable(store)

    def spark_has() -> tuple[int, int, dict[str, int]]:
        jvm: Any = spark._jvm
        jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)
        jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
        snapshot = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(
            spark._jsparkSession, str(tmp_path)
        ).unsafeVolatileSnapshot()
        versions = {app: snapshot.transactions().apply(app) for app in (APP, f"{APP}#task", f"{APP}#row")}
        return snapshot.version(), spark.read.format("delta").load(str(tmp_path)).count(), versions

    for version in range(3 * CHECKPOINT_EVERY + 2):
        await table.record(Progress(APP, Position(version, 4, 9)) if version % 2 else at(version))
        if version in (1, CHECKPOINT_EVERY - 1, 3 * CHECKPOINT_EVERY + 1):
            reader = DeltaTable(str(tmp_path))
            values = [version - 1, 4, 9]
            apps = [APP, f"{APP}#task", f"{APP}#row"]
            assert (reader.version(), reader.file_uris()) == (version + 1, [])
            assert [reader.transaction_version(app) for app in apps] == values
            assert await to_thread.run_sync(spark_has) == (version + 1, 0, dict(zip(apps, values, strict=True)))
    assert not (tmp_path / commit_name(0)).exists()


async def test_readers_are_not_disturbed_while_the_log_is_shortened(tmp_path: Path) -> None:
    await fill(LocalStore(tmp_path), 1)
    reads: list[int] = []

    def read() -> None:
        found = DeltaTable(str(tmp_path)).transaction_version(APP)
        assert found is not None
        reads.append(found)

    async with anyio.create_task_group() as tasks:

        async def keep_reading() -> None:
            while not reads or reads[-1] < 600:
                await to_thread.run_sync(read)

        tasks.start_soon(keep_reading)
        table = StateTable(LocalStore(tmp_path))
        for version in range(1, 601):
            await table.record(at(version))
            await anyio.sleep(0.005)  # on a busy machine, a reader may take as long as fifty commits without a pause
    assert reads == sorted(reads)


@hundreds_of_commits
async def test_a_writer_that_slept_through_two_checkpoints_is_not_lost(store: ObjectStore) -> None:
    """Its next version was deleted long ago, so creating it succeeds without an effect."""
    sleeper = await fill(store, 3, "sleeper/1")
    await fill(store, 4 * CHECKPOINT_EVERY, "busy/1")
    await sleeper.record(at(3, "sleeper/1"))
    assert await StateTable(store).progress("sleeper/1") == at(3, "sleeper/1")
    await fill(store, 4 * CHECKPOINT_EVERY, "busy/1", 1000)
    other = StateTable(store)
    await other.progress("sleeper/1")
    await other.record(at(4, "sleeper/1"))
    await fill(store, 4 * CHECKPOINT_EVERY, "busy/1", 2000)
    with pytest.raises(SinkFenced):
        await sleeper.record(at(4, "sleeper/1"))
    assert await StateTable(store).progress("sleeper/1") == at(4, "sleeper/1")


class DeletedStore(MemoryStore):
    """A store whose table others delete, and create again, around the next put."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Callable[[], object] = dict
        self.after: Callable[[], object] = dict

    async def put_if_absent(self, name: str, data: bytes) -> None:
        before, after, self.before, self.after = self.before, self.after, dict, dict
        before()
        await super().put_if_absent(name, data)
        after()


async def test_a_table_deleted_around_the_commit_is_noticed() -> None:
    """The listing after the commit decides, not that the commit succeeded."""
    for when in ("before", "after"):
        store = DeletedStore()
        table = await fill(store, 5)
        setattr(store, when, store.objects.clear)
        with pytest.raises(SinkRejected, match="the state table was deleted or replaced while in use"):
            await table.record(at(5))


class BehindStore(MemoryStore):
    """A store whose listings lack the newest object while `is_behind`, or all of them while `is_empty`."""

    is_behind = is_empty = False

    async def list(self, prefix: str, start_after: str = "") -> Objects:
        found = await super().list(prefix, start_after)
        return [] if self.is_empty else found[:-1] if self.is_behind else found


async def test_a_listing_that_is_behind_is_not_a_deleted_table() -> None:
    store = BehindStore()
    table = await fill(store, 5)
    store.is_behind = True
    for number in (5, 6):
        await table.record(at(number))
    store.is_behind = False
    assert await StateTable(store).progress(APP) == at(6)


async def test_a_listing_from_before_the_table_is_not_a_deleted_table() -> None:
    store = BehindStore()
    table = await fill(store, 2)
    store.is_empty = True
    with pytest.raises(SinkUnavailable, match="listing is empty"):
        await table.record(at(2))
    for each in (table, StateTable(store)):
        with pytest.raises(StorageUnavailable, match="listing is empty"):
            await each.progress(APP)
    store.is_empty = False
    assert await table.progress(APP) == at(2)
    store.objects.clear()
    with pytest.raises(SinkRejected, match="the state table was deleted or replaced while in use"):
        await table.progress(APP)


class TornStore(MemoryStore):
    """A store whose listings lack the commit of a version."""

    torn: int | None = None

    async def list(self, prefix: str, start_after: str = "") -> Objects:
        found = await super().list(prefix, start_after)
        return [meta for meta in found if self.torn is None or meta.name != commit_name(self.torn)]


@pytest.mark.parametrize("version", [0, 2])
async def test_a_commit_that_listings_lack_is_not_a_deleted_table(version: int) -> None:
    store = TornStore()
    table = await fill(store, 4)
    store.torn = version
    with pytest.raises(StorageUnavailable, match="do not agree"):
        await table.progress(APP)
    store.torn = None
    assert await table.progress(APP) == at(3)
    await store.delete(commit_name(version))
    with pytest.raises(VersionGone):
        await table.progress(APP)


async def test_progress_that_a_listing_lacks_is_found() -> None:
    """Otherwise a second instance could take its own table for another one, and stop for good."""
    store = BehindStore()
    await fill(store, 3)
    store.is_behind = True
    second = StateTable(store)
    assert await second.has_delivered(pipeline_of(APP))
    assert await second.progress(APP) == at(2)


class FaultyStore(MemoryStore):
    """A store that fails at the next put of a kind, before or after it took place."""

    def __init__(self) -> None:
        super().__init__()
        self.fail: str | None = None

    async def put_if_absent(self, name: str, data: bytes) -> None:
        if self.fail == "before":
            raise StorageUnavailable(name, "connection reset")
        await super().put_if_absent(name, data)
        if self.fail == "after":
            raise StorageUnavailable(name, "connection reset")

    async def put(self, name: str, data: bytes) -> None:
        if self.fail == "checkpoint" and "checkpoint" in name:
            raise StorageUnavailable(name, "connection reset")
        await super().put(name, data)


async def test_failures_of_the_store() -> None:
    store = FaultyStore()
    table = await fill(store, 2)
    store.fail = "after"
    await table.record(at(2))
    assert await StateTable(store).progress(APP) == at(2)
    store.fail = "before"
    with pytest.raises(SinkUnavailable, match="connection reset"):
        await table.record(at(3))
    assert await table.progress(APP) == at(2)
    store.fail = "checkpoint"
    for version in range(3, 2 * CHECKPOINT_EVERY):
        await table.record(at(version))
    assert not [name for name in store.objects if "checkpoint" in name]
    store.fail = None
    await table.record(at(500))
    assert len([name for name in store.objects if "checkpoint" in name]) == 2
    assert await StateTable(store).progress(APP) == at(500)


async def test_a_crash_while_shortening_the_log_is_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    """After any number of deletions the table is valid, and the next checkpoint removes the rest."""

    class Killed(BaseException):
        pass

    for allowed in range(0, 49, 7):
        store = MemoryStore()
        table = await fill(store, 2 * CHECKPOINT_EVERY - 2)
        left = allowed

        async def delete(name: str, store: MemoryStore = store) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            store.objects.pop(name)

        with monkeypatch.context() as patched:
            patched.setattr(store, "delete", delete)
            with pytest.raises(Killed):
                await table.record(at(98))
        assert await StateTable(store).progress(APP) == at(98)
        await fill(store, CHECKPOINT_EVERY, first=99)
        assert len(store.objects) <= CHECKPOINT_EVERY + 4
        assert await StateTable(store).progress(APP) == at(148)


def last_commit(log: Path) -> Path:
    return max(log.glob("*.json"))


def truncate(path: Path, share: float) -> None:
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])


def remove(*paths: Path) -> None:
    for path in paths:
        path.unlink()


Damage = Callable[[Path], object]
DAMAGE: dict[str, tuple[Damage, type[LogError]]] = {
    "last commit empty": (lambda log: truncate(last_commit(log), 0), LogCorrupt),
    "last commit torn": (lambda log: truncate(last_commit(log), 0.7), LogCorrupt),
    "last commit of bytes": (lambda log: last_commit(log).write_bytes(os.urandom(200)), LogCorrupt),
    "checkpoint empty": (lambda log: truncate(max(log.glob("*.parquet")), 0), LogCorrupt),
    "checkpoint torn": (lambda log: truncate(max(log.glob("*.parquet")), 0.5), LogCorrupt),
    "commit missing": (lambda log: sorted(log.glob("*.json"))[-3].unlink(), VersionGone),
    "checkpoints missing": (lambda log: remove(*log.glob("*.parquet")), VersionGone),
    "only the hint left": (
        lambda log: remove(*(path for path in log.iterdir() if path.name != "_last_checkpoint")),
        NotATable,
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
async def test_a_damaged_log_is_never_a_new_start(tmp_path: Path, damage: str) -> None:
    await fill(LocalStore(tmp_path), 2 * CHECKPOINT_EVERY + 10)
    apply, error = DAMAGE[damage]
    apply(tmp_path / LOG)
    with pytest.raises(error):
        await StateTable(LocalStore(tmp_path)).progress(APP)
    with pytest.raises(error):
        await StateTable(LocalStore(tmp_path)).record(at(1000))


async def test_flipped_bits_in_a_checkpoint_are_found(tmp_path: Path) -> None:
    await fill(LocalStore(tmp_path), CHECKPOINT_EVERY)
    (checkpoint,) = (tmp_path / LOG).glob("*.parquet")
    whole = checkpoint.read_bytes()
    chance = random.Random(7)
    refused = 0
    for _ in range(300):
        at_byte = chance.randrange(len(whole))
        checkpoint.write_bytes(
            whole[:at_byte] + bytes([whole[at_byte] ^ (1 << chance.randrange(8))]) + whole[at_byte + 1 :]
        )
        try:
            assert await StateTable(LocalStore(tmp_path)).progress(APP) == at(CHECKPOINT_EVERY - 1)
        except (LogError, StorageUnavailable):
            refused += 1
    assert refused > 0


async def test_a_broken_checkpoint_can_be_removed(tmp_path: Path) -> None:
    """The previous checkpoint and the commits since are kept for that."""
    await fill(LocalStore(tmp_path), 2 * CHECKPOINT_EVERY + 10)
    max((tmp_path / LOG).glob("*.parquet")).unlink()
    assert await StateTable(LocalStore(tmp_path)).progress(APP) == at(2 * CHECKPOINT_EVERY + 9)


async def test_a_log_that_vanishes_under_a_writer_is_noticed(store: ObjectStore) -> None:
    table = await fill(store, 5)
    for meta in await store.list(LOG):
        await store.delete(meta.name)
    for failing in (table.record(at(5)), table.progress(APP)):
        with pytest.raises(SinkRejected, match="the state table was deleted or replaced while in use"):
            await failing
    assert await store.list(LOG) == []
    assert await StateTable(store).progress(APP) is None
    table = await fill(MemoryStore(), 5)
    young = MemoryStore()
    await fill(young, 1)
    table._store = young
    with pytest.raises(SinkRejected, match="the state table was deleted or replaced while in use"):
        await table.record(at(5))


async def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    DeltaTable.create(str(data), Schema([Field("a", PrimitiveType("string"))]))
    strange = tmp_path / "strange"
    (strange / LOG).mkdir(parents=True)
    (strange / LOG / "notes.txt").write_text("not a log")
    for path, match in ((data, "not one that keeps lake-tailer's progress"), (strange, "no commit")):
        table = StateTable(LocalStore(path))
        with pytest.raises(NotATable, match=match):
            await table.progress(APP)
        with pytest.raises(NotATable, match=match):
            await table.record(at(1))
    fresh = tmp_path / "fresh"
    (fresh / LOG).mkdir(parents=True)
    (fresh / LOG / ".0.json.aa.tmp").write_text("left by a killed process")
    await fill(LocalStore(fresh), 1)
    assert await StateTable(LocalStore(fresh)).progress(APP) == at(0)
    afile = tmp_path / "file"
    afile.write_text("")
    with pytest.raises(SinkRejected, match="progress cannot be kept") as raised:
        await fill(LocalStore(afile), 1)
    assert "answer" not in str(raised.value)
    assert "write" in raised.value.hint


async def test_a_state_table_changed_by_another_writer_is_refused(store: ObjectStore) -> None:
    table = await fill(store, 3)
    properties = {"lakeTailer.progress": "2"}
    forgetful = {"lakeTailer.progress": "1", "delta.SetTransactionRetentionDuration": "interval 1 day"}
    metadata = {"id": "x", "schemaString": "{}", "partitionColumns": [], "configuration": properties}
    add = {"path": "a", "partitionValues": {}, "size": 1, "dataChange": True, "modificationTime": 1}
    changes: list[tuple[dict[str, Any], type[LogError]]] = [
        ({"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": []}}, UnsupportedFeature),
        ({"metaData": metadata}, UnsupportedFeature),
        ({"metaData": {**metadata, "configuration": forgetful}}, UnsupportedFeature),
        ({"add": add}, NotATable),
        ({"txn": {"appId": APP, "version": 99, "lastUpdated": 1}}, LogCorrupt),
    ]
    for action, error in changes:
        await write_commit(store, 4, [action], "TEST")
        with pytest.raises(error):
            await StateTable(store).progress(APP)
        with pytest.raises((error, SinkFenced)):
            await table.record(at(7))
        await store.delete(commit_name(4))
    assert await StateTable(store).progress(APP) == at(2)


def writer(path: Path, app: str, last: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.integration.state_writer", str(path), app, str(last)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
